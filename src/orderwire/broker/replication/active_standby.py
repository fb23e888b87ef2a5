"""Active-standby: the original appends, the others follow.  [S004:4.8]

S is the least end over the in-sync set; it moves when followers say what they have.  Who is elected
tells the others where their logs part from its own, and they cut off the rest.  [KIP-101]  With
`flush=none` a replica has what is in its page cache; otherwise what is on its disk.
"""

from typing import Any, cast

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import (
    LogConfig,
    PartitionLog,
    Refused,
    Storage,
    StorageError,
    SyncJob,
)
from orderwire.broker.replication.active_standby_following import Following, Own
from orderwire.broker.replication.active_standby_messages import (
    Contend,
    Fenced,
    Follow,
    Here,
    Lead,
    Position,
    Records,
    Stored,
    ToFollower,
)
from orderwire.broker.replication.active_standby_recovery import Recovery
from orderwire.broker.replication.active_standby_term import Follower, Term
from orderwire.broker.replication.active_standby_waiting import Waiting
from orderwire.broker.replication.effects import (
    Answer,
    ChangeIsr,
    Deposed,
    Effects,
    Elect,
    Elected,
    MemberJoined,
    MemberRemoved,
    Note,
    Recovered,
    Sync,
    Tell,
)
from orderwire.broker.replication.gaps import retriable
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.office import Office
from orderwire.broker.replication.replica import SyncWork
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.kernel.errors import RemoteProtocolError


class ActiveStandby:
    """One partition's replica at one broker."""

    def __init__(
        self,
        me: BrokerId,
        storage: Storage,
        log: LogConfig,
        settings: ReplicationSettings,
        now: Instant,
    ) -> None:
        """Open the files, or make them.  Raises StorageError."""
        self.me = me
        self.log = PartitionLog.open(storage, log, now // NS_PER_MS, cuts_damage=False)
        self.settings = settings
        self._kept = Kept(storage)
        self._connected: set[BrokerId] = set()
        self._ended: set[BrokerId] = set()
        """Whose process is known to have ended."""
        self._office = Office(
            me, settings.round_timeout_ns, self._kept, self._connected.__contains__
        )
        self._own = Own(self.log, self._kept, settings.flush, now)
        self._waiting = Waiting()
        # As original.
        self._term: Term | None = None
        self._recovery: Recovery | None = None
        """While it is not known whether our log lacks what is committed."""
        self._called = False
        """An original has found that we have more than it has: contend at once."""
        self._yield_until = now
        """And in the other case, not before."""
        self._asked_isr: tuple[BrokerId, ...] = ()
        """What we last wanted the in-sync set to be; ZooKeeper may have done it already."""
        self._following = Following(self._own)
        self._contend_at: Instant | None = None

    # What it is.

    @property
    def high_watermark(self) -> int:
        """S + 1.  [R6]"""
        return self._own.high_watermark

    @property
    def view(self) -> PartitionView | None:
        """The newest view it was told."""
        return self._office.view

    @property
    def takes_produce(self) -> bool:
        """Whether `produce` would take a batch now."""
        return self._term is not None and self._recovery is None

    @property
    def is_blank(self) -> bool:
        """Whether we do not know that we ever had what was committed."""
        return self._kept.is_blank

    @property
    def serves_fetch(self) -> bool:
        """Whether consumers may read here."""
        return self._office.in_sync

    @property
    def assigned_end(self) -> int:
        """One behind the last offset known to be assigned."""
        return max(self._following.assigned_end, self.log.end_offset)

    def status(self) -> dict[str, Any]:
        """What `orderwire cluster status` shows."""
        term = self._term
        end = self.log.end_offset
        lag: dict[int, int | None] = {}
        if term is not None:
            lag = {
                follower.broker: end - follower.acked if follower.acked >= 0 else None
                for follower in term.followers.values()
            }
        return {
            "role": "original" if term is not None else "standby",
            "epoch": self._kept.known_epoch,
            "isr": list(self._office.isr),
            "sync_start": self._own.high_watermark - 1,
            "sync_end": end - 1,
            "rounds": 0,
            "sealed": 0,
            "orphans": 0,
            "pending_bytes": 0,
            "is_blank": self._kept.is_blank,
            "doubtful": self._own.doubtful,
            "waiting": len(self._waiting),
            "lag": lag,
        }

    # ZooKeeper.

    def viewed(self, view: PartitionView, now: Instant) -> Effects:
        """Take what ZooKeeper says.  [R5, R7]"""
        before = self._office.isr
        answer = self._office.viewed(view, now)
        if answer is None:
            return []
        effects: Effects = []
        floor = self._office.floor(self._own.high_watermark, self.log)
        if floor is not None:
            self._own.go_back(floor, now)
        if self._term is not None and self._office.epoch != self._term.epoch:
            effects += self._end_term("another epoch has begun")
        effects += self._doubted(answer, now)
        if view.original is not None or self.me not in view.isr:
            self._contend_at = None
        if self._office.epoch is not None and self._term is None:
            return effects + self._begin_term(self._office.epoch, view, now)
        if self._term is not None:
            others = [each for each in view.replicas if each != self.me]
            for follower in self._term.widen(others, now):
                if follower.broker in self._connected:
                    effects += self._term.ask(follower, now)
            effects += [
                Note(MemberRemoved(self._term.epoch, member, "too late"))
                for member in sorted({*before} - {*view.isr})
            ]
            effects += [
                Note(MemberJoined(self._term.epoch, member))
                for member in sorted({*view.isr} - {*before})
            ]
            effects += self._recover(now) + self._move(now) + self._tend(now)
        return effects

    def _doubted(self, effects: Effects, now: Instant) -> Effects:
        """Leave out an election that we should not win yet."""
        left: Effects = []
        for effect in effects:
            if isinstance(effect, Elect) and effect.epoch < 0:
                self._own.doubtful = False  # nothing was ever committed
            alone = self._office.view is not None and self._office.view.unclean
            waits = self._own.doubtful and not self._called and not alone
            if isinstance(effect, Elect) and waits:
                due = Instant(now + self.settings.round_timeout_ns)
                self._contend_at = self._contend_at or max(due, self._yield_until)
            else:
                left.append(effect)
        return left

    def configure(self, settings: ReplicationSettings, now: Instant) -> Effects:
        """Go on with other settings: S may move at once, a member may be late at once."""
        self.settings = self.settings.changed_to(settings)
        self._office.retry_ns = self.settings.round_timeout_ns
        if self._term is not None:
            self._term.settings = self.settings
        return self._move(now) + self._tend(now)

    def session_lost(self, now: Instant) -> Effects:
        """Stop being original at once.  [S004:4.6]"""
        self._office.lose()
        self._contend_at = None
        return self._end_term("the ZooKeeper session has ended, or may have")

    def _begin_term(self, epoch: int, view: PartitionView, now: Instant) -> Effects:
        """We are original.  Our log is what counts; others take it from there.  [R7]"""
        if epoch <= self._kept.known_epoch:  # somebody was elected after us already
            return self._office.resign()
        self._kept.raise_epoch(epoch)  # [R2]
        self._called = False
        self._following.end()
        others = [each for each in view.replicas if each != self.me]
        term = self._term = Term(epoch, self.log, self.settings, others, now, self._ended)
        if self._office.unclean or Recovery.is_needed(self._own, view):
            timeout = self.settings.round_timeout_ns
            self._recovery = Recovery(epoch, self._own, self._office, timeout, now)
        effects: Effects = [Note(Elected(epoch))]
        if self._recovery is None:
            effects += self._recovered(view)
        for follower in term.followers.values():
            if follower.broker in self._connected:
                effects += term.ask(follower, now)
        if self._own.waits_for_disk and self.log.synced_offset < self.log.end_offset:
            effects.append(Sync())
        return effects + self._recover(now) + self._move(now)

    def _recovered(self, view: PartitionView) -> Effects:
        """Our log is what counts."""
        self._own.doubtful = False
        if view.losses:
            self.log.producers.may_lack()
        assert self._term is not None
        return [Note(Recovered(self._term.epoch, self.log.end_offset))]

    def _recover(self, now: Instant) -> Effects:
        """Find out whether we lack anything, as far as the others have answered.  [S004:4.8]"""
        recovery, term, view = self._recovery, self._term, self._office.view
        if recovery is None or term is None or view is None:
            return []
        over, effects = recovery.go_on(now)
        if not over:
            return effects
        if self._office.epoch is None:  # another has more
            self._yield_until = Instant(now + 4 * self.settings.round_timeout_ns)
            return effects + self._end_term("another has more")
        self._recovery = None
        effects += self._recovered(view)
        for source, position in recovery.positions.items():
            effects += term.place(term.followers[source], position, self._own.high_watermark)
        return effects

    def _end_term(self, reason: str) -> Effects:
        term, self._term = self._term, None
        self._recovery = None
        if term is None:
            return []
        # "Not leader" would say that it is not stored: clients would send it a second time.
        answers = self._waiting.fail(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"this broker is original no longer: {reason}",
        )
        return [*answers, Note(Deposed(term.epoch, reason))]

    # Connections.

    def connected(self, broker: BrokerId, now: Instant) -> Effects:
        """Say that we are here; the original then asks where we are."""
        self._connected.add(broker)
        self._ended.discard(broker)
        return [Tell(broker, Here(self._kept.known_epoch))]

    def disconnected(self, broker: BrokerId, now: Instant) -> Effects:
        """What was on its way is lost."""
        self._connected.discard(broker)
        if broker == self._following.leader:
            self._following.end()
        follower = None if self._term is None else self._term.followers.get(broker)
        if self._recovery is not None:
            self._recovery.positions.pop(broker, None)
        if self._term is not None and follower is not None:
            self._term.lose(follower, now)
        return []

    def ended(self, broker: BrokerId, now: Instant) -> Effects:
        """As original, go on without it."""
        if broker not in self._connected:
            self._ended.add(broker)
        return self.wake(now)

    # Clients.

    def produce(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> Effects:
        """Append, send on, and answer when enough replicas have it.  [S004:4.4]"""
        term, view = self._term, self._office.view
        if term is None or view is None:
            return [_refused(token, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this is not the original")]
        if self._recovery is not None:
            reason = "what is committed is being recovered"
            return [_refused(token, ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)]
        if self._office.leaving is not None:
            return [_refused(token, ErrorCode.NOT_LEADER_OR_FOLLOWER, "another becomes original")]
        least = self.settings.min_insync_replicas
        if acks != 1 and (count := term.reachable(view.isr)) < least:
            return [
                _refused(
                    token,
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{count} replicas are in sync and can be reached; acks=all takes {least}",
                )
            ]
        if len(self._waiting) >= self.settings.waiting_requests_max:
            return [
                _refused(
                    token,
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{len(self._waiting)} requests wait already",
                )
            ]
        lent = memoryview(records)
        owned = bytearray(lent) if lent.readonly else lent
        result = self.log.append(owned, term.epoch, now // NS_PER_MS)
        if isinstance(result, Refused):
            return [Answer(token, retriable(result))]
        effects: Effects = []
        if not result.duplicate:
            end = result.last_offset + 1
            if self.settings.flush is Flush.MESSAGE:
                self.log.sync()
            elif self._own.waits_for_disk:
                effects.append(Sync())
            effects += term.appended(
                bytes(owned), result.base_offset, end, self._own.high_watermark, now
            )
        if acks == 1 and not self._own.waits_for_disk:
            effects.append(Answer(token, result))
        else:
            self._waiting.add(token, acks, result)
        return effects + self._move(now)

    def forget(self, token: int) -> None:
        """Nobody waits for this answer any more."""
        self._waiting.forget(token)

    def wanted(self, now: Instant) -> Effects:
        """A fetch waits at S: S comes as fast as it can anyway."""
        return []

    def start_moved(self, now: Instant) -> Effects:
        """Tell the followers where our log begins."""
        return [] if self._term is None else self._push_all(self._term)

    def hand_over(self, to: BrokerId, now: Instant) -> Effects:
        """Give the term up, once all is committed and answered."""
        return self._leave(now) if self._office.leave(to, now) else []

    def _leave(self, now: Instant) -> Effects:
        if (
            self._term is None
            or not self._office.leaves(now)
            or self._office.changing
            or len(self._waiting)
            or self._own.high_watermark < self.log.end_offset
        ):
            return []
        resigned = self._office.resign()
        return resigned + self._end_term("another is preferred")

    def locked(self, now: Instant) -> Effects:
        """There are no rounds."""
        return []

    def sync_end_seen(self, end: int, epoch: int, round_number: int, now: Instant) -> Effects:
        """There are no rounds."""
        return []

    # Messages.

    def receive(self, source: BrokerId, message: Any, now: Instant) -> Effects:
        """Take a message of another replica.  Raises RemoteProtocolError, StorageError."""
        match message:
            case Lead() | Follow() | Records():
                return self._led(source, message, now)
            case Here(epoch):
                term = self._term
                if term is None:
                    return []
                if epoch > term.epoch:
                    return self._depose(epoch)
                follower = term.followers.get(source)
                # Who has a replica since now may know it before us.
                return [] if follower is None else term.ask(follower, now)
            case Position() | Stored():
                return self._answered(source, message, now)
            case Contend(epoch):
                self._called = epoch >= self._kept.known_epoch
                return []
            case Fenced(epoch):
                return self._depose(epoch)
        raise RemoteProtocolError(f"broker {source} sent {type(message).__name__}")

    def _depose(self, epoch: int) -> Effects:
        """Somebody knows of a later epoch."""
        if self._term is None or epoch <= self._term.epoch:
            return []
        self._office.lose()
        return self._end_term(f"epoch {epoch} has begun")

    # As original.

    def _follower(self, term: Term, source: BrokerId) -> Follower:
        follower = term.followers.get(source)
        if follower is None:
            raise RemoteProtocolError(f"broker {source} has no replica of this partition")
        return follower

    def _answered(self, source: BrokerId, message: Position | Stored, now: Instant) -> Effects:
        term = self._term
        if term is None or message.epoch != term.epoch:
            return []
        follower = self._follower(term, source)
        if message.attempt != follower.attempt:
            return []  # of an earlier question
        if isinstance(message, Position) and self._recovery is not None:
            self._recovery.positions[source] = message
            return self._recover(now) + self._move(now) + self._tend(now)
        if isinstance(message, Position):
            return term.place(follower, message, self._own.high_watermark) + self._tend(now)
        term.stored(follower, message, now)
        effects = self._move(now)
        effects += term.push(follower, self._own.high_watermark)
        if source not in self._office.isr:
            effects += self._tend(now)
        return effects

    def _move(self, now: Instant) -> Effects:
        """S moves as far as every member goes; strictly, never with too few.  [R6, S004:4.4]"""
        term, view = self._term, self._office.view
        if term is None or view is None or self._recovery is not None:
            return []
        effects: Effects = []
        mine = self._own.durable_end
        if len(view.isr) >= self.settings.min_insync_replicas:
            # ZooKeeper may have made the change already, or never will: both sets have to have it.
            members = {*view.isr, *(self._asked_isr if self._office.changing else ())}
            effects += self._own.advance(term.everybody_has(members, mine), now)
            if effects:
                effects += self._push_all(term)
        effects += self._waiting.due(self._own.high_watermark, mine)
        return effects + self._leave(now)

    def _tend(self, now: Instant, *, woken: bool = False) -> Effects:
        """Change the in-sync set, should somebody have caught up or, where we are `woken`, be too
        late: in the middle of what has come, its answer may be what comes next.  [R5, R8]"""
        term, view = self._term, self._office.view
        if term is None or view is None or self._office.changing or self._recovery is not None:
            return []
        isr = term.remaining(view.isr, now if woken else None)
        if isr == view.isr:
            isr = term.joining(isr, self._own.high_watermark, now)
        effects = self._office.change(isr, now)
        for effect in effects:
            if isinstance(effect, ChangeIsr):
                self._asked_isr = effect.isr
        return effects

    # As follower.

    def _led(self, source: BrokerId, message: ToFollower, now: Instant) -> Effects:
        known = self._kept.known_epoch
        if message.epoch < known:  # [R2]
            return [Tell(source, Fenced(known))]
        effects: Effects = []
        if message.epoch > known:
            effects += self._depose(message.epoch)
            self._kept.raise_epoch(message.epoch)
            self._following.end()
        elif self._term is not None:
            raise RemoteProtocolError(f"broker {source} leads in our own epoch {known}")
        return effects + self._following.led(source, message, now)

    # Disk and time.

    def begin_sync(self, now: Instant) -> SyncJob | None:
        """Collect what is not durable yet."""
        return self.log.begin_sync()

    def end_sync(self, work: SyncWork, now: Instant, error: StorageError | None = None) -> Effects:
        """Take note of work that has run."""
        self.log.end_sync(cast(SyncJob, work), error)
        if error is not None:
            return []
        if self._term is not None:
            return self._move(now)
        return self._following.synced()

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        effects = self._doubted(self._office.wake(now), now) + self._leave(now)
        view = self._office.view
        if self._contend_at is not None and self._contend_at <= now and view is not None:
            self._contend_at = None
            effects.append(Elect(view.epoch))
        effects += self._recover(now)
        if self._term is not None:
            effects += self._push_all(self._term)
        return effects + self._move(now) + self._tend(now, woken=True)

    def _push_all(self, term: Term) -> Effects:
        effects: Effects = []
        for follower in term.followers.values():
            effects += term.push(follower, self._own.high_watermark)
        return effects

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        dues = [self._office.next_deadline(), self._contend_at]
        if self._recovery is not None:
            dues.append(self._recovery.next_deadline())
        elif self._term is not None and not self._office.changing:
            dues.append(self._term.next_late(self._office.isr))
        return min((due for due in dues if due is not None), default=None)

    def close(self) -> None:
        """Close the files properly."""
        self._kept.note_high_watermark(self._own.high_watermark)
        self.log.close()


def _refused(token: int, error: ErrorCode, reason: str) -> Answer:
    return Answer(token, Refused(error, reason))
