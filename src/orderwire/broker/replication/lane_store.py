"""What a replica with lanes has on its disk, and what it has of others' lanes in memory."""

from collections.abc import Iterable

from orderwire.broker.log import Appended, LogDamaged, PartitionLog, Storage, StorageError, SyncJob
from orderwire.broker.log.storage import LogFile
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.lane import STAY_BITS, Lane
from orderwire.broker.replication.lane_copy import LaneCopy
from orderwire.broker.replication.lane_cuts import CutHistory
from orderwire.broker.replication.lane_messages import CutRecord, LaneCut, Stamp
from orderwire.broker.replication.lane_order import Placed
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel.errors import RemoteProtocolError

STAYS_PASSED = 1 << 14
"""No replica has been in sync so many times more often than another: a lane's positions go on
behind."""


class LaneSync:
    """Main log and cuts that are not durable yet."""

    def __init__(
        self,
        cuts: LogFile | None,
        log: SyncJob | None,
        record: CutRecord,
        *,
        changes: int,
        undone: int,
    ) -> None:
        self._cuts = cuts
        self.log = log
        self.record = record
        """The last cut that it covers."""
        self.changes = changes
        """Of the file of cuts, so far."""
        self.undone = undone
        """How often cuts had been taken back."""

    def run(self) -> None:
        """Wait for the disk.  Raises StorageError."""
        if self._cuts is not None:
            self._cuts.sync()
        if self.log is not None:
            self.log.run()


class LaneStore:
    """Files: the main log, its cuts, our lane, the epoch we promised to keep to."""

    def __init__(
        self,
        me: BrokerId,
        storage: Storage,
        log: PartitionLog,
        now_ms: int,
        *,
        waits_for_disk: bool = True,
    ) -> None:
        """Open what is there; a cut of which only a part was written is cut off."""
        self.me = me
        self._waits_for_disk = waits_for_disk
        self.log = log
        self.kept = Kept(storage)
        self.doubtful = not waits_for_disk and not log.recovery.clean
        """Where nobody waits for the disk, what was not closed may have lost something that is
        committed.  [S004:4.8]"""
        self.cuts = CutHistory(
            storage,
            log.end_offset,
            lambda end: log.epochs.at(end - 1) if log.start_offset < end <= log.end_offset else -1,
        )
        begun_anew = self.last.end_offset < log.start_offset
        if not begun_anew and log.end_offset > self.last.end_offset:
            log.truncate(self.last.end_offset, now_ms)
        self.lane = Lane(storage, self.last.end_of(me))
        self.copies: dict[int, LaneCopy] = {}
        self._synced: Stamp = self.last.stamp
        """The last cut that is on disk."""
        self._undone_times = 0
        """How often something was taken back."""
        if begun_anew:  # a crash came before the cuts were
            self.reset(log.start_offset, now_ms)

    @property
    def last(self) -> CutRecord:
        """The cut that the main log is."""
        return self.cuts.last

    @property
    def noted_committed(self) -> int:
        """S + 1 as files say; what a cut says that was made before the last loss is over."""
        last, kept = self.last, self.kept
        said = last.committed if last.epoch >= kept.lost_epoch else 0
        return max(said, kept.high_watermark)

    def copy(self, broker: int) -> LaneCopy:
        """What we have of another's lane."""
        found = self.copies.get(broker)
        if found is None:
            found = self.copies[broker] = LaneCopy(self.last.end_of(broker))
        return found

    def parts(self, broker: int, start: int, end: int) -> list[tuple[int, bytes]]:
        """A lane between two positions, as far as it is here."""
        if broker == self.me:
            return list(self.lane.parts(start, end))
        return self.copy(broker).parts(start, end)

    def has(self, cut: LaneCut) -> bool:
        """Whether everything that a cut orders seems to be here."""
        return all(
            piece.broker == self.me or self.copy(piece.broker).end >= piece.end
            for piece in cut.slices
        )

    def apply(self, cut: LaneCut, now_ms: int) -> dict[int, Placed] | None:
        """Write a cut that continues our last one; None when something is missing.

        Raises RemoteProtocolError when what is here is not what was cut.
        """
        assert cut.previous == self.last.stamp
        assert cut.start_offset == self.log.end_offset
        if not self.has(cut):
            return None
        placed: dict[int, Placed] = {}
        offset = cut.start_offset
        for piece in cut.slices:
            if piece.offset != offset:
                return None
            found = placed[piece.broker] = Placed(cut.epoch, offset)
            found.place(self.parts(piece.broker, piece.start, piece.end), piece)
            offset = found.next_offset
        if offset != cut.end_offset:
            return None  # a power failure took a part of our lane; others have it
        for found in placed.values():
            self.write(found, now_ms)
        self.close_cut(cut)
        return placed

    def write(self, placed: Placed, now_ms: int) -> None:
        """Append a slice to the main log."""
        for run in placed.runs:
            self.copy_in(run, now_ms)

    def copy_in(self, records: Buffer, now_ms: int) -> None:
        """Append batches that have their places.  Raises RemoteProtocolError, StorageError."""
        done = self.log.append_placed(records, now_ms)
        if not isinstance(done, Appended):
            raise RemoteProtocolError(f"what another replica sent does not fit: {done.message}")

    def close_cut(self, cut: LaneCut) -> None:
        """Note that the main log is this cut now."""
        self.take_record(CutRecord(cut.epoch, cut.round, cut.end_offset, cut.ends, cut.committed))

    def take_record(self, record: CutRecord) -> None:
        """Note what the main log is now."""
        assert record.end_offset == self.log.end_offset
        self.cuts.append(record)
        if record.whole:
            for broker, copy in self.copies.items():
                copy.ordered(record.end_of(broker))

    def back_to(self, offset: int, now_ms: int) -> CutRecord:
        """Undo cuts until the log ends at or before this offset."""
        record = self.cuts.back_to(offset)
        if record.end_offset < self.log.start_offset:
            raise LogDamaged(
                f"the log begins at {self.log.start_offset}, behind every cut to {offset}"
            )
        self.log.truncate(record.end_offset, now_ms)
        self._undone(record)
        return record

    def reset(self, offset: int, now_ms: int) -> None:
        """Begin anew at this offset, knowing nothing of lanes."""
        record = CutRecord(-1, 0, offset, (), 0, whole=False)
        self.log.reset(offset, now_ms)
        self.cuts.reset(record)
        self._undone(record)

    def take_as_whole(self, others: Iterable[BrokerId]) -> None:
        """The log is all there is, though nobody here can say how much of each lane it has: nothing
        more is ordered of what lanes have now, lest it be twice in the log.  Durable on return."""
        last = self.last
        if last.whole:
            return
        assert self.log.end_offset == last.end_offset
        stay = (self.lane.end >> STAY_BITS) + STAYS_PASSED
        ends = dict.fromkeys(others, stay << STAY_BITS) | {self.me: self.lane.end}
        self.cuts.reset(CutRecord(-1, 0, last.end_offset, tuple(sorted(ends.items())), 0))
        self._undone(self.last)

    def _undone(self, record: CutRecord) -> None:
        self._undone_times += 1
        self._synced = record.stamp
        self.lane.back_to(record.end_of(self.me))
        for broker, copy in self.copies.items():
            copy.restart(record.end_of(broker))

    # Syncing.

    @property
    def durable(self) -> Stamp:
        """The last cut that survives a power failure; with `flush=none`, the process."""
        return self._synced if self._waits_for_disk else self.last.stamp

    @property
    def is_durable(self) -> bool:
        """Whether the last cut survives a power failure."""
        return self.durable == self.last.stamp

    def begin_sync(self) -> LaneSync | None:
        """Collect what is not durable yet; None when all is, and known to be.

        A cut without batches whose record came with a new file of cuts is on the disk already:
        who asked hears of it like of any other.
        """
        job = self.log.begin_sync()
        cuts = self.cuts
        dirty = cuts.synced < cuts.changes
        if job is None and not dirty and self.is_durable:
            cuts.safe = self.last
            return None
        file = cuts.file if dirty else None
        return LaneSync(file, job, self.last, changes=cuts.changes, undone=self._undone_times)

    def end_sync(self, work: LaneSync, error: StorageError | None) -> None:
        """Take note of work that has run."""
        if work.log is not None:
            self.log.end_sync(work.log, error)
        if error is None and work.undone == self._undone_times:
            self.cuts.synced = max(self.cuts.synced, work.changes)
            self._synced = work.record.stamp
            self.cuts.safe = work.record

    def close(self, high_watermark: int) -> None:
        """Close the files properly."""
        if not self.log.is_closed:
            self.cuts.file.sync()
            self.log.close()
            self.kept.note_high_watermark(high_watermark)
