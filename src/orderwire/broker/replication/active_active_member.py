"""A member of an active-active partition: stores, promises, copies, is done.  [R2-R5, R10]

The original is a member like any other, and tells itself what it tells the others.
"""

from collections import deque

from orderwire.broker.flush import Flush
from orderwire.broker.log import ProducerBatch, StorageError
from orderwire.broker.replication.active_active_assigned import AssignedProducers, sequenced
from orderwire.broker.replication.active_active_files import ReplicaFiles
from orderwire.broker.replication.active_active_messages import (
    Closed,
    Collect,
    Commit,
    Copied,
    CopyFailed,
    Done,
    Held,
    Pulled,
    RelayAppend,
    RelayRefused,
    RelayStored,
    SyncClose,
    SyncCopy,
    SyncPull,
)
from orderwire.broker.replication.effects import Advance, Orphaned, Sync
from orderwire.broker.replication.links import Links
from orderwire.broker.replication.office import Office
from orderwire.broker.replication.outbox import Outbox
from orderwire.broker.replication.seal import Seal
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.spans import Span
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import BatchHeader, read_header, walk
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.kernel.errors import RemoteProtocolError


class _Source:
    """What one peer has to give, in ascending order."""

    def __init__(self) -> None:
        self.left: deque[Span] = deque()
        """Not asked for yet, or not here yet."""
        self.pieces: deque[tuple[int, int, bytes, int, int]] = deque()
        """First offset, the offset behind the last, and where the batch stands in what came: here,
        and not in the log yet."""
        self.asked = False


class _Copying:
    """One attempt at one round, at one member."""

    def __init__(self, original: BrokerId, plan: SyncCopy) -> None:
        self.original = original
        self.plan = plan
        self.seals = {first: (end, epoch) for first, end, epoch in plan.seals}
        self.sources: dict[BrokerId, _Source] = {}
        for source, first, end in sorted(plan.pulls, key=lambda pull: pull[1]):
            self.sources.setdefault(source, _Source()).left.append((first, end))
        self.told = False


class Member:
    """What every replica does for its original."""

    def __init__(
        self,
        files: ReplicaFiles,
        office: Office,
        links: Links,
        settings: ReplicationSettings,
        out: Outbox,
    ) -> None:
        self.files = files
        self.office = office
        self.links = links
        self.settings = settings
        self.out = out
        self.closed: int | None = None
        """Nothing is stored below this offset in the known epoch; None: no promise yet.  [R3]"""
        self.assigned_end = 0
        """As the original said."""
        self._refused_stream = -1
        self._closed_for = (-1, -1)
        self._copying: _Copying | None = None
        self._copied = AssignedProducers(files.log)
        """Idempotent producers as far as we have what they sent."""

    def begin_epoch(self) -> None:
        """A higher epoch is known: promises to the one before are void.  [R2]"""
        self.closed = None
        self._refused_stream = -1
        self._closed_for = (-1, -1)
        self._copying = None

    def rejoined(self) -> None:
        """Everything we have is committed: the next Close is the first that we promise."""
        self.closed = None
        self._copying = None

    def disconnected(self, broker: BrokerId) -> None:
        """Nothing more comes from this one, and nothing of what it sent is on its way."""
        if broker == self.office.original:
            self._refused_stream = -1
        copying = self._copying
        if copying is not None and broker in copying.sources and copying.sources[broker].left:
            self._fail(copying, broker)

    # Storing.

    def promised(self, base: int) -> bool:
        """Whether we have promised not to store this offset any more.  [R3]"""
        return self.closed is not None and base < self.closed

    def store(self, records: Buffer, now: Instant, *, eager: bool = False) -> str | None:
        """Keep assigned batches; `eager` are sent to all.  A sentence says why not."""
        base = read_header(records).base_offset
        if self.promised(base):
            return f"offset {base} lies below {self.closed}, where a round has closed"
        if base < self.files.log.end_offset:
            return f"offset {base} lies below our log's end {self.files.log.end_offset}"
        try:
            refused = self.files.take(records, now) if eager else self.files.keep(records)
        except StorageError as error:
            return str(error)
        return None if refused is None else refused.message

    def put_on_disk(self) -> None:
        """With `flush=message` nobody hears that a request is stored before it is on disk, by
        itself: the paper's regime.  [S004:4.4]  Raises StorageError."""
        if self.settings.flush is Flush.MESSAGE:
            self.files.pending.sync()

    def relay(self, source: BrokerId, message: RelayAppend, now: Instant) -> None:
        """Store what the original gave to us.  [R1]"""
        header = read_header(message.records)
        base = header.base_offset
        if message.stream <= self._refused_stream:
            reason: str | None = "what was sent before was refused"
        else:
            reason = self.store(message.records, now, eager=not message.tells)
        if reason is not None:
            self._refused_stream = max(self._refused_stream, message.stream)
            self.out.tell(source, RelayRefused(message.epoch, base, message.stream, reason))
            return
        noted = sequenced(header, base)
        if noted is not None:
            self._copied.note(*noted, 0)
        self.put_on_disk()
        if message.tells:
            self.out.tell(source, RelayStored(message.epoch, base))

    def copied(self, message: Copied, now: Instant) -> None:
        """Take a copy.  Before our first promise in an epoch we cannot know what is settled."""
        if self.closed is None or not self.office.in_sync:
            return
        header = read_header(message.records)
        noted = sequenced(header, header.base_offset)
        if noted is not None and not self._follows(noted):
            return
        if self.store(message.records, now, eager=True) is None and noted is not None:
            self._copied.note(*noted, 0)

    def _follows(self, noted: tuple[int, int, ProducerBatch]) -> bool:
        """Whether we have what its producer sent before: nothing may be left that has a gap.  [I9]

        A copy that came too late for one round would be missing below a later one, should both who
        have it be lost.
        """
        producer_id, epoch, batch = noted
        first = batch.first_sequence
        if first == 0:
            return True
        if not self._copied.knows(producer_id):
            return False
        return self._copied.check(producer_id, epoch, first, batch.last_sequence) is None

    def _count_copies(self) -> None:
        """What is pending counts, from the log's end on."""
        self._copied = AssignedProducers(self.files.log)
        for header in self.files.pending.held(self.files.log.end_offset - 1):
            noted = sequenced(header, header.base_offset)
            if noted is not None:
                self._copied.note(*noted, 0)

    # Rounds.

    def collect(self, source: BrokerId, message: Collect) -> None:
        """Say what we have.  What a lower epoch still sends is refused by now.  [R7]"""
        self._copying = None
        self.closed = None  # to a recovery that went further, by what is gone: nothing is assigned
        held = self.files.held(self.files.committed)
        self.out.tell(
            source,
            Closed(
                message.epoch,
                message.round,
                message.attempt,
                self.files.committed,
                held,
                known=max(self.files.committed, self.files.kept.high_watermark),
                doubtful=self.files.doubtful,
            ),
        )

    def close(self, source: BrokerId, message: SyncClose, now: Instant) -> None:
        """Promise, and say what we have.  [R3]"""
        attempt = (message.round, message.attempt)
        if attempt < self._closed_for:
            return
        self._closed_for = attempt
        self._copying = None
        self.closed = max(self.closed or 0, message.end)
        self.assigned_end = max(self.assigned_end, message.end)
        self._advance_to(message.start, now)
        held = self.files.held(message.start, message.end)
        alone = self._lacks_nothing(source, message, held)
        self.out.tell(source, Closed(message.epoch, *attempt, self.files.committed, held, alone))
        if alone:
            plan = SyncCopy(message.epoch, *attempt, message.end, [], [], now // NS_PER_MS)
            self._copying = copying = _Copying(source, plan)
            self._write(copying, now)

    def _lacks_nothing(self, source: BrokerId, message: SyncClose, held: list[Held]) -> bool:
        """Whether we have all that the round is about: nobody can have anything else there."""
        if source == self.office.me and message.attempt:
            return False  # as original we are told soon enough
        at = message.start
        for first, behind, _ in held:
            if first > at:
                break
            at = behind
        return at >= message.end and self.files.log.end_offset >= message.start

    def copy(self, source: BrokerId, plan: SyncCopy, now: Instant) -> None:
        """Get what we lack and write it all into the log.  [R5]"""
        self.closed = max(self.closed or 0, plan.end)
        for first, behind, epoch in plan.stale:
            self._let_go(first, behind, epoch, now)
        self._copying = copying = _Copying(source, plan)
        self._write(copying, now)

    def _let_go(self, first: int, behind: int, epoch: int, now: Instant) -> None:
        """What an earlier epoch gave us is not what stands there: it becomes an orphan.  [R8]"""
        files = self.files
        found: list[BatchHeader] = []
        if files.log.end_offset > first and files.log.epochs.at(first) == epoch:
            found += files.set_aside_above(first, now)
        found += files.set_aside(
            [
                each
                for each in files.pending.overlapping(first, behind - 1)
                if each.leader_epoch == epoch
            ]
        )
        for header in found:
            self.out.note(Orphaned(header.base_offset, header.leader_epoch, header.count))

    def pull(self, source: BrokerId, message: SyncPull) -> None:
        """Give a peer the next of what it asks for, no more than fits."""
        room = self.settings.message_bytes_max
        parts: list[bytes] = []
        for first, end in message.spans:
            at = first
            while at < end and room > 0:
                part = self.files.read((at, end), room)
                if not part or (parts and len(part) > room):
                    break
                parts.append(part)
                room -= len(part)
                at = _end_of(part)
            if at < end:
                break
        self.out.tell(
            source, Pulled(message.epoch, message.round, message.attempt, b"".join(parts))
        )

    def pulled(self, source: BrokerId, message: Pulled, now: Instant) -> None:
        """Take what a peer gave."""
        copying = self._copying
        if (
            copying is None
            or (message.round, message.attempt) != (copying.plan.round, copying.plan.attempt)
            or source not in copying.sources
        ):
            return
        each = copying.sources[source]
        each.asked = False
        for at, header in walk(message.records):
            end = header.last_offset + 1
            if not each.left or each.left[0][0] != header.base_offset or each.left[0][1] < end:
                raise RemoteProtocolError(
                    f"{source} sent offsets {header.base_offset} … {header.last_offset}, asked for"
                    f" were {list(each.left)[:3]} …"
                )
            first, behind = each.left.popleft()
            if end < behind:
                each.left.appendleft((end, behind))
            each.pieces.append((first, end, message.records, at, at + header.size_bytes))
        if not message.records:
            self._fail(copying, source)
            return
        self._write(copying, now)

    def _ask(self, copying: _Copying, peer: BrokerId, each: _Source) -> None:
        if not self.links.up(peer):
            self._fail(copying, peer)
            return
        each.asked = True
        plan = copying.plan
        message = SyncPull(plan.epoch, plan.round, plan.attempt, list(each.left))
        self.out.tell(peer, message)

    def _fail(self, copying: _Copying, source: BrokerId) -> None:
        plan = copying.plan
        self._copying = None
        message = CopyFailed(plan.epoch, plan.round, plan.attempt, source)
        self.out.tell(copying.original, message)

    def _write(self, copying: _Copying, now: Instant) -> None:
        """Write on as far as there is no gap.  [R4, R5]"""
        files, plan = self.files, copying.plan
        while (at := files.log.end_offset) < plan.end:
            sealed = copying.seals.get(at)
            if sealed is not None:
                end, epoch = sealed
                reason = Seal(at, end - 1, plan.epoch, plan.round, "nobody in sync had it")
                files.settle_seal(end, epoch, reason, plan.at_ms, now)
            elif files.pending.covering(at) is not None:
                files.settle_pending(plan.end, now)
            elif not self._write_pulled(copying, at, now):
                break
            if self._copying is not copying:
                return
        for peer, each in copying.sources.items():
            if each.left and not each.pieces and not each.asked and self._copying is copying:
                self._ask(copying, peer, each)
        self.synced(now)

    def _write_pulled(self, copying: _Copying, at: int, now: Instant) -> bool:
        for source, each in copying.sources.items():
            run: list[memoryview] = []
            end = at
            while each.pieces and each.pieces[0][0] <= end:
                first, behind, records, start, stop = each.pieces.popleft()
                if first == end:
                    run.append(memoryview(records)[start:stop])
                    end = behind
            if not run:
                continue
            refused = self.files.settle(b"".join(run), now)
            if refused is not None:
                self._fail(copying, source)
            return True
        return False

    def durable(self, end: int) -> bool:
        """Whether everything below is on disk, or need not be.  [R5, G17]"""
        return self.files.durable_end >= end

    def synced(self, now: Instant) -> None:
        """Say that we are done, once that is true."""
        copying = self._copying
        if copying is None or copying.told:
            return
        plan = copying.plan
        if self.files.log.end_offset < plan.end:
            return
        if not self.durable(plan.end):
            self.out.add(Sync())
            return
        copying.told = True
        self.files.kept.settle()
        self.files.doubtful = False
        self.files.forget_settled()
        self._count_copies()
        self.out.tell(copying.original, Done(plan.epoch, plan.round, plan.attempt, plan.end))

    def commit(self, message: Commit, now: Instant) -> None:
        """Learn S.  [R6]"""
        self.assigned_end = max(self.assigned_end, message.assigned)
        self._advance_to(message.committed, now)
        self.files.follow_start(message.log_start, now)

    def _advance_to(self, committed: int, now: Instant) -> None:
        if self.files.commit(committed, now):
            self.out.add(Advance(self.files.committed))


def _end_of(records: bytes) -> int:
    last: BatchHeader | None = None
    for _, header in walk(records):
        last = header
    assert last is not None
    return last.last_offset + 1
