"""The history of a chaos run's partitions, from what clients heard and brokers left.

What is committed is known at the end only: the brokers' files up to their high watermarks.  So the
commits come first in the history, then what clients were told, which must agree with them.

An idempotent client that gives a message up takes a new epoch.  Under that it sends again, with
other numbers, all that it had no answer for, in every partition: no broker can know those for
copies.  Such a copy is a message of its own here, `NAME+EPOCH`; but only where the client has told
its user that something failed.  So is, as `NAME+OFFSET`, what a client without idempotence says
that it has sent again.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import msgspec

from orderwire.chaos.clients import NOT_TOLD, Moved, Sent
from orderwire.chaos.evidence import Found, Note, find, notes_of, partition_folder
from orderwire.verify.replication import (
    Acknowledged,
    Batch,
    Committed,
    Delivered,
    Elected,
    Event,
    Held,
    OnDisk,
    Republished,
    Requested,
    Settled,
)
from orderwire.verify.replication_history import Parts
from orderwire.verify.replication_merge import Noted, merged

COPY = "+"
"""Between the name of a message and the number of a copy."""
UNKNOWN_BROKER = -1
"""Of a delivery: the client does not tell who answered."""


class Sample(msgspec.Struct, frozen=True):
    """A high watermark that a broker told."""

    partition: int
    broker: int
    life: int
    high_watermark: int


class Life(msgspec.Struct, frozen=True):
    """What a broker left."""

    broker: int
    folder: Path
    log: Path
    high_watermarks: Mapping[int, int]
    """At the end, by partition."""


def histories(
    topic: str,
    topic_id: str,
    partitions: int,
    lives: Sequence[Life],
    isr: Mapping[int, tuple[int, ...]],
    sent: Sequence[Sent],
    moved: Sequence[Moved],
    samples: Sequence[Sample],
    *,
    acks_one_lost: bool,
    prefix: str = "",
    written: Mapping[int, Parts] | None = None,
) -> dict[int, list[Event]]:
    """Return each partition's history; messages are the names that begin with `prefix`.

    With `written`, by partition, what brokers did is what they wrote into a topic; without it, what
    their logs and files say.
    """
    notes = [note for life in lives for note in notes_of(life.log, life.broker)]
    notes.sort(key=lambda note: note.at)
    failed = {_life(one) for one in sent if one.error}
    gave_up = {one.name for one in sent if _life(one) in failed}
    again = {one.name for one in sent if one.sent_again}
    found: dict[int, list[Event]] = {}
    for partition in range(partitions):
        disks = {
            life.broker: find(partition_folder(life.folder, topic_id, partition), prefix)
            for life in lives
        }
        found[partition] = _history(
            _with_copies(disks, gave_up, again),
            {life.broker: life.high_watermarks.get(partition, 0) for life in lives},
            isr[partition],
            [note for note in notes if (note.topic, note.partition) == (topic, partition)],
            [one for one in sent if one.partition == partition],
            [one for one in moved if one.partition == partition],
            [one for one in samples if one.partition == partition],
            acks_one_lost=acks_one_lost,
            written=None if written is None else written.get(partition, Parts([], {}, [])),
        )
    return found


def _history(
    disks: Mapping[int, Found],
    high_watermarks: Mapping[int, int],
    isr: tuple[int, ...],
    notes: Sequence[Note],
    sent: Sequence[Sent],
    moved: Sequence[Moved],
    samples: Sequence[Sample],
    *,
    acks_one_lost: bool,
    written: Parts | None,
) -> list[Event]:
    events: list[Event] = []
    copies = _copies(disks)
    for one in sent:
        events.append(Requested(one.session, (one.name,), one.acks))
        for copy in copies.get(one.name, ()):
            number = copy.rpartition(COPY)[2]
            events.append(Requested(f"{one.session}{COPY}{number}", (copy,), one.acks))
    for note in notes if written is None else ():
        if note.kind == "Elected":
            events.append(Elected(int(note.fields["epoch"]), note.broker))
        elif note.kind == "Republished" and note.fields.get("duplicate") == "False":
            events.append(Republished(int(note.fields["new_offset"])))
    for sample in samples:
        high = sample.high_watermark
        events.append(Committed(sample.broker, sample.life, high, high, ()))
    for broker, disk in sorted(disks.items()) if written is None else ():
        high = high_watermarks[broker]
        committed = tuple(each for each in disk.batches if each.last < high)
        events.append(Committed(broker, -1, 0, high, committed))
    places = _places(disks, high_watermarks)
    at = {offset: name for name, offset in places.items()}
    for one in sent:
        if one.answered_s and not one.error:
            offset = one.offset
            if offset == NOT_TOLD:
                # An idempotent client takes a message for stored when a later one is: it is told
                # no offset.
                offset = places.get(one.name, NOT_TOLD)
            name = _named(at.get(offset, ""), one.name)
            events.append(Acknowledged((name,), one.acks, offset))
    events += (
        Delivered(
            one.consumer,
            UNKNOWN_BROKER,
            one.position,
            one.next_position,
            one.next_position,  # clients keep the newest of all answers only
            tuple((offset, _named(at.get(offset, ""), name)) for offset, name in one.records),
        )
        for one in moved
    )
    for broker, disk in sorted(disks.items()):
        events.append(Held(broker, broker in isr, high_watermarks[broker], _believed(disk)))
    on_disk = frozenset().union(*(disk.messages for disk in disks.values()))
    events.append(OnDisk(on_disk, acks_one_lost))
    events.append(Settled(isr, tuple(sorted(disks)), acks_one_lost))
    if written is None:
        return events
    return merged(events, _called_as_on(disks, written.written), written.holes)


def _called_as_on(
    disks: Mapping[int, Found], written: Mapping[str, Sequence[Noted]]
) -> dict[str, list[Noted]]:
    """Name messages in what brokers wrote as they are named on their disks: copies too."""
    names = {
        (batch.first, batch.digest): batch.messages
        for disk in disks.values()
        for batch in disk.batches
    }

    def named(noted: Noted) -> Noted:
        event = noted.event
        if not isinstance(event, Committed):
            return noted
        batches = tuple(
            msgspec.structs.replace(
                batch, messages=names.get((batch.first, batch.digest), batch.messages)
            )
            for batch in event.batches
        )
        return Noted(noted.time_ns, msgspec.structs.replace(event, batches=batches))

    return {writer: [named(each) for each in noted] for writer, noted in written.items()}


def _life(one: Sent) -> tuple[str, ...]:
    """The producer, and which of its lives sent this, where it has several."""
    return tuple(one.session.split(".")[:2])


def _with_copies(
    disks: Mapping[int, Found], gave_up: Set[str], again: Set[str]
) -> dict[int, Found]:
    """Name the copies that clients made: of what they had given up, and of what they sent again."""

    def number(disk: Found, batch: Batch, name: str) -> int:
        return batch.first if name in again else disk.numbered.get(batch.first, 0)

    first: dict[str, int] = {}
    for disk in disks.values():
        for batch in disk.batches:
            for name in batch.messages:
                this = number(disk, batch, name)
                first[name] = min(first.get(name, this), this)
    copied = gave_up | again

    def renamed(disk: Found, batch: Batch) -> Batch:
        names = tuple(
            f"{name}{COPY}{this}"
            if (this := number(disk, batch, name)) > first[name] and name in copied
            else name
            for name in batch.messages
        )
        return batch if names == batch.messages else msgspec.structs.replace(batch, messages=names)

    return {
        broker: msgspec.structs.replace(
            disk, batches=tuple(renamed(disk, batch) for batch in disk.batches)
        )
        for broker, disk in disks.items()
    }


def _copies(disks: Mapping[int, Found]) -> dict[str, list[str]]:
    """Message → its copies, in the order of their numbers."""
    found = {name for disk in disks.values() for batch in disk.batches for name in batch.messages}
    copies: dict[str, list[str]] = {}
    for name in sorted((each for each in found if COPY in each), key=_copy_number):
        copies.setdefault(name.partition(COPY)[0], []).append(name)
    return copies


def _copy_number(name: str) -> int:
    return int(name.rpartition(COPY)[2])


def _named(stands: str, name: str) -> str:
    """The name of what stands there, if that is a copy of this message."""
    return stands if stands.partition(COPY)[0] == name else name


def _places(disks: Mapping[int, Found], high_watermarks: Mapping[int, int]) -> dict[str, int]:
    """Message → its first committed offset."""
    places: dict[str, int] = {}
    best = max(disks, key=lambda broker: high_watermarks[broker])
    for batch in disks[best].batches:
        if batch.last < high_watermarks[best]:
            for offset, name in enumerate(batch.messages, batch.first):
                places.setdefault(name, offset)
    return places


def _believed(disk: Found) -> tuple[Batch, ...]:
    """A batch that fails its checksum is not what it says."""
    return tuple(each for each in disk.batches if each.first != disk.damaged)
