"""A producer's later batch is not taken before one that was refused."""

from collections.abc import Callable

import pytest

from orderwire.broker import refused_producers
from orderwire.broker.log import Appended, LogConfig, MemoryStorage, PartitionLog
from orderwire.broker.refused_producers import PATIENCE_NS, RefusedProducers
from orderwire.broker.wire.records import Record, build_batch
from orderwire.kernel import Instant

TOPIC = b"t" * 16


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> bytearray:
    return build_batch(
        [Record(b"x", timestamp=1)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


@pytest.fixture
def log() -> PartitionLog:
    return PartitionLog.open(MemoryStorage(), LogConfig(), 0)


@pytest.fixture
def early(log: PartitionLog) -> Callable[..., bool]:
    memory = RefusedProducers()
    first = memory.batch_of(batch(0))
    assert first == (7, 0, 0)
    memory.refused(TOPIC, 0, first)

    def ask(records: bytearray, index: int = 0, now: int = 0) -> bool:
        who = memory.batch_of(records)
        assert who is not None
        return memory.is_too_early(TOPIC, index, who, log, Instant(now))

    return ask


def test_a_later_batch_waits_for_the_refused_one(early: Callable[..., bool]) -> None:
    assert early(batch(1))
    assert early(batch(2))
    assert not early(batch(1), index=1)
    assert not early(batch(1, producer_id=8))
    assert not early(batch(0))
    assert not early(batch(1)), "the refused one has come"


def test_a_new_epoch_begins_anew(early: Callable[..., bool]) -> None:
    assert not early(batch(0, epoch=1))
    assert not early(batch(1))


def test_a_log_that_knows_the_producer_judges_itself(
    early: Callable[..., bool], log: PartitionLog
) -> None:
    assert early(batch(1))
    assert isinstance(log.append(batch(0), 0, 0), Appended)
    assert not early(batch(1))


def test_a_client_that_has_given_the_batch_up_goes_on(early: Callable[..., bool]) -> None:
    assert early(batch(1), now=5)
    assert early(batch(1), now=5 + PATIENCE_NS)
    assert not early(batch(1), now=6 + PATIENCE_NS)


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, log: PartitionLog) -> None:
    monkeypatch.setattr(refused_producers, "REFUSED_MAX", 2)
    memory = RefusedProducers()
    for producer_id in (1, 2, 3):
        memory.refused(TOPIC, 0, (producer_id, 0, 0))
    early = [memory.is_too_early(TOPIC, 0, (each, 0, 1), log, Instant(0)) for each in (1, 2, 3)]
    assert early == [False, True, True]
    assert RefusedProducers.batch_of(b"short") is None
    assert RefusedProducers.batch_of(batch(-1, producer_id=-1, epoch=-1)) is None
