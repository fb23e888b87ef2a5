"""When faults come: in the middle of work that they interrupt, and not while everybody rests.

Each fault waits for the k-th event of a kind (a round's message, a batch on its way to a peer, an
election, …), counted from the fault before it on, and befalls who takes part in that.  [S004:5]
"""

from random import Random
from typing import Any

import msgspec

from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, NS_PER_US
from orderwire.sim.replication_broker import Broker
from orderwire.sim.replication_world import ReplicationWorld

PRODUCE, COPY, ROUND, ELECTION, MEMBERSHIP, FETCH, DISK = KINDS = (
    "produce",
    "copy",
    "round",
    "election",
    "membership",
    "fetch",
    "disk",
)
"""What may be under way."""
WORK: dict[str, str] = {
    # Active-standby.
    "Records": COPY,
    "Stored": ROUND,
    "Lead": ELECTION,
    "Position": ELECTION,
    "Contend": ELECTION,
    "Here": MEMBERSHIP,
    "Follow": MEMBERSHIP,
    # Active-active.
    "RelayAppend": PRODUCE,
    "RelayStored": PRODUCE,
    "Copied": COPY,
    "SyncCopy": COPY,
    "SyncPull": COPY,
    "Pulled": COPY,
    "SyncClose": ROUND,
    "Closed": ROUND,
    "Done": ROUND,
    "Commit": ROUND,
    "Collect": ELECTION,
    "RejoinFetch": MEMBERSHIP,
    "CommittedLog": MEMBERSHIP,
    "InSync": MEMBERSHIP,
    "CaughtUp": MEMBERSHIP,
    "OrphanOffer": MEMBERSHIP,
    "OrphanPlace": MEMBERSHIP,
    # Lanes.
    "LaneForward": PRODUCE,
    "LaneForwarded": PRODUCE,
    "LaneBind": PRODUCE,
    "LaneBound": PRODUCE,
    "LaneData": COPY,
    "LaneResend": COPY,
    "LaneCut": ROUND,
    "LaneDone": ROUND,
    "LaneCommit": ROUND,
    "LaneCollect": ELECTION,
    "LaneState": ELECTION,
    "LaneFetch": MEMBERSHIP,
    "LaneLog": MEMBERSHIP,
    "LaneDiverged": MEMBERSHIP,
    # What ZooKeeper is asked, and what a replica notes.
    "Elect": ELECTION,
    "Resign": ELECTION,
    "Lose": ELECTION,
    "ChangeIsr": MEMBERSHIP,
    "Elected": ELECTION,
    "Recovered": ELECTION,
    "RoundOpened": ROUND,
    "Committed": ROUND,
    "MemberRemoved": MEMBERSHIP,
    "MemberJoined": MEMBERSHIP,
    "Truncated": MEMBERSHIP,
    "Orphaned": MEMBERSHIP,
    "Republished": MEMBERSHIP,
    "Sync": DISK,
}
"""Which kind of work a message, a request or a note belongs to, by its name."""
COUNT_MAX = 12
"""The latest event of its kind at which a fault comes."""
PATIENCE_NS = 60 * NS_PER_MS
"""An event that has not come for so long is waited for no more: any other will do."""
DELAY_MAX_NS = 800 * NS_PER_US
"""A fault comes at once or within this, while what began is on its way."""


class Strike(msgspec.Struct, frozen=True):
    """A fault whose moment has come."""

    fault: str
    who: int
    other: int
    """Who takes part with `who`; the same, when nobody does."""
    delay_ns: int


class Aim:
    """Some faults, one behind the other."""

    def __init__(self, faults: list[str], kinds: tuple[str, ...], draw: Random, now: int) -> None:
        assert set(kinds) <= set(KINDS), f"{kinds} are not all of {KINDS}"
        self._left = faults
        self._kinds = kinds
        self._draw = draw
        self._kind = PRODUCE
        self._count = 0
        self._since = now
        self._next(now)

    @property
    def left(self) -> list[str]:
        """Faults that have not come yet."""
        return self._left

    def happened(self, kind: str, who: int, other: int, now: int) -> Strike | None:
        """An event; returns the fault that comes with it."""
        if not self._left or now < self._since:
            return None
        if kind != self._kind and now < self._since + PATIENCE_NS:
            return None
        self._count -= 1
        if self._count > 0 and now < self._since + PATIENCE_NS:
            return None
        draw = self._draw
        delay = draw.randint(0, DELAY_MAX_NS) if draw.random() < 0.4 else 0
        if draw.random() < 0.5:
            who, other = other, who
        strike = Strike(self._left.pop(0), who, other, delay)
        self._next(now + delay)
        return strike

    def _next(self, now: int) -> None:
        draw = self._draw
        self._kind = draw.choice(self._kinds)
        self._count = draw.randint(1, COUNT_MAX)
        # Some come while the one before is still being dealt with, some when all is well again.
        self._since = now + draw.choice((0, 0, 0, 10, 100)) * NS_PER_MS


def kind_of(effect: Any) -> str | None:
    """Which work this belongs to; None: none."""
    if isinstance(effect, asked.Tell):
        effect = effect.message
    elif isinstance(effect, asked.Note):
        effect = effect.event
    return WORK.get(type(effect).__name__)


def work_at(world: ReplicationWorld, *brokers: int) -> frozenset[str]:
    """What is under way now at any of these brokers, or between them and others."""
    found: set[str] = set()
    for who in brokers:
        found |= _work_at(world, world.brokers[who])
    return frozenset(found)


def _work_at(world: ReplicationWorld, broker: Broker) -> set[str]:
    who = broker.number
    replica = broker.replica
    found: set[str] = set()
    if replica is None:
        return found
    for producer, connection, at in world.tokens.values():
        if at == who and connection == world.producers[producer].connection:
            found.add(PRODUCE)
    for pair, queue in world.queues.items():
        if who in pair:
            found.update(WORK[name] for each in queue if (name := type(each).__name__) in WORK)
    found.update(WORK[name] for each in broker.operations if (name := type(each).__name__) in WORK)
    if broker.work is not None or ("sync_begin", who, 0) in world.pending:
        found.add(DISK)
    if any(
        consumer.at == who and consumer.position < replica.high_watermark
        for consumer in world.consumers
    ):
        found.add(FETCH)
    if _round_at(world, broker):
        found.add(ROUND)
    if who in world.znodes.isr and not _led(world):
        found.add(ELECTION)
    return found


def _round_at(world: ReplicationWorld, broker: Broker) -> bool:
    """Whether it has what is not committed yet, as original."""
    if world.znodes.original != broker.number or broker.replica is None:
        return False
    status = broker.replica.status()
    return bool(status.get("sync_end", -1) > status.get("sync_start", -1))


def _led(world: ReplicationWorld) -> bool:
    original: BrokerId | None = world.znodes.original
    replica = None if original is None else world.brokers[original].replica
    return replica is not None and replica.takes_produce
