"""A replica outside the in-sync set: fetches what is committed, keeps what is equal, sets the rest
aside, and asks to be let in.  [R8, G13]
"""

from orderwire.broker.log import LogDamaged
from orderwire.broker.replication.active_active_files import ReplicaFiles
from orderwire.broker.replication.active_active_member import Member
from orderwire.broker.replication.active_active_messages import (
    CaughtUp,
    CommittedLog,
    RejoinFetch,
)
from orderwire.broker.replication.effects import Advance, Orphaned, Sync
from orderwire.broker.replication.links import Links
from orderwire.broker.replication.office import Office
from orderwire.broker.replication.outbox import Outbox
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import BatchHeader, walk
from orderwire.kernel import Instant


class Rejoining:
    """The way back."""

    def __init__(
        self,
        member: Member,
        office: Office,
        links: Links,
        settings: ReplicationSettings,
        out: Outbox,
    ) -> None:
        self.member = member
        self.files: ReplicaFiles = member.files
        self.office = office
        self.links = links
        self.settings = settings
        self.out = out
        self._at: int | None = None
        """Everything before is what is committed; None: not under way."""
        self._asked_at: Instant | None = None
        self._end: int | None = None
        """We have all that is committed below, and say so when it is durable."""

    def stop(self) -> None:
        """Begin from scratch the next time."""
        self._at = self._end = self._asked_at = None

    def step(self, now: Instant) -> None:
        """Ask the original, when there is one and we are outside."""
        view = self.office.view
        original = self.office.original
        inside = self.office.in_sync and not self.files.kept.is_blank
        if view is None or inside or original in (None, self.office.me):
            self.stop()
            return
        assert original is not None
        if not self.links.up(original):
            self.stop()
            return
        if self._asked_at is None or now >= self._asked_at + self.settings.round_timeout_ns:
            self._at = self.files.committed
            self._end = None
            self._ask(original, now)

    def next_deadline(self) -> Instant | None:
        """When we ask again."""
        if self._asked_at is None:
            return None
        return Instant(self._asked_at + self.settings.round_timeout_ns)

    def _ask(self, original: BrokerId, now: Instant) -> None:
        assert self._at is not None
        self._asked_at = now
        files = self.files
        held = files.held(self._at) if self._at == files.committed else []
        message = RejoinFetch(
            files.known_epoch,
            self._at,
            files.committed,
            held,
            files.kept.is_blank,
            files.kept.lost_epoch,
        )
        self.out.tell(original, message)

    def in_sync(self) -> None:
        """We are in the in-sync set already; the view is still to come."""
        self._at = self._end = None

    def take(self, source: BrokerId, message: CommittedLog, now: Instant) -> None:
        """Take committed batches.  [R8]"""
        if self._at is None or message.offset != self._at or self.office.in_sync:
            return
        self._asked_at = now
        if message.log_start > self._at:
            self._begin_anew(message, now)
        for at, header in walk(message.records):
            self._compare(header, message.records[at : at + header.size_bytes], now)
        self._advance(min(self._at, message.committed), now)
        self.files.follow_start(message.log_start, now)
        if self._at < message.settled:
            self.out.add(Sync())
            self._ask(source, now)
            return
        self._set_aside(self._at, now)
        self.member.rejoined()
        self._end = self._at
        self.synced(now)

    def synced(self, now: Instant) -> None:
        """Say that we have everything, once it is durable."""
        if self._end is None or self.office.in_sync:
            return
        if not self.member.durable(self._end):
            self.out.add(Sync())
            return
        original = self.office.original
        if original is not None and self.links.up(original):
            self.files.forget_settled()
            self.files.doubtful = False
            self.out.tell(original, CaughtUp(self.files.known_epoch, self._end))
        self._asked_at = now
        # What it commits meanwhile it sends without being asked.
        self._at, self._end = self._end, None

    def _compare(self, header: BatchHeader, batch: bytes, now: Instant) -> None:
        """The same batch stays; what differs, and all behind it, is set aside."""
        log = self.files.log
        assert self._at is not None
        if header.last_offset < self._at:
            return
        if header.base_offset < self._at and log.start_offset == log.end_offset:
            self.files.begin_anew(header.base_offset, now)  # the start lies inside what we lost
        elif header.base_offset < log.end_offset:
            mine = next(log.batches(self._at, self._at + 1))
            if mine == header:
                self._at = header.last_offset + 1
                return
            self._set_aside(header.base_offset, now)
            if log.end_offset != header.base_offset:  # the log's start lay inside
                self.files.begin_anew(header.base_offset, now)
        else:
            pending = self.files.pending
            if not self.files.has(header):
                others = list(pending.overlapping(header.base_offset, header.last_offset))
                self._orphan(self.files.set_aside(others))
        refused = self.files.settle(batch, now)
        if refused is not None:
            raise LogDamaged(f"what is committed cannot be taken: {refused.message}")
        self._at = log.end_offset

    def _begin_anew(self, message: CommittedLog, now: Instant) -> None:
        """The original has deleted what would come next: begin where its log begins."""
        log, pending = self.files.log, self.files.pending
        start = above = message.log_start
        for header in [*log.batches(max(start, log.start_offset), start + 1), *pending.held(-1)]:
            if header.last_offset < start:
                pending.drop(header.base_offset)
            elif header.base_offset < start:  # half of it is deleted, half is not
                above = header.base_offset
        self._set_aside(above, now)
        base = next((header.base_offset for _, header in walk(message.records)), message.log_start)
        self.files.begin_anew(base, now)
        self._at = base

    def _advance(self, committed: int, now: Instant) -> None:
        if self.files.commit(committed, now):
            self.out.add(Advance(self.files.committed))

    def _set_aside(self, offset: int, now: Instant) -> None:
        self._orphan(self.files.set_aside_above(offset, now))

    def _orphan(self, headers: list[BatchHeader]) -> None:
        for header in headers:
            self.out.note(Orphaned(header.base_offset, header.leader_epoch, header.count))
