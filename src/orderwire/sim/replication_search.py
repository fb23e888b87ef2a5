"""Every order of events for a small partition: an explicit-state search over the real replicas.

States are visited breadth first, so that what is found first has the shortest history.  A state is
what the replicas, their disks, links and ZooKeeper are, and what the clients know; two that read
alike are one.  Time passes at a broker when nothing else can happen, or as a fault.  [S004:5]
"""

import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.kernel import NS_PER_S
from orderwire.sim.replication_clients import ProducerSettings
from orderwire.sim.replication_cluster import MakeReplica, Step, WorldSettings
from orderwire.sim.replication_fingerprint import Reader, fingerprint
from orderwire.sim.replication_world import ReplicationWorld
from orderwire.verify.replication import Event, Judge

FAULTS = ("crash", "power", "expire", "hasten", "break")
"""Crash, power failure, expiry of the living original's session, a deadline that comes early, and
the break of a link: how often each may happen is the scope's budget, in this order."""


AT_ONCE = frozenset({"begin", "connect", "lose", "answer"})
"""Steps that wait for nothing: a process that has started connects, a client hears of a connection
that has ended, and of an answer, which binds the replicas the sooner the more."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched."""

    replicas: int = 2
    producers: tuple[ProducerSettings, ...] = (
        ProducerSettings(acks=1, idempotent=False, retries=False, batches=(1,)),
        ProducerSettings(acks=-1, batches=(1,)),
    )
    crashes: int = 0
    power_failures: int = 0
    expiries: int = 0
    hastened: int = 0
    breaks: int = 0
    states_max: int = 1_000_000
    liveness: bool = True
    """Whether to look for states from which the partition cannot become whole any more."""
    until: frozenset[str] = frozenset()
    """Invariants whose breach ends the search."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    states: int
    edges: int
    complete: bool
    violations: dict[str, list[str]]
    """Invariant → the sentence and then the steps of a shortest history."""
    stuck: int
    """States from which nothing but another fault leads to a whole partition; −1: not counted."""
    stuck_steps: list[str]
    deepest: int
    kinds: dict[str, int]
    """How many steps of each kind were tried."""


class Forgetful(Random):
    """The chance with which a disk keeps nothing but what was synced."""

    def random(self) -> float:
        """Always the least."""
        return 0.0


class _State(msgspec.Struct):
    parts: list[bytes]
    """Pickled: each broker, then the judge, then everything else."""
    key: bytes
    depth: int


class Search:
    """One search."""

    def __init__(
        self, make_replica: MakeReplica, settings: ReplicationSettings, scope: Scope
    ) -> None:
        self.scope = scope
        self.judge = Judge()
        self._parts: list[bytes | None] = [None] * (scope.replicas + 1)
        """What the brokers and the judge are now, pickled; None: not the same any more."""
        self.budget = [
            scope.crashes,
            scope.power_failures,
            scope.expiries,
            scope.hastened,
            scope.breaks,
        ]
        world = WorldSettings(
            replicas=scope.replicas,
            producers=scope.producers,
            consumers=0,
            coarse=True,
            sync_at_once=not scope.power_failures,
        )
        self.world = ReplicationWorld(make_replica, settings, world, on_event=self._event)
        self._seen: dict[bytes, bytes] = {}
        """Digest of a broker as pickled → its fingerprint."""

    def _event(self, event: Event) -> None:
        self._parts[-1] = None
        self.judge.take(event)

    def settle(self) -> None:
        """Come to where everybody is connected and somebody original."""
        for _ in range(10_000):
            if self.world.pending:
                self.world.take(next(iter(self.world.pending)))
            elif not self._all_taken_up() and self._wakes():
                self.world.take(("wake", self._wakes()[0], 0))
            else:
                return
        raise AssertionError("the replicas do not come to rest")

    def _all_taken_up(self) -> bool:
        original = self.world.znodes.original
        if original is None:
            return False
        replica = self.world.brokers[original].replica
        return replica is not None and replica.takes_produce

    def _wakes(self) -> list[int]:
        return [
            broker.number
            for broker in self.world.brokers
            if broker.replica is not None and broker.replica.next_deadline() is not None
        ]

    # Steps.

    def steps(self) -> Iterator[tuple[Step, bool]]:
        """What may come next, and whether it is a fault."""
        world = self.world
        moving = [step for step in world.pending if self._moves(step)]
        for step in moving:
            yield step, False
        wakes = self._wakes()
        if not any(step[0] != "start" for step in moving):
            for who in wakes:
                yield ("wake", who, 0), False
        elif self.budget[3]:
            for who in wakes:
                yield ("wake", who, 1), True
        up = [broker.number for broker in world.brokers if broker.up]
        if self.budget[0]:
            for who in up:
                yield ("crash", who, 0), True
        if self.budget[1]:
            for who in up:
                yield ("crash", who, 1), True
        original = world.znodes.original
        if self.budget[2] and original is not None and original in up:
            yield ("expire", original, 0), True
        if self.budget[4]:
            for a, b in sorted(world.open):
                yield ("break", a, b), True

    def _moves(self, step: Step) -> bool:
        """Whether a step does anything now."""
        if step[0] != "send":
            return True
        producer = self.world.producers[step[1]]
        if not producer.ready:
            return False
        if producer.broker is not None:
            return True
        original = self.world.znodes.original
        return original is not None and self.world.brokers[original].up

    def take(self, step: Step) -> None:
        """Let it happen."""
        kind, who, other = step
        world = self.world
        if kind == "wake":
            self.budget[3] -= other
            world.take(("wake", who, 0))
        elif kind == "crash":
            self.budget[other] -= 1
            world.crash(who, Forgetful() if other else None)
        elif kind == "expire":
            self.budget[2] -= 1
            world.expire(who)
        elif kind == "break":
            self.budget[4] -= 1
            world.break_link(who, other)
        else:
            world.take(step)
        self._hurry()

    def _hurry(self) -> None:
        pending = self.world.pending
        while due := next((step for step in pending if step[0] in AT_ONCE), None):
            self.world.take(due)

    # States.

    def save(self, depth: int) -> _State:
        """What is now."""
        world = self.world
        parts = self._parts
        for who in world.touched:
            parts[who] = None
        world.touched.clear()
        for who, broker in enumerate(world.brokers):
            if parts[who] is None:
                parts[who] = pickle.dumps(broker, 5)
        if parts[-1] is None:
            parts[-1] = pickle.dumps(self.judge, 5)
        whole = [part for part in parts if part is not None]
        whole.append(pickle.dumps(self._rest(), 5))
        return _State(whole, self._key(whole), depth)

    def _rest(self) -> tuple[Any, ...]:
        world = self.world
        return (
            world.znodes,
            world.producers,
            world.queues,
            world.open,
            world.believes,
            world.tokens,
            world.pending,
            self.budget,
        )

    def restore(self, state: _State) -> None:
        """Make it what is now."""
        world = self.world
        parts = self._parts
        for who in range(len(world.brokers)):
            if parts[who] is not state.parts[who] or who in world.touched:
                parts[who] = state.parts[who]
                world.brokers[who] = pickle.loads(state.parts[who])
        world.touched.clear()
        if parts[-1] is not state.parts[-2]:
            parts[-1] = state.parts[-2]
            self.judge = pickle.loads(state.parts[-2])
        (
            world.znodes,
            world.producers,
            world.queues,
            world.open,
            world.believes,
            world.tokens,
            world.pending,
            self.budget,
        ) = pickle.loads(state.parts[-1])

    def _key(self, blobs: list[bytes]) -> bytes:
        world = self.world
        reads: list[Any] = []
        for who, broker in enumerate(world.brokers):
            known = self._seen.get(blobs[who])
            if known is None:
                reader = Reader(broker.clock or world.now, power=self.scope.power_failures > 0)
                known = self._remember(blobs[who], fingerprint(reader.broker(broker)))
            reads.append(known)
        judged = self._seen.get(blobs[-2])
        if judged is None:
            reader = Reader(0, power=False)
            facts = (reader.read(self.judge.truth), reader.read(self.judge.facts()))
            judged = self._remember(blobs[-2], fingerprint(facts))
        reads.append(judged)
        reader = Reader(0, power=False)
        znodes = world.znodes
        alive = set(znodes.sessions)
        reads += [
            reader.read(znodes.view()),
            reader.read(znodes.sync_end),
            tuple(sorted(znodes.locks)),
            tuple(broker.session in alive for broker in world.brokers),
            reader.read(world.queues),
            reader.read(world.open),
            tuple(sorted(world.tokens.items())),
            tuple(sorted(_nameless(step) for step in world.pending)),
            reader.read([self._producer(each) for each in world.producers]),
            tuple(self.budget),
        ]
        return fingerprint(tuple(reads))

    def _remember(self, blob: bytes, read: bytes) -> bytes:
        if len(self._seen) > 50_000:
            self._seen.clear()
        self._seen[blob] = read
        return read

    @staticmethod
    def _producer(producer: Any) -> Any:
        flight = [(each.number, each.token, each.broker) for each in producer.flight]
        return (
            producer.next,
            flight,
            producer.answers,
            producer.broker,
            producer.recovering,
            producer.done,
        )

    def whole(self) -> bool:
        """Whether everything is as it should be in the end."""
        world = self.world
        return (
            len(world.znodes.isr) == len(world.brokers)
            and self._all_taken_up()
            and all(broker.up for broker in world.brokers)
            and world.agreed_end() == self.judge.end
            and not self._owed()
        )

    def _owed(self) -> list[str]:
        lost = self.world.power_failed
        return [
            each
            for each in self.judge.uncommitted()
            if not (lost and self.judge.acks_of(each) == 1)
        ]

    # The search.

    def run(self, enough: Callable[[], bool] | None = None) -> Found:
        """Visit everything within the scope, or until somebody has had enough."""
        scope = self.scope
        self.settle()
        self.world.begin_clients()
        first = self.save(0)
        came_from: dict[bytes, tuple[bytes, Step] | None] = {first.key: None}
        violations: dict[str, tuple[str, bytes, Step | None]] = {}
        back: dict[bytes, list[bytes]] = {}
        good: list[bytes] = [first.key] if self.whole() else []
        waiting = deque([first])
        kinds: Counter[str] = Counter()
        complete = True
        state = first
        while waiting:
            if (
                len(came_from) >= scope.states_max
                or (enough is not None and enough())
                or (scope.until and scope.until & violations.keys())
            ):
                complete = False
                break
            state = waiting.popleft()
            self.restore(state)
            for step, fault in list(self.steps()):
                self.restore(state)
                kinds[step[0]] += 1
                try:
                    self.take(step)
                except AssertionError as error:
                    violations.setdefault(f"assert: {error}", (str(error), state.key, step))
                    continue
                after = self.save(state.depth + 1)
                if scope.liveness and not fault:
                    back.setdefault(after.key, []).append(state.key)
                if after.key in came_from:
                    continue
                came_from[after.key] = (state.key, step)
                self.world.look()
                self._parts[-1] = after.parts[-2]  # a look adds nothing but breaches
                for breach in self.judge.breaches:
                    violations.setdefault(breach.invariant, (breach.sentence, after.key, None))
                if self.judge.breaches:
                    self._parts[-1] = None
                    continue  # what follows a breach says nothing new
                if self.whole():
                    good.append(after.key)
                waiting.append(after)
        stuck, example = -1, []
        if scope.liveness and complete and not violations:
            reached = set(good)
            while good:
                for before in back.get(good.pop(), ()):
                    if before not in reached:
                        reached.add(before)
                        good.append(before)
            lost = [key for key in came_from if key not in reached]
            stuck = len(lost)
            if lost:
                example = _path(came_from, lost[0])
        return Found(
            states=len(came_from),
            edges=sum(kinds.values()),
            complete=complete,
            violations={
                kind: [sentence, *_path(came_from, key), *([_say(step)] if step else [])]
                for kind, (sentence, key, step) in violations.items()
            },
            stuck=stuck,
            stuck_steps=example,
            deepest=state.depth,
            kinds=dict(sorted(kinds.items())),
        )


def _nameless(step: Step) -> Step:
    """Without the number of a session."""
    return ("session_end", step[1], 0) if step[0] == "session_end" else step


def _say(step: Step) -> str:
    return f"{step[0]} {step[1]} {step[2]}"


def _path(came_from: dict[bytes, tuple[bytes, Step] | None], key: bytes) -> list[str]:
    steps: list[str] = []
    before = came_from[key]
    while before is not None:
        steps.append(_say(before[1]))
        before = came_from[before[0]]
    return steps[::-1]


SEARCH_SETTINGS = ReplicationSettings(
    min_insync_replicas=1,
    sync_interval_ns=1 * NS_PER_S,
    sync_min_gap_ns=0,
    sync_on_fetch=False,
    eager_copy=False,
    round_timeout_ns=2 * NS_PER_S,
)
"""Few timers, and nothing sent that needs not be."""
