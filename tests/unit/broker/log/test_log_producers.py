"""Idempotent producers: retries are recognised, gaps and zombies are refused."""

from random import Random

import pytest
from logs import NOW_MS, batch, open_log

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, MemoryStorage, PartitionLog, Refused
from orderwire.broker.log.faulty import FaultyStorage

ID = 77


def send(
    log: PartitionLog, sequence: int, count: int = 1, epoch: int = 0, now_ms: int = NOW_MS
) -> Appended | Refused:
    values = [b"v"] * count
    return log.append(batch(*values, producer=(ID, epoch, sequence)), 0, now_ms)


def error(answer: Appended | Refused) -> ErrorCode:
    assert isinstance(answer, Refused), answer
    return answer.error


def test_the_last_five_batches_are_recognised() -> None:
    """redpanda #3038, #3039: a window of five, and the stored offset in the answer."""
    log = open_log(MemoryStorage())
    for sequence in range(0, 14, 2):
        assert send(log, sequence, 2) == Appended(sequence, sequence + 1)
    for sequence in range(4, 14, 2):
        assert send(log, sequence, 2) == Appended(sequence, sequence + 1, duplicate=True)
    assert error(send(log, 2, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == 14


def test_each_of_five_requests_in_flight_may_lose_its_answer() -> None:
    for lost in range(5):
        log = open_log(MemoryStorage())
        for sequence in range(5):
            send(log, sequence)
        for sequence in range(lost, 5):
            assert send(log, sequence) == Appended(sequence, sequence, duplicate=True)
        assert send(log, 5) == Appended(5, 5)


def test_a_gap_is_out_of_order() -> None:
    log = open_log(MemoryStorage())
    send(log, 0)
    answer = send(log, 2)
    assert error(answer) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert "sent sequence 2; expected 1" in answer.message


def test_half_a_repeated_batch_is_out_of_order() -> None:
    log = open_log(MemoryStorage())
    send(log, 0, 4)
    assert error(send(log, 0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_epochs_fence() -> None:
    log = open_log(MemoryStorage())
    send(log, 0)
    assert error(send(log, 5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 0, epoch=1) == Appended(1, 1)
    assert error(send(log, 1, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 0, epoch=1) == Appended(1, 1, duplicate=True)


def test_sequences_wrap_at_two_to_the_31() -> None:
    log = open_log(MemoryStorage())
    top = 2**31 - 1
    assert send(log, top - 1, 4) == Appended(0, 3)
    assert send(log, 2) == Appended(4, 4)
    assert send(log, top - 1, 4) == Appended(0, 3, duplicate=True)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert send(open_log(MemoryStorage()), 1_000) == Appended(0, 0)


def test_an_expired_producer_may_go_on() -> None:
    """redpanda #22670: out of order after idling past the expiry."""
    log = open_log(MemoryStorage(), producer_expiration_ms=1_000)
    send(log, 0)
    log.maintain(NOW_MS + 1_000)
    assert error(send(log, 7)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.maintain(NOW_MS + 1_001)
    assert send(log, 7) == Appended(1, 1)


def test_the_number_of_producers_is_bounded() -> None:
    log = open_log(MemoryStorage(), producers_max=3)
    for producer in range(5):
        log.append(batch(producer=(producer, 0, 0)), 0, NOW_MS)
    log.maintain(NOW_MS)
    assert len(log.producers) == 3


def test_an_idempotent_batch_travels_alone() -> None:
    log = open_log(MemoryStorage())
    pair = batch(producer=(ID, 0, 0)) + batch(producer=(ID, 0, 1))
    assert error(log.append(pair, 0, NOW_MS)) is ErrorCode.INVALID_RECORD
    assert log.end_offset == 0


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 300])
def test_retries_are_recognised_across_a_restart(closed: bool, segment_bytes: int) -> None:
    storage = MemoryStorage()
    log = open_log(storage, segment_bytes=segment_bytes)
    for sequence in range(8):
        send(log, sequence)
    if closed:
        log.close()
    log = open_log(storage, segment_bytes=segment_bytes)
    assert log.recovery.clean is closed
    for sequence in range(3, 8):
        assert send(log, sequence) == Appended(sequence, sequence, duplicate=True)
    assert error(send(log, 9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 8) == Appended(8, 8)


@pytest.mark.parametrize("closed", [True, False])
def test_a_producer_outlives_its_deleted_records(closed: bool) -> None:
    storage = MemoryStorage()
    log = open_log(storage, segment_bytes=100)
    send(log, 0)
    for _ in range(3):
        log.append(batch(b"other"), 0, NOW_MS)
    assert log.delete_records(3, NOW_MS) == 3
    if closed:
        log.close()
    log = open_log(storage, segment_bytes=100)
    assert log.start_offset == 3
    assert send(log, 0) == Appended(0, 0, duplicate=True)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_deleted_is_recognised_after_a_power_failure(seed: int) -> None:
    """Nothing but the snapshot before the first segment that stays says that it was written."""
    storage = FaultyStorage()
    log = open_log(storage, segment_bytes=200)
    first = send(log, 0)
    log.sync()
    while log.segment_count == 1:
        log.append(batch(b"of others" * 10), 0, NOW_MS)
    kept = log.end_offset - 1
    log.delete_records(kept, NOW_MS)
    assert log.segment_count == 1
    log = open_log(storage.after_crash(Random(seed)), segment_bytes=200)
    assert log.start_offset == kept
    assert send(log, 0) == Appended(0, 0, duplicate=True)
    assert first == Appended(0, 0)
