"""Sender order, one step at a time."""

from random import Random

import pytest

from orderwire.kernel import (
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    Send,
    destinations,
    ms,
)
from orderwire.ordering.fifo import Fifo, FifoPdu
from orderwire.ordering.pdu import Delivered, Discarded, DiscardReason, Lost, Multicast, Restarted
from orderwire.ordering.settings import OrderingSettings

LIFETIME = ms(100)
SENDER = ProcessId(0)
TO_1 = destinations([1])


def messages(count: int, *, start: int = 0, first_number: int = 0) -> list[FifoPdu]:
    """What process 0 sends to process 1, one message a millisecond."""
    core = Fifo(SENDER, OrderingSettings(members=2, first_number=first_number))
    found = []
    for index in range(count):
        payload = str(first_number + index).encode()
        effect = core.submit(Multicast(payload, TO_1), Instant(start + ms(index)))[0]
        assert isinstance(effect, Send)
        found.append(effect.pdu)
    return found


def receiver(**more: int) -> Fifo:
    return Fifo(ProcessId(1), OrderingSettings(members=2, **more))


def outcome(effects: Effects) -> list[str]:
    found = []
    for effect in effects:
        assert isinstance(effect, Indicate)
        indication = effect.indication
        if isinstance(indication, Delivered):
            found.append(indication.payload.decode())
        else:
            assert isinstance(indication, Discarded)
            found.append(f"{indication.number} {indication.reason.value}")
    return found


def test_copies_in_order_are_delivered_at_once() -> None:
    core = receiver()
    for index, pdu in enumerate(messages(3)):
        assert outcome(core.receive(SENDER, pdu, Instant(ms(10)))) == [str(index)]
    assert core.next_deadline() is None


def test_an_early_copy_waits_for_the_ones_before_it() -> None:
    first, second, third = messages(3)
    core = receiver(lifetime_ns=LIFETIME)
    assert core.receive(SENDER, third, Instant(ms(3))) == []
    assert core.receive(SENDER, second, Instant(ms(4))) == []
    effects = core.receive(SENDER, first, Instant(ms(5)))
    assert outcome(effects) == ["0", "1", "2"]
    arrived = [effect.indication.arrived for effect in effects]  # type: ignore[union-attr]
    assert arrived == [ms(5), ms(4), ms(3)]


def test_a_gap_ends_one_nanosecond_after_the_deadline_of_the_copy_before() -> None:
    core = receiver(lifetime_ns=LIFETIME)
    _, _, third = messages(3)
    assert core.receive(SENDER, third, Instant(ms(3))) == []
    deadline = ms(1) + LIFETIME
    assert core.next_deadline() == deadline + 1
    assert core.wake(Instant(deadline)) == []
    assert outcome(core.wake(Instant(deadline + 1))) == ["2"]
    assert core.next_deadline() is None


@pytest.mark.parametrize(("late_by", "expected"), [(0, ["1", "2"]), (1, ["1 late", "2"])])
def test_a_copy_at_the_deadline_itself_is_in_time(late_by: int, expected: list[str]) -> None:
    _, second, third = messages(3)
    core = receiver(lifetime_ns=LIFETIME)
    core.submit(Lost(SENDER, 0, 0), Instant(ms(2)))
    core.receive(SENDER, third, Instant(ms(3)))
    now = Instant(ms(1) + LIFETIME + late_by)
    assert outcome(core.receive(SENDER, second, now) + core.wake(now)) == expected


def test_what_the_link_reports_lost_is_skipped() -> None:
    pdus = messages(6)
    core = receiver()
    assert core.receive(SENDER, pdus[2], Instant(ms(3))) == []
    assert core.receive(SENDER, pdus[5], Instant(ms(3))) == []
    assert outcome(core.submit(Lost(SENDER, 0, 1), Instant(ms(4)))) == ["2"]
    assert outcome(core.submit(Lost(SENDER, 3, 4), Instant(ms(5)))) == ["5"]
    assert outcome(core.receive(SENDER, pdus[1], Instant(ms(6)))) == ["1 late"]
    assert outcome(core.receive(SENDER, pdus[5], Instant(ms(6)))) == ["5 duplicate"]


def test_a_loss_may_be_reported_before_its_turn_and_does_not_hide_what_came() -> None:
    pdus = messages(4)
    core = receiver()
    core.receive(SENDER, pdus[2], Instant(ms(3)))
    assert core.submit(Lost(SENDER, 1, 3), Instant(ms(4))) == []
    assert outcome(core.receive(SENDER, pdus[0], Instant(ms(5)))) == ["0", "2"]


def test_without_lifetime_and_report_patience_ends_the_wait() -> None:
    pdus = messages(3)
    core = receiver(gap_patience_ns=ms(50))
    core.receive(SENDER, pdus[2], Instant(ms(3)))
    assert core.next_deadline() == ms(53)
    assert core.wake(Instant(ms(53) - 1)) == []
    assert outcome(core.wake(Instant(ms(53)))) == ["2"]
    assert outcome(core.receive(SENDER, pdus[0], Instant(ms(60)))) == ["0 late"]


def test_duplicates_are_counted_waiting_or_delivered() -> None:
    first, second = messages(2)
    core = receiver()
    core.receive(SENDER, second, Instant(ms(2)))
    assert outcome(core.receive(SENDER, second, Instant(ms(2)))) == ["1 duplicate"]
    core.receive(SENDER, first, Instant(ms(3)))
    assert outcome(core.receive(SENDER, first, Instant(ms(3)))) == ["0 duplicate"]


def test_too_many_waiting_copies_are_dropped_as_if_lost() -> None:
    pdus = messages(5)
    core = receiver(waiting_messages_max=2)
    for pdu in pdus[2:4]:
        assert core.receive(SENDER, pdu, Instant(ms(9))) == []
    assert outcome(core.receive(SENDER, pdus[4], Instant(ms(9)))) == ["4 full"]
    core.receive(SENDER, pdus[0], Instant(ms(9)))
    assert outcome(core.receive(SENDER, pdus[1], Instant(ms(9)))) == ["1", "2", "3"]


def test_a_restarted_sender_counts_from_zero_again() -> None:
    core = receiver()
    for pdu in messages(3):
        core.receive(SENDER, pdu, Instant(ms(5)))
    again = messages(2, start=ms(500), first_number=3)
    assert outcome(core.receive(SENDER, again[0], Instant(ms(501)))) == ["3"]
    assert outcome(core.receive(SENDER, again[1], Instant(ms(502)))) == ["4"]


def test_wrong_use_and_wrong_peers_are_told_apart() -> None:
    core = receiver()
    with pytest.raises(LocalProtocolError, match="at least one destination"):
        core.submit(Multicast(b"", destinations([])), Instant(0))
    with pytest.raises(LocalProtocolError, match="outside 0 … 1"):
        core.submit(Multicast(b"", destinations([2])), Instant(0))
    with pytest.raises(LocalProtocolError, match="lost copies 3 … 2"):
        core.submit(Lost(SENDER, 3, 2), Instant(0))
    (pdu,) = messages(1)
    with pytest.raises(RemoteProtocolError, match="no peer"):
        core.receive(ProcessId(1), pdu, Instant(0))
    with pytest.raises(RemoteProtocolError, match="I am 0"):
        Fifo(SENDER, OrderingSettings(members=2)).receive(ProcessId(1), pdu, Instant(0))


@pytest.mark.parametrize("seed", range(20))
def test_nothing_waits_for_ever(seed: int) -> None:
    """Shuffled, lossy, duplicated, some losses reported: order kept and nothing left waiting."""
    chance = Random(seed)
    lifetime = chance.choice((None, LIFETIME))
    core = Fifo(ProcessId(1), OrderingSettings(members=2, lifetime_ns=lifetime))
    pdus = messages(40)
    arrivals = [
        (ms(index) + chance.randint(0, ms(120)), index)
        for index in range(40)
        for _ in range(chance.choice((0, 1, 1, 2)))
    ]
    effects: Effects = []
    kept = {index for _, index in arrivals}
    for now, index in sorted(arrivals):
        while (deadline := core.next_deadline()) is not None and deadline <= now:
            effects += core.wake(deadline)
        effects += core.receive(SENDER, pdus[index], Instant(now))
    for index in set(range(40)) - kept:
        if chance.random() < 0.5:
            effects += core.submit(Lost(SENDER, index, index), Instant(ms(200)))
    for _ in range(41):
        deadline = core.next_deadline()
        if deadline is None:
            break
        effects += core.wake(deadline)
    assert core.next_deadline() is None
    numbers = [e.indication.number for e in effects if isinstance(e.indication, Delivered)]  # type: ignore[union-attr]
    assert numbers == sorted(set(numbers))
    late = {
        e.indication.number  # type: ignore[union-attr]
        for e in effects
        if isinstance(e.indication, Discarded)  # type: ignore[union-attr]
        and e.indication.reason is not DiscardReason.DUPLICATE
    }
    assert set(numbers) | late == kept


def test_a_receiver_that_restarts_waits_for_nothing_of_its_predecessors() -> None:
    sender = Fifo(SENDER, OrderingSettings(members=2, lifetime_ns=LIFETIME))
    for index in range(3):
        sender.submit(Multicast(b"old", TO_1), Instant(ms(index)))
    assert sender.submit(Restarted(ProcessId(1)), Instant(ms(3))) == []
    effect = sender.submit(Multicast(b"new", TO_1), Instant(ms(4)))[0]
    assert isinstance(effect, Send)
    assert (effect.pdu.sequence, effect.pdu.previous) == (0, None)
    again = receiver(lifetime_ns=LIFETIME)
    assert outcome(again.receive(SENDER, effect.pdu, Instant(ms(5)))) == ["new"]
    with pytest.raises(LocalProtocolError, match="no peer"):
        sender.submit(Restarted(SENDER), Instant(ms(6)))
