"""What of a replica decides what it does next, as plain data that can be compared.

Times count from the broker's own clock, as far back as any setting reaches; names of sessions and
numbers of starts are left out; what is made from the files is not looked at again.
"""

from collections import deque
from enum import Enum
from functools import cache
from hashlib import blake2b
from marshal import dumps
from typing import Any

import msgspec

from orderwire.broker.log import LogConfig, PartitionLog
from orderwire.broker.log.faulty import FaultyDisk, FaultyFile, FaultyStorage
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.kernel import NS_PER_S

TIMES_NS = range(1_600_000_000_000_000_000, 1_800_000_000_000_000_000)
"""What is taken for a time."""
_TIMES_MS = range(1_600_000_000_000, 1_800_000_000_000)
_PAST_NS = 10 * NS_PER_S
"""Whatever is older is as old as this."""
_PLAIN = (str, bytes, bool, float, type(None))
_LOG = ("start_offset", "end_offset", "synced_offset", "epochs", "producers")
_DEPTH_MAX = 24


def fingerprint(value: Any) -> bytes:
    """Sixteen bytes that stand for plain data."""
    return blake2b(dumps(value, 2), digest_size=16).digest()


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """The names of an object's slots."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = getattr(base, "__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(found)


class Reader:
    """Makes plain data of what one broker, or the judge, is."""

    def __init__(self, clock: int, *, power: bool) -> None:
        self._clock = clock
        self._power = power
        """Whether it matters what is durable."""
        self._path: list[Any] = []

    def read(self, value: Any) -> Any:
        """One object and what hangs on it."""
        kind = type(value)
        if kind is int:
            return self._number(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if isinstance(value, Enum):
            return value.name
        if isinstance(value, int):
            return self._number(int(value))
        if isinstance(value, tuple | list | deque):
            return tuple(self.read(each) for each in value)
        if isinstance(value, dict):
            pairs = [(self.read(key), self.read(each)) for key, each in value.items()]
            return tuple(sorted(pairs, key=lambda pair: dumps(pair[0], 2)))
        if isinstance(value, set | frozenset):
            return tuple(sorted((self.read(each) for each in value), key=lambda it: dumps(it, 2)))
        return self._object(value, kind)

    def _number(self, value: int) -> Any:
        if value in TIMES_NS:
            return ("t", max(value - self._clock, -_PAST_NS))
        return 0 if value in _TIMES_MS else value

    def _object(self, value: Any, kind: type) -> Any:
        if isinstance(value, FaultyStorage | ReplicationSettings | LogConfig):
            return kind.__name__
        if isinstance(value, FaultyFile):
            return ("file", value.size)
        if isinstance(value, FaultyDisk):
            return self._disk(value)
        if isinstance(value, type) or callable(value):
            return getattr(value, "__qualname__", kind.__name__)
        if any(each is value for each in self._path):
            return "above"
        self._path.append(value)
        assert len(self._path) < _DEPTH_MAX, f"objects are nested too deep: {self._path}"
        if isinstance(value, PartitionLog):
            found = {name: getattr(value, name) for name in _LOG}
            job = value.begin_sync(checkpoint=False) if not value.is_closed else None
            found["unsynced"] = job is not None
        elif isinstance(value, msgspec.Struct):
            found = {name: getattr(value, name) for name in value.__struct_fields__}
        else:
            found = dict(getattr(value, "__dict__", {}))
            for name in _slots(kind):
                if hasattr(value, name):
                    found[name] = getattr(value, name)
        result = (kind.__name__, *((name, self.read(found[name])) for name in sorted(found)))
        self._path.pop()
        return result

    def _disk(self, disk: FaultyDisk) -> Any:
        files = []
        for name, file in sorted(disk.files.items()):
            durable = file.durable if self._power else b""
            known = self._power and disk.durable_names.get(name) is file
            files.append((name, bytes(file.content), durable, known))
        gone = sorted(set(disk.durable_names) - set(disk.files)) if self._power else []
        return (tuple(files), tuple(gone))
