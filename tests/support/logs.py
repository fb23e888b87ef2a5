"""Builders for tests of partition logs."""

from random import Random

from orderwire.broker.log import LogConfig, PartitionLog, Refused, Storage
from orderwire.broker.wire.batch import place, read_header
from orderwire.broker.wire.parts import FileSlice, Part
from orderwire.broker.wire.records import Record, build_batch, read_records

NOW_MS = 1_700_000_000_000


def batch(
    *values: bytes,
    at_ms: int = NOW_MS,
    producer: tuple[int, int, int] | None = None,
) -> bytearray:
    """One batch; `producer` is (id, epoch, first sequence)."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return build_batch(
        [Record(value, timestamp=at_ms + index) for index, value in enumerate(values or (b"v",))],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def placed(
    base_offset: int,
    epoch: int,
    *values: bytes,
    producer: tuple[int, int, int] | None = None,
    at_ms: int = NOW_MS,
) -> bytearray:
    """One batch that has its offset and epoch already."""
    made = batch(*values, producer=producer, at_ms=at_ms)
    place(made, 0, read_header(made).batch_length, base_offset, epoch)
    return made


def random_batch(chance: Random, at_ms: int = NOW_MS) -> bytearray:
    """One to five records of up to 300 bytes."""
    return batch(
        *(chance.randbytes(chance.randint(0, 300)) for _ in range(chance.randint(1, 5))),
        at_ms=at_ms,
    )


def open_log(storage: Storage, now_ms: int = NOW_MS, **config: int) -> PartitionLog:
    return PartitionLog.open(storage, LogConfig(**config), now_ms)  # type: ignore[arg-type]


def content(part: Part | Refused) -> bytes:
    """The bytes of a read."""
    assert not isinstance(part, Refused), part
    return part.read() if isinstance(part, FileSlice) else bytes(part)


def everything(log: PartitionLog, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record, read as a consumer does."""
    found: list[tuple[int, bytes | None]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = content(log.read(offset, max_bytes))
        records = [each for each in read_records(data) if each.offset >= offset]
        assert records, f"nothing at offset {offset}"
        found += [(each.offset, each.value) for each in records]
        offset = records[-1].offset + 1
    return found
