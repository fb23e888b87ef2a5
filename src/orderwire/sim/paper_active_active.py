"""The paper's active-active protocol, read literally: a twin that must fail.  [S004:5.1]

Favourably where the paper says nothing.  It exists to show what the completed protocol closes, in
the simulator only, and shares nothing with the brokers.  Three replicas, three messages, one
consumer; brokers count from 1 in the labels, as in the paper.
"""

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from orderwire.sim.explore import Explored, explore

REPLICAS = 3
MESSAGES = 3
OFFSETS = 4
UNSENT, RELAYED, ACKNOWLEDGED = range(3)

V1 = "V1: a consumer has passed an acknowledged message that it never got"
V2 = "V2: two different messages at one offset"
V3 = "V3: an acknowledged message below syncStart is missing on a live replica after the round"
V4 = "V4: the lock is held for a dead replica: no sync until it returns"
V5 = "V5: an offset that was delivered now holds another message"
V6 = "V6: syncEnd lies before syncStart"
V7 = "V7: an acknowledged message is on no disk any more"


class Initiators(Enum):
    """How many secondaries may begin a sync at a time."""

    ONE = "one"
    RACE = "race"


class State(NamedTuple):
    """Everything, at one moment.  Offsets count from 1; 0 stands for nothing."""

    alive: tuple[bool, ...]
    store: tuple[tuple[int, ...], ...]
    """Per replica: the message at each offset."""
    next_offset: int
    original: int
    turn: int
    """To whom the original hands the next message."""
    sync_start: int
    sync_end: int
    lock: frozenset[int]
    """Children of the lock."""
    locked: bool
    """Whether syncEnd was set since: the replicas may begin."""
    setting: frozenset[int]
    """Who made a child and has not set syncEnd yet."""
    seen: tuple[tuple[int, int] | None, ...]
    """Per replica: the range that it believes the round to have."""
    got: tuple[frozenset[int], ...]
    """Per replica: whose messages it has received in this round."""
    done: frozenset[int]
    relayed: frozenset[tuple[int, int, int]]
    """To whom, at which offset, which message."""
    produced: tuple[int, ...]
    position: int
    """Of the consumer."""
    delivered: tuple[tuple[int, int], ...]
    crashes_left: int
    rounds: int


def start(crashes: int = 0) -> State:
    """Nothing has happened."""
    nobody: frozenset[int] = frozenset()
    return State(
        alive=(True,) * REPLICAS,
        store=((0,) * OFFSETS,) * REPLICAS,
        next_offset=1,
        original=0,
        turn=0,
        sync_start=0,
        sync_end=0,
        lock=nobody,
        locked=False,
        setting=nobody,
        seen=(None,) * REPLICAS,
        got=(nobody,) * REPLICAS,
        done=nobody,
        relayed=frozenset(),
        produced=(UNSENT,) * MESSAGES,
        position=1,
        delivered=(),
        crashes_left=crashes,
        rounds=0,
    )


Move = tuple[str, State]


class PaperProtocol:
    """Every step that the text allows."""

    def __init__(self, initiators: Initiators = Initiators.ONE, rounds_max: int = 2) -> None:
        self.initiators = initiators
        self.rounds_max = rounds_max

    def successors(self, s: State) -> Iterator[Move]:
        """Every step and where it leads."""
        yield from self._produce(s)
        yield from self._begin_sync(s)
        if s.locked:
            yield from self._sync(s)
        yield from self._consume(s)
        yield from self._crash(s)

    def _produce(self, s: State) -> Iterator[Move]:
        """The original assigns the next offset and hands over in ascending broker id."""
        if s.alive[s.original] and s.next_offset <= OFFSETS and UNSENT in s.produced:
            message = s.produced.index(UNSENT)
            offset, to = s.next_offset, s.turn % REPLICAS
            after = s._replace(next_offset=offset + 1, turn=(s.turn + 1) % REPLICAS)
            if to == s.original:
                yield (
                    f"m{message + 1}@{offset} stored at the original, acknowledged",
                    after._replace(
                        store=_stored(s.store, to, offset, message + 1),
                        produced=_with(s.produced, message, ACKNOWLEDGED),
                    ),
                )
            else:
                yield (
                    f"m{message + 1}@{offset} relayed to B{to + 1}",
                    after._replace(
                        relayed=s.relayed | {(to, offset, message + 1)},
                        produced=_with(s.produced, message, RELAYED),
                    ),
                )
        for relay in sorted(s.relayed):
            to, offset, message = relay
            if s.alive[to]:
                yield (
                    f"B{to + 1} stores m{message}@{offset}, acknowledges",
                    s._replace(
                        relayed=s.relayed - {relay},
                        store=_stored(s.store, to, offset, message),
                        produced=_with(s.produced, message - 1, ACKNOWLEDGED),
                    ),
                )
            else:
                yield (f"m{message} to the dead B{to + 1} is lost", _without(s, relay))

    def _begin_sync(self, s: State) -> Iterator[Move]:
        """A secondary makes a child, then sets syncEnd to its own last offset."""
        for replica in range(REPLICAS):
            if s.rounds >= self.rounds_max or replica == s.original or not s.alive[replica]:
                continue
            races = (
                self.initiators is Initiators.RACE
                and s.setting
                and not s.done
                and all(each is None for each in s.seen)
            )
            if replica not in s.lock and ((not s.lock and not s.locked) or races):
                yield (
                    f"B{replica + 1} makes its child of the lock",
                    s._replace(lock=s.lock | {replica}, setting=s.setting | {replica}),
                )
        for replica in sorted(s.setting):
            if s.alive[replica]:
                last = _last(s, replica)
                yield (
                    f"B{replica + 1} sets syncEnd to {last}",
                    s._replace(sync_end=last, setting=s.setting - {replica}, locked=True),
                )

    def _sync(self, s: State) -> Iterator[Move]:
        """Everyone sends everyone what it has in (syncStart, syncEnd], then reports."""
        for replica in range(REPLICAS):
            if s.alive[replica] and s.seen[replica] is None and replica not in s.done:
                yield (
                    f"B{replica + 1} sees ({s.sync_start}, {s.sync_end}]",
                    s._replace(seen=_with(s.seen, replica, (s.sync_start, s.sync_end))),
                )
        for source in range(REPLICAS):
            span = s.seen[source]
            if not s.alive[source] or span is None:
                continue
            for to in range(REPLICAS):
                if (
                    to == source
                    or not s.alive[to]
                    or s.seen[to] is None
                    or source in s.got[to]
                    or to in s.done
                ):
                    continue
                store = s.store
                for offset in range(span[0] + 1, span[1] + 1):
                    message = s.store[source][offset - 1]
                    if message and not store[to][offset - 1]:
                        store = _stored(store, to, offset, message)
                yield (
                    f"B{source + 1} sends B{to + 1} what it has in ({span[0]}, {span[1]}]",
                    s._replace(store=store, got=_with(s.got, to, s.got[to] | {source})),
                )
        for replica in range(REPLICAS):
            received = len(s.got[replica]) == REPLICAS - 1
            if s.alive[replica] and s.seen[replica] and replica not in s.done and received:
                yield f"B{replica + 1} reports", s._replace(done=s.done | {replica})
        if len(s.done) == REPLICAS and s.alive[s.original]:
            nobody: frozenset[int] = frozenset()
            yield (
                f"the original sets syncStart to {s.sync_end} and unlocks",
                s._replace(
                    sync_start=s.sync_end,
                    lock=nobody,
                    locked=False,
                    setting=nobody,
                    seen=(None,) * REPLICAS,
                    got=(nobody,) * REPLICAS,
                    done=nobody,
                    rounds=s.rounds + 1,
                ),
            )

    def _consume(self, s: State) -> Iterator[Move]:
        """The original serves what is synced; each replica its own messages beyond."""
        if s.position <= s.sync_start and s.alive[s.original]:
            for offset in range(s.position, s.sync_start + 1):
                message = s.store[s.original][offset - 1]
                if message:
                    yield f"the consumer reads m{message}@{offset}", _read(s, offset, message)
                    break
            else:
                yield (
                    f"the consumer passes {s.position} to {s.sync_start}, which are empty",
                    s._replace(position=s.sync_start + 1),
                )
            return
        for replica in range(REPLICAS):
            if not s.alive[replica]:
                continue
            for offset in range(max(s.position, s.sync_start + 1), OFFSETS + 1):
                message = s.store[replica][offset - 1]
                if message:
                    yield (
                        f"the consumer reads the unsynced m{message}@{offset} of B{replica + 1}",
                        _read(s, offset, message),
                    )
                    break

    def _crash(self, s: State) -> Iterator[Move]:
        for replica in range(REPLICAS):
            if s.alive[replica] and s.crashes_left:
                yield (
                    f"B{replica + 1} crashes",
                    s._replace(
                        alive=_with(s.alive, replica, False),
                        crashes_left=s.crashes_left - 1,
                        seen=_with(s.seen, replica, None),
                        got=_with(s.got, replica, frozenset()),
                        done=s.done - {replica},
                        setting=s.setting - {replica},
                    ),
                )
            elif not s.alive[replica]:
                yield (
                    f"B{replica + 1} recovers",
                    s._replace(alive=_with(s.alive, replica, True)),
                )
        if not s.alive[s.original] and any(s.alive):
            replica = s.alive.index(True)
            offset = max(_last(s, replica), s.sync_start) + 1
            yield (
                f"B{replica + 1} becomes original and goes on at {offset}",
                s._replace(original=replica, next_offset=offset, turn=0),
            )


def violations(s: State) -> Iterator[str]:
    """What is wrong in this state."""
    at: dict[int, set[int]] = defaultdict(set)
    for log in s.store:
        for offset, message in enumerate(log, 1):
            if message:
                at[offset].add(message)
    if any(len(messages) > 1 for messages in at.values()):
        yield V2
    delivered = dict(s.delivered)
    resting = all(each is None for each in s.seen)
    for number, state in enumerate(s.produced, 1):
        if state != ACKNOWLEDGED:
            continue
        offsets = [offset for offset, messages in at.items() if number in messages]
        if not offsets:
            yield V7
        for offset in offsets:
            if offset < s.position and delivered.get(offset) != number:
                yield V1
            if offset <= s.sync_start and resting and _missing(s, offset, number):
                yield V3
    for offset, message in s.delivered:
        if any(
            s.alive[replica] and s.store[replica][offset - 1] not in {0, message}
            for replica in range(REPLICAS)
        ):
            yield V5
    if s.sync_end < s.sync_start:
        yield V6
    if s.locked and s.alive[s.original]:
        dead = [replica for replica in range(REPLICAS) if not s.alive[replica]]
        if any(replica not in s.done for replica in dead):
            yield V4


def search(
    *,
    crashes: int = 0,
    initiators: Initiators = Initiators.ONE,
    rounds_max: int = 2,
    states_max: int = 1_000_000,
    until: frozenset[str] = frozenset(),
) -> Explored[State]:
    """Explore the paper's protocol."""
    protocol = PaperProtocol(initiators, rounds_max)
    return explore(
        start(crashes), protocol.successors, violations, states_max=states_max, until=until
    )


def _missing(s: State, offset: int, message: int) -> bool:
    return any(
        s.alive[replica] and s.store[replica][offset - 1] != message for replica in range(REPLICAS)
    )


def _read(s: State, offset: int, message: int) -> State:
    return s._replace(position=offset + 1, delivered=(*s.delivered, (offset, message)))


def _last(s: State, replica: int) -> int:
    return max((offset for offset, each in enumerate(s.store[replica], 1) if each), default=0)


def _without(s: State, relay: tuple[int, int, int]) -> State:
    return s._replace(relayed=s.relayed - {relay})


def _stored(
    store: tuple[tuple[int, ...], ...], replica: int, offset: int, message: int
) -> tuple[tuple[int, ...], ...]:
    return _with(store, replica, _with(store[replica], offset - 1, message))


def _with(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
