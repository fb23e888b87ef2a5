"""ST's PDUs on the wire: what goes in comes out, with vectors left out above sixteen members."""

import random

import pytest

from orderwire.kernel import Destinations, Instant, ProcessId, RemoteProtocolError
from orderwire.ordering.total.pdu import (
    Data,
    Epoch,
    Has,
    Header,
    Known,
    Nak,
    Pdu,
    Record,
    Rst,
    RstAck,
    RstPak,
    Rtx,
)
from orderwire.ordering.total.st_codec import (
    FULL_EVERY,
    PLAIN_MEMBERS_MAX,
    HeaderLost,
    TachikawaSTCodec,
)

ME = ProcessId(3)
MANY = PLAIN_MEMBERS_MAX + 4
KNOWN = Known(
    has=(Has(7), Has(9, (3, 4), (11,)), Has(0)),
    pseq=(1, 2, 3),
    tseq=12,
    ack=(4, 5, 6),
    headers=(Header(ProcessId(2), 5, Destinations(3), (1, 2)),),
    record=Record(
        (1, 2),
        ((ProcessId(0), 4),),
        ((ProcessId(1), 3),),
        ((ProcessId(0), 9, (1, 2)),),
        (ProcessId(0), ProcessId(2)),
    ),
)
PDUS: list[Pdu] = [
    Data((1, 2), 3, Destinations(5), (1, 2, 3), (4, 5, 6), 7, True, 8, Instant(9), b"text"),
    Data((0, 0), 0, Destinations(0), (0,), (0,), 0),
    Rtx((1, 0), 300, Destinations(1 << 40), (1, 1 << 33), 2, Instant(1 << 50), b""),
    Nak((0, 1), ((ProcessId(2), (1, 2, 900)), (ProcessId(5), (0,)))),
    Rst((3, 4)),
    RstPak((1, 3), Destinations(6), KNOWN),
    RstAck((1, 3), Destinations(0), KNOWN, 11, (ProcessId(2), ProcessId(0))),
]


def plain(pdu: Pdu) -> Pdu:
    """Without what only a receiver knows."""
    if isinstance(pdu, Data | Rtx):
        return type(pdu)(*(getattr(pdu, name) for name in pdu.__struct_fields__[:-1]))
    return pdu


@pytest.mark.parametrize("pdu", PDUS, ids=lambda pdu: type(pdu).__name__)
def test_what_goes_in_comes_out(pdu: Pdu) -> None:
    data = TachikawaSTCodec().encode(pdu)
    assert plain(TachikawaSTCodec().decode(ME, data)) == pdu


@pytest.mark.parametrize("pdu", PDUS, ids=lambda pdu: type(pdu).__name__)
def test_what_is_cut_off_or_garbage_is_refused(pdu: Pdu) -> None:
    data = TachikawaSTCodec().encode(pdu)
    payload = len(pdu.payload) if isinstance(pdu, Data | Rtx) else 0
    for end in range(len(data) - payload):
        with pytest.raises(RemoteProtocolError):
            TachikawaSTCodec().decode(ME, data[:end])
    chance = random.Random(1)
    for _ in range(300):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] = chance.randrange(256)
        try:
            TachikawaSTCodec().decode(ME, bytes(broken))
        except (RemoteProtocolError, HeaderLost):
            continue


def run_of(count: int, members: int, epoch: Epoch = (0, 0), first: int = 0) -> list[Data]:
    """One source's DATA, as it builds them."""
    chance = random.Random(2)
    pseq, ack = [0] * members, [0] * members
    found = []
    for tseq in range(first, first + count):
        mask = chance.randrange(1, 1 << members)
        data = Data(
            epoch, tseq, Destinations(mask), tuple(pseq), tuple(ack), 9, payload=b"p", number=tseq
        )
        found.append(data)
        pseq = [number + (mask >> k & 1) for k, number in enumerate(pseq)]
        ack[chance.randrange(members)] += 1
    return found


@pytest.mark.parametrize("members", [3, PLAIN_MEMBERS_MAX, MANY, 100])
def test_headers_of_large_groups_say_what_has_changed(members: int) -> None:
    sender, receiver = TachikawaSTCodec(), TachikawaSTCodec()
    sent = run_of(3 * FULL_EVERY, members)
    sizes = []
    for data in sent:
        packed = sender.encode(data)
        sizes.append(len(packed))
        assert plain(receiver.decode(ME, packed)) == data
    short = [size for at, size in enumerate(sizes) if at % FULL_EVERY]
    full = sizes[::FULL_EVERY]
    assert (max(short) < min(full)) == (members > PLAIN_MEMBERS_MAX)


def test_who_has_missed_one_cannot_read_the_next_until_a_full_one_comes() -> None:
    sender, receiver = TachikawaSTCodec(), TachikawaSTCodec()
    packed = [sender.encode(data) for data in run_of(2 * FULL_EVERY, MANY)]
    for data in (*packed[:2], *packed[FULL_EVERY:]):
        receiver.decode(ME, data)
    late = TachikawaSTCodec()
    late.decode(ME, packed[0])
    for data in packed[2:FULL_EVERY]:
        with pytest.raises(HeaderLost):
            late.decode(ME, data)
    late.decode(ME, packed[FULL_EVERY])


def test_a_group_that_grows_past_sixteen_begins_to_leave_vectors_out() -> None:
    sender, receiver = TachikawaSTCodec(), TachikawaSTCodec()
    before, after = run_of(4, 4), run_of(6, MANY, epoch=(1, 0), first=4)
    sizes = []
    for data in (*before, *after):
        packed = sender.encode(data)
        sizes.append(len(packed))
        assert plain(receiver.decode(ME, packed)) == data
    assert sizes[4] > max(sizes[5:])


def test_an_epoch_begins_in_full_and_so_does_an_ids_new_owner() -> None:
    receiver = TachikawaSTCodec()
    first = TachikawaSTCodec()
    for data in run_of(3, MANY):
        receiver.decode(ME, first.encode(data))
    successor = TachikawaSTCodec()
    for data in run_of(3, MANY, epoch=(1, 0), first=3):
        assert plain(receiver.decode(ME, successor.encode(data))) == data
