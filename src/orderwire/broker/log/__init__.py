"""A partition's log on disk: segments of record batches exactly as on the wire."""

from orderwire.broker.log.file import DiskStorage
from orderwire.broker.log.memory import MemoryStorage
from orderwire.broker.log.model import Appended, LogConfig, Recovery, Refused, TimedOffset
from orderwire.broker.log.partition import PartitionLog
from orderwire.broker.log.storage import LogDamaged, Storage, StorageError
from orderwire.broker.log.syncing import SyncJob

__all__ = [
    "Appended",
    "DiskStorage",
    "LogConfig",
    "LogDamaged",
    "MemoryStorage",
    "PartitionLog",
    "Recovery",
    "Refused",
    "Storage",
    "StorageError",
    "SyncJob",
    "TimedOffset",
]
