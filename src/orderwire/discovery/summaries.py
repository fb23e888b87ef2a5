"""Summaries of MAPs: version, count, and 32-bit hashes of the topics and kinds of all endpoints.

In large systems, and between domains, a summary is carried in place of the MAP; who may match
something asks for the details.  Hashes have no false-positive rate to tune as Bloom filters do; at
4 bytes for each topic they are what matters in a summary.  [S002 spec 5]
Readers' patterns have no hash that a writer could know: they are carried as they are.
"""

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias

import msgspec

from orderwire.discovery.map_codec import CHANGES_MAX
from orderwire.discovery.maps import EndpointData, EndpointKind, ParticipantData
from orderwire.discovery.messages import PATTERNS_MAX, Count, MapRecord, Text
from orderwire.kernel import LocalProtocolError, RemoteProtocolError, parsed

HASHES_MAX = 1 << 20
"""Most topics in one summary."""
HASH_BYTES = 4
PATTERN_MARK = "*"
"""A reader's topic that holds it is a pattern, which may mean many topics."""

Matches: TypeAlias = Callable[[str, str], bool]
"""Whether a reader's topic or pattern (first) means a writer's topic (second)."""
Patterns: TypeAlias = Annotated[tuple[Text, ...], msgspec.Meta(max_length=PATTERNS_MAX)]


def same_topic(reader: str, writer: str) -> bool:
    """Match without patterns."""
    return reader == writer


def topic_hash(kind: EndpointKind, topic: str) -> int:
    """Return what stands for endpoints of this kind and topic: a CRC-32 over both.

    The kind is a byte in front; as the start value it would cancel out against the first letter.
    """
    return zlib.crc32(bytes((kind,)) + topic.encode())


def pack_hashes(hashes: Iterable[int]) -> bytes:
    """Return the hashes ascending, four bytes each."""
    ordered = sorted(hashes)
    return struct.pack(f">{len(ordered)}I", *ordered)


def unpack_hashes(data: bytes) -> tuple[int, ...]:
    """Return the hashes.  Raises RemoteProtocolError unless they ascend."""
    count, rest = divmod(len(data), HASH_BYTES)
    if rest or count > HASHES_MAX:
        raise RemoteProtocolError(
            f"{len(data)} bytes of hashes; expected at most {HASHES_MAX} of {HASH_BYTES}"
        )
    hashes = struct.unpack(f">{count}I", data)
    if any(map(int.__ge__, hashes, hashes[1:])):
        raise RemoteProtocolError(f"{count} hashes that do not ascend")
    return hashes


class Summary(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """What a participant, or with `domain` a whole domain, tells everybody."""

    ver: Count
    """Grows with every change of what is summarised."""
    endpoints: Count
    hashes: bytes
    """Packed."""
    patterns: Patterns = ()
    """Those of the readers, ascending; each has a hash, too."""
    domain: Text = ""
    participant: ParticipantData | None = None
    """Whose it is, unless it is a domain's."""


class SummaryDelta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """What makes a newer summary of an older one."""

    ver: Count
    endpoints: Count
    added: bytes = b""
    removed: bytes = b""
    patterns: Patterns | None = None
    participant: ParticipantData | None = None


_encode = msgspec.msgpack.Encoder().encode
_summary_decoder = msgspec.msgpack.Decoder(Summary)
_delta_decoder = msgspec.msgpack.Decoder(SummaryDelta)


def summary_of(
    ver: int,
    endpoints: Iterable[EndpointData],
    *,
    participant: ParticipantData | None = None,
    domain: str = "",
) -> Summary:
    """Summarise these endpoints.  Raises LocalProtocolError when there are too many topics."""
    every = list(endpoints)
    topics = {(each.kind, each.topic) for each in every}
    hashes = {topic_hash(kind, topic) for kind, topic in topics}
    patterns = tuple(sorted(topic for kind, topic in topics if is_pattern(kind, topic)))
    if len(hashes) > HASHES_MAX or len(patterns) > PATTERNS_MAX:
        raise LocalProtocolError(
            f"{len(hashes)} topics and {len(patterns)} patterns; a summary has at most"
            f" {HASHES_MAX} and {PATTERNS_MAX}"
        )
    return Summary(ver, len(every), pack_hashes(hashes), patterns, domain, participant)


def is_pattern(kind: EndpointKind, topic: str) -> bool:
    """Whether endpoints of this kind and topic match more than one topic."""
    return kind is EndpointKind.READER and PATTERN_MARK in topic


def encode_summary(summary: Summary) -> bytes:
    """Return the summary's bytes."""
    return _encode(summary)


def decode_summary(record: MapRecord) -> Summary:
    """Return the summary with its changes.  Raises RemoteProtocolError."""
    if len(record.deltas) > CHANGES_MAX:
        raise RemoteProtocolError(
            f"{len(record.deltas)} changes behind a summary; at most {CHANGES_MAX}"
        )
    summary = parsed(_summary_decoder.decode, record.full, "no summary")
    deltas = [parsed(_delta_decoder.decode, each, "no summary") for each in record.deltas]
    hashes = set(unpack_hashes(summary.hashes))
    for delta in deltas:
        removed, added = set(unpack_hashes(delta.removed)), set(unpack_hashes(delta.added))
        if not removed <= hashes or added & hashes:
            raise RemoteProtocolError("a change of another summary")
        hashes = hashes - removed | added
        summary = msgspec.structs.replace(
            summary,
            ver=delta.ver,
            endpoints=delta.endpoints,
            patterns=summary.patterns if delta.patterns is None else delta.patterns,
            participant=delta.participant or summary.participant,
        )
    if not deltas:
        return summary
    return msgspec.structs.replace(summary, hashes=pack_hashes(hashes))


class CompactSummaries:
    """What the discovery core asks of MAPs that are summaries: `commands.MapForm`."""

    def difference(self, old: bytes, new: bytes) -> bytes:
        """Return the change between two summaries of one's own."""
        before, after = _summary_decoder.decode(old), _summary_decoder.decode(new)
        was, now = set(unpack_hashes(before.hashes)), set(unpack_hashes(after.hashes))
        return _encode(
            SummaryDelta(
                after.ver,
                after.endpoints,
                pack_hashes(now - was),
                pack_hashes(was - now),
                None if after.patterns == before.patterns else after.patterns,
                None if after.participant == before.participant else after.participant,
            )
        )

    def shortened(self, record: MapRecord) -> MapRecord:
        """Return the summary without changes behind it; what is none is empty then."""
        try:
            return MapRecord(record.ver, encode_summary(decode_summary(record)))
        except RemoteProtocolError:  # Its readers are told; here it must not grow.
            return MapRecord(record.ver, b"")


class Interests:
    """What a set of endpoints can be matched by: topics of each kind, and patterns of readers."""

    def __init__(self, endpoints: Iterable[EndpointData], matches: Matches = same_topic) -> None:
        self._matches = matches
        self._topics: dict[EndpointKind, set[str]] = {kind: set() for kind in EndpointKind}
        for each in endpoints:
            self._topics[each.kind].add(each.topic)
        self._hashes = {
            topic_hash(kind.opposite, topic)
            for kind, topics in self._topics.items()
            for topic in topics
        }
        self.patterns = tuple(
            sorted(
                topic
                for topic in self._topics[EndpointKind.READER]
                if is_pattern(EndpointKind.READER, topic)
            )
        )

    def is_match(self, kind: EndpointKind, topic: str) -> bool:
        """Whether one of these endpoints matches another of this kind and topic."""
        if kind is EndpointKind.WRITER:
            return topic in self._topics[EndpointKind.READER] or any(
                self._matches(pattern, topic) for pattern in self.patterns
            )
        writers = self._topics[EndpointKind.WRITER]
        return topic in writers or (
            is_pattern(kind, topic) and any(self._matches(topic, each) for each in writers)
        )

    def wanted(self, summary: Summary) -> "Wanted":
        """Return what must be asked for, seeing this summary.  Raises RemoteProtocolError."""
        hashes = self._hashes.intersection(unpack_hashes(summary.hashes))
        for pattern in summary.patterns:
            if self.is_match(EndpointKind.READER, pattern):
                hashes.add(topic_hash(EndpointKind.READER, pattern))
        return Wanted(frozenset(hashes), self.patterns if summary.endpoints else ())


class Wanted(msgspec.Struct, frozen=True):
    """What one participant or domain wants to know of another."""

    hashes: frozenset[int] = frozenset()
    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.hashes or self.patterns)

    def covers(self, other: "Wanted") -> bool:
        """Whether all of the other is wanted here, too."""
        return self.hashes >= other.hashes and set(self.patterns) >= set(other.patterns)


class Offer:
    """A set of endpoints, found by what is asked for."""

    def __init__(self, endpoints: Iterable[EndpointData], matches: Matches = same_topic) -> None:
        self._matches = matches
        self._by_hash: dict[int, list[EndpointData]] = {}
        for each in endpoints:
            self._by_hash.setdefault(topic_hash(each.kind, each.topic), []).append(each)

    def matching(self, wanted: Wanted) -> list[EndpointData]:
        """Return the endpoints with these hashes, and the writers that a pattern means."""
        asked = {key for key in wanted.hashes if key in self._by_hash}
        if wanted.patterns:
            for key, endpoints in self._by_hash.items():
                if any(self._is_meant(each, wanted.patterns) for each in endpoints):
                    asked.add(key)
        return sorted(
            (each for key in asked for each in self._by_hash[key]), key=lambda each: each.key
        )

    def _is_meant(self, endpoint: EndpointData, patterns: tuple[str, ...]) -> bool:
        return endpoint.kind is EndpointKind.WRITER and any(
            self._matches(pattern, endpoint.topic) for pattern in patterns
        )
