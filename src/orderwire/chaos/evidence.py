"""What the brokers leave behind: their files, read without their code, and their notes."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from orderwire.verify.kafka_batches import HEADER, batches_of, names_in
from orderwire.verify.replication import Batch

_SEGMENT = re.compile(r"\d{20}\.log")
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
        for at, _, batch, good in batches_of(data, prefix):
            *_, producer_id, producer_epoch, _, _ = HEADER.unpack_from(data, at)
            if producer_id >= 0:
                numbered[batch.first] = producer_epoch
            if not good and damaged is None:
                damaged = batch.first
            batches.append(batch)
    names = {name for batch in batches for name in batch.messages}
    for path in folder.iterdir():
        names.update(names_in(path.read_bytes(), prefix))
    return Found(tuple(batches), damaged, frozenset(names), numbered)


def notes_of(log: Path, broker: int) -> Iterator[Note]:
    """What a broker noted of its replicas, in order."""
    for line in log.read_text(errors="replace").splitlines():
        match = _NOTE.match(line)
        if match is not None:
            at, topic, partition, kind, rest = match.groups()
            fields = {name: value.strip("'") for name, value in _FIELD.findall(rest)}
            yield Note(at, broker, topic, int(partition), kind, fields)
