"""How ST's PDUs look on the wire.  [S003:sec.3.1]

A PDU is a kind, with flags; the epoch, as two varints; then its fields.  Numbers are varints, sets
those of `ordering.wire`, a vector its length and its numbers, an ascending list its length, its
first number and the gaps.  A message ends with its payload.

Above 16 members the vectors of a DATA would outgrow most payloads.  A DATA that follows another of
its source and epoch is then sent without PSEQ, which the former one's PSEQ and destinations give,
and with the changes of ACK only.  Who has missed the former one cannot read it and has lost it too;
so every eighth is sent in full.
"""

from collections.abc import Iterable

from orderwire.kernel import (
    GROUP_SIZE_MAX,
    Destinations,
    Instant,
    OrderwireError,
    ProcessId,
    RemoteProtocolError,
    read_varint,
    write_varint,
)
from orderwire.ordering.total.pdu import (
    Data,
    Epoch,
    Has,
    Header,
    Known,
    Nak,
    Numbers,
    Pdu,
    Record,
    Rst,
    RstAck,
    RstPak,
    Rtx,
)
from orderwire.ordering.wire import INTEGER_BYTES, decode_set, encode_set

PLAIN_MEMBERS_MAX = 16
"""Groups up to this size send every header in full; what counts is the highest id."""
FULL_EVERY = 8
"""Of this many PDUs of a source one is sent in full."""
LIST_MAX = 1 << 20
"""Longest list that is read."""

_DATA, _RTX, _NAK, _RST, _PAK, _ACK = range(6)
_KIND = 0x07
_POLL = 0x08
_FOLLOWS = 0x10
_RECORD = 0x20
_PRINTED_REST = 17
"""Kind, SRC, EPOCH, TSEQ and BUF of the layout that the specification counts with, in bytes."""


class HeaderLost(OrderwireError):
    """This PDU says only what differs from one that has not come: it is lost as well."""


class TachikawaSTCodec:
    """One per member: it knows the last PDU of each source.

    An epoch begins with headers in full, so members may come and go, and ids have new owners.
    """

    def __init__(self) -> None:
        self._own: Data | None = None
        self._own_full_in = 0
        self._last: dict[ProcessId, Data] = {}

    def encode(self, pdu: Pdu) -> bytes:
        """Return the whole PDU, payload last.  A member's DATA are encoded in order."""
        if isinstance(pdu, Data):
            return self._encode_data(pdu)
        out = bytearray()
        if isinstance(pdu, Rtx):
            _write_kind(out, _RTX, pdu.epoch)
            write_varint(out, pdu.tseq)
            out += encode_set(pdu.destinations)
            _write_vector(out, pdu.pseq)
            write_varint(out, pdu.number)
            write_varint(out, pdu.stamp)
            out += pdu.payload
        elif isinstance(pdu, Nak):
            _write_kind(out, _NAK, pdu.epoch)
            write_varint(out, len(pdu.missing))
            for source, numbers in pdu.missing:
                write_varint(out, source)
                _write_ascending(out, numbers)
        elif isinstance(pdu, Rst):
            _write_kind(out, _RST, pdu.epoch)
        elif isinstance(pdu, RstPak):
            _write_control(out, _PAK, pdu)
        else:
            _write_control(out, _ACK, pdu)
            write_varint(out, pdu.line)
            _write_vector(out, pdu.order)
        return bytes(out)

    def decode(self, source: ProcessId, data: bytes) -> Pdu:
        """Parse what `source` has encoded.  Raises RemoteProtocolError and HeaderLost."""
        if not data:
            raise RemoteProtocolError("an empty PDU")
        kind = data[0]
        view, at = _read(data, 1)
        recovery, at = _read(data, at)
        epoch = (view, recovery)
        form = kind & _KIND
        if form == _DATA:
            return self._decode_data(source, data, kind, epoch, at)
        if form == _RTX:
            return _decode_rtx(data, epoch, at)
        pdu: Pdu
        if form == _NAK:
            pdu, at = _decode_nak(data, epoch, at)
        elif form == _RST:
            pdu = Rst(epoch)
        elif form == _PAK:
            need, known, at = _read_control(data, kind, at)
            pdu = RstPak(epoch, need, known)
        elif form == _ACK:
            need, known, at = _read_control(data, kind, at)
            line, at = read_varint(data, at)
            order, at = _read_vector(data, at)
            pdu = RstAck(epoch, need, known, line, tuple(map(_process, order)))
        else:
            raise RemoteProtocolError(f"kind {form} of PDU, expected 0 to {_ACK}")
        if at != len(data):
            raise RemoteProtocolError(f"{len(data) - at} bytes behind the end of a PDU")
        return pdu

    # ------------------------------------------------------------------ DATA

    def _encode_data(self, pdu: Data) -> bytes:
        out = bytearray()
        former, self._own = self._own, pdu
        follows = (
            len(pdu.ack) > PLAIN_MEMBERS_MAX
            and self._own_full_in > 0
            and former is not None
            and _follows(former, pdu.epoch, pdu.tseq)
            and len(former.ack) == len(pdu.ack)
        )
        _write_kind(
            out, _DATA | (_POLL if pdu.poll else 0) | (_FOLLOWS if follows else 0), pdu.epoch
        )
        write_varint(out, pdu.tseq)
        out += encode_set(pdu.destinations)
        write_varint(out, pdu.buffers)
        if follows:
            assert former is not None
            self._own_full_in -= 1
            _write_changes(out, former.ack, pdu.ack)
        else:
            self._own_full_in = FULL_EVERY - 1
            _write_vector(out, pdu.pseq)
            _write_vector(out, pdu.ack)
        if pdu.destinations:
            write_varint(out, pdu.number)
            write_varint(out, pdu.stamp)
            out += pdu.payload
        return bytes(out)

    def _decode_data(
        self, source: ProcessId, data: bytes, kind: int, epoch: Epoch, at: int
    ) -> Data:
        tseq, at = _read(data, at)
        begin = at
        mask, at = _read(data, at)
        if mask & 1:
            mask, at = decode_set(data, begin, GROUP_SIZE_MAX)
        else:
            mask = Destinations(mask >> 1)
        buffers, at = _read(data, at)
        if kind & _FOLLOWS:
            former = self._last.get(source)
            if former is None or not _follows(former, epoch, tseq):
                raise HeaderLost(f"PDU {tseq} of {source} follows one that has not come")
            pseq = _next_pseq(former)
            ack, at = _read_changes(data, at, former.ack)
        else:
            pseq, at = _read_vector(data, at)
            ack, at = _read_vector(data, at)
        number, stamp = 0, 0
        if mask:
            number, at = _read(data, at)
            stamp, at = read_varint(data, at)
        elif at != len(data):
            raise RemoteProtocolError(f"{len(data) - at} bytes behind the end of a NULL")
        pdu = Data(
            epoch,
            tseq,
            mask,
            pseq,
            ack,
            buffers,
            bool(kind & _POLL),
            number,
            Instant(stamp),
            data[at:],
            at,
        )
        if len(ack) > PLAIN_MEMBERS_MAX:
            self._last[source] = pdu
        return pdu


def printed_bytes(members: int) -> int:
    """Size of a DATA's header with 4-byte numbers, in bytes."""
    return _PRINTED_REST + 2 * INTEGER_BYTES * members + (members + 7) // 8


def _follows(former: Data, epoch: Epoch, tseq: int) -> bool:
    return former.epoch == epoch and former.tseq + 1 == tseq


def _next_pseq(former: Data) -> Numbers:
    mask = former.destinations
    return tuple([number + (mask >> k & 1) for k, number in enumerate(former.pseq)])


def _write_kind(out: bytearray, kind: int, epoch: Epoch) -> None:
    out.append(kind)
    write_varint(out, epoch[0])
    write_varint(out, epoch[1])


# Written out for speed, here and below: every PDU has two vectors, of small numbers mostly.


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Do what `read_varint` does, sooner where the number is small."""
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        second = data[at + 1]
        if second < 0x80:
            return byte & 0x7F | second << 7, at + 2
    except IndexError:
        pass
    return read_varint(data, at)


def _write_vector(out: bytearray, numbers: Iterable[int]) -> None:
    numbers = tuple(numbers)
    write_varint(out, len(numbers))
    append = out.append
    for number in numbers:
        if number < 0x80:
            append(number)
        elif number < 0x4000:
            append(number & 0x7F | 0x80)
            append(number >> 7)
        else:
            write_varint(out, number)


def _read_vector(data: bytes, at: int) -> tuple[Numbers, int]:
    length, at = _read(data, at)
    if length > GROUP_SIZE_MAX:
        raise RemoteProtocolError(f"a vector of {length} numbers, at most {GROUP_SIZE_MAX}")
    numbers = []
    try:
        for _ in range(length):
            byte = data[at]
            if byte > 0x7F:
                second = data[at + 1]
                if second > 0x7F:
                    byte, at = read_varint(data, at)
                    at -= 1
                else:
                    byte = byte & 0x7F | second << 7
                    at += 1
            at += 1
            numbers.append(byte)
    except IndexError:
        raise RemoteProtocolError(
            f"a vector of {length} numbers runs past the end ({len(data)} bytes)"
        ) from None
    return tuple(numbers), at


def _write_ascending(out: bytearray, numbers: Numbers) -> None:
    write_varint(out, len(numbers))
    last = -1
    for number in numbers:
        write_varint(out, number - last - 1)
        last = number


def _read_ascending(data: bytes, at: int) -> tuple[Numbers, int]:
    length, at = read_varint(data, at)
    if length > min(LIST_MAX, len(data) - at):
        raise RemoteProtocolError(f"a list of {length} numbers in {len(data) - at} bytes")
    numbers, last = [], -1
    for _ in range(length):
        gap, at = read_varint(data, at)
        last += gap + 1
        numbers.append(last)
    return tuple(numbers), at


def _write_changes(out: bytearray, former: Numbers, numbers: Numbers) -> None:
    """Write which numbers have grown, and by how much."""
    changed = [
        (k, new - old)
        for k, (old, new) in enumerate(zip(former, numbers, strict=True))
        if new != old
    ]
    _write_ascending(out, tuple([k for k, _ in changed]))
    for _, growth in changed:
        write_varint(out, growth)


def _read_changes(data: bytes, at: int, former: Numbers) -> tuple[Numbers, int]:
    changed, at = _read_ascending(data, at)
    if changed and changed[-1] >= len(former):
        raise RemoteProtocolError(f"process {changed[-1]} among {len(former)}")
    numbers = list(former)
    for k in changed:
        growth, at = read_varint(data, at)
        numbers[k] += growth
    return tuple(numbers), at


def _process(value: int) -> ProcessId:
    if value >= GROUP_SIZE_MAX:
        raise RemoteProtocolError(f"process {value}, expected less than {GROUP_SIZE_MAX}")
    return ProcessId(value)


def _decode_rtx(data: bytes, epoch: Epoch, at: int) -> Rtx:
    tseq, at = read_varint(data, at)
    mask, at = decode_set(data, at, GROUP_SIZE_MAX)
    pseq, at = _read_vector(data, at)
    number, at = read_varint(data, at)
    stamp, at = read_varint(data, at)
    return Rtx(epoch, tseq, mask, pseq, number, Instant(stamp), data[at:], at)


def _decode_nak(data: bytes, epoch: Epoch, at: int) -> tuple[Nak, int]:
    count, at = read_varint(data, at)
    if count > GROUP_SIZE_MAX:
        raise RemoteProtocolError(f"a NAK about {count} sources, at most {GROUP_SIZE_MAX}")
    missing = []
    for _ in range(count):
        source, at = read_varint(data, at)
        numbers, at = _read_ascending(data, at)
        missing.append((_process(source), numbers))
    return Nak(epoch, tuple(missing)), at


# ---------------------------------------------------------------------- RST_PAK and RST_ACK


def _write_control(out: bytearray, kind: int, pdu: RstPak | RstAck) -> None:
    known = pdu.known
    _write_kind(out, kind | (_RECORD if known.record is not None else 0), pdu.epoch)
    out += encode_set(pdu.need)
    write_varint(out, len(known.has))
    for has in known.has:
        write_varint(out, has.preq)
        _write_ascending(out, has.holes)
        _write_ascending(out, has.held)
    _write_vector(out, known.pseq)
    write_varint(out, known.tseq)
    _write_vector(out, known.ack)
    write_varint(out, len(known.headers))
    for header in known.headers:
        write_varint(out, header.source)
        write_varint(out, header.tseq)
        out += encode_set(header.destinations)
        _write_vector(out, header.pseq)
    if known.record is not None:
        _write_record(out, known.record)


def _read_control(data: bytes, kind: int, at: int) -> tuple[Destinations, Known, int]:
    need, at = decode_set(data, at, GROUP_SIZE_MAX)
    count, at = read_varint(data, at)
    if count > GROUP_SIZE_MAX:
        raise RemoteProtocolError(f"what it has of {count} sources, at most {GROUP_SIZE_MAX}")
    has = []
    for _ in range(count):
        preq, at = read_varint(data, at)
        holes, at = _read_ascending(data, at)
        held, at = _read_ascending(data, at)
        has.append(Has(preq, holes, held))
    pseq, at = _read_vector(data, at)
    tseq, at = read_varint(data, at)
    ack, at = _read_vector(data, at)
    count, at = read_varint(data, at)
    if count > len(data) - at:
        raise RemoteProtocolError(f"{count} headers in {len(data) - at} bytes")
    headers = []
    for _ in range(count):
        source, at = read_varint(data, at)
        number, at = read_varint(data, at)
        mask, at = decode_set(data, at, GROUP_SIZE_MAX)
        numbers, at = _read_vector(data, at)
        headers.append(Header(_process(source), number, mask, numbers))
    record = None
    if kind & _RECORD:
        record, at = _read_record(data, at)
    return need, Known(tuple(has), pseq, tseq, ack, record, tuple(headers)), at


def _write_record(out: bytearray, record: Record) -> None:
    write_varint(out, record.epoch[0])
    write_varint(out, record.epoch[1])
    for lines in (record.lines, record.departed):
        write_varint(out, len(lines))
        for source, line in lines:
            write_varint(out, source)
            write_varint(out, line)
    write_varint(out, len(record.sent))
    for source, tseq, pseq in record.sent:
        write_varint(out, source)
        write_varint(out, tseq)
        _write_vector(out, pseq)
    _write_vector(out, record.order)


def _read_record(data: bytes, at: int) -> tuple[Record, int]:
    view, at = read_varint(data, at)
    recovery, at = read_varint(data, at)
    lines, at = _read_lines(data, at)
    departed, at = _read_lines(data, at)
    count, at = read_varint(data, at)
    if count > GROUP_SIZE_MAX:
        raise RemoteProtocolError(f"a record of {count} members, at most {GROUP_SIZE_MAX}")
    sent = []
    for _ in range(count):
        source, at = read_varint(data, at)
        tseq, at = read_varint(data, at)
        pseq, at = _read_vector(data, at)
        sent.append((_process(source), tseq, pseq))
    order, at = _read_vector(data, at)
    return Record((view, recovery), lines, departed, tuple(sent), tuple(map(_process, order))), at


def _read_lines(data: bytes, at: int) -> tuple[tuple[tuple[ProcessId, int], ...], int]:
    count, at = read_varint(data, at)
    if count > GROUP_SIZE_MAX:
        raise RemoteProtocolError(f"{count} lines, at most {GROUP_SIZE_MAX}")
    lines = []
    for _ in range(count):
        source, at = read_varint(data, at)
        line, at = read_varint(data, at)
        lines.append((_process(source), line))
    return tuple(lines), at
