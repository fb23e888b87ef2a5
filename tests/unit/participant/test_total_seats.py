"""Who of a group with one order is which participant, and what they say to each other."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.kernel import Instant, LocalProtocolError, ProcessId, RemoteProtocolError
from orderwire.ordering.total.pdu import Member
from orderwire.participant.batches import pack
from orderwire.participant.total_payload import (
    MESSAGE_BYTES_MAX,
    Entry,
    Greeting,
    decode,
    digest,
    encode_greeting,
    encode_stamp,
    head,
    require_size,
)
from orderwire.participant.total_seats import Seats


def member(process: int, incarnation: int = 1) -> Member:
    return Member(ProcessId(process), incarnation)


def greeting(participant: int) -> Greeting:
    return Greeting(ProcessId(participant), f"p{participant}", b"")


def seated(*participants: int) -> tuple[Seats, list[Member]]:
    """Return seats in which member k is the k-th of these participants."""
    seats, members = Seats(), [member(at) for at, _ in enumerate(participants)]
    seats.install(members)
    for at, participant in enumerate(participants):
        seats.greet(ProcessId(at), greeting(participant))
    seats.greeted(members)
    return seats, members


def test_participants_are_written_to_under_their_members_numbers() -> None:
    seats, members = seated(7, 3, 5)
    assert seats.participants == {3, 5, 7}
    assert seats.names == ["p3", "p5", "p7"]
    assert seats.mask(1 << 3 | 1 << 7, 1, members) == 0b011
    assert seats.mask(1 << 4 | 1 << 5, 1, members) == 0b100


def test_nobody_is_written_to_before_both_have_greeted() -> None:
    seats = Seats()
    seats.install([member(0), member(1)])
    assert seats.strangers == [member(0), member(1)]
    seats.greet(ProcessId(1), greeting(4))
    assert seats.participants == set()
    assert seats.at(ProcessId(1)) is not None, "it can be read already"
    seats.greeted([member(0), member(1)])
    assert seats.participants == {4}
    assert seats.strangers == []
    seats.greet(ProcessId(0), greeting(9))
    assert seats.participants == {4, 9}


def test_who_departs_has_no_seat_any_more() -> None:
    seats, members = seated(7, 3)
    assert [seat.name for seat in seats.install(members[:1])] == ["p3"]
    assert seats.participants == {7}
    assert seats.at(ProcessId(1)) is None


def test_a_view_that_is_not_read_yet_takes_destinations_away() -> None:
    """The number of who has departed may be another's by now."""
    seats, members = seated(7, 3)
    assert seats.mask(1 << 3, 1, members) == 0b10
    assert seats.mask(1 << 3, 2, [members[0], member(1, incarnation=2)]) == 0
    assert seats.mask(1 << 3, 3, members) == 0b10


def test_a_participant_that_starts_again_is_its_newest_member() -> None:
    seats, members = seated(7, 3)
    again = member(2)
    seats.install([*members, again])
    seats.greet(ProcessId(2), greeting(3))
    seats.greeted([again])
    assert seats.mask(1 << 3, 2, [*members, again]) == 0b100
    assert [seat.member for seat in seats.install([members[0], again])] == [members[1]]
    assert seats.participants == {3, 7}, "it has not left with its earlier life"


def test_a_second_greeting_changes_nothing() -> None:
    seats, _ = seated(7, 3)
    assert seats.greet(ProcessId(1), greeting(3)) is None
    assert seats.greet(ProcessId(5), greeting(3)) is None, "no member"


def test_what_is_said_is_read() -> None:
    said = Greeting(ProcessId(2), "ana", digest("order", "group"))
    assert decode(encode_greeting(said)) == said
    stamp = encode_stamp(Instant(12))
    assert decode(head("a/b", several=False) + stamp + b"x") == Entry("a/b", Instant(12), (b"x",))
    batch = decode(head("a/b", several=True) + stamp + pack(b"", [b"x", b"yy"], [1, 2]))
    assert isinstance(batch, Entry)
    assert [*batch.data] == [b"x", b"yy"]


@given(st.binary(max_size=64))
def test_noise_is_refused_at_worst(noise: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode(noise)


def test_what_is_too_large_is_refused() -> None:
    require_size(MESSAGE_BYTES_MAX)
    with pytest.raises(LocalProtocolError, match="47001 bytes are too large"):
        require_size(MESSAGE_BYTES_MAX + 1)
