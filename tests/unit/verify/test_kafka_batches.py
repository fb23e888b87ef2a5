"""Names of messages are read from records of every codec, without the broker's code."""

import pytest

from orderwire.broker.wire.compression import Compression
from orderwire.broker.wire.records import Record, build_batch
from orderwire.verify import kafka_batches
from orderwire.verify.kafka_batches import HEADER, batches_of

NAMES = tuple(f"c.{number}" for number in range(2_000))


def packed(codec: Compression) -> bytes:
    """A batch of records of some 100 bytes, which takes several of snappy's blocks."""
    records = [Record(f"<{name}>".encode() + b"x" * 100, timestamp=1) for name in NAMES]
    return bytes(build_batch(records, compression=codec))


def names(data: bytes, prefix: str = "") -> list[tuple[str, ...]]:
    return [batch.messages for _, _, batch, _ in batches_of(data, prefix)]


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name)
def test_a_batch_tells_its_messages_whatever_packs_it(codec: Compression) -> None:
    data = packed(codec) * 2
    assert names(data) == [NAMES, NAMES]
    assert names(data, "c.1999") == [("c.1999",)] * 2


@pytest.mark.parametrize("codec", list(Compression)[1:], ids=lambda codec: codec.name)
def test_damaged_records_name_no_message_and_hide_no_other_batch(codec: Compression) -> None:
    data = bytearray(packed(codec))
    data[HEADER.size :] = b"\xff" * (len(data) - HEADER.size)
    (damaged, whole) = batches_of(bytes(data) + packed(codec))
    assert (damaged[2].messages, damaged[3]) == ((), False)
    assert (whole[2].messages, whole[3]) == (NAMES, True)


@pytest.mark.parametrize("codec", list(Compression)[1:], ids=lambda codec: codec.name)
def test_records_beyond_the_limit_are_not_looked_into(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_batches, "UNPACKED_BYTES_MAX", 10_000)
    assert names(packed(codec)) == [()]
