"""Files in memory that remember which of them was synced, and when."""

from orderwire.broker.log.memory import MemoryFile, MemoryStorage
from orderwire.broker.log.storage import LogFile


class _File(MemoryFile):
    def __init__(self, name: str, syncs: list[str]) -> None:
        super().__init__()
        self._name = name
        self._syncs = syncs

    def sync(self) -> None:
        self._syncs.append(self._name)


class CountingStorage(MemoryStorage):
    """`syncs` names the file of each sync, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[str] = []

    def create(self, name: str) -> LogFile:
        file = self.files[name] = _File(name, self.syncs)
        return file
