"""Active-standby, rule by rule."""

from random import Random

import msgspec
import pytest
from logs import batch
from standby_group import Group, running

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import Appended, LogConfig, LogDamaged, Refused
from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication.active_standby_messages import (
    Fenced,
    Follow,
    Here,
    Lead,
    Position,
    Records,
)
from orderwire.broker.replication.active_standby_term import FLIGHTS_MAX, common_end
from orderwire.broker.replication.effects import (
    ChangeIsr,
    Deposed,
    Elect,
    Elected,
    MemberJoined,
    MemberRemoved,
    Resign,
    Truncated,
)
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.kernel import NS_PER_MS, NS_PER_S
from orderwire.kernel.errors import RemoteProtocolError

SECONDS = NS_PER_S
TIMEOUT = ReplicationSettings().round_timeout_ns
GRACE = ReplicationSettings().link_grace_ns


def refusal(group: Group, token: int) -> ErrorCode:
    result = group.answers[token]
    assert isinstance(result, Refused), result
    return result.error


@pytest.mark.paper("S004:4.8")
def test_the_original_appends_the_others_follow_and_s_is_the_least_end() -> None:
    group = running()
    one = group.send(0, b"a", b"b")
    assert one not in group.answers
    group.talk([0, 1])
    assert (one in group.answers, group.high(0)) == (False, 0)
    group.talk()
    assert group.answers[one] == Appended(0, 1)
    assert [group.values(each) for each in group.ids] == [[b"a", b"b"]] * 3
    assert [group.high(each) for each in group.ids] == [2] * 3
    assert [replica.assigned_end for replica in group.replicas.values()] == [2] * 3


def test_acks_one_waits_for_nobody_else() -> None:
    group = running()
    token = group.send(0, b"a", acks=1)
    assert group.answers[token] == Appended(0, 0)
    assert group.high(0) == 0


@pytest.mark.parametrize("flush", [Flush.GROUP, Flush.MESSAGE])
def test_what_counts_is_on_disk(flush: Flush) -> None:
    group = running(flush=flush)
    all_of_them, one = group.send(0, b"a"), group.send(0, b"b", acks=1)
    assert (one in group.answers) == (flush is Flush.MESSAGE)
    group.talk(sync=False)
    if flush is Flush.GROUP:
        assert group.high(0) == 0
        group.sync(0)
        assert one in group.answers
        group.sync(1)
        group.talk(sync=False)
        assert group.high(0) == 0
        group.sync(2)
        group.talk(sync=False)
    assert (all_of_them in group.answers, group.high(0)) == (True, 2)
    for storage in group.storage.values():
        assert isinstance(storage, FaultyStorage)
        log = storage.disk.files[f"{0:020}.log"]
        assert len(log.durable) == log.size


def test_only_the_original_takes_produce_requests() -> None:
    group = running()
    assert refusal(group, group.send(1, b"a")) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [replica.takes_produce for replica in group.replicas.values()] == [True, False, False]


@pytest.mark.paper("S004:4.4")
def test_too_few_in_sync_refuse_acks_all_and_hold_s() -> None:
    group = running(2, min_insync_replicas=2)
    group.cut(0, 1)
    assert refusal(group, group.send(0, b"a")) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert group.replicas[BrokerId(0)].log.end_offset == 0
    token = group.send(0, b"b", acks=1)
    assert group.answers[token] == Appended(0, 0)
    group.pass_time(10 * TIMEOUT)
    assert group.high(0) == 0
    assert not [each for _, each in group.asked if isinstance(each, ChangeIsr)], (
        "below the minimum S rests, so who is away has all that is committed and stays electable"
    )
    group.link((0, 1))
    group.talk()
    assert group.high(0) == 1


@pytest.mark.paper("S004:R5")
def test_a_member_without_connection_leaves_soon_and_a_slow_one_later() -> None:
    group = running(4, min_insync_replicas=1)
    group.cut(0, 1)
    token = group.send(0, b"a")
    group.talk([0, 3])
    group.pass_time(GRACE - 1)
    assert not group.asked or not isinstance(group.asked[-1][1], ChangeIsr)
    group.pass_time(1)
    assert group.asked[-1] == (0, ChangeIsr((BrokerId(0), BrokerId(2), BrokerId(3)), 0, 0))
    group.shrink(0, 2, 3)
    assert (0, MemberRemoved(0, BrokerId(1), "too late")) in group.notes
    assert group.high(0) == 0
    group.pass_time(TIMEOUT)
    assert group.asked[-1] == (0, ChangeIsr((BrokerId(0), BrokerId(3)), 1, 0))
    group.shrink(0, 3)
    assert group.high(0) == 1
    assert group.answers[token] == Appended(0, 0)


def test_a_member_that_is_asked_out_counts_until_zookeeper_says_so() -> None:
    group = running(3, min_insync_replicas=1)
    group.cut(0, 1)
    group.send(0, b"a")
    group.talk()
    group.pass_time(TIMEOUT)
    assert isinstance(group.asked[-1][1], ChangeIsr)
    assert group.high(0) == 0
    group.shrink(0, 2)
    assert group.high(0) == 1


@pytest.mark.paper("S004:R8")
def test_who_has_caught_up_is_admitted_and_counts_from_when_it_was_asked_for() -> None:
    group = running(3, min_insync_replicas=1)
    group.cut(0, 2)
    group.shrink(0, 1)
    for _ in range(10):
        group.send(0, b"x")
    group.talk()
    assert group.high(0) == 10
    group.asked.clear()
    group.link((0, 2))
    group.talk()
    assert group.asked == [(0, ChangeIsr((BrokerId(0), BrokerId(1), BrokerId(2)), 1, 0))]
    group.send(0, b"y")
    group.talk([0, 1])
    assert group.high(0) == 10, "broker 2 may be in the set by now"
    group.talk()
    assert group.high(0) == 11
    group.shrink(0, 1, 2)
    assert (0, MemberJoined(0, BrokerId(2))) in group.notes


def test_a_member_whose_process_is_known_to_have_ended_leaves_at_once() -> None:
    group = running(3, min_insync_replicas=1)
    group.cut(0, 1)
    group.do(BrokerId(0), group.replicas[BrokerId(0)].ended(BrokerId(1), group.now))
    assert group.asked[-1] == (0, ChangeIsr((BrokerId(0), BrokerId(2)), 0, 0))
    group.shrink(0, 2)
    group.link((0, 1))
    group.talk()
    group.cut(0, 1)
    group.pass_time(GRACE - 1)
    assert group.asked[-1] == (0, ChangeIsr((BrokerId(0), BrokerId(1), BrokerId(2)), 1, 0))


def test_who_has_long_caught_up_is_admitted_when_it_has_been_removed_meanwhile() -> None:
    group = running(3, min_insync_replicas=1)
    group.send(0, b"a")
    group.talk()
    group.cut(0, 2)
    group.pass_time(GRACE)
    assert isinstance(group.asked[-1][1], ChangeIsr)
    group.link((0, 2))
    group.talk()
    group.now = type(group.now)(group.now + 2 * TIMEOUT)
    group.shrink(0, 1)
    assert group.asked[-1] == (0, ChangeIsr(group.ids, 1, 0))


def test_who_is_behind_what_may_be_committed_is_not_admitted() -> None:
    group = running(3, min_insync_replicas=1)
    group.cut(0, 2)
    group.cut(1, 2)
    group.shrink(0, 1)
    group.send(0, b"a")
    group.talk()
    assert group.high(0) == 1
    group.replicas[BrokerId(1)].close()
    group.storage[BrokerId(1)].remove("replica-notes")  # and has forgotten S
    group.restart(1)
    group.link((1, 2))
    group.elect(1, [1, 2])
    group.asked.clear()
    to, back = group.queues[BrokerId(1), BrokerId(2)], group.queues[BrokerId(2), BrokerId(1)]
    while not (to and isinstance(to[0], Records)):
        group.step(*((1, 2) if to else (2, 1)))
    while back:
        group.step(2, 1)
    assert (group.high(1), group.asked) == (0, [])
    group.talk([1, 2])
    assert group.values(2) == [b"a"]
    assert isinstance(group.asked[-1][1], ChangeIsr)


def test_a_replica_that_is_new_follows_and_is_admitted() -> None:
    group = running(3, min_insync_replicas=1)
    group.send(0, b"a")
    group.talk()
    new = BrokerId(3)
    group.ids = (*group.ids, new)
    group.storage[new] = FaultyStorage()
    group.replicas[new] = group.open(new)
    for first in (new, BrokerId(0)):  # a word that comes before the view is no fault
        group.links |= {(first, BrokerId(3 - first))}
        group.do(first, group.replicas[first].connected(BrokerId(3 - first), group.now))
    group.talk()
    assert group.values(new) == []
    wider = msgspec.structs.replace(group.view, replicas=group.ids)
    for each in group.ids:
        group.see(each, wider)
    group.talk()
    assert group.values(new) == [b"a"]
    wish = next(each for _, each in reversed(group.asked) if isinstance(each, ChangeIsr))
    assert wish.isr == (0, 1, 2, 3)


@pytest.mark.paper("S004:R2")
def test_epochs_that_are_over_are_refused_and_end_a_zombie() -> None:
    group = running(3, min_insync_replicas=1)
    group.elect(1, [1, 2])  # broker 0 does not hear of it
    group.step(1, 2)
    waiting = group.send(0, b"zombie")
    group.step(0, 2)
    assert group.queues[BrokerId(2), BrokerId(0)][-1] == Fenced(1)
    assert group.values(2) == []
    group.talk([0, 2])
    assert refusal(group, waiting) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert not group.replicas[BrokerId(0)].takes_produce
    group.restart(2)
    assert group.replicas[BrokerId(2)].status()["epoch"] == 1, "the promise is durable"
    group.link((0, 2))
    group.do(BrokerId(2), group.replicas[BrokerId(2)].receive(BrokerId(0), Lead(0, 99), group.now))
    assert group.queues[BrokerId(2), BrokerId(0)][-1] == Fenced(1)


def test_the_end_of_the_session_ends_the_term_at_once() -> None:
    group = running()
    waiting = group.send(0, b"a")
    group.do(BrokerId(0), group.replicas[BrokerId(0)].session_lost(group.now))
    assert refusal(group, waiting) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert isinstance(group.notes[-1][1], Deposed)
    assert refusal(group, group.send(0, b"b")) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    group.see(0, group.view)
    assert group.asked[-1] == (0, Resign(0)), "the znode is of a session that is over"


@pytest.mark.paper("S004:R7")
def test_the_new_original_has_all_that_is_committed_and_others_cut_the_rest() -> None:
    group = running(3, min_insync_replicas=1)
    group.send(0, b"a")
    group.talk()
    group.send(0, b"only 0 and 2", acks=1)
    group.step(0, 2)
    group.cut(0, 1)
    group.cut(0, 2)
    group.send(0, b"only 0", acks=1)
    group.elect(1, [1, 2])
    group.talk([1, 2])
    assert group.values(2) == [b"a"]
    assert (2, Truncated(2, 1)) in group.notes
    group.shrink(1, 2, seen_by=[1, 2])
    token = group.send(1, b"b")
    group.talk([1, 2])
    assert group.answers[token] == Appended(1, 1)
    group.see(0, group.view)
    group.link((0, 1), (0, 2))
    group.talk()
    assert [group.values(each) for each in group.ids] == [[b"a", b"b"]] * 3
    assert [replica.log.epochs.entries for replica in group.replicas.values()] == [
        [(0, 0), (1, 1)]
    ] * 3


def test_a_tail_that_only_the_new_original_has_becomes_committed() -> None:
    group = running(2, min_insync_replicas=1)
    group.send(0, b"a", acks=1)
    group.cut(0, 1)
    group.do(BrokerId(0), group.replicas[BrokerId(0)].session_lost(group.now))
    group.elect(0)
    group.link()
    group.talk()
    assert (group.values(1), group.high(0), group.high(1)) == ([b"a"], 1, 1)


def test_logs_part_where_their_newest_common_epoch_ends() -> None:
    mine = EpochHistory([(0, 0), (2, 10), (5, 20)])
    cases: list[tuple[list[tuple[int, int]], int, int | None]] = [
        ([(0, 0), (2, 10), (5, 20)], 25, 25),
        ([(0, 0), (2, 10), (5, 20)], 40, 30),
        ([(0, 0), (2, 10)], 15, 15),
        ([(0, 0), (2, 10)], 28, 20),
        ([(0, 0), (2, 10), (3, 18)], 22, 18),
        ([(0, 0), (1, 8), (3, 12)], 22, 8),
        ([(0, 0), (4, 15)], 18, 10),
        ([(1, 0)], 5, None),
        ([(6, 0)], 5, None),
    ]
    for theirs, end, expected in cases:
        assert common_end(mine, 30, theirs, end, empty=False) == expected, theirs
    assert common_end(mine, 30, [], 12, empty=True) == 12


def test_a_follower_behind_the_start_begins_anew_and_retention_is_followed() -> None:
    group = running(3, min_insync_replicas=1, log=LogConfig(segment_bytes=200))
    group.send(0, b"old" * 20)
    group.talk()
    group.cut(0, 2)
    group.shrink(0, 1)
    for _ in range(10):
        group.send(0, b"x" * 60)
        group.talk([0, 1])
    log = group.replicas[BrokerId(0)].log
    log.delete_records(6, group.now // NS_PER_MS, group.high(0))
    group.send(0, b"y")
    group.talk([0, 1])
    assert group.replicas[BrokerId(1)].log.start_offset == 6
    log.delete_records(8, group.now // NS_PER_MS, group.high(0))
    group.do(BrokerId(0), group.replicas[BrokerId(0)].start_moved(group.now))
    group.talk([0, 1])
    assert group.replicas[BrokerId(1)].log.start_offset == 8, "nothing new, but a new start"
    group.link((0, 2))
    group.talk()
    behind = group.replicas[BrokerId(2)]
    assert (behind.log.start_offset, behind.log.end_offset) == (8, 12)
    assert (behind.high_watermark, group.values(2)) == (12, group.values(0))


def test_a_start_inside_a_batch_is_followed_too() -> None:
    group = running(3, min_insync_replicas=1)
    group.cut(0, 2)
    group.shrink(0, 1)
    for _ in range(3):
        group.send(0, b"a", b"b", b"c")
    group.talk([0, 1])
    log = group.replicas[BrokerId(0)].log
    log.delete_records(4, group.now // NS_PER_MS, group.high(0))
    assert log.first_base == 3
    group.link((0, 2))
    group.talk()
    behind = group.replicas[BrokerId(2)]
    assert (behind.log.start_offset, behind.log.end_offset, behind.high_watermark) == (4, 9, 9)
    assert group.values(2) == group.values(0) == [b"b", b"c", b"a", b"b", b"c"]


@pytest.mark.parametrize("count", [1, 3])
def test_retries_are_recognised_and_after_a_failover_too(count: int) -> None:
    group = running(3, min_insync_replicas=1)
    for sequence in range(count):
        group.send(0, b"v", producer=(7, 0, sequence))
    again = group.send(0, b"v", producer=(7, 0, count - 1))
    assert again not in group.answers, "the first attempt is not committed either"
    group.talk()
    assert group.answers[again] == Appended(count - 1, count - 1, duplicate=True)
    group.elect(1)
    group.talk()
    late = group.send(1, b"v", producer=(7, 0, count - 1))
    group.talk()
    assert group.answers[late] == Appended(count - 1, count - 1, duplicate=True)
    following = group.send(1, b"w", producer=(7, 0, count))
    group.talk()
    assert group.answers[following] == Appended(count, count)
    gap = group.send(1, b"x", producer=(7, 0, count + 5))
    assert refusal(group, gap) is ErrorCode.NOT_ENOUGH_REPLICAS, "what comes before may come yet"


def test_few_messages_are_on_their_way_and_what_waits_goes_together() -> None:
    group = running(2, min_insync_replicas=1)
    for _ in range(20):
        group.send(0, b"x")
    queue = group.queues[BrokerId(0), BrokerId(1)]
    assert len(queue) == FLIGHTS_MAX
    group.step(0, 1)
    group.step(1, 0)
    assert len(queue) == FLIGHTS_MAX
    together = queue[-1]
    assert isinstance(together, Records)
    assert len(together.records) == (20 - FLIGHTS_MAX) * len(batch(b"x"))
    group.talk()
    assert (len(group.values(1)), group.high(1)) == (20, 20)


def test_messages_to_who_is_behind_are_bounded() -> None:
    group = running(2, min_insync_replicas=1, message_bytes_max=200)
    group.cut(0, 1)
    for _ in range(30):
        group.send(0, b"x" * 20, acks=1)
    group.send(0, b"x" * 1_000, acks=1)
    group.link((0, 1))
    largest = 0
    while any(group.queues.values()):
        for pair, queue in group.queues.items():
            largest = max([largest, *(len(m.records) for m in queue if isinstance(m, Records))])
            if queue:
                group.step(*pair)
    assert 1_000 < largest < 1_200, "one batch that is larger goes alone"
    assert group.values(1) == group.values(0)


def test_questions_that_were_asked_again_have_one_answer() -> None:
    """The peer may open its replica after we were connected, and say so: we ask again."""
    group = running(2)
    group.send(0, b"a")
    group.talk()
    for _ in range(2):
        group.queues[BrokerId(1), BrokerId(0)].append(Here(0))
    group.send(0, b"b")
    group.talk()
    assert group.values(1) == [b"a", b"b"]
    assert group.high(1) == 2


def test_what_does_not_fit_is_the_peers_fault() -> None:
    group = running(2)
    replica = group.replicas[BrokerId(1)]
    attempt = replica._following.attempt
    torn = bytes(batch(b"v"))[:-1]
    for offset, records in ((0, torn), (5, bytes(batch(b"v", producer=(1, 0, 0))))):
        message = Records(0, attempt, offset, 0, 0, 9, records)
        if offset:
            message = Records(0, attempt, offset, 0, 0, 9, records[:8] + b"\xff" * 4 + records[12:])
        with pytest.raises(RemoteProtocolError, match="refused"):
            replica.receive(BrokerId(0), message, group.now)
    with pytest.raises(RemoteProtocolError, match="our own epoch"):
        group.replicas[BrokerId(0)].receive(BrokerId(1), Lead(0, 1), group.now)
    with pytest.raises(RemoteProtocolError, match="no replica"):
        group.replicas[BrokerId(0)].receive(BrokerId(9), Position(0, 1, 0, 0, 0, []), group.now)
    assert replica.receive(BrokerId(0), Follow(0, attempt + 1, 0, False), group.now) == []


def test_waiting_requests_are_limited_and_may_be_forgotten() -> None:
    group = running(2, waiting_requests_max=2)
    first, _ = group.send(0, b"a"), group.send(0, b"b")
    assert refusal(group, group.send(0, b"c")) is ErrorCode.NOT_ENOUGH_REPLICAS
    group.replicas[BrokerId(0)].forget(first)
    group.send(0, b"d")
    group.talk()
    assert first not in group.answers
    assert group.values(1) == [b"a", b"b", b"d"]


def test_s_is_noted_and_never_beyond_the_log() -> None:
    group = running(3, flush=Flush.GROUP)
    group.send(0, b"a")
    group.talk()
    group.now = type(group.now)(group.now + 6 * SECONDS)
    group.send(0, b"b")
    group.talk()
    group.restart(1)
    assert group.high(1) == 2
    storage = group.storage[BrokerId(1)]
    assert isinstance(storage, FaultyStorage)
    for name in (f"{0:020}.log", "checkpoint"):
        storage.remove(name)
    group.restart(1)
    assert group.high(1) == group.replicas[BrokerId(1)].log.end_offset == 0


def test_who_may_have_lost_its_end_contends_last() -> None:
    group = running(2, flush=Flush.NONE)
    group.send(0, b"a")
    group.talk()
    group.asked.clear()
    nobody = PartitionView(0, None, group.ids, 0, group.ids)
    group.restart(1)
    group.see(1, nobody)
    assert group.asked == []
    group.see(0, nobody)
    assert group.asked == [(0, Elect(0))]
    group.pass_time(TIMEOUT)
    assert group.asked[1:] == [(1, Elect(0))]


def test_a_member_that_has_lost_what_is_committed_goes_whatever_the_minimum() -> None:
    group = running(2, flush=Flush.NONE, min_insync_replicas=2)
    group.send(0, b"a")
    group.talk()
    storage = group.storage[BrokerId(1)]
    assert isinstance(storage, FaultyStorage)
    group.storage[BrokerId(1)] = FaultyStorage()  # the power went, and with it the page cache
    group.restart(1)
    group.asked.clear()
    group.link((0, 1))
    group.see(1, group.view)
    group.step(1, 0)
    group.step(0, 1, 2)
    group.step(1, 0)
    assert group.asked == [(0, ChangeIsr((BrokerId(0),), 0, 0))]


def test_a_closed_replica_opens_where_it_was() -> None:
    group = running(3, flush=Flush.GROUP)
    group.send(0, b"a", b"b")
    group.talk()
    for each in group.ids:
        group.replicas[each].close()
    again = Group(3, flush=Flush.GROUP)
    again.storage = group.storage
    again.replicas = {each: again.open(each) for each in again.ids}
    assert [again.high(each) for each in again.ids] == [2] * 3
    assert again.replicas[BrokerId(0)].log.recovery.clean
    assert all(replica.status()["epoch"] == 0 for replica in again.replicas.values())


def test_the_status_tells_the_lag() -> None:
    group = running(3, flush=Flush.GROUP)
    group.send(0, b"a")
    group.talk([0, 1])
    status = group.replicas[BrokerId(0)].status()
    assert status["lag"] == {1: 0, 2: 1}
    assert (status["role"], status["epoch"], status["sync_start"]) == ("original", 0, -1)
    assert (0, Elected(0)) in group.notes


def test_damage_at_the_original_is_not_sent_on() -> None:
    group = running(2, min_insync_replicas=1)
    group.cut(0, 1)
    group.send(0, b"value", acks=1)
    storage = group.storage[BrokerId(0)]
    assert isinstance(storage, FaultyStorage)
    storage.disk.files[f"{0:020}.log"].content[-1] ^= 1
    group.link((0, 1))
    with pytest.raises(LogDamaged, match="offset 0 is damaged"):
        group.talk()


def test_the_disk_may_fail_while_others_wait() -> None:
    """A power failure of one member: what it acknowledged is there."""
    group = running(3, flush=Flush.GROUP, min_insync_replicas=2)
    for number in range(5):
        group.send(0, b"%d" % number)
        group.talk(sync=number % 2 == 0)
    storage = group.storage[BrokerId(1)]
    assert isinstance(storage, FaultyStorage)
    group.storage[BrokerId(1)] = storage.after_crash(Random(1))
    high = group.high(0)
    group.restart(1)
    assert group.replicas[BrokerId(1)].log.end_offset >= high


@pytest.mark.paper("S004:R7")
def test_a_replica_that_lost_its_disk_does_not_contend_before_it_has_all() -> None:
    group = running(3)
    group.send(0, b"a")
    group.talk()
    for each in group.ids:
        group.replicas[each].close()
        group.restart(each)
    group.storage[BrokerId(2)] = FaultyStorage()
    group.view = PartitionView(0, None, group.ids, 0, group.ids)

    def contenders() -> list[int]:
        group.asked.clear()
        for each in group.ids:
            group.see(each, group.view)
        group.pass_time(60 * NS_PER_S)
        return sorted({who for who, what in group.asked if isinstance(what, Elect)})

    for _ in range(2):
        group.restart(2)
        assert contenders() == [0, 1]
    group.elect(1)
    group.link()
    group.talk()
    assert group.values(2) == [b"a"]
    group.restart(2)
    group.view = PartitionView(1, None, group.ids, 0, group.ids)
    assert 2 in contenders()
