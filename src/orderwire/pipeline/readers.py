"""The readers behind the data source `orderwire`: thin, between Spark and `offsets`, `client`."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from orderwire.pipeline import offsets as plan
from orderwire.pipeline.arrow import check_columns, record_batches
from orderwire.pipeline.client import ReadLimits, TopicClient
from orderwire.pipeline.errors import (
    DataLossError,
    OffsetsWentBackError,
    OptionError,
    PipelineError,
    UnknownTopicError,
)
from orderwire.pipeline.kafka_client import CLIENTS, KafkaClient
from orderwire.pipeline.offsets import Bounds, OffsetRange, Offsets, TopicPartition
from orderwire.pipeline.options import SourceOptions

_LOG = logging.getLogger(__name__)

MISSING_ANSWERS_MAX = 5
"""Micro-batches in a row that may find a known partition missing before that counts as loss."""

Connect: TypeAlias = Callable[[SourceOptions], TopicClient]
_Nested: TypeAlias = dict[str, dict[str, int]]


class RangePartition(InputPartition):
    """One range of offsets: what one task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(str(wanted))
        self.wanted = wanted


def connect(options: SourceOptions) -> KafkaClient:
    """Take a client of this configuration from the process's cache."""
    return CLIENTS.borrow(options.client)


class _Reading:
    """What batch and stream share: settings in, Arrow batches out."""

    def __init__(
        self, options: SourceOptions, schema: StructType, connect: Connect = connect
    ) -> None:
        self.options = options
        self.skipped = 0
        """Records found gone by the driver and left out (`failOnDataLoss=false`)."""
        self._connect = connect
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        check_columns(self._schema, headers=options.headers)

    def read_range(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; runs in a worker and uses nothing but its argument and the options."""
        if partition.value is None:
            return  # Spark's stand-in for "no partitions"
        if not isinstance(partition, RangePartition):
            raise PipelineError(
                f"cannot read {partition!r} of {type(partition).__module__}: driver and workers "
                "run different versions of Orderwire"
            )
        options, wanted = self.options, partition.wanted
        limits = ReadLimits(
            chunk_messages=options.batch_rows,
            stuck_ms=options.stuck_ms,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        client = self._connect(options)
        try:
            for messages in client.read(wanted, limits):
                yield from record_batches(wanted.topic, wanted.partition, messages, self._schema)
        finally:
            self.release(client)

    def release(self, client: TopicClient) -> None:
        """Give a client of the process's cache back."""
        if isinstance(client, KafkaClient):
            CLIENTS.give_back(client, self.options.idle_ms)

    def known_bounds(self, client: TopicClient) -> Bounds:
        """Watermarks of every partition of the topics.  Raises UnknownTopicError."""
        names = client.partitions(self.options.topics)
        missing = set(self.options.topics) - {p.topic for p in names}
        if missing:
            raise UnknownTopicError(
                f"topic {', '.join(sorted(missing))} does not exist on "
                f"{dict(self.options.client)['bootstrap.servers']}; create it first"
            )
        bounds = client.bounds(names)
        refuse_unanswered(names, bounds)
        return bounds

    def there(self, wanted: Sequence[OffsetRange], bounds: Bounds) -> list[OffsetRange]:
        """The ranges without what is gone; raises DataLossError when that is an error."""
        gone = plan.losses(wanted, bounds)
        if not gone:
            return list(wanted)
        told = "; ".join(map(str, gone[:10]))
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"{told}. Start from offsets that exist, or set failOnDataLoss=false to skip them"
            )
        self.skipped += sum(loss.end - loss.start for loss in gone)
        _LOG.warning("skipped (failOnDataLoss=false): %s", told)
        return plan.clip(wanted, bounds)

    def tasks(self, wanted: Sequence[OffsetRange]) -> list[InputPartition]:
        """One input partition for each piece of the ranges."""
        return [RangePartition(r) for r in plan.split(wanted, self.options.partitions_min)]


def refuse_unanswered(names: Sequence[TopicPartition], bounds: Bounds) -> None:
    """Raise PipelineError when a partition's leader does not answer: not a loss, but no data."""
    unheard = [partition for partition in names if partition not in bounds]
    if unheard:
        raise PipelineError(
            f"the leader of {unheard[0]} does not answer ({len(unheard)} such partitions): "
            "try again when it does"
        )


class OrderwireReader(DataSourceReader):
    """A batch: the range between two offsets of each partition."""

    def __init__(
        self, options: SourceOptions, schema: StructType, connect: Connect = connect
    ) -> None:
        if options.starting == "latest":
            raise OptionError("option startingOffsets=latest reads nothing in a batch")
        if options.ending == "earliest":
            raise OptionError("option endingOffsets=earliest reads nothing in a batch")
        self.reading = _Reading(options, schema, connect)

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the offsets and cut them into tasks."""
        reading, options = self.reading, self.reading.options
        client = reading._connect(options)
        try:
            bounds = reading.known_bounds(client)
        finally:
            reading.release(client)
        start = plan.resolve("startingOffsets", options.starting or "earliest", bounds)
        end = plan.resolve("endingOffsets", options.ending, bounds)
        wanted = plan.ranges(start, end)
        return reading.tasks(reading.there(wanted, bounds))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        return self.reading.read_range(partition)


class OrderwireStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: offsets in the checkpoint, admission by `maxOffsetsPerTrigger`, availableNow.

    Lives in one process on the driver for the whole query, where its state is; `read` runs in
    workers.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, connect: Connect = connect
    ) -> None:
        if options.ending != "latest":
            raise OptionError("option endingOffsets is for batches; a stream has no end")
        self.reading = _Reading(options, schema, connect)
        self._client: TopicClient | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._latest: Offsets = {}
        self._missing_answers = 0

    @property
    def skipped(self) -> int:
        """Records found gone and left out (`failOnDataLoss=false`)."""
        return self.reading.skipped

    def initialOffset(self) -> _Nested:
        """Where a query without a checkpoint begins."""
        bounds = self.reading.known_bounds(self._open())
        wanted = self.reading.options.starting or "latest"
        return plan.encode(plan.resolve("startingOffsets", wanted, bounds))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of `maxOffsetsPerTrigger`."""
        rows_max = self.reading.options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record once how far this query goes."""
        if self._target is None:
            bounds = self.reading.known_bounds(self._open())
            self._target = {partition: marks.high for partition, marks in bounds.items()}

    def latestOffset(self, start: _Nested, limit: ReadLimit) -> _Nested:
        """The end of the next micro-batch: never below `start`, never without its partitions."""
        begin = plan.decode(start)
        bounds = self._bounds(begin)
        latest: dict[TopicPartition, int] = {p: marks.high for p, marks in bounds.items()}
        if self._target is not None:
            self._check_target(begin, latest)
            latest = plan.cap(latest, self._target)
        end = plan.merge(begin, latest)
        self._latest = end
        begin |= {p: bounds[p].low for p in end if p not in begin}  # new ones from their first
        match limit:
            case ReadAllAvailable():
                pass
            case ReadMaxRows(max_rows=rows_max):
                end = plan.admit(begin, end, rows_max)
            case _:
                raise OptionError(f"the source cannot limit a micro-batch by {limit!r}")
        return plan.encode(end)

    def reportLatestOffset(self) -> _Nested | None:
        """How far the topics reach, for the query's progress."""
        return plan.encode(self._latest) if self._latest else None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Cut a micro-batch into tasks; the same offsets give the same records, also on replay."""
        begin, until = plan.decode(start), plan.decode(end)
        dropped = set(begin) - set(until)
        assert not dropped, f"end offset without {sorted(dropped)}"
        client = self._open()
        moved = [p for p, offset in until.items() if offset != begin.get(p)]
        bounds = client.bounds(moved)
        for new in sorted(set(until) - set(begin)):
            first = bounds[new].low if new in bounds else 0
            if first > 0 and self.reading.options.fail_on_data_loss:
                raise DataLossError(
                    f"new partition {new} begins at offset {first} instead of 0; "
                    "set failOnDataLoss=false to begin there"
                )
            begin[new] = min(first, until[new])
        wanted = plan.ranges(begin, {p: max(begin[p], offset) for p, offset in until.items()})
        for _ in range(self.reading.options.offset_retries):
            if not plan.losses(wanted, bounds):
                break
            time.sleep(self.reading.options.offset_retry_ms / 1000)
            bounds = client.bounds(moved)
        return self.reading.tasks(self.reading.there(wanted, bounds))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        return self.reading.read_range(partition)

    def stop(self) -> None:
        """Give the driver's client back."""
        if self._client is not None:
            self.reading.release(self._client)
            self._client = None

    def _open(self) -> TopicClient:
        if self._client is None:
            self._client = self.reading._connect(self.reading.options)
        return self._client

    def _bounds(self, begin: Offsets) -> Bounds:
        """Watermarks that make sense beside `begin`: asked again when they do not."""
        client, options = self._open(), self.reading.options
        for attempt in range(options.offset_retries + 1):
            if attempt:
                time.sleep(options.offset_retry_ms / 1000)
            names = client.partitions(options.topics)
            bounds = client.bounds(names)
            missing = sorted(set(begin) - set(names))
            back = plan.went_back(begin, bounds)
            if not missing and not back and len(bounds) == len(names):
                self._missing_answers = 0
                return bounds
        if back and options.fail_on_data_loss:
            where, high = min(back.items())
            raise OffsetsWentBackError(
                f"{where} ends at {high}, but offset {begin[where]} was read before "
                f"({len(back)} such partitions). The topic was deleted and created again, or its "
                "log was cut short; start with a new checkpoint, or set failOnDataLoss=false to "
                "wait until it is past that offset"
            )
        self._missing_answers = self._missing_answers + 1 if missing else 0
        if (
            missing
            and options.fail_on_data_loss
            and (self._target is not None or self._missing_answers > MISSING_ANSWERS_MAX)
        ):
            raise DataLossError(
                f"{len(missing)} known partitions are gone, first {missing[0]}; "
                f"asked {self._missing_answers * (options.offset_retries + 1)} times"
            )
        if self._target is not None:
            refuse_unanswered(names, bounds)  # or the query would end before its target
        return bounds

    def _check_target(self, begin: Offsets, latest: Offsets) -> None:
        """A topic that ends below the target of availableNow would never get there."""
        assert self._target is not None
        if self.reading.options.fail_on_data_loss:
            for where, target in sorted(self._target.items()):
                high = latest.get(where, 0)
                if high < target and begin.get(where, 0) < target:
                    raise OffsetsWentBackError(
                        f"{where} ends at {high}, below {target}, where it ended when this "
                        "availableNow query began: it was deleted, or created again"
                    )
