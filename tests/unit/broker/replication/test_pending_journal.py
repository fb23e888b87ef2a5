"""Batches that wait above the main log's end."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from logs import placed

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import DiskStorage, LogDamaged, MemoryStorage, Refused, Storage
from orderwire.broker.log.faulty import FaultyStorage, PowerFailure
from orderwire.broker.log.storage import StorageError
from orderwire.broker.replication.pending_journal import PendingJournal
from orderwire.broker.wire.batch import BatchHeader, walk

MAKERS: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda _: MemoryStorage(),
    "file": DiskStorage,
    "faulty": lambda _: FaultyStorage(),
}
ROOM = 1 << 20


@pytest.fixture(params=sorted(MAKERS))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MAKERS[request.param](tmp_path / "log")


def kept(journal: PendingJournal, batch: bytearray) -> BatchHeader:
    header = journal.append(batch)
    assert isinstance(header, BatchHeader), header
    return header


@pytest.mark.paper("S004:9.5")
def test_batches_come_in_any_order_and_are_found_by_offset(storage: Storage) -> None:
    journal = PendingJournal(storage, ROOM, 0)
    made = {base: placed(base, 1, *[b"x"] * count) for base, count in ((20, 3), (5, 1), (10, 4))}
    for batch in made.values():
        kept(journal, batch)
    for each in (journal, PendingJournal(storage, ROOM, 5)):
        assert [header.base_offset for header in each.held(-1)] == [5, 10, 20]
        assert [header.base_offset for header in each.held(5, 21)] == [10]
        assert [header.base_offset for header in each.held(5, 22)] == [10, 20]
        covering = [each.covering(offset) for offset in (4, 5, 6, 9, 10, 13, 14, 22, 23)]
        bases = [header and header.base_offset for header in covering]
        assert bases == [None, 5, None, None, 10, 10, None, 20, None]
        assert all(each.read(base) == batch for base, batch in made.items())
        assert (len(each), each.end_offset) == (3, 23)
        assert each.kept_bytes == sum(len(batch) for batch in made.values())


def test_several_batches_are_kept_in_one_write_and_read_side_by_side(storage: Storage) -> None:
    journal = PendingJournal(storage, ROOM, 0)
    made = [placed(base, 1, *[b"x"] * count) for base, count in ((3, 2), (5, 1), (6, 3), (12, 1))]
    records = memoryview(b"".join(made))
    batches = list(walk(records))
    assert journal.append_all(records, batches) is None
    kept(journal, placed(9, 1, b"later"))
    for each in (journal, PendingJournal(storage, ROOM, 3)):
        assert each.read_run(3, 9, ROOM) == b"".join(made[:3])
        assert each.read_run(3, 13, ROOM) == b"".join(made[:3]) + placed(9, 1, b"later")
        assert each.read_run(3, 13, 1) == made[0]
        assert each.read_run(4, 13, ROOM) == each.read_run(3, 4, ROOM) == b""
        assert each.read_run(12, 13, ROOM) == made[3]
    assert isinstance(journal.append_all(records, [batches[3]]), Refused), "it is there"
    twice = memoryview(placed(20, 1, b"a", b"b") + placed(21, 1, b"c"))
    assert isinstance(journal.append_all(twice, list(walk(twice))), Refused)
    assert journal.covering(20) is None, "all or none"


def test_no_two_batches_hold_one_offset(storage: Storage) -> None:
    journal = PendingJournal(storage, ROOM, 0)
    kept(journal, placed(10, 1, b"a", b"b", b"c"))
    for base, count in ((10, 1), (12, 1), (9, 2), (0, 50)):
        refused = journal.append(placed(base, 1, *[b"x"] * count))
        assert isinstance(refused, Refused)
        assert refused.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert "10 … 12" in refused.message
    kept(journal, placed(9, 1, b"x"))
    kept(journal, placed(13, 1, b"x"))


def test_what_is_not_one_whole_batch_is_refused(storage: Storage) -> None:
    journal = PendingJournal(storage, ROOM, 0)
    good = bytes(placed(0, 0, b"value"))
    bad = bytearray(good)
    bad[-1] ^= 1
    for data in (b"", good[:-1], good[:30], good + b"x", good + good, bad):
        refused = journal.append(data)
        assert isinstance(refused, Refused)
        assert refused.error is ErrorCode.CORRUPT_MESSAGE
    assert len(journal) == 0


def test_bytes_that_wait_are_limited() -> None:
    size = len(placed(0, 0, b"v"))
    journal = PendingJournal(MemoryStorage(), 2 * size, 0)
    kept(journal, placed(0, 0, b"v"))
    kept(journal, placed(1, 0, b"v"))
    refused = journal.append(placed(2, 0, b"v"))
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
    journal.forget_below(1)
    kept(journal, placed(2, 0, b"v"))


def test_what_is_moved_or_dropped_is_gone_after_a_restart_too(storage: Storage) -> None:
    journal = PendingJournal(storage, ROOM, 0)
    for base in range(6):
        kept(journal, placed(base, 0, b"%d" % base))
    journal.forget_below(2)
    journal.drop(4)
    for each in (journal, PendingJournal(storage, ROOM, 2)):
        assert [header.base_offset for header in each.held(-1)] == [2, 3, 5]
    kept(journal, placed(4, 1, b"other"))
    again = PendingJournal(storage, ROOM, 2)
    assert [header.leader_epoch for header in again.held(3)] == [1, 0]
    journal.forget_below(100)
    assert len(PendingJournal(storage, ROOM, 100)) == 0


def test_files_do_not_grow_for_ever(storage: Storage) -> None:
    """Some batch always waits, and still the files stay short."""
    journal = PendingJournal(storage, ROOM, 0, file_bytes=2_000)
    largest = 0
    for base in range(500):
        kept(journal, placed(base, 0, b"x" * 100))
        journal.forget_below(base - 3)
        if base % 17 == 0:
            journal.drop(base)
        journal.sync()
        largest = max(largest, sum(storage.open(name).size for name in storage.names()))
    assert largest < 6_000
    again = PendingJournal(storage, ROOM, 496, file_bytes=2_000)
    assert [header.base_offset for header in again.held(-1)] == [496, 497, 498, 499]
    journal.forget_below(1_000)
    for base in range(1_000, 1_020):
        kept(journal, placed(base, 0, b"x" * 100))
        journal.forget_below(base + 1)
    assert len(storage.names()) == 1


def test_every_torn_tail_is_cut_exactly() -> None:
    storage = MemoryStorage()
    journal = PendingJournal(storage, ROOM, 0)
    ends = [0]
    for base in range(4):
        kept(journal, placed(base, 0, b"value"))
        ends.append(storage.files["pending-0"].size)
    journal.drop(2)
    data = bytes(storage.files["pending-0"].content)
    for cut in range(len(data)):
        for filler in (b"", bytes(len(data) - cut)):
            torn = MemoryStorage()
            torn.create("pending-0").append(data[:cut] + filler)
            again = PendingJournal(torn, ROOM, 0)
            # a frame whose last bytes were zeros anyway is whole
            least = sum(end <= cut for end in ends[1:])
            assert least <= len(again) <= least + 1
            assert torn.files["pending-0"].size + again.recovery.cut_bytes == cut + len(filler)
            kept(again, placed(9, 0, b"after"))
            assert PendingJournal(torn, ROOM, 0).read(9) == placed(9, 0, b"after")


def test_any_flipped_bit_is_detected() -> None:
    storage = MemoryStorage()
    journal = PendingJournal(storage, ROOM, 0)
    batches = [placed(base, 0, b"value") for base in range(3)]
    for batch in batches:
        kept(journal, batch)
    content = storage.files["pending-0"].content
    size = len(content) // 3
    for bit in range(size * 8, 2 * size * 8):
        content[bit // 8] ^= 1 << bit % 8
        if bit // 8 >= size + 5:  # before stands the frame's own head, which only a start reads
            with pytest.raises(LogDamaged, match="at offset 1 is damaged"):
                journal.read(1)
        copy = MemoryStorage()
        copy.create("pending-0").append(content)
        again = PendingJournal(copy, ROOM, 0)
        assert [header.base_offset for header in again.held(-1)] in ([0], [0, 2])
        assert again.recovery.cut_bytes or again.recovery.damaged[0].base_offset == 1
        content[bit // 8] ^= 1 << bit % 8


def test_a_disk_that_fills_up_keeps_what_was_kept() -> None:
    storage = FaultyStorage()
    journal = PendingJournal(storage, ROOM, 0)
    kept(journal, placed(0, 0, b"v"))
    for room in (0, 3, 40):
        storage.disk.room_bytes = room
        with pytest.raises(StorageError, match="no space left"):
            journal.append(placed(1, 0, b"v"))
    storage.disk.room_bytes = None
    kept(journal, placed(1, 0, b"v"))
    assert len(PendingJournal(storage, ROOM, 0)) == 2
    storage.disk.room_bytes = 0
    storage.disk.truncate_fails = True
    with pytest.raises(StorageError, match="no space left"):
        journal.append(placed(2, 0, b"v"))
    storage.disk.room_bytes = None
    with pytest.raises(StorageError, match="out of use"):
        journal.append(placed(2, 0, b"v"))


@pytest.mark.parametrize("seed", range(80))
def test_what_was_synced_survives_the_power(seed: int) -> None:
    chance = Random(f"pending/{seed}")
    storage = FaultyStorage()
    file_bytes = chance.choice((500, 3_000, 1 << 20))
    known: dict[int, bytes] = {}
    dropped: set[int] = set()
    must: dict[int, bytes] = {}
    must_not: set[int] = set()
    below = number = 0
    for _ in range(5):
        storage.disk.crash_at_step = storage.disk.steps + chance.randint(1, 60)
        with pytest.raises(PowerFailure):  # noqa: PT012
            journal = PendingJournal(storage, ROOM, below, file_bytes=file_bytes)
            found = {
                header.base_offset: journal.read(header.base_offset) for header in journal.held(-1)
            }
            for base, data in must.items():
                assert base < below or base in dropped or found.get(base) == data
            assert not must_not & set(found)
            assert all(known[base] == data for base, data in found.items())
            journal.sync()
            must, must_not, dropped = dict(found), set(), set(must_not)
            live = dict(found)
            while True:
                match chance.choice("aaaadfs"):
                    case "a":
                        number += chance.randint(1, 3)
                        data = bytes(placed(number, 0, b"x" * chance.randint(0, 90)))
                        known[number] = data
                        journal.append(data)
                        live[number] = data
                    case "d" if live:
                        base = chance.choice(sorted(live))
                        dropped.add(base)
                        del live[base]
                        journal.drop(base)
                    case "f" if live:
                        to = chance.choice(sorted(live))
                        below = to
                        live = {base: data for base, data in live.items() if base >= to}
                        journal.forget_below(to)
                    case "s":
                        journal.sync()
                        must, must_not = dict(live), set(dropped)
        storage = storage.after_crash(chance)
