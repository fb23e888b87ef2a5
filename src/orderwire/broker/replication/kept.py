"""What a replica must not forget: the highest epoch it has seen, and how far S had come."""

import msgspec

from orderwire.broker.log import LogDamaged, Storage
from orderwire.broker.log.sealed import seal, unseal

REPLICA = "replica"
_SYNC_START = "replica-start"


class _ReplicaFile(msgspec.Struct, array_like=True):
    known_epoch: int
    is_blank: bool = False


class _SyncStartFile(msgspec.Struct, array_like=True):
    high_watermark: int


class Kept:
    """Two small files of a partition's directory.

    The epoch is a promise: durable before anything is done in it.  [R2]  S is a hint, written
    without waiting for the disk: it may be older than true, never newer.
    """

    NAME = REPLICA

    @staticmethod
    def make_blank(storage: Storage) -> None:
        """The log is lost: promise no more than the epoch, should it read.  Durable on return."""
        file = unseal(storage.read_file(REPLICA), _ReplicaFile)
        epoch = -1 if file is None else file.known_epoch  # ZooKeeper knows it, too
        storage.replace_file(REPLICA, seal(_ReplicaFile(epoch, True)))

    def __init__(self, storage: Storage) -> None:
        """Read them.  Raises LogDamaged when the promise does not read."""
        self._storage = storage
        data = storage.read_file(REPLICA)
        file = unseal(data, _ReplicaFile)
        if data is not None and file is None:
            raise LogDamaged(f"{REPLICA} fails its checksum: restore the partition from a copy")
        self.known_epoch = -1 if file is None else file.known_epoch
        """The highest epoch this replica has acted in."""
        self.is_blank = file is None or file.is_blank
        """We do not know that we ever had what was committed: the replica is new, or has lost its
        disk."""
        hint = unseal(storage.read_file(_SYNC_START), _SyncStartFile)
        self.high_watermark = 0 if hint is None else hint.high_watermark
        """S + 1 as last noted."""

    def raise_epoch(self, epoch: int) -> None:
        """Promise to refuse lower epochs; durable on return.  Raises StorageError."""
        assert epoch > self.known_epoch, f"epoch {epoch} is not above {self.known_epoch}"
        self._storage.replace_file(REPLICA, seal(_ReplicaFile(epoch, self.is_blank)))
        self.known_epoch = epoch

    def settle(self) -> None:
        """We have all that was ever committed, or need not have it; durable on return.

        Raises StorageError.
        """
        if self.is_blank:
            self._storage.replace_file(REPLICA, seal(_ReplicaFile(self.known_epoch)))
            self.is_blank = False

    def note_high_watermark(self, offset: int) -> None:
        """Write S + 1, without waiting for the disk.  Raises StorageError."""
        if offset == self.high_watermark:
            return
        self._storage.write_file(_SYNC_START, seal(_SyncStartFile(offset)))
        self.high_watermark = offset
