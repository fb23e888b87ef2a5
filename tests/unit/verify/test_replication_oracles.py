"""Each invariant accepts a good history and refuses a broken twin of it.  [S004:4.5]"""

import msgspec
import pytest

from orderwire.verify.replication import (
    Acknowledged,
    Batch,
    Committed,
    Delivered,
    Elected,
    Event,
    Held,
    Judge,
    LogStart,
    OnDisk,
    Republished,
    Requested,
    RoundEnd,
    Settled,
    TookLower,
    by_invariant,
    judge,
)

A = Batch(0, 1, 1, 11, ("a0", "a1"))
HOLE = Batch(2, 3, 1, 22, (), seal=True)
B = Batch(4, 4, 1, 33, ("b0",))
LOG = (A, HOLE, B)

GOOD: list[Event] = [
    Elected(1, 0),
    Requested("p", ("a0", "a1"), -1),
    Requested("p", ("b0",), 1),
    Requested("q", ("z0",), 1),
    Acknowledged(("b0",), 1, 4),
    OnDisk(frozenset({"b0", "a0", "a1"})),
    RoundEnd(1, 0, 5),
    RoundEnd(1, 5, 5),
    Committed(0, 1, 0, 5, LOG),
    Acknowledged(("a0", "a1"), -1, 0),
    Committed(1, 1, 0, 2, (A,)),
    Delivered("c", 1, 0, 2, 2, ((0, "a0"), (1, "a1"))),
    Delivered("c", 0, 2, 5, 5, ((4, "b0"),)),
    Committed(1, 1, 2, 5, (HOLE, B)),
    Committed(1, 2, 0, 2, (A,)),
    Held(0, True, 5, LOG),
    Held(1, True, None, LOG),
    Held(2, False, 2, (A,)),
    Settled((0, 1, 2), (0, 1, 2)),
]


def broken(index: int, *events: Event) -> dict[str, int]:
    """What the judge says of the good history with this event replaced."""
    return by_invariant(judge([*GOOD[:index], *events, *GOOD[index + 1 :]]))


def place(kind: type[Event], number: int = 0) -> int:
    return [at for at, event in enumerate(GOOD) if isinstance(event, kind)][number]


def test_a_good_history_is_good() -> None:
    assert judge(GOOD) == []


def test_a_history_is_plain_data() -> None:
    packed = msgspec.json.encode(GOOD)
    assert msgspec.json.decode(packed, type=list[Event]) == GOOD


@pytest.mark.paper("S004:I1")
def test_i1_acknowledged_by_all_but_not_committed() -> None:
    early = [GOOD[1], Acknowledged(("a0", "a1"), -1, 0)]
    assert broken(1, *early)["I1"] == 2


@pytest.mark.paper("S004:I1")
def test_i1_a_member_that_has_lost_an_acknowledged_message() -> None:
    lost = Batch(0, 1, 2, 99, ("x0", "x1"))
    found = broken(place(Held, 1), Held(1, True, None, (lost, HOLE, B)))
    assert found == {"I1": 2, "I2": 1}


@pytest.mark.paper("S004:I2")
def test_i2_two_replicas_commit_different_batches() -> None:
    other = Batch(0, 1, 2, 99, ("a0", "a1"))
    assert "I2" in broken(place(Committed, 1), Committed(1, 1, 0, 2, (other,)))
    assert "I2" in broken(place(Held), Held(0, True, 5, (other, HOLE, B)))
    inside = Batch(1, 1, 1, 5, ("a1",))
    assert "I2" in broken(place(Committed, 1), Committed(1, 1, 1, 2, (inside,)))


@pytest.mark.paper("S004:I2")
def test_i2_a_member_that_lacks_what_is_committed() -> None:
    assert broken(place(Held, 1), Held(1, True, 2, (A,))) == {"I2": 2}
    assert broken(place(Held, 2), Held(2, False, 2, ()))["I2"] == 1


@pytest.mark.paper("S004:I3")
@pytest.mark.parametrize(
    "delivered",
    [
        Delivered("c", 1, 0, 2, 2, ((1, "a1"),)),
        Delivered("c", 1, 0, 2, 2, ((1, "a1"), (0, "a0"))),
        Delivered("c", 1, 0, 2, 2, ((0, "a0"), (1, "z0"))),
        Delivered("c", 1, 0, 2, 1, ((0, "a0"), (1, "a1"))),
        Delivered("c", 1, 0, 4, 4, ((0, "a0"), (1, "a1"), (2, "z0"))),
        Delivered("c", 1, 0, 9, 9, ((0, "a0"), (1, "a1"))),
    ],
    ids=["skipped", "disordered", "another", "above the watermark", "from a hole", "ahead of all"],
)
def test_i3_a_consumer_that_gets_something_else(delivered: Delivered) -> None:
    assert broken(place(Delivered), delivered).keys() == {"I3"}


@pytest.mark.paper("S004:I4")
def test_i4_acknowledged_by_one_and_on_no_disk() -> None:
    gone = frozenset({"a0", "a1"})
    assert broken(place(OnDisk), OnDisk(gone)) == {"I4": 1}
    assert broken(place(OnDisk), OnDisk(gone, acks_one_lost=True)) == {}


@pytest.mark.paper("S004:I5")
def test_i5_committed_twice_or_from_nowhere() -> None:
    twice = Batch(5, 5, 1, 44, ("a0",))
    assert broken(place(Committed), Committed(0, 1, 0, 6, (*LOG, twice)))["I5"] == 1
    nobody = Batch(5, 5, 1, 44, ("ghost",))
    assert broken(place(Committed), Committed(0, 1, 0, 6, (*LOG, nobody)))["I5"] == 1
    assert broken(place(Acknowledged, 1), GOOD[9], Acknowledged(("b0",), -1, 0))["I5"] == 1


@pytest.mark.paper("S004:I6")
def test_i6_what_must_only_grow() -> None:
    assert broken(place(RoundEnd, 1), RoundEnd(1, 5, 4)) == {"I6": 1}
    assert broken(place(RoundEnd, 1), RoundEnd(1, 5, 5), RoundEnd(1, 3, 5)) == {"I6": 1}
    assert broken(place(RoundEnd, 1), RoundEnd(1, 5, 5), RoundEnd(2, 3, 5)) == {"I6": 1}
    back = Committed(1, 1, 0, 2, (A,))
    assert broken(place(Committed, 2), GOOD[place(Committed, 2)], back) == {"I6": 1}


@pytest.mark.paper("S004:I7")
def test_i7_two_originals_or_a_lower_epoch_stored() -> None:
    assert broken(0, Elected(1, 0), Elected(1, 2)) == {"I7": 1}
    assert broken(0, Elected(1, 0), TookLower(2, 1, 2)) == {"I7": 1}


@pytest.mark.paper("S004:I8")
def test_i8_never_whole_again() -> None:
    end = place(Settled)
    assert broken(end, Settled((0, 1), (0, 1, 2))) == {"I8": 1}
    late = Acknowledged(("z0",), 1, 9)
    assert broken(end, late, Settled((0, 1, 2), (0, 1, 2))) == {"I8": 1}
    assert broken(end, late, Settled((0, 1, 2), (0, 1, 2), acks_one_lost=True)) == {}


@pytest.mark.paper("S004:I9")
def test_i9_a_session_out_of_order() -> None:
    swapped = [Requested("p", ("b0",), 1), Requested("p", ("a0", "a1"), -1)]
    assert broken(1, *swapped)["I9"] == 1
    assert broken(1, *swapped, Republished(4)) == {}
    late = [*GOOD[2:-1], Republished(4), GOOD[-1]]
    assert judge([GOOD[0], *swapped, *late]) == []


@pytest.mark.paper("S004:I10")
def test_i10_gaps() -> None:
    assert "I10" in broken(place(Committed), Committed(0, 1, 0, 5, (A, B)))
    assert "I10" in broken(place(Committed), Committed(0, 1, 0, 7, LOG))
    assert "I10" in broken(place(Held, 2), Held(2, False, 5, (A, B)))
    assert "I10" in broken(place(Held, 2), Held(2, False, 5, (A,)))


def test_nothing_is_promised_below_the_log_start() -> None:
    cut = [LogStart(4), Held(0, True, 5, (A, B)), Committed(2, 1, 4, 5, (B,))]
    assert broken(place(Held), *cut) == {}


def test_breaches_are_kept_up_to_a_limit() -> None:
    judging = Judge(breaches_max=3)
    for _ in range(5):
        judging.take(TookLower(0, 1, 2))
    assert len(judging.breaches) == 3
