"""Rules of replicas with lanes, one at a time.  [S004:4.3]"""

import pytest
from crc32c import crc32c
from tests.support.replication_lanes import Side, batch

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import Appended, MemoryStorage
from orderwire.broker.replication import lane_cuts
from orderwire.broker.replication.effects import MemberRemoved
from orderwire.broker.replication.lane_messages import (
    LaneCollect,
    LaneCut,
    LaneData,
    LaneFenced,
    LaneFetch,
    LaneForward,
)
from orderwire.kernel import NS_PER_MS, NS_PER_S


@pytest.fixture
def side() -> Side:
    side = Side()
    side.settle()
    assert side.original() == 0
    assert all(replica.takes_produce for replica in side.replicas)
    return side


def whole(side: Side) -> list[str]:
    """What every replica has committed; all the same bytes."""
    side.settle()
    logs = [each.log.copy(0, 1 << 20) for each in side.replicas if each is not None]
    assert all(each == logs[0] for each in logs)
    texts = side.texts(side.original())
    for who, replica in enumerate(side.replicas):
        if replica is not None:
            assert side.texts(who) == texts
    return texts


def test_the_order_is_by_broker_and_then_by_place_in_the_lane(side: Side) -> None:
    side.held = {(0, 1), (0, 2)}  # no cut is learned: what follows waits for one round
    side.produce(0, batch("first"), acks=1)
    side.settle()
    tokens = [
        side.produce(2, batch("c1", 2)),
        side.produce(1, batch("b1")),
        side.produce(2, batch("c2")),
        side.produce(0, batch("a1")),
    ]
    side.settle()
    side.held.clear()
    assert whole(side) == ["first", "a1", "b1", "c1", "c1", "c2"]
    assert [side.offset(each) for each in tokens] == [3, 2, 5, 1]


def test_one_round_orders_all_that_came_meanwhile(side: Side) -> None:
    side.produce(1, batch("x"))
    side.settle()
    round_before = side.replicas[0].store.last.round
    side.unsynced = {2}
    side.produce(1, batch("y"))
    side.settle()
    for number in range(20):
        side.produce(number % 3, batch("z"))
        side.settle()
    side.unsynced = set()
    side.settle()
    # What member 1 had sent before, what the others had, and the rest of it.
    assert side.replicas[0].store.last.round <= round_before + 3
    assert len(whole(side)) == 22


@pytest.mark.parametrize("count", [1, 3])
def test_without_flush_a_round_waits_for_nobodys_disk(count: int) -> None:
    side = Side(count, flush=Flush.NONE, min_insync_replicas=1)
    side.unsynced = set(range(count))
    side.settle()
    tokens = [side.produce(who % count, batch(f"m{who}")) for who in range(4)]
    side.settle()
    assert sorted(side.offset(each) for each in tokens) == [0, 1, 2, 3]
    assert all(each.high_watermark == 4 for each in side.replicas)


def test_an_idle_partition_does_nothing(side: Side) -> None:
    side.produce(1, batch("x"))
    side.settle()
    told = len(side.told)
    side.settle(3600 * NS_PER_S)
    assert len(side.told) == told
    assert all(each.next_deadline() is None for each in side.replicas)


def test_rounds_keep_their_distance() -> None:
    side = Side(sync_min_gap_ns=5 * NS_PER_MS)
    side.settle(10 * NS_PER_MS)
    side.produce(0, batch("x"))
    side.settle()
    second = side.produce(0, batch("y"))
    side.settle(4 * NS_PER_MS)
    assert second not in side.answers
    side.settle(1 * NS_PER_MS)
    assert side.offset(second) == 1


def test_acks_one_is_answered_when_its_owner_knows_the_cut_and_acks_all_at_the_commit(
    side: Side,
) -> None:
    side.unsynced = {0, 1, 2}
    one = side.produce(1, batch("one"), acks=1)
    every = side.produce(1, batch("all"), acks=-1)
    side.settle()
    assert side.offset(one) == 0
    assert every not in side.answers
    side.unsynced = {2}
    side.settle()
    assert every not in side.answers
    side.unsynced = set()
    side.settle()
    assert side.offset(every) == 1


def test_acks_one_waits_for_a_cut_that_its_owner_has_not_learned(side: Side) -> None:
    side.held = {(0, 1)}
    one = side.produce(1, batch("one"), acks=1)
    side.settle()
    assert side.replicas[0].log.end_offset == 1
    assert one not in side.answers
    side.held = set()
    side.settle()
    assert side.offset(one) == 0


def test_an_idempotent_batch_is_answered_at_the_commit_whatever_its_acks(side: Side) -> None:
    side.unsynced = {2}
    one = side.produce(1, batch("one", producer=7, sequence=0), acks=1)
    side.settle()
    assert one not in side.answers
    side.unsynced = set()
    side.settle()
    assert side.offset(one) == 0


def test_with_too_few_in_sync_acks_all_is_refused_and_nothing_is_committed() -> None:
    side = Side(round_timeout_ns=100 * NS_PER_MS)
    side.settle()
    side.crash(1)
    side.crash(2)
    one = side.produce(0, batch("one"), acks=1)
    side.settle(NS_PER_S)
    assert side.znodes.isr == (0,)
    assert side.offset(one) == 0
    assert side.error(side.produce(0, batch("all"))) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert side.offset(side.produce(0, batch("two"), acks=1)) == 1
    assert side.replicas[0].high_watermark == 0
    side.start(1)
    side.settle(NS_PER_S)
    assert side.znodes.isr == (0, 1)
    assert side.texts(0) == ["one", "two"]


def test_a_slow_member_leaves_the_in_sync_set_and_comes_back() -> None:
    side = Side(round_timeout_ns=100 * NS_PER_MS)
    side.settle()
    side.unsynced = {2}
    token = side.produce(0, batch("x"))
    side.settle(99 * NS_PER_MS)
    assert token not in side.answers
    side.settle(2 * NS_PER_MS)
    assert side.znodes.isr == (0, 1)
    assert side.offset(token) == 0
    assert not side.replicas[2].takes_produce
    side.unsynced = set()
    side.settle(NS_PER_S)
    assert side.znodes.isr == (0, 1, 2)
    assert side.replicas[2].takes_produce
    assert whole(side) == ["x"]


def test_a_member_whose_link_broke_is_given_up_sooner() -> None:
    side = Side(round_timeout_ns=100 * NS_PER_MS)
    side.settle()
    side.crash(2)
    token = side.produce(0, batch("x"))
    side.settle(11 * NS_PER_MS)
    assert side.offset(token) == 0


def test_what_the_dead_original_may_have_committed_keeps_its_place(side: Side) -> None:
    """Both members are Done with a cut; the original dies before it can say that it commits."""
    side.held = {(1, 0), (2, 0)}
    token = side.produce(0, batch("a"))
    side.settle()
    side.crash(0)
    late = side.produce(1, batch("b"))
    side.held.clear()
    side.settle(NS_PER_S)
    assert token not in side.answers
    assert side.texts(side.original()) == ["a", "b"]
    assert side.offset(late) == 1
    side.start(0)
    side.settle(NS_PER_S)
    assert whole(side) == ["a", "b"]


def test_the_latest_cut_of_any_member_is_adopted(side: Side) -> None:
    """Only member 2 has the cut, and member 1 is elected: the order that was told stays."""
    side.held = {(0, 1), (1, 2), (2, 0)}
    token = side.produce(0, batch("a"), acks=1)
    side.settle()
    assert side.offset(token) == 0
    assert side.replicas[2].log.end_offset == 1
    assert side.replicas[1].log.end_offset == 0
    other = side.produce(1, batch("b"), acks=1)
    side.crash(0)
    side.held.clear()
    side.settle(NS_PER_S)
    assert side.original() == 1
    assert side.texts(1) == ["a", "b"]
    assert side.offset(other) == 1


def test_what_only_the_dead_original_had_ordered_is_ordered_anew(side: Side) -> None:
    """Its own lane is kept when it comes back, and its cut is undone."""
    side.held = {(0, 1), (0, 2)}
    one = side.produce(0, batch("a"), acks=1)
    side.settle()
    assert side.offset(one) == 0  # provisional
    side.crash(0)
    side.held.clear()
    other = side.produce(1, batch("b"))
    side.settle(NS_PER_S)
    assert side.offset(other) == 0
    assert side.texts(1) == ["b"]
    side.start(0)
    side.settle(NS_PER_S)
    assert whole(side) == ["b", "a"]


def test_the_tail_of_a_dead_lane_enters_a_later_cut(side: Side) -> None:
    side.held = {(2, 0), (2, 1)}
    lost = side.produce(2, batch("c"), acks=1)
    side.settle()
    side.crash(2)
    side.held.clear()
    side.produce(0, batch("a"))
    side.settle(NS_PER_S)
    assert lost not in side.answers
    assert whole(side) == ["a"]
    side.start(2)
    side.settle(NS_PER_S)
    assert whole(side) == ["a", "c"]


def test_lower_epochs_are_fenced(side: Side) -> None:
    side.expire(0)
    side.settle(NS_PER_S)
    assert side.znodes.epoch == 1
    replica = side.replicas[2]
    writes = replica.log.end_offset
    cut = LaneCut(0, 9, replica.store.last.stamp, 0, 0, (), replica.store.last.ends, 0, 0)
    effects = replica.receive(1, cut, side.now)
    assert [each.message for each in effects] == [LaneFenced(1)]
    assert replica.receive(1, LaneCollect(0), side.now)[0].message == LaneFenced(1)
    assert replica.log.end_offset == writes


def test_the_known_epoch_outlives_the_process(side: Side) -> None:
    side.expire(0)
    side.settle(NS_PER_S)
    side.crash(2)
    assert side.start(2).known_epoch == 1


def test_an_original_of_an_earlier_life_resigns(side: Side) -> None:
    """Its session is still there when the process is back: it is elected anew, or another."""
    side.crash(0, session=False)
    assert side.znodes.original == 0
    side.start(0)
    side.settle(NS_PER_S)
    assert side.znodes.epoch == 1
    assert side.replicas[side.original()].original.epoch == 1
    assert whole(side) == []


def test_a_batch_of_a_producer_of_another_lane_is_forwarded_there(side: Side) -> None:
    first = side.produce(1, batch("p0", producer=7, sequence=0))
    side.settle()
    second = side.produce(2, batch("p1", producer=7, sequence=1))
    side.settle()
    assert [side.offset(first), side.offset(second)] == [0, 1]
    assert any(
        (source, to) == (2, 1) and isinstance(message, LaneForward)
        for source, to, message in side.told
    )
    assert side.replicas[2].store.lane.pending_bytes(0) == 0


def test_a_forward_whose_link_breaks_is_answered_and_the_retry_is_found(side: Side) -> None:
    side.produce(1, batch("p0", producer=7, sequence=0))
    side.settle()
    side.held = {(1, 2)}
    lost = side.produce(2, batch("p1", producer=7, sequence=1))
    side.settle()
    side.held = set()
    side.disconnect(1, 2)
    assert side.error(lost) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    side.connect(1, 2)
    again = side.produce(2, batch("p1", producer=7, sequence=1))
    side.settle(NS_PER_S)
    assert side.offset(again) == 1
    assert whole(side) == ["p0", "p1"]


@pytest.mark.parametrize("known", [False, True])
def test_a_new_original_waits_for_nobody_whose_process_is_known_to_have_ended(
    side: Side, known: bool
) -> None:
    side.produce(1, batch("p0", producer=7, sequence=0))
    side.settle()
    original = side.znodes.original
    assert original is not None
    side.crash(original, known=known)
    side.settle(10 * NS_PER_MS)
    new = side.znodes.original
    assert new is not None
    token = side.produce(new, batch("p1", producer=7, sequence=1))
    side.settle(10 * NS_PER_MS)
    assert (token in side.answers) is known
    side.settle(NS_PER_S)
    assert side.offset(token) == 1


def test_a_producer_that_nobody_here_knows_is_asked_for_at_the_original(side: Side) -> None:
    side.held = {(0, 2), (1, 2)}  # replica 2 learns of no cut
    side.produce(1, batch("p0", producer=7, sequence=0))
    side.settle()
    second = side.produce(2, batch("p1", producer=7, sequence=1))
    side.settle()
    side.held = set()
    side.settle(NS_PER_S)
    assert side.offset(second) == 1
    assert whole(side) == ["p0", "p1"]


@pytest.mark.parametrize("how", ["forgotten", "another original"])
def test_nobody_waits_behind_a_question_that_is_not_answered(side: Side, how: str) -> None:
    side.held = {(0, 2), (1, 2)}  # replica 2 learns of no cut
    side.produce(1, batch("p0", producer=7, sequence=0))
    side.settle()
    second = side.produce(2, batch("p1", producer=7, sequence=1))
    side.links[2, 0].clear()  # the question is lost: nobody was there for the partition yet
    if how == "forgotten":
        side.replicas[2].forget(second)
    else:
        side.expire(0)
        assert side.error(second) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    side.held = set()
    side.settle(10 * NS_PER_S)
    again = side.produce(2, batch("p1", producer=7, sequence=1))
    side.settle(NS_PER_S)
    assert side.offset(again) == 1
    assert whole(side) == ["p0", "p1"]


def test_a_cut_without_batches_that_needs_no_disk_is_done_all_the_same(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_cuts, "FILE_BYTES_MAX", 0)  # a new file with every cut
    side.produce(1, batch("p0", producer=7, sequence=0))
    side.settle()
    gap = side.produce(1, batch("p2", producer=7, sequence=2))
    side.settle()
    assert side.error(gap) is ErrorCode.NOT_ENOUGH_REPLICAS
    token = side.produce(1, batch("p1", producer=7, sequence=1))
    side.settle()
    assert side.offset(token) == 1
    assert whole(side) == ["p0", "p1"]


def test_an_expired_producer_may_go_on(side: Side) -> None:
    """[S004:10.6]"""
    token = side.produce(2, batch("p9", producer=7, sequence=9))
    side.settle()
    assert side.offset(token) == 0


def test_a_producer_is_rebound_when_its_lane_dies_and_nothing_is_there_twice() -> None:
    side = Side(round_timeout_ns=100 * NS_PER_MS)
    side.settle()
    side.produce(2, batch("p0", producer=7, sequence=0))
    side.settle()
    side.held = {(2, 0), (2, 1)}
    tokens = [side.produce(2, batch(f"p{n}", producer=7, sequence=n)) for n in (1, 2)]
    side.crash(2)
    side.held = set()
    assert not any(token in side.answers for token in tokens)
    side.produce(0, batch("a"))
    side.settle(NS_PER_S)  # the original finds out
    assert side.znodes.isr == (0, 1)
    tokens = [side.produce(1, batch(f"p{n}", producer=7, sequence=n)) for n in range(1, 9)]
    side.settle()
    assert [side.offset(token) for token in tokens] == list(range(2, 10))
    side.start(2)
    side.settle(NS_PER_S)
    assert side.znodes.isr == (0, 1, 2)
    assert whole(side) == ["p0", "a", *(f"p{n}" for n in range(1, 9))]
    assert side.replicas[2].store.lane.pending_bytes(side.replicas[2].store.last.end_of(2)) == 0


def test_one_batch_in_two_lanes_of_one_cut_is_ordered_once(side: Side) -> None:
    side.held = {(0, 1), (0, 2), (1, 2), (2, 1)}
    side.produce(0, batch("first"), acks=1)
    side.settle()
    both = [side.produce(who, batch("p", producer=7, sequence=0)) for who in (2, 1)]
    side.settle()
    side.held.clear()
    side.settle(NS_PER_S)
    assert [side.offset(token) for token in both] == [1, 1]
    assert whole(side) == ["first", "p"]


def test_a_retry_is_answered_with_the_first_offset(side: Side) -> None:
    first = side.produce(1, batch("p", 3, producer=7, sequence=0))
    side.settle()
    again = side.produce(1, batch("p", 3, producer=7, sequence=0))
    assert side.answers[again] == Appended(0, 2, duplicate=True)
    assert side.offset(first) == 0


def test_a_gap_is_answered_so_that_the_client_tries_again(side: Side) -> None:
    side.produce(1, batch("p0", producer=7, sequence=0))
    side.settle()
    gap = side.produce(1, batch("p2", producer=7, sequence=2))
    side.settle()
    assert side.error(gap) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert whole(side) == ["p0"]


def test_a_fenced_producer_hears_it(side: Side) -> None:
    records = batch("new", producer=7, sequence=0)
    records[51:53] = (1).to_bytes(2, "big")  # the producer's epoch
    records[17:21] = crc32c(records[21:]).to_bytes(4, "big")
    side.produce(1, records)
    side.settle()
    old = side.produce(1, batch("old", producer=7, sequence=1))
    assert side.error(old) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_request_that_leaves_no_room_is_refused() -> None:
    side = Side(pending_bytes_max=300)
    side.settle()
    side.held = {(0, 1), (0, 2)}
    side.produce(0, batch("x" * 200), acks=1)
    assert side.error(side.produce(0, batch("x" * 200), acks=1)) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_message_carries_whole_requests_of_a_bounded_size() -> None:
    side = Side(message_bytes_max=400)
    side.settle()
    side.unsynced = {2}
    side.produce(1, batch("x"))
    side.settle()
    for _ in range(20):
        side.produce(1, batch("y" * 80) + batch("z" * 80))
    side.unsynced = set()
    side.settle(NS_PER_S)
    assert len(whole(side)) == 41
    sizes = [len(message.data) for *_, message in side.told if isinstance(message, LaneData)]
    assert max(sizes) <= 400
    assert len(sizes) > 20


def test_a_replica_far_behind_copies_the_log(side: Side) -> None:
    side.crash(2)
    for _ in range(10):
        side.produce(1, batch("x" * 50))
        side.settle(NS_PER_S)
    side.start(2)
    side.settle(NS_PER_S)
    assert any(isinstance(message, LaneFetch) for *_, message in side.told)
    assert len(whole(side)) == 10
    assert side.znodes.isr == (0, 1, 2)


def test_what_was_asked_for_twice_is_copied_once() -> None:
    """Over a slow link answers come late: each that is there twice would ask for the next twice."""
    side = Side(message_bytes_max=1)
    side.settle()
    side.crash(2)
    for _ in range(20):
        side.produce(1, batch("x" * 50))
        side.settle(NS_PER_S)
    late = {(side.original(), 2)}
    side.held = late
    side.start(2)
    side.held = late
    asked = 0
    while asked < 5:
        side.settle(NS_PER_S)
        asked = sum(isinstance(message, LaneFetch) for *_, message in side.told)
    side.held = set()
    side.settle(NS_PER_S)
    assert len(whole(side)) == 20
    assert side.znodes.isr == (0, 1, 2)
    total = sum(isinstance(message, LaneFetch) for *_, message in side.told)
    assert total <= asked + 20


def test_a_replica_behind_the_start_of_the_log_begins_there(side: Side) -> None:
    side.produce(1, batch("x", 4))
    side.settle()
    side.crash(2)
    side.produce(1, batch("y", 4))
    side.produce(1, batch("z", 4))
    side.settle(NS_PER_S)
    original = side.replicas[side.original()]
    original.log.delete_records(9, side.now // NS_PER_MS, original.high_watermark)  # inside z
    side.start(2)
    side.produce(1, batch("w"))
    side.settle(NS_PER_S)
    assert side.znodes.isr == (0, 1, 2)
    assert all(each.log.start_offset == 9 for each in side.replicas)
    assert side.texts(2)[-1] == "w"


def test_where_the_log_begins_is_told_at_once(side: Side) -> None:
    for text in "xyz":
        side.produce(1, batch(text))
    side.settle()
    who = side.original()
    original = side.replicas[who]
    rounds = original.original.round
    original.log.delete_records(2, side.now // NS_PER_MS, original.high_watermark)
    side._do(who, original.start_moved(side.now))
    side.settle()
    assert [each.log.start_offset for each in side.replicas] == [2, 2, 2]
    assert original.original.round == rounds, "no round is needed for that"


def test_the_lane_takes_no_more_room_than_what_is_not_committed(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    for replica in side.replicas:
        monkeypatch.setattr(replica.store.lane, "_segment_bytes", 500)
    for _ in range(50):
        side.produce(1, batch("x" * 100))
        side.settle()
    files = [name for name in side.storage[1].names() if name.startswith("lane-")]
    assert len([name for name in files if name != "lane-cuts"]) <= 2
    side.crash(1)
    side.start(1)
    side.settle(NS_PER_S)
    assert len(whole(side)) == 50


def test_nobody_answers_twice_and_a_forgotten_request_not_at_all(side: Side) -> None:
    side.unsynced = {2}
    token = side.produce(1, batch("x"))
    side.replicas[1].forget(token)
    side.unsynced = set()
    assert whole(side) == ["x"]
    assert token not in side.answers


def test_a_single_replica_orders_alone() -> None:
    side = Side(1, min_insync_replicas=1)
    side.settle()
    assert side.offset(side.produce(0, batch("x"), acks=1)) == 0
    token = side.produce(0, batch("y"))
    side.settle()
    assert side.offset(token) == 1
    side.crash(0)
    side.start(0)
    side.settle(NS_PER_S)
    assert side.texts(0) == ["x", "y"]


def test_a_member_that_lost_its_disk_leaves_the_in_sync_set_and_copies(side: Side) -> None:
    """[S004:9.10]"""
    side.produce(1, batch("x"))
    side.settle()
    side.crash(2)
    side.storage[2] = MemoryStorage()
    side.start(2)
    side.settle(3 * NS_PER_S)
    removed = [note for _, note in side.notes if isinstance(note, MemberRemoved)]
    assert [each.member for each in removed] == [2]
    side.produce(2, batch("y"))
    assert whole(side) == ["x", "y"]
    assert side.znodes.isr == (0, 1, 2)


def test_a_replica_that_lost_its_disk_is_not_elected_and_takes_anothers_log(side: Side) -> None:
    side.produce(1, batch("x"))
    side.settle()
    for who in side.ids:
        side.crash(who)
    side.storage[2] = MemoryStorage()
    for _ in range(2):
        side.start(2)
        side.settle(30 * NS_PER_S)
        assert side.znodes.original is None
        assert side.znodes.isr == (0, 1, 2)
        side.crash(2)
    side.start(2)
    side.start(0)
    side.start(1)
    side.settle(NS_PER_S)
    token = side.produce(2, batch("y"))
    assert whole(side) == ["x", "y"]
    assert side.offset(token) == 1


def test_flush_by_message_syncs_the_lane_before_anything_is_said() -> None:
    side = Side(flush=Flush.MESSAGE)
    side.settle()
    for storage in side.storage:
        storage.syncs.clear()
    for text in ("a", "b"):
        side.produce(1, batch(text), acks=1)
    assert [len(storage.syncs) for storage in side.storage] == [0, 2, 0]
    assert all(name.startswith("lane-") for name in side.storage[1].syncs)
