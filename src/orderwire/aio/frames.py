"""The link's own datagrams.

Every datagram begins with one head of 40 bytes (little endian):

    kind u8 · flags u8 · source u16 · channel u16 · count u16 · session u64 · target u64 ·
    first u64 · last u64

`session` is the incarnation of the sender, `target` the one of the receiver that it is meant for.
Another incarnation of either drops it: copies are numbered from 0 between each two of them.

    DATA       count PDUs, copies first … first+count-1; `last` is their deadline (0: none).  Behind
               the head: count lengths (u16), then the PDUs.  Without PDUs it is a heartbeat:
               `first` is the number of the next copy.  With the flag NOTICE the PDUs are notices
               of these copies: what is left of them for who waits for them.
    MULTICAST  as DATA, for several members: behind the head n times (member u16, target u64,
               first u64); in the head `first` is n and `target` 0.
    REPORT     what the reporter knows of the other's copies: all below `first` are settled; of
               those below `last` only the ranges are missing.  Behind the head: window u64,
               count times (first u64, last u64, asked u8).
    GONE       count ranges (first u64, last u64, 0 u8) that will never come (again).
    PING, PONG `first` is the pinger's monotonic clock.  Any incarnation answers.

A PDU too long for a u16 length travels alone: count 1 and the flag LONG, no length at all.
"""

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from orderwire.kernel import RemoteProtocolError

HEAD = struct.Struct("<BBHHHQQQQ")
HEAD_BYTES = HEAD.size
LENGTH_BYTES = 2
LONG = 1
"""Flag: one PDU, as long as what is left."""

NOTICE = 2
"""Flag: not the copies, but what stands in their place if they do not come."""
SURE = 4
"""Flag: they will not come."""

RANGES_MAX = 64
"""Ranges in one REPORT or GONE."""

COUNT_MAX = 4_096
"""PDUs in one datagram."""

_SESSION = struct.Struct("<Q")
_TARGET_AT = 16
_REPORT = struct.Struct("<Q")
_RANGE = struct.Struct("<QQB")
_ENTRY = struct.Struct("<HQQ")
_LENGTHS: dict[int, struct.Struct] = {}


class Kind(IntEnum):
    """What a datagram is; the values are unlikely first bytes of anything else."""

    DATA = 0xD1
    MULTICAST = 0xD2
    REPORT = 0xD3
    GONE = 0xD4
    PING = 0xD5
    PONG = 0xD6


class Way(NamedTuple):
    """Who sends to whom, on which channel: what the heads of a lane's datagrams share."""

    source: int
    session: int
    """Incarnation of the source."""
    target: int
    """Incarnation of the receiver; 0: not known."""
    channel: int


class Range(NamedTuple):
    """Copies first … last."""

    first: int
    last: int
    asked: int = 0
    """Whether the reporter wants them again now."""


def _lengths(count: int) -> struct.Struct:
    found = _LENGTHS.get(count)
    if found is None:
        found = _LENGTHS[count] = struct.Struct(f"<{count}H")
    return found


def data_datagram(way: Way, first: int, deadline: int, pdus: list[bytes]) -> bytes:
    """Return a DATA datagram; without PDUs a heartbeat."""
    count = len(pdus)
    if count == 1 and len(pdus[0]) > 0xFFFF:
        return data_head(way, first, deadline, 1, LONG) + pdus[0]
    return data_body(pdus, data_head(way, first, deadline, count))


def data_head(way: Way, first: int, deadline: int, count: int, flags: int = 0) -> bytes:
    """Return the head of a DATA datagram."""
    source, session, target, channel = way
    return HEAD.pack(Kind.DATA, flags, source, channel, count, session, target, first, deadline)


def readdressed(data: bytes, target: int) -> bytes:
    """Return this datagram for another incarnation of its receiver."""
    return data[:_TARGET_AT] + _SESSION.pack(target) + data[_TARGET_AT + _SESSION.size :]


def notice_datagram(
    data: bytes, header_only: Callable[[memoryview], bytes], *, sure: bool
) -> bytes | None:
    """Return the notice of a DATA datagram's copies; None of a heartbeat or a MULTICAST."""
    kind, flags, source, channel, count, session, target, first, last = HEAD.unpack_from(data)
    if kind != Kind.DATA or not count:
        return None
    notices = [header_only(pdu) for pdu in split(memoryview(data), HEAD_BYTES, count, flags)]
    flags = NOTICE | SURE if sure else NOTICE
    head = HEAD.pack(kind, flags, source, channel, count, session, target, first, last)
    return data_body(notices, head)


def ping_datagram(kind: Kind, source: int, session: int, first: int) -> bytes:
    """Return a PING or a PONG."""
    return HEAD.pack(kind, 0, source, 0, 0, session, 0, first, 0)


def data_body(pdus: list[bytes], head: bytes = b"") -> bytes:
    """Return what follows the head: the same for all peers that get the same PDUs."""
    return b"".join((head, _lengths(len(pdus)).pack(*map(len, pdus)), *pdus))


def multicast_datagram(
    way: Way, firsts: Sequence[tuple[int, int, int]], deadline: int, pdus: list[bytes]
) -> bytes:
    """Return a MULTICAST datagram; `firsts` is (member, its incarnation, its first number)."""
    source, session, target, channel = way
    kind, count, entries = Kind.MULTICAST, len(pdus), len(firsts)
    head = HEAD.pack(kind, 0, source, channel, count, session, target, entries, deadline)
    table = [_ENTRY.pack(*entry) for entry in firsts]
    return b"".join((head, *table, data_body(pdus)))


def multicast_entry_bytes(members: int) -> int:
    """Size of the table of a MULTICAST datagram."""
    return members * _ENTRY.size


def multicast_first(
    data: memoryview, entries: int, me: int, session: int
) -> tuple[int | None, int]:
    """Return the number of my first copy (None: not for me) and the offset behind the table."""
    end = HEAD_BYTES + entries * _ENTRY.size
    if end > len(data):
        raise RemoteProtocolError(f"table of {entries} members in {len(data)} bytes")
    for member, target, first in _ENTRY.iter_unpack(data[HEAD_BYTES:end]):
        if member == me:
            return first if target == session else None, end
    return None, end


def split(data: memoryview, at: int, count: int, flags: int) -> list[memoryview]:
    """Return the PDUs of a DATA or MULTICAST datagram.  Raises RemoteProtocolError."""
    if flags & LONG:
        if count != 1:
            raise RemoteProtocolError(f"long datagram of {count} PDUs, expected 1")
        return [data[at:]]
    if count > COUNT_MAX:
        raise RemoteProtocolError(f"{count} PDUs in a datagram, expected at most {COUNT_MAX}")
    end = at + count * LENGTH_BYTES
    if end > len(data):
        raise RemoteProtocolError(f"{count} PDUs in {len(data)} bytes")
    pdus = []
    for length in _lengths(count).unpack_from(data, at):
        at, end = end, end + length
        pdus.append(data[at:end])
    if end > len(data):
        raise RemoteProtocolError(f"PDUs end at {end} of {len(data)} bytes")
    return pdus


class Report(NamedTuple):
    """What the reporter knows of the copies sent to it."""

    settled: int
    """All copies below are received or given up."""
    seen: int
    """Of the copies below, only `missing` has not come."""
    window: int
    """Bytes the reporter can buffer from this sender."""
    missing: list[Range]


def report_datagram(way: Way, report: Report) -> bytes:
    """Return a REPORT datagram; missing ranges beyond RANGES_MAX are left for the next one."""
    missing, seen = report.missing, report.seen
    if len(missing) > RANGES_MAX:
        seen = missing[RANGES_MAX].first
        missing = missing[:RANGES_MAX]
    source, session, target, channel = way
    kind, count, settled = Kind.REPORT, len(missing), report.settled
    head = HEAD.pack(kind, 0, source, channel, count, session, target, settled, seen)
    ranges = [_RANGE.pack(*each) for each in missing]
    return b"".join((head, _REPORT.pack(report.window), *ranges))


def parse_report(data: memoryview, count: int, settled: int, seen: int) -> Report:
    """Parse what follows the head of a REPORT.  Raises RemoteProtocolError."""
    at = HEAD_BYTES + _REPORT.size
    ranges = _parse_ranges(data, at, count)
    (window,) = _REPORT.unpack_from(data, HEAD_BYTES)
    below = settled
    for each in ranges:
        if not below <= each.first <= each.last < seen:
            raise RemoteProtocolError(f"missing {each} outside of {below} to {seen - 1}")
        below = each.last + 1
    return Report(settled, seen, window, ranges)


def gone_datagram(way: Way, ranges: list[Range]) -> bytes:
    """Return a GONE datagram."""
    assert len(ranges) <= RANGES_MAX, f"{len(ranges)} ranges, at most {RANGES_MAX}"
    source, session, target, channel = way
    head = HEAD.pack(Kind.GONE, 0, source, channel, len(ranges), session, target, 0, 0)
    return b"".join((head, *(_RANGE.pack(*each) for each in ranges)))


def parse_gone(data: memoryview, count: int) -> list[Range]:
    """Parse what follows the head of a GONE.  Raises RemoteProtocolError."""
    ranges = _parse_ranges(data, HEAD_BYTES, count)
    for each in ranges:
        if each.first > each.last:
            raise RemoteProtocolError(f"gone {each} ends before it begins")
    return ranges


def _parse_ranges(data: memoryview, at: int, count: int) -> list[Range]:
    if count > RANGES_MAX or at + count * _RANGE.size != len(data):
        raise RemoteProtocolError(
            f"{count} ranges in {len(data)} bytes, expected at most {RANGES_MAX} of them and "
            f"{at + count * _RANGE.size} bytes"
        )
    return [Range(*each) for each in _RANGE.iter_unpack(data[at:])]
