"""Producers and consumers before the replicas of one partition: one step at a time.

The world knows which steps could come next and takes the one it is told; who tells draws delays
(`replication_run`) or tries every order (`replication_search`).  It knows no protocol: replicas
come from a factory and keep the contract of `broker.replication.replica`.  [S004:5]
"""

from collections.abc import Callable

from orderwire.broker.log import Appended, Refused
from orderwire.broker.log.faulty import FaultyStorage, PowerFailure
from orderwire.broker.log.storage import LogDamaged
from orderwire.broker.replication.effects import Replace
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS
from orderwire.sim.replication_clients import Consumer, Producer, WorldSettings
from orderwire.sim.replication_cluster import READ_BYTES, MakeReplica
from orderwire.sim.replication_disk import batches_of, before_gap, main_log, messages_on
from orderwire.sim.replication_flips import DamagedCluster
from orderwire.verify import replication as told


class ReplicationWorld(DamagedCluster):
    """Everything but the choice of what comes next."""

    def __init__(
        self,
        make_replica: MakeReplica,
        settings: ReplicationSettings,
        world: WorldSettings,
        *,
        on_event: Callable[[told.Event], None] | None = None,
    ) -> None:
        self.producers = [Producer(n, each) for n, each in enumerate(world.producers)]
        self.consumers = [Consumer(each) for each in range(world.consumers)]
        self.log_start = 0
        """As far as it was ever moved."""
        self._token = 0
        self._connection = 0
        super().__init__(make_replica, settings, world, on_event=on_event)

    def answered(self, token: int, who: int, connection: int, result: Appended | Refused) -> None:
        """A producer's request is answered, should it still listen."""
        producer = self.producers[who]
        if producer.connection == connection:
            producer.answers[token] = result
            if producer.flight and producer.flight[0].token in producer.answers:
                self.offer("answer", who)

    def lost(self, start: int) -> None:
        """Consumers are told that their position is out of range."""
        for consumer in self.consumers:
            consumer.position = min(consumer.position, start)

    def gone(self, broker: BrokerId) -> None:
        """Its clients lose their connections."""
        for producer in self.producers:
            if producer.broker == broker:
                self.offer("lose", producer.number)

    def begin_clients(self) -> None:
        """Producers may send and consumers may fetch from now on."""
        for producer in self.producers:
            self.offer("send", producer.number)

    def _send(self, who: int, _: int) -> None:
        producer = self.producers[who]
        if not producer.ready:
            return
        if producer.broker is None and not self._find_broker(producer):
            self.offer("send", who)
            return
        broker = producer.broker
        assert broker is not None
        token = self._next_token()
        request = producer.take_next(broker, token)
        self.tokens[token] = (who, producer.connection, broker)
        settings = producer.settings
        self.on_event(told.Requested(producer.session, request.messages, settings.acks))
        records = producer.encoded(request.number, request.messages)
        self.offer("send", who)
        if not self.brokers[broker].up:
            self.offer("lose", who)
            return
        self.call(
            broker,
            lambda replica, now: replica.produce(
                request.token, request.connection, memoryview(records), settings.acks, now
            ),
        )
        records[:] = bytes(len(records))  # it was only lent

    def _find_broker(self, producer: Producer) -> bool:
        """As metadata says; whoever was asked last may be behind, so the client asks again."""
        znodes = self.znodes
        found: BrokerId | None = znodes.original
        if producer.settings.any_replica:
            place = producer.settings.home + producer.turns
            found = znodes.isr[place % len(znodes.isr)]
        if found is None or not self.brokers[found].up:
            producer.turns += 1
            return False
        producer.broker = found
        self._connection += 1
        producer.connection = producer.number if self.world.coarse else self._connection
        return True

    def _next_token(self) -> int:
        """A search needs numbers that come again, so that states do."""
        self._token += 1
        if not self.world.coarse:
            return self._token
        return next(each for each in range(self._token) if each not in self.tokens)

    def _answer(self, who: int, _: int) -> None:
        producer = self.producers[who]
        heard = producer.hear()
        if heard is None:
            return
        request, result = heard
        if isinstance(result, Appended):
            told_of = told.Acknowledged(
                request.messages, producer.settings.acks, result.base_offset
            )
            self.on_event(told_of)
        if producer.flight and producer.flight[0].token in producer.answers:
            self.offer("answer", who)
        if producer.broker is None and producer.flight:
            self.offer("lose", who)
        self.offer("send", who)

    def _lose(self, who: int, _: int) -> None:
        """A client's connection ends, or its patience."""
        producer = self.producers[who]
        for token in producer.lose_connection():
            asker = self.tokens.get(token)
            if asker is not None:
                self.tokens[token] = (who, -1, asker[2])
                replica = self.brokers[asker[2]].replica
                if replica is not None:
                    replica.forget(token)
        self.offer("send", who)

    def fetch(self, who: int, at: int, bytes_max: int = READ_BYTES) -> bool:
        """A consumer asks a broker for what follows its position; returns whether it got on."""
        broker = self.brokers[at]
        consumer = self.consumers[who]
        consumer.at = at
        replica = broker.replica
        if replica is None or not replica.serves_fetch:
            return False
        high_watermark = replica.high_watermark
        position = consumer.position
        if position >= high_watermark:
            self.call(at, lambda each, now: each.wanted(now))
            return False
        if position < replica.log.start_offset:
            consumer.position = replica.log.start_offset
            return True
        try:
            part = replica.log.read(position, bytes_max, high_watermark)
        except LogDamaged as damage:
            self.give_up(broker, damage)
            return False
        except PowerFailure:
            self.crash(at, broker.doom)
            return False
        assert isinstance(part, bytes), part
        data = part
        records: list[tuple[int, str]] = []
        reached = position
        for batch in batches_of(data):
            reached = batch.last + 1
            for offset, message in enumerate(batch.messages, batch.first):
                if offset >= position:
                    records.append((offset, message))
        assert data, "a fetch below the high watermark got nothing"
        self.on_event(
            told.Delivered(
                f"c{who}", broker.number, position, reached, high_watermark, tuple(records)
            )
        )
        consumer.position = reached
        return True

    def _fetch(self, who: int, at: int) -> None:
        self.fetch(who, at)

    def delete_records(self, before: int) -> None:
        """Retention at the original, or a client's DeleteRecords: the log's start moves."""
        original = self.znodes.original
        if original is None or self.brokers[original].replica is None:
            return
        replica = self.brokers[original].replica
        assert replica is not None
        target = min(before, replica.high_watermark)
        if not replica.takes_produce or target <= replica.log.start_offset:
            return
        try:
            start = replica.log.delete_records(
                target, self.clock(original) // NS_PER_MS, replica.high_watermark
            )
        except PowerFailure:
            self.crash(original, self.brokers[original].doom)
            return
        except LogDamaged as damage:
            self.give_up(self.brokers[original], damage)
            return
        assert isinstance(start, int)
        self.log_start = max(self.log_start, start)
        self.on_event(told.LogStart(start))

    def hand_over(self, to: int) -> None:
        """The original gives its office to another."""
        original = self.znodes.original
        if original is not None and original != to:
            self.call(original, lambda replica, now: replica.hand_over(BrokerId(to), now))

    # Ruins.

    def replace_disk(self, who: int) -> None:
        """A broker that is down gets an empty disk."""
        broker = self.brokers[who]
        assert not broker.up
        broker.storage = FaultyStorage()
        broker.power_failed = broker.lacks = True

    def hold_back(self, who: int) -> None:
        """A broker that is down stays down until `let_start`."""
        self.brokers[who].held_back = True

    def let_start(self, who: int) -> None:
        """It may start again."""
        broker = self.brokers[who]
        if broker.held_back:
            broker.held_back = False
            self.offer("start", who)

    def successor(self) -> Replace | None:
        """Who should be put in the place of an in-sync set that is gone, as an operator's broker
        finds out: of those that live, whose log is the latest; None: somebody in sync is, or can be
        elected, or nobody lives.
        """
        znodes = self.znodes
        best: tuple[tuple[int, int], BrokerId] | None = None
        for broker in self.brokers:
            replica = broker.replica
            if replica is None or replica.view is None or broker.session not in znodes.sessions:
                continue
            if broker.number in znodes.isr and not replica.is_blank:
                return None
            log = replica.log.epochs.latest, replica.log.end_offset
            if best is None or log > best[0]:
                best = log, broker.number
        if best is None or znodes.original is not None:
            return None
        return Replace(best[1], znodes.version, znodes.epoch)

    def put_in_place(self, wish: Replace) -> bool:
        """Do that, unless something has changed."""
        done = self.znodes.replace(wish)
        if done:
            self.tell_all()
        return done

    # What can be seen from outside.

    def look(self, *, acks_one_lost: bool = False) -> None:
        """Put into the history what every disk holds now."""
        znodes = self.znodes
        found: set[str] = set()
        self.look_for_flips()
        for broker in self.brokers:
            found.update(messages_on(broker.storage))
            if broker.flipped:
                continue  # nobody has found it yet, or it is being copied again
            replica = broker.replica
            high = None
            # What it has noted of S counts once it has heard what was lost meanwhile.
            if replica is not None and replica.view is not None:
                high = replica.high_watermark if replica.view.losses == znodes.losses else None
            if replica is not None and not (replica.is_blank or replica.status().get("doubtful")):
                broker.lacks = False
            if broker.lacks and broker.replica is None:
                continue  # half of a disk, until its log is recovered
            in_sync = broker.number in znodes.isr and not broker.lacks and not znodes.unclean
            batches = main_log(broker.storage)
            if broker.replica is None and broker.power_failed:
                batches = before_gap(batches, self.log_start)  # a recovery will keep no more
            self.on_event(told.Held(broker.number, in_sync, high, batches))
        self.on_event(told.OnDisk(frozenset(found), acks_one_lost or self.power_failed))

    def agreed_end(self) -> int:
        """The lowest high watermark of all brokers; −1 while one is down."""
        return min(
            -1 if broker.replica is None else broker.replica.high_watermark
            for broker in self.brokers
        )

    @property
    def power_failed(self) -> bool:
        """Whether a disk has lost what was not synced, and acks=1 promised no more than that."""
        if self.world.acks_one_durable:
            return False
        return any(broker.power_failed for broker in self.brokers)

    def settled(self, *, acks_one_lost: bool = False) -> None:
        """Put into the history that the partition should be whole now."""
        replicas = tuple(broker.number for broker in self.brokers)
        self.on_event(told.Settled(self.znodes.isr, replicas, acks_one_lost or self.power_failed))
