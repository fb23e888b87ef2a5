"""MAPs as compact bytes: a dictionary of topics, types and QoS per MAP, columns, then deflate.

Endpoints of one participant resemble each other.  Topic names are written once, and of their levels
between slashes each distinct one once; type, QoS and kind of an endpoint are one small number.
A MAP of hundreds of endpoints takes about 7 bytes for each; the RTPS parameter list takes 224.
[S002 spec 5]

A form byte leads: the version in the high half, in the low half what was shorter, plain MessagePack
or raw deflate with a preset dictionary.  Decoding is total: what `encode` does not write is refused
with a RemoteProtocolError, and no input costs more memory than the named limits allow.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Annotated, TypeVar

import msgspec

from orderwire.discovery.maps import (
    ENDPOINTS_MAX,
    FOREIGN_MAX,
    KEY_MAX,
    TEXT_MAX,
    EndpointData,
    EndpointKind,
    ForeignData,
    Map,
    MapDelta,
    Pairs,
    ParticipantData,
    applied,
    difference,
)
from orderwire.discovery.messages import Count, Id, MapRecord, Text
from orderwire.discovery.settings import DELTAS_MAX
from orderwire.kernel import LocalProtocolError, RemoteProtocolError, parsed

VERSION = 1
_PLAIN = VERSION << 4
_DEFLATED = VERSION << 4 | 1

DECODED_BYTES_MAX = 8 << 20
"""Longest MAP after inflation; the foreign entries of a gateway count as they are encoded."""
PARTS_MAX = 1 << 19
"""Most levels in the topics of one MAP together."""
DEPTH_MAX = 32
"""Most levels that one topic is cut into; the last may hold more."""
FLAT_SEPARATORS = "_.:-"
"""What names without slashes may be cut at."""

_PRESET = (
    b"gatewaywillingdurabilityVOLATILETRANSIENT_LOCALhistoryKEEP_ALLKEEP_LASTdepthreliability"
    b"BEST_EFFORTRELIABLElivelinessAUTOMATICdeadlinelifespanownershipSHAREDpartition"
    b"rosoutparameter_eventsdescribe_parametersget_parameter_typeslist_parametersset_parameters"
    b"RequestReplycmd_velodomposegoalfeedbackstatusresultcommandstatepointsscanimage_rawcamera_info"
    b"tf_statictfjoint_statesdiagnosticsdiagnostic_msgs::msg::dds_::DiagnosticArray_"
    b"rcl_interfaces::srv::dds_::action_msgs::srv::dds_::nav_msgs::msg::dds_::Path_Odometry_"
    b"tf2_msgs::msg::dds_::TFMessage_builtin_interfaces::msg::dds_::Time_"
    b"std_msgs::msg::dds_::Header_Float64_Int32_Bool_String_"
    b"geometry_msgs::msg::dds_::PoseStamped_Twist_"
    b"sensor_msgs::msg::dds_::CameraInfo_PointCloud2_LaserScan_JointState_Imu_Image_"
    b"tcp://udp://127.0.0.1:7400192.168.10.0.0.bytestextjsondatacontroldomain"
    b"adelstein-singhal(kshemkalyani-singhal(rodrigues-deadline(raynal-schiper-toueg("
    b"jang-delta(fifo(unordered(lifetime_ns=None,epsilon_ns=0)"
    b"order\xd9\x34bounded-jang(lifetime_ns=250000000,epsilon_ns=1000000)"
)
"""What MAPs are likely to hold, the likeliest last.  Part of the form: it changes with VERSION."""
CHANGES_MAX = 2 * DELTAS_MAX
"""Most changes behind a full MAP that are taken; holders make it whole before that."""


class _Table(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Endpoints by ascending key, as columns."""

    separator: Annotated[str, msgspec.Meta(min_length=1, max_length=1)]
    """What stands between the levels of a topic."""
    levels: Annotated[list[Text], msgspec.Meta(max_length=PARTS_MAX)]
    depths: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=DEPTH_MAX)]],
        msgspec.Meta(max_length=ENDPOINTS_MAX),
    ]
    """Of every topic, how many levels it has …"""
    parts: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, lt=PARTS_MAX)]], msgspec.Meta(max_length=PARTS_MAX)
    ]
    """… and of all topics, one after the other, which."""
    types: Annotated[list[Text], msgspec.Meta(max_length=ENDPOINTS_MAX)]
    qos: Annotated[list[Pairs], msgspec.Meta(max_length=ENDPOINTS_MAX)]
    sorts: Annotated[list[tuple[EndpointKind, int, int]], msgspec.Meta(max_length=ENDPOINTS_MAX)]
    """Kind, type and QoS that go together."""
    key_steps: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=KEY_MAX + 1)]],
        msgspec.Meta(max_length=ENDPOINTS_MAX),
    ]
    """From -1, one for every endpoint."""
    topic_refs: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=ENDPOINTS_MAX)]],
        msgspec.Meta(max_length=ENDPOINTS_MAX),
    ]
    """0 is the next topic, k one of those before, the k-th from the last."""
    sort_refs: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, lt=ENDPOINTS_MAX)]],
        msgspec.Meta(max_length=ENDPOINTS_MAX),
    ]


_ForeignList = Annotated[tuple[ForeignData, ...], msgspec.Meta(max_length=FOREIGN_MAX)]
_KeySteps = Annotated[
    list[Annotated[int, msgspec.Meta(ge=1, le=KEY_MAX + 1)]],
    msgspec.Meta(max_length=ENDPOINTS_MAX),
]


class _MapBody(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    participant: ParticipantData
    table: _Table
    foreign: _ForeignList
    own_ver: Count


class _MapHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A `_MapBody` of which only the participant is made."""

    participant: ParticipantData
    table: msgspec.Raw
    foreign: msgspec.Raw
    own_ver: msgspec.Raw


class _DeltaBody(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    participant: ParticipantData | None
    removed: _KeySteps
    table: _Table | None
    """Endpoints that are new or changed."""
    changed: _KeySteps
    """Which of them are changed."""
    foreign: _ForeignList
    foreign_removed: Annotated[tuple[tuple[Text, Id], ...], msgspec.Meta(max_length=FOREIGN_MAX)]
    own_ver: Count


_Body = TypeVar("_Body", _MapBody, _MapHead, _DeltaBody)
_encode = msgspec.msgpack.Encoder().encode
_map_decoder = msgspec.msgpack.Decoder(_MapBody)
_head_decoder = msgspec.msgpack.Decoder(_MapHead)
_delta_decoder = msgspec.msgpack.Decoder(_DeltaBody)


# -- whole MAPs -------------------------------------------------------------------------------


def encode_map(whole: Map) -> bytes:
    """Return the MAP's bytes.  Raises LocalProtocolError when it is too large to be sent."""
    return _pack(
        _MapBody(whole.participant, _table_of(whole.endpoints), whole.foreign, whole.own_ver)
    )


def decode_map(data: bytes) -> Map:
    """Return the MAP.  Raises RemoteProtocolError."""
    body = _unpack(data, _map_decoder)
    _check_foreign(body.foreign)
    return Map(body.participant, tuple(_rows(body.table)), body.foreign, body.own_ver)


def decode_participant(data: bytes) -> ParticipantData:
    """Return the participant of a full MAP, without its endpoints.

    Raises RemoteProtocolError, but does not check what it skips.
    """
    return _unpack(data, _head_decoder).participant


# -- changes ----------------------------------------------------------------------------------


def encode_delta(delta: MapDelta) -> bytes:
    """Return the change's bytes."""
    rows = sorted((*delta.added, *delta.changed), key=lambda each: each.key)
    return _pack(
        _DeltaBody(
            delta.participant,
            _steps(sorted(delta.removed)),
            _table_of(rows) if rows else None,
            _steps(sorted(each.key for each in delta.changed)),
            delta.foreign,
            delta.foreign_removed,
            delta.own_ver,
        )
    )


def decode_delta(data: bytes) -> MapDelta:
    """Return the change.  Raises RemoteProtocolError."""
    body = _unpack(data, _delta_decoder)
    _check_foreign(body.foreign)
    rows = {} if body.table is None else {row.key: row for row in _rows(body.table)}
    changed = []
    for key in _keys(body.changed):
        if key not in rows:
            raise RemoteProtocolError(f"a change of endpoint {key} does not say what it is")
        changed.append(rows.pop(key))
    return MapDelta(
        participant=body.participant,
        added=tuple(rows.values()),
        removed=tuple(_keys(body.removed)),
        changed=tuple(changed),
        foreign=body.foreign,
        foreign_removed=body.foreign_removed,
        own_ver=body.own_ver,
    )


# -- records ----------------------------------------------------------------------------------


def decode(record: MapRecord) -> Map:
    """Return the MAP with its changes.  Raises RemoteProtocolError."""
    whole = decode_map(record.full)
    for delta in _changes(record):
        whole = applied(whole, delta)
    return whole


def partial(
    record: MapRecord,
    wanted: Callable[[str], bool],
    possible: Callable[[str, list[str]], bool] = lambda separator, levels: True,
) -> Map:
    """Return the MAP with those of its endpoints whose topic is wanted, without making the others.

    Asks once per topic, and first whether a topic of these levels can be wanted at all: it saves
    making topics.  Raises RemoteProtocolError, but does not check what it skips.
    """
    body = _unpack(record.full, _map_decoder)
    _check_foreign(body.foreign)
    found = {}
    if possible(body.table.separator, body.table.levels):
        found = {row.key: row for row in _rows(body.table, wanted)}
    participant, foreign, own_ver = body.participant, body.foreign, body.own_ver
    for delta in _changes(record):
        for key in delta.removed:
            found.pop(key, None)
        for row in (*delta.changed, *delta.added):
            found.pop(row.key, None)
            if wanted(row.topic):
                found[row.key] = row
        step = MapDelta(
            delta.participant,
            foreign=delta.foreign,
            foreign_removed=delta.foreign_removed,
            own_ver=delta.own_ver,
        )
        rest = applied(Map(participant, (), foreign, own_ver), step)
        participant, foreign, own_ver = rest.participant, rest.foreign, rest.own_ver
    return Map(participant, tuple(found[key] for key in sorted(found)), foreign, own_ver)


def lookup(record: MapRecord, wanted: Callable[[str], bool]) -> list[EndpointData]:
    """Return the endpoints whose topic is wanted: those of `partial`."""
    return list(partial(record, wanted).endpoints)


def _changes(record: MapRecord) -> Iterator[MapDelta]:
    if len(record.deltas) > CHANGES_MAX:
        raise RemoteProtocolError(
            f"{len(record.deltas)} changes behind a MAP; at most {CHANGES_MAX}"
        )
    return map(decode_delta, record.deltas)


class CompactMaps:
    """What the discovery core asks of MAPs: `commands.MapForm`."""

    def difference(self, old: bytes, new: bytes) -> bytes:
        """Return the change between two MAPs of one's own."""
        return encode_delta(difference(decode_map(old), decode_map(new)))

    def shortened(self, record: MapRecord) -> MapRecord:
        """Return the MAP without changes behind it; what is no MAP, or too long, is empty then."""
        try:
            return MapRecord(record.ver, encode_map(decode(record)))
        except (LocalProtocolError, RemoteProtocolError):  # Its readers are told; it must not grow.
            return MapRecord(record.ver, b"")


# -- the outer form ---------------------------------------------------------------------------


def _pack(body: msgspec.Struct) -> bytes:
    plain = _encode(body)
    if len(plain) > DECODED_BYTES_MAX:
        raise LocalProtocolError(
            f"a MAP of {len(plain)} bytes before compression; at most {DECODED_BYTES_MAX}"
        )
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, _PRESET)
    deflated = packer.compress(plain) + packer.flush()
    if len(deflated) < len(plain):
        return bytes((_DEFLATED,)) + deflated
    return bytes((_PLAIN,)) + plain


def _unpack(data: bytes, decoder: msgspec.msgpack.Decoder[_Body]) -> _Body:
    return parsed(decoder.decode, plain_form(data), "no MAP")


def plain_form(data: bytes) -> bytes:
    """Return the MessagePack of a MAP or a change of one.  Raises RemoteProtocolError."""
    form = data[0] if data else None
    if form == _DEFLATED:
        return _inflate(memoryview(data)[1:])
    if form == _PLAIN and len(data) <= DECODED_BYTES_MAX:
        return data[1:]
    raise RemoteProtocolError(f"a MAP of {len(data)} bytes in form {form}")


def _inflate(data: memoryview) -> bytes:
    unpacker = zlib.decompressobj(-15, _PRESET)
    try:
        plain = unpacker.decompress(data, DECODED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"no MAP: {error}") from None
    if not unpacker.eof:
        raise RemoteProtocolError(
            f"a MAP that is cut off, or longer than {DECODED_BYTES_MAX} bytes when inflated"
        )
    if unpacker.unused_data:
        raise RemoteProtocolError(f"{len(unpacker.unused_data)} bytes behind a MAP")
    return plain


# -- columns ----------------------------------------------------------------------------------


def _steps(keys: Iterable[int]) -> list[int]:
    steps, before = [], -1
    for key in keys:
        steps.append(key - before)
        before = key
    return steps


def _keys(steps: list[int]) -> Iterator[int]:
    return islice(accumulate(steps, initial=-1), 1, None)


def _separator(rows: Sequence[EndpointData]) -> str:
    """Return what topics are best cut at: slashes, unless most have none."""
    if 2 * sum("/" in row.topic for row in rows) >= len(rows):
        return "/"
    text = "".join([row.topic for row in rows])
    return max(FLAT_SEPARATORS, key=text.count)


def _table_of(rows: Sequence[EndpointData]) -> _Table:
    separator = _separator(rows)
    levels: dict[str, int] = {}
    depths: list[int] = []
    parts: list[int] = []
    topics: dict[str, int] = {}
    types: dict[str, int] = {}
    qos: dict[Pairs, int] = {}
    sorts: dict[tuple[EndpointKind, int, int], int] = {}
    keys: list[int] = []
    topic_refs: list[int] = []
    sort_refs: list[int] = []
    for row in rows:
        known = topics.get(row.topic)
        if known is None:
            topic_refs.append(0)
            topics[row.topic] = len(topics)
            split = row.topic.split(separator, DEPTH_MAX - 1)
            depths.append(len(split))
            parts += [levels.setdefault(level, len(levels)) for level in split]
        else:
            topic_refs.append(len(topics) - known)
        sort = (
            row.kind,
            types.setdefault(row.type, len(types)),
            qos.setdefault(row.qos, len(qos)),
        )
        sort_refs.append(sorts.setdefault(sort, len(sorts)))
        keys.append(row.key)
    return _Table(
        separator, list(levels), depths, parts, list(types), list(qos), list(sorts), _steps(keys),
        topic_refs, sort_refs,
    )  # fmt: skip


def _topics(table: _Table) -> Iterator[str]:
    """Yield the topics.  Raises RemoteProtocolError."""
    levels, parts = table.levels, table.parts
    if sum(table.depths) != len(parts) or (parts and max(parts) >= len(levels)):
        raise RemoteProtocolError("topics of a MAP whose levels are not there")
    end = 0
    for depth in table.depths:
        start, end = end, end + depth
        topic = table.separator.join([levels[part] for part in parts[start:end]])
        if len(topic) > TEXT_MAX:
            raise RemoteProtocolError(f"a topic of {len(topic)} characters; at most {TEXT_MAX}")
        yield topic


def _rows(table: _Table, wanted: Callable[[str], bool] | None = None) -> Iterator[EndpointData]:
    """Yield the endpoints, of all topics or of those wanted.  Raises RemoteProtocolError."""
    count = len(table.key_steps)
    if not count == len(table.topic_refs) == len(table.sort_refs):
        raise RemoteProtocolError(
            f"{count} keys, {len(table.topic_refs)} topics and {len(table.sort_refs)} sorts of"
            " endpoints in a MAP"
        )
    topics = list(_topics(table))
    asked = [True] * len(topics) if wanted is None else [wanted(topic) for topic in topics]
    if wanted is not None and not any(asked):
        return
    sorts = []
    for kind, type_ref, qos_ref in table.sorts:
        if not (0 <= type_ref < len(table.types) and 0 <= qos_ref < len(table.qos)):
            raise RemoteProtocolError("type or QoS of a MAP that is not there")
        sorts.append((kind, table.types[type_ref], table.qos[qos_ref]))
    if table.sort_refs and max(table.sort_refs) >= len(sorts):
        raise RemoteProtocolError("a sort of endpoints of a MAP that is not there")
    used, key = 0, -1
    for step, topic_ref, sort_ref in zip(
        table.key_steps, table.topic_refs, table.sort_refs, strict=True
    ):
        key += step
        used += topic_ref == 0
        at = used - topic_ref if topic_ref else used - 1
        if not 0 <= at < len(topics) or key > KEY_MAX:
            raise RemoteProtocolError(f"endpoint {key} of a MAP has a topic that is not there")
        if asked[at]:
            kind, type_, qos = sorts[sort_ref]
            yield EndpointData(key, kind, topics[at], type_, qos)
    if used != len(topics):
        raise RemoteProtocolError(f"{len(topics)} topics in a MAP, {used} of them are used")


def _check_foreign(entries: tuple[ForeignData, ...]) -> None:
    origins = [entry.origin for entry in entries]
    if any(a >= b for a, b in pairwise(origins)):
        raise RemoteProtocolError("foreign entries of a MAP out of order")
