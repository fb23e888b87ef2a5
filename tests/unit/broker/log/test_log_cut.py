"""A log is cut off, or begun anew."""

from random import Random

import pytest
from logs import NOW_MS, batch, everything, open_log, random_batch

from orderwire.broker.log import (
    Appended,
    LogDamaged,
    MemoryStorage,
    PartitionLog,
    Storage,
    StorageError,
)
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.kernel.errors import LocalProtocolError

SIZES = {"segment_bytes": 1_500, "index_interval_bytes": 200}


def filled(storage: Storage, count: int = 40) -> PartitionLog:
    chance = Random("cut")
    log = open_log(storage, **SIZES)
    for number in range(count):
        log.append(random_batch(chance, NOW_MS + 10 * number), number // 7, NOW_MS)
    return log


def state(log: PartitionLog) -> tuple[object, ...]:
    times = [log.offset_for_time(NOW_MS + 5 * step) for step in range(100)]
    places = [log.start_offset, log.end_offset, log.size_bytes]
    return *places, log.epochs.entries, log.newest_record(), times, everything(log, 500)


def test_a_cut_log_is_as_if_the_rest_had_never_been() -> None:
    ends = [header.base_offset for header in filled(MemoryStorage()).batches(0)]
    for number, end in enumerate(ends):
        storage = MemoryStorage()
        log = filled(storage)
        if number % 3 == 0:
            log.sync()
        if number % 4 == 0:
            log.maintain(NOW_MS)  # forgets the indexes of closed segments
        assert log.truncate(end, NOW_MS) == end
        assert log.synced_offset == end
        shorter = filled(MemoryStorage(), number)
        assert state(log) == state(shorter)
        again = open_log(storage, **SIZES)
        assert again.recovery.reason is None
        assert state(again) == state(shorter)
        for each in (log, again):
            each.append(batch(b"after"), 99, NOW_MS)
            assert everything(each)[-1] == (end, b"after")
            each.sync()
            assert state(open_log(storage, **SIZES)) == state(each)
            each.truncate(end, NOW_MS)
        again.close()
        assert state(open_log(storage, **SIZES)) == state(shorter)


def test_the_whole_batch_that_holds_the_offset_goes() -> None:
    log = open_log(MemoryStorage())
    for _ in range(3):
        log.append(batch(b"a", b"b", b"c"), 0, NOW_MS)
    assert log.truncate(9, NOW_MS) == log.truncate(100, NOW_MS) == 9
    assert log.truncate(5, NOW_MS) == 3
    assert log.end_offset == 3


def test_a_cut_below_the_start_is_our_mistake_and_inside_its_batch_begins_anew() -> None:
    log = open_log(MemoryStorage())
    for _ in range(3):
        log.append(batch(b"a", b"b", b"c"), 2, NOW_MS)
    log.delete_records(4, NOW_MS)
    with pytest.raises(LocalProtocolError, match="offset 3: the log begins at 4"):
        log.truncate(3, NOW_MS)
    assert log.truncate(5, NOW_MS) == 4
    assert (log.start_offset, log.end_offset, log.size_bytes) == (4, 4, 0)


def test_producers_are_those_of_what_stays() -> None:
    storage = MemoryStorage()
    log = open_log(storage, segment_bytes=400)
    for sequence in range(20):
        log.append(batch(b"x" * 50, producer=(5, sequence // 10, sequence % 10)), 0, NOW_MS)
    log.truncate(8, NOW_MS)
    for each in (log, open_log(storage, segment_bytes=400)):
        last = batch(b"x" * 50, producer=(5, 0, 7))
        assert each.append(last, 0, NOW_MS) == Appended(7, 7, duplicate=True)
        gone = batch(b"y", producer=(5, 0, 8))
        assert each.append(gone, 0, NOW_MS) == Appended(8, 8)
        each.truncate(8, NOW_MS)


def test_a_log_begins_anew_anywhere() -> None:
    for offset in (0, 7, 100, 1_000):
        storage = MemoryStorage()
        log = filled(storage)
        log.sync()
        log.delete_records(20, NOW_MS)
        log.reset(offset, NOW_MS)
        for number in range(2):
            each = log if number == 0 else open_log(storage, **SIZES)
            assert (each.start_offset, each.end_offset, each.size_bytes) == (offset, offset, 0)
            assert each.epochs.entries == []
            assert each.append(batch(b"v"), 1, NOW_MS) == Appended(offset, offset)
            each.sync()
            assert everything(open_log(storage, **SIZES)) == [(offset, b"v")]
            each.reset(offset, NOW_MS)


def test_a_sync_that_is_under_way_says_nothing_about_what_was_cut() -> None:
    for run_first in (False, True):
        storage = FaultyStorage()
        log = open_log(storage, recovery_bytes=1)
        for _ in range(5):
            log.append(batch(b"old"), 0, NOW_MS)
        log.sync()
        for _ in range(5):
            log.append(batch(b"old"), 0, NOW_MS)
        job = log.begin_sync()
        assert job is not None
        if run_first:
            job.run()
        log.truncate(3, NOW_MS)
        for _ in range(2):
            log.append(batch(b"new"), 1, NOW_MS)
        if not run_first:
            job.run()  # writes a checkpoint of what is gone
        log.end_sync(job)
        assert log.synced_offset == 3
        again = open_log(storage, recovery_bytes=1)
        assert [value for _, value in everything(again)] == [b"old"] * 3 + [b"new"] * 2


def test_a_cut_that_fails_half_way_takes_the_log_out_of_use() -> None:
    storage = FaultyStorage()
    log = filled(storage)
    log.sync()
    storage.disk.truncate_fails = True
    with pytest.raises(StorageError, match="cannot truncate"):
        log.truncate(5, NOW_MS)
    with pytest.raises(StorageError, match="out of use"):
        log.append(batch(b"v"), 99, NOW_MS)
    storage.disk.truncate_fails = False
    assert open_log(storage, **SIZES).end_offset <= 5


def test_a_damaged_note_of_a_cut_is_told() -> None:
    storage = MemoryStorage()
    log = filled(storage)
    log.truncate(5, NOW_MS)
    storage.files["cut"].content[5] ^= 1
    with pytest.raises(LogDamaged, match="cut fails its checksum"):
        open_log(storage, **SIZES)
