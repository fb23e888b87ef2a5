"""Batches that have their offsets and epochs already."""

import re
from random import Random

import pytest
from logs import NOW_MS, batch, content, everything, open_log, placed, random_batch

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, MemoryStorage, PartitionLog, Refused
from orderwire.broker.wire.batch import CONTROL, place, read_header, walk
from orderwire.broker.wire.records import Record, build_batch


def copied(log: PartitionLog, max_bytes: int = 1 << 20, **config: int) -> PartitionLog:
    """The log's content in a log of its own."""
    other = open_log(MemoryStorage(), **config)
    while other.end_offset < log.end_offset:
        data = log.copy(other.end_offset, max_bytes)
        assert isinstance(data, bytes)
        assert isinstance(other.append_placed(data, NOW_MS), Appended)
    return other


@pytest.mark.parametrize("max_bytes", [1, 500, 1 << 20])
def test_a_copy_is_the_same_byte_for_byte(max_bytes: int) -> None:
    chance = Random("copy")
    log = open_log(MemoryStorage(), segment_bytes=3_000, index_interval_bytes=300)
    for number in range(60):
        log.append(random_batch(chance), number // 9, NOW_MS + number)
    other = copied(log, max_bytes, segment_bytes=2_000, index_interval_bytes=500)
    assert everything(other) == everything(log)
    assert other.epochs.entries == log.epochs.entries
    assert list(other.batches(0)) == list(log.batches(0))
    assert other.newest_record() == log.newest_record()


def test_several_epochs_come_in_one_go_and_are_durable() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    data = placed(0, 2, b"a") + placed(1, 2, b"b") + placed(2, 5, b"c", b"d") + placed(4, 7, b"e")
    assert log.append_placed(bytes(data), NOW_MS) == Appended(0, 4)
    assert log.epochs.entries == [(2, 0), (5, 2), (7, 4)]
    again = open_log(storage)
    assert again.recovery.reason is None
    assert again.epochs.entries == log.epochs.entries
    assert [value for _, value in everything(again)] == [b"a", b"b", b"c", b"d", b"e"]


def test_seals_and_control_batches_are_taken() -> None:
    seal = build_batch([Record(b"why", key=b"\0\0OW")], attributes=CONTROL, base_offset=0)
    place(seal, 0, read_header(seal).batch_length, 0, 3)
    log = open_log(MemoryStorage())
    assert log.append_placed(seal, NOW_MS) == Appended(0, 0)
    assert log.append_placed(placed(1, 3, b"v"), NOW_MS) == Appended(1, 1)


def test_what_is_not_in_place_is_refused_with_numbers() -> None:
    log = open_log(MemoryStorage())
    log.append_placed(placed(0, 4, b"a", b"b"), NOW_MS)
    size = log.size_bytes
    torn = bytes(placed(2, 4, b"x"))
    flipped = placed(2, 4, b"x")
    flipped[-1] ^= 1
    cases: list[tuple[bytes | bytearray, ErrorCode, str]] = [
        (placed(3, 4, b"x"), ErrorCode.OFFSET_OUT_OF_RANGE, "base offset 3 .* offset 2"),
        (placed(1, 4, b"x"), ErrorCode.OFFSET_OUT_OF_RANGE, "base offset 1 .* offset 2"),
        (placed(2, 3, b"x"), ErrorCode.FENCED_LEADER_EPOCH, "epoch 3 .* epoch 4"),
        (
            placed(2, 6, b"x") + placed(3, 5, b"y"),
            ErrorCode.FENCED_LEADER_EPOCH,
            "epoch 5 .* epoch 6",
        ),
        (torn[:-1], ErrorCode.CORRUPT_MESSAGE, "no whole record batch"),
        (torn[:20], ErrorCode.CORRUPT_MESSAGE, "no whole record batch"),
        (flipped, ErrorCode.CORRUPT_MESSAGE, "offset 2"),
        (b"", ErrorCode.INVALID_RECORD, "no batch"),
    ]
    for data, code, words in cases:
        refused = log.append_placed(data, NOW_MS)
        assert isinstance(refused, Refused), words
        assert refused.error is code
        assert re.search(words, refused.message), refused.message
        assert (log.end_offset, log.size_bytes, log.epochs.latest) == (2, size, 4)


def test_producers_are_noted_and_not_judged() -> None:
    log = open_log(MemoryStorage())
    for number, sequence in enumerate((7, 40, 41)):  # as no producer would
        log.append_placed(placed(number, 0, b"v", producer=(9, 0, sequence)), NOW_MS)
    again = log.append(batch(b"v", producer=(9, 0, 41)), 0, NOW_MS)
    assert again == Appended(2, 2, duplicate=True)
    assert log.append(batch(b"v", producer=(9, 0, 42)), 0, NOW_MS) == Appended(3, 3)


def test_what_is_published_again_does_not_take_its_producer_back() -> None:
    log = open_log(MemoryStorage())
    for number, sequence in enumerate((40, 41, 12)):
        log.append_placed(placed(number, 0, b"v", producer=(9, 0, sequence)), NOW_MS)
    log.append_placed(placed(3, 0, b"v", producer=(9, 0, 0)), NOW_MS)
    assert log.append(batch(b"v", producer=(9, 0, 42)), 0, NOW_MS) == Appended(4, 4)


def test_headers_of_a_range() -> None:
    log = open_log(MemoryStorage(), segment_bytes=300)
    for number in range(10):
        log.append(batch(b"a", b"b", b"c"), number // 4, NOW_MS)
    assert [header.base_offset for header in log.batches(4, 13)] == [3, 6, 9, 12]
    assert [header.leader_epoch for header in log.batches(0)] == [0] * 4 + [1] * 4 + [2] * 2
    assert list(log.batches(30)) == list(log.batches(5, 3)) == []
    log.delete_records(10, NOW_MS)
    assert next(log.batches(0)).base_offset == 9


def test_a_copy_ends_where_it_is_told() -> None:
    log = open_log(MemoryStorage())
    for _ in range(10):
        log.append(batch(b"a", b"b"), 0, NOW_MS)
    one = log.size_bytes // 10
    for limit, count in ((0, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (1 << 20, 10)):
        data = log.copy(0, limit)
        assert isinstance(data, bytes)
        assert len(list(walk(data))) == count
        assert len(data) == count * one
    assert len(content(log.copy(0, 1 << 20, 6))) == 3 * one
    assert log.copy(20, 100) == b""
    assert isinstance(log.copy(21, 100), Refused)
