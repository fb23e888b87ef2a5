"""What a replica must not forget, and batches that the others committed without."""

from random import Random

import pytest
from logs import placed

from orderwire.broker.log import LogDamaged, MemoryStorage
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.orphans import Orphans


@pytest.mark.paper("S004:R2")
def test_epoch_and_s_are_notes_that_outlive_the_process_and_never_run_ahead() -> None:
    storage = FaultyStorage()
    kept = Kept(storage)
    assert (kept.known_epoch, kept.high_watermark) == (-1, 0)
    for epoch in (0, 3):
        kept.raise_epoch(epoch)
        kept.note_high_watermark(10 * epoch)
        again = Kept(storage)
        assert (again.known_epoch, again.high_watermark) == (epoch, 10 * epoch)
    hints = set()
    for seed in range(20):
        kept.note_high_watermark(40 + seed)
        storage = storage.after_crash(Random(seed))
        kept = Kept(storage)
        assert kept.known_epoch in (-1, 3)
        assert kept.high_watermark in (0, 40 + seed)
        if kept.known_epoch < 3:
            kept.raise_epoch(3)
        hints.add(kept.high_watermark)
    assert 0 in hints
    with pytest.raises(AssertionError):
        kept.raise_epoch(3)


def test_a_damaged_promise_is_told() -> None:
    storage = MemoryStorage()
    Kept(storage).settle()
    storage.files["replica"].content[-1] ^= 1
    with pytest.raises(LogDamaged, match="replica fails its checksum"):
        Kept(storage)


@pytest.mark.paper("S004:R8")
def test_orphans_wait_until_they_are_taken_off() -> None:
    storage = FaultyStorage()
    orphans = Orphans(storage)
    batches = [placed(base, 2, b"%d" % base) for base in (7, 3, 9)]
    for batch in batches:
        assert orphans.set_aside(batch)
        assert not orphans.set_aside(batch), "once is enough"
    assert orphans.set_aside(placed(7, 2, b"another")), "the same offset, not the same batch"
    orphans.sync()
    storage = storage.after_crash(Random(1))
    orphans = Orphans(storage)
    assert [header.base_offset for _, header in orphans.waiting()] == [7, 3, 9, 7]
    assert [orphans.read(where) for where, _ in orphans.waiting()[:3]] == batches
    assert orphans.kept_bytes == sum(map(len, batches)) + len(placed(7, 2, b"another"))
    where, header = orphans.waiting()[1]
    orphans.take_off(where, header)
    assert (len(orphans), orphans.found, orphans.settled) == (3, 0, 1)
    orphans.sync()
    orphans = Orphans(storage.after_crash(Random(2)))
    assert [header.base_offset for _, header in orphans.waiting()] == [7, 9, 7]
    assert orphans.set_aside(batches[1]), "it may come again later"
