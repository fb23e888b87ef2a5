"""The datagrams of a 1C channel, and what makes them."""

from random import Random

import pytest

from orderwire.aio.total_batch import Batch
from orderwire.aio.total_frames import (
    BYE,
    DOWN,
    DOWN_HEAD_BYTES,
    HELLO,
    NUMBER_MAX,
    REFUSED,
    UP,
    UP_HEAD_BYTES,
    WELCOME,
    Call,
    Refused,
    Up,
    Welcome,
    decode_call,
    decode_down,
    decode_pdus,
    decode_refused,
    decode_up,
    decode_welcome,
    encode_call,
    encode_down,
    encode_pdu,
    encode_refused,
    encode_up,
    encode_welcome,
    kind_of,
)
from orderwire.aio.total_pack import decode_pack, encode_pack
from orderwire.kernel import RemoteProtocolError


def test_every_frame_comes_back_as_it_was() -> None:
    call = Call(NUMBER_MAX, 4_095, 7)
    for kind in (HELLO, BYE):
        data = encode_call(kind, call)
        assert (kind_of(data), decode_call(data)) == (kind, call)
    for multicast in (None, ("239.1.2.3", 7_501)):
        welcome = Welcome(5, multicast, 0.02, 9, 1 << 4_095 | 1)
        data = encode_welcome(welcome)
        assert (kind_of(data), decode_welcome(data)) == (WELCOME, welcome)
    data = encode_refused(Refused(5, "because ✗"))
    assert (kind_of(data), decode_refused(data)) == (REFUSED, Refused(5, "because ✗"))
    up = Up(1, 2, 3, 4)
    data = encode_up(up) + encode_pdu(2, b"ab") + encode_pdu(2, b"c")
    assert (kind_of(data), decode_up(data)) == (UP, up)
    found = [(source, data[a:b]) for source, a, b in decode_pdus(data, UP_HEAD_BYTES)]
    assert found == [(2, b"ab"), (2, b"c")]
    data = encode_down(1, 2)
    assert (kind_of(data), decode_down(data)) == (DOWN, (1, 2))
    assert decode_pdus(data, DOWN_HEAD_BYTES) == []


def test_whatever_comes_is_read_or_refused() -> None:
    chance = Random(1)
    whole = [
        encode_call(HELLO, Call(1, 2, 3)),
        encode_welcome(Welcome(5, ("239.1.2.3", 7_501), 0.5, 9, 7)),
        encode_up(Up(1, 2, 3, 4)) + encode_pdu(2, b"abc"),
        encode_down(1, 2) + encode_pdu(2, b"abc"),
        encode_pack(3, [b"a", b"bc"]),
    ]
    readers = [
        kind_of,
        decode_call,
        decode_welcome,
        decode_refused,
        decode_up,
        decode_down,
        lambda data: decode_pdus(data, DOWN_HEAD_BYTES),
        decode_pack,
    ]
    for _ in range(3_000):
        data = bytearray(chance.choice(whole))
        data = data[: chance.randrange(len(data) + 1)]
        for _ in range(chance.randrange(3)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        for read in readers:
            try:
                read(bytes(data))
            except RemoteProtocolError:
                continue


def test_a_pack_holds_what_was_written() -> None:
    messages = [b"", b"x" * 200, b"\0" * 20_000]
    assert decode_pack(encode_pack(70_000, messages)) == (70_000, messages)


@pytest.mark.parametrize("repeats", [False, True])
def test_a_batch_is_bounded_and_its_numbers_are_dense(repeats: bool) -> None:
    sent: list[tuple[int, bytes]] = []
    batch = Batch(
        lambda first: first.to_bytes(8, "little"),
        lambda data: sent.append((int.from_bytes(data[:8], "little"), data[8:])),
        head_bytes=8,
        bytes_max=108,
        repeats=repeats,
    )
    chance = Random(3)
    pdus = [bytes((n % 256,)) * chance.choice([1, 10, 40, 300]) for n in range(200)]
    for number, pdu in enumerate(pdus, 1):
        assert batch.next_number == number
        batch.add(pdu)
        if chance.random() < 0.3:
            batch.flush()
    batch.flush()
    assert len(batch) == 0
    reached, copies = 0, 0
    for first, body in sent:
        assert len(body) <= 100 or len(set(body)) == 1
        at, number = 0, first
        while at < len(body):
            pdu = pdus[number - 1]
            assert body[at : at + len(pdu)] == pdu
            copies += number <= reached
            assert number <= reached + 1
            reached = max(reached, number)
            at += len(pdu)
            number += 1
    assert reached == len(pdus)
    assert (copies > 0) == repeats


def test_the_last_datagram_is_repeated_once() -> None:
    sent: list[bytes] = []
    batch = Batch(lambda first: b"", sent.append, head_bytes=0, bytes_max=100, repeats=True)
    batch.add(b"a")
    batch.flush()
    batch.repeat()
    batch.repeat()
    assert sent == [b"a", b"a"]
