"""Bits that flip in a stored log, and what a broker does once it has found one.  [S004:9.10, 10.4]

A replica that finds damage is given up as `broker.lost_replicas` does it: who waits is told to try
again, all links are broken, and when nothing is under way in its files any more it is opened again
without them.  One log at a time is damaged, while others have what it was.
"""

from random import Random

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import BesideDamaged, LogDamaged, Refused
from orderwire.broker.log.faulty import FaultyStorage, PowerFailure
from orderwire.broker.log.storage import StorageError
from orderwire.broker.replication.damage import open_or_set_aside
from orderwire.broker.replication.effects import Effects
from orderwire.broker.replication.replica import Replica
from orderwire.kernel import Instant
from orderwire.sim.replication_broker import Broker
from orderwire.sim.replication_cluster import Cluster
from orderwire.sim.replication_disk import is_segment

CHECKED_BYTES = 2_000
"""How much of its newest log a start reads again."""
EVERYTHING = 1 << 30
"""Bytes; a scrub reads all of a log."""
_GONE = Refused(
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "this replica's files are damaged: it begins anew"
)


class DamagedCluster(Cluster):
    """Replicas whose logs may be damaged."""

    def flip(self, who: int, draw: Random) -> bool:
        """Flip one bit of what a broker's segments hold; returns False when they hold nothing."""
        broker = self.brokers[who]
        if not flip_bit(broker.storage, draw):
            return False
        broker.flipped = True
        return True

    def scrub(self, who: int) -> None:
        """Read all of a log again, as `broker.scrub` does."""
        self.call(who, _checked)

    def look_for_flips(self) -> None:
        """Forget that a log was damaged, where it reads again and has all that is committed."""
        committed = max(broker.high_watermark for broker in self.brokers)
        for broker in self.brokers:
            if broker.flipped and _is_whole(broker, committed):
                broker.flipped = False

    def _open(self, broker: Broker, now: Instant, found: str | None) -> Replica:
        replica, _ = open_or_set_aside(
            broker.storage,
            lambda: self.make_replica(broker.number, broker.storage, self.settings, now),
            CHECKED_BYTES,
            found,
        )
        return replica

    def give_up(self, broker: Broker, damage: LogDamaged) -> None:
        """Let go of a replica; its process and its session live."""
        who = broker.number
        broker.lost = None if isinstance(damage, BesideDamaged) else str(damage)
        broker.replica, broker.given_up = None, True
        broker.sync_wanted = False
        broker.views.clear()
        for kind in ("view", "read", "sync_begin"):
            self.pending.pop((kind, who, 0), None)
        for token, (producer, connection, at) in list(self.tokens.items()):
            if at == who:
                del self.tokens[token]
                self.answered(token, producer, connection, _GONE)
        for peer in range(len(self.brokers)):
            if peer != who:
                self.believes.discard((who, peer))
                self.break_link(who, peer)
        if self.on_deadline is not None:
            self.on_deadline(broker.number, None)
        if broker.work is None:
            self.offer("reopen", who)

    def _reopen(self, who: int, _: int) -> None:
        """Nothing is under way in its files: it is opened again, without what is damaged."""
        broker = self.brokers[who]
        if not broker.given_up:
            return
        broker.given_up = False
        found, broker.lost = broker.lost, None
        self.start(who, found)
        if broker.up:
            self.offer("read", who)


def _checked(replica: Replica, now: Instant) -> Effects:
    try:
        replica.log.check(EVERYTHING)
    except LogDamaged as damage:
        replica.log.found_damaged(str(damage))
        raise
    return []


def _is_whole(broker: Broker, committed: int) -> bool:
    replica = broker.replica
    if replica is None or replica.status().get("is_blank") or replica.log.end_offset < committed:
        return False
    try:
        replica.log.check(EVERYTHING)
    except (StorageError, PowerFailure):
        return False
    return True


def flip_bit(storage: FaultyStorage, draw: Random) -> bool:
    """Flip one bit of the segments, on the disk too, should it be there; False: they are empty."""
    segments = [
        file
        for name, file in sorted(storage.disk.files.items())
        if is_segment(name) and file.content
    ]
    if not segments:
        return False
    file = draw.choice(segments)
    at = draw.randrange(len(file.content))
    bit = 1 << draw.randrange(8)
    if at < len(file.durable):
        durable = bytearray(file.durable)
        durable[at] ^= bit
        file.durable = bytes(durable)
    file.content[at] ^= bit
    return True
