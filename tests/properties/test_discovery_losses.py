"""Every single message of a small boot, change and goodbye is lost in turn: exact soon after.

With all repair off some of these losses leave a view wrong for ever. [FDP/1 4.3]
"""

from collections.abc import Iterable
from random import Random

import pytest
from discovery_runs import MS, NO_REPAIR, S, domain, drawn_delay, exact_within

from orderwire.discovery.settings import Mechanisms
from orderwire.sim.discovery_world import DiscoveryWorld

PARTICIPANTS = 6
END_NS = 3 * S
SOON_NS = 2 * S
FAILED_NS = 10 * S
"""When a goodbye is lost altogether, the failure detection ends the leaver."""
PAIRS = 300


def story(lost: Iterable[int] = (), *, mechanisms: Mechanisms | None = None) -> DiscoveryWorld:
    """Six start almost together, one changes its MAP, one leaves; returns the world just after."""
    world = domain(
        seed="losses",
        id_space=16,
        delay=drawn_delay("losses", MS // 5, 2 * MS),
        dropped=lost,
        mechanisms=mechanisms,
    )
    for at in range(PARTICIPANTS):
        world.at(at * MS, lambda at=at: world.start(f"p{at}", b"map %d" % at))  # type: ignore[misc]
    world.at(END_NS - S, lambda: world.change("p1", b"changed"))
    world.at(END_NS - S // 2, lambda: world.leave("p2"))
    world.run(END_NS)
    return world


def messages(mechanisms: Mechanisms | None = None) -> int:
    """How many there are to lose when none is lost."""
    return story(mechanisms=mechanisms).sent


def wrong_for_ever(
    lost: Iterable[int], mechanisms: Mechanisms | None = None, wait_ns: int = SOON_NS
) -> bool:
    return exact_within(story(lost, mechanisms=mechanisms), wait_ns, 100 * MS) is None


@pytest.mark.slow
def test_the_loss_of_any_one_message_is_repaired() -> None:
    count = messages()
    assert count > 100
    assert [lost for lost in range(count) if wrong_for_ever([lost])] == []


@pytest.mark.slow
def test_the_loss_of_any_two_messages_is_repaired() -> None:
    chance, count = Random("pairs"), messages()
    pairs = [chance.sample(range(count), 2) for _ in range(PAIRS)]
    assert [pair for pair in pairs if wrong_for_ever(pair)] == []


@pytest.mark.slow
def test_the_loss_of_twenty_messages_is_repaired() -> None:
    chance, count = Random("twenties"), messages()
    many = [chance.sample(range(count), 20) for _ in range(PAIRS // 4)]
    assert [lost for lost in many if wrong_for_ever(lost, wait_ns=FAILED_NS)] == []


@pytest.mark.slow
def test_with_all_repair_off_some_losses_stay() -> None:
    count = messages(NO_REPAIR)
    failing = [lost for lost in range(count) if wrong_for_ever([lost], NO_REPAIR)]
    assert 0 < len(failing) < count
