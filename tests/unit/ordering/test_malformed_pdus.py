"""What no correct process sends, for every codec of the catalog: refused, or read as a legal PDU.

From a rich PDU of each algorithm come its truncations, all flips of one bit, and copies in which a
huge number stands at every place.  What can still be read names members and older stamps only, and
does a receiver no harm.
"""

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import pytest

from orderwire.kernel import (
    Effects,
    Indicate,
    Instant,
    ProcessId,
    RemoteProtocolError,
    Send,
    destinations,
    ms,
    us,
)
from orderwire.ordering.adelstein_singhal import AdelsteinSinghalPdu
from orderwire.ordering.bounded_jang_codec import NO_FLOOR, BoundedJangPdu
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.ordering.fifo import FifoPdu
from orderwire.ordering.jang_delta_codec import JangDeltaPdu
from orderwire.ordering.pdu import Multicast, Sent
from orderwire.ordering.predecessor_sets import PredecessorSetsPdu
from orderwire.ordering.rodrigues_deadline import RodriguesDeadlinePdu
from orderwire.ordering.tags_codec import EntriesPdu, MatrixPdu, PairsPdu
from orderwire.ordering.wire import encode_head, encode_varint

SMALL = OrderingSettings(members=5, lifetime_ns=ms(250), max_cb=3)
LARGE = OrderingSettings(members=40, lifetime_ns=ms(250), tick_ns=us(100), max_cb=3)
CUT = OrderingSettings(members=5, lifetime_ns=ms(250), floor_cap=1, tag_bytes_max=24)
CASES: dict[str, tuple[str, OrderingSettings]] = {
    **{f"{name}, 5": (name, SMALL) for name in ALGORITHMS},
    **{f"{name}, 40": (name, LARGE) for name in ALGORITHMS},
    "bounded-jang, cut": ("bounded-jang", CUT),
}
CONTROL_BYTES_MAX = 60
"""Of the PDU that is damaged; of a larger one, only the middle says anything new."""
FRAME_BYTES = 6_000
HUGE = (b"\xff" * 9 + b"\x7f", encode_varint((1 << 62) + 1), encode_varint(1 << 20))

cases = pytest.mark.parametrize("case", CASES)


def sends(effects: Effects) -> list[Send[Any]]:
    return [effect for effect in effects if isinstance(effect, Send)]


@cache
def rich(case: str) -> tuple[Any, ProcessId, ProcessId]:
    """Return the PDU with the most control information of a busy time, its source and its reader.

    Half of the copies arrive; those with a lifetime of their own, where there are such, do too.
    """
    name, settings = CASES[case]
    entry = ALGORITHMS[name]
    chance = Random(case)
    members = [ProcessId(process) for process in range(settings.members)]
    cores = [entry.create(process, settings) for process in members]
    best: tuple[int, Any, ProcessId, ProcessId] | None = None
    for step in range(80):
        now = Instant(ms(100) + step * us(1_300))
        sender = chance.choice(members)
        to = destinations(chance.sample(members, chance.choice((1, 2, 3, 5))))
        own = ms(100) if entry.own_lifetimes and chance.random() < 0.5 else None
        for send in sends(cores[sender].submit(Multicast(b"payload", to, own), now)):
            size = len(send.pdu.control)
            if size <= CONTROL_BYTES_MAX and (best is None or size > best[0]):
                best = size, send.pdu, sender, send.to
            if chance.random() < 0.5:
                cores[send.to].receive(sender, send.pdu, now)
    assert best is not None
    return best[1:]


def damaged(data: bytes, control: int) -> Iterator[bytes]:
    """Yield one flipped bit, and one huge number, at every place of the control information."""
    for at in range(control):
        for bit in range(8):
            yield data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]
        for value in (0, 0x7F, 0x80, 0xFF):
            yield data[:at] + bytes((value,)) + data[at + 1 :]
        for huge in HUGE:
            yield data[:at] + huge + data[at + 1 :]
            yield data[:at] + huge + data[at:]


def masks_of(pdu: Any) -> list[int]:
    """Every destination set in a PDU's control information."""
    match pdu:
        case JangDeltaPdu() | EntriesPdu():
            return [mask for group in pdu.entries.values() for _, mask in group]
        case BoundedJangPdu():
            return [mask for _, _, mask in pdu.listed] + [mask for mask, _ in pdu.floors]
        case MatrixPdu():
            return [1 << column for row in pdu.rows.values() for column in row]
        case PredecessorSetsPdu():
            return [1 << process for process in pdu.sets]
        case AdelsteinSinghalPdu():
            return [1 << process for process, _ in pdu.sent]
    return []


def messages_of(pdu: Any) -> list[tuple[int, int]]:
    """Every (sender, stamp) in a PDU's control information."""
    match pdu:
        case JangDeltaPdu():
            named = [(k, stamp) for k, group in pdu.entries.items() for stamp, _ in group]
            return [*named, *pdu.waits]
        case EntriesPdu():
            return [(k, stamp) for k, group in pdu.entries.items() for stamp, _ in group]
        case BoundedJangPdu():
            floors = [(0, floor) for _, floor in pdu.floors]
            return [*((k, stamp) for stamp, k, _ in pdu.listed), *pdu.others, *floors]
        case PairsPdu():
            return list(pdu.pairs)
        case MatrixPdu():
            return [(k, stamp) for k, row in pdu.rows.items() for stamp in row.values()]
        case PredecessorSetsPdu():
            return [(k, stamp) for group in pdu.sets.values() for stamp, k in group]
        case AdelsteinSinghalPdu():
            return list(pdu.sent + pdu.heard)
        case FifoPdu():
            return [] if pdu.previous is None else [(0, pdu.previous)]
    return []


def check_legal(pdu: Any, settings: OrderingSettings) -> None:
    """It names members only, and what is older than itself."""
    members = settings.members
    assert 0 < pdu.destinations < 1 << members
    assert 0 <= pdu.stamp < 1 << 63
    assert all(0 <= mask < 1 << members for mask in masks_of(pdu))
    for sender, stamp in messages_of(pdu):
        assert 0 <= sender < members
        assert 0 <= stamp <= pdu.stamp
    if isinstance(pdu, BoundedJangPdu):
        assert 0 <= pdu.marks < 1 << len(pdu.listed)
        assert NO_FLOOR <= pdu.floor < max(pdu.stamp, 1)
    if isinstance(pdu, RodriguesDeadlinePdu):
        delta = (settings.lifetime_ns or 0) // settings.tick_ns
        assert 0 < pdu.lifetime <= delta
        assert all(0 < less < delta for less in pdu.shortfalls.values())


@cases
def test_control_information_cut_short_is_refused(case: str) -> None:
    name, settings = CASES[case]
    pdu, _, reader = rich(case)
    codec = ALGORITHMS[name].codec(reader, settings)
    data = codec.encode(pdu)
    for size in range(len(pdu.control)):
        with pytest.raises(RemoteProtocolError):
            codec.decode(memoryview(data)[:size])
    for size in range(len(pdu.control), len(data) + 1):
        assert codec.decode(memoryview(data)[:size]).payload == b"payload"[: size - len(data) + 7]


@cases
def test_damaged_pdus_are_refused_or_legal(case: str) -> None:
    name, settings = CASES[case]
    pdu, _, reader = rich(case)
    codec = ALGORITHMS[name].codec(reader, settings)
    refused = 0
    for data in damaged(codec.encode(pdu), len(pdu.control)):
        try:
            read = codec.decode(data)
        except RemoteProtocolError:
            refused += 1
            continue
        check_legal(read, settings)
        assert codec.encode(read) == data
        assert codec.decode(memoryview(data)) == read
    assert refused > 10


@cases
def test_what_is_read_does_a_receiver_no_harm(case: str) -> None:
    """Receive it, let its waiting end, and send on what it has taught."""
    name, settings = CASES[case]
    entry = ALGORITHMS[name]
    pdu, source, reader = rich(case)
    codec = entry.codec(reader, settings)
    received = 0
    for data in list(damaged(codec.encode(pdu), len(pdu.control)))[::17]:
        try:
            read = codec.decode(data)
        except RemoteProtocolError:
            continue
        core = entry.create(reader, settings)
        now = Instant(min(read.stamp * settings.tick_ns, ms(1_000)))
        try:
            core.receive(source, read, now)
        except RemoteProtocolError:
            continue
        received += 1
        while (deadline := core.next_deadline()) is not None:
            core.wake(deadline)
            now = deadline
        effects = core.submit(Multicast(b"", destinations(range(settings.members))), now)
        for send in sends(effects):
            assert codec.decode(codec.encode(send.pdu)) == send.pdu
        assert any(
            isinstance(effect, Indicate) and isinstance(effect.indication, Sent)
            for effect in effects
        )
    assert received


@pytest.mark.timeout(20)
@cases
def test_a_frame_full_of_anything_costs_time_and_memory_in_proportion(case: str) -> None:
    name, settings = CASES[case]
    codec = ALGORITHMS[name].codec(ProcessId(0), settings)
    head = encode_head(1 << 40, 0, destinations([0]))
    openings = [b"", *HUGE[1:], encode_varint(2_000 << 1), encode_varint(1_200 << 1 | 1)]
    openings += [before + HUGE[2] for before in (b"\0", b"\1\1", b"\1\1\1")]
    for opening in openings:
        for filler in (b"\0", b"\1", b"\1\1\2", b"\1\1\0\0\0", b"\x7f", b"\xff"):
            data = head + opening + filler * (FRAME_BYTES // len(filler))
            tracemalloc.start()
            with suppress(RemoteProtocolError):
                check_legal(codec.decode(data), settings)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 200 * FRAME_BYTES, (opening, filler)
