"""What the brokers leave behind: their files, read without their code, and their notes.

Only the format of a Kafka batch is known here, and how segments are named.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import msgspec
from crc32c import crc32c

from orderwire.verify.replication import Batch

_HEADER = Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_CONTROL = 0x20
_LEAST_LENGTH = 49
_SEGMENT = re.compile(r"\d{20}\.log")
_MESSAGE = re.compile(rb"<([a-z0-9.\-]+)>")
_NOTE = re.compile(r"^(\S+ \S+) \w+ (\S+)-(\d+): (\w+)\((.*)\)$")
_FIELD = re.compile(r"(\w+)=(-?\w+|'[^']*')")


class Note(msgspec.Struct, frozen=True):
    """A line of a broker's log that tells what a replica did."""

    at: str
    broker: int
    topic: str
    partition: int
    kind: str
    fields: dict[str, str]


class Found(msgspec.Struct, frozen=True):
    """A partition at one broker, as its files say."""

    batches: tuple[Batch, ...]
    """Of the main log, up to the first that is not whole."""
    damaged: int | None
    """Offset of a batch that fails its checksum."""
    messages: frozenset[str]
    """In any file, of whatever format."""
    numbered: dict[int, int] = {}
    """First offset of an idempotent producer's batch → the epoch of its producer."""


def batches_of(data: bytes, prefix: str = "") -> Iterator[tuple[int, int, Batch, bool]]:
    """Every batch from the start on: where it begins and ends, itself, whether its CRC matches.

    Only names that begin with `prefix` are messages.
    """
    at = 0
    while at + _HEADER.size <= len(data):
        first, length, epoch, magic, crc, attributes, delta, *_ = _HEADER.unpack_from(data, at)
        end = at + 12 + length
        if magic != 2 or length < _LEAST_LENGTH or end > len(data):
            return
        good = crc32c(data[at + _CRC_FROM : end]) == crc
        seal = bool(attributes & _CONTROL)
        names = tuple(_names(data[at + _HEADER.size : end], prefix))
        yield at, end, Batch(first, first + delta, epoch, crc, () if seal else names, seal), good
        at = end


def partition_folder(broker: Path, topic_id: str, partition: int) -> Path:
    """Where a broker keeps a partition."""
    return broker / "topics" / topic_id / str(partition)


def segments(folder: Path) -> list[Path]:
    """The main log's files, in order."""
    return sorted(path for path in folder.iterdir() if _SEGMENT.fullmatch(path.name))


def find(folder: Path, prefix: str = "") -> Found:
    """Read a partition's folder while its broker is down, or nothing is written."""
    batches: list[Batch] = []
    damaged: int | None = None
    numbered: dict[int, int] = {}
    for path in segments(folder):
        data = path.read_bytes()
        for at, _, batch, good in batches_of(data):
            *_, producer_id, producer_epoch, _, _ = _HEADER.unpack_from(data, at)
            if producer_id >= 0:
                numbered[batch.first] = producer_epoch
            if not good and damaged is None:
                damaged = batch.first
            batches.append(batch)
    names: set[str] = set()
    for path in folder.iterdir():
        names.update(_names(path.read_bytes(), prefix))
    return Found(tuple(batches), damaged, frozenset(names), numbered)


def _names(data: bytes, prefix: str) -> list[str]:
    found = [name.decode() for name in _MESSAGE.findall(data)]
    return [name for name in found if name.startswith(prefix)] if prefix else found


def notes_of(log: Path, broker: int) -> Iterator[Note]:
    """What a broker noted of its replicas, in order."""
    for line in log.read_text(errors="replace").splitlines():
        match = _NOTE.match(line)
        if match is not None:
            at, topic, partition, kind, rest = match.groups()
            fields = {name: value.strip("'") for name, value in _FIELD.findall(rest)}
            yield Note(at, broker, topic, int(partition), kind, fields)
