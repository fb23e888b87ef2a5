"""A replica's own lane, its cuts, and copies of other lanes.  [S004:4.3]"""

from random import Random

import pytest
from tests.support.replication_lanes import NOON, Side, batch

from orderwire.broker.log import BesideDamaged, LogDamaged, MemoryStorage, StorageError
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication.lane import STAY_BITS, Lane
from orderwire.broker.replication.lane_copy import LaneCopy
from orderwire.broker.replication.lane_cuts import CUTS, FILE_BYTES_MAX, CutHistory
from orderwire.broker.replication.lane_messages import CutRecord
from orderwire.kernel import NS_PER_MS, NS_PER_S


def test_a_lane_gives_back_what_it_took() -> None:
    lane = Lane(MemoryStorage(), 0, segment_bytes=200)
    lane.begin(0)
    taken = [bytes(batch(f"m{number}")) for number in range(10)]
    places = [lane.append(each) for each in taken]
    assert places == [lane.fresh + sum(map(len, taken[:n])) for n in range(10)]
    assert b"".join(data for _, data in lane.parts(places[0], lane.end)) == b"".join(taken)
    assert lane.parts(places[3], places[5]).__next__() == (places[3], taken[3] + taken[4])
    assert lane.read(places[9], 1000) == (places[9], taken[9])


def test_a_lane_goes_on_behind_whatever_was_ordered() -> None:
    storage = MemoryStorage()
    lane = Lane(storage, 0)
    lane.begin(0)
    end = lane.append(batch("a")) + 70
    again = Lane(storage, 0)
    again.begin(end)
    assert again.fresh == 2 << STAY_BITS
    wiped = Lane(MemoryStorage(), 0)
    wiped.begin((7 << STAY_BITS) + 5)
    assert wiped.append(batch("b")) == 8 << STAY_BITS


@pytest.mark.parametrize("cut", [1, 30, 60, 70])
def test_a_torn_tail_is_cut_off(cut: int) -> None:
    storage = MemoryStorage()
    lane = Lane(storage, 0)
    lane.begin(0)
    lane.append(batch("a"))
    second = lane.append(batch("b" * 10))
    name = f"lane-{lane.fresh:020}"
    del storage.files[name].content[-cut:]
    again = Lane(storage, 0)
    assert again.end == second
    assert again.cut_bytes > 0


def test_a_damaged_batch_goes_with_what_came_behind_it() -> None:
    storage = MemoryStorage()
    lane = Lane(storage, 0, segment_bytes=1)
    lane.begin(0)
    first = lane.append(batch("a"))
    second = lane.append(batch("b"))
    lane.append(batch("c"))
    storage.files[f"lane-{second:020}"].content[-3] ^= 1
    again = Lane(storage, 0)
    assert again.start == first
    assert again.end == second


def test_what_is_ordered_need_not_be_whole() -> None:
    """A power failure may take what the main log has durably."""
    storage = MemoryStorage()
    lane = Lane(storage, 0)
    lane.begin(0)
    lane.append(batch("a"))
    ordered = lane.end
    del storage.files[f"lane-{lane.fresh:020}"].content[5:]
    again = Lane(storage, ordered)
    assert again.cut_bytes == 0
    assert list(again.parts(ordered, ordered + 1000)) == []


def test_what_is_ordered_no_more_is_cut_where_it_is_torn() -> None:
    """The log went back, behind what a power failure took of the lane."""
    storage = MemoryStorage()
    lane = Lane(storage, 0)
    lane.begin(0)
    first = lane.append(batch("a"))
    torn = lane.append(batch("b"))
    ordered = lane.end
    del storage.files[f"lane-{first:020}"].content[-20:]
    again = Lane(storage, ordered)
    again.begin(ordered)
    fresh = again.append(batch("c"))
    again.back_to(first)
    assert again.cut_bytes == len(batch("b")) - 20
    taken = [(first, bytes(batch("a"))), (fresh, bytes(batch("c")))]
    assert list(again.parts(first, again.end)) == taken
    assert again.read(torn, 1000) == taken[1]


@pytest.mark.parametrize("position", [8, 10, 16, 30, 64])
def test_a_batch_that_is_not_what_was_taken_is_damage_wherever_the_bit_is(position: int) -> None:
    """Its length is covered by no checksum."""
    storage = MemoryStorage()
    lane = Lane(storage, 0)
    lane.begin(0)
    first = lane.append(batch("a"))
    lane.append(batch("b"))
    storage.files[f"lane-{first:020}"].content[position] ^= 1
    lane.back_to(first)  # batches of the present stay stay
    with pytest.raises(BesideDamaged):
        list(lane.parts(first, lane.end))
    with pytest.raises(BesideDamaged):
        lane.read(first, 1000)


def test_files_of_committed_batches_go() -> None:
    storage = MemoryStorage()
    lane = Lane(storage, 0, segment_bytes=1)
    lane.begin(0)
    places = [lane.append(batch("a")) for _ in range(5)]
    lane.reclaim(places[3])
    assert [name for name in storage.names() if name.startswith("lane-")] == [
        f"lane-{place:020}" for place in places[3:]
    ]
    assert lane.uncommitted_bytes == 2 * len(batch("a"))


def test_an_append_that_fails_leaves_nothing() -> None:
    storage = FaultyStorage()
    lane = Lane(storage, 0)
    lane.begin(0)
    lane.append(batch("a"))
    end = lane.end
    storage.disk.room_bytes = 10
    with pytest.raises(StorageError):
        lane.append(batch("b"))
    assert lane.end == end
    storage.disk.room_bytes = None
    assert lane.append(batch("c")) == end


def test_a_copy_takes_parts_in_order_and_notices_gaps() -> None:
    copy = LaneCopy(100)
    assert copy.add(100, 100, b"abcd")
    assert not copy.add(110, 110, b"xy")
    assert copy.add(100, 100, b"abcdef")  # sent again, with more
    assert copy.parts(100, 106) == [(100, b"abcd"), (104, b"ef")]
    assert copy.add(106, 1 << STAY_BITS, b"gh")  # nothing lies between two stays
    assert copy.parts(103, (1 << STAY_BITS) + 1) == [
        (103, b"d"),
        (104, b"ef"),
        (1 << STAY_BITS, b"g"),
    ]
    copy.ordered(105)
    assert copy.parts(0, 200) == [(105, b"f")]
    copy.ordered(1 << 50)
    assert copy.end == 1 << 50
    assert copy.size_bytes == 0


def cut(number: int, committed: int | None = None) -> CutRecord:
    return CutRecord(0, number, number, ((0, number),), number if committed is None else committed)


def test_cuts_outlive_a_torn_write_and_those_beyond_the_log_go() -> None:
    storage = MemoryStorage()
    cuts = CutHistory(storage, 0)
    for number in range(1, 6):
        cuts.append(cut(number))
    storage.files[CUTS].content += b"torn"
    again = CutHistory(storage, 4)
    assert again.last == cut(4)
    again.append(cut(7))
    assert CutHistory(storage, 9).last == cut(7)


def test_cuts_are_kept_short_but_for_what_may_be_needed() -> None:
    storage = MemoryStorage()
    cuts = CutHistory(storage, 0)
    for number in range(1, 5000):
        cuts.append(cut(number))
        cuts.safe = cuts.last
        assert len(storage.files[CUTS].content) <= FILE_BYTES_MAX
    assert CutHistory(storage, 5000).last == cut(4999)
    for number in range(5000, 9000):  # nothing more is durable
        cuts.append(cut(number))
    assert CutHistory(storage, 4999).last == cut(4999)


def test_a_log_without_its_cuts_is_damaged() -> None:
    storage = MemoryStorage()
    with pytest.raises(LogDamaged):
        CutHistory(storage, 3)
    CutHistory(storage, 0).reset(cut(5))
    with pytest.raises(LogDamaged):
        CutHistory(storage, 4)


def test_a_power_failure_takes_no_more_than_acks_one() -> None:
    """Every disk loses what was not synced, the lanes with it."""
    side = Side(files=FaultyStorage)
    side.settle(NS_PER_S)
    kept = side.produce(1, batch("kept"))
    side.settle()
    side.unsynced = {0, 1, 2}
    side.produce(2, batch("lost"), acks=1)
    side.settle()
    for who in side.ids:
        side.crash(who)
    side.unsynced = set()
    side.storage = [each.after_crash(Random(3)) for each in side.storage]
    for who in side.ids:
        side.start(who)
    side.settle(NS_PER_S)
    after = side.produce(1, batch("after"))
    side.settle(NS_PER_S)
    assert side.offset(kept) == 0
    texts = side.texts(side.original())
    assert texts[0] == "kept"
    assert texts[side.offset(after)] == "after"
    assert side.now > NOON + NS_PER_MS
