"""Control information of the causal algorithms on the wire: entries, pairs and matrices.

Behind the head (stamp, number, destinations) comes one of these, then the payload.  Ages are exact,
in ticks: a rounded age would break the order, because a stamp is also the identity of its message.
[S000:dec.6]  All integers are varints.

    entries   senders, then per sender
                sender << 1 | several
                count of entries             only when `several`
                per entry, newest first:     age against the entry before (the first: against the
                                             message's own stamp), destination set
    pairs     count, then per pair:          sender, age
    matrix    rows, then per row
                sender, age of its newest cell, set of the columns that live
                per column, ascending:       newest cell - this cell

Entries also carry sets of (sender, stamp) pairs per destination, turned round: a pair that stands
at several destinations is written once.  What has expired is left out of all three.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from orderwire.kernel import (
    Destinations,
    ProcessId,
    RemoteProtocolError,
    members_of,
    read_varint,
)
from orderwire.ordering.causal_node import CausalPdu, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import (
    HeadedCodec,
    decode_head,
    decode_set,
    encode_set,
    encode_varint,
    payload_of,
)

Entry: TypeAlias = tuple[int, int]
"""(stamp, destinations) of a message."""
Entries: TypeAlias = tuple[Entry, ...]
"""Entries of one sender, newest first."""
Row: TypeAlias = Mapping[int, int]
"""Cells of a matrix that live: column → stamp."""
ParsedRows: TypeAlias = dict[int, tuple[int, bytes, Row]]
"""Sender → newest stamp, cells on the wire and cells of the row of it that was parsed last."""


class EntriesPdu(CausalPdu, frozen=True, gc=False):
    """One copy of a message, with entries."""

    entries: Mapping[int, Entries]
    """Sender → its entries."""


class PairsPdu(CausalPdu, frozen=True, gc=False):
    """One copy of a message, with pairs."""

    pairs: tuple[Wait, ...]


class MatrixPdu(CausalPdu, frozen=True, gc=False):
    """One copy of a message, with a matrix."""

    rows: Mapping[int, Row]
    """Sender → its row; rows without a live cell are left out."""


def encode_group(sender: int, stamp: int, group: Entries) -> bytes:
    """Return the entries of one sender on the wire, for a message with this stamp."""
    if len(group) == 1:
        ((entry_stamp, mask),) = group
        return encode_varint(sender << 1) + encode_varint(stamp - entry_stamp) + encode_set(mask)
    parts = [encode_varint(sender << 1 | 1), encode_varint(len(group))]
    newer = stamp
    for entry_stamp, mask in group:
        parts.append(encode_varint(newer - entry_stamp))
        parts.append(encode_set(mask))
        newer = entry_stamp
    return b"".join(parts)


def encode_entries(stamp: int, entries: Mapping[int, Entries]) -> bytes:
    """Return entries on the wire, for a message with this stamp."""
    return join_parts([encode_group(sender, stamp, group) for sender, group in entries.items()])


def encode_pairs(stamp: int, pairs: Iterable[Wait]) -> bytes:
    """Return pairs on the wire, for a message with this stamp."""
    return join_parts([encode_varint(k) + encode_varint(stamp - wait) for k, wait in pairs])


def encode_cells(row: Row) -> bytes:
    """Return the columns of a row and its cells on the wire, without its sender and newest age."""
    newest = max(row.values())
    columns = 0
    for column in row:
        columns |= 1 << column
    cells = [encode_varint(newest - row[column]) for column in members_of(Destinations(columns))]
    return encode_set(columns) + b"".join(cells)


def join_parts(parts: list[bytes]) -> bytes:
    """Return how many parts there are, and the parts."""
    return encode_varint(len(parts)) + b"".join(parts)


def turned_round(barriers: Mapping[int, Iterable[Wait]]) -> dict[int, Entries]:
    """Return (sender, stamp) pairs per destination as entries per sender."""
    masks: dict[int, dict[int, int]] = {}
    for process, barrier in barriers.items():
        bit = 1 << process
        for sender, stamp in barrier:
            group = masks.get(sender)
            if group is None:
                masks[sender] = {stamp: bit}
            else:
                group[stamp] = group.get(stamp, 0) | bit
    return {
        sender: tuple(group.items() if len(group) == 1 else sorted(group.items(), reverse=True))
        for sender, group in masks.items()
    }


def waits_for(entries: Mapping[int, Entries], bit: int) -> list[Wait]:
    """Return per sender the newest message that names this destination."""
    waits: list[Wait] = []
    for sender, group in entries.items():
        for stamp, mask in group:
            if mask & bit:
                waits.append((sender, stamp))
                break
    return waits


def _read_sender(data: bytes, at: int, shift: int, allowed: int) -> tuple[int, int]:
    """Return a head, with its sender above `shift` bits, and the offset behind it."""
    head, at = read_varint(data, at)
    sender = head >> shift
    if sender >= allowed.bit_length() or not allowed >> sender & 1:
        raise RemoteProtocolError(
            f"control information of sender {sender}, repeated or outside the group"
        )
    return head, at


def _read_age(data: bytes, at: int, newer: int) -> tuple[int, int]:
    """Return the stamp of what is this much older, and the offset behind its age."""
    age = data[at] if at < len(data) else 0x80
    if age < 0x80:
        at += 1
    else:
        age, at = read_varint(data, at)
    if not 0 < age <= newer:
        raise RemoteProtocolError(f"control information {age} ticks older than {newer}")
    return newer - age, at


def read_entries(
    data: bytes, at: int, stamp: int, members: int
) -> tuple[Mapping[int, Entries], int]:
    """Parse entries.  Raises RemoteProtocolError; returns them and the offset behind them."""
    count, at = read_varint(data, at)
    entries: dict[int, Entries] = {}
    allowed = (1 << members) - 1
    end = len(data)
    for _ in range(count):
        head, at = _read_sender(data, at, 1, allowed)
        sender = head >> 1
        allowed &= ~(1 << sender)
        size = 1
        if head & 1:
            size, at = read_varint(data, at)
            if size < 2:
                raise RemoteProtocolError(f"{size} entries of sender {sender} as several")
        group: list[Entry] = []
        newer = stamp
        for _ in range(size):
            # Ages of one and two bytes are written out for speed: most are.
            age = data[at] if at + 1 < end else 0x80
            at += 1
            if age > 0x7F:
                if at < end and data[at] < 0x80:
                    age = age & 0x7F | data[at] << 7
                    at += 1
                else:
                    age, at = read_varint(data, at - 1)
            if not 0 < age <= newer:
                raise RemoteProtocolError(f"control information {age} ticks older than {newer}")
            newer -= age
            mask = data[at] if at < end else 1
            if mask & 0x81 or mask >> 1 >> members:
                mask, at = decode_set(data, at, members)
            else:  # A mask of one byte.
                mask >>= 1
                at += 1
            group.append((newer, mask))
        entries[sender] = tuple(group)
    return entries, at


def read_pairs(data: bytes, at: int, stamp: int, members: int) -> tuple[tuple[Wait, ...], int]:
    """Parse pairs.  Raises RemoteProtocolError; returns them and the offset behind them."""
    count, at = read_varint(data, at)
    pairs: list[Wait] = []
    allowed = (1 << members) - 1
    for _ in range(count):
        sender, at = _read_sender(data, at, 0, allowed)
        allowed &= ~(1 << sender)
        wait, at = _read_age(data, at, stamp)
        pairs.append((sender, wait))
    return tuple(pairs), at


def read_rows(
    data: bytes, at: int, stamp: int, members: int, parsed: ParsedRows
) -> tuple[Mapping[int, Row], int]:
    """Parse a matrix.  Raises RemoteProtocolError; returns its rows and the offset behind them.

    Most rows are the same as in the message before: what is in `parsed` is not parsed again.
    """
    count, at = read_varint(data, at)
    rows: dict[int, Row] = {}
    allowed = (1 << members) - 1
    for _ in range(count):
        sender, at = _read_sender(data, at, 0, allowed)
        allowed &= ~(1 << sender)
        newest, at = _read_age(data, at, stamp)
        known = parsed.get(sender)
        if known is not None and known[0] == newest and data.startswith(known[1], at):
            at += len(known[1])
            rows[sender] = known[2]
            continue
        begin = at
        columns, at = decode_set(data, at, members)
        if not columns:
            raise RemoteProtocolError(f"a row of sender {sender} without cells")
        row, at = _read_cells(data, at, newest, columns)
        rows[sender] = row
        parsed[sender] = (newest, data[begin:at], row)
    return rows, at


def _read_cells(
    data: bytes, at: int, newest: int, columns: Destinations
) -> tuple[dict[int, int], int]:
    row: dict[int, int] = {}
    try:
        # Varints of up to two bytes are written out for speed: a matrix has many.
        for column in members_of(columns):
            older = data[at]
            at += 1
            if older > 0x7F:
                byte = data[at]
                if byte < 0x80:
                    older = older & 0x7F | byte << 7
                    at += 1
                else:
                    older, at = read_varint(data, at - 1)
            if older > newest:
                raise RemoteProtocolError(f"a cell {older} ticks older than {newest}")
            row[column] = newest - older
    except IndexError:
        raise RemoteProtocolError(f"a row runs past the end ({len(data)} bytes)") from None
    return row, at


class EntriesCodec(HeadedCodec[EntriesPdu]):
    """The wire form of a message with entries."""

    def _parse(self, front: bytes, data: bytes | memoryview) -> EntriesPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        entries, at = read_entries(front, at, stamp, self._members)
        return EntriesPdu(
            number, stamp, destinations, front[:at], payload_of(front, data, at), entries
        )


class PairsCodec(HeadedCodec[PairsPdu]):
    """The wire form of a message with pairs."""

    def _parse(self, front: bytes, data: bytes | memoryview) -> PairsPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        pairs, at = read_pairs(front, at, stamp, self._members)
        return PairsPdu(number, stamp, destinations, front[:at], payload_of(front, data, at), pairs)


class MatrixCodec(HeadedCodec[MatrixPdu]):
    """The wire form of a message with a matrix."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._parsed: ParsedRows = {}

    def _parse(self, front: bytes, data: bytes | memoryview) -> MatrixPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        rows, at = read_rows(front, at, stamp, self._members, self._parsed)
        return MatrixPdu(number, stamp, destinations, front[:at], payload_of(front, data, at), rows)
