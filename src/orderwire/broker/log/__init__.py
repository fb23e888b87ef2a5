"""A partition's log on disk: segments of record batches exactly as on the wire."""

from orderwire.broker.log.admission import Admitted, Batch, Sequenced
from orderwire.broker.log.file import DiskStorage
from orderwire.broker.log.memory import MemoryStorage
from orderwire.broker.log.model import Appended, LogConfig, Recovery, Refused, TimedOffset
from orderwire.broker.log.partition import PartitionLog
from orderwire.broker.log.producers import ProducerBatch
from orderwire.broker.log.storage import BesideDamaged, LogDamaged, Storage, StorageError
from orderwire.broker.log.syncing import SyncJob

__all__ = [
    "Admitted",
    "Appended",
    "Batch",
    "BesideDamaged",
    "DiskStorage",
    "LogConfig",
    "LogDamaged",
    "MemoryStorage",
    "PartitionLog",
    "ProducerBatch",
    "Recovery",
    "Refused",
    "Sequenced",
    "Storage",
    "StorageError",
    "SyncJob",
    "TimedOffset",
]
