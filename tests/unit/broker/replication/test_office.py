"""Who contends for a partition, and who lets another go first."""

import msgspec

from orderwire.broker.log import LogConfig, MemoryStorage, PartitionLog
from orderwire.broker.replication.effects import Elect, Lose, LostRange, Note, Resign
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.office import PRECEDENCE_NS, Office
from orderwire.broker.replication.view import BrokerId, Loss, PartitionView
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


def test_who_is_put_in_the_place_of_others_is_elected_blank_and_tells_the_loss() -> None:
    kept = Kept(MemoryStorage())
    me = Office(ME, NS_PER_S, kept, set().__contains__)
    assert me.viewed(view(), NOW) == [], "it has lost its disk"
    alone = {"isr": (ME,), "version": 8, "unclean": True}
    assert me.viewed(view(**alone), NOW) == [Elect(4)]
    assert not kept.is_blank
    me.viewed(view(5, ME, **alone), NOW)
    assert me.unclean
    assert me.tell_loss(3, 9, NOW) == (False, [Lose(5, 3, 9, True)])
    losses = (Loss(5, 3, 9, True),)
    me.viewed(view(5, ME, isr=(ME,), version=9, losses=losses), NOW)
    assert me.unclean, "until its epoch is over"
    assert me.tell_loss(3, 9, NOW) == (True, [Note(LostRange(5, 3, 9, True))])
    me.lose()
    me.viewed(view(5, isr=(ME,), version=9, losses=losses), NOW)
    me.viewed(view(6, ME, isr=(ME,), version=9, losses=losses), NOW)
    assert not me.unclean


def test_a_log_that_is_of_a_later_epoch_has_taken_a_loss_into_account() -> None:
    """A power failure took the note, and must not take what was made durable after it."""
    log = PartitionLog.open(MemoryStorage(), LogConfig(), 0)
    me = office(set())
    me.viewed(view(losses=(Loss(3, 5, 9),)), NOW)
    log.epochs.begin(3, 0)
    assert me.floor(8, log) is None
    me = office(set())
    me.viewed(view(losses=(Loss(3, 5, 9), Loss(4, 6, 9))), NOW)
    assert me.floor(8, log) == 6, "it has not heard of the later one"
