"""Cutting a log off, or beginning it anew, so that a crash in the middle changes nothing.

What is to be done is durable before the first file changes, and is done again at the next start
when it was not finished.  Each cut has a number; a checkpoint names the cut that it came after, so
one that was written from before a cut (by a sync that was still under way) is not believed.
"""

from contextlib import suppress

import msgspec

from orderwire.broker.log.epochs import EpochHistory, epoch_row
from orderwire.broker.log.producers import ProducerBatch, ProducerTable
from orderwire.broker.log.sealed import seal, unseal
from orderwire.broker.log.segment import INDEX, LOG, PRODUCERS, Segment, segment_name
from orderwire.broker.log.storage import LogDamaged, LogFile, Storage, StorageError

START = "start"
"""Holds the log start offset once it is not the first segment's."""
EPOCHS = "epochs"
"""Holds the epoch history."""
CUT = "cut"
"""Holds the last cut; exists once there was one."""


class StartFile(msgspec.Struct, array_like=True):
    """Content of START."""

    start_offset: int


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """Content of CUT."""

    number: int
    """Counts the cuts of this log, from 1."""
    end_offset: int
    """The log ends here."""
    base_offset: int
    """Of the segment that becomes the last."""
    size: int
    """Of that segment, at most; in bytes."""
    anew: bool
    """Whether nothing before stays either."""
    done: bool = False


def last_cut(storage: Storage) -> Cut | None:
    """What CUT says.  Raises LogDamaged: without it nobody knows what belongs to the log."""
    data = storage.read_file(CUT)
    if data is None:
        return None
    cut = unseal(data, Cut)
    if cut is None:
        raise LogDamaged(f"{CUT} fails its checksum: restore the log from a copy")
    return cut


def finish_cut(storage: Storage) -> int:
    """Do again what a crash interrupted; returns the number of the last cut, 0 for none."""
    cut = last_cut(storage)
    if cut is None:
        return 0
    if not cut.done:
        carry_out(storage, cut)
    return cut.number


def carry_out(storage: Storage, cut: Cut) -> LogFile:
    """Cut the files; durable on return.  Returns the last segment's.  Raises StorageError."""
    names = storage.names()
    for name in names:
        stem, _, suffix = name.partition(".")
        if f".{suffix}" not in (LOG, INDEX, PRODUCERS):
            continue
        base = int(stem)
        if base > cut.base_offset or cut.anew:
            storage.remove(name)
    storage.remove(segment_name(cut.base_offset, INDEX))
    last = segment_name(cut.base_offset, LOG)
    if last in names and not cut.anew:
        file = storage.open(last)
        if file.size > cut.size:
            file.truncate(cut.size)
    else:
        file = storage.create(last)
    file.sync()
    epochs = EpochHistory.from_bytes(storage.read_file(EPOCHS))
    if cut.anew:
        storage.replace_file(EPOCHS, EpochHistory().to_bytes())
        storage.replace_file(START, seal(StartFile(cut.end_offset)))
    elif epochs is not None and epochs.cut(cut.end_offset):
        storage.replace_file(EPOCHS, epochs.to_bytes())
    storage.sync_directory()
    storage.replace_file(CUT, seal(msgspec.structs.replace(cut, done=True)))
    return file


def note_epoch(storage: Storage, epoch: int, offset: int) -> LogFile:
    """Write down that an epoch begins; returns what has to be synced.  Raises StorageError."""
    file = storage.open(EPOCHS)
    size = file.size
    try:
        file.append(epoch_row(epoch, offset))
    except StorageError:
        with suppress(StorageError):  # a torn file is written anew at the next start
            file.truncate(size)
        raise
    return file


def keep_producers(storage: Storage, base: int) -> None:
    """Make durable what producers had written before this segment: what says so is about to go.

    Raises StorageError.
    """
    name = segment_name(base, PRODUCERS)
    snapshot = storage.read_file(name)
    if snapshot is not None:
        storage.replace_file(name, snapshot)


def producers_of(
    storage: Storage,
    segments: list[Segment],
    epochs: EpochHistory,
    interval_bytes: int,
    now_ms: int,
) -> ProducerTable:
    """What the headers say of producers, from the newest snapshot on."""
    table = ProducerTable()
    first = 0
    for number in range(len(segments) - 1, -1, -1):
        base = segments[number].base_offset
        snapshot = ProducerTable.from_bytes(storage.read_file(segment_name(base, PRODUCERS)), base)
        if snapshot is not None:
            table, first = snapshot, number
            break
    for segment in segments[first:]:
        for _, header in segment.headers(segment.base_offset, epochs, interval_bytes):
            if header.producer_id >= 0 and header.base_sequence >= 0:
                noted = ProducerBatch(
                    header.base_sequence,
                    header.last_sequence,
                    header.base_offset,
                    header.last_offset,
                )
                table.note(header.producer_id, header.producer_epoch, noted, now_ms)
    return table
