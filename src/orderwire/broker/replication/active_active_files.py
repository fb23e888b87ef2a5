"""What an active-active replica has on its disk: main log, pending journal, orphans, promises.

The main log is contiguous; what has a gap before it waits in the pending journal for a round.  A
batch leaves one file only when it stands in another, as durably as it stood.  [S004:4.1, S004:9.5]
"""

from orderwire.broker.flush import Flush
from orderwire.broker.log import (
    LogDamaged,
    PartitionLog,
    Refused,
    Storage,
    StorageError,
    SyncJob,
)
from orderwire.broker.replication.active_active_messages import Held
from orderwire.broker.replication.batch_store import StoreSync
from orderwire.broker.replication.kept import Kept, behind_batch
from orderwire.broker.replication.orphans import Orphans
from orderwire.broker.replication.pending_journal import PendingJournal
from orderwire.broker.replication.seal import Seal, make_seal, may_be_seal, read_seal
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.spans import Span
from orderwire.broker.wire.batch import CONTROL, BatchHeader, place, read_header, walk
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_MS, Instant

_NOTE_BYTES = 16 << 20
_NOTE_NS = 5_000 * NS_PER_MS
"""S is noted after so much, or so long: what lies behind is compared again after a restart."""

_AGAIN = "published again"
Identity = tuple[int, int]
"""Offset and epoch that an orphan had."""


class FilesSync:
    """What of a replica's files is not durable; `run` may run in a thread."""

    def __init__(self, log: SyncJob | None, orphans: StoreSync | None) -> None:
        self.log = log
        self.orphans = orphans

    def run(self) -> None:
        """Wait for the disk.  Raises StorageError."""
        if self.orphans is not None:
            self.orphans.run()
        if self.log is not None:
            self.log.run()


class ReplicaFiles:
    """One partition's files at one replica."""

    def __init__(self, storage: Storage, log: PartitionLog, settings: ReplicationSettings) -> None:
        """Open what lies beside the log.  Raises StorageError."""
        self.log = log
        self._waits_for_disk = settings.flush is not Flush.NONE
        self._follows_at_once = settings.flush is not Flush.MESSAGE
        """The paper's replicas keep a journal of what they have taken, and sync that."""
        self.kept = Kept(storage)
        # An original refuses before this is full; members take what it has assigned.
        self.pending = PendingJournal(storage, 2 * settings.pending_bytes_max, log.end_offset)
        self.orphans = Orphans(storage)
        noted = min(self.kept.high_watermark, log.end_offset)
        self.committed = behind_batch(log, max(noted, log.start_offset))
        """S + 1.  [R6]"""
        self.doubtful = not self._waits_for_disk and not log.recovery.clean
        """Where nobody waits for the disk, what was not closed may have lost something that is
        committed.  [S004:4.8]"""
        self._noted_size = log.size_bytes
        self._noted_at: Instant = Instant(0)

    @property
    def known_epoch(self) -> int:
        """The highest epoch we have acted in.  [R2]"""
        return self.kept.known_epoch

    @property
    def durable_end(self) -> int:
        """All below survives a power failure; with `flush=none`, the process.  [G17]"""
        return self.log.synced_offset if self._waits_for_disk else self.log.end_offset

    @property
    def end(self) -> int:
        """One behind the highest offset that we have, contiguous or not."""
        return max(self.log.end_offset, self.pending.end_offset)

    # What we have.

    def held(self, start: int, end: int | None = None) -> list[Held]:
        """Runs of batches at or behind `start` (and before `end`), by epoch, ascending."""
        runs: list[Held] = []
        log = self.log
        limit = log.end_offset if end is None else min(log.end_offset, end)
        at = max(start, log.start_offset)
        while at < limit:
            behind = min(log.epochs.next_change(at), limit)
            runs.append((at, behind, log.epochs.at(at)))
            at = behind
        for header in self.pending.held(max(start, log.end_offset) - 1):
            behind = header.last_offset + 1
            if end is not None and behind > end:
                break
            if runs and runs[-1][1] == header.base_offset and runs[-1][2] == header.leader_epoch:
                runs[-1] = (runs[-1][0], behind, header.leader_epoch)
            else:
                runs.append((header.base_offset, behind, header.leader_epoch))
        return runs

    def has(self, header: BatchHeader) -> bool:
        """Whether exactly this batch is pending."""
        mine = self.pending.at(header.base_offset)
        return (
            mine is not None and mine.crc == header.crc and mine.leader_epoch == header.leader_epoch
        )

    def keep(self, records: Buffer) -> Refused | None:
        """Put placed batches into the journal, all or none; those that are there stay."""
        with memoryview(records) as view:
            new = [(at, header) for at, header in walk(records) if not self.has(header)]
            return self.pending.append_all(view, new) if new else None

    def take(self, records: Buffer, now: Instant) -> Refused | None:
        """Keep placed batches that all replicas are sent, all or none.  Raises StorageError.

        What follows the log's end goes there at once: a round would put it there, and what the log
        has above S is given up as what the journal has, should others commit without.
        """
        log = self.log
        if self._follows_at_once and not len(self.pending):
            with memoryview(records) as view:
                first = read_header(view).base_offset
            if first == log.end_offset:
                return self.settle(records, now)
        return self.keep(records)

    def read(self, span: Span, bytes_max: int) -> bytes:
        """Whole batches from the start of this span on, side by side; empty when that is not here.

        Raises LogDamaged.
        """
        start, end = span
        if start < self.log.end_offset:
            data = self.log.copy(start, bytes_max, end)
            return b"" if isinstance(data, Refused) else data
        return self.pending.read_run(start, end, bytes_max)

    # The main log.

    def settle(self, records: Buffer, now: Instant) -> Refused | None:
        """Append batches that follow the main log's end.  Raises StorageError."""
        done = self.log.append_placed(records, now // NS_PER_MS)
        return done if isinstance(done, Refused) else None

    def _settle_ours(self, records: Buffer, now: Instant) -> None:
        refused = self.settle(records, now)
        if refused is not None:
            raise LogDamaged(f"cannot settle at offset {self.log.end_offset}: {refused.message}")

    def settle_pending(self, end: int, now: Instant) -> None:
        """Move what the journal has next into the main log, as far as it goes without a gap.

        Raises LogDamaged when that is a batch which began before the log's end.
        """
        first = start = self.log.end_offset
        while start < end and (data := self.read((start, end), 1 << 20)):
            self._settle_ours(data, now)
            start = self.log.end_offset
        if start == first < end:
            raise LogDamaged(f"the log ends at {start}, inside a batch of the journal")

    def settle_seal(self, end: int, epoch: int, reason: Seal, at_ms: int, now: Instant) -> None:
        """Put a control batch where nobody has anything.  [R4]

        It bears the epoch of what surrounds it, as epochs never go back in a log; who found the
        hole stands inside.
        """
        batch = make_seal(reason, at_ms)
        header = read_header(batch)
        assert header.last_offset + 1 == end
        place(batch, 0, header.batch_length, header.base_offset, epoch)
        self._settle_ours(batch, now)

    def begin_sync(self) -> FilesSync | None:
        """Collect what is not durable yet; None when all is."""
        work = FilesSync(self.log.begin_sync(), self.orphans.begin_sync())
        return None if work.log is None and work.orphans is None else work

    def end_sync(self, work: FilesSync, error: StorageError | None) -> None:
        """Take note of what has run."""
        if work.orphans is not None:
            self.orphans.end_sync(work.orphans, error)
        if work.log is not None:
            self.log.end_sync(work.log, error)

    def forget_settled(self) -> None:
        """Drop from the journal what is durable in the main log."""
        self.pending.forget_below(self.durable_end)

    def commit(self, committed: int, now: Instant) -> bool:
        """S moves, as far as our log goes; returns whether it did.  [R6]"""
        reached = min(committed, self.log.end_offset)
        if reached <= self.committed:
            return False
        self.committed = reached
        self.kept.moved()
        if (
            self.log.size_bytes - self._noted_size >= _NOTE_BYTES
            or now - self._noted_at >= _NOTE_NS
        ):
            self.note(now)
        return True

    def go_back(self, committed: int, now: Instant) -> list[BatchHeader]:
        """S is this: what lies behind is lost, and what we have of it others have not.  Returns
        what became orphans, as all of our log lies behind."""
        orphans: list[BatchHeader] = []
        start = self.log.start_offset
        if committed < start:
            orphans = self.set_aside_above(start, now)
            self.log.reset(committed, now // NS_PER_MS)
        self.committed = committed
        return orphans

    def note(self, now: Instant) -> None:
        """Write S down.  Raises StorageError."""
        self._noted_at, self._noted_size = now, self.log.size_bytes
        self.kept.note_high_watermark(self.committed)

    def follow_start(self, log_start: int, now: Instant) -> None:
        """The original's log begins there now."""
        if log_start > self.log.start_offset:
            before = min(log_start, self.committed)
            self.log.delete_records(before, now // NS_PER_MS, self.committed)

    # Orphans.

    def set_aside_above(self, offset: int, now: Instant) -> list[BatchHeader]:
        """What we hold from this offset on becomes orphans: all that nobody has committed.  [R8]

        Seals go without a trace.
        """
        log = self.log
        found: list[BatchHeader] = []
        if log.end_offset > offset:
            for header in list(log.batches(offset)):
                if header.base_offset < offset or header.attributes & CONTROL:
                    continue
                batch = log.copy(header.base_offset, header.size_bytes, header.last_offset + 1)
                assert isinstance(batch, bytes)
                if not self._is_again(header) and self.orphans.set_aside(batch):
                    found.append(header)
        found += self.set_aside(self.pending.held(offset - 1))
        log.truncate(offset, now // NS_PER_MS)
        return found

    def set_aside(self, pending: list[BatchHeader]) -> list[BatchHeader]:
        """Let batches of the journal become orphans.  [R8]

        As durably as they were: with `flush=message` the disk is waited for, else a power failure
        may take what was in the journal, and does not have to be waited for here.  With
        `flush=none` it is, too: it may take the log, and what was let go must not come back then.
        """
        found = [
            header
            for header in pending
            if not header.attributes & CONTROL
            and not self._is_again(header)
            and self.orphans.set_aside(self.pending.read(header.base_offset))
        ]
        waits = not (self._follows_at_once and self._waits_for_disk)
        if waits and found:
            self.orphans.sync()
        for header in pending:
            self.pending.drop(header.base_offset)
        if waits and pending:
            self.pending.sync()
        return found

    # What stands before an orphan that is published again.

    def name_of(self, orphan: BatchHeader, base: int, epoch: int, now: Instant) -> bytearray:
        """The control batch that names it."""
        name = Seal(base, base, orphan.leader_epoch, orphan.base_offset, _AGAIN)
        batch = make_seal(name, now // NS_PER_MS)
        place(batch, 0, read_header(batch).batch_length, base, epoch)
        return batch

    def named_by(self, header: BatchHeader) -> Identity | None:
        """Which orphan this batch names, if it is such a control batch.  Raises LogDamaged."""
        if not may_be_seal(header):
            return None
        if header.base_offset < self.log.end_offset:
            batch = self.log.copy(header.base_offset, header.size_bytes, header.last_offset + 1)
            assert isinstance(batch, bytes)
        else:
            batch = self.pending.read(header.base_offset)
        seal = read_seal(batch)
        if seal is None or seal.reason != _AGAIN:
            return None
        return seal.round, seal.epoch

    def _is_again(self, header: BatchHeader) -> bool:
        """Whether this is an orphan that somebody published again, and so has set aside."""
        before = header.base_offset - 1
        name: BatchHeader | None = None
        if self.log.start_offset <= before < self.log.end_offset:
            name = next(self.log.batches(before, header.base_offset))
        else:
            name = self.pending.covering(before)
        return name is not None and self.named_by(name) is not None

    def committed_at(self, base: int) -> BatchHeader | None:
        """The committed batch that begins at this offset; it may hold the log's start."""
        if base >= self.committed:
            return None
        found = next(self.log.batches(base, max(base, self.log.start_offset) + 1), None)
        return found if found is not None and found.base_offset == base else None

    def begin_anew(self, offset: int, now: Instant) -> None:
        """Forget the whole log: the next batch is this one."""
        self.log.reset(offset, now // NS_PER_MS)
        self.committed = max(self.committed, offset)

    def close(self, now: Instant) -> None:
        """Close the files properly."""
        self.note(now)
        self.log.close()
