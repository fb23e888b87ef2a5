"""A partition's log: append, read, keep, forget.

Plain synchronous code over a `Storage`.  Calls come from one thread; only `SyncJob.run` may run in
another.  Damage and disk faults raise StorageError; after a write or a sync that cannot be undone
the log refuses everything until it is opened again.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log.admission import Admitted, admit
from orderwire.broker.log.checking import IN_MEMORY_BYTES, PIECE_BYTES, check_newest, checked
from orderwire.broker.log.cutting import (
    CUT,
    START,
    Cut,
    StartFile,
    carry_out,
    keep_producers,
    note_epoch,
    producers_of,
)
from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.log.index import SparseIndex
from orderwire.broker.log.model import (
    DAMAGED,
    Appended,
    LogConfig,
    Recovery,
    Refused,
    TimedOffset,
)
from orderwire.broker.log.placed import admit_placed
from orderwire.broker.log.producers import ProducerTable
from orderwire.broker.log.recovery import (
    CLEAN,
    Checkpoint,
    CleanStop,
    Opened,
    new_segment,
    open_segments,
    rows_of,
)
from orderwire.broker.log.sealed import seal
from orderwire.broker.log.segment import DELETED, INDEX, LOG, PRODUCERS, Segment, segment_name
from orderwire.broker.log.storage import LogDamaged, LogFile, Storage, StorageError
from orderwire.broker.log.syncing import SyncJob
from orderwire.broker.log.times import find_time, newest_from
from orderwire.broker.wire.batch import PLACE, BatchHeader, walk
from orderwire.broker.wire.parts import Buffer, FileSlice, Part
from orderwire.kernel.errors import LocalProtocolError

_place = PLACE.pack_into


class PartitionLog:
    """One partition."""

    def __init__(self, storage: Storage, config: LogConfig, opened: Opened) -> None:
        self.config = config
        self.recovery: Recovery = opened.recovery
        self.start_offset = opened.start_offset
        """The first readable offset; only grows."""
        self.end_offset = opened.segments[-1].next_offset
        """The offset of the next record."""
        self.synced_offset = self.end_offset
        """Everything before is durable."""
        self.epochs: EpochHistory = opened.epochs
        self._epoch = self.epochs.latest
        self.producers: ProducerTable = opened.producers
        self._storage = storage
        self._segments = opened.segments
        self._bases = [segment.base_offset for segment in self._segments]
        self._active = self._segments[-1]
        self._unsynced: list[LogFile] = []
        """Closed segments that are not durable yet."""
        self._unsynced_epochs: LogFile | None = None
        """The epochs' file, when its last row is not."""
        self._names_changed = 0
        """How often a segment was made; and how many of those are durable."""
        self._names_synced = 0
        self._checkpoint_base = self._segments[0].base_offset
        self._checkpoint_bytes = 0
        """The segment that was active at the last checkpoint, and its size."""
        self._cuts = opened.cuts
        """The number of the last cut."""
        self._deleted: list[tuple[int, str]] = []
        self._broken: StorageError | None = None
        self._closed = False
        self.damage: str | None = None
        """What was found to read otherwise than it was written."""

    @classmethod
    def open(
        cls, storage: Storage, config: LogConfig, now_ms: int, *, cuts_damage: bool = True
    ) -> "PartitionLog":
        """Open or make the log in this directory; after an unclean stop, recover it first.

        What is damaged and no torn tail is cut off all the same, or else nothing is touched and
        LogDamaged raised: others have what would be cut.
        """
        return cls(storage, config, open_segments(storage, config, now_ms, cuts_damage=cuts_damage))

    @property
    def size_bytes(self) -> int:
        """All segments together."""
        return sum(segment.size for segment in self._segments)

    @property
    def first_base(self) -> int:
        """Where the batch begins that holds the start: a copy of this log begins there."""
        first = next(self.batches(self.start_offset), None)
        return self.end_offset if first is None else first.base_offset

    @property
    def segment_count(self) -> int:
        """Including the active one."""
        return len(self._segments)

    def append(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        *,
        internal: bool = False,
    ) -> Appended | Refused:
        """Write one or more batches at the end; all of them or none.

        Sets base offset and epoch in the caller's buffer and writes from there.  `internal` allows
        control batches.  Raises StorageError when the disk fails; the log is as it was before.
        """
        if self._broken is not None or self._closed:
            self._check_usable()
        first = self.end_offset
        config = self.config
        admitted = admit(records, first, config, self.producers, internal=internal)
        if not isinstance(admitted, Admitted):
            return admitted
        for base, position, length, _ in admitted.batches:
            _place(records, position, base, length, leader_epoch)
        if leader_epoch != self._epoch:
            self._begin_epoch(leader_epoch)
        self._write(self._segment_for(len(records), now_ms), records, admitted, now_ms)
        return Appended(first, admitted.next_offset - 1)

    def append_placed(self, records: Buffer, now_ms: int) -> Appended | Refused:
        """Write batches that have their offsets and epochs already: copied from another replica.

        They follow the end without a gap, in the newest epoch or later ones.  Control batches and
        batches that stand for more offsets than records are taken, sequences are only noted.
        Refused: nothing was written.  Raises StorageError when the disk fails; batches of earlier
        epochs may be there then.
        """
        self._check_usable()
        first = self.end_offset
        with memoryview(records) as view:
            runs = admit_placed(view, first, self._epoch)
            if isinstance(runs, Refused):
                return runs
            for run in runs:
                if run.epoch != self._epoch:
                    self._begin_epoch(run.epoch)
                segment = self._segment_for(run.end - run.start, now_ms)
                with view[run.start : run.end] as part:
                    self._write(segment, part, run.admitted, now_ms)
        return Appended(first, self.end_offset - 1)

    def _segment_for(self, size: int, now_ms: int) -> Segment:
        """The active segment, or a new one when that is full or old."""
        active = self._active
        start = active.file.size
        if start == 0:
            active.began_ms = now_ms
        elif (
            start + size > self.config.segment_bytes
            or now_ms - active.began_ms >= self.config.segment_ms
        ):
            active = self._roll()
            active.began_ms = now_ms
        return active

    def room(self, leader_epoch: int, now_ms: int) -> int:
        """Bytes that the active segment takes as it is: without a roll, or a new epoch.

        0 while anything is out of the ordinary.
        """
        active = self._active
        config = self.config
        size = active.file.size
        if (
            self._broken is not None
            or self._closed
            or leader_epoch != self._epoch
            or size == 0
            or now_ms - active.began_ms >= config.segment_ms
        ):
            return 0
        return config.segment_bytes - size

    def append_admitted(self, records: Buffer, admitted: Admitted, now_ms: int) -> None:
        """Write batches that the caller has checked and placed, of no more bytes than `room`.

        Raises StorageError when the disk fails; the log is as it was before.
        """
        self._write(self._active, records, admitted, now_ms)

    def _write(self, active: Segment, records: Buffer, admitted: Admitted, now_ms: int) -> None:
        file = active.file
        start = file.size
        try:
            file.append(records)
        except StorageError:
            self._cut_back(file, start)
            raise
        interval = self.config.index_interval_bytes
        for base, position, _, newest_ms in admitted.batches:
            active.note(base, start + position, newest_ms, interval)
        active.next_offset = self.end_offset = admitted.next_offset
        for producer_id, producer_epoch, noted in admitted.sequenced:
            self.producers.note(producer_id, producer_epoch, noted, now_ms)

    def read(self, offset: int, max_bytes: int, upper: int | None = None) -> Part | Refused:
        """Refer to batches from the one that holds this offset on, all below `upper`, and checked.

        Empty when there is nothing below `upper` yet.  Never crosses a segment's end.  The last
        batch may be cut off, but the first is whole even when it is larger than `max_bytes`.
        Raises LogDamaged.
        """
        return self._read(offset, max_bytes, upper, IN_MEMORY_BYTES)

    def _read(self, offset: int, max_bytes: int, upper: int | None, few: int) -> Part | Refused:
        self._check_usable()
        limit = self.end_offset if upper is None else min(upper, self.end_offset)
        if not self.start_offset <= offset <= self.end_offset:
            return Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.start_offset} … {self.end_offset}",
            )
        if offset >= limit:
            return b""
        try:
            return self._extent(offset, max_bytes, limit, few)
        except LogDamaged as error:
            self.found_damaged(str(error))
            raise

    def found_damaged(self, reason: str) -> None:
        """Write down what is wrong, durably: a crash does not forget it.  Raises StorageError."""
        if self.damage is None:
            self._storage.replace_file(DAMAGED, reason.encode())
            self.damage = reason

    def place_of(self, offset: int) -> tuple[LogFile, int, int] | None:
        """The file that holds this offset (−1: the first), where it begins, and its size."""
        if offset >= self.end_offset or self._closed or self._broken is not None:
            return None
        segment = self._segment_of(max(offset, self._bases[0]))
        return segment.file, segment.base_offset, segment.size

    def check(self, bytes_max: int) -> None:
        """Check every batch of the newest segments, of so many bytes together or of one at least.

        Raises LogDamaged.
        """
        check_newest(self._segments, self.epochs, self.config.index_interval_bytes, bytes_max)

    def copy(self, offset: int, max_bytes: int, upper: int | None = None) -> bytes | Refused:
        """Fetch whole batches from the one that holds this offset on, all below `upper`.

        At most `max_bytes`, but at least one batch; empty when there is none below `upper`.  Raises
        LogDamaged: nothing that fails its checksum goes to a peer.
        """
        part = self._read(offset, max_bytes, upper, PIECE_BYTES)
        if isinstance(part, Refused):
            return part
        data = part.read() if isinstance(part, FileSlice) else bytes(part)
        end = max((at + header.size_bytes for at, header in walk(data)), default=0)
        return data[:end]

    def batches(self, start: int, end: int | None = None) -> Iterator[BatchHeader]:
        """Walk the headers, checked, from the batch that holds `start` to the last below `end`.

        Read them before the log changes.  Raises LogDamaged.
        """
        self._check_usable()
        limit = self.end_offset if end is None else min(end, self.end_offset)
        offset = max(start, self.start_offset)
        while offset < limit:
            segment = self._segment_of(offset)
            for _, header in segment.headers(offset, self.epochs, self.config.index_interval_bytes):
                if header.base_offset >= limit:
                    return
                yield header
            offset = segment.next_offset

    def _extent(self, offset: int, max_bytes: int, limit: int, few: int) -> Part:
        segment = self._segment_of(offset)
        index = segment.index(self.epochs, self.config.index_interval_bytes)
        position, header = segment.find(offset, index.before_offset(offset), self.epochs)
        if limit >= segment.next_offset:
            end = segment.size
        else:
            end, _ = segment.find(limit, index.before_offset(limit), self.epochs)
        if end - position > max_bytes:
            clipped = index.before_position(position + max_bytes)
            end = max(
                clipped if clipped > position else position + max_bytes,
                position + header.size_bytes,
            )
        found = checked(segment.file, position, end, header.base_offset, self.epochs)
        if found.fault is not None:
            raise LogDamaged(f"{segment_name(segment.base_offset, LOG)} {found.fault}")
        if found.data is not None and len(found.data) <= few:
            return found.data
        return segment.file.part(position, end - position)

    def offset_for_time(self, timestamp: int) -> TimedOffset | None:
        """The first record at or behind this time, exactly; None when every record is older."""
        self._check_usable()
        for segment in self._segments:
            if segment.newest_ms < timestamp or segment.next_offset <= self.start_offset:
                continue
            index = segment.index(self.epochs, self.config.index_interval_bytes)
            found = find_time(segment, index, self.epochs, timestamp, self.start_offset)
            if found is not None:
                return found
        return None

    def newest_record(self) -> TimedOffset | None:
        """The record with the largest timestamp (the first of them); None when there is none."""
        self._check_usable()
        interval = self.config.index_interval_bytes
        newest = -1
        for segment in self._segments:
            if segment.base_offset >= self.start_offset:
                newest = max(newest, segment.newest_ms)
            else:
                index = segment.index(self.epochs, interval)
                newest = max(newest, newest_from(segment, index, self.epochs, self.start_offset))
        return self.offset_for_time(newest) if newest >= 0 else None

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below this one, and its end offset; (−1, −1) when unknown."""
        return self.epochs.end_of(epoch, self.end_offset)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is asked of it."""
        return self._closed

    def begin_sync(self, *, checkpoint: bool = True) -> SyncJob | None:
        """Collect what is not durable yet; None when all is.  Run it, then call `end_sync`."""
        self._check_usable()
        epochs = self._unsynced_epochs
        if self.synced_offset == self.end_offset and not self._unsynced and epochs is None:
            return None
        return SyncJob(
            closed=tuple(self._unsynced),
            epochs=epochs,
            active=self._active.file,
            storage=self._storage,
            new_names=self._names_changed > self._names_synced,
            names=self._names_changed,
            end_offset=self.end_offset,
            checkpoint=self._new_checkpoint() if checkpoint else None,
            cuts=self._cuts,
        )

    def _new_checkpoint(self) -> bytes | None:
        """What will be durable with everything written so far, when it is time to note it."""
        active = self._active
        grown = active.size - self._checkpoint_bytes
        if active.base_offset == self._checkpoint_base and grown < self.config.recovery_bytes:
            return None
        self._checkpoint_base = active.base_offset
        self._checkpoint_bytes = active.size
        index = active.index(self.epochs, self.config.index_interval_bytes)
        return seal(
            Checkpoint(
                active.base_offset,
                rows_of(self._segments),
                index.to_bytes(active.size),
                self.producers.to_bytes(self.end_offset),
                self._cuts,
                self.epochs.at(self.end_offset - 1),
            )
        )

    def end_sync(self, job: SyncJob, error: StorageError | None = None) -> None:
        """Take note of a job that has run, or failed: then nobody knows what is on disk."""
        if error is not None:
            self._broken = error
            return
        if job.cuts != self._cuts:
            return  # a cut came between: it made everything durable, and some of this is gone
        self._unsynced = [file for file in self._unsynced if file not in job.closed]
        if self._unsynced_epochs is job.epochs:
            self._unsynced_epochs = None
        self._names_synced = max(self._names_synced, job.names)
        self.synced_offset = max(self.synced_offset, job.end_offset)

    def sync(self, *, checkpoint: bool = True) -> None:
        """Return when everything appended is durable.  Raises StorageError."""
        job = self.begin_sync(checkpoint=checkpoint)
        if job is None:
            return
        try:
            job.run()
        except StorageError as error:
            self.end_sync(job, error)
            raise
        self.end_sync(job)

    def truncate(self, offset: int, now_ms: int) -> int:
        """Cut everything off from the batch on that holds this offset; returns the new end.

        What stays is durable on return, as is the cut.  A sync that is under way may go on.
        """
        self._check_usable()
        if offset >= self.end_offset:
            return self.end_offset
        if offset < self.start_offset:
            raise LocalProtocolError(f"offset {offset}: the log begins at {self.start_offset}")
        interval = self.config.index_interval_bytes
        segment = self._segment_of(offset)
        position, header = next(segment.headers(offset, self.epochs, interval))
        end = header.base_offset
        if end < self.start_offset:  # the start lies inside the batch that goes
            self.reset(self.start_offset, now_ms)
            return self.end_offset
        keep = self._bases.index(segment.base_offset)
        file = self._carry_out(end, segment.base_offset, position, anew=False)
        segments = [*self._segments[:keep], segment.cut(file, end, self.epochs, interval)]
        self.epochs.cut(end)
        producers = producers_of(self._storage, segments, self.epochs, interval, now_ms)
        self._become(segments, producers)
        return end

    def reset(self, offset: int, now_ms: int) -> None:
        """Forget everything and begin anew at this offset; durable on return."""
        self._check_usable()
        file = self._carry_out(offset, offset, 0, anew=True)
        self.epochs = EpochHistory()
        self.start_offset = offset
        segment = Segment(
            self._storage,
            offset,
            file,
            next_offset=offset,
            index=SparseIndex(),
            began_ms=now_ms,
        )
        self._become([segment], ProducerTable())

    def _carry_out(self, end: int, base: int, size: int, *, anew: bool) -> LogFile:
        """Cut the files; when that fails half way, the log is out of use."""
        cut = Cut(self._cuts + 1, end, base, size, anew)
        try:
            for file in self._unsynced:
                file.sync()
            if self._unsynced_epochs is not None:
                self._unsynced_epochs.sync()
            self._storage.replace_file(CUT, seal(cut))
            return carry_out(self._storage, cut)
        except StorageError as error:
            self._broken = error
            raise

    def _become(self, segments: list[Segment], producers: ProducerTable) -> None:
        """Take what a cut left, all of it durable."""
        self._cuts += 1
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._epoch = self.epochs.latest
        self.producers = producers
        self.end_offset = self.synced_offset = self._active.next_offset
        self._unsynced = []
        self._unsynced_epochs = None
        self._names_synced = self._names_changed
        self._checkpoint_base = -1  # the next sync notes where a recovery may begin

    def delete_records(self, before: int, now_ms: int, upper: int | None = None) -> int | Refused:
        """Forget records before this offset (−1: before `upper`); returns the new start offset.

        The start is durable on return; whole segments before it go.
        """
        self._check_usable()
        limit = self.end_offset if upper is None else min(upper, self.end_offset)
        target = limit if before == -1 else before
        if not 0 <= target <= limit:
            return Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {before} is outside 0 … {limit}")
        if target > self.start_offset:
            self._advance_start(target, now_ms)
        return self.start_offset

    def maintain(self, now_ms: int, upper: int | None = None) -> int:
        """Apply retention to closed segments below `upper`; returns how many went.

        Also forgets silent producers and the indexes of closed segments, and removes the files of
        segments that were deleted a minute ago.
        """
        self._check_usable()
        config = self.config
        self.producers.expire(now_ms - config.producer_expiration_ms, config.producers_max)
        for segment in self._segments[:-1]:
            segment.forget_index()
        while self._deleted and self._deleted[0][0] + config.delete_delay_ms <= now_ms:
            self._storage.remove(self._deleted.pop(0)[1])
        limit = self.end_offset if upper is None else min(upper, self.end_offset)
        oldest_ms = now_ms - config.retention_ms
        active = self._active
        if config.retention_ms >= 0 and active.size and 0 <= active.newest_ms < oldest_ms:
            self._roll()
        before = len(self._segments)
        total = self.size_bytes
        start = self.start_offset
        for segment in self._segments[:-1]:
            too_old = config.retention_ms >= 0 and 0 <= segment.newest_ms < oldest_ms
            too_long = 0 <= config.retention_bytes <= total - segment.size
            if segment.next_offset > limit or not (too_old or too_long):
                break
            start = segment.next_offset
            total -= segment.size
        if start > self.start_offset:
            self._advance_start(start, now_ms)
        return before - len(self._segments)

    def close(self) -> None:
        """Make everything durable and mark the log as closed properly."""
        if self._closed or self._broken is not None:
            return
        self.sync(checkpoint=False)  # a job that is under way may be writing one
        self._active.save_index()
        name = segment_name(self.end_offset, PRODUCERS)
        self._storage.replace_file(name, self.producers.to_bytes(self.end_offset))
        self._storage.replace_file(CLEAN, seal(CleanStop(rows_of(self._segments))))
        self._closed = True

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise StorageError(f"the log is out of use since: {self._broken}") from self._broken
        if self._closed:
            raise LocalProtocolError("the log is closed")

    def _segment_of(self, offset: int) -> Segment:
        """The segment that holds this offset, or would."""
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def _begin_epoch(self, epoch: int) -> None:
        """Write a new epoch down before its first batch; a sync makes it durable before that."""
        if epoch < self.epochs.latest:
            raise LocalProtocolError(
                f"epoch {epoch} lies before the log's epoch {self.epochs.latest}"
            )
        self._unsynced_epochs = note_epoch(self._storage, epoch, self.end_offset)
        self.epochs.begin(epoch, self.end_offset)
        self._epoch = epoch

    def _cut_back(self, file: LogFile, size: int) -> None:
        """Undo an append that failed half way; when that fails too, the log is out of use."""
        try:
            file.truncate(size)
        except StorageError as error:
            self._broken = error

    def _roll(self) -> Segment:
        """Close the active segment and begin another at the log's end."""
        old = self._active
        segment = new_segment(self._storage, self.end_offset, old.began_ms)
        old.save_index()
        name = segment_name(self.end_offset, PRODUCERS)
        with suppress(StorageError):  # only saves time at the next start
            self._storage.write_file(name, self.producers.to_bytes(self.end_offset))
        self._unsynced.append(old.file)
        self._names_changed += 1
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._active = segment
        return segment

    def _advance_start(self, offset: int, now_ms: int) -> None:
        """Move the start, durably, and let go of whole segments before it."""
        keep_producers(self._storage, self._segment_of(offset).base_offset)
        self._storage.replace_file(START, seal(StartFile(offset)))
        self.start_offset = offset
        while len(self._segments) > 1 and self._segments[0].next_offset <= offset:
            base = self._segments[0].base_offset
            name = segment_name(base, LOG)
            self._storage.rename(name, name + DELETED)
            self._storage.remove(segment_name(base, INDEX))
            self._storage.remove(segment_name(base, PRODUCERS))
            self._deleted.append((now_ms, name + DELETED))
            gone = self._segments.pop(0)
            self._unsynced = [file for file in self._unsynced if file is not gone.file]
            del self._bases[0]
        self.epochs.forget(self._bases[0])
