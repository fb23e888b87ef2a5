"""The messages of FDP/1, and their form on the wire: MessagePack arrays with a small tag.

Long lists of participants are deflated behind a byte that begins no MessagePack: a header of
anti-entropy takes 22 bytes of 41 then, address and all. [FDP/1 R15]

`to` names the destination id: an address may have passed to another participant. [FDP/1 R5]
`frm` is the id of the process that sent this copy, `row` describes the source of a broadcast.
"""

import zlib
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from orderwire.kernel import NS_PER_MS, RemoteProtocolError, parsed, probe

COUNT_MAX = (1 << 63) - 1
HOPS_MAX = 1 << 16
"""A copy that came so far is not relayed."""

Id = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Hops = Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=255)]
"""An address or a guid."""
Direction = Annotated[int, msgspec.Meta(ge=-1, le=1)]

MESSAGE_BYTES_MAX = 16 << 20
"""Longest encoded message that is taken from a peer."""
PATTERNS_MAX = 1_024
"""Most patterns of one participant's or domain's readers."""


class Status(IntEnum):
    """What is known of an incarnation."""

    LIVE = 0
    LEFT = 1
    """Final for this incarnation."""
    EXPIRED = 2
    """No evidence for too long, as this participant sees it; never taken from another."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Header of one participant's entry. [FDP/1 R15]"""

    id: Id
    inc: Count
    """Incarnation, totally ordered over all participants."""
    ver: Count
    """Version of its MAP."""
    hb: Count
    """Heartbeat counter; only the owner increases it."""
    age_ms: Count
    """Age of the newest evidence, rounded up."""
    addr: Text
    status: Status = Status.LIVE
    has_map: bool = False
    """The sender of this row holds that MAP."""


class Contact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A participant whose MAP has not been seen."""

    id: Id
    addr: Text
    inc: Count


class MapRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One participant's MAP: a full one and the changes since, as bytes that only users read."""

    ver: Count
    """Version after the changes."""
    full: bytes
    deltas: tuple[bytes, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What it takes on the wire, without the framing."""
        size = len(self.full)
        return size + sum(map(len, self.deltas)) if self.deltas else size

    def with_delta(self, ver: int, delta: bytes) -> "MapRecord":
        """Return the MAP with one more change."""
        return MapRecord(ver, self.full, (*self.deltas, delta))


class Carried(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A MAP with its header."""

    row: Row
    map: MapRecord


class DeltaChain(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Changes from a version that the receiver holds to a newer one."""

    row: Row
    base: Count
    deltas: tuple[bytes, ...]


class Have(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A MAP that the sender of this holds. [S002:sec.4, the discovery bitmap, with versions]"""

    id: Id
    inc: Count
    ver: Count


# -- with the bootstrap server ----------------------------------------------------------------


class RequestId(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Participant → server.  The same guid gets the same id again. [FDP/1 R1]"""

    guid: Text
    addr: Text
    lost_inc: Count = 0
    """The id of this incarnation is lost: give another."""
    wish: Id | None = None
    """The id that the participant would like; scenarios fix ids by it."""


class IdReply(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Server → participant: an id, and all that are assigned, in the order of issue. [R2]"""

    guid: Text
    id: Id
    inc: Count
    id_space: Id
    """Ids are 0 … id_space-1; 0 stands for 2⁶⁴."""
    members: tuple[Contact, ...]


class Full(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Server → participant: no id now; try again later."""

    guid: Text
    retry_ms: Count
    recovering: bool = False
    """The server has lost its table and learns who is there."""
    limit: Count = 0
    """So many participants hold an id, and there are no more; 0 while it recovers."""


class Renew(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Participant → server: I still hold this id. [R16]"""

    id: Id
    guid: Text
    inc: Count
    addr: Text


class RenewOk(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """Server → participant: and these are the holders I know."""

    id: Id
    inc: Count
    members: tuple[Contact, ...]


class RenewNo(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """Server → participant: that id belongs to another."""

    id: Id
    inc: Count


class Release(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """Participant → server: the id is free."""

    id: Id
    guid: Text
    inc: Count


# -- without a server -------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """Newcomer → seed: I would take this id. [spec 5]"""

    id: Id
    inc: Count
    addr: Text


class Members(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """Participant → newcomer: welcome; these are the ones I know."""

    id: Id
    """The newcomer's."""
    inc: Count
    members: tuple[Contact, ...]


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """Participant → newcomer: that id is another's."""

    id: Id
    inc: Count


# -- between participants ---------------------------------------------------------------------


class Join(msgspec.Struct, frozen=True, array_like=True, tag=16, gc=False):
    """Broadcast of a newcomer, with its MAP. [S002:fig.7, R6]"""

    to: Id
    frm: Id
    row: Row
    seq: Count
    hop: Hops
    hi: Id
    direction: Direction
    first: bool
    """The nearest target in this direction: it reports the gap before itself too. [R8]"""
    map: MapRecord
    have: tuple[Have, ...]
    members: tuple[Contact, ...]
    """All that the sender of this copy knows in the range."""


class JoinAck(msgspec.Struct, frozen=True, array_like=True, tag=17, gc=False):
    """Answer to a JOIN, to the process it came from; after one hop with MAPs. [S002:fig.6, R8]"""

    to: Id
    frm: Id
    src: Id
    inc: Count
    seq: Count
    direction: Direction
    maps: tuple[Carried, ...] | None


class Update(msgspec.Struct, frozen=True, array_like=True, tag=18, gc=False):
    """Broadcast of a change of one's MAP. [S002:fig.8, R12]"""

    to: Id
    frm: Id
    row: Row
    seq: Count
    hop: Hops
    hi: Id
    direction: Direction
    base: Count
    delta: bytes


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=19, gc=False):
    """Broadcast: I am alive. [R12]"""

    to: Id
    frm: Id
    row: Row
    seq: Count
    hop: Hops
    hi: Id
    direction: Direction


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=20, gc=False):
    """Broadcast: this incarnation ends. [S002:fig.9, R17]"""

    to: Id
    frm: Id
    row: Row
    seq: Count
    hop: Hops
    hi: Id
    direction: Direction


class LeaveAck(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    """Answer to a LEAVE, to the process it came from."""

    to: Id
    frm: Id
    src: Id
    inc: Count
    seq: Count
    direction: Direction


class Pull(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    """Send me these MAPs; `have` says what I hold of them, version 0 is nothing."""

    to: Id
    frm: Id
    have: tuple[Have, ...]


class Maps(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """MAPs that were asked for, each whole or as the changes since the version held."""

    to: Id
    frm: Id
    maps: tuple[Carried, ...]
    chains: tuple[DeltaChain, ...] = ()


class Sync(msgspec.Struct, frozen=True, array_like=True, tag=24, gc=False):
    """Anti-entropy: all headers that I know. [R15]"""

    to: Id | None
    """None: whoever listens there, when its id is not known."""
    frm: Id
    rows: tuple[Row, ...]


class SyncReply(msgspec.Struct, frozen=True, array_like=True, tag=25, gc=False):
    """What I know better, and the MAPs that I lack."""

    to: Id
    frm: Id
    rows: tuple[Row, ...]
    want: tuple[Have, ...]


class NotMe(msgspec.Struct, frozen=True, array_like=True, tag=26, gc=False):
    """The id that you named is not the one that listens here. [R5]"""

    asked: Id
    id: Id


# -- details on demand, when MAPs are summaries ------------------------------------------------


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=27, gc=False):
    """Tell me your endpoints that I may match.  [spec 5: interest-only delivery]"""

    to: Id
    inc: Count
    """The receiver's."""
    frm: Id
    number: Count
    hashes: bytes
    """Of kinds and topics, four bytes each, ascending."""
    patterns: Annotated[tuple[Text, ...], msgspec.Meta(max_length=PATTERNS_MAX)]
    """And your writers to topics that these mean."""


class Detail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A participant's data and those of its endpoints that were asked for."""

    id: Id
    inc: Count
    ver: Count
    """Version of its MAP."""
    age_ms: Count
    """Age of the newest evidence of it."""
    map: bytes


class Details(msgspec.Struct, frozen=True, array_like=True, tag=28, gc=False):
    """Answer to an ASK: of oneself, or, from a gateway, of its domain."""

    to: Id
    frm: Id
    inc: Count
    """The sender's."""
    number: Count
    """Of the ASK."""
    ver: Count
    """Version of the summary that this belongs to."""
    entries: tuple[Detail, ...]


Broadcast: TypeAlias = Join | Update | Heartbeat | Leave
Addressed: TypeAlias = Broadcast | JoinAck | LeaveAck | Pull | Maps | Sync | SyncReply
FromServer: TypeAlias = IdReply | Full | RenewOk | RenewNo
ToServer: TypeAlias = RequestId | Renew | Release
OfSeeds: TypeAlias = Hello | Members | Taken
OnDemand: TypeAlias = Ask | Details
Message: TypeAlias = Addressed | NotMe | FromServer | ToServer | OfSeeds | OnDemand

HEAD_BYTES = 48
ROW_BYTES = 24
CONTACT_BYTES = 24


_AddressedT = TypeVar("_AddressedT", bound=Addressed)


def held(message: _AddressedT, held_ns: int) -> _AddressedT:
    """Return a message that was kept for so long: the evidence in it is older by that. [D11]"""
    by_ms = -(-held_ns // NS_PER_MS)
    if not by_ms:
        return message
    if isinstance(message, Broadcast):
        return replace(message, row=_older(message.row, by_ms))
    if isinstance(message, Sync | SyncReply):
        return replace(message, rows=tuple(_older(row, by_ms) for row in message.rows))
    if isinstance(message, JoinAck | Maps):
        carried = tuple(replace(each, row=_older(each.row, by_ms)) for each in message.maps or ())
        message = replace(message, maps=None if message.maps is None else carried)
    if isinstance(message, Maps):
        chains = tuple(replace(each, row=_older(each.row, by_ms)) for each in message.chains)
        message = replace(message, chains=chains)
    return message


def _older(row: Row, by_ms: int) -> Row:
    return replace(row, age_ms=row.age_ms + by_ms)


def nominal_bytes(message: Message) -> int:
    """Return about how long the message is on the wire, without encoding it."""
    if isinstance(message, Join):
        several = len(message.members) * CONTACT_BYTES + len(message.have) * ROW_BYTES
        return HEAD_BYTES + ROW_BYTES + message.map.size_bytes + several
    if isinstance(message, JoinAck):
        return HEAD_BYTES + (_carried_bytes(message.maps) if message.maps else 0)
    if isinstance(message, Maps):
        chains = sum(ROW_BYTES + sum(map(len, each.deltas)) for each in message.chains)
        return HEAD_BYTES + _carried_bytes(message.maps) + chains
    if isinstance(message, Update):
        return HEAD_BYTES + ROW_BYTES + len(message.delta)
    if isinstance(message, Heartbeat | Leave):
        return HEAD_BYTES + ROW_BYTES
    if isinstance(message, Sync):
        return HEAD_BYTES + ROW_BYTES * len(message.rows)
    if isinstance(message, SyncReply):
        return HEAD_BYTES + ROW_BYTES * (len(message.rows) + len(message.want))
    if isinstance(message, Pull):
        return HEAD_BYTES + ROW_BYTES * len(message.have)
    if isinstance(message, IdReply | RenewOk | Members):
        return HEAD_BYTES + CONTACT_BYTES * len(message.members)
    if isinstance(message, Ask):
        return HEAD_BYTES + len(message.hashes) + sum(map(len, message.patterns))
    if isinstance(message, Details):
        return HEAD_BYTES + sum(ROW_BYTES + len(each.map) for each in message.entries)
    return HEAD_BYTES


def _carried_bytes(maps: tuple[Carried, ...]) -> int:
    return sum([ROW_BYTES + each.map.size_bytes for each in maps])


LISTED_BYTES = 52
"""What a header or a contact takes on the wire beside its address, at most."""
LISTED_LONGEST_BYTES = LISTED_BYTES + 4 * 255

_ListedT = TypeVar("_ListedT", Row, Contact)


def listed_bytes(each: Row | Contact) -> int:
    """Return what it takes on the wire, at most."""
    addr = each.addr
    return LISTED_BYTES + (len(addr) if addr.isascii() else 4 * len(addr))


def fitting(listed: Sequence[_ListedT], room_bytes: int) -> tuple[_ListedT, ...]:
    """Return the first of these that surely take no more room on the wire."""
    if len(listed) * LISTED_LONGEST_BYTES > room_bytes:
        for at, each in enumerate(listed):
            room_bytes -= listed_bytes(each)
            if room_bytes < 0:
                probe("fdp: list cut")
                return tuple(listed[:at])
    return tuple(listed)


_Lists: TypeAlias = Sync | SyncReply | IdReply | RenewOk | Members
DEFLATED = b"\xc1"
"""Leads what is deflated: MessagePack never uses it."""
DEFLATED_FROM_BYTES = 512
INFLATED_TIMES_MAX = 64
"""So many times as long as on the wire may a message be: who sends little is not to cost much."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return the message's bytes."""
    plain = _encoder.encode(message)
    if len(plain) < DEFLATED_FROM_BYTES or not isinstance(message, _Lists):
        return plain
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = DEFLATED + packer.compress(plain) + packer.flush()
    pays = len(packed) < len(plain) <= INFLATED_TIMES_MAX * len(packed)
    return packed if pays else plain


def _inflated(data: memoryview) -> bytes:
    unpacker = zlib.decompressobj(-15)
    try:
        plain = unpacker.decompress(
            data[1:], min(MESSAGE_BYTES_MAX, INFLATED_TIMES_MAX * len(data))
        )
    except zlib.error as error:
        raise RemoteProtocolError(f"no discovery message: {error}") from None
    if not unpacker.eof or unpacker.unused_data:
        raise RemoteProtocolError(
            f"a deflated message of {len(data)} bytes that is cut off, longer than it says, or"
            f" more than {INFLATED_TIMES_MAX} times as long when inflated"
        )
    return plain


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Parse one message.  Raises RemoteProtocolError when a correct peer would not send it."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a discovery message of {len(data)} bytes; at most {MESSAGE_BYTES_MAX} are taken"
        )
    if data[:1] == DEFLATED:
        data = _inflated(memoryview(data))
    return parsed(_decoder.decode, data, "no discovery message")
