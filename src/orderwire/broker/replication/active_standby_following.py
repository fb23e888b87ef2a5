"""A follower's part of active-standby, and what every replica knows of its own log.  [S004:4.8]"""

from orderwire.broker.flush import Flush
from orderwire.broker.log import PartitionLog, Refused
from orderwire.broker.replication.active_standby_messages import (
    Follow,
    Lead,
    Position,
    Records,
    Stored,
    ToFollower,
)
from orderwire.broker.replication.effects import Advance, Effects, Note, Sync, Tell, Truncated
from orderwire.broker.replication.kept import Kept, behind_batch
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant
from orderwire.kernel.errors import RemoteProtocolError

_NOTE_NS = 5 * NS_PER_S
"""S is noted after so long: a replica that starts serves consumers from there on."""


class Own:
    """How far our log counts, and how far it is committed."""

    def __init__(self, log: PartitionLog, kept: Kept, flush: Flush, now: Instant) -> None:
        self.log = log
        self.kept = kept
        self.flush = flush
        self.waits_for_disk = flush is not Flush.NONE
        noted = min(kept.high_watermark, log.end_offset)
        self.high_watermark = behind_batch(log, max(noted, log.start_offset))
        """S + 1."""
        self.doubtful = flush is Flush.NONE and not log.recovery.clean
        """Where nobody waits for the disk, a log that was not closed may have lost its end: others
        contend first."""
        self._noted_at = now

    @property
    def durable_end(self) -> int:
        """All below counts as ours."""
        return self.log.synced_offset if self.waits_for_disk else self.log.end_offset

    def go_back(self, high_watermark: int, now: Instant) -> None:
        """What is committed behind this is lost.  [S004:4.8]"""
        self.high_watermark = high_watermark
        if high_watermark < self.log.start_offset:  # all of our log is
            self.log.reset(high_watermark, now // NS_PER_MS)

    def advance(self, high_watermark: int, now: Instant) -> Effects:
        """S moves, or does not.  [R6]"""
        if high_watermark <= self.high_watermark:
            return []
        self.high_watermark = high_watermark
        self.kept.moved()
        if now - self._noted_at >= _NOTE_NS:
            self._noted_at = now
            self.kept.note_high_watermark(high_watermark)
        return [Advance(high_watermark)]


class Following:
    """What a replica does that an original leads."""

    def __init__(self, own: Own) -> None:
        self._own = own
        self.leader: BrokerId | None = None
        """Who leads us in the epoch that we know, while we are connected."""
        self.assigned_end = own.log.end_offset
        """Where the original's log ended when we last heard."""
        self.attempt = 0
        self._follows = False

    def end(self) -> None:
        """Nobody leads us."""
        self.leader, self._follows = None, False

    def led(self, source: BrokerId, message: ToFollower, now: Instant) -> Effects:
        """Take what the original of the epoch that we know says.

        Raises RemoteProtocolError, StorageError.
        """
        if isinstance(message, Lead):
            self.leader, self._follows = source, False
            self.attempt = message.attempt
            own = self._own
            position = Position(
                message.epoch,
                message.attempt,
                own.log.start_offset,
                own.log.end_offset,
                own.high_watermark,
                own.log.epochs.entries,
                max(own.high_watermark, own.kept.high_watermark),
                own.doubtful,
            )
            return [Tell(source, position)]
        if source != self.leader or message.attempt != self.attempt:
            return []  # of an earlier question
        if isinstance(message, Follow):
            return self.begin(source, message, now)
        return self._take(source, message, now) if self._follows else []

    def begin(self, source: BrokerId, message: Follow, now: Instant) -> Effects:
        """Cut off what the original has not got; what follows is its.  [KIP-101]"""
        own, log = self._own, self._own.log
        effects: Effects = []
        before = log.end_offset
        emptied = message.anew and before > log.start_offset
        if message.anew:
            log.reset(message.offset, now // NS_PER_MS)
        elif message.offset < before:
            log.truncate(message.offset, now // NS_PER_MS)
        if log.end_offset < before or emptied:
            effects.append(Note(Truncated(before, log.end_offset)))
        self._follows = True
        own.high_watermark = min(own.high_watermark, log.end_offset)  # what is lost was told
        effects += own.advance(max(log.start_offset, own.high_watermark), now)
        effects.append(Tell(source, self._stored()))
        if own.waits_for_disk and log.synced_offset < log.end_offset:
            effects.append(Sync())
        return effects

    def _take(self, source: BrokerId, message: Records, now: Instant) -> Effects:
        own, log = self._own, self._own.log
        if message.records:
            done = log.append_placed(message.records, now // NS_PER_MS)
            if isinstance(done, Refused):
                raise RemoteProtocolError(f"records of broker {source} are refused: {done.message}")
        self.assigned_end = message.end
        if message.end <= log.end_offset:
            own.doubtful = False  # nothing that is committed is missing
            own.kept.settle()
        effects = own.advance(min(message.high_watermark, log.end_offset), now)
        if message.log_start > log.start_offset:
            start = min(message.log_start, own.high_watermark)
            log.delete_records(start, now // NS_PER_MS, own.high_watermark)
        if not message.records:
            return effects
        if own.flush is Flush.MESSAGE:
            log.sync()
        elif own.waits_for_disk:
            return [*effects, Sync()]
        return [*effects, Tell(source, self._stored())]

    def synced(self) -> Effects:
        """More of our log is on disk."""
        if self.leader is None or not self._follows:
            return []
        return [Tell(self.leader, self._stored())]

    def _stored(self) -> Stored:
        own = self._own
        return Stored(own.kept.known_epoch, self.attempt, own.log.end_offset, own.durable_end)
