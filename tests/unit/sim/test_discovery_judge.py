"""What the judge of a simulated domain sees, in views and beside them."""

import pytest

from orderwire.discovery.messages import Contact, Row, Status
from orderwire.discovery.settings import BootstrapSettings, DiscoverySettings
from orderwire.kernel import NS_PER_MS, NS_PER_S
from orderwire.sim.discovery_world import DiscoveryWorld


def domain(names: str, id_space: int = 16) -> DiscoveryWorld:
    """Start these one after the other, and let them meet."""
    world = DiscoveryWorld(
        DiscoverySettings(),
        BootstrapSettings(id_space=id_space),
        1,
        lambda _source, _to: NS_PER_MS,
    )
    world.server_up()
    for number, name in enumerate(names):
        world.at(number * NS_PER_S // 2, lambda who=name, n=number: world.start(who, b"", wish=n))  # type: ignore[misc]
    world.run(5 * NS_PER_S)
    return world


def test_a_domain_at_rest_is_without_fault() -> None:
    world = domain("abc")
    assert world.faults_at_rest() == world.faults_of_views() == []


@pytest.mark.parametrize("status", [Status.LIVE, Status.LEFT])
def test_a_live_entry_without_a_map_is_listed(status: Status) -> None:
    world = domain("abc")
    world.nodes()["a"].roster.merge(Row(9, 99, 1, 1, 0, "z", status, False), world.world.now_ns)
    found = [] if status is Status.LEFT else ["a lists 9, which is not there"]
    assert world.faults_of_views() == found
    assert world.faults_of_views(ignore_extra=True) == []


def test_leftovers_are_faults_at_rest_alone() -> None:
    world = domain("abc")
    roster = world.nodes()["a"].roster
    roster.learn_contact(Contact(9, "z", 99), world.world.now_ns)
    roster.suspect(1)
    assert world.faults_of_views() == []
    assert world.faults_at_rest() == [
        "a still has the contact 9",
        "a suspects 1, which is there",
        "a sends to [2, 9], there are [1, 2]",
    ]
    world.run(20 * NS_PER_S)
    assert world.faults_at_rest() == []


def test_a_refused_participant_takes_no_part_while_the_domain_is_full() -> None:
    world = domain("abc", id_space=2)
    assert set(world.nodes()) == {"a", "b", "c"}
    assert set(world.admitted()) == {"a", "b"}
    assert world.faults_of_views() == ["['c'] have no id"]
    assert world.faults_of_views(ignore_refused=True) == world.faults_at_rest() == []
    world.leave("b")
    world.run(5 * NS_PER_S + NS_PER_S // 10)
    assert world.faults_of_views(ignore_refused=True) == []
    assert world.faults_at_rest() == ["['c'] have no id"]
    world.run(20 * NS_PER_S)
    assert set(world.admitted()) == {"a", "c"}
    assert world.faults_at_rest() == []


def test_who_has_no_id_and_was_not_refused_is_missing() -> None:
    world = domain("ab")
    world.server_down()
    world.start("c", b"")
    world.run(8 * NS_PER_S)
    assert world.faults_of_views(ignore_refused=True) == ["['c'] have no id"]
    world.crash("c")
    world.calm()
    world.start("c", b"")
    world.run(9 * NS_PER_S)
    assert world.faults_of_views() == []
