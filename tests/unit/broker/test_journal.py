"""The coordinator's journal: torn tails, snapshots, damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.broker import journal as module
from orderwire.broker.group_model import CommittedOffset, DurableRecord, GroupDeleted, OffsetRecord
from orderwire.broker.journal import Journal, SnapshotDamaged, frame
from orderwire.broker.log import MemoryStorage, StorageError
from orderwire.broker.log.faulty import FaultyDisk, FaultyStorage
from orderwire.kernel import Instant


def record(number: int) -> DurableRecord:
    if number % 3 == 2:
        return GroupDeleted(f"g{number}")
    return OffsetRecord("g", "t", number, CommittedOffset(number, 0, "m", Instant(5)))


def written(files: MemoryStorage, count: int) -> list[DurableRecord]:
    journal = Journal(files)
    assert journal.recover() == []
    records = [record(number) for number in range(count)]
    for one in records:
        journal.append(frame(one))
    journal.sync()
    return records


def test_records_come_back_in_order() -> None:
    files = MemoryStorage()
    records = written(files, 7)
    assert Journal(files).recover() == records


@given(cut=st.integers(1, 300))
def test_torn_tail_is_cut_at_the_last_whole_record(cut: int) -> None:
    files = MemoryStorage()
    records = written(files, 9)
    content = files.files["groups-0.journal"].content
    del content[max(len(content) - cut, 0) :]
    again = Journal(files)
    kept = again.recover()
    assert kept == records[: len(kept)]
    again.append(frame(record(99)))
    assert Journal(files).recover() == [*kept, record(99)]


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_flipped_bit_ends_the_journal_before_it(place: int, bit: int) -> None:
    files = MemoryStorage()
    records = written(files, 9)
    content = files.files["groups-0.journal"].content
    content[place % len(content)] ^= 1 << bit
    kept = Journal(files).recover()
    assert len(kept) < len(records)
    assert kept == records[: len(kept)]


def test_snapshot_replaces_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOURNAL_BYTES_MAX", 100)
    files = MemoryStorage()
    written(files, 9)
    journal = Journal(files)
    journal.recover()
    assert journal.is_long
    journal.replace([frame(record(1)), frame(record(2))])
    assert not journal.is_long
    journal.append(frame(record(3)))
    assert files.names() == ["groups-1.journal", "groups.snapshot"]
    assert Journal(files).recover() == [record(1), record(2), record(3)]


def test_journal_that_a_crash_left_beside_its_snapshot_is_not_read_again() -> None:
    files = MemoryStorage()
    written(files, 3)
    old = bytes(files.files["groups-0.journal"].content)
    journal = Journal(files)
    journal.recover()
    journal.replace([frame(record(7))])
    files.create("groups-0.journal").append(old)
    assert Journal(files).recover() == [record(7)]
    assert files.names() == ["groups.snapshot"]


@pytest.mark.parametrize("place", [0, 5, 20, -1])
def test_damaged_snapshot_is_no_torn_write(place: int) -> None:
    files = MemoryStorage()
    Journal(files).replace([frame(record(1))])
    files.files["groups.snapshot"].content[place] ^= 1
    with pytest.raises(SnapshotDamaged, match="restore it"):
        Journal(files).recover()


def test_full_disk_leaves_no_half_record() -> None:
    disk = FaultyDisk()
    files = FaultyStorage(disk)
    journal = Journal(files)
    journal.recover()
    journal.append(frame(record(1)))
    disk.room_bytes = 5
    with pytest.raises(StorageError, match="no space"):
        journal.append(frame(record(2)))
    disk.room_bytes = None
    journal.append(frame(record(3)))
    assert Journal(files).recover() == [record(1), record(3)]


def test_half_record_that_cannot_be_cut_off_ends_the_journal() -> None:
    disk = FaultyDisk()
    journal = Journal(FaultyStorage(disk))
    journal.recover()
    disk.room_bytes = 5
    disk.truncate_fails = True
    with pytest.raises(StorageError):
        journal.append(frame(record(1)))
    disk.room_bytes = None
    with pytest.raises(StorageError, match="out of use"):
        journal.append(frame(record(2)))
