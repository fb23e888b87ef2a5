"""What may enter a log, and what a reader finds there."""

from struct import pack_into

import pytest
from crc32c import crc32c
from logs import NOW_MS, batch, content, everything, open_log

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, LogConfig, LogDamaged, MemoryStorage, Refused
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.log.storage import StorageError
from orderwire.broker.wire.batch import CONTROL, read_header
from orderwire.broker.wire.records import Record, build_batch
from orderwire.kernel.errors import LocalProtocolError


def refused(result: object) -> ErrorCode:
    assert isinstance(result, Refused), result
    return result.error


def test_offsets_and_epoch_are_set_in_the_callers_buffer() -> None:
    log = open_log(MemoryStorage())
    first, second = batch(b"a", b"b"), batch(b"c")
    assert log.append(first, 3, NOW_MS) == Appended(0, 1)
    assert log.append(second, 4, NOW_MS) == Appended(2, 2)
    header = read_header(second)
    assert (header.base_offset, header.leader_epoch) == (2, 4)
    assert content(log.read(0, 1 << 20)) == first + second
    assert log.epoch_end(3) == (3, 2)
    assert log.epoch_end(9) == (4, 3)
    assert log.epoch_end(2) == (-1, -1)


def test_several_batches_go_in_together() -> None:
    log = open_log(MemoryStorage())
    assert log.append(batch(b"a", b"b") + batch(b"c"), 0, NOW_MS) == Appended(0, 2)
    assert everything(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_all_batches_or_none() -> None:
    log = open_log(MemoryStorage())
    bad = batch(b"x")
    bad[-1] ^= 1
    assert refused(log.append(batch(b"a") + bad, 0, NOW_MS)) is ErrorCode.CORRUPT_MESSAGE
    assert log.end_offset == log.size_bytes == 0


@pytest.mark.parametrize("cut", [1, 16, 17, 60, 61, 70])
def test_a_cut_batch_is_refused(cut: int) -> None:
    log = open_log(MemoryStorage())
    data = batch(b"x" * 100)[:cut]
    assert refused(log.append(data, 0, NOW_MS)) is ErrorCode.CORRUPT_MESSAGE
    assert refused(log.append(bytearray(), 0, NOW_MS)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_get_their_own_code(magic: int) -> None:
    log = open_log(MemoryStorage())
    data = batch()
    data[16] = magic
    answer = log.append(data, 0, NOW_MS)
    assert refused(answer) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert f"v{magic}" in answer.message
    assert refused(log.append(data[:30], 0, NOW_MS)) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_a_batch_at_the_size_limit_is_taken_and_one_byte_more_is_not() -> None:
    size = len(batch(b"x" * 1_000))
    log = open_log(MemoryStorage(), max_message_bytes=size)
    assert isinstance(log.append(batch(b"x" * 1_000), 0, NOW_MS), Appended)
    answer = log.append(batch(b"x" * 1_001), 0, NOW_MS)
    assert refused(answer) is ErrorCode.MESSAGE_TOO_LARGE
    assert f"{size + 1} bytes; at most {size}" in answer.message


def test_too_many_batches_are_refused() -> None:
    log = open_log(MemoryStorage(), batches_per_append_max=2)
    assert refused(log.append(batch() * 3, 0, NOW_MS)) is ErrorCode.INVALID_RECORD
    assert log.append(batch() * 2, 0, NOW_MS) == Appended(0, 1)


def test_control_batches_are_ours_alone() -> None:
    log = open_log(MemoryStorage())
    seal = build_batch([Record(b"seal")], attributes=CONTROL)
    pack_into(">i", seal, 23, 499)  # stands for 500 offsets
    pack_into(">I", seal, 17, crc32c(bytes(seal[21:])))
    assert refused(log.append(seal, 0, NOW_MS)) is ErrorCode.INVALID_RECORD
    assert log.append(seal, 0, NOW_MS, internal=True) == Appended(0, 499)
    assert log.append(batch(b"next"), 0, NOW_MS) == Appended(500, 500)
    assert content(log.read(499, 1 << 20))[:61] == seal[:61]
    assert content(log.read(500, 1 << 20)) == content(log.read(0, 1 << 20))[len(seal) :]


def test_a_record_count_that_lies_is_refused() -> None:
    log = open_log(MemoryStorage())
    data = batch(b"a", b"b")
    pack_into(">i", data, 57, 3)
    pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    assert refused(log.append(data, 0, NOW_MS)) is ErrorCode.INVALID_RECORD


def test_reads_start_at_the_batch_that_holds_the_offset() -> None:
    log = open_log(MemoryStorage())
    batches = [batch(b"%d" % index, b"+") for index in range(2_000)]
    for each in batches:
        log.append(each, 0, NOW_MS)
    for offset in (0, 1, 2, 777, 2_000, 3_999):
        assert content(log.read(offset, 10_000)).startswith(bytes(batches[offset // 2]))
    assert log.read(4_000, 10_000) == b""
    assert refused(log.read(4_001, 10_000)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert refused(log.read(-1, 10_000)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_nothing_at_or_behind_the_upper_bound_is_read() -> None:
    log = open_log(MemoryStorage())
    for _ in range(300):
        log.append(batch(b"a", b"b"), 0, NOW_MS)
    one = log.size_bytes // 300
    for upper in range(2, 600, 2):
        assert len(content(log.read(0, 1 << 20, upper))) == upper // 2 * one
    assert log.read(100, 1 << 20, 100) == b""


def test_the_first_batch_is_whole_even_when_larger_than_asked_for() -> None:
    log = open_log(MemoryStorage())
    big = batch(b"x" * 50_000)
    log.append(big, 0, NOW_MS)
    log.append(batch(b"y"), 0, NOW_MS)
    assert content(log.read(0, 1)) == big
    assert content(log.read(0, len(big) + 10)) == big, "clipped at an indexed batch"


@pytest.mark.parametrize("max_bytes", [1, 500, 5_000, 100_000])
def test_a_consumer_gets_everything_whatever_it_asks_for(max_bytes: int) -> None:
    log = open_log(MemoryStorage(), segment_bytes=20_000)
    values = [b"%d" % index * (index % 50 + 1) for index in range(1_000)]
    for value in values:
        log.append(batch(value), 0, NOW_MS)
    assert log.segment_count > 3
    assert everything(log, max_bytes) == list(enumerate(values))


def test_compaction_and_useless_values_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match=r"cleanup\.policy is 'compact'"):
        LogConfig(cleanup_policy="compact")
    with pytest.raises(LocalProtocolError, match="segment_bytes is 0"):
        LogConfig(segment_bytes=0)


def test_an_earlier_epoch_is_the_callers_fault() -> None:
    log = open_log(MemoryStorage())
    log.append(batch(), 5, NOW_MS)
    with pytest.raises(LocalProtocolError, match="epoch 4 lies before the log's epoch 5"):
        log.append(batch(), 4, NOW_MS)


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    storage = FaultyStorage()
    log = open_log(storage)
    log.append(batch(b"kept"), 0, NOW_MS)
    size = log.size_bytes
    for room in (0, 1, 30, 61, 80):
        storage.disk.room_bytes = room
        with pytest.raises(StorageError, match="no space left"):
            log.append(batch(b"x" * 100), 0, NOW_MS)
        assert (log.size_bytes, log.end_offset) == (size, 1)
    storage.disk.room_bytes = None
    assert log.append(batch(b"later"), 0, NOW_MS) == Appended(1, 1)
    assert everything(log) == [(0, b"kept"), (1, b"later")]


def test_a_full_disk_at_a_roll_leaves_the_log_as_it_was() -> None:
    storage = FaultyStorage()
    log = open_log(storage, segment_bytes=200)
    log.append(batch(b"x" * 100), 0, NOW_MS)
    storage.disk.room_bytes = 0
    with pytest.raises(StorageError):
        log.append(batch(b"y" * 100), 0, NOW_MS)
    storage.disk.room_bytes = None
    log.append(batch(b"y" * 100), 0, NOW_MS)
    assert everything(log) == [(0, b"x" * 100), (1, b"y" * 100)]


def test_a_log_that_cannot_cut_off_a_failed_write_refuses_everything() -> None:
    storage = FaultyStorage()
    log = open_log(storage)
    log.append(batch(b"kept"), 0, NOW_MS)
    log.sync()
    storage.disk.room_bytes = 10
    storage.disk.truncate_fails = True
    with pytest.raises(StorageError):
        log.append(batch(b"x"), 0, NOW_MS)
    with pytest.raises(StorageError, match="out of use"):
        log.read(0, 100)
    storage.disk.truncate_fails = False
    assert everything(open_log(storage)) == [(0, b"kept")]


def test_a_failed_sync_takes_the_log_out_of_use() -> None:
    storage = FaultyStorage()
    log = open_log(storage)
    log.append(batch(), 0, NOW_MS)
    storage.disk.sync_fails = True
    with pytest.raises(StorageError, match="cannot sync"):
        log.sync()
    storage.disk.sync_fails = False
    with pytest.raises(StorageError, match="out of use"):
        log.append(batch(), 0, NOW_MS)


@pytest.mark.parametrize("at", [*range(8), *range(12, 17), 23, 24, 25, 26])
def test_reading_detects_flips_that_no_checksum_covers(at: int) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for epoch in (1, 2, 2):
        log.append(batch(b"x", b"y"), epoch, NOW_MS)
    size = log.size_bytes // 3
    file = storage.files["00000000000000000000.log"]
    for position in (0, size, 2 * size):
        file.content[position + at] ^= 0x80
        with pytest.raises(LogDamaged):
            log.read(5, 1 << 20)
        file.content[position + at] ^= 0x80
    assert content(log.read(5, 1 << 20))
