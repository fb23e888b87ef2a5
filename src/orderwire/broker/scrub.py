"""Reads what lies in the logs, slowly and over and over: a bit that flips is found while other
replicas still have what it was.  [S004:9.10]

Pieces are read and checked in another thread; what it finds is looked at again here, as the log may
have been cut meanwhile.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from orderwire.broker.log import LogDamaged
from orderwire.broker.log.checking import Checked, checked
from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.log.storage import LogFile, StorageError
from orderwire.broker.partitions import Partition
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

PIECE_BYTES = 256 << 10
"""Read at a time; twice as many while a batch is larger."""

_PAUSE_LEAST_NS = 10 * NS_PER_MS


class Piece(msgspec.Struct, frozen=True):
    """What is read next.  `run` changes no object, and runs in a thread."""

    partition: Partition
    file: LogFile
    position: int
    end: int
    offset: int
    epochs: EpochHistory

    def run(self) -> Checked:
        """Read and check.  Raises StorageError."""
        return checked(self.file, self.position, self.end, self.offset, self.epochs)


class Scrub:
    """Where one broker is."""

    def __init__(self, broker: "Broker", now: Instant) -> None:
        self._broker = broker
        settings = broker.settings
        self._bytes_per_s = settings.scrub_bytes_per_s
        self._pause_ns = max(settings.scrub_pause_ns, _PAUSE_LEAST_NS)
        self._due: Instant | None = None
        if self._bytes_per_s > 0:
            self._due = Instant(now + min(self._pause_ns, NS_PER_S))
        self._passing = False
        self._left: list[Partition] = []
        """Of this pass."""
        self._at = -1
        """The next offset of the first of those; −1: from its start on."""
        self._position = 0
        """Where that stands in its segment."""
        self._base = -1
        self._size = PIECE_BYTES
        self._piece: Piece | None = None
        self._running = False
        self.passes = 0
        """So often all was read."""
        self.bytes_read = 0
        self.damaged = 0
        """Partitions in which damage was found."""
        self.ended_ms = -1
        """When all was read last, in milliseconds since 1970; −1: not yet."""

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return None if self._running or self._piece is not None else self._due

    def wake(self, now: Instant) -> None:
        """Choose the next piece, when it is time."""
        if self._due is None or now < self._due or self._running or self._piece is not None:
            return
        if not self._passing:
            self._passing = True
            self._left = list(self._broker.all_partitions())
            self._at = -1
        while self._left:
            self._piece = self._next()
            if self._piece is not None:
                return
            del self._left[0]
            self._at = -1
        self._passing = False
        self.passes += 1
        self.ended_ms = now // NS_PER_MS
        self._due = Instant(now + self._pause_ns)

    def _next(self) -> Piece | None:
        """The next of the first partition; None when there is no more."""
        partition = self._left[0]
        if not self._broker.has(partition) or partition.log.is_closed:
            return None
        found = partition.log.place_of(self._at)
        if found is None:
            return None
        file, base, end = found
        if self._at < base or base != self._base:
            self._at, self._base, self._position = base, base, 0
        if self._position >= end:
            return None
        until = min(self._position + self._size, end)
        epochs = EpochHistory(partition.log.epochs.entries)
        return Piece(partition, file, self._position, until, self._at, epochs)

    def take(self) -> Piece | None:
        """What is to be read now, in another thread; `done` or `failed` must follow."""
        piece, self._piece = self._piece, None
        self._running = piece is not None
        return piece

    def done(self, piece: Piece, found: Checked, now: Instant) -> None:
        """A piece was read."""
        self._running = False
        size = piece.end - piece.position
        self.bytes_read += size
        self._due = Instant(now + size * NS_PER_S // self._bytes_per_s)
        if found.fault is not None:
            self._look(piece, found)
            self._left = self._left[1:]
            self._at = -1
            return
        self._size = PIECE_BYTES if found.position > piece.position else 2 * self._size
        self._at, self._position = found.offset, found.position

    def failed(self, now: Instant) -> None:
        """It could not be read: whoever needs it will hear why."""
        self._running = False
        self._left, self._at = self._left[1:], -1
        self._due = Instant(now + NS_PER_S)

    def _look(self, piece: Piece, found: Checked) -> None:
        """See whether it is still so: then the log says it itself."""
        partition = piece.partition
        if not self._broker.has(partition):
            return
        offset = max(found.offset, partition.log.start_offset)
        known = partition.log.damage is not None
        try:
            partition.log.read(offset, 1)
        except LogDamaged as damage:
            self.damaged += not known
            self._broker.damaged(partition, damage)
        except StorageError:
            pass

    def status(self) -> dict[str, Any]:
        """What `orderwire cluster status` shows."""
        return {
            "passes": self.passes,
            "bytes": self.bytes_read,
            "ended_ms": self.ended_ms,
            "damaged": self.damaged,
        }
