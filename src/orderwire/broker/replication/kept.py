"""What a replica must not forget: the highest epoch it has seen, and how far S had come."""

import msgspec

from orderwire.broker.log import LogDamaged, PartitionLog, Storage
from orderwire.broker.log.sealed import seal, unseal

REPLICA = "replica"
_NOTES = "replica-notes"


def behind_batch(log: PartitionLog, offset: int) -> int:
    """Where the next batch begins from this offset on: a log's start may lie inside of one, S does
    not."""
    first = next(log.batches(offset, offset + 1), None)
    return offset if first is None or first.base_offset == offset else first.last_offset + 1


class _ReplicaFile(msgspec.Struct, array_like=True):
    known_epoch: int
    is_blank: bool = False


class _NotedFile(msgspec.Struct, array_like=True):
    high_watermark: int
    known_epoch: int = -1
    lost_epoch: int = -1


class Kept:
    """Two small files of a partition's directory.

    S and the epoch are notes, written without waiting for the disk: they may be older than true,
    never newer.  The epoch is a promise all the same [R2]: after a start nothing is done before the
    first view, and whoever registers with ZooKeeper and then reads hears of every epoch that a
    process before it heard of.  That a replica has lost what it had is durable.
    """

    NAME = REPLICA

    @staticmethod
    def make_blank(storage: Storage) -> None:
        """The log is lost: promise no more than the epoch, should it read.  Durable on return."""
        file = unseal(storage.read_file(REPLICA), _ReplicaFile) or _ReplicaFile(-1)
        notes = unseal(storage.read_file(_NOTES), _NotedFile) or _NotedFile(0)
        epoch = max(file.known_epoch, notes.known_epoch)  # ZooKeeper knows it, too
        storage.replace_file(REPLICA, seal(_ReplicaFile(epoch, True)))

    def lose_log(self) -> None:
        """Our log lacks something that is committed; durable on return.  Raises StorageError."""
        self._storage.replace_file(REPLICA, seal(_ReplicaFile(self.known_epoch, True)))
        self.is_blank = True

    def __init__(self, storage: Storage) -> None:
        """Read them.  Raises LogDamaged when the promise does not read."""
        self._storage = storage
        data = storage.read_file(REPLICA)
        file = unseal(data, _ReplicaFile)
        if data is not None and file is None:
            raise LogDamaged(f"{REPLICA} fails its checksum: restore the partition from a copy")
        hint = unseal(storage.read_file(_NOTES), _NotedFile) or _NotedFile(0)
        self.known_epoch = max(-1 if file is None else file.known_epoch, hint.known_epoch)
        """The highest epoch this replica has acted in, as last noted."""
        self.is_blank = file is None or file.is_blank
        """We do not know that we ever had what was committed: the replica is new, or has lost its
        disk."""
        self.high_watermark = hint.high_watermark
        """S + 1 as last noted."""
        self.lost_epoch = hint.lost_epoch
        """The newest loss that `high_watermark` takes account of."""
        self.moved_epoch = -1
        """In which epoch S last moved on, as an original said."""

    def raise_epoch(self, epoch: int) -> None:
        """Promise to refuse lower epochs, without waiting for the disk.  Raises StorageError."""
        assert epoch > self.known_epoch, f"epoch {epoch} is not above {self.known_epoch}"
        self.known_epoch = epoch
        self._note()

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
        self.high_watermark = offset
        self._note()

    def moved(self) -> None:
        """S has moved on in the epoch that we know: losses to then are behind us."""
        self.moved_epoch = self.known_epoch

    def lose(self, epoch: int, high_watermark: int) -> None:
        """S goes back, as the losses to this epoch say.  Raises StorageError."""
        self.lost_epoch, self.high_watermark = epoch, high_watermark
        self._note()

    def _note(self) -> None:
        noted = _NotedFile(self.high_watermark, self.known_epoch, self.lost_epoch)
        self._storage.write_file(_NOTES, seal(noted))
