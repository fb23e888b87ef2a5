"""A replica of an active-active partition: the paper's protocol, completed.  [S004:4.2]

The original assigns offsets and hands batches to all members in turn; each stores its share; a
round makes all have all, and only that is read.  The parts: `active_active_member` (every replica),
`active_active_original` and `active_active_rounds` (the original), `active_active_rejoin` and
`active_active_republish` (who was away).  This file knows which epoch it is and who does what.
"""

from typing import Any, cast

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import LogConfig, PartitionLog, Refused, Storage, StorageError
from orderwire.broker.replication.active_active_files import FilesSync, ReplicaFiles
from orderwire.broker.replication.active_active_member import Member
from orderwire.broker.replication.active_active_messages import (
    CaughtUp,
    Closed,
    Collect,
    Commit,
    CommittedLog,
    Copied,
    CopyFailed,
    Done,
    Fenced,
    InSync,
    Message,
    OrphanKnown,
    OrphanLater,
    OrphanOffer,
    OrphanPlace,
    Pulled,
    RejoinFetch,
    RelayAppend,
    RelayRefused,
    RelayStored,
    RoundWanted,
    SyncClose,
    SyncCopy,
    SyncPull,
)
from orderwire.broker.replication.active_active_original import Original
from orderwire.broker.replication.active_active_rejoin import Rejoining
from orderwire.broker.replication.active_active_republish import Republisher
from orderwire.broker.replication.active_active_rounds import Rounds
from orderwire.broker.replication.effects import Answer, Deposed, Effects, Elected, Lock, Orphaned
from orderwire.broker.replication.links import Hello, Links
from orderwire.broker.replication.office import Office
from orderwire.broker.replication.outbox import Outbox
from orderwire.broker.replication.replica import SyncWork
from orderwire.broker.replication.settings import Coordination, ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.kernel.errors import RemoteProtocolError

_WANTED_GAP_NS = 10 * NS_PER_MS
"""A member passes a consumer's wish for a round on at most so often."""
_ORDERS = (RelayAppend, SyncClose, Collect, SyncCopy, SyncPull, Commit, CommittedLog, Copied)
"""What an original or a peer of a lower epoch must be told that it is over."""


class ActiveActiveReplica:
    """One partition at one broker."""

    def __init__(
        self,
        me: BrokerId,
        storage: Storage,
        log_config: LogConfig,
        settings: ReplicationSettings,
        now: Instant,
    ) -> None:
        """Open what is there.  Raises LogDamaged, StorageError."""
        self.me = me
        self.settings = settings
        self.log = PartitionLog.open(storage, log_config, now // NS_PER_MS, cuts_damage=False)
        self.files = self.open_files(storage)
        self.links = Links()
        self.office = Office(
            me, settings.round_timeout_ns, self.files.kept, self.links.is_connected
        )
        self.out = Outbox(me)
        self.member = self.make_member()
        self.rejoining = Rejoining(self.member, self.office, self.links, settings, self.out)
        self.republisher = Republisher(self.member, self.office, self.links, settings, self.out)
        self.original: Original | None = None
        """While we are."""
        self.rounds: Rounds | None = None
        self._now = now
        self._wanted_at: Instant | None = None
        self._locked_at: Instant = now

    # Parts, each in a method of its own: tests put others in their place.

    def open_files(self, storage: Storage) -> ReplicaFiles:
        """What lies beside the log."""
        return ReplicaFiles(storage, self.log, self.settings)

    def make_member(self) -> Member:
        """What every replica does."""
        return Member(self.files, self.office, self.links, self.settings, self.out)

    def make_original(self, epoch: int) -> Original:
        """What an original does."""
        return Original(epoch, self.member, self.office, self.links, self.settings, self.out)

    def make_rounds(self, original: Original, now: Instant) -> Rounds:
        """How an original gets everybody to agree."""
        return Rounds(original, now)

    def is_over(self, epoch: int) -> bool:
        """Whether an epoch is refused.  [R2]"""
        return epoch < self.files.known_epoch

    # What others see.

    @property
    def high_watermark(self) -> int:
        """S + 1.  [R6]"""
        return self.files.committed

    @property
    def view(self) -> PartitionView | None:
        """The newest view we were told."""
        return self.office.view

    @property
    def takes_produce(self) -> bool:
        """Whether we are original, and recovered."""
        return self.original is not None and self.original.active

    @property
    def is_blank(self) -> bool:
        """Whether we do not know that we ever had what was committed."""
        return self.files.kept.is_blank

    @property
    def serves_fetch(self) -> bool:
        """Whether we are in sync, as far as we know.  [S004:4.7]"""
        return self.office.in_sync

    @property
    def assigned_end(self) -> int:
        """One behind the last offset that we know to be assigned."""
        known = max(self.files.end, self.member.assigned_end)
        return known if self.original is None else max(known, self.original.next_offset)

    # What ZooKeeper says.

    def viewed(self, view: PartitionView, now: Instant) -> Effects:
        """Take what ZooKeeper says."""
        before = self.office.isr
        epoch_before = self.office.epoch
        effects = self.office.viewed(view, now)
        if effects is None:
            return []
        self.out.extend(effects)
        if view.epoch > self.files.known_epoch:
            self._begin_epoch(view.epoch)
        floor = self.office.floor(self.files.committed, self.log)
        if floor is not None:
            for header in self.files.go_back(floor, now):
                self.out.note(Orphaned(header.base_offset, header.leader_epoch, header.count))
            self.rejoining.stop()
        if self.original is not None and self.office.epoch != self.original.epoch:
            self._depose(f"epoch {view.epoch} has the original {view.original}")
        if self.office.epoch is not None and self.original is None:
            if self.is_over(self.office.epoch):
                self.out.extend(self.office.resign())
            elif epoch_before != self.office.epoch:
                self._begin_office(self.office.epoch, now)
        elif self.rounds is not None:
            self.rounds.viewed(before, now)
        if self.office.in_sync:
            self.rejoining.stop()
        self.republisher.view_changed()
        return self._finish(now)

    def configure(self, settings: ReplicationSettings, now: Instant) -> Effects:
        """Go on with other settings; what runs already keeps its deadline."""
        settings = self.settings.changed_to(settings)
        self.settings = self.member.settings = settings
        self.rejoining.settings = self.republisher.settings = settings
        self.office.retry_ns = settings.round_timeout_ns
        if self.original is not None and self.rounds is not None:
            self.original.settings = self.rounds.settings = settings
            if len(self.office.isr) < settings.min_insync_replicas:
                self.original.too_few()
        return self._finish(now)

    def session_lost(self, now: Instant) -> Effects:
        """Stop being original at once.  [S004:4.6]"""
        self.office.lose()
        if self.original is not None:
            self._depose("the ZooKeeper session is lost")
        return self._finish(now)

    def _begin_office(self, epoch: int, now: Instant) -> None:
        """We are elected: recover first.  [R7]"""
        self.out.note(Elected(epoch))
        self.original = self.make_original(epoch)
        self.rounds = self.make_rounds(self.original, now)

    def _depose(self, reason: str) -> None:
        original, self.original, self.rounds = self.original, None, None
        assert original is not None
        original.end()
        self.out.note(Deposed(original.epoch, reason))

    def _begin_epoch(self, epoch: int) -> None:
        """Promise to refuse lower epochs, and forget what was promised in them.  [R2]"""
        self.files.kept.raise_epoch(epoch)
        self.member.begin_epoch()
        self.rejoining.stop()
        self.republisher.begin_epoch()
        if self.original is not None and self.original.epoch < epoch:
            self.out.extend(self.office.resign())
            self._depose(f"somebody knows epoch {epoch}")

    # Connections.

    def connected(self, broker: BrokerId, now: Instant) -> Effects:
        """Say hello: the peer's replica may be open, or not yet."""
        self.links.connected(broker)
        self.out.tell(broker, Hello(self.files.known_epoch, answer=True))
        return self._finish(now)

    def disconnected(self, broker: BrokerId, now: Instant) -> Effects:
        """What was on its way is lost."""
        self.links.disconnected(broker, now)
        self.member.disconnected(broker)
        self.republisher.disconnected(broker)
        if self.rounds is not None:
            self.rounds.disconnected(broker)
        if broker == self.office.original:
            self.rejoining.stop()
        return self._finish(now)

    def ended(self, broker: BrokerId, now: Instant) -> Effects:
        """As original, go on without it."""
        self.links.ended(broker)
        return self._finish(now, woken=True)

    # Requests.

    def produce(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> Effects:
        """Take a request's batches.  [R1]"""
        if self.original is None:
            refused = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is not original")
            self.out.add(Answer(token, refused))
        else:
            self.original.produce(token, connection, records, acks, now)
        return self._finish(now)

    def forget(self, token: int) -> None:
        """Nobody waits for this answer any more."""
        if self.original is not None:
            self.original.assigned.forget(token)

    def wanted(self, now: Instant) -> Effects:
        """A consumer's fetch waits at S.  [R9]"""
        original = self.office.original
        if self.original is not None:
            self.original.wanted()
        elif (
            original is not None
            and self.settings.sync_on_fetch
            and self.links.up(original)
            and (self._wanted_at is None or now >= self._wanted_at + _WANTED_GAP_NS)
        ):
            self._wanted_at = now
            self.out.tell(original, RoundWanted(self.files.known_epoch))
        return self._finish(now)

    def start_moved(self, now: Instant) -> Effects:
        """Tell the members where our log begins."""
        if self.rounds is not None and self.takes_produce:
            self.rounds.tell_all_committed()
        return self._finish(now)

    def hand_over(self, to: BrokerId, now: Instant) -> Effects:
        """Give the epoch up, once a round has committed all and everybody is answered."""
        if self.takes_produce and self.office.leave(to, now):
            assert self.original is not None
            self.original.round_wanted = True
        return self._finish(now)

    def _leave(self, now: Instant) -> None:
        original, rounds = self.original, self.rounds
        if (
            original is not None
            and rounds is not None
            and self.office.leaves(now)
            and not self.office.changing
            and rounds.round is None
            and not original.assigned.waiting
            and original.next_offset == self.files.committed
        ):
            self.out.extend(self.office.resign())
            self._depose("another is preferred")

    def locked(self, now: Instant) -> Effects:
        """Somebody made a child of `lock`: a request, and a sign of life.  [G2, G11]"""
        if self.original is not None:
            self.original.round_wanted = True
        return self._finish(now)

    def sync_end_seen(self, end: int, epoch: int, round_number: int, now: Instant) -> Effects:
        """The paper's way to begin a round: `syncEnd` is the close.  [R3, S004:4.6]"""
        original = self.office.original
        if (
            self.settings.coordination is Coordination.ZOOKEEPER
            and original not in (None, self.me)
            and self.office.in_sync
            and not self.is_over(epoch)
        ):
            assert original is not None
            start = self.files.committed
            self._receive(original, SyncClose(epoch, round_number, 0, start, end), now)
        return self._finish(now)

    # Messages.

    def receive(self, source: BrokerId, message: Any, now: Instant) -> Effects:
        """Take a message of another replica.  Raises RemoteProtocolError."""
        new = not self.links.up(source)  # whoever was waited for, whatever it knows
        over = message.epoch < self.files.known_epoch
        self._receive(source, message, now)
        return self._finish(now, steps=new or not over)

    def _receive(self, source: BrokerId, message: Message, now: Instant) -> None:
        epoch = message.epoch
        if epoch > self.files.known_epoch:
            self._begin_epoch(epoch)
        if source != self.me and self.links.heard(source) and self.rounds is not None:
            self.rounds.heard(source, now)
        if isinstance(message, Hello):
            if message.answer:
                self.out.tell(source, Hello(self.files.known_epoch, answer=False))
            return
        if isinstance(message, RejoinFetch):  # whoever was away knows an old epoch
            if self.rounds is not None:
                self.rounds.rejoin(source, message, now)
            return
        if self.is_over(epoch):
            if isinstance(message, _ORDERS):
                self.out.tell(source, Fenced(self.files.known_epoch))
            return
        if not self._take_as_member(source, message, now):
            self._take_as_original(source, message, now)

    def _take_as_member(self, source: BrokerId, message: Message, now: Instant) -> bool:
        match message:
            case RelayAppend():
                self.member.relay(source, message, now)
            case Copied():
                self.member.copied(message, now)
            case Collect():
                self.member.collect(source, message)
            case SyncClose():
                self.member.close(source, message, now)
            case SyncCopy():
                self.member.copy(source, message, now)
            case SyncPull():
                self.member.pull(source, message)
            case Pulled():
                if self.rounds is None or not self.rounds.fetched(source, message, now):
                    self.member.pulled(source, message, now)
            case Commit():
                self.member.commit(message, now)
            case CommittedLog():
                self.rejoining.take(source, message, now)
            case InSync():
                self.rejoining.in_sync()
            case OrphanPlace():
                self.republisher.place(source, message, now)
            case OrphanKnown():
                self.republisher.known(message)
            case OrphanLater():
                self.republisher.later(message, now)
            case Fenced():
                pass  # its epoch is noted
            case _:
                return False
        return True

    def _take_as_original(self, source: BrokerId, message: Message, now: Instant) -> None:
        original, rounds = self.original, self.rounds
        if original is None or rounds is None or message.epoch != original.epoch:
            return
        match message:
            case RelayStored(_, base):
                original.stored(source, base)
            case RelayRefused(_, base, stream, _):
                original.refused(source, base, stream)
            case Closed():
                rounds.closed(source, message, now)
            case CopyFailed():
                rounds.copy_failed(source, message, now)
            case Done():
                rounds.done(source, message, now)
            case RoundWanted():
                original.wanted()
            case CaughtUp():
                rounds.caught_up(source, message, now)
            case OrphanOffer():
                original.orphan(source, message, now)
            case _:
                raise RemoteProtocolError(f"no replica sends a {type(message).__name__}")

    # The disk.

    def begin_sync(self, now: Instant) -> FilesSync | None:
        """Collect what is not durable yet."""
        return self.files.begin_sync()

    def end_sync(self, work: SyncWork, now: Instant, error: StorageError | None = None) -> Effects:
        """Take note of work that has run: we may be done, or have everything."""
        self.files.end_sync(cast(FilesSync, work), error)
        if error is None:
            self.member.synced(now)
            self.rejoining.synced(now)
        return self._finish(now)

    # Time.

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        return self._finish(now, woken=True)

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        times = [
            self.office.next_deadline(),
            self.rejoining.next_deadline(),
            self.republisher.next_deadline(),
            self._lock_at(),
        ]
        if self.rounds is not None:
            times.append(self.rounds.next_deadline(self._now))
        return min((each for each in times if each is not None), default=None)

    def _lock_at(self) -> Instant | None:
        """When we ask for a round, as every secondary of the paper does.  [S004:3b]"""
        if (
            self.settings.coordination is Coordination.ZOOKEEPER
            and self.original is None
            and self.office.in_sync
            and self.office.original is not None
            and self.files.end > self.files.committed
        ):
            return Instant(self._locked_at + self.settings.sync_interval_ns)
        return None

    def _finish(self, now: Instant, *, steps: bool = True, woken: bool = False) -> Effects:
        """Do what became possible, and hear what we tell ourselves, until nothing is left.

        Without `steps` only the latter: what comes of an epoch that is over makes nothing due.
        """
        self._now = max(self._now, now)
        lock_at = self._lock_at()
        if lock_at is not None and now >= lock_at:
            self._locked_at = now
            self.out.add(Lock())
        self.out.extend(self.office.wake(now))
        while True:
            while self.out.mine:
                self._receive(self.me, self.out.mine.popleft(), now)  # type: ignore[arg-type]
            if not steps:
                return self.out.take()
            if self.rounds is not None:
                self.rounds.step(now, woken=woken)
            self.rejoining.step(now)
            self.republisher.step(now)
            if not self.out.mine:
                self._leave(now)
                return self.out.take()

    # The rest.

    def status(self) -> dict[str, Any]:
        """What `orderwire cluster status` shows."""
        view = self.view
        status: dict[str, Any] = {
            "role": "original" if self.original is not None else "member",
            "in_sync": self.office.in_sync,
            "epoch": self.files.known_epoch,
            "isr": [] if view is None else list(view.isr),
            "sync_start": self.files.committed - 1,
            "sync_end": self.files.committed - 1,
            "log_start": self.log.start_offset,
            "log_end": self.log.end_offset,
            "orphans": len(self.files.orphans),
            "pending_bytes": self.files.pending.kept_bytes,
            "is_blank": self.files.kept.is_blank,
            "doubtful": self.files.doubtful,
        }
        if self.original is not None and self.rounds is not None:
            status |= {
                "recovered": self.original.active,
                "sync_end": self.rounds.sync_end - 1,
                "assigned_end": self.original.next_offset,
                "rounds": self.rounds.count,
                "sealed": self.rounds.sealed,
                "waiting": self.original.assigned.waiting,
                "lag": self.rounds.lag(),
            }
        return status

    def close(self) -> None:
        """Close the files properly."""
        self.files.close(self._now)
