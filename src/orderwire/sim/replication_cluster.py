"""Replicas of one partition with their disks, links and ZooKeeper: one step at a time.  [S004:5]"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol, TypeAlias

from orderwire.broker.flush import Flush
from orderwire.broker.log import Appended, Refused
from orderwire.broker.log.faulty import FaultyStorage, PowerFailure
from orderwire.broker.log.storage import LogDamaged, StorageError
from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.active_active_messages import RejoinFetch
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.settings import Coordination, ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import Instant
from orderwire.sim.replication_broker import Broker, plain
from orderwire.sim.replication_clients import WorldSettings
from orderwire.sim.replication_disk import batches_of, main_log
from orderwire.sim.replication_zookeeper import PartitionZnodes, Session
from orderwire.verify import replication as told

Step: TypeAlias = tuple[str, int, int]
"""What happens, at which broker or client, and with whom."""

NOON = Instant(1_700_000_000_000_000_000)
"""When a world begins: far from every number that is not a time."""
READ_BYTES = 1 << 20


class MakeReplica(Protocol):
    """Makes a partition's replica at a broker that starts."""

    def __call__(
        self,
        me: BrokerId,
        storage: FaultyStorage,
        settings: ReplicationSettings,
        now: Instant,
    ) -> Replica:
        """Open the files, recover them, and wait for the view."""
        ...


class Cluster:
    """Brokers, links, disks and ZooKeeper: everything but the clients and the choice."""

    def __init__(
        self,
        make_replica: MakeReplica,
        settings: ReplicationSettings,
        world: WorldSettings,
        *,
        on_event: Callable[[told.Event], None] | None = None,
    ) -> None:
        self.make_replica = make_replica
        self.settings = settings
        self.world = world
        self.now = NOON
        self.history: list[told.Event] = []
        self.on_event: Callable[[told.Event], None] = on_event or self.history.append
        self.on_offer: Callable[[Step], None] | None = None
        """Told of each step that has become possible."""
        self.on_effect: Callable[[int, asked.Effect], None] | None = None
        """Told of what each replica has asked for."""
        self.on_deadline: Callable[[BrokerId, Instant | None], None] | None = None
        self.pending: dict[Step, None] = {}
        """Steps that are possible now, in the order in which they became so."""
        ids = tuple(BrokerId(each) for each in range(world.replicas))
        self.znodes = PartitionZnodes(ids, world.preferred)
        self.brokers = [Broker(each) for each in ids]
        self.queues: dict[tuple[int, int], deque[Any]] = {
            (a, b): deque() for a in ids for b in ids if a != b
        }
        self.open: set[tuple[int, int]] = set()
        """Connections that hold, the lower broker first."""
        self.believes: set[tuple[int, int]] = set()
        """(a, b): a was told of the connection to b, and not of its end."""
        self.cut: set[tuple[int, int]] = set()
        """Pairs that cannot connect."""
        self.tokens: dict[int, tuple[int, int, int]] = {}
        """Token → producer, connection (−1: nobody listens any more), broker."""
        self.notes: list[tuple[BrokerId, Any]] = []
        for broker in self.brokers:
            self.start(broker.number)

    # What drives the world.

    def offer(self, kind: str, who: int, other: int = 0) -> None:
        """Make a step possible."""
        step = (kind, who, other)
        if step not in self.pending:
            self.pending[step] = None
            if self.on_offer is not None:
                self.on_offer(step)

    def take(self, step: Step) -> None:
        """Let a step happen.  What has become impossible changes nothing."""
        self.pending.pop(step, None)
        getattr(self, "_" + step[0])(step[1], step[2])

    def withdraw(self, *, broker: int | None = None, pair: tuple[int, int] | None = None) -> None:
        """Forget steps that are no longer possible."""
        local = {"view", "read", "zk", "sync_begin", "sync_run", "sync_end", "told_lost", "begin"}
        local.add("reopen")
        links = {"deliver", "up", "down", "connect"}
        for step in list(self.pending):
            kind, who, other = step
            if (broker is not None and who == broker and kind in local) or (
                pair is not None and kind in links and {who, other} == set(pair)
            ):
                del self.pending[step]

    def clock(self, who: int) -> Instant:
        """What time it is for this broker."""
        broker = self.brokers[who]
        broker.clock = max(broker.clock, self.now)
        return broker.clock

    def call(self, who: int, act: Callable[[Replica, Instant], asked.Effects | None]) -> None:
        """Call a replica and do what it asks.  A disk that stops ends the process."""
        broker = self.brokers[who]
        replica = broker.replica
        if replica is None:
            return
        try:
            effects = act(replica, self.clock(who))
        except PowerFailure:
            self.crash(who, broker.doom)
            return
        except LogDamaged as damage:
            self.give_up(broker, damage)
            return
        except StorageError:
            self.crash(who)
            return
        if replica.high_watermark < broker.high_watermark:
            broker.high_watermark = replica.high_watermark
            empty = replica.log.start_offset == replica.log.end_offset
            went = told.WentBack(broker.number, broker.life, broker.high_watermark, empty)
            self.on_event(went)
        for effect in effects or ():
            if broker.replica is not replica:
                return  # what was committed could not be read
            self._do(broker, effect)
            if self.on_effect is not None:
                self.on_effect(who, effect)
        if self.on_deadline is not None and broker.replica is replica:
            self.on_deadline(broker.number, replica.next_deadline())

    # Effects.

    def _do(self, broker: Broker, effect: asked.Effect) -> None:
        who = broker.number
        match effect:
            case asked.Tell(to, message):
                pair = pair_of(who, to)
                if (who, to) in self.believes and pair in self.open:
                    self.queues[who, to].append(plain(message))
                    if (to, who) in self.believes:
                        self.offer("deliver", who, to)
            case asked.Answer(token, result):
                asker = self.tokens.pop(token, None)
                assert asker is not None, f"a second answer to request {token}, or none was asked"
                self.answered(token, asker[0], asker[1], result)
            case asked.Advance(high_watermark):
                self._advanced(broker, high_watermark)
            case asked.Sync():
                broker.sync_wanted = True
                if broker.work is None:
                    self.offer("sync_begin", who)
            case asked.Note(event):
                self.notes.append((who, event))
                if isinstance(event, asked.Elected):
                    self.on_event(told.Elected(event.epoch, who))
                elif isinstance(event, asked.Republished):
                    self.on_event(told.Republished(event.new_offset))
            case asked.SetSync() | asked.Unlock() if self.world.coarse and self._by_rpc:
                pass  # nobody looks
            case _:
                broker.operations.append(effect)
                self.offer("zk", who)

    def _lost(self, broker: Broker, event: asked.Lose) -> None:
        held = {
            batch
            for each in self.brokers
            if each.number in self.znodes.isr
            for batch in main_log(each.storage)
            if batch.last >= event.start
        }
        start, end = event.start, event.end
        self.on_event(
            told.Lost(
                event.epoch,
                broker.number,
                start,
                end,
                tuple(sorted(held, key=lambda each: each.first)),
                event.unclean,
            )
        )
        self.lost(start)

    def lost(self, start: int) -> None:
        """Consumers that passed this offset have to go back."""
        raise NotImplementedError

    @property
    def _by_rpc(self) -> bool:
        return self.settings.coordination is Coordination.RPC

    def _advanced(self, broker: Broker, high_watermark: int) -> None:
        replica = broker.replica
        assert replica is not None
        start = max(broker.high_watermark, replica.log.start_offset)
        batches: list[told.Batch] = []
        at = start
        while at < min(high_watermark, replica.log.end_offset):
            try:
                part = replica.log.read(at, READ_BYTES, high_watermark)
            except LogDamaged as damage:
                self.give_up(broker, damage)
                return
            except PowerFailure:
                self.crash(broker.number, broker.doom)
                return
            assert isinstance(part, bytes), part
            found = list(batches_of(part))
            if not found:
                break
            batches += found
            at = found[-1].last + 1
        self.on_event(
            told.Committed(broker.number, broker.life, start, high_watermark, tuple(batches))
        )
        broker.high_watermark = max(high_watermark, broker.high_watermark)

    def answered(self, token: int, who: int, connection: int, result: Appended | Refused) -> None:
        """A producer's request is answered."""
        raise NotImplementedError

    def give_up(self, broker: Broker, damage: LogDamaged) -> None:
        """A replica has found that its files do not read as they were written."""
        raise NotImplementedError

    def gone(self, broker: BrokerId) -> None:
        """A broker's process has ended: its clients lose their connections."""
        raise NotImplementedError

    # ZooKeeper.

    def _zk(self, who: int, _: int) -> None:
        """ZooKeeper carries out the oldest request of a broker."""
        broker = self.brokers[who]
        if not broker.operations:
            return
        operation = broker.operations.popleft()
        if broker.operations:
            self.offer("zk", who)
        if broker.session is None:
            return
        znodes = self.znodes
        locks = len(znodes.locks)
        changed = znodes.apply(broker.session, operation)
        if changed and isinstance(operation, asked.Lose):
            self._lost(broker, operation)
        if changed:
            self.tell_all()
        elif isinstance(operation, asked.Elect | asked.Resign | asked.ChangeIsr | asked.Lose):
            self.offer("read", who)
        if isinstance(operation, asked.SetSync):
            begin, end = znodes.sync_start[0], znodes.sync_end[0]
            if self._by_rpc:
                end = max(begin, end)  # nobody has to write where a round ends
            self.on_event(told.RoundEnd(znodes.sync_start[1], begin, end))
            if operation.end is not None and not self._by_rpc:
                for other in self.brokers:
                    if other.number != who and other.up and other.session is not None:
                        self.offer("sync_end_seen", other.number)
        if len(znodes.locks) > locks and znodes.original is not None:
            self.offer("locked", znodes.original)

    def tell_all(self) -> None:
        """Everybody's watch fires."""
        for broker in self.brokers:
            if broker.up and broker.session is not None:
                self.offer("read", broker.number)

    def _read(self, who: int, _: int) -> None:
        """A watch has fired, or a request was refused: the broker reads the znodes."""
        broker = self.brokers[who]
        if broker.session is None or broker.session not in self.znodes.sessions:
            return
        broker.views.append(self.znodes.view())
        if self.world.coarse:
            self._view(who, 0)
        else:
            self.offer("view", who)

    def _view(self, who: int, _: int) -> None:
        broker = self.brokers[who]
        if not broker.views or broker.session is None:
            return
        view = broker.views.popleft()
        if broker.views:
            self.offer("view", who)
        is_first = broker.replica is not None and broker.replica.view is None
        self.call(who, lambda replica, now: replica.viewed(view, now))
        if is_first and broker.replica is not None:
            if view.losses == self.znodes.losses:
                self._advanced(broker, broker.replica.high_watermark)
            else:  # that was committed, and is lost: it will hear of it
                broker.high_watermark = broker.replica.high_watermark
            for other in self.brokers:
                if pair_of(who, other.number) in self.open:
                    self._offer_up(who, other.number)

    def _sync_end_seen(self, who: int, _: int) -> None:
        end, epoch, number = self.znodes.sync_end
        if epoch >= 0 and self.brokers[who].session is not None:
            self.call(who, lambda replica, now: replica.sync_end_seen(end, epoch, number, now))

    def _locked(self, who: int, _: int) -> None:
        if self.znodes.locks and self.brokers[who].session is not None:
            self.call(who, lambda replica, now: replica.locked(now))

    def expire(self, who: int) -> None:
        """ZooKeeper ends a session; the broker, should it live, hears of it later: a zombie."""
        broker = self.brokers[who]
        if broker.session is None or broker.session not in self.znodes.sessions:
            return
        self._end_session(broker.session)
        self.offer("told_lost", who)

    def suspend(self, who: int) -> None:
        """A broker loses sight of ZooKeeper and has to assume the worst; its session lives."""
        broker = self.brokers[who]
        if broker.session is None:
            return
        broker.operations.clear()
        broker.views.clear()
        self.call(who, lambda replica, now: replica.session_lost(now))
        self.offer("read", who)

    def _end_session(self, session: Session) -> None:
        if self.znodes.end_session(session):
            self.tell_all()

    def _session_end(self, _: int, session: int) -> None:
        """The session of a process that is gone."""
        self._end_session(session)

    def _told_lost(self, who: int, _: int) -> None:
        broker = self.brokers[who]
        if broker.session is None or broker.session in self.znodes.sessions:
            return
        broker.session = None
        broker.operations.clear()
        broker.views.clear()
        self.call(who, lambda replica, now: replica.session_lost(now))
        if broker.up:
            self.offer("begin", who)

    def _begin(self, who: int, _: int) -> None:
        """A broker connects to ZooKeeper."""
        broker = self.brokers[who]
        if not broker.up or broker.session is not None:
            return
        broker.session = self.znodes.begin_session(broker.number)
        self.offer("read", who)

    # Links.

    def _connect(self, a: int, b: int) -> None:
        pair = pair_of(a, b)
        if not self._connectable(pair):
            return
        self.open.add(pair)
        self._offer_up(a, b)
        self._offer_up(b, a)

    def _offer_up(self, who: int, peer: int) -> None:
        if self.world.coarse:
            self._up(who, peer)
        else:
            self.offer("up", who, peer)

    def _connectable(self, pair: tuple[int, int]) -> bool:
        a, b = pair
        return (
            pair not in self.open
            and pair not in self.cut
            and self.brokers[a].up
            and self.brokers[b].up
            and (a, b) not in self.believes
            and (b, a) not in self.believes
        )

    def _offer_connect(self, a: int, b: int) -> None:
        pair = pair_of(a, b)
        if self._connectable(pair):
            self.offer("connect", *pair)

    def _up(self, who: int, peer: int) -> None:
        """A broker takes note of a link; before its first view nobody is heard.  [R2]"""
        if pair_of(who, peer) not in self.open or (who, peer) in self.believes:
            return
        replica = self.brokers[who].replica
        if replica is None or replica.view is None:
            return
        self.believes.add((who, peer))
        if self.queues[peer, who]:
            self.offer("deliver", peer, who)
        self.call(who, lambda replica, now: replica.connected(BrokerId(peer), now))

    def _deliver(self, source: int, to: int) -> None:
        queue = self.queues[source, to]
        if not queue or (to, source) not in self.believes or not self.brokers[to].up:
            return
        message = queue.popleft()
        if queue:
            self.offer("deliver", source, to)
        broker = self.brokers[to]
        known = broker.replica.status().get("epoch", -1) if broker.replica is not None else -1
        writes = broker.storage.disk.writes
        self.call(to, lambda replica, now: replica.receive(BrokerId(source), message, now))
        epoch = getattr(message, "epoch", None)
        if isinstance(message, RejoinFetch):
            return  # who was away knows an old epoch; what S was it may say, and that is noted
        if epoch is not None and epoch < known and broker.storage.disk.writes > writes:
            self.on_event(told.TookLower(broker.number, epoch, known))

    def break_link(self, a: int, b: int) -> None:
        """A connection ends: what was on its way is lost, and each end hears of it in its time."""
        pair = pair_of(a, b)
        self.withdraw(pair=pair)
        self.open.discard(pair)
        self.queues[a, b].clear()
        self.queues[b, a].clear()
        for who, peer in ((a, b), (b, a)):
            if (who, peer) in self.believes:
                if self.world.coarse:
                    self._down(who, peer)
                else:
                    self.offer("down", who, peer)
        self._offer_connect(a, b)

    def _down(self, who: int, peer: int) -> None:
        if pair_of(who, peer) in self.open or (who, peer) not in self.believes:
            return
        self.believes.discard((who, peer))
        self.call(who, lambda replica, now: replica.disconnected(BrokerId(peer), now))
        other = self.brokers[peer]
        if not (other.up or other.given_up or self.world.coarse) and other.life % 2:
            # Who looks may find that its process has ended.
            self.call(who, lambda replica, now: replica.ended(BrokerId(peer), now))
        self._offer_connect(who, peer)

    def part(self, a: int, b: int) -> None:
        """Two brokers cannot reach each other until `mend`."""
        self.cut.add(pair_of(a, b))
        self.break_link(a, b)

    def mend(self, a: int, b: int) -> None:
        """They can again."""
        self.cut.discard(pair_of(a, b))
        self._offer_connect(a, b)

    # Processes and disks.

    def start(self, who: int, found: str | None = None) -> None:
        """A process starts, or a replica that was given up, with the files that are there; `found`:
        what is wrong with them."""
        broker = self.brokers[who]
        assert not broker.up
        broker.life += 1
        now = self.clock(who)
        try:
            broker.replica = self._open(broker, now, found)
        except PowerFailure:  # it ends while it recovers
            self._stopped(broker, broker.doom)
            return
        # What it noted of S counts from its first view on: before, nobody is served, and that tells
        # what was lost meanwhile.  [R2, S004:4.8]
        broker.high_watermark = broker.replica.log.start_offset
        self.offer("begin", who)
        for other in self.brokers:
            if other.number != who:
                self._offer_connect(who, other.number)
        if self.on_deadline is not None:
            self.on_deadline(broker.number, broker.replica.next_deadline())

    def _open(self, broker: Broker, now: Instant, found: str | None) -> Replica:
        raise NotImplementedError

    def _start(self, who: int, _: int) -> None:
        if not self.brokers[who].up and not self.brokers[who].held_back:
            self.start(who)

    def crash(self, who: int, power: Random | None = None) -> None:
        """A process ends.  Its files stay as they were written, or, without power, as synced."""
        broker = self.brokers[who]
        if not broker.up and not broker.given_up:
            return
        broker.replica, broker.given_up = None, False
        broker.work = broker.work_error = None
        broker.sync_wanted = False
        broker.operations.clear()
        broker.views.clear()
        self.withdraw(broker=who)
        for peer in range(len(self.brokers)):
            if peer != who:
                self.believes.discard((who, peer))
                self.break_link(who, peer)
        if broker.session is not None:
            self.offer("session_end", who, broker.session)
            broker.session = None
        self.gone(broker.number)
        self.tokens = {token: asker for token, asker in self.tokens.items() if asker[2] != who}
        if self.on_deadline is not None:
            self.on_deadline(broker.number, None)
        self._stopped(broker, power)

    def _stopped(self, broker: Broker, power: Random | None) -> None:
        """What is left of a process: its files."""
        broker.storage.disk.crash_at_write = None
        broker.doom = broker.lost = None
        if power is not None:
            broker.storage = broker.storage.after_crash(power)
            broker.power_failed = True
            broker.lacks = broker.lacks or self.settings.flush is Flush.NONE
        self.offer("start", broker.number)

    def wake(self, who: int) -> None:
        """A deadline has come."""
        self.call(who, lambda replica, now: replica.wake(now))

    def _wake(self, who: int, _: int) -> None:
        """The clock of a broker goes to its next deadline, whatever the others' say."""
        broker = self.brokers[who]
        if broker.replica is None:
            return
        deadline = broker.replica.next_deadline()
        if deadline is not None:
            broker.clock = max(self.clock(who), deadline)
            self.wake(who)

    def _sync_begin(self, who: int, _: int) -> None:
        broker = self.brokers[who]
        if broker.replica is None or broker.work is not None:
            return
        broker.sync_wanted = False
        broker.work = broker.replica.begin_sync(self.clock(who))
        if broker.work is None:
            return
        if self.world.sync_at_once:
            self._sync_run(who, 0)
        else:
            self.offer("sync_run", who)

    def _sync_run(self, who: int, _: int) -> None:
        broker = self.brokers[who]
        if broker.work is None:
            return
        try:
            broker.work.run()
        except StorageError as error:
            broker.work_error = error
        except PowerFailure:
            self.crash(who, broker.doom)
            return
        if self.world.sync_at_once:
            self._sync_end(who, 0)
        else:
            self.offer("sync_end", who)

    def _sync_end(self, who: int, _: int) -> None:
        broker = self.brokers[who]
        work, error = broker.work, broker.work_error
        if work is None:
            return
        broker.work = broker.work_error = None
        if broker.given_up:
            self.offer("reopen", who)
        self.call(who, lambda replica, now: replica.end_sync(work, now, error))
        if error is not None:
            self.crash(who)
        elif broker.sync_wanted:
            self.offer("sync_begin", who)


def pair_of(a: int, b: int) -> tuple[int, int]:
    """Two brokers, the lower first."""
    return (a, b) if a < b else (b, a)
