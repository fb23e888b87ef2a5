"""Options of the data source: those of Spark's Kafka connector by name, plus two of its own."""

from collections.abc import Mapping

import msgspec

from orderwire.pipeline.errors import OptionError
from orderwire.pipeline.offsets import Wanted, parse_wanted

CLIENT_PREFIX = "kafka."

ARROW_BATCH_ROWS_MAX = 1_000_000


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reader was asked for, checked."""

    client: tuple[tuple[str, str], ...]
    """`kafka.*` options without the prefix, sorted: configuration of the client library."""
    topics: tuple[str, ...]
    """`subscribe`: topic names separated by commas."""
    starting: Wanted | None = None
    """`startingOffsets`; None means earliest in a batch and latest in a stream."""
    ending: Wanted = "latest"
    """`endingOffsets`, batch only."""
    rows_max: int | None = None
    """`maxOffsetsPerTrigger`, stream only."""
    partitions_min: int | None = None
    """`minPartitions`: cut ranges until there are about this many tasks."""
    fail_on_data_loss: bool = True
    headers: bool = False
    """`includeHeaders`."""
    stuck_ms: int = 120_000
    """`kafkaConsumer.pollTimeoutMs`: longest read without progress, in milliseconds."""
    offset_retries: int = 3
    """`fetchOffset.numRetries`."""
    offset_retry_ms: int = 10
    """`fetchOffset.retryIntervalMs`, in milliseconds."""
    batch_rows: int = 10_000
    """`arrowBatchRows`: most records in one Arrow batch."""
    idle_ms: int = 60_000
    """`consumerIdleMs`: a cached consumer is closed when unused for so long; 0 caches none."""


_OWN = {
    "subscribe",
    "startingoffsets",
    "endingoffsets",
    "maxoffsetspertrigger",
    "minpartitions",
    "failondataloss",
    "includeheaders",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "arrowbatchrows",
    "consumeridlems",
}
_OF_THE_CONNECTOR = {"subscribepattern", "assign", "startingtimestamp", "endingtimestamp"}


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options given to `spark.read` or `spark.readStream`.  Raises OptionError."""
    given = {name.lower(): value for name, value in options.items()}
    client = {
        name.removeprefix(CLIENT_PREFIX): value
        for name, value in given.items()
        if name.startswith(CLIENT_PREFIX)
    }
    for name in sorted(given):
        if name in _OF_THE_CONNECTOR:
            raise OptionError(f"option {name} is not offered; name the topics with subscribe")
        if name not in _OWN and not name.startswith(CLIENT_PREFIX):
            raise OptionError(f"unknown option {name!r}; known: kafka.*, {', '.join(sorted(_OWN))}")
    if not client.get("bootstrap.servers"):
        raise OptionError("option kafka.bootstrap.servers is missing; expected HOST:PORT,…")
    topics = tuple(dict.fromkeys(t.strip() for t in given.get("subscribe", "").split(",")))
    if not all(topics):
        raise OptionError(
            f"option subscribe={given.get('subscribe', '')!r} names no topic; expected NAME,…"
        )
    starting = given.get("startingoffsets")
    return SourceOptions(
        client=tuple(sorted(client.items())),
        topics=topics,
        starting=None if starting is None else parse_wanted("startingOffsets", starting),
        ending=parse_wanted("endingOffsets", given.get("endingoffsets", "latest")),
        rows_max=_number(given, "maxOffsetsPerTrigger", None, least=1),
        partitions_min=_number(given, "minPartitions", None, least=1),
        fail_on_data_loss=_truth(given, "failOnDataLoss", True),
        headers=_truth(given, "includeHeaders", False),
        stuck_ms=_number(given, "kafkaConsumer.pollTimeoutMs", 120_000, least=1) or 0,
        offset_retries=_number(given, "fetchOffset.numRetries", 3, least=0) or 0,
        offset_retry_ms=_number(given, "fetchOffset.retryIntervalMs", 10, least=0) or 0,
        batch_rows=_number(given, "arrowBatchRows", 10_000, 1, ARROW_BATCH_ROWS_MAX) or 0,
        idle_ms=_number(given, "consumerIdleMs", 60_000, least=0) or 0,
    )


def _number(
    given: Mapping[str, str], name: str, default: int | None, least: int, most: int = 1 << 62
) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise OptionError(f"option {name}={text!r}; expected a whole number, {least} or more")
    return value


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name}={text!r}; expected true or false")
    return text == "true"
