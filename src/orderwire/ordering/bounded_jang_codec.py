"""The PDU of bounded Jang and how it looks on the wire.

In this order: head (stamp, number, destinations); the tag; payload.  The tag:

    entries << 1 | notice        varint
      per entry, newest first:   sender << 1 | single, age, then one destination (`single`) or a set
    others << 1 | more           varint
      flags                      1 byte, only when `more`
      marks                      which of the entries this copy's destination waits for
      per other dependency:      sender, age
      own floor                  1 byte
      floors of the rest         a set and one byte for each in it, or a set and one byte, or a byte

An entry's age is its distance to the entry before it, of whatever sender, in ticks, the first one's
to the message's own stamp.  So an age is as short as the gap between two messages of the group, and
cutting the oldest entries is cutting the end.  Ages of the other dependencies are against the
message's own stamp.  Both are exact: a stamp is also the identity of its message.

A dependency whose entry still names other destinations is a mark on that entry; marks are a bit
mask as long as there are entries, or a list of their indices, whichever is shorter.

Floors are no identities.  They are rounded to the next newer point of a grid that divides Δ + ε
into at most 126 parts, but to less than the message's own stamp: a newer floor only lets messages
wait longer, and one older than the message never lets it wait past its deadline.  The grid is the
same for all, so a floor that is handed on is not rounded again, and floors do not creep upwards.
"""

from collections.abc import Sequence
from typing import TypeAlias

from orderwire.kernel import Destinations, ProcessId, RemoteProtocolError, members_of, read_varint
from orderwire.ordering.causal_node import CausalPdu, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import (
    INTEGER_BYTES,
    HeadedCodec,
    decode_head,
    decode_set,
    encode_head,
    encode_set,
    encode_varint,
    payload_of,
)

GRID_PARTS_MAX = 126
OLDEST = 127
"""The largest distance of a floor on the grid; an older one is sent as if it were this old."""

Listed: TypeAlias = tuple[int, int, int]
"""(stamp, sender, destinations): this message may still be undelivered at these destinations."""
Floor: TypeAlias = tuple[int, int]
"""(destinations, stamp): what was cut for these destinations is not newer than this."""

NO_FLOOR = -1
_MARKS_MASK, _MARKS_LIST = 1, 2
_OWN_FLOOR = 4
_FLOORS_EACH, _FLOORS_ONE, _FLOORS_ALL = 8, 16, 24


class BoundedJangPdu(CausalPdu, frozen=True, gc=False):
    """One copy of a message, or of a notice that it is lost."""

    listed: tuple[Listed, ...]
    """CI_m, newest first, without the destinations of this message and without empty entries."""
    marks: int
    """Bit set of the entries that this copy's destination waits for, by their index."""
    others: tuple[Wait, ...]
    """What it waits for besides: messages that are covered by this one everywhere."""
    floor: int
    """It also waits until everything stamped up to here has expired; −1: nothing was cut."""
    floors: tuple[Floor, ...]
    """The same for messages to other destinations."""
    is_notice: bool = False
    """The copy will never come: wait as it would have, then count it as settled."""


def loss_notice(pdu: BoundedJangPdu) -> BoundedJangPdu:
    """Return the notice that this copy will never come: its head and its tag.

    Only for a copy that cannot arrive any more: the receiver takes it for a duplicate if it does.
    """
    at = len(encode_head(pdu.stamp, pdu.number, pdu.destinations))
    control = pdu.control[:at] + bytes((pdu.control[at] | 1,)) + pdu.control[at + 1 :]
    return BoundedJangPdu(
        pdu.number,
        pdu.stamp,
        pdu.destinations,
        control,
        b"",
        pdu.listed,
        pdu.marks,
        pdu.others,
        pdu.floor,
        pdu.floors,
        True,
    )


def printed_bytes(pdu: BoundedJangPdu, settings: OrderingSettings) -> int:
    """Size of the tag in the papers' layout of 4-byte integers, in bytes: see `jang_delta_codec`.

    A floor counts 8, a destination and a stamp; the head is not counted.
    """
    dependencies = pdu.marks.bit_count() + len(pdu.others)
    floors = sum(mask.bit_count() for mask, _ in pdu.floors) + (pdu.floor != NO_FLOOR)
    total = 2 * INTEGER_BYTES + 2 * INTEGER_BYTES * (dependencies + floors)
    for _, _, mask in pdu.listed:
        total += 3 * INTEGER_BYTES + INTEGER_BYTES * mask.bit_count()
    return total


class Grid:
    """Where floors may stand."""

    def __init__(self, settings: OrderingSettings) -> None:
        span = ((settings.lifetime_ns or 0) + settings.epsilon_ns) // settings.tick_ns
        self.step = 1
        """In ticks, a power of two."""
        while span // self.step > GRID_PARTS_MAX:
            self.step <<= 1

    def distance(self, stamp: int, floor: int) -> int:
        """Return the byte of a floor, in a message with this stamp."""
        step = self.step
        return min((stamp - 1) // step + 1 - -(-floor // step), OLDEST)

    def floor(self, stamp: int, distance: int) -> int:
        """Return the floor of a byte, in a message with this stamp."""
        step = self.step
        return max(min(((stamp - 1) // step + 1 - distance) * step, stamp - 1), 0)


def encode_listed(stamp: int, listed: Sequence[Listed]) -> list[bytes]:
    """Return every entry on the wire; the first ones alone are valid, too."""
    parts: list[bytes] = []
    newer = stamp
    for entry, sender, mask in listed:
        age = newer - entry
        newer = entry
        if mask & (mask - 1):
            if sender < 64 and age < 0x80:
                parts.append(bytes((sender << 1, age)) + encode_set(mask))
            else:
                parts.append(encode_varint(sender << 1) + encode_varint(age) + encode_set(mask))
        else:
            parts.append(
                encode_varint(sender << 1 | 1)
                + encode_varint(age)
                + encode_varint(mask.bit_length() - 1)
            )
    return parts


def encode_copy(
    entries: int, marks: int, others: Sequence[bytes], floor: bytes, floors: tuple[int, bytes]
) -> bytes:
    """Return the part of a tag behind its entries."""
    form, tail = floors
    flags = form | (_OWN_FLOOR if floor else 0)
    marked = b""
    if marks:
        kind, marked = _encode_marks(entries, marks)
        flags |= kind
    if not flags:
        return encode_varint(len(others) << 1) + b"".join(others)
    head = encode_varint(len(others) << 1 | 1) + bytes((flags,))
    return head + marked + b"".join(others) + floor + tail


def _encode_marks(entries: int, marks: int) -> tuple[int, bytes]:
    width = (entries + 7) // 8
    if marks.bit_count() + 1 >= width:
        return _MARKS_MASK, marks.to_bytes(width, "little")
    indices = list(members_of(Destinations(marks)))
    listed = encode_varint(len(indices)) + b"".join(map(encode_varint, indices))
    if len(listed) < width:
        return _MARKS_LIST, listed
    return _MARKS_MASK, marks.to_bytes(width, "little")


def encode_floors(
    stamp: int, floors: dict[int, int], everyone: int, room: int | None, grid: Grid
) -> tuple[tuple[int, bytes], tuple[Floor, ...]]:
    """Return the floors of the destinations (process → stamp), and what a receiver reads.

    When they take more than `room` bytes, the newest stands for all of them; when that takes more,
    for `everyone`.
    """
    if not floors:
        return (0, b""), ()
    mask = 0
    for process in floors:
        mask |= 1 << process
    named = encode_set(mask)
    if room is None or len(named) + len(floors) <= room:
        processes = sorted(floors)
        distances = bytes([grid.distance(stamp, floors[process]) for process in processes])
        read = [
            (1 << process, grid.floor(stamp, distance))
            for process, distance in zip(processes, distances, strict=True)
        ]
        return (_FLOORS_EACH, named + distances), tuple(read)
    distance = grid.distance(stamp, max(floors.values()))
    one = bytes((distance,))
    if len(named) + 1 <= room:
        return (_FLOORS_ONE, named + one), ((mask, grid.floor(stamp, distance)),)
    return (_FLOORS_ALL, one), ((everyone, grid.floor(stamp, distance)),)


class BoundedJangCodec(HeadedCodec[BoundedJangPdu]):
    """The one form."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._everyone = (1 << settings.members) - 1
        self._grid = Grid(settings)

    def _parse(self, front: bytes, data: bytes | memoryview) -> BoundedJangPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        marks = 0
        floor = NO_FLOOR
        floors: tuple[Floor, ...] = ()
        others: tuple[Wait, ...] = ()
        try:
            count = front[at]
            is_notice = bool(count & 1)
            listed, at = self._parse_listed(front, at, stamp)
            count = front[at]
            at += 1
            if count > 0x7F:
                count, at = read_varint(front, at - 1)
            flags = 0
            if count & 1:
                flags = front[at]
                at += 1
                if flags & 3:
                    marks, at = _parse_marks(front, at, len(listed), flags & 3)
            if count > 1:
                others, at = self._parse_others(front, at, stamp, count >> 1)
            if flags & _OWN_FLOOR:
                floor = self._grid.floor(stamp, front[at])
                at += 1
            if flags & _FLOORS_ALL:
                floors, at = self._parse_floors(front, at, stamp, flags, destinations)
        except IndexError:
            raise RemoteProtocolError(
                f"control information runs past the end ({len(front)} bytes)"
            ) from None
        if is_notice and at != len(data):
            raise RemoteProtocolError(f"a notice with {len(data) - at} bytes behind it")
        payload = payload_of(front, data, at)
        return BoundedJangPdu(
            number,
            stamp,
            destinations,
            front[:at],
            payload,
            listed,
            marks,
            others,
            floor,
            floors,
            is_notice,
        )

    def _parse_listed(self, data: bytes, at: int, stamp: int) -> tuple[tuple[Listed, ...], int]:
        # Varints of up to two bytes are written out for speed: every datagram passes here.
        count = data[at]
        at += 1
        if count > 0x7F:
            count, at = read_varint(data, at - 1)
        count >>= 1
        if not count:
            return (), at
        members = self._members
        if count > members * members:
            raise RemoteProtocolError(f"{count} entries in a group of {members}")
        listed: list[Listed] = []
        append = listed.append
        newer = stamp
        last = 0
        for _ in range(count):
            head = data[at]
            at += 1
            if head > 0x7F:
                head, at = read_varint(data, at - 1)
            age = data[at]
            at += 1
            if age > 0x7F:
                byte = data[at]
                if byte < 0x80:
                    age = age & 0x7F | byte << 7
                    at += 1
                else:
                    age, at = read_varint(data, at - 1)
            sender = head >> 1
            if sender >= members or age > newer or not (age or sender < last):
                raise RemoteProtocolError(
                    f"entry of sender {sender}, {age} ticks older than {newer} of {last}, "
                    f"in a group of {members}"
                )
            newer -= age
            last = sender
            if head & 1:
                process, at = read_varint(data, at) if data[at] > 0x7F else (data[at], at + 1)
                if process >= members:
                    raise RemoteProtocolError(f"destination {process} in a group of {members}")
                append((newer, sender, 1 << process))
                continue
            begin = at
            mask = data[at]
            at += 1
            if mask > 0x7F:
                mask = mask & 0x7F | data[at] << 7
                at += 1
            if mask & 1 or mask > 0x3FFF or mask >> 1 >> members:
                mask, at = decode_set(data, begin, members)
            else:
                mask >>= 1
            append((newer, sender, mask))
        return tuple(listed), at

    def _parse_others(
        self, data: bytes, at: int, stamp: int, count: int
    ) -> tuple[tuple[Wait, ...], int]:
        members = self._members
        others: list[Wait] = []
        allowed = self._everyone
        for _ in range(count):
            sender = data[at]
            at += 1
            if sender > 0x7F:
                sender, at = read_varint(data, at - 1)
            age = data[at]
            at += 1
            if age > 0x7F:
                byte = data[at]
                if byte < 0x80:
                    age = age & 0x7F | byte << 7
                    at += 1
                elif data[at + 1] < 0x80:
                    age = age & 0x7F | (byte & 0x7F) << 7 | data[at + 1] << 14
                    at += 2
                else:
                    age, at = read_varint(data, at - 1)
            if sender >= members or not allowed >> sender & 1 or not 0 < age <= stamp:
                raise RemoteProtocolError(
                    f"dependency on sender {sender}, {age} ticks older than {stamp}, "
                    f"repeated or outside 0 … {members - 1}"
                )
            allowed ^= 1 << sender
            others.append((sender, stamp - age))
        return tuple(others), at

    def _parse_floors(
        self, data: bytes, at: int, stamp: int, flags: int, destinations: Destinations
    ) -> tuple[tuple[Floor, ...], int]:
        form = flags & _FLOORS_ALL
        if form == _FLOORS_ALL:
            everyone = self._everyone & ~destinations
            return ((everyone, self._grid.floor(stamp, data[at])),), at + 1
        mask, at = decode_set(data, at, self._members)
        if form == _FLOORS_ONE:
            return ((mask, self._grid.floor(stamp, data[at])),), at + 1
        floors: list[Floor] = []
        for process in members_of(mask):
            floors.append((1 << process, self._grid.floor(stamp, data[at])))
            at += 1
        return tuple(floors), at


def _parse_marks(data: bytes, at: int, entries: int, form: int) -> tuple[int, int]:
    if form == _MARKS_MASK:
        width = (entries + 7) // 8
        if at + width > len(data):
            raise RemoteProtocolError(f"marks of {width} bytes, {len(data) - at} are left")
        marks = int.from_bytes(data[at : at + width], "little")
        at += width
    elif form == _MARKS_LIST:
        count, at = read_varint(data, at)
        if count > entries:
            raise RemoteProtocolError(f"{count} marks on {entries} entries")
        marks = 0
        for _ in range(count):
            index, at = read_varint(data, at)
            if index >= entries:
                raise RemoteProtocolError(f"a mark on entry {index} of {entries}")
            marks |= 1 << index
    else:
        raise RemoteProtocolError(f"marks of the unknown form {form}")
    if marks >> entries:
        raise RemoteProtocolError(f"marks {marks:#x} on {entries} entries")
    return marks, at
