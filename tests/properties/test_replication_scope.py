"""What the models left out is drawn here, for every core; no fault, and its test fails.

[S004:5.3] Messages lost in the middle of a pull, the order of a producer's batches (I9), an in-sync
set below the minimum, retention, and more than three replicas.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest
from replication_cores import CORES
from replication_shapes import drawn_run

from orderwire.broker.replication.settings import Mode
from orderwire.kernel import NS_PER_MS
from orderwire.sim.replication_cluster import pair_of
from orderwire.sim.replication_run import Faults, ReplicationRun, RunSettings
from orderwire.verify.replication import LogStart

MODES = list(Mode)
NAMES = [mode.value for mode in MODES]
pytestmark = [pytest.mark.paper("S004:5.3")]


def busy(seed: int, mode: Mode, *, replicas: int = 3, least: int = 1, **faults: int) -> RunSettings:
    """Clients that are still at it when faults come."""
    drawn = drawn_run(seed, mode, replicas=(replicas,))
    producers = tuple(
        msgspec.structs.replace(each, batches=(1, 2) * 12, in_flight_max=3)
        for each in drawn.world.producers
    )
    return msgspec.structs.replace(
        drawn,
        world=msgspec.structs.replace(drawn.world, producers=producers),
        replication=msgspec.structs.replace(
            drawn.replication, min_insync_replicas=least, message_bytes_max=200
        ),
        faults=Faults(**faults),
        faults_ns=200 * NS_PER_MS,
    )


class Watched(ReplicationRun):
    """Counts what befell it."""

    def __init__(self, *arguments: Any) -> None:
        self.seen: Counter[str] = Counter()
        super().__init__(*arguments)
        break_link = self.world.break_link

        def watched(a: int, b: int) -> None:
            queues = self.world.queues
            for each in (*queues[a, b], *queues[b, a]):
                self.seen[type(each).__name__] += pair_of(a, b) in self.world.open
            break_link(a, b)

        self.world.break_link = watched  # type: ignore[method-assign]

    def _take(self, step: Any) -> None:
        super()._take(step)
        least = self.settings.replication.min_insync_replicas
        self.seen["too few"] += len(self.world.znodes.isr) < least
        self.seen["together"] += any(len(each.flight) > 1 for each in self.world.producers)


def lived(mode: Mode, settings: RunSettings, seed: int) -> Watched:
    run = Watched(CORES[mode], settings, seed)
    outcome = run.run()
    assert not outcome.breaches, f"seed {seed}: {outcome.breaches[:3]}"
    assert outcome.settled_ns is not None, seed
    run.seen["moves"] = sum(isinstance(each, LogStart) for each in outcome.history)
    run.seen["committed"] = outcome.committed
    return run


COPIES = {
    Mode.ACTIVE_STANDBY: {"Records"},
    Mode.ACTIVE_ACTIVE: {"SyncCopy", "SyncPull", "Pulled"},
    Mode.ACTIVE_ACTIVE_LANES: {"LaneData", "LaneLog", "LaneFetch"},
}
"""What carries batches, or asks for them."""


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_messages_are_lost_in_the_middle_of_a_pull(mode: Mode) -> None:
    lost: Counter[str] = Counter()
    for seed in range(4):
        lost += lived(mode, busy(seed, mode, link_breaks=25), seed).seen
    assert sum(lost[each] for each in COPIES[mode]), lost


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_producer_s_batches_stay_in_order(mode: Mode) -> None:
    """[S004:I9] Several are under way when its connection, or its replica, goes."""
    together = 0
    for seed in range(3):
        faults = {"client_breaks": 6, "crashes": 2, "expiries": 1}
        together += lived(mode, busy(seed, mode, **faults), seed).seen["together"]
    assert together


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_the_in_sync_set_is_below_the_minimum(mode: Mode) -> None:
    few = 0
    for seed in range(3):
        settings = busy(seed, mode, least=3, crashes=3, partings=2)
        few += lived(mode, settings, seed).seen["too few"]
    # Active-standby keeps who is late where nothing could be committed without it.
    assert few or mode is Mode.ACTIVE_STANDBY


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_the_log_s_start_moves(mode: Mode) -> None:
    moves = 0
    for seed in range(3):
        moves += lived(mode, busy(seed, mode, deletions=30, crashes=1), seed).seen["moves"]
    assert moves


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("replicas", [4, 5])
def test_more_than_three_replicas(mode: Mode, replicas: int) -> None:
    settings = busy(replicas, mode, replicas=replicas, crashes=3, expiries=2, power_failures=1)
    run = lived(mode, settings, replicas)
    assert len(run.world.brokers) == replicas
    assert run.seen["committed"]
