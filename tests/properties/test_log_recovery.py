"""After any crash: everything durable is there, nothing else is served, the rest is in order."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from logs import NOW_MS, batch, everything, open_log, random_batch

from orderwire.broker.log import DiskStorage, LogDamaged, MemoryStorage, PartitionLog, StorageError
from orderwire.broker.log.faulty import FaultyStorage, PowerFailure
from orderwire.broker.log.memory import MemoryFile

ACTIVE = "00000000000000000000.log"


def filled(
    count: int, seed: str
) -> tuple[MemoryStorage, list[int], list[tuple[int, bytes | None]]]:
    """A log of one segment: its storage, the batches' end positions, its records."""
    chance = Random(seed)
    storage = MemoryStorage()
    log = open_log(storage, index_interval_bytes=300)
    ends = [0]
    for index in range(count):
        log.append(random_batch(chance), index // 7, NOW_MS)
        ends.append(log.size_bytes)
    return storage, ends, everything(log)


def with_tail(storage: MemoryStorage, tail: bytes | bytearray) -> MemoryStorage:
    copy = MemoryStorage()
    for name, file in storage.files.items():
        copy.replace_file(name, bytes(file.content))
    copy.files[ACTIVE] = MemoryFile()
    copy.files[ACTIVE].append(tail)
    return copy


def check_recovered(
    log: PartitionLog, whole: list[tuple[int, bytes | None]], good: int, ends: list[int]
) -> None:
    """The log holds exactly the batches that end at or before `good`, and can be appended to."""
    kept = max(end for end in ends if end <= good)
    assert log.size_bytes == kept
    assert everything(log) == whole[: log.end_offset]
    log.append(batch(b"after"), 99, NOW_MS)
    assert everything(log)[-1] == (log.end_offset - 1, b"after")


def test_every_torn_tail_is_cut_exactly() -> None:
    """Cuts in the last batches at every byte; before, at every batch's end and around it."""
    storage, ends, whole = filled(40, "torn")
    data = bytes(storage.files[ACTIVE].content)
    cuts = {*range(ends[-3], ends[-1] + 1)}
    cuts |= {end + delta for end in ends for delta in (-1, 0, 1, 12, 60, 61, 62)}
    for cut in sorted(cut for cut in cuts if 0 <= cut <= len(data)):
        log = open_log(with_tail(storage, data[:cut]), index_interval_bytes=300)
        assert log.recovery.cut_bytes == cut - log.size_bytes
        check_recovered(log, whole, cut, ends)


def test_every_zero_filled_tail_is_cut_exactly() -> None:
    storage, ends, whole = filled(40, "zeros")
    data = bytes(storage.files[ACTIVE].content)
    cuts = {*range(ends[-2], ends[-1], 3)} | {end + d for end in ends for d in (0, 8, 20, 61, 70)}
    for cut in sorted(cut for cut in cuts if 0 <= cut < len(data)):
        for length in (len(data), len(data) + 4_096):
            tail = data[:cut] + bytes(length - cut)
            log = open_log(with_tail(storage, tail), index_interval_bytes=300)
            # A batch whose last bytes were zeros anyway is whole.
            good = next(
                (end for end in ends[1:] if end > cut and tail[:end] != data[:end]), ends[-1] + 1
            )
            check_recovered(log, whole, good - 1, ends)


def test_a_hole_of_zeros_in_the_middle_ends_the_log() -> None:
    storage, ends, whole = filled(40, "hole")
    data = bytes(storage.files[ACTIVE].content)
    chance = Random("hole")
    for _ in range(200):
        start = chance.randrange(len(data) - 1)
        stop = min(len(data), start + chance.choice((1, 16, 512, 4_096)))
        broken = data[:start] + bytes(stop - start) + data[stop:]
        first = next((at for at in range(start, stop) if data[at]), None)
        log = open_log(with_tail(storage, broken), index_interval_bytes=300)
        check_recovered(log, whole, len(data) if first is None else first, ends)


@pytest.mark.parametrize("known_history", [True, False])
def test_a_flip_of_any_bit_of_a_header_is_detected(known_history: bool) -> None:
    storage, ends, whole = filled(12, "flips")
    if not known_history:
        storage.remove("epochs")
    data = bytes(storage.files[ACTIVE].content)
    missed: Counter[int] = Counter()
    for start in (ends[3], ends[7], ends[11]):
        for bit in range(61 * 8):
            broken = bytearray(data)
            broken[start + bit // 8] ^= 1 << bit % 8
            log = open_log(with_tail(storage, broken), index_interval_bytes=300)
            if log.size_bytes > start:
                missed[bit // 8] += 1
            else:
                assert everything(log) == whole[: log.end_offset]
    if known_history:
        assert not missed
    else:
        # Without the history, an epoch that grew is noticed only when the next one is smaller.
        assert set(missed) <= {12, 13, 14, 15}


def test_damage_in_what_was_durable_is_told_and_not_cut() -> None:
    storage = MemoryStorage()
    log = open_log(storage, segment_bytes=500)
    for _ in range(20):
        log.append(batch(b"x" * 100), 0, NOW_MS)
    log.sync()
    whole = bytes(storage.files[ACTIVE].content)
    for tail in (whole[:-1], whole[:100], b"", whole + b"x"):
        with pytest.raises(LogDamaged, match="were durable"):
            open_log(with_tail(storage, tail), segment_bytes=500)
    # Without the history of epochs everything is scanned, and a flip shows at once.
    flipped = with_tail(storage, whole)
    flipped.remove("epochs")
    flipped.files[ACTIVE].content[100] ^= 1
    with pytest.raises(LogDamaged, match="was durable"):
        open_log(flipped, segment_bytes=500)


@pytest.mark.parametrize("segment_bytes", [1 << 30, 3_000])
@pytest.mark.parametrize("recovery_bytes", [1, 5_000])
def test_recovery_scans_only_what_is_behind_the_checkpoint(
    segment_bytes: int, recovery_bytes: int
) -> None:
    sizes = {"segment_bytes": segment_bytes, "recovery_bytes": recovery_bytes}
    storage = MemoryStorage()
    log = open_log(storage, index_interval_bytes=300, **sizes)
    for number in range(60):
        values = [b"%d" % number * 40, b"second"]
        log.append(batch(*values, producer=(7, 0, 2 * number)), number // 9, NOW_MS + number)
        if number == 45:
            log.sync()
            durable = log.size_bytes
    whole = everything(log)
    newest = log.newest_record()
    again = open_log(storage, index_interval_bytes=300, **sizes)
    assert again.recovery.reason is None
    assert again.recovery.scanned_bytes == log.size_bytes - durable
    assert everything(again) == whole
    assert again.newest_record() == newest
    for number in range(60):
        assert again.offset_for_time(NOW_MS + number) == log.offset_for_time(NOW_MS + number)
    last = batch(b"59" * 40, b"second", producer=(7, 0, 118))
    retried = again.append(last, again.epochs.latest, NOW_MS)
    assert getattr(retried, "duplicate", False), retried


@pytest.mark.parametrize("seed", range(20))
def test_tails_behind_a_checkpoint_are_cut_exactly(seed: int) -> None:
    chance = Random(f"behind/{seed}")
    storage = MemoryStorage()
    log = open_log(storage, index_interval_bytes=300, recovery_bytes=1)
    ends = [0]
    for number in range(40):
        log.append(random_batch(chance), 0, NOW_MS)
        ends.append(log.size_bytes)
        if number == 29:
            log.sync()
    whole = everything(log)
    data = bytes(storage.files[ACTIVE].content)
    for cut in (ends[30], *(chance.randint(ends[30], ends[-1]) for _ in range(30))):
        recovered = open_log(with_tail(storage, data[:cut]), index_interval_bytes=300)
        check_recovered(recovered, whole, cut, ends)
    broken = bytearray(data)
    broken[chance.randrange(ends[30], ends[31])] ^= 1 << chance.randrange(8)
    check_recovered(
        open_log(with_tail(storage, broken), index_interval_bytes=300), whole, ends[30], ends
    )


def test_a_damaged_checkpoint_only_costs_a_scan() -> None:
    storage = MemoryStorage()
    log = open_log(storage, recovery_bytes=1)
    for _ in range(20):
        log.append(batch(b"x" * 100), 0, NOW_MS)
    log.sync()
    checkpoint = bytes(storage.files["checkpoint"].content)
    for at in range(0, len(checkpoint), 7):
        storage.files["checkpoint"].content[at] ^= 1
        again = open_log(storage, recovery_bytes=1)
        assert again.recovery.scanned_bytes == again.size_bytes == log.size_bytes
        storage.files["checkpoint"].content[at] ^= 1


def run(storage: FaultyStorage, chance: Random, model: "Model") -> None:
    """Append, sync, roll, delete until the power fails."""
    log = open_log(
        storage,
        segment_bytes=model.segment_bytes,
        recovery_bytes=model.recovery_bytes,
        index_interval_bytes=300,
    )
    model.opened(log)
    now_ms = NOW_MS
    while True:
        now_ms += 10
        match chance.choice("aaaaaasdm"):
            case "a":
                values = [chance.randbytes(chance.randint(0, 200)) for _ in range(3)]
                sequence = model.next_sequence
                producer = (7, 0, sequence)
                epoch = max(log.epochs.latest, 0) + (chance.random() < 0.1)
                log.append(batch(*values, producer=producer), epoch, now_ms)
                model.values += values
                model.next_sequence += 3
            case "s":
                log.sync()
                model.synced = log.end_offset
            case "d":
                if chance.random() < 0.2:
                    target = chance.randint(log.start_offset, model.synced)
                    if target >= log.start_offset:
                        log.delete_records(target, now_ms)
                        model.start = log.start_offset
            case "m":
                log.maintain(now_ms)


class Model:
    """What must be there after a crash."""

    def __init__(self, segment_bytes: int, recovery_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.recovery_bytes = recovery_bytes
        self.values: list[bytes] = []
        self.synced = 0
        self.start = 0
        self.next_sequence = 0

    def opened(self, log: PartitionLog) -> None:
        assert self.synced <= log.end_offset <= len(self.values)
        assert log.start_offset >= self.start
        assert everything(log) == list(enumerate(self.values))[log.start_offset : log.end_offset]
        self.values = self.values[: log.end_offset]
        self.next_sequence = log.end_offset
        self.synced = log.end_offset  # what is served after a recovery is durable
        self.start = log.start_offset
        if self.values:
            again = log.append(
                batch(*self.values[-3:], producer=(7, 0, log.end_offset - 3)),
                max(log.epochs.latest, 0),
                NOW_MS,
            )
            assert getattr(again, "duplicate", False), again


@pytest.mark.parametrize("seed", range(60))
def test_after_crashes_everything_synced_is_there_and_nothing_else(seed: int) -> None:
    chance = Random(f"crash/{seed}")
    storage = FaultyStorage()
    model = Model(chance.choice((700, 3_000, 1 << 20)), chance.choice((1, 1_000, 1 << 20)))
    for _ in range(4):
        storage.disk.crash_at_write = storage.disk.writes + chance.randint(1, 60)
        with pytest.raises(PowerFailure):
            run(storage, chance, model)
        if chance.random() < 0.6:
            storage = storage.after_crash(chance)
        else:  # only the process died: the page cache is still there, and still not durable
            storage.disk.crash_at_write = None


@pytest.mark.parametrize("seed", range(20))
def test_a_disk_that_fills_up_and_is_cleared_loses_nothing_acknowledged(seed: int) -> None:
    chance = Random(f"full/{seed}")
    storage = FaultyStorage()
    log = open_log(storage, segment_bytes=2_000)
    values: list[bytes] = []
    for _ in range(100):
        storage.disk.room_bytes = chance.choice((None, None, 0, chance.randint(0, 400)))
        value = chance.randbytes(chance.randint(0, 300))
        try:
            log.append(batch(value), 0, NOW_MS)
        except StorageError:
            continue
        values.append(value)
    storage.disk.room_bytes = None
    assert everything(log) == list(enumerate(values))
    assert everything(open_log(storage, segment_bytes=2_000)) == list(enumerate(values))


def test_recovery_on_disk_cuts_and_syncs(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    log = open_log(storage)
    for _ in range(50):
        log.append(batch(b"x" * 100), 0, NOW_MS)
    file = tmp_path / ACTIVE
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.truncate(size - 1)
    log = open_log(storage)
    assert (log.end_offset, log.recovery.clean) == (49, False)
    assert "cut off" in (log.recovery.reason or "")
    assert file.stat().st_size == size // 50 * 49


def test_a_log_without_its_first_segments_begins_anew_where_it_began() -> None:
    """A power failure kept the name of a later segment only: that is no log that began there."""
    chance = Random("first")
    storage = MemoryStorage()
    log = open_log(storage, segment_bytes=1_000)
    while log.segment_count < 3:
        log.append(random_batch(chance), 0, NOW_MS)
    unsynced = {name: bytes(file.content) for name, file in storage.files.items()}
    storage.remove(ACTIVE)
    again = open_log(storage, segment_bytes=1_000)
    assert (again.start_offset, again.end_offset) == (0, 0)
    assert again.recovery.reason is not None
    assert again.recovery.cut_bytes > 0

    for name, content in unsynced.items():
        storage.replace_file(name, content)
    for closes in (False, True):
        log = open_log(storage, segment_bytes=1_000)
        log.append(batch(b"more"), 0, NOW_MS)
        log.sync()
        if closes:
            log.close()
        first = storage.open(ACTIVE).read(0, 1 << 20)
        storage.remove(ACTIVE)
        with pytest.raises(LogDamaged):
            open_log(storage, segment_bytes=1_000)
        storage.replace_file(ACTIVE, first)
