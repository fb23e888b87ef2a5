"""Who contends for a partition, and who lets another go first."""

import msgspec

from orderwire.broker.log import MemoryStorage
from orderwire.broker.replication.effects import Elect, Resign
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.office import PRECEDENCE_NS, Office
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.kernel import NS_PER_S, Instant

ME, FIRST, THIRD = BrokerId(1), BrokerId(0), BrokerId(2)
ALL = (FIRST, ME, THIRD)
NOW = Instant(1_700_000_000_000_000_000)


def office(reached: set[BrokerId]) -> Office:
    kept = Kept(MemoryStorage())
    kept.settle()
    return Office(ME, NS_PER_S, kept, reached.__contains__)


def view(epoch: int = 4, original: BrokerId | None = None, **changes: object) -> PartitionView:
    made = PartitionView(epoch, original, ALL, 7, ALL, FIRST)
    return msgspec.structs.replace(made, **changes)


def test_who_is_preferred_goes_first_for_a_while() -> None:
    me = office({FIRST, THIRD})
    assert me.viewed(view(original=THIRD), NOW) == []
    assert me.viewed(view(), NOW) == []
    assert me.next_deadline() == NOW + PRECEDENCE_NS
    assert me.viewed(view(version=8), Instant(NOW + 9)) == []
    assert me.next_deadline() == NOW + PRECEDENCE_NS, "another view makes it no longer"
    assert me.wake(Instant(NOW + PRECEDENCE_NS - 1)) == []
    assert me.wake(Instant(NOW + PRECEDENCE_NS)) == [Elect(4)]
    assert me.viewed(view(version=9), Instant(NOW + PRECEDENCE_NS + 1)) == [Elect(4)]
    me.viewed(view(5, ME, version=9), NOW)
    assert me.epoch == 5, "an election that was won after waiting counts"


def test_nobody_waits_for_who_cannot_be_elected() -> None:
    for change in ({"isr": (ME, THIRD)}, {"preferred": None}, {"preferred": ME}):
        me = office({FIRST, THIRD})
        me.viewed(view(original=THIRD), NOW)
        assert me.viewed(view(**change), NOW) == [Elect(4)], change
    me = office({THIRD})
    assert me.viewed(view(), NOW) == [Elect(4)], "nobody reaches it"
    me = office({FIRST})
    me.viewed(view(original=FIRST), NOW)
    assert me.viewed(view(), NOW) == [Elect(4)], "it is the one that has just gone"
    assert me.viewed(view(version=8), NOW) == [Elect(4)]


def test_an_original_leaves_to_a_member_that_is_reached_or_stays() -> None:
    reached = {FIRST}
    me = office(reached)
    me.viewed(view(), Instant(NOW - NS_PER_S))
    me.wake(NOW)
    me.viewed(view(5, ME), NOW)
    assert not me.leave(THIRD, NOW)
    assert not me.leave(ME, NOW)
    assert me.leave(FIRST, NOW)
    assert me.leaves(NOW)
    until = me.next_deadline()
    assert until is not None
    assert not me.leaves(until)
    assert me.leaving is None
    assert me.leave(FIRST, NOW)
    reached.clear()
    assert not me.leaves(NOW)
    reached.add(FIRST)
    assert me.leave(FIRST, NOW)
    assert me.resign() == [Resign(5)]
    assert me.leaving is None
