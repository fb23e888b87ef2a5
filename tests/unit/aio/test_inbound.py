"""The receiving half: gaps, asking again, giving up."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from orderwire.aio.frames import Range
from orderwire.aio.inbound import (
    ASK_GRACE_NS,
    GAPS_MAX,
    JUMP_MAX,
    NOTICES_MAX,
    QUICK_ASKS,
    REORDER_MEMORY_NS,
    Inbound,
)
from orderwire.kernel import Instant, ms, us

NOW = Instant(ms(1_000))
RTT = ms(2)
FAST = ms(1)


def received(inbound: Inbound, first: int, count: int, deadline: int = 0) -> list[int]:
    """Feed one datagram as the link does; return the copies that were new."""
    if first > inbound.expected:
        assert inbound.skip_to(first, deadline, NOW, us(100))
    if first >= inbound.expected:
        inbound.expected = first + count
        return list(range(first, first + count))
    return [first + offset for offset in inbound.fill(first, count, NOW, FAST)]


@given(chance=st.randoms(use_true_random=False))
def test_every_copy_is_taken_once_and_the_rest_is_known_missing(chance: Random) -> None:
    """Against the plain definition: a set of numbers."""
    inbound = Inbound()
    taken: set[int] = set()
    for _ in range(60):
        first, count = chance.randrange(80), chance.randrange(1, 8)
        numbers = set(range(first, first + count))
        assert set(received(inbound, first, count)) == numbers - taken
        taken |= numbers
        missing = {number for gap in inbound.gaps for number in range(gap.first, gap.last + 1)}
        assert missing == set(range(inbound.expected)) - taken
        assert inbound.settled == min(missing, default=inbound.expected)


def test_a_gap_is_asked_for_after_a_grace_and_then_with_pauses() -> None:
    inbound = Inbound()
    received(inbound, 5, 1)
    assert inbound.missing(NOW, RTT, FAST) == ([Range(0, 4, 0)], 0)
    assert inbound.next_due(FAST) == NOW + us(100)
    now = Instant(NOW + us(100))
    assert inbound.missing(now, RTT, FAST) == ([Range(0, 4, 1)], 5)
    assert inbound.next_due(FAST) == now + RTT * 3 // 2
    assert inbound.missing(Instant(now + 1), RTT, FAST) == ([Range(0, 4, 0)], 0)


def test_only_a_way_that_reorders_gets_a_grace() -> None:
    inbound = Inbound()
    assert inbound.grace_ns(NOW, RTT) == 0
    received(inbound, 3, 1)
    received(inbound, 0, 1)  # it comes before anybody has asked for it
    assert inbound.grace_ns(NOW, RTT) == ASK_GRACE_NS
    assert inbound.grace_ns(NOW, 8 * ASK_GRACE_NS) == 2 * ASK_GRACE_NS
    assert inbound.grace_ns(Instant(NOW + REORDER_MEMORY_NS), RTT) == ASK_GRACE_NS
    assert inbound.grace_ns(Instant(NOW + REORDER_MEMORY_NS + 1), RTT) == 0


def test_an_answer_is_no_reordering_but_what_comes_sooner_than_one_is() -> None:
    for after_ns, is_overtaken in ((FAST * 3 // 4, False), (FAST * 3 // 4 - 1, True)):
        inbound = Inbound()
        received(inbound, 3, 1)
        asked = Instant(NOW + us(100))
        assert inbound.missing(asked, RTT, FAST)[1] == 3
        inbound.fill(0, 1, Instant(asked + after_ns), FAST)
        assert (inbound.reordered_at is not None) is is_overtaken


def test_pauses_grow_and_are_bounded() -> None:
    inbound = Inbound()
    received(inbound, 1, 1)
    now = NOW
    pauses = []
    for _ in range(QUICK_ASKS + 20):
        due = inbound.next_due(FAST)
        assert due is not None
        pauses.append(due - now)
        now = Instant(due)
        assert inbound.missing(now, RTT, FAST)[1] == 1
    assert pauses[1:QUICK_ASKS] == [ms(3)] * (QUICK_ASKS - 1)
    assert pauses[-1] == ms(200)


def test_nothing_is_asked_for_that_cannot_be_in_time() -> None:
    inbound = Inbound()
    deadline = NOW + ms(10)
    received(inbound, 3, 1, deadline)
    at_last = Instant(deadline - FAST)
    assert inbound.missing(at_last, RTT, FAST)[1] == 3
    inbound.gaps[0].ask_at = 0
    assert inbound.missing(Instant(at_last + 1), RTT, FAST)[1] == 0
    assert inbound.next_due(FAST) == deadline + 1


def test_a_gap_is_given_up_after_its_deadline_and_not_at_it() -> None:
    inbound = Inbound()
    deadline = NOW + ms(10)
    received(inbound, 3, 1, deadline)
    assert inbound.give_up(Instant(deadline)) == []
    assert inbound.give_up(Instant(deadline + 1)) == [Range(0, 2)]
    assert inbound.settled == 4
    assert received(inbound, 1, 1) == []
    assert inbound.was_given_up(1)
    assert not inbound.was_given_up(3)


def test_without_a_deadline_nothing_is_given_up() -> None:
    inbound = Inbound()
    received(inbound, 3, 1)
    assert inbound.give_up(Instant(1 << 62)) == []


@given(chance=st.randoms(use_true_random=False))
def test_gone_gives_up_what_is_missing_and_nothing_else(chance: Random) -> None:
    inbound = Inbound()
    taken: set[int] = set()
    for _ in range(20):
        first = chance.randrange(100)
        taken |= set(received(inbound, first, 2))
    missing = set(range(inbound.expected)) - taken
    ranges = []
    for _ in range(3):
        low = chance.randrange(110)
        ranges.append(Range(low, low + chance.randrange(30)))
    told = {number for first, last, _ in ranges for number in range(first, last + 1)}
    lost = [number for first, last, _ in inbound.gone(ranges) for number in range(first, last + 1)]
    assert sorted(lost) == sorted(missing & told)
    left = {number for gap in inbound.gaps for number in range(gap.first, gap.last + 1)}
    assert left == missing - told


def noted(deadline_ns: int) -> Inbound:
    """Copies 0 to 2 are missing, and there is a notice of 1."""
    inbound = Inbound()
    received(inbound, 3, 1, NOW + deadline_ns)
    inbound.note(1, [memoryview(b"one")])
    inbound.note(3, [memoryview(b"three")])  # it has come
    assert inbound.notices == {1: b"one"}
    return inbound


def test_a_notice_stands_for_its_copy_once_that_cannot_be_asked_for_in_time() -> None:
    inbound = noted(ms(10))
    hopeless = NOW + ms(10) - FAST + 1
    inbound.gaps[0].ask_at = NOW + ms(50)
    assert inbound.next_due(FAST) == hopeless
    assert inbound.conclude(Instant(hopeless - 1), FAST) == ([], [])
    assert inbound.conclude(Instant(hopeless), FAST) == ([Range(1, 1)], [b"one"])
    assert [(gap.first, gap.last) for gap in inbound.gaps] == [(0, 0), (2, 2)]
    assert inbound.was_given_up(1)
    assert not inbound.notices


def test_no_notice_stands_for_a_copy_that_may_merely_be_overtaken() -> None:
    inbound = noted(FAST // 2)  # too late to ask from the beginning
    assert inbound.conclude(Instant(NOW + ASK_GRACE_NS - 1), FAST) == ([], [])
    assert inbound.conclude(Instant(NOW + ASK_GRACE_NS), FAST)[1] == [b"one"]
    inbound = noted(FAST // 2)
    inbound.reordered_at = NOW
    assert inbound.conclude(Instant(NOW + ms(9)), FAST) == ([], [])


def test_no_notice_stands_for_a_copy_whose_answer_may_be_under_way() -> None:
    inbound = noted(ms(10))
    asked = Instant(NOW + ms(9))
    assert inbound.missing(asked, RTT, FAST)[1] == 3
    assert inbound.conclude(Instant(asked + RTT), FAST) == ([], [])
    assert inbound.conclude(Instant(asked + RTT + ASK_GRACE_NS), FAST)[1] == [b"one"]


def test_a_notice_is_forgotten_with_its_gap_and_they_are_bounded() -> None:
    inbound = noted(ms(10))
    received(inbound, 1, 1)
    assert inbound.conclude(Instant(NOW + ms(10)), FAST) == ([], [])
    assert not inbound.notices
    received(inbound, 2 * NOTICES_MAX, 1)
    inbound.note(4, [memoryview(b"")] * (NOTICES_MAX + 1))
    assert len(inbound.notices) == NOTICES_MAX
    received(inbound, 4, NOTICES_MAX)
    inbound.note(4 + NOTICES_MAX, [memoryview(b"new")])
    assert inbound.notices == {4 + NOTICES_MAX: b"new"}


def test_a_notice_that_would_cut_a_gap_too_often_is_dropped() -> None:
    """Not kept: its time has come, and the timer would fire for it again and again."""
    inbound = Inbound()
    received(inbound, JUMP_MAX, 1, NOW + ms(10))
    number = 1
    while not inbound.splits_too_often(number, 1):
        received(inbound, number, 1)
        number += 2
    inbound.reordered_at = None
    inbound.note(number, [memoryview(b"")])
    assert inbound.conclude(Instant(NOW + ms(10)), FAST) == ([], [])
    assert not inbound.notices


def test_too_many_gaps_and_too_wide_ones_are_refused() -> None:
    inbound = Inbound()
    assert not inbound.skip_to(JUMP_MAX + 1, 0, NOW, 0)
    for index in range(GAPS_MAX):
        received(inbound, 2 * index + 1, 1)
    assert not inbound.skip_to(inbound.expected + 1, 0, NOW, 0)
    assert len(inbound.gaps) == GAPS_MAX


def test_gaps_are_not_cut_into_more_than_are_remembered() -> None:
    inbound = Inbound()
    received(inbound, JUMP_MAX, 1)
    number = 1
    while not inbound.splits_too_often(number, 1):
        received(inbound, number, 1)
        number += 2
    assert len(inbound.gaps) == GAPS_MAX
    assert not inbound.splits_too_often(number - 1, 1)  # the edge of a gap cuts nothing
    assert inbound.gone([Range(number, number), Range(number - 1, number - 1)]) == [
        Range(number - 1, number - 1)
    ]
    assert len(inbound.gaps) == GAPS_MAX
