"""Batches that a replica had and the others committed without.  [R8]

Each is set aside before the replica lets go of it elsewhere, and taken off once it has new
offsets that are committed, or is known to be there already.  A crash between loses nothing; the
batch is then published again, and the sequence of an idempotent producer shows that it was.
"""

from orderwire.broker.log import Storage, StorageError
from orderwire.broker.replication.batch_store import BatchStore, Place, StoreRecovery, StoreSync
from orderwire.broker.wire.batch import BatchHeader, read_header
from orderwire.broker.wire.parts import Buffer

_NAME = "orphans"
_Identity = tuple[int, int, int]


def _identity(header: BatchHeader) -> _Identity:
    return header.base_offset, header.leader_epoch, header.crc


class Orphans:
    """The orphans of one partition at one replica, in the order they were set aside."""

    def __init__(self, storage: Storage) -> None:
        """Open them.  Raises StorageError."""
        self._store = BatchStore(storage, _NAME)
        self._known = {_identity(header) for _, header in self._store}
        self.found = 0
        """Set aside since the start, and taken off again."""
        self.settled = 0

    @property
    def recovery(self) -> StoreRecovery:
        """What opening them found."""
        return self._store.recovery

    @property
    def kept_bytes(self) -> int:
        """Of the batches that are set aside."""
        return self._store.kept_bytes

    def __len__(self) -> int:
        return len(self._store)

    def set_aside(self, batch: Buffer) -> bool:
        """Keep a batch as it was, durably after `sync`; False when it is there already."""
        identity = _identity(read_header(batch))
        if identity in self._known:
            return False
        self._store.append(batch)
        self._known.add(identity)
        self.found += 1
        return True

    def waiting(self) -> list[tuple[Place, BatchHeader]]:
        """Every orphan: where it stands, and its header with the old offset and epoch."""
        return list(self._store)

    def read(self, place: Place) -> bytes:
        """Fetch one.  Raises LogDamaged."""
        return self._store.read(place)

    def take_off(self, place: Place, header: BatchHeader) -> None:
        """Let one go: it is committed elsewhere, or not wanted.  Durable after `sync`."""
        self._store.drop(place)
        self._known.discard(_identity(header))
        self.settled += 1

    def begin_sync(self) -> StoreSync | None:
        """Collect what is not durable yet; None when all is."""
        return self._store.begin_sync()

    def end_sync(self, work: StoreSync, error: StorageError | None) -> None:
        """Take note of what has run."""
        self._store.end_sync(work, error)

    def sync(self) -> None:
        """Return when all that was set aside and taken off is durable.  Raises StorageError."""
        self._store.sync()
