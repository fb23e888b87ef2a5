"""Every order of events for a small partition: an explicit-state search over the real replicas.

States are visited breadth first, so that what is found first has the shortest history.  A state is
what the replicas, their disks, links and ZooKeeper are, and what the clients know; two that read
alike are one.  Time passes at a broker when nothing else can happen, or as a fault.  What bounds a
search is how often each fault may happen, not how long a history is.  [S004:5]
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.kernel import NS_PER_S
from orderwire.sim.replication_clients import ProducerSettings, WorldSettings
from orderwire.sim.replication_cluster import MakeReplica, Step
from orderwire.sim.replication_remembered import Forgetful
from orderwire.sim.replication_states import Frozen, SearchedWorld
from orderwire.sim.replication_world import ReplicationWorld
from orderwire.verify.replication import Breach, Judge

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
    slow_disks: bool = False
    """Whether something else may happen before a disk is done; power failures need it."""
    acks_one_lost: bool = False
    """Whether what acks=1 acknowledged may be lost."""
    states_max: int = 5_000_000
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
    calls: int
    """How many different calls the replicas had to answer."""


class _Node(msgspec.Struct):
    number: int
    depth: int
    frozen: Frozen
    budget: tuple[int, ...]


class Walk:
    """Goes through a world step by step, within the budget of its scope."""

    def __init__(self, world: ReplicationWorld, scope: Scope) -> None:
        self.world = world
        self.scope = scope
        self.budget = [
            scope.crashes,
            scope.power_failures,
            scope.expiries,
            scope.hastened,
            scope.breaks,
        ]
        slow = scope.slow_disks or scope.power_failures > 0
        self._at_once = AT_ONCE if slow else AT_ONCE | {"sync_begin"}

    def begin(self) -> None:
        """Come to where everybody is connected, somebody original, and clients begin."""
        self.settle()
        self.world.begin_clients()
        self._hurry()

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
        while due := next((step for step in pending if self._waits_for_nothing(step)), None):
            self.world.take(due)

    def _waits_for_nothing(self, step: Step) -> bool:
        if step[0] == "session_end":  # only the original's is seen by anybody
            return step[2] != self.world.znodes.owner
        return step[0] in self._at_once


class Search(Walk):
    """One search."""

    def __init__(
        self, make_replica: MakeReplica, settings: ReplicationSettings, scope: Scope
    ) -> None:
        power = scope.power_failures > 0
        self.states = SearchedWorld(make_replica, settings, _world(scope), power=power)
        self.states.acks_one_lost = scope.acks_one_lost
        super().__init__(self.states, scope)

    def whole(self) -> bool:
        """Whether everything is as it should be in the end."""
        world = self.states
        return (
            len(world.znodes.isr) == len(world.brokers)
            and self._all_taken_up()
            and all(broker.up for broker in world.brokers)
            and world.agreed_end() == world.end
            and not world.owed
        )

    # The search.

    def run(self, enough: Callable[[], bool] | None = None) -> Found:
        """Visit everything within the scope, or until somebody has had enough."""
        scope, world = self.scope, self.states
        self.begin()
        frozen = world.freeze()
        numbers = {world.key(frozen, *self.budget): 0}
        came_from: list[tuple[int, Step] | None] = [None]
        violations: dict[str, tuple[str, int, Step | None]] = {}
        back: list[list[int]] = [[]]
        good = [0] if self.whole() else []
        waiting = deque([_Node(0, 0, frozen, tuple(self.budget))])
        kinds: Counter[str] = Counter()
        complete, deepest = True, 0
        while waiting:
            if (
                len(came_from) >= scope.states_max
                or (enough is not None and enough())
                or (scope.until and scope.until & violations.keys())
            ):
                complete = False
                break
            node = waiting.popleft()
            deepest = node.depth
            self._back_to(node)
            for step, fault in list(self.steps()):
                self._back_to(node)
                kinds[step[0]] += 1
                try:
                    self.take(step)
                except AssertionError as error:
                    violations.setdefault(f"assert: {error}", (str(error), node.number, step))
                    continue
                frozen = world.freeze()
                key = world.key(frozen, *self.budget)
                number = numbers.get(key)
                if number is None:
                    number = numbers[key] = len(came_from)
                    came_from.append((node.number, step))
                    back.append([])
                    breaches = world.breaches + world.seen()
                    for breach in breaches:
                        said = (breach.sentence, number, None)
                        violations.setdefault(breach.invariant, said)
                    if not breaches:  # what follows a breach says nothing new
                        if self.whole():
                            good.append(number)
                        waiting.append(_Node(number, node.depth + 1, frozen, tuple(self.budget)))
                if scope.liveness and not fault:
                    back[number].append(node.number)
        stuck, example = -1, []
        if scope.liveness and complete and not violations:
            lost = _unreached(good, back)
            stuck = len(lost)
            if lost:
                example = _path(came_from, lost[0])
        return Found(
            states=len(came_from),
            edges=sum(kinds.values()),
            complete=complete,
            violations={
                kind: [sentence, *_path(came_from, number), *([_say(step)] if step else [])]
                for kind, (sentence, number, step) in violations.items()
            },
            stuck=stuck,
            stuck_steps=example,
            deepest=deepest,
            kinds=dict(sorted(kinds.items())),
            calls=world.book.calls,
        )

    def _back_to(self, node: _Node) -> None:
        self.states.thaw(node.frozen)
        self.budget[:] = node.budget


def replay(
    make_replica: MakeReplica,
    settings: ReplicationSettings,
    scope: Scope,
    steps: Iterable[str],
) -> tuple[Walk, list[Breach]]:
    """Let real replicas go through a history that a search has told; returns where they are then,
    and what is wrong there.  Raises AssertionError where one notices it itself."""
    judge = Judge()
    walk = Walk(ReplicationWorld(make_replica, settings, _world(scope), on_event=judge.take), scope)
    walk.begin()
    for said in steps:
        kind, who, other = said.split()
        step = (kind, int(who), int(other))
        assert any(each == step for each, _ in walk.steps()), f"{said} is not possible"
        walk.take(step)
    walk.world.look()
    return walk, judge.breaches


def _world(scope: Scope) -> WorldSettings:
    return WorldSettings(
        replicas=scope.replicas,
        producers=scope.producers,
        consumers=0,
        coarse=True,
        sync_at_once=not scope.power_failures,
    )


def _unreached(good: list[int], back: list[list[int]]) -> list[int]:
    """From where no step leads to what is good."""
    reached = bytearray(len(back))
    for each in good:
        reached[each] = 1
    while good:
        for before in back[good.pop()]:
            if not reached[before]:
                reached[before] = 1
                good.append(before)
    return [number for number, seen in enumerate(reached) if not seen]


def _say(step: Step) -> str:
    return f"{step[0]} {step[1]} {step[2]}"


def _path(came_from: list[tuple[int, Step] | None], number: int) -> list[str]:
    steps: list[str] = []
    before = came_from[number]
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
