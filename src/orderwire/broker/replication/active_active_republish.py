"""Orphans get new offsets through the original, one at a time, or are known to be there.  [R8]

The member stores an orphan itself at the offset it is given, and notes where before it does, so
that a crash at any moment leaves one batch: the orphan stays set aside until it is committed there.
"""

import msgspec

from orderwire.broker.log import Storage
from orderwire.broker.log.sealed import seal, unseal
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

_MARK = "republishing"
_LATER_NS = 50 * NS_PER_MS


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Where an orphan is stored again."""

    old_base: int
    old_epoch: int
    crc: int
    base: int
    epoch: int


_Key = tuple[int, int, int]
"""An idempotent producer's id, epoch and first sequence."""


class Republisher:
    """One replica's orphans on their way back into the log."""

    def __init__(
        self,
        storage: Storage,
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
        self._storage = storage
        self.mark = unseal(storage.read_file(_MARK), Mark)
        """At most one is on its way."""
        self._number = 0
        self._offered: tuple[BrokerId, Place, BatchHeader] | None = None
        """The original has been asked; no answer yet."""
        self._later = -1
        """Not again before S has passed this, or it is time."""
        self._later_at: Instant = Instant(0)
        self._keys: dict[_Key, int] = {}
        """Of orphans: where they are committed, −1 for nowhere; as far as `_scanned`."""
        self._scanned = 0

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

    def is_copy(self, header: BatchHeader) -> bool:
        """Whether this is an orphan of ours that was stored again: it is set aside already."""
        mark = self.mark
        return mark is not None and (mark.base, mark.epoch, mark.crc) == (
            header.base_offset,
            header.leader_epoch,
            header.crc,
        )

    def step(self, now: Instant) -> None:
        """Offer the next orphan, when there is somebody to offer it to."""
        orphans = self.files.orphans
        if not len(orphans) or self.settings.orphan_policy is OrphanPolicy.QUARANTINE:
            return
        if self.settings.orphan_policy is OrphanPolicy.DROP:
            for at, header in orphans.waiting():
                orphans.take_off(at, header)
            orphans.sync()
            return
        original = self.office.original
        if (
            not self.office.in_sync
            or original is None
            or self._offered is not None
            or not (original == self.office.me or self.links.up(original))
            or (self.files.committed <= self._later and now < self._later_at)
        ):
            return
        mark = self.mark
        if mark is not None and self.files.committed > mark.base:
            self._settle(mark)
        elif mark is not None and self.files.holds(mark.base):
            return  # it is on its way
        for at, header in orphans.waiting():
            shown = header
            if self.mark is None:
                known = self._known(header)
                if known is not None:
                    self._finish(at, header, known, duplicate=True)
                    continue
            elif not self._is_marked(header):
                continue
            else:  # others may have taken it from us before we let go of it
                shown = msgspec.structs.replace(
                    header, base_offset=self.mark.base, leader_epoch=self.mark.epoch
                )
            self._offer(original, at, header, shown)
            return
        if self.mark is not None:  # what it is about is settled
            self._set_mark(None)

    def next_deadline(self) -> Instant | None:
        """When the next one may be offered."""
        if self._offered is None and self._later >= 0 and len(self.files.orphans):
            return self._later_at
        return None

    def _offer(
        self, original: BrokerId, at: Place, header: BatchHeader, shown: BatchHeader
    ) -> None:
        self._number += 1
        self._later = -1
        self._offered = (original, at, header)
        packed = BATCH_HEADER.pack(*msgspec.structs.astuple(shown))
        self.out.tell(
            original,
            OrphanOffer(self.files.known_epoch, self._number, packed, self.files.committed),
        )

    def _is_marked(self, header: BatchHeader) -> bool:
        mark = self.mark
        return mark is not None and (mark.old_base, mark.old_epoch, mark.crc) == (
            header.base_offset,
            header.leader_epoch,
            header.crc,
        )

    def later(self, message: OrphanLater, now: Instant) -> None:
        """Ask again behind the next round, or in a while."""
        if self._offered is not None and message.number == self._number:
            self._offered = None
            self._later = self.files.committed
            self._later_at = Instant(now + _LATER_NS)

    def known(self, message: OrphanKnown) -> None:
        """It is committed already."""
        if self._offered is not None and message.number == self._number:
            _, at, header = self._offered
            self._offered = None
            self._finish(at, header, message.base, duplicate=True)

    def place(self, source: BrokerId, message: OrphanPlace) -> None:
        """Store it at its new offset."""
        base, epoch = message.base, message.epoch
        if self._offered is None or message.number != self._number:
            reason: str | None = "it was offered to somebody else"
        else:
            _, at, header = self._offered
            self._offered = None
            batch = bytearray(self.files.orphans.read(at))
            place(batch, 0, header.batch_length, base, epoch)
            self._set_mark(Mark(header.base_offset, header.leader_epoch, header.crc, base, epoch))
            reason = self.member.store(batch)
        if reason is None:
            self.out.tell(source, RelayStored(epoch, base))
        else:
            self.out.tell(source, RelayRefused(epoch, base, -1, reason))

    def _settle(self, mark: Mark) -> None:
        """S has passed the place of the one that was on its way: it is there, or it is not."""
        found = self._at(mark.base)
        if found is not None and (found.crc, found.leader_epoch) == (mark.crc, mark.epoch):
            for at, header in self.files.orphans.waiting():
                if self._is_marked(header):
                    self._finish(at, header, mark.base, duplicate=False)
        self._set_mark(None)  # only now: it says what must not be published twice

    def _at(self, base: int) -> BatchHeader | None:
        log = self.files.log
        if not log.start_offset <= base < self.files.committed:
            return None
        found = next(log.batches(base, base + 1), None)
        return found if found is not None and found.base_offset == base else None

    def _known(self, header: BatchHeader) -> int | None:
        """Where it is committed: at its own offset, or, sent again by its producer, elsewhere."""
        found = self._at(header.base_offset)
        if found is not None and (found.crc, found.leader_epoch) == (
            header.crc,
            header.leader_epoch,
        ):
            return header.base_offset
        if header.producer_id < 0 or header.base_sequence < 0:
            return None
        key = _key(header)
        if key not in self._keys:
            self._keys = {_key(each): -1 for _, each in self.files.orphans.waiting()}
            self._scanned = self.files.log.start_offset
        for each in self.files.log.batches(self._scanned, self.files.committed):
            if _key(each) in self._keys and each.base_sequence >= 0:
                self._keys[_key(each)] = each.base_offset
        self._scanned = self.files.committed
        known = self._keys[key]
        return known if known >= 0 else None

    def _finish(self, at: Place, header: BatchHeader, base: int, *, duplicate: bool) -> None:
        self.files.orphans.take_off(at, header)
        self.files.orphans.sync()
        self.out.note(Republished(header.base_offset, base, duplicate))

    def _set_mark(self, mark: Mark | None) -> None:
        """Durable on return."""
        self.mark = mark
        if mark is None:
            self._storage.replace_file(_MARK, b"")
        else:
            self._storage.replace_file(_MARK, seal(mark))


def _key(header: BatchHeader) -> _Key:
    return header.producer_id, header.producer_epoch, header.base_sequence
