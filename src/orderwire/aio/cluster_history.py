"""What a broker of a cluster writes of its own history into a topic of that cluster.

Elections, orphans that are published again, the log's start and every advance of a high watermark,
with the batches in between, as the audit of replication reads them.  Its own topic and that of the
groups are not told of: each row would make another.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from orderwire.aio.history_options import HistoryOptions
from orderwire.aio.history_publisher import HistoryPublisher, Job, RowSink, topic_sink
from orderwire.aio.history_spool import Advanced, HistorySpool, Row, Told
from orderwire.broker.cluster import GROUPS_TOPIC
from orderwire.broker.log import LogDamaged, Refused, StorageError
from orderwire.broker.partitions import Partition
from orderwire.broker.replication import effects
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import walk
from orderwire.verify.replication import Elected, LogStart, Lost, Missing, Republished

_LOG = logging.getLogger(__name__)
SPOOL = "history"
ROWS_MAX = 100_000
"""Rows that wait to be acknowledged; of more the history only says how many they were."""
SPOOL_BYTES_MAX = 1 << 23
"""When the spool is that long, it waits until it can be cut."""
_TICK_S = 0.02
_TICK_BYTES = 4 << 20
_PIECE_BYTES = 1 << 20
_LOOKS_MAX = 3_000
"""How often batches are looked for whose partition is not here: a minute."""
_CLOSE_S = 2.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Finds(Protocol):
    """A broker, as far as it is needed here."""

    def partition(self, topic: str, index: int) -> Partition | None:
        """One partition, if it is here."""
        ...


class ClusterHistory:
    """One broker's, from its loop's thread."""

    def __init__(self, options: HistoryOptions, data: Path, me: BrokerId, incarnation: str) -> None:
        self.options = options
        self._me = me
        self._writer = f"{me}/{incarnation}"
        self._life = time.time_ns()
        self._positions: Counter[tuple[str, int]] = Counter()
        self._lives: dict[tuple[str, int], tuple[Partition, int]] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self._dropped: Counter[tuple[str, int]] = Counter()
        self._spool = HistorySpool(data / SPOOL)
        self._waiting: deque[Row] = deque(self._spool.recover())
        self._absent: list[tuple[Row, int]] = []
        """Rows whose batches could not be read yet, and how often that was tried."""
        self._handed = 0
        self._broker: Finds | None = None
        self._publisher: HistoryPublisher | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self, broker: Finds, run_id: str, listens: tuple[str, int]) -> None:
        """Publish through the broker's own listener."""
        host, port = listens
        host = _ANY.get(host, host)
        servers = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        options = self.options
        self.publish(broker, run_id, lambda: topic_sink(servers, options.topic, options.client))

    def publish(self, broker: Finds, run_id: str, make_sink: Callable[[], RowSink]) -> None:
        """Publish to such sinks."""
        loop = asyncio.get_running_loop()

        def lost(rows: Mapping[tuple[str, int], int]) -> None:
            loop.call_soon_threadsafe(self._lost, rows)

        self._broker = broker
        self._publisher = HistoryPublisher(run_id, make_sink, lost)
        self._publisher.start()
        self._arm()

    # -- what happens -----------------------------------------------------------------------

    def noted(self, topic: str, index: int, event: effects.Event) -> None:
        """A replica tells of something."""
        match event:
            case effects.Elected(epoch):
                self._tell(topic, index, Elected(epoch, self._me))
            case effects.LostRange(epoch, start, end, unclean):
                self._tell(topic, index, Lost(epoch, self._me, start, end, unclean=unclean))
            case effects.Republished(_, new_offset, duplicate):
                if not duplicate:
                    self._tell(topic, index, Republished(new_offset))

    def advanced(self, partition: Partition, high_watermark: int) -> None:
        """Consumers may read up to here, from now on."""
        key = (partition.topic, partition.index)
        known = self._lives.get(key)
        if known is None or known[0] is not partition:
            # Opened anew: it may begin with less than it had.
            self._life += 1
            known = self._lives[key] = (partition, self._life)
        start = partition.log.start_offset
        if start > self._starts.get(key, 0):
            self._starts[key] = start
            self._tell(*key, LogStart(start))
        if high_watermark != partition.high_watermark:
            told = Advanced(self._me, known[1], partition.high_watermark, high_watermark)
            self._tell(*key, told)

    def flush(self) -> None:
        """Keep what was told in this turn: now it outlives the process."""
        if not self._closed:
            self._spool.flush()
            self._arm()

    def _tell(self, topic: str, index: int, event: Told) -> None:
        if self._closed or topic in (self.options.topic, GROUPS_TOPIC):
            return
        key = (topic, index)
        if self._backlog >= ROWS_MAX:
            self._dropped[key] += 1
            return
        self._tell_of_dropped(key)
        self._add(key, event)

    def _tell_of_dropped(self, key: tuple[str, int]) -> None:
        dropped = self._dropped.pop(key, 0)
        if dropped:
            self._add(key, Missing(f"what broker {self._me} could not write down", dropped))

    def _add(self, key: tuple[str, int], event: Told) -> None:
        position = self._positions[key]
        self._positions[key] = position + 1
        row = Row(self._writer, *key, position, time.time_ns(), event)
        self._spool.add(row)
        self._waiting.append(row)

    def _lost(self, rows: Mapping[tuple[str, int], int]) -> None:
        self._dropped.update(rows)
        self._arm()

    @property
    def _backlog(self) -> int:
        return len(self._waiting) + len(self._absent) + self._under_way

    @property
    def _under_way(self) -> int:
        return 0 if self._publisher is None else self._handed - self._publisher.done

    # -- publishing -------------------------------------------------------------------------

    def _arm(self) -> None:
        busy = self._backlog or self._dropped or self._spool.size_bytes
        if self._timer is None and busy and self._publisher is not None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._closed:
            return
        try:
            self._hand_over()
        except OSError as error:
            _LOG.error("the history's spool: %s", error)
        self._arm()

    def _hand_over(self) -> None:
        assert self._publisher is not None
        for key in list(self._dropped):
            if self._backlog < ROWS_MAX:
                self._tell_of_dropped(key)
        self._spool.flush()
        under_way = self._under_way
        waiting = bool(self._waiting or self._absent)
        if not under_way and self._spool.size_bytes > (SPOOL_BYTES_MAX if waiting else 0):
            self._spool.replace([*(row for row, _ in self._absent), *self._waiting])
        if under_way and self._spool.size_bytes > SPOOL_BYTES_MAX:
            return
        jobs: list[Job] = []
        size = 0
        absent, self._absent = self._absent, []
        for row, looks in absent:
            size += self._take(row, looks, jobs)
        while self._waiting and size < _TICK_BYTES:
            size += self._take(self._waiting.popleft(), 0, jobs)
        if jobs:
            self._handed += len(jobs)
            self._publisher.put(jobs)

    def _take(self, row: Row, looks: int, jobs: list[Job]) -> int:
        """Make a row ready, or put it off; returns the bytes that were read."""
        data: bytes | None = b""
        if isinstance(row.event, Advanced):
            data = self._batches(row, row.event)
        if data is None and looks < _LOOKS_MAX:
            self._absent.append((row, looks + 1))
            return 0
        if data is None:
            lost = Missing("batches that are not here any more", 0)
            row, data = msgspec.structs.replace(row, event=lost), b""
        jobs.append((row, data))
        return len(data)

    def _batches(self, row: Row, told: Advanced) -> bytes | None:
        """The batches between two high watermarks; None when they cannot be read now."""
        assert self._broker is not None
        partition = self._broker.partition(row.topic, row.partition)
        if partition is None or partition.given_up:
            return None
        log = partition.log
        at = max(told.start, log.start_offset)
        pieces = []
        while at < told.end:
            try:
                piece = log.copy(at, _PIECE_BYTES, told.end)
            except (LogDamaged, StorageError):
                return None
            if isinstance(piece, Refused) or not piece:
                return None
            pieces.append(piece)
            at = max(header.last_offset for _, header in walk(piece)) + 1
        return b"".join(pieces)

    async def settle(self) -> None:
        """Publish what there is, before the broker leaves; what is left the next process does."""
        if self._publisher is None or self._closed:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + _CLOSE_S
        while self._backlog and loop.time() < until:
            await asyncio.sleep(_TICK_S)

    def close(self) -> None:
        """Stop."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._publisher is not None:
            self._publisher.stop()
        if not self._backlog:
            self._spool.replace([])
        self._spool.close()
