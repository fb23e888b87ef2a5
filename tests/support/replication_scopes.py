"""What exhaustive searches and the model-check table search."""

from collections.abc import Callable
from typing import Any

from replication_cores import CORES

from orderwire.broker.replication.settings import Mode
from orderwire.sim.replication_clients import ProducerSettings
from orderwire.sim.replication_search import SEARCH_SETTINGS, Found, Scope, Search


def sending(mode: Mode, acks: int = -1) -> tuple[ProducerSettings, ...]:
    """One message."""
    lanes = mode is Mode.ACTIVE_ACTIVE_LANES
    once = acks == 1
    return (
        ProducerSettings(
            acks=acks,
            idempotent=not once,
            retries=not once,
            batches=(1,),
            any_replica=lanes,
            home=1,
        ),
    )


def writers(mode: Mode) -> tuple[ProducerSettings, ...]:
    """One message with acks=1 and one with acks=all."""
    lanes = mode is Mode.ACTIVE_ACTIVE_LANES
    return (
        ProducerSettings(acks=1, idempotent=False, retries=False, batches=(1,), any_replica=lanes),
        ProducerSettings(acks=-1, batches=(1,), any_replica=lanes, home=1),
    )


def searched(
    mode: Mode,
    producers: tuple[ProducerSettings, ...],
    enough: Callable[[], bool] | None = None,
    **scope: Any,
) -> Found:
    """Search one core; a deposed active-standby original cuts its log back, as Kafka's does."""
    lost = mode is Mode.ACTIVE_STANDBY
    found = Scope(producers=producers, acks_one_lost=lost, **scope)
    return Search(CORES[mode], SEARCH_SETTINGS, found).run(enough)
