"""Orphans get new offsets through the original, or are known to be there.  [R8]

As many are offered at once as a round may carry; the next when what became of these is known.

An orphan that is published again stands behind a control batch that names it by the offset and the
epoch which it had: no other batch ever had both.  So every replica sees in the log itself that it
is there, whoever else had it too, and whatever happens in between.
"""

import msgspec

from orderwire.broker.replication.active_active_files import Identity
from orderwire.broker.replication.active_active_member import Member
from orderwire.broker.replication.active_active_messages import (
    OrphanKnown,
    OrphanLater,
    OrphanOffer,
    OrphanPlace,
    RelayRefused,
    RelayStored,
)
from orderwire.broker.replication.batch_store import Place
from orderwire.broker.replication.effects import Republished
from orderwire.broker.replication.links import Links
from orderwire.broker.replication.office import Office
from orderwire.broker.replication.outbox import Outbox
from orderwire.broker.replication.settings import OrphanPolicy, ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import BATCH_HEADER, BatchHeader, place
from orderwire.kernel import NS_PER_MS, Instant

_LATER_NS = 50 * NS_PER_MS
OFFERED_MAX = 1_000
"""Orphans in one offer; together no more than `sync_max_bytes`, but for a single larger one."""

_Key = tuple[int, int, int]
"""An idempotent producer's id, epoch and first sequence."""


class Republisher:
    """One replica's orphans on their way back into the log."""

    def __init__(
        self,
        member: Member,
        office: Office,
        links: Links,
        settings: ReplicationSettings,
        out: Outbox,
    ) -> None:
        self.member = member
        self.files = member.files
        self.office = office
        self.links = links
        self.settings = settings
        self.out = out
        self._number = 0
        self._offered: tuple[BrokerId, list[tuple[Place, BatchHeader]]] | None = None
        """The original has been asked, and has not said that it is settled."""
        self._offered_at: Instant = Instant(0)
        self._later = -1
        """Not again before S has passed this, or it is time."""
        self._later_at: Instant = Instant(0)
        self._keys: dict[_Key, int] = {}
        """Of orphans: where they are committed, −1 for nowhere; as far as `_scanned`."""
        self._published: dict[Identity, tuple[int, int]] = {}
        """What the log says was published again: where, and the batch's checksum."""
        self._scanned = -1
        self._placed: set[Identity] = set()
        """Orphans that this epoch's original has given new offsets, committed or not."""

    def disconnected(self, broker: BrokerId) -> None:
        """What the original was asked, it does not answer any more."""
        if self._offered is not None and self._offered[0] == broker:
            self._offered = None

    def view_changed(self) -> None:
        """What an original did not want from an outsider it may want now."""
        self._later = -1

    def begin_epoch(self) -> None:
        """Another original: ask it."""
        self._offered = None
        self._later = -1
        self._placed.clear()

    def step(self, now: Instant) -> None:
        """Offer the next orphan, when there is somebody to offer it to."""
        if self._answer_due is not None and now >= self._answer_due:
            self._offered = None  # whom we asked did not know yet that it is original
        orphans = self.files.orphans
        if not len(orphans) or self.settings.orphan_policy is OrphanPolicy.QUARANTINE:
            return
        if self.settings.orphan_policy is OrphanPolicy.DROP:
            for at, header in orphans.waiting():
                orphans.take_off(at, header)
            return
        original = self._asked()
        if original is None or (self.files.committed <= self._later and now < self._later_at):
            return
        self._scan()
        done: list[tuple[Place, BatchHeader, int, bool]] = []
        offered: list[tuple[Place, BatchHeader]] = []
        room = self.settings.sync_max_bytes
        for at, header in orphans.waiting():
            known = self._known(header)
            if known is not None:
                done.append((at, header, known[0], not known[1]))
                continue
            room -= header.size_bytes
            if offered and (room < 0 or len(offered) >= OFFERED_MAX):
                break
            offered.append((at, header))
        self._finish(done)
        if offered:
            self._offer(original, offered, now)

    def next_deadline(self) -> Instant | None:
        """When the next one may be offered."""
        if self._answer_due is not None:
            return self._answer_due
        if self._later >= 0 and len(self.files.orphans) and self._asked() is not None:
            return self._later_at
        return None

    @property
    def _answer_due(self) -> Instant | None:
        """Until when we wait for an answer; what comes later is refused by its number."""
        if self._offered is None:
            return None
        return Instant(self._offered_at + self.settings.round_timeout_ns)

    def _asked(self) -> BrokerId | None:
        """Who could be asked now."""
        original = self.office.original
        if not self.office.in_sync or original is None or self._offered is not None:
            return None
        return original if original == self.office.me or self.links.up(original) else None

    def _offer(
        self, original: BrokerId, offered: list[tuple[Place, BatchHeader]], now: Instant
    ) -> None:
        self._number += 1
        self._offered_at = now
        self._later = -1
        self._offered = (original, offered)
        packed = [BATCH_HEADER.pack(*msgspec.structs.astuple(header)) for _, header in offered]
        self.out.tell(
            original,
            OrphanOffer(self.files.known_epoch, self._number, packed, self.files.committed),
        )

    def later(self, message: OrphanLater, now: Instant) -> None:
        """Ask again behind the next round, or in a while."""
        if self._offered is not None and message.number == self._number:
            self._wait(now)

    def _wait(self, now: Instant) -> None:
        self._offered = None
        self._later = self.files.committed
        self._later_at = Instant(now + _LATER_NS)

    def known(self, message: OrphanKnown) -> None:
        """The first is committed already."""
        if self._offered is not None and message.number == self._number:
            at, header = self._offered[1][0]
            self._offered = None
            self._finish([(at, header, message.base, True)])

    def place(self, source: BrokerId, message: OrphanPlace, now: Instant) -> None:
        """Store them at their new offsets, each behind what names it.  [R8]"""
        epoch = message.epoch
        offered = None
        reason: str | None = "it was offered to somebody else"
        if self._offered is not None and message.number == self._number:
            offered, reason = self._offered[1], None
            self._wait(now)  # whether they are committed the log will tell
        for number, base in enumerate(message.bases):
            if offered is not None and reason is None:
                at, header = offered[number]
                batch = bytearray(self.files.orphans.read(at))
                place(batch, 0, header.batch_length, base + 1, epoch)
                name = self.files.name_of(header, base, epoch, now)
                reason = self.member.store(name + batch, now)
                if reason is None:
                    self._placed.add((header.base_offset, header.leader_epoch))
            if reason is None:
                self.out.tell(source, RelayStored(epoch, base))
            else:
                self.out.tell(source, RelayRefused(epoch, base, -1, reason))

    def _scan(self) -> None:
        """Look at what was committed since the last time, or at all of it for new orphans."""
        files = self.files
        keys = {_key(header) for _, header in files.orphans.waiting() if header.base_sequence >= 0}
        if self._scanned < 0 or not keys <= self._keys.keys():
            self._keys = dict.fromkeys(keys, -1)
            self._published.clear()
            self._scanned = files.log.start_offset
        named: Identity | None = None
        headers = [*files.log.batches(self._scanned, files.committed)]
        for header in headers:
            if header.base_offset < self._scanned:
                continue
            if named is not None:
                self._published[named] = (header.base_offset, header.crc)
            named = files.named_by(header)
            if header.base_sequence >= 0 and _key(header) in self._keys:
                self._keys[_key(header)] = header.base_offset
        if named is None:
            self._scanned = files.committed

    def _known(self, header: BatchHeader) -> tuple[int, bool] | None:
        """Where it is committed, and whether because somebody had published it again.

        What stood below the log's start is deleted, all of this too.
        """
        published = self._published.get((header.base_offset, header.leader_epoch))
        if published is not None and published[1] == header.crc:
            return published[0], True
        placed = (header.base_offset, header.leader_epoch) in self._placed
        if header.last_offset < self.files.log.start_offset and not placed:
            return header.base_offset, False
        found = self.files.committed_at(header.base_offset)
        if found is not None and (found.crc, found.leader_epoch) == (
            header.crc,
            header.leader_epoch,
        ):
            return header.base_offset, False
        base = self._keys.get(_key(header), -1) if header.base_sequence >= 0 else -1
        return None if base < 0 else (base, False)

    def _finish(self, done: list[tuple[Place, BatchHeader, int, bool]]) -> None:
        """Let go of those that are there: where, and whether without our doing.  One that is back
        after a power failure the log knows."""
        for at, header, _, _ in done:
            self.files.orphans.take_off(at, header)
            self._placed.discard((header.base_offset, header.leader_epoch))
        for _, header, base, duplicate in done:
            self.out.note(Republished(header.base_offset, base, duplicate))


def _key(header: BatchHeader) -> _Key:
    return header.producer_id, header.producer_epoch, header.base_sequence
