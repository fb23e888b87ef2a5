"""Who this broker is, and which producer ids it has handed out."""

from base64 import urlsafe_b64encode
from random import Random

import msgspec

from orderwire.broker.log.storage import Storage
from orderwire.kernel.errors import OrderwireError
from orderwire.kernel.parsing import UNREADABLE

_FILE = "broker.json"
_VERSION = 1
PRODUCER_ID_BLOCK = 1_000
"""Ids are reserved on disk by the block: after a crash the rest of a block is never used."""


class StateDamaged(OrderwireError):
    """The broker's own file does not read."""


class _Kept(msgspec.Struct):
    version: int
    cluster_id: str
    next_producer_id: int


class ProducerIds:
    """Hands out producer ids, each at most once in the life of a data directory."""

    def __init__(self, files: Storage, kept: _Kept) -> None:
        self._files = files
        self._kept = kept
        self._next = kept.next_producer_id
        self._end = kept.next_producer_id

    @classmethod
    def open(cls, files: Storage, chance: Random) -> tuple[str, "ProducerIds"]:
        """Return the cluster's id and its producer ids; make them on the first start."""
        data = files.read_file(_FILE)
        if data is None:
            drawn = urlsafe_b64encode(chance.getrandbits(128).to_bytes(16, "big"))
            kept = _Kept(_VERSION, drawn.decode().rstrip("="), 0)
            files.replace_file(_FILE, msgspec.json.encode(kept))
        else:
            try:
                kept = msgspec.json.decode(data, type=_Kept)
            except UNREADABLE as error:
                raise StateDamaged(f"{_FILE} does not read: {error}") from error
            if kept.version != _VERSION:
                raise StateDamaged(f"{_FILE} has version {kept.version}; known: {_VERSION}")
        return kept.cluster_id, cls(files, kept)

    def take(self) -> int:
        """Return an id that was never returned before."""
        if self._next == self._end:
            self._end += PRODUCER_ID_BLOCK
            self._kept.next_producer_id = self._end
            self._files.replace_file(_FILE, msgspec.json.encode(self._kept))
        self._next += 1
        return self._next - 1
