"""Record batches against kafka-python's, and what is refused."""

from random import Random

import pytest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from orderwire.broker.wire import compression
from orderwire.broker.wire.batch import CRC_FROM, place, read_header, walk
from orderwire.broker.wire.compression import Compression, compress, decompress
from orderwire.broker.wire.records import Record, build_batch, read_records
from orderwire.kernel.errors import RemoteProtocolError

CODECS = list(Compression)


def records(count: int, seed: str) -> list[Record]:
    chance = Random(seed)
    return [
        Record(
            value=chance.choice((None, b"", chance.randbytes(chance.randint(0, 300)))),
            key=chance.choice((None, b"key")),
            timestamp=1_700_000_000_000 + chance.randint(-5_000, 5_000),
            headers=(("h", b"v"), ("none", None)) if chance.random() < 0.3 else (),
            offset=index,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_built_reads_back(codec: Compression) -> None:
    given = records(50, f"read-back/{codec}")
    batch = build_batch(given, compression=codec, base_offset=0)
    assert list(read_records(batch)) == given
    header = read_header(batch)
    assert (header.count, header.last_offset, header.size_bytes) == (50, 49, len(batch))
    assert header.max_timestamp == max(record.timestamp for record in given)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_kafka_python_reads_what_we_build(codec: Compression) -> None:
    given = records(20, f"theirs/{codec}")
    batch = build_batch(given, compression=codec, base_offset=7, leader_epoch=3)
    theirs = MemoryRecords(bytes(batch)).next_batch()
    assert theirs.validate_crc()
    assert [
        (each.offset - 7, each.timestamp, each.key, each.value, tuple(each.headers))
        for each in theirs
    ] == [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in given]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_we_read_what_kafka_python_builds(codec: Compression) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 20)
    given = [
        Record(b"v%d" % index, b"k", timestamp=1_000 + index, offset=index) for index in range(30)
    ]
    for each in given:
        builder.append(timestamp=each.timestamp, key=each.key, value=each.value)
    builder.close()
    assert list(read_records(builder.buffer())) == given


def test_place_touches_offset_and_epoch_only() -> None:
    batch = build_batch([Record(b"x")])
    before = bytes(batch)
    place(batch, 0, read_header(batch).batch_length, 1 << 40, 9)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 9)
    assert batch[16:] == before[16:]
    assert batch[8:12] == before[8:12]


def test_walk_leaves_a_cut_batch_out() -> None:
    one, two = build_batch([Record(b"1")]), build_batch([Record(b"2")])
    for cut in range(len(two)):
        assert [at for at, _ in walk(one + two[:cut])] == [0]
    assert [at for at, _ in walk(one + two)] == [0, len(one)]


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_bodies_are_the_peers_fault(codec: Compression) -> None:
    batch = build_batch(records(20, "damage"), compression=codec)
    chance = Random(f"damage/{codec}")
    for _ in range(150):
        broken = bytearray(batch)
        for _ in range(3):
            broken[chance.randrange(CRC_FROM + 40, len(broken))] ^= 1 << chance.randrange(8)
        try:
            list(read_records(broken))
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_unpacks_to_too_much_is_refused(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = compress(codec, bytes(5_000_000))
    assert len(bomb) < 300_000
    assert len(decompress(codec, bomb)) == 5_000_000
    monkeypatch.setattr(compression, "UNPACKED_BYTES_MAX", 4_000_000)
    with pytest.raises(RemoteProtocolError):
        decompress(codec, bomb)


def test_bare_snappy_blocks_are_read_too() -> None:
    framed = compress(Compression.SNAPPY, b"some text " * 10)
    assert decompress(2, framed[20:]) == b"some text " * 10


def test_unknown_codec_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match="codec 7 is unknown"):
        decompress(7, b"x")
