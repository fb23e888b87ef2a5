"""Active-active with lanes: every replica takes batches, a round decides their order.  [S004:4.3]

Clients produce to any replica in sync; it appends to its own lane, which has no offsets, and sends
the same bytes to the others.  A round: the original says how far each lane is ordered now (the
cut: by broker id, then by place in the lane; offsets follow), members write that to their main
logs, sync, and answer Done; when all are, it is committed.  There are no holes, seals or orphans:
what a cut does not reach stays in its owner's lane and enters a later one.

acks=1 is answered when the owner has learned the cut that covers the batch.  Its offset is
provisional until the commit: should the original and everybody who wrote the cut fail before,
another order replaces it, and the batch another offset.  An idempotent producer's batch is answered
at the commit whatever its acks say, so what is not committed was never acknowledged to it and may
be ordered anew from its next attempt.  −1 is never answered as an offset.
"""

from collections.abc import Callable
from typing import Any

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import BesideDamaged, PartitionLog, Storage, StorageError
from orderwire.broker.replication.active_active_lanes_intake import LaneIntake
from orderwire.broker.replication.active_active_lanes_member import LaneMember
from orderwire.broker.replication.active_active_lanes_original import LaneOriginal
from orderwire.broker.replication.effects import (
    Advance,
    Deposed,
    Effects,
    Elect,
    Note,
    Tell,
)
from orderwire.broker.replication.kept import behind_batch
from orderwire.broker.replication.lane import whole_batches
from orderwire.broker.replication.lane_messages import (
    LaneBind,
    LaneBound,
    LaneCollect,
    LaneCommit,
    LaneCut,
    LaneData,
    LaneDiverged,
    LaneDone,
    LaneFenced,
    LaneFetch,
    LaneForward,
    LaneForwarded,
    LaneLog,
    LaneResend,
    LaneSlice,
    LaneState,
    Stamp,
)
from orderwire.broker.replication.lane_order import Placed
from orderwire.broker.replication.lane_producers import LaneProducers
from orderwire.broker.replication.lane_store import LaneStore, LaneSync
from orderwire.broker.replication.lane_waiting import WaitingRequests
from orderwire.broker.replication.office import Office
from orderwire.broker.replication.replica import SyncWork
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.kernel.errors import RemoteProtocolError

PUSH_BYTES = 64 << 10
"""So much of a lane is sent at once; less waits until what was sent before is ordered."""


class ActiveActiveLanes:
    """A replica of one partition.  See `replica.Replica` for what its methods mean."""

    def __init__(
        self,
        me: BrokerId,
        storage: Storage,
        log: PartitionLog,
        settings: ReplicationSettings,
        now: Instant,
    ) -> None:
        """Open the files beside the log.  Raises LogDamaged, StorageError."""
        self.me = me
        self.log = log
        self.settings = settings
        self.store = LaneStore(
            me,
            storage,
            log,
            now // NS_PER_MS,
            waits_for_disk=settings.flush is not Flush.NONE,
        )
        last = self.store.last
        hint = min(self.store.noted_committed, last.end_offset)
        self.high_watermark = behind_batch(log, max(hint, log.start_offset))
        self.links: set[BrokerId] = set()
        self.office = Office(
            me, settings.round_timeout_ns, self.store.kept, self.links.__contains__
        )
        self.lost_at: dict[int, Instant] = {}
        """When a connection that was there broke."""
        self.gone: set[BrokerId] = set()
        """Whose process is known to have ended."""
        self.producers = LaneProducers(log.config.producers_max)
        self.waiting = WaitingRequests()
        self.original: LaneOriginal | None = None
        """While we are."""
        self.member = LaneMember(self)
        self.intake = LaneIntake(self)
        self.is_open = False
        """Whether our lane takes batches: the original has told us how far it is ordered."""
        self._pushed: dict[BrokerId, int] = {}
        self._gathering = False
        """Whether something of our lane is on its way and not ordered."""
        self._gathered = 0
        """Bytes taken since the last look at that."""
        self._committed_end = last.end_of(me) if last.end_offset <= self.high_watermark else 0
        """How far our lane is committed, at least."""
        self._handlers: dict[type, Callable[[BrokerId, Any, Instant], Effects]] = {
            LaneData: self._data,
            LaneCut: self.member.cut,
            LaneDone: self._done,
            LaneCommit: self.member.commit,
            LaneResend: self._resend,
            LaneCollect: self.member.collect,
            LaneState: self._state,
            LaneFetch: self.member.serve,
            LaneLog: self.member.log_part,
            LaneDiverged: self.member.diverged,
            LaneBind: self.intake.bind,
            LaneBound: self.intake.bound,
            LaneForward: self.intake.forward,
            LaneForwarded: self.intake.forwarded,
            LaneFenced: self._fenced,
        }

    # What is known.

    @property
    def view(self) -> PartitionView | None:
        """The newest we were told."""
        return self.office.view

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The in-sync set, as far as we know."""
        return self.office.isr

    @property
    def in_sync(self) -> bool:
        """Whether we are in it."""
        return self.office.in_sync

    @property
    def known_epoch(self) -> int:
        """The highest epoch we have acted in.  [R2]"""
        return self.store.kept.known_epoch

    @property
    def takes_produce(self) -> bool:
        """Whether our lane takes batches.  [S004:4.3]"""
        return self.is_open

    @property
    def is_blank(self) -> bool:
        """Whether we do not know that we ever had what was committed, or what our log is."""
        return self.store.kept.is_blank or not self.store.last.whole

    @property
    def serves_fetch(self) -> bool:
        """Whether consumers may read here.  [S004:4.7]"""
        return self.in_sync

    @property
    def assigned_end(self) -> int:
        """One behind the last offset that a cut gave."""
        return self.log.end_offset

    # Views.

    def viewed(self, view: PartitionView, now: Instant) -> Effects:
        """Take what ZooKeeper says."""
        office = self.office
        before = office.view
        said = office.viewed(view, now)
        if said is None:
            return []
        if view.unclean and view.original is None and self.in_sync:
            self.member.stop_fetching(now)
            self.store.take_as_whole(each for each in view.replicas if each != self.me)
        effects = self._whole(said)
        if before is not None and (before.original, before.epoch) != (view.original, view.epoch):
            effects += self.intake.refuse_asked()  # who was asked may be gone
        floor = office.floor(self.high_watermark, self.log)
        if floor is not None:
            self._go_back(floor, now)
        fresh = view.epoch > self.known_epoch
        self.raise_epoch(view.epoch)
        if self.original is not None and office.epoch != self.original.epoch:
            effects += self._depose("ZooKeeper names another, or nobody")
        if not self.in_sync:
            effects += self._left_out()
        if self.original is not None:
            effects += self.original.viewed(now)
        elif office.epoch is not None:
            if fresh:
                effects += self._elected(view.epoch, now)
            else:  # an earlier life of ours has acted in this epoch
                effects += office.resign()
        elif view.original is not None and view.original != self.me:
            effects += self.member.viewed(now)
        last = self.store.last
        if last.whole and last.epoch == self.known_epoch:
            self.open_lane()
        return effects + self.push(now)

    def _go_back(self, high_watermark: int, now: Instant) -> None:
        """What is committed behind this is lost.  [S004:4.8]"""
        self.high_watermark = high_watermark
        if high_watermark < self.log.start_offset:  # all of our log is
            self.store.reset(high_watermark, now // NS_PER_MS)
        last = self.store.last
        self._committed_end = last.end_of(self.me) if last.end_offset <= high_watermark else 0

    @property
    def known_committed(self) -> int:
        """S + 1 as we have ever noted it; our log may have lost that since."""
        return max(self.high_watermark, self.store.noted_committed)

    def _whole(self, effects: Effects) -> Effects:
        """Leave out an election that we should not win: we do not know what our log is."""
        if self.store.last.whole:
            return effects
        return [each for each in effects if not isinstance(each, Elect)]

    def configure(self, settings: ReplicationSettings, now: Instant) -> Effects:
        """Go on with other settings."""
        self.settings = self.settings.changed_to(settings)
        self.office.retry_ns = self.settings.round_timeout_ns
        return [] if self.original is None else self.original.go_on(now)

    def session_lost(self, now: Instant) -> Effects:
        """Stop being original at once.  [S004:4.6]"""
        self.office.lose()
        return [] if self.original is None else self._depose("the session is lost")

    def _elected(self, epoch: int, now: Instant) -> Effects:
        self.member.stop()
        self.original = LaneOriginal(self, epoch, now)
        return self.original.begin(now)

    def _depose(self, reason: str) -> Effects:
        assert self.original is not None
        epoch = self.original.epoch
        self.original = None
        return [Note(Deposed(epoch, reason)), *self.intake.refuse_asked()]

    def _left_out(self) -> Effects:
        """We are not in sync: nobody orders our lane before we are again.  What is in it stays."""
        if not self.is_open:
            return []
        self.is_open = False
        return self.intake.refuse_asked() + self.waiting.refuse_all(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "this replica has left the in-sync set"
        )

    def open_lane(self) -> None:
        """Our log is the original's, so we know how far our lane is ordered: take batches."""
        if not self.is_open and self.in_sync:
            self.store.lane.begin(self.store.last.end_of(self.me))
            self._pushed.clear()
            self.is_open = True

    def raise_epoch(self, epoch: int) -> None:
        """Promise to refuse lower epochs.  [R2]"""
        if epoch > self.known_epoch:
            self.store.kept.raise_epoch(epoch)

    def superseded(self, epoch: int) -> Effects:
        """Somebody acts in an epoch above ours."""
        self.raise_epoch(epoch)
        if self.original is None or self.original.epoch >= epoch:
            return []
        self.office.lose()
        return self._depose(f"epoch {epoch} is under way")

    # Links.

    def connected(self, broker: BrokerId, now: Instant) -> Effects:
        """Begin anew with another replica."""
        self.links.add(broker)
        self.lost_at.pop(broker, None)
        self.gone.discard(broker)
        self._pushed.pop(broker, None)
        copy = self.store.copies.get(broker)
        if copy is not None:
            copy.asked_at = -1
        effects: Effects = []
        if self.original is not None:
            effects += self.original.connected(broker, now)
        else:
            effects += self.member.connected(broker, now)
        return effects + self.push(now)

    def disconnected(self, broker: BrokerId, now: Instant) -> Effects:
        """What was on its way is lost."""
        if broker in self.links:
            self.links.discard(broker)
            self.lost_at[broker] = now
        effects = self.intake.disconnected(broker)
        if self.original is not None:
            return effects + self.original.disconnected(broker, now)
        if self.office.original == broker:
            effects += self.intake.refuse_asked()
        self.member.disconnected(broker)
        return effects

    def ended(self, broker: BrokerId, now: Instant) -> Effects:
        """As original, go on without it."""
        if broker not in self.links:
            self.gone.add(broker)
        return self.wake(now)

    # Produce.

    def produce(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> Effects:
        """Append to our lane, or hand on what belongs to another."""
        return self.intake.produce(token, records, acks, now)

    def forget(self, token: int) -> None:
        """Nobody waits for this answer any more; the batch stays."""
        self.waiting.forget(token)
        self.producers.forget(token)

    @property
    def pending_bytes(self) -> int:
        """Of our lane, as far as they are not known to be committed."""
        return self.store.lane.uncommitted_bytes

    # Lanes.

    def orderable(self, broker: int) -> int:
        """How far a lane can be ordered now: whole requests that we have."""
        if broker != self.me:
            return self.store.copy(broker).end
        start = self.store.last.end_of(self.me)
        pending = self.store.lane.pending_bytes(start)
        if pending <= self.settings.message_bytes_max:
            return self.store.lane.end if pending else start
        first, data = self._part(start)
        return first + len(data)

    def _part(self, position: int) -> tuple[int, bytes]:
        """Whole requests from here on, of at most `message_bytes_max` but for the first."""
        lane = self.store.lane
        limit = self.settings.message_bytes_max
        start, data = lane.read(position, limit + self.log.config.max_message_bytes)
        if len(data) <= limit:
            return start, data
        end = self.waiting.boundary(start, start + limit)
        if end > start:
            return start, data[: end - start]
        return start, data[: whole_batches(data, limit)]

    def push(self, now: Instant, *, everything: bool = False) -> Effects:
        """Send our lane to the other members: at once when nothing of it is on its way, else with
        what gathers until that is ordered.  [R10]
        """
        if not self.is_open:
            return []
        lane = self.store.lane
        ordered = self.store.last.end_of(self.me)
        end = lane.end
        self._gathered = 0
        self._gathering = False
        effects: Effects = []
        window = self.settings.message_bytes_max
        parts: dict[int, LaneData] = {}
        """Read once, whoever gets them."""
        for member in self.isr:
            if member == self.me or member not in self.links:
                continue
            at = self._pushed.get(member, ordered)
            if at >= end:
                continue
            if (
                at > ordered
                and not everything
                and lane.pending_bytes(at) < PUSH_BYTES
                and lane.pending_bytes(ordered) > lane.pending_bytes(at)
            ):
                self._gathering = True
                continue
            while at < end and lane.pending_bytes(ordered) - lane.pending_bytes(at) < window:
                part = parts.get(at)
                if part is None:
                    try:
                        start, data = self._part(at)
                    except BesideDamaged:
                        if at >= ordered:
                            raise
                        at = ordered  # what is ordered, others have in their logs
                        continue
                    part = parts[at] = LaneData(at, start, lane.fresh, data)
                if not part.data:
                    break
                effects.append(Tell(member, part))
                at = part.start + len(part.data)
            self._pushed[member] = at
            self._gathering = self._gathering or at > ordered
        return effects

    def taken(self, size: int, now: Instant) -> Effects:
        """Our lane has so many bytes more."""
        effects = [] if self.original is None else self.original.taken(now)
        self._gathered += size
        if self._gathering and self._gathered < PUSH_BYTES:
            return effects
        return effects + self.push(now)

    def _data(self, source: BrokerId, message: LaneData, now: Instant) -> Effects:
        copy = self.store.copy(source)
        copy.fresh = max(copy.fresh, message.fresh)
        if not copy.add(message.after, message.start, message.data):
            if copy.asked_at == copy.end:
                return []
            copy.asked_at = copy.end
            return [Tell(source, LaneResend(copy.end))]
        if self.original is not None:
            return self.original.go_on(now)
        return self.member.go_on(now)

    def _resend(self, source: BrokerId, message: LaneResend, now: Instant) -> Effects:
        """Another replica has our lane to there only."""
        if self.is_open:
            self._pushed[source] = max(message.position, self._committed_end)
        return self.push(now)

    # Cuts.

    def ordered(self, slices: tuple[LaneSlice, ...], placed: dict[int, Placed]) -> Effects:
        """A cut stands in our main log: answer, and note whose lane brought which producer."""
        effects: Effects = []
        for piece in slices:
            found = placed[piece.broker]
            if piece.broker == self.me:
                effects += self.waiting.ordered(piece, found.places)
            for producer_id in found.producers:
                if producer_id >= 0:
                    self.producers.bind(producer_id, piece.broker)
        return effects

    def committed(self, stamp: Stamp, high_watermark: int) -> Effects:
        """Everything up to this cut is committed; it is our last, or one before."""
        effects = self.advance(high_watermark)
        for record in reversed(self.store.cuts.records):
            if record.stamp <= stamp and record.whole:
                self._committed_end = max(self._committed_end, record.end_of(self.me))
                self.store.lane.reclaim(self._committed_end)
                break
        return effects

    def advance(self, high_watermark: int) -> Effects:
        """Let consumers read on, and answer acks=all."""
        if high_watermark <= self.high_watermark:
            return self.waiting.committed(self.high_watermark)
        self.high_watermark = high_watermark
        self.store.kept.moved()
        return [Advance(high_watermark), *self.waiting.committed(high_watermark)]

    def _done(self, source: BrokerId, message: LaneDone, now: Instant) -> Effects:
        if self.original is None or message.epoch != self.original.epoch:
            return []
        return self.original.is_done(source, message, now) + self.push(now)

    def _state(self, source: BrokerId, message: LaneState, now: Instant) -> Effects:
        if self.original is None or message.epoch != self.original.epoch:
            return []
        return self.original.state(source, message, now)

    def _fenced(self, source: BrokerId, message: LaneFenced, now: Instant) -> Effects:
        return self.superseded(message.epoch)

    def fetch(self, source: BrokerId, now: Instant) -> Effects:
        """Copy another's log from where ours ends."""
        return self.member.fetch(source, now)

    # The rest of the contract.

    def wanted(self, now: Instant) -> Effects:
        """A fetch waits: a round begins as soon as there is anything, so nothing more to do."""
        return []

    def start_moved(self, now: Instant) -> Effects:
        """Tell the members where our log begins."""
        return [] if self.original is None else self.original.start_moved()

    def hand_over(self, to: BrokerId, now: Instant) -> Effects:
        """Give the epoch up between two rounds; what waits in lanes the next original orders."""
        original = self.original
        if original is None or not original.recovered or not self.office.leave(to, now):
            return []
        return original.go_on(now)

    def leave(self) -> Effects:
        """Nothing of ours is open."""
        resigned = self.office.resign()
        return resigned + self._depose("another is preferred")

    def locked(self, now: Instant) -> Effects:
        """Rounds need no request by ZooKeeper here."""
        return []

    def sync_end_seen(self, end: int, epoch: int, round_number: int, now: Instant) -> Effects:
        """Rounds are not run by ZooKeeper here."""
        return []

    def receive(self, source: BrokerId, message: Any, now: Instant) -> Effects:
        """Take a message of another replica.  Raises RemoteProtocolError."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise RemoteProtocolError(f"{type(message).__name__} is no message between lanes")
        return handler(source, message, now)

    def begin_sync(self, now: Instant) -> SyncWork | None:
        """Collect what is not durable yet."""
        return self.store.begin_sync()

    def end_sync(self, work: SyncWork, now: Instant, error: StorageError | None = None) -> Effects:
        """Tell the original what is durable now.  [R5]"""
        assert isinstance(work, LaneSync)
        self.store.end_sync(work, error)
        return [] if error is not None else self.member.synced(now)

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        effects = self._whole(self.office.wake(now))
        if self.original is not None:
            effects += self.original.wake(now)
        return effects + self.member.wake(now)

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due = [self.member.next_deadline(), self.office.next_deadline()]
        if self.original is not None:
            due.append(self.original.next_deadline())
        return min((each for each in due if each is not None), default=None)

    def status(self) -> dict[str, Any]:
        """What `orderwire cluster status` shows."""
        last = self.store.last
        original = self.original
        return {
            "role": "original" if original is not None else "secondary" if self.in_sync else "out",
            "epoch": self.known_epoch,
            "isr": list(self.isr),
            "sync_start": self.high_watermark - 1,
            "sync_end": last.end_offset - 1,
            "rounds": last.round,
            "sealed": 0,
            "orphans": 0,
            "pending_bytes": self.pending_bytes,
            "is_blank": self.store.kept.is_blank,
            "doubtful": self.store.doubtful,
            "lag": {}
            if original is None
            else {each: original.round - original.done.get(each, 0) for each in self.isr},
        }

    def close(self) -> None:
        """Close the files properly."""
        self.store.close(self.high_watermark)
