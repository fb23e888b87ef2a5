"""Opening a log: believe a proper close, check everything after any other end."""

import msgspec

from orderwire.broker.log.checking import good_behind
from orderwire.broker.log.cutting import EPOCHS, START, StartFile, finish_cut
from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.log.index import SparseIndex
from orderwire.broker.log.model import LogConfig, Recovery
from orderwire.broker.log.producers import ProducerTable
from orderwire.broker.log.scan import Scan
from orderwire.broker.log.sealed import unseal
from orderwire.broker.log.segment import (
    DELETED,
    INDEX,
    LOG,
    PRODUCERS,
    Segment,
    segment_name,
)
from orderwire.broker.log.storage import LogDamaged, LogFile, Storage
from orderwire.broker.log.syncing import CHECKPOINT

CLEAN = "clean"
"""Exists only while the log is closed properly."""
_NEW = ".new"


class SegmentRow(msgspec.Struct, array_like=True):
    """What a proper close or a checkpoint says about a segment."""

    base_offset: int
    size: int
    next_offset: int
    newest_ms: int
    began_ms: int


def rows_of(segments: list[Segment]) -> list[SegmentRow]:
    """Return what is to be said about these."""
    return [
        SegmentRow(each.base_offset, each.size, each.next_offset, each.newest_ms, each.began_ms)
        for each in segments
    ]


class Checkpoint(msgspec.Struct, array_like=True):
    """Content of CHECKPOINT: what was durable, and what a scan of it would have found."""

    synced_base: int
    """Every segment before this offset was complete and durable."""
    segments: list[SegmentRow] = []
    """The last was active then: it may have grown."""
    index: bytes = b""
    """Of the last segment."""
    producers: bytes = b""
    cuts: int = 0
    """The last cut before: behind a later one, this says nothing."""
    epoch: int = -1
    """Of the last batch."""


class CleanStop(msgspec.Struct, array_like=True):
    """Content of CLEAN."""

    segments: list[SegmentRow]


class Opened(msgspec.Struct):
    """The parts of an open log."""

    segments: list[Segment]
    """At least one; the last is active."""
    start_offset: int
    epochs: EpochHistory
    producers: ProducerTable
    recovery: Recovery
    cuts: int = 0
    """The number of the last cut."""


def open_segments(
    storage: Storage, config: LogConfig, now_ms: int, *, cuts_damage: bool = True
) -> Opened:
    """Open what is there, or begin an empty log.  Raises LogDamaged, StorageError."""
    cuts = finish_cut(storage)
    names = storage.names()
    for name in names:
        if name.endswith((DELETED, _NEW)):
            storage.remove(name)
    bases = sorted(int(name[: -len(LOG)]) for name in names if name.endswith(LOG))
    start_data = storage.read_file(START)
    start_file = unseal(start_data, StartFile)
    knows_start = start_file is not None or start_data is None
    start = start_file.start_offset if start_file is not None else 0
    # Segments that retention let go may be back: a rename is not durable at once.
    gone = max((number for number, base in enumerate(bases) if base <= start), default=0)
    _drop(storage, bases[:gone])
    bases = bases[gone:]
    clean = unseal(storage.read_file(CLEAN), CleanStop)
    opened = None
    if clean is not None and knows_start and bases and bases[0] > start:
        raise LogDamaged(f"the log begins at {start}, but its first segment at {bases[0]}")
    if clean is not None:
        opened = _trust(storage, bases, clean)
    if CLEAN in names:
        storage.remove(CLEAN)
        storage.sync_directory()
    if opened is None:
        opened = _recover(
            storage, config, bases, start, now_ms, cuts, cuts_damage, knows_start=knows_start
        )
    opened.cuts = cuts
    opened.start_offset = max(start, opened.segments[0].base_offset)
    if opened.start_offset > opened.segments[-1].next_offset:
        # The tail was lost behind a start that is durable: begin anew at the start.
        _drop(storage, [segment.base_offset for segment in opened.segments])
        opened.segments = [new_segment(storage, opened.start_offset, now_ms)]
        opened.producers = _noted(storage, opened.start_offset) or opened.producers
        storage.sync_directory()
    opened.epochs.forget(opened.segments[0].base_offset)
    _remove_strays(storage, opened)
    return opened


def new_segment(storage: Storage, base_offset: int, now_ms: int) -> Segment:
    """Make an empty segment; its name is not durable yet."""
    file = storage.create(segment_name(base_offset, LOG))
    index = SparseIndex()
    return Segment(
        storage, base_offset, file, next_offset=base_offset, index=index, began_ms=now_ms
    )


def _trust(storage: Storage, bases: list[int], clean: CleanStop) -> Opened | None:
    """Take a proper close at its word; None when the files say otherwise."""
    rows = clean.segments
    if not rows or [row.base_offset for row in rows] != bases:
        return None
    segments = []
    for row in rows:
        file = storage.open(segment_name(row.base_offset, LOG))
        if file.size != row.size:
            return None
        segments.append(
            Segment(
                storage,
                row.base_offset,
                file,
                next_offset=row.next_offset,
                newest_ms=row.newest_ms,
                began_ms=row.began_ms,
            )
        )
    active = segments[-1]
    epochs = EpochHistory.from_bytes(storage.read_file(EPOCHS))
    snapshot = storage.read_file(segment_name(active.next_offset, PRODUCERS))
    producers = ProducerTable.from_bytes(snapshot, active.next_offset)
    index_file = storage.read_file(segment_name(active.base_offset, INDEX))
    index = SparseIndex.from_bytes(index_file, active.size)
    if epochs is None or producers is None or index is None:
        return None
    active.adopt(index)
    return Opened(segments, 0, epochs, producers, Recovery(True, 0, 0, None))


def _recover(
    storage: Storage,
    config: LogConfig,
    bases: list[int],
    start: int,
    now_ms: int,
    cuts: int,
    cuts_damage: bool,
    *,
    knows_start: bool,
) -> Opened:
    """Scan what no checkpoint vouches for; cut at the first bad batch; make the rest durable."""
    checkpoint = unseal(storage.read_file(CHECKPOINT), Checkpoint)
    if checkpoint is not None and checkpoint.cuts != cuts:
        checkpoint = None
    durable_below = checkpoint.synced_base if checkpoint is not None else 0
    epochs, whole = EpochHistory.read(storage.read_file(EPOCHS)) or (EpochHistory(), False)
    if checkpoint is not None and epochs.latest < checkpoint.epoch:
        checkpoint = None  # which epochs what was durable had is not known any more
    durable = _Durable(checkpoint)
    producers = ProducerTable()
    segments: list[Segment] = []
    scanned = cut = 0
    damaged = False
    reason: str | None = None
    if knows_start and bases and bases[0] > start:
        # A power failure took the names of those before: what is behind continues nothing.
        reason = f"the log begins at {start}, but its first segment at {bases[0]}"
        if max(durable.end, durable_below) > start:
            raise LogDamaged(reason)
        cut += _drop(storage, bases)
        bases = []
    for number, base in enumerate(bases):
        if segments and segments[-1].next_offset != base:
            reason = f"segment {base} does not follow offset {segments[-1].next_offset}"
            if base < durable_below:
                raise LogDamaged(reason)
            cut += _drop(storage, bases[number:])
            break
        file = storage.open(segment_name(base, LOG))
        segment = Segment(storage, base, file, next_offset=base, began_ms=now_ms)
        segments.append(segment)
        row = durable.rows.get(base)
        behind = None
        if row is not None:
            _check_size(file, row, may_have_grown=row is durable.last)
            segment.began_ms = row.began_ms
            if row is not durable.last:
                segment.next_offset, segment.newest_ms = row.next_offset, row.newest_ms
                continue
            behind, producers = durable.found, durable.producers
        else:
            if base == durable.end:  # even when what stood before is deleted
                producers = durable.producers
            producers = _noted(storage, base) or producers
        found = segment.scan(
            epochs,
            producers,
            epochs_known=whole,
            interval_bytes=config.index_interval_bytes,
            now_ms=now_ms,
            behind=behind,
        )
        scanned += file.size - (row.size if row is not None else 0)
        segment.take(found)
        if found.reason is not None:
            reason = f"{segment_name(base, LOG)} {found.reason}"
            if base < durable_below:
                raise LogDamaged(f"{reason}; this was durable: restore the file from a copy")
            damaged = good_behind(file, found.good_bytes, found.next_offset, epochs.latest)
            if damaged and not cuts_damage:
                raise LogDamaged(f"{reason}, and good batches behind it")
            cut += file.size - found.good_bytes
            file.truncate(found.good_bytes)
            cut += _drop(storage, bases[number + 1 :])
        file.sync()
        if found.reason is not None:
            break
    if not segments:
        segments = [new_segment(storage, start, now_ms)]
        producers = _noted(storage, start) or producers
    for segment in segments[:-1]:
        if segment.has_index:
            segment.save_index()
            segment.forget_index()
    if epochs.cut(segments[-1].next_offset) or not whole:
        storage.replace_file(EPOCHS, epochs.to_bytes())
    else:  # Its last rows may have been written by a process that died before it could sync them.
        storage.open(EPOCHS).sync()
    storage.sync_directory()
    return Opened(segments, 0, epochs, producers, Recovery(False, scanned, cut, reason, damaged))


def _noted(storage: Storage, base: int) -> ProducerTable | None:
    """What producers had written before this offset, as far as it was noted."""
    return ProducerTable.from_bytes(storage.read_file(segment_name(base, PRODUCERS)), base)


class _Durable:
    """What need not be scanned: nothing without a whole checkpoint."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self.rows: dict[int, SegmentRow] = {}
        self.last: SegmentRow | None = None
        self.found: Scan | None = None
        """What a scan of the last one would have found."""
        self.producers = ProducerTable()
        self.end = -1
        """The offset behind it."""
        if checkpoint is None or not checkpoint.segments:
            return
        last = checkpoint.segments[-1]
        index = SparseIndex.from_bytes(checkpoint.index, last.size)
        producers = ProducerTable.from_bytes(checkpoint.producers, last.next_offset)
        if index is None or producers is None:
            return
        self.rows = {row.base_offset: row for row in checkpoint.segments}
        self.last = last
        self.end = last.next_offset
        self.found = Scan(last.size, last.next_offset, last.newest_ms, None, index)
        self.producers = producers


def _check_size(file: LogFile, row: SegmentRow, *, may_have_grown: bool) -> None:
    """What was durable must still be there.  Raises LogDamaged."""
    if file.size < row.size or (file.size > row.size and not may_have_grown):
        raise LogDamaged(
            f"{segment_name(row.base_offset, LOG)} has {file.size} bytes; {row.size} were durable:"
            " restore the file from a copy"
        )


def _drop(storage: Storage, bases: list[int]) -> int:
    """Remove segments that nothing vouches for; returns their bytes."""
    dropped = 0
    for base in bases:
        dropped += storage.open(segment_name(base, LOG)).size
        for suffix in (LOG, INDEX, PRODUCERS):
            storage.remove(segment_name(base, suffix))
    return dropped


def _remove_strays(storage: Storage, opened: Opened) -> None:
    """Remove indexes and snapshots that belong to no segment."""
    bases = {segment.base_offset for segment in opened.segments}
    for name in storage.names():
        stem, _, suffix = name.partition(".")
        if f".{suffix}" in (INDEX, PRODUCERS) and int(stem) not in bases:
            storage.remove(name)
