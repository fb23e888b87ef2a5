"""Segments end, age and go; the start only grows; times are found exactly."""

from pathlib import Path
from random import Random

import pytest
from logs import NOW_MS, batch, content, everything, open_log

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import (
    DiskStorage,
    LogDamaged,
    MemoryStorage,
    Refused,
    Storage,
    TimedOffset,
)
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.wire.compression import Compression
from orderwire.broker.wire.records import Record, build_batch

SIZE = len(batch(b"x" * 100))


def logs_of(storage: Storage) -> list[str]:
    return [name for name in storage.names() if ".log" in name]


def test_a_segment_is_closed_by_size_and_by_age() -> None:
    log = open_log(MemoryStorage(), segment_bytes=3 * SIZE, segment_ms=1_000)
    for count, segments in ((3, 1), (1, 2)):
        for _ in range(count):
            log.append(batch(b"x" * 100), 0, NOW_MS)
        assert log.segment_count == segments
    log.append(batch(b"x" * 100), 0, NOW_MS + 999)
    assert log.segment_count == 2
    log.append(batch(b"x" * 100), 0, NOW_MS + 1_000)
    assert log.segment_count == 3


def test_retention_by_size_keeps_at_least_that_much() -> None:
    log = open_log(MemoryStorage(), segment_bytes=SIZE, retention_bytes=3 * SIZE)
    for _ in range(10):
        log.append(batch(b"x" * 100), 0, NOW_MS)
    assert log.maintain(NOW_MS) == 7
    assert (log.start_offset, log.size_bytes) == (7, 3 * SIZE)
    assert isinstance(log.read(6, 100), Refused)


def test_retention_by_time_uses_the_records_own() -> None:
    log = open_log(MemoryStorage(), segment_bytes=SIZE, retention_ms=1_000)
    for age in (5_000, 1_001, 1_000, 0):
        log.append(batch(b"x" * 100, at_ms=NOW_MS - age), 0, NOW_MS)
    assert log.maintain(NOW_MS) == 2
    assert log.start_offset == 2
    assert log.maintain(NOW_MS + 5_000) == 2, "the active segment ages too"
    assert (log.start_offset, log.end_offset, log.segment_count) == (4, 4, 1)


def test_retention_stops_at_the_upper_bound() -> None:
    log = open_log(MemoryStorage(), segment_bytes=SIZE, retention_bytes=0)
    for _ in range(5):
        log.append(batch(b"x" * 100), 0, NOW_MS)
    log.maintain(NOW_MS, upper=2)
    assert log.start_offset == 2


def test_deleted_files_stay_a_minute_and_their_slices_longer(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    log = open_log(storage, segment_bytes=SIZE)
    first = batch(b"x" * 100)
    log.append(first, 0, NOW_MS)
    log.append(batch(b"y" * 100), 0, NOW_MS)
    part = log.read(0, 1 << 20)
    log.delete_records(1, NOW_MS)
    assert "00000000000000000000.log.deleted" in storage.names()
    log.maintain(NOW_MS + 59_999)
    assert "00000000000000000000.log.deleted" in storage.names()
    log.maintain(NOW_MS + 60_000)
    assert logs_of(storage) == ["00000000000000000001.log"]
    assert content(part) == first


def test_delete_records_is_durable_before_it_answers() -> None:
    storage = FaultyStorage()
    log = open_log(storage, segment_bytes=2 * SIZE)
    for _ in range(7):
        log.append(batch(b"x" * 100), 0, NOW_MS)
    log.sync()
    assert log.delete_records(3, NOW_MS) == 3
    assert log.delete_records(2, NOW_MS) == 3, "the start never goes back"
    assert log.segment_count == 3
    for seed in range(20):
        later = open_log(storage.after_crash(Random(seed)), segment_bytes=2 * SIZE)
        assert (later.start_offset, later.end_offset) == (3, 7)


def test_delete_records_refuses_what_is_not_there() -> None:
    log = open_log(MemoryStorage())
    log.append(batch(b"a", b"b"), 0, NOW_MS)
    answer = log.delete_records(3, NOW_MS)
    assert isinstance(answer, Refused)
    assert answer.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.delete_records(-1, NOW_MS) == 2
    assert log.read(2, 100) == b""
    assert everything(log) == []


def test_a_lost_tail_behind_a_durable_start_begins_anew_there() -> None:
    storage = FaultyStorage()
    log = open_log(storage)
    for _ in range(5):
        log.append(batch(b"x"), 0, NOW_MS)
    log.delete_records(5, NOW_MS)
    storage.disk.files["00000000000000000000.log"].content.clear()
    log = open_log(storage)
    assert (log.start_offset, log.end_offset) == (5, 5)


@pytest.mark.parametrize("codec", list(Compression))
def test_times_are_found_exactly(codec: Compression) -> None:
    chance = Random(f"times/{codec}")
    log = open_log(MemoryStorage(), segment_bytes=8_000, index_interval_bytes=500)
    times: list[int] = []
    for _ in range(60):
        stamps = [chance.randint(0, 3_000) for _ in range(chance.randint(1, 6))]
        log.append(
            build_batch([Record(b"v" * 40, timestamp=at) for at in stamps], compression=codec),
            0,
            NOW_MS,
        )
        times += stamps
    log.delete_records(17, NOW_MS)
    for wanted in [0, 1, 2_999, 3_000, 3_001, *(chance.randint(0, 3_000) for _ in range(150))]:
        expected = next(
            (TimedOffset(at, o) for o, at in enumerate(times) if o >= 17 and at >= wanted), None
        )
        assert log.offset_for_time(wanted) == expected
    newest = max(times[17:])
    assert log.newest_record() == TimedOffset(newest, times.index(newest, 17))


def test_an_empty_log_has_no_times() -> None:
    log = open_log(MemoryStorage())
    assert log.newest_record() is None
    assert log.offset_for_time(0) is log.offset_for_time(-5) is None


def test_closed_segments_load_their_index_or_make_it_again() -> None:
    storage = MemoryStorage()
    log = open_log(storage, segment_bytes=20 * SIZE)
    for _ in range(100):
        log.append(batch(b"x" * 100), 0, NOW_MS)
    log.close()
    for damage in (None, b"", b"rubbish"):
        copy = MemoryStorage()
        copy.files = dict(storage.files)
        if damage is not None:
            for name in storage.names():
                if name.endswith(".index") and not name.startswith("0" * 18 + "80"):
                    copy.replace_file(name, damage)
        again = open_log(copy, segment_bytes=20 * SIZE)
        assert again.recovery.clean
        assert len(everything(again)) == 100
        copy.replace_file("clean", storage.read_file("clean") or b"")


def test_damage_in_a_closed_segment_without_index_is_told() -> None:
    storage = MemoryStorage()
    log = open_log(storage, segment_bytes=2 * SIZE)
    for _ in range(6):
        log.append(batch(b"x" * 100), 0, NOW_MS)
    log.close()
    storage.remove("00000000000000000000.index")
    storage.files["00000000000000000000.log"].content[SIZE + 80] ^= 1
    log = open_log(storage, segment_bytes=2 * SIZE)
    with pytest.raises(LogDamaged, match="checksum"):
        log.read(0, 100)
