"""A partition's world whose state can be taken down and put back: what an exhaustive search needs.

A state is small: numbers of what the replicas and the judge are (`replication_remembered`), and
what links, ZooKeeper and clients hold.  [S004:5]
"""

import pickle
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias, cast

from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.kernel import Instant
from orderwire.sim.replication_broker import Broker
from orderwire.sim.replication_clients import WorldSettings
from orderwire.sim.replication_cluster import MakeReplica, Step
from orderwire.sim.replication_fingerprint import Reader, fingerprint
from orderwire.sim.replication_remembered import Book, Facts, Process
from orderwire.sim.replication_world import ReplicationWorld
from orderwire.verify import replication as told
from orderwire.verify.replication import Breach, Judge

Frozen: TypeAlias = tuple[Any, ...]
"""A state as it was taken down."""


class Verdicts:
    """What the judge has seen, as a number; what it says to an event is remembered."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._pickled: list[bytes] = []
        self._told: dict[tuple[int, told.Event], tuple[int, tuple[Breach, ...]]] = {}
        self._seen: dict[tuple[Any, ...], tuple[Breach, ...]] = {}
        self.ends: list[int] = []
        self.owed: list[tuple[tuple[str, int], ...]] = []
        """What is acknowledged and not committed, and with which acks."""
        self._number(Judge())

    def _number(self, judge: Judge) -> int:
        judge.breaches.clear()
        judge.forget_heights()
        reader = Reader(0, power=False)
        read = fingerprint((reader.read(judge.truth), reader.read(judge.facts())))
        number = self._numbers.get(read)
        if number is None:
            number = self._numbers[read] = len(self._pickled)
            self._pickled.append(pickle.dumps(judge, 5))
            self.ends.append(judge.end)
            self.owed.append(tuple((each, judge.acks_of(each)) for each in judge.uncommitted()))
        return number

    def take(self, number: int, event: told.Event) -> tuple[int, tuple[Breach, ...]]:
        """The number after an event, and what it breaks."""
        key = (number, event)
        found = self._told.get(key)
        if found is None:
            judge: Judge = pickle.loads(self._pickled[number])
            judge.take(event)
            breaches = tuple(judge.breaches)
            found = self._told[key] = (self._number(judge), breaches)
        return found

    def look(self, number: int, key: Any, events: Callable[[], list[told.Event]]) -> list[Breach]:
        """What somebody who looks at every disk finds broken."""
        found = self._seen.get((number, key))
        if found is None:
            judge: Judge = pickle.loads(self._pickled[number])
            for event in events():
                judge.take(event)
            found = self._seen[number, key] = tuple(judge.breaches)
        return list(found)


class SearchedWorld(ReplicationWorld):
    """A world that goes back to where it was."""

    def __init__(
        self,
        make_replica: MakeReplica,
        settings: ReplicationSettings,
        world: WorldSettings,
        *,
        power: bool,
    ) -> None:
        self.book = Book(make_replica, settings, power=power)
        self.verdicts = Verdicts()
        self.verdict = 0
        self.breaches: list[Breach] = []
        self.acks_one_lost = False
        super().__init__(make_replica, settings, world, on_event=self._judge)

    def _judge(self, event: told.Event) -> None:
        self.verdict, breaches = self.verdicts.take(self.verdict, event)
        self.breaches += breaches

    # Processes are numbers.

    def process(self, broker: Broker) -> Process:
        """A broker's disk and what runs on it."""
        found: Any = broker.storage
        assert isinstance(found, Process)
        return found

    def facts(self, broker: Broker) -> Facts:
        """What can be seen of a broker."""
        return self.book.facts[self.process(broker).state]

    def start(self, who: int, found: str | None = None) -> None:
        """A process starts, with the files that are there; nothing flips."""
        broker = self.brokers[who]
        storage: Any = broker.storage
        if not isinstance(storage, Process):
            storage = Process(self.book, broker.number, self.book.begin(broker.number))
            broker.storage = storage
        broker.life = 0
        process: Any = storage
        process.start()
        super().start(who)

    def _open(self, broker: Broker, now: Instant, found: str | None) -> Replica:
        process: Any = broker.storage
        return cast(Replica, process)

    def _stopped(self, broker: Broker, power: Random | None) -> None:
        self.process(broker).stop(power is not None)
        if power is not None:
            broker.power_failed = True
        self.offer("start", broker.number)

    def _wake(self, who: int, _: int) -> None:
        self.wake(who)

    # What can be seen.

    def seen(self) -> list[Breach]:
        """What is wrong with what is on the disks, and with what would be served."""
        isr = self.znodes.isr
        parts = tuple(
            (self.process(each).state, each.up, each.number in isr) for each in self.brokers
        )
        lost = self.power_failed or self.acks_one_lost
        found = self.verdicts.look(self.verdict, (parts, lost), lambda: self._looks(lost))
        end = self.verdicts.ends[self.verdict]
        for broker in self.brokers:
            facts = self.facts(broker)
            if broker.up and facts.serves_fetch and facts.high_watermark > end:
                said = f"{broker.number} serves up to {facts.high_watermark}; committed is {end}"
                found.append(Breach("I3", said))
        return found

    def _looks(self, lost: bool) -> list[told.Event]:
        events: list[told.Event] = []
        found: set[str] = set()
        for broker in self.brokers:
            facts = self.facts(broker)
            found |= facts.messages
            high = facts.high_watermark if broker.up else None
            in_sync = broker.number in self.znodes.isr
            events.append(told.Held(broker.number, in_sync, high, facts.held))
        events.append(told.OnDisk(frozenset(found), lost))
        return events

    @property
    def end(self) -> int:
        """One behind what is committed."""
        return self.verdicts.ends[self.verdict]

    @property
    def owed(self) -> bool:
        """Whether something that is acknowledged, and that no power failure may take, is not
        committed."""
        lost = self.power_failed or self.acks_one_lost
        return any(not (lost and acks == 1) for _, acks in self.verdicts.owed[self.verdict])

    # States.

    def freeze(self) -> Frozen:
        """Take the state down."""
        znodes = self.znodes
        return (
            self.verdict,
            tuple(
                (
                    self.process(each).state,
                    each.up,
                    each.session,
                    tuple(each.operations),
                    each.sync_wanted,
                    each.work is not None,
                    each.power_failed,
                    each.high_watermark,
                )
                for each in self.brokers
            ),
            (
                znodes.epoch,
                znodes.original,
                znodes.owner,
                znodes.isr,
                znodes.version,
                znodes.sync_start,
                znodes.sync_end,
                tuple(znodes.locks.items()),
                tuple(znodes.sessions.items()),
                znodes._session,
            ),
            tuple(
                (
                    each.next,
                    tuple(each.flight),
                    tuple(each.answers.items()),
                    each.broker,
                    each.recovering,
                    tuple(each.done.items()),
                    each.turns,
                    tuple(each.attempts),
                    each.connection,
                )
                for each in self.producers
            ),
            tuple(tuple(each) for each in self.queues.values()),
            frozenset(self.open),
            frozenset(self.believes),
            tuple(self.tokens.items()),
            tuple(self.pending),
        )

    def thaw(self, state: Frozen) -> None:
        """Put a state back."""
        self.verdict, brokers, told_of, producers, queues, opened, believes, tokens, pending = state
        self.breaches.clear()
        self.notes.clear()
        for broker, frozen in zip(self.brokers, brokers, strict=True):
            process = self.process(broker)
            process.state, up, broker.session, operations, wanted, works, failed, high = frozen
            broker.replica = process if up else None  # type: ignore[assignment]
            broker.operations = deque(operations)
            broker.views.clear()
            broker.sync_wanted = wanted
            broker.work = process if works else None
            broker.power_failed = failed
            broker.high_watermark = high
        znodes = self.znodes
        (
            znodes.epoch,
            znodes.original,
            znodes.owner,
            znodes.isr,
            znodes.version,
            znodes.sync_start,
            znodes.sync_end,
            locks,
            sessions,
            znodes._session,
        ) = told_of
        znodes.locks = dict(locks)
        znodes.sessions = dict(sessions)
        for producer, frozen in zip(self.producers, producers, strict=True):
            (
                producer.next,
                flight,
                answers,
                producer.broker,
                producer.recovering,
                done,
                producer.turns,
                attempts,
                producer.connection,
            ) = frozen
            producer.flight = deque(flight)
            producer.answers = dict(answers)
            producer.done = dict(done)
            producer.attempts = list(attempts)
        for queue, letters in zip(self.queues.values(), queues, strict=True):
            if queue or letters:
                queue.clear()
                queue.extend(letters)
        self.open = set(opened)
        self.believes = set(believes)
        self.tokens = dict(tokens)
        self.pending = dict.fromkeys(pending)

    def key(self, state: Frozen, *more: int) -> bytes:
        """What a state is but for names of sessions; two that are alike have one key."""
        verdict, brokers, told_of, producers, queues, opened, believes, tokens, pending = state
        epoch, original, owner, isr, version, start, end, locks, sessions, _ = told_of
        alive = {session for session, _ in sessions}
        read: list[Any] = [verdict, epoch, original, owner in alive, isr, version, start, end, more]
        read.append(tuple(sorted(broker for broker, _ in locks)))
        for number, up, session, operations, wanted, works, failed, _ in brokers:
            owns = session is not None and session == owner
            said = tuple(map(repr, operations))
            read.append((number, up, session in alive, owns, said, wanted, works, failed))
        for frozen, settings in zip(producers, self.world.producers, strict=True):
            at, flight, answers, broker, recovering, done, turns, *_ = frozen
            turn = turns % self.world.replicas if settings.any_replica else 0
            sent = tuple((each.number, each.token, each.broker) for each in flight)
            read.append((at, sent, repr(answers), broker, recovering, turn))
            read.append(tuple(batch for batch, _ in done))
        read += (tuple(each.number for each in queue) for queue in queues)
        read += (tuple(sorted(each)) for each in (opened, believes, tokens))
        read.append(tuple(sorted(_nameless(step, owner) for step in pending)))
        return fingerprint(tuple(read))


def _nameless(step: Step, owner: int | None) -> Step:
    """Without the number of a session, but for whether it is the original's."""
    return (step[0], step[1], int(step[2] == owner)) if step[0] == "session_end" else step
