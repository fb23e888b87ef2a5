"""Epochs go to the disk without anybody waiting for it, and before what was written in them."""

import pytest
from logs import batch

from orderwire.broker.log import LogConfig, PartitionLog, StorageError
from orderwire.broker.log.cutting import EPOCHS
from orderwire.broker.log.epochs import EpochHistory, epoch_row
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication.kept import Kept


def test_nobody_waits_for_the_disk_when_an_epoch_begins() -> None:
    storage = FaultyStorage()
    log = PartitionLog.open(storage, LogConfig(), 0)
    kept = Kept(storage)
    storage.disk.sync_fails = True
    kept.raise_epoch(4)
    log.append(batch(b"x"), 4, 0)
    log.append(batch(b"y"), 5, 0)
    assert log.epochs.entries == [(4, 0), (5, 1)]
    assert Kept(storage).known_epoch == 4
    work = log.begin_sync()
    assert work is not None
    with pytest.raises(StorageError):
        work.run()


def test_an_epoch_is_durable_before_what_was_written_in_it() -> None:
    storage = FaultyStorage()
    log = PartitionLog.open(storage, LogConfig(), 0)
    log.append(batch(b"x"), 7, 0)
    work = log.begin_sync()
    assert work is not None
    assert work.epochs is not None
    work.epochs.sync()
    assert EpochHistory.from_bytes(storage.disk.files[EPOCHS].durable) is not None
    assert storage.disk.files[EPOCHS].durable.endswith(epoch_row(7, 0))
    log.end_sync(work)
    assert log.begin_sync() is None


@pytest.mark.parametrize("cut", [1, 15, 17])
def test_a_torn_file_is_none_and_the_batches_say_it_again(cut: int) -> None:
    storage = FaultyStorage()
    log = PartitionLog.open(storage, LogConfig(), 0)
    for epoch in (1, 3):
        log.append(batch(b"x"), epoch, 0)
    file = storage.disk.files[EPOCHS]
    del file.content[-cut:]
    assert EpochHistory.from_bytes(bytes(file.content)) is None
    again = PartitionLog.open(storage, LogConfig(), 0)
    assert again.epochs.entries == [(1, 0), (3, 1)]
    assert again.end_offset == 2


def test_rows_of_a_process_that_died_are_durable_once_the_log_is_open() -> None:
    storage = FaultyStorage()
    PartitionLog.open(storage, LogConfig(), 0).append(batch(b"x"), 7, 0)
    PartitionLog.open(storage, LogConfig(), 0)
    assert storage.disk.files[EPOCHS].durable.endswith(epoch_row(7, 0))


def test_a_torn_row_leaves_what_a_checkpoint_says() -> None:
    """The batches before are deleted: only the checkpoint knows their producer."""
    storage = FaultyStorage()
    config = LogConfig(segment_bytes=200, recovery_bytes=1)
    log = PartitionLog.open(storage, config, 0)
    for number in range(4):
        log.append(batch(b"x" * 100, producer=(7, 0, number)), 1, 0)
    log.sync()
    log.delete_records(4, 0)
    log.sync()
    log.append(batch(b"y"), 2, 0)
    file = storage.disk.files[EPOCHS]
    del file.content[-5:]
    again = PartitionLog.open(storage, config, 0)
    assert again.epochs.entries[-1] == (2, 4)
    told = again.append(batch(b"x" * 100, producer=(7, 0, 3)), 2, 0)
    assert getattr(told, "duplicate", False), told


def test_rows_out_of_order_or_changed_are_none() -> None:
    good = EpochHistory([(1, 0), (3, 5)]).to_bytes()
    known = EpochHistory.from_bytes(good)
    assert known is not None
    assert known.entries == [(1, 0), (3, 5)]
    assert EpochHistory.from_bytes(good + epoch_row(3, 6)) is None
    assert EpochHistory.from_bytes(good + epoch_row(4, 4)) is None
    assert EpochHistory.from_bytes(good[16:]) is None
    assert EpochHistory.from_bytes(b"") is None
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        assert EpochHistory.from_bytes(bytes(bad)) is None
