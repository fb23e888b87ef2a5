"""The paper's protocol, read literally, breaks: with a fault, and without one.  [S004:5.1]"""

import pytest

from orderwire.sim.explore import follow
from orderwire.sim.paper_active_active import (
    V1,
    V2,
    V3,
    V4,
    V5,
    V6,
    V7,
    Initiators,
    PaperProtocol,
    search,
    start,
    violations,
)


@pytest.mark.paper("S004:5.1")
@pytest.mark.parametrize("violation", [V1, V3], ids=["V1", "V3"])
def test_it_breaks_without_a_fault(violation: str) -> None:
    found = search(until=frozenset({violation}))
    assert violation in found.violations


SHARED = [
    f"B{source} sends B{to} what it has in (0, {end}]"
    for source, end in ((1, 0), (2, 0), (3, 2))
    for to in (1, 2, 3)
    if to != source
]
RACE = [
    "m1@1 stored at the original, acknowledged",
    "m2@2 relayed to B2",
    "B2 stores m2@2, acknowledges",
    "B2 makes its child of the lock",
    "B3 makes its child of the lock",
    "B3 sets syncEnd to 0",
    "B1 sees (0, 0]",
    "B2 sees (0, 0]",
    "B2 sets syncEnd to 2",
    "B3 sees (0, 2]",
    *SHARED,
    "B1 reports",
    "B2 reports",
    "B3 reports",
    "the original sets syncStart to 2 and unlocks",
    "B3 makes its child of the lock",
    "B3 sets syncEnd to 0",
]


@pytest.mark.paper("S004:5.1")
def test_two_initiators_set_sync_end_back() -> None:
    protocol = PaperProtocol(Initiators.RACE)
    before = follow(start(), protocol.successors, RACE[:-1])
    assert V6 not in set(violations(before))
    assert V6 in set(violations(follow(start(), protocol.successors, RACE)))
    with pytest.raises(AssertionError, match="is not possible"):
        follow(start(), PaperProtocol(Initiators.ONE).successors, RACE)


@pytest.mark.paper("S004:5.1")
@pytest.mark.parametrize("violation", [V2, V4, V5, V7], ids=["V2", "V4", "V5", "V7"])
def test_one_crash_breaks_the_rest(violation: str) -> None:
    found = search(crashes=1, rounds_max=1, until=frozenset({violation}))
    assert violation in found.violations


@pytest.mark.paper("S004:5.1")
def test_an_acknowledged_message_below_sync_start_is_never_copied() -> None:
    """A relay is stored after its replica has sent its share of the round."""
    steps = search(until=frozenset({V3})).violations[V3]
    stores = next(at for at, step in enumerate(steps) if step == "B2 stores m2@2, acknowledges")
    sends = [at for at, step in enumerate(steps) if step.startswith("B2 sends")]
    assert sends
    assert stores > min(sends)
    assert steps[-1] == "the original sets syncStart to 3 and unlocks"


@pytest.mark.slow
@pytest.mark.paper("S004:5.1")
def test_every_state_was_visited() -> None:
    quiet = search()
    assert (quiet.complete, quiet.states) == (True, 48_927)
    assert quiet.violations.keys() == {V1, V3}
    race = search(initiators=Initiators.RACE, until=frozenset({V6}))
    assert race.violations.keys() == {V1, V3, V6}
    crash = search(crashes=1, rounds_max=1)
    assert (crash.complete, crash.states) == (True, 237_554)
    assert crash.violations.keys() == {V1, V2, V3, V4, V5, V7}
