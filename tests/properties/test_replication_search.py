"""Every order of events over the real replicas, for small partitions.  [S004:5.2]

Two messages, one with acks=1 and one with acks=all.  The pieces that run always are small; the
whole scopes run with `-m slow`, and `benchmarks/replication_models.py` prints their table.
"""

import pytest
from replication_cores import CORES
from replication_mutants import MUTANTS

from orderwire.broker.replication.settings import Mode
from orderwire.sim.replication_clients import ProducerSettings
from orderwire.sim.replication_search import SEARCH_SETTINGS, Found, Scope, Search

MODES = list(Mode)
NAMES = [mode.value for mode in MODES]


def clients(mode: Mode) -> tuple[ProducerSettings, ...]:
    anywhere = mode is Mode.ACTIVE_ACTIVE_LANES
    return (
        ProducerSettings(
            acks=1, idempotent=False, retries=False, batches=(1,), any_replica=anywhere
        ),
        ProducerSettings(acks=-1, batches=(1,), any_replica=anywhere, home=1),
    )


def searched(mode: Mode, **scope: int) -> Found:
    return Search(
        CORES[mode],
        SEARCH_SETTINGS,
        Scope(producers=clients(mode), **scope),  # type: ignore[arg-type]
    ).run()


@pytest.mark.paper("S004:5.2")
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_without_a_fault_every_state_is_good(mode: Mode) -> None:
    found = searched(mode)
    assert found.violations == {}
    assert found.complete
    assert found.stuck == 0


@pytest.mark.paper("S004:5.2")
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_the_first_states_with_a_crash_and_a_zombie_are_good(mode: Mode) -> None:
    found = searched(mode, crashes=1, expiries=1, states_max=400)
    assert found.violations == {}


@pytest.mark.paper("S004:5.3")
def test_the_search_finds_an_early_answer() -> None:
    scope = Scope(producers=clients(Mode.ACTIVE_ACTIVE), states_max=2_000, until=frozenset({"I1"}))
    found = Search(MUTANTS["answer at commit"].make_replica, SEARCH_SETTINGS, scope).run()
    assert "I1" in found.violations


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize(
    "faults",
    [{"crashes": 1}, {"expiries": 1}, {"power_failures": 1}, {"crashes": 1, "expiries": 1}],
    ids=["crash", "zombie", "power", "crash and zombie"],
)
def test_two_replicas(mode: Mode, faults: dict[str, int]) -> None:
    found = searched(mode, states_max=200_000, **faults)
    print(f"{mode.value} {faults}: {found.states} states, complete: {found.complete}")
    assert found.violations == {}
    assert found.stuck <= 0
