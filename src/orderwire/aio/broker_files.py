"""A broker's data directory: one owner at a time, its own files, one directory per partition.

DIR/lock  broker.json  topics.json  groups.snapshot  groups-N.journal  cluster.json
DIR/topics/<topic id>/<partition>/…
"""

import fcntl
import logging
import os
import re
import shutil
from pathlib import Path

import msgspec

from orderwire.broker.log import DiskStorage, LogConfig, PartitionLog, StorageError
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.kernel.errors import OrderwireError
from orderwire.kernel.parsing import UNREADABLE

_LOG = logging.getLogger(__name__)
_DELETED = ".deleted"
_TOPIC = re.compile(r"[0-9a-f]{32}")
_MEMBERSHIP = "cluster.json"


class _Membership(msgspec.Struct):
    cluster_id: str
    foreign: tuple[str, ...] = ()
    """Topics' directories that were here before the cluster was: no word of its deletes them."""


class DataDirectoryInUse(OrderwireError):
    """Another process has the data directory."""


class BrokerFiles:
    """The data directory, locked."""

    def __init__(self, directory: Path, *, alone: bool = False) -> None:
        """Lock the directory; make it when missing.

        Who is `alone` is of no cluster from now on: what it makes is not a cluster's to delete.
        Raises DataDirectoryInUse, StorageError.
        """
        self.storage = DiskStorage(directory)
        self._topics = directory / "topics"
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DataDirectoryInUse(
                f"{directory} belongs to another broker that is running: stop it, or choose another"
            ) from None
        self._topics.mkdir(exist_ok=True)
        for left in self._topics.glob("*" + _DELETED):
            self.discard(left)
        if alone and self._membership() is not None:
            self.storage.remove(_MEMBERSHIP)

    def storage_of(self, topic: Topic, index: int) -> DiskStorage:
        """Return one partition's directory; made when missing."""
        return DiskStorage(self._topics / topic.topic_id.hex() / str(index))

    def open_log(self, topic: Topic, index: int, config: LogConfig, now: Instant) -> PartitionLog:
        """Open or make one partition's log.  Raises StorageError."""
        log = PartitionLog.open(self.storage_of(topic, index), config, now // NS_PER_MS)
        found = log.recovery
        if found.cut_bytes:
            _LOG.warning(
                "%s-%d: cut off %d bytes behind the last good batch: %s",
                topic.name,
                index,
                found.cut_bytes,
                found.reason,
            )
        return log

    def set_aside(self, topic: Topic) -> Path | None:
        """Rename a deleted topic's directory; returns what `discard` may delete."""
        path = self._topics / topic.topic_id.hex()
        aside = path.with_name(path.name + _DELETED)
        try:
            path.replace(aside)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot rename {path}: {error.strerror}") from error
        return aside

    def discard(self, aside: Path) -> None:
        """Delete a directory that was set aside; open files stay readable."""
        shutil.rmtree(aside, ignore_errors=True)

    def _strays(self, topics: set[str]) -> list[Path]:
        return [
            path
            for path in sorted(self._topics.iterdir())
            if path.name not in topics and not path.name.endswith(_DELETED)
        ]

    def _membership(self) -> _Membership | None:
        data = self.storage.read_file(_MEMBERSHIP)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=_Membership)
        except UNREADABLE:
            return _Membership(repr(data[:100]))

    def report_strays(self, topics: set[str]) -> None:
        """Warn of directories that no topic owns: they were left by a crash, or by a restore."""
        for path in self._strays(topics):
            _LOG.warning("%s belongs to no topic: it is left alone", path)

    def set_strays_aside(self, topics: set[str], cluster_id: str) -> list[Path]:
        """Rename directories of topics that a cluster has deleted; returns what `discard` may
        delete.

        `topics` are all that it has.  What was here before this directory was of this cluster is
        left alone, then and ever after: another ensemble, or one that has lost its data, knows none
        of these topics.  Raises StorageError.
        """
        strays = self._strays(topics)
        told = self._membership()
        if told is None or told.cluster_id != cluster_id:
            if told is not None:
                _LOG.warning("this directory was of another cluster before: %s", told.cluster_id)
            told = _Membership(cluster_id, tuple(path.name for path in strays))
            self.storage.replace_file(_MEMBERSHIP, msgspec.json.encode(told))
        aside = []
        for path in strays:
            if path.name in told.foreign:
                _LOG.warning("%s is of no topic of this cluster: it is left alone", path)
                continue
            if _TOPIC.fullmatch(path.name) is None:
                _LOG.warning("%s is no topic's: it is left alone", path)
                continue
            _LOG.info("%s is of a topic that was deleted meanwhile: it is deleted, too", path)
            to = path.with_name(path.name + _DELETED)
            try:
                path.replace(to)
            except OSError as error:
                raise StorageError(f"cannot rename {path}: {error.strerror}") from error
            aside.append(to)
        return aside

    def close(self) -> None:
        """Give the directory free."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
