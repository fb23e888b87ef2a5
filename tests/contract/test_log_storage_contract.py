"""Memory, file and faulty storage behave alike, alone and under a log."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from logs import NOW_MS, content, everything, open_log, random_batch

from orderwire.broker.log import DiskStorage, MemoryStorage, PartitionLog, Storage, StorageError
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.wire.batch import place, read_header

MAKERS: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda _: MemoryStorage(),
    "file": DiskStorage,
    "faulty": lambda _: FaultyStorage(),
}


@pytest.fixture(params=sorted(MAKERS))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MAKERS[request.param](tmp_path / "log")


def test_a_file_grows_is_read_and_cut(storage: Storage) -> None:
    file = storage.create("a")
    file.append(b"hello ")
    file.append(memoryview(b"world!"))
    assert file.size == 12
    assert file.read(6, 100) == b"world!"
    assert content(file.part(3, 5)) == b"lo wo"
    buffer = bytearray(20)
    assert file.read_into(2, memoryview(buffer)) == 10
    assert buffer[:10] == b"llo world!"
    file.truncate(5)
    file.append(b"!")
    assert (file.size, file.read(0, 100)) == (6, b"hello!")
    assert file.read(6, 10) == file.read(100, 10) == b""
    file.sync()
    assert storage.open("a").size == 6


def test_names_come_and_go(storage: Storage) -> None:
    kept = storage.create("b")
    kept.append(b"b")
    storage.create("a")
    assert storage.names() == ["a", "b"]
    storage.rename("b", "c")
    storage.remove("a")
    storage.remove("a")
    assert storage.names() == ["c"]
    storage.remove("c")
    assert kept.read(0, 9) == b"b", "open files outlive their names"
    with pytest.raises(StorageError, match=r"cannot open .*c"):
        storage.open("c")
    with pytest.raises(StorageError, match=r"cannot rename .*c"):
        storage.rename("c", "d")
    storage.sync_directory()


def test_whole_files_are_replaced(storage: Storage) -> None:
    assert storage.read_file("meta") is None
    for data in (b"one", b"", b"three"):
        storage.replace_file("meta", data)
        assert storage.read_file("meta") == data
        storage.write_file("other", data)
        assert storage.read_file("other") == data
    assert storage.names() == ["meta", "other"]


def outcome(log: PartitionLog) -> list[object]:
    names = [log.start_offset, log.end_offset, log.size_bytes, log.segment_count]
    return [*names, log.epochs.entries, log.newest_record(), everything(log, 2_000)]


@pytest.mark.parametrize("seed", range(12))
def test_a_log_ends_the_same_on_each(seed: int, tmp_path: Path) -> None:
    outcomes: list[list[object]] = []
    for name, make in MAKERS.items():
        chance = Random(f"log-contract/{seed}")
        storage = make(tmp_path / name)
        config = {"segment_bytes": 3_000, "index_interval_bytes": 700, "retention_bytes": 9_000}
        log = open_log(storage, **config)
        now_ms = NOW_MS
        steps: list[object] = []
        for _ in range(60):
            now_ms += chance.randint(0, 1_000)
            match chance.choice("aaaaaarsmdcouwtn"):
                case "a":
                    epoch = max(log.epochs.latest, 0) + (chance.random() < 0.1)
                    steps.append(log.append(random_batch(chance, now_ms), epoch, now_ms))
                case "r":
                    part = log.read(chance.randint(0, log.end_offset + 1), chance.randint(1, 9_000))
                    steps.append(part if not hasattr(part, "__len__") else content(part))
                case "s":
                    log.sync()
                    steps.append(log.synced_offset)
                case "m":
                    steps.append(log.maintain(now_ms))
                case "d":
                    steps.append(log.delete_records(chance.randint(0, log.end_offset + 1), now_ms))
                case "c":
                    log.close()
                    log = open_log(storage, now_ms, **config)
                    steps.append(log.recovery)
                case "o":
                    log = open_log(storage, now_ms, **config)
                    steps.append(log.recovery)
                case "w":
                    records = random_batch(chance, now_ms)
                    epoch = max(log.epochs.latest, 0) + (chance.random() < 0.1)
                    place(records, 0, read_header(records).batch_length, log.end_offset, epoch)
                    steps.append(log.append_placed(records, now_ms))
                    steps.append(log.copy(log.start_offset, 2_000))
                case "t":
                    to = chance.randint(log.start_offset, log.end_offset)
                    steps.append(log.truncate(to, now_ms))
                case "n" if chance.random() < 0.2:
                    log.reset(log.end_offset + chance.randint(-3, 3) + 3, now_ms)
                case "u":
                    steps.append(log.offset_for_time(chance.randint(NOW_MS, now_ms + 10)))
        outcomes.append([*steps, *outcome(log)])
    assert outcomes[0] == outcomes[1] == outcomes[2]
