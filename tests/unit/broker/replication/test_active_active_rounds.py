"""Rounds of an active-active partition, rule by rule.  [R1-R6, R9, R10, G1-G3, G6-G8, G17-G20]"""

import msgspec
from tests.support.replica_group import ReplicaGroup

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.active_active_messages import (
    Closed,
    Commit,
    Copied,
    Done,
    Fenced,
    Pulled,
    RelayAppend,
    RelayRefused,
    RelayStored,
    SyncClose,
    SyncPull,
)
from orderwire.broker.replication.settings import (
    Coordination,
    Distribution,
    HolePolicy,
)
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import read_header
from orderwire.kernel import NS_PER_MS, Instant


def test_r1_offsets_are_consecutive_and_sessions_go_round() -> None:
    group = ReplicaGroup(eager_copy=False)
    for connection in (1, 2, 3, 1):
        group.produce(b"a", b"b", acks=1, connection=connection)
    group.run()
    bases = [group.answers[token].base_offset for token in (1, 2, 3, 4)]  # type: ignore[union-attr]
    assert bases == [0, 2, 4, 6]
    relayed = {
        read_header(message.records).base_offset: (to, read_header(message.records).leader_epoch)
        for _, to, message in group.sent
        if isinstance(message, RelayAppend)
    }
    original = group.original
    assert original == 0
    assert relayed == {2: (1, 0), 4: (2, 0)}, "0 and 6 are the same session's, at the original"


def test_r1_by_request_every_request_goes_to_the_next() -> None:
    group = ReplicaGroup(eager_copy=False, distribution=Distribution.REQUEST)
    for _ in range(6):
        group.produce(acks=1)
    assert [to for _, to, message in group.sent if isinstance(message, RelayAppend)] == [1, 2, 1, 2]


def test_g16_by_request_never_splits_an_idempotent_producer() -> None:
    group = ReplicaGroup(eager_copy=False, distribution=Distribution.REQUEST)
    group.produce(acks=1)  # the original's turn
    for sequence in range(4):
        group.produce(acks=1, producer=(7, 0, sequence))
    assert {to for _, to, message in group.sent if isinstance(message, RelayAppend)} == {1}


def test_r2_a_lower_epoch_is_fenced_and_a_higher_one_noted_first() -> None:
    group = ReplicaGroup()
    late = RelayAppend(0, 0, True, bytes(_placed(group, 0)))
    group.crash(0)
    group.pass_time(1000)
    assert group.at(1).files.known_epoch == 1
    before = group.at(1).files.end
    effects = group.at(1).receive(group.ids[2], late, group.now)
    assert effects == [asked.Tell(group.ids[2], Fenced(1))]
    assert group.at(1).files.end == before


def test_r2_a_new_epoch_voids_the_promise() -> None:
    group = ReplicaGroup()
    group.produce()
    group.run()
    assert group.at(1).member.closed == 1
    group.at(1).receive(group.ids[2], Fenced(9), group.now)
    assert group.at(1).member.closed is None
    assert group.at(1).files.known_epoch == 9


def test_r3_g1_nothing_below_a_closed_round_is_stored() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.produce(acks=1, connection=1)
    token = group.produce(acks=1, connection=2)
    relay = group.queues[group.ids[0], group.ids[1]].popleft()
    assert isinstance(relay, RelayAppend)
    group.produce(connection=1)
    group.run()  # the close overtakes it, as over ZooKeeper it may
    effects = group.at(1).receive(group.ids[0], relay, group.now)
    assert [each.message for each in effects if isinstance(each, asked.Tell)] == [
        RelayRefused(0, 1, 0, "offset 1 lies below 3, where a round has closed")
    ]
    assert isinstance(group.answers[token], Refused)
    assert group.seals(0) == group.seals(1) == group.seals(2) == [(1, 1)]


def test_g16_after_a_refusal_everything_on_its_way_is_refused() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.produce(acks=1, connection=1)  # to the original
    member = group.at(1).member
    member.closed = 2
    group.produce(acks=1, connection=2)  # offset 1: refused
    group.produce(acks=1, connection=2)  # offset 2: would be stored, out of order
    for _ in range(2):
        group.deliver(0, 1)
    assert [each.base for each in group.said(RelayRefused)] == [1, 2]
    group.held.clear()
    group.run()
    group.pass_time(5)
    group.produce(acks=1, connection=2)
    group.run()
    assert group.said(RelayRefused, 1) == group.said(RelayRefused)[:2], "a new stream begins"


def test_r4_g7_holes_are_sealed_by_all_alike() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.produce(acks=1, connection=1)
    lost = group.produce(b"a", b"b", acks=1, connection=2)
    group.crash(1)
    kept = group.produce(acks=-1, connection=1)
    group.run()
    group.pass_time(1000)
    assert group.seals(0) == group.seals(2) == [(1, 2)]
    assert group.log(0) == group.log(2)
    refused = group.answers[lost]
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert group.answers[kept] == Appended(3, 3)
    assert group.noted(asked.Sealed) == [asked.Sealed(0, 1, 2)]


def test_r4_wait_keeps_the_round_open_until_the_owner_is_back() -> None:
    group = ReplicaGroup(eager_copy=False, hole_policy=HolePolicy.WAIT)
    group.produce(acks=1, connection=1)
    token = group.produce(acks=1, connection=2)
    group.deliver(0, 1)
    group.held.add((group.ids[1], group.ids[0]))  # it is stored, and nobody knows
    group.crash(1)
    late = group.produce(acks=-1, connection=1)
    group.pass_time(3000)
    assert late not in group.answers
    assert group.watermarks() == [0, 0]
    group.held.clear()
    group.start(1)
    group.pass_time(3000)
    assert group.answers[token] == Appended(1, 1)
    assert group.answers[late] == Appended(2, 2)
    assert group.seals(0) == []
    assert group.watermarks() == [3, 3, 3]


def test_r4_wait_seals_what_the_owner_turns_out_not_to_have() -> None:
    group = ReplicaGroup(eager_copy=False, hole_policy=HolePolicy.WAIT)
    group.produce(acks=1, connection=1)
    group.produce(acks=1, connection=2)
    group.crash(1)
    group.pass_time(2000)
    assert group.watermarks() == [0, 0]
    group.start(1)
    group.pass_time(3000)
    assert group.watermarks() == [2, 2, 2]
    assert group.seals(1) == [(1, 1)]


def test_r4_a_hole_waits_its_timeout() -> None:
    group = ReplicaGroup(eager_copy=False, hole_timeout_ns=500_000_000)
    group.produce(acks=1, connection=1)
    group.produce(acks=1, connection=2)
    group.crash(1)
    group.pass_time(400)
    assert group.watermarks() == [0, 0]
    group.pass_time(600)
    assert group.watermarks() == [2, 2]


def test_r5_members_pull_what_they_lack_from_each_other_in_small_pieces() -> None:
    group = ReplicaGroup(eager_copy=False, message_bytes_max=200)
    for connection in (1, 2, 3) * 5:
        group.produce(b"some words", acks=1, connection=connection)
    group.run()
    token = group.produce(acks=-1)
    group.run()
    assert group.answers[token] == Appended(15, 15)
    assert {(a, b) for a, b, message in group.sent if isinstance(message, SyncPull)} == {
        (a, b) for a in range(3) for b in range(3) if a != b
    }
    assert max(len(message.records) for message in group.said(Pulled)) <= 200
    assert group.log(0) == group.log(1) == group.log(2)


def test_r5_g17_done_is_said_only_when_it_is_on_disk() -> None:
    group = ReplicaGroup(round_timeout_ns=10_000_000_000)
    group.slow.add(group.ids[1])
    token = group.produce()
    group.run()
    group.pass_time(500)
    assert group.at(1).log.end_offset == 1
    assert group.at(1).log.synced_offset == 0
    assert group.said(Done, 1) == group.said(Done, 1)[:1], "the recovery's"
    assert token not in group.answers
    group.slow.clear()
    group.run()
    assert group.answers[token] == Appended(0, 0)


def test_r5_g6_a_member_that_takes_too_long_leaves() -> None:
    group = ReplicaGroup()
    group.slow.add(group.ids[2])
    token = group.produce()
    group.run()
    group.pass_time(1_900)
    assert token not in group.answers
    group.pass_time(300)
    assert group.answers[token] == Appended(0, 0)
    assert group.znodes.isr == (0, 1)
    assert [each.member for each in group.noted(asked.MemberRemoved)] == [2]
    rounds = [
        (each.round, each.attempt) for each in group.noted(asked.RoundOpened) if each.round == 2
    ]
    assert rounds == [(2, 0), (2, 1)]


def test_r5_what_is_too_much_for_one_round_is_copied_in_several() -> None:
    """A member that cannot copy all in its time is not taken in and removed for ever."""
    group = ReplicaGroup(2, eager_copy=False, message_bytes_max=1, round_timeout_ns=50 * NS_PER_MS)
    for _ in range(200):
        group.produce(acks=1, connection=1)
    for _ in range(3_000):  # a batch takes two milliseconds
        for a, b in [pair for pair, queue in group.queues.items() if queue]:
            group.deliver(a, b)
        for broker in sorted(group._to_sync):
            group.sync(broker)
        group.pass_time(1, run=False)
    assert group.noted(asked.MemberRemoved)
    assert group.znodes.isr == group.ids
    assert group.watermarks() == [200, 200]


def test_r5_a_peer_that_cannot_be_reached_is_gone_round() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.break_link(1, 2)
    for connection in (1, 2, 3):
        group.produce(acks=1, connection=connection)
    group.run()
    token = group.produce()
    group.run()
    group.pass_time(100)
    assert group.answers[token] == Appended(3, 3)
    assert group.znodes.isr == (0, 1, 2)


def test_r6_g4_g5_nothing_is_committed_before_all_are_done() -> None:
    group = ReplicaGroup()
    group.held.add((group.ids[1], group.ids[0]))
    token = group.produce()
    group.run()
    assert group.watermarks() == [0, 0, 0]
    assert token not in group.answers
    group.held.clear()
    group.run()
    assert group.watermarks() == [1, 1, 1]
    assert group.answers[token] == Appended(0, 0)
    assert Commit(0, 1, 1, 0) in group.said(Commit)


def test_g8_g15_acks_one_is_answered_when_the_owner_has_it() -> None:
    group = ReplicaGroup(eager_copy=False, sync_on_fetch=False)
    group.produce(acks=1, connection=1)
    token = group.produce(acks=1, connection=2)
    assert token not in group.answers
    group.deliver(0, 1)
    assert isinstance(group.deliver(1, 0), RelayStored)
    assert group.answers[token] == Appended(1, 1)
    assert group.watermarks() == [0, 0, 0]


def test_g18_too_few_in_sync_refuse_acks_all_and_hold_s() -> None:
    group = ReplicaGroup(3, min_insync_replicas=2)
    group.crash(1)
    group.crash(2)
    group.pass_time(500)
    assert group.znodes.isr == (0,)
    all_acks = group.produce(acks=-1)
    one = group.produce(acks=1)
    group.pass_time(3000)
    refused = group.answers[all_acks]
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert group.answers[one] == Appended(0, 0)
    assert group.watermarks() == [0]
    group.start(1)
    group.pass_time(3000)
    assert group.watermarks() == [1, 1]


def test_acks_all_that_wait_are_told_when_too_few_are_left() -> None:
    group = ReplicaGroup(2, eager_copy=True)
    token = group.produce()
    group.crash(1)
    group.pass_time(1000)
    refused = group.answers[token]
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_r9_rounds_keep_apart_and_cover_what_came_meanwhile() -> None:
    group = ReplicaGroup()
    group.pass_time(10)
    first = group.produce()
    group.produce()
    group.produce()
    group.run()
    assert group.at(0).high_watermark == 1
    assert len(group.answers) == 1
    assert first in group.answers
    group.pass_time(1.9)
    assert group.at(0).high_watermark == 1, "two milliseconds lie between"
    group.pass_time(0.2)
    assert group.at(0).high_watermark == 3, "one round for both"


def test_r9_the_period_settles_what_nobody_waits_for() -> None:
    group = ReplicaGroup()
    group.produce(acks=1)
    group.pass_time(900)
    assert group.watermarks() == [0, 0, 0]
    group.pass_time(200)
    assert group.watermarks() == [1, 1, 1]


def test_r9_so_many_bytes_begin_a_round() -> None:
    group = ReplicaGroup(sync_max_bytes=500)
    group.pass_time(10)
    while group.at(0).high_watermark == 0:
        group.produce(b"x" * 100, acks=1)
        group.run()
    assert 1 <= group.at(0).high_watermark <= 4


def test_r9_a_consumer_that_waits_gets_a_round() -> None:
    group = ReplicaGroup()
    group.pass_time(10)
    group.wanted(1)  # nothing is assigned yet: it counts for what comes
    group.run()
    group.produce(acks=1)
    group.run()
    assert group.watermarks() == [1, 1, 1]


def test_r9_the_paper_lets_consumers_wait() -> None:
    group = ReplicaGroup(sync_on_fetch=False)
    group.pass_time(10)
    group.wanted(0)
    group.wanted(1)
    group.produce(acks=1)
    group.run()
    assert group.watermarks() == [0, 0, 0]


def test_g2_g3_g19_a_lock_child_is_a_request() -> None:
    """The round ends where the original has assigned, not where the one that asks is."""
    group = ReplicaGroup()
    group.pass_time(10)
    group.produce(acks=1)
    group._do(group.ids[0], group.at(0).locked(group.now))
    group._do(group.ids[0], group.at(0).locked(group.now))
    group.run()
    assert group.watermarks() == [1, 1, 1]
    assert group.at(0).status()["rounds"] == 2, "the recovery's, and one"
    group._do(group.ids[1], group.at(1).locked(group.now))
    assert group.at(1).rounds is None


def test_r10_what_acks_all_wait_for_is_copied_before_a_round_asks() -> None:
    group = ReplicaGroup()
    group.produce()  # the first promise of the epoch
    group.run()
    group.pass_time(10)
    group.sent.clear()
    group.produce(connection=2)
    group.run()
    assert group.watermarks() == [2, 2, 2]
    assert [to for _, to, message in group.sent if isinstance(message, Copied)] == [2]
    pulls = [(a, to) for a, to, message in group.sent if isinstance(message, SyncPull)]
    assert (1, 0) not in pulls, "the owner has it, and the original"


def test_r10_no_copy_is_taken_before_the_first_promise_of_an_epoch() -> None:
    group = ReplicaGroup()
    copy = Copied(0, bytes(_placed(group, 0)))
    group.at(1).member.closed = None
    group._do(group.ids[1], group.at(1).receive(group.ids[2], copy, group.now))
    assert group.at(1).files.end == 0


def test_a_copy_with_a_gap_before_it_is_not_taken() -> None:
    """A producer's second batch without its first would go ahead of it.  [I9]"""
    group = ReplicaGroup()
    group.at(1).member.closed = 0
    second = Copied(0, bytes(_placed(group, 1, (7, 0, 1))))
    group._do(group.ids[1], group.at(1).receive(group.ids[2], second, group.now))
    assert group.at(1).files.end == 0
    first = Copied(0, bytes(_placed(group, 0, (7, 0, 0))))
    group._do(group.ids[1], group.at(1).receive(group.ids[2], first, group.now))
    group._do(group.ids[1], group.at(1).receive(group.ids[2], second, group.now))
    assert group.at(1).files.end == 2


def test_g14_a_missed_watch_is_made_up_for() -> None:
    group = ReplicaGroup(coordination=Coordination.ZOOKEEPER)
    group.pass_time(10)
    token = group.produce()
    group.run()
    ends = [each for _, each in group.asked if isinstance(each, asked.SetSync) and each.end]
    assert ends == [asked.SetSync(None, 1, 0, 2)]
    assert not group.said(SyncClose)
    group._do(group.ids[1], group.at(1).sync_end_seen(1, 0, 2, group.now))
    group.run()
    assert len(group.said(Closed, 1)) == 2, "the recovery's and this"
    assert token not in group.answers
    group.pass_time(150)  # broker 2 has not seen it: it is told
    assert group.answers[token] == Appended(0, 0)
    assert asked.Unlock() in [each for _, each in group.asked]
    assert asked.SetSync(1, None, 0, 2) in [each for _, each in group.asked]


def test_secondaries_ask_by_lock_once_a_period() -> None:
    group = ReplicaGroup(coordination=Coordination.ZOOKEEPER, eager_copy=False)
    group.pass_time(10)
    group.produce(acks=1, connection=1)
    group.produce(acks=1, connection=2)
    group.run()
    group.pass_time(1100)
    assert (1, asked.Lock()) in group.asked
    assert group.watermarks() == [2, 2, 2]


def test_g11_a_round_goes_on_without_the_one_that_asked_for_it() -> None:
    """Its lock child has gone with its session, or stays for ever: neither matters."""
    group = ReplicaGroup(coordination=Coordination.ZOOKEEPER, eager_copy=False)
    group.pass_time(10)
    group.produce(acks=1, connection=1)
    group._do(group.ids[0], group.at(0).locked(group.now))
    group.crash(1)
    group.pass_time(3_000)
    assert group.watermarks() == [1, 1]
    token = group.produce()
    group.pass_time(3_000)
    assert group.watermarks() == [2, 2]
    assert group.answers[token] == Appended(1, 1)


def test_g20_a_round_never_ends_in_a_hole() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.produce(acks=1, connection=1)
    group.produce(acks=1, connection=2)
    group.crash(1)
    group.pass_time(1000)
    assert group.at(0).high_watermark == 2
    assert group.log(0)[-1].last_offset == 1


def test_limits_refuse_clearly() -> None:
    group = ReplicaGroup(pending_bytes_max=300, sync_on_fetch=False)
    while not any(isinstance(each, Refused) for each in group.answers.values()):
        group.produce(b"x" * 50, acks=1)
    refused = next(each for each in group.answers.values() if isinstance(each, Refused))
    assert "bytes wait for a round; at most 300 may" in refused.message
    group = ReplicaGroup(waiting_requests_max=2)
    group.held |= {(group.ids[0], group.ids[1])}
    for _ in range(3):
        group.produce()
    assert group.answers[3] == Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "2 requests wait already")


def test_forgotten_requests_are_not_answered() -> None:
    group = ReplicaGroup()
    token = group.produce()
    group.at(0).forget(token)
    group.run()
    assert group.watermarks() == [1, 1, 1]
    assert token not in group.answers


def test_where_the_log_begins_is_told_to_members() -> None:
    group = ReplicaGroup()
    for _ in range(3):
        group.produce()
        group.run()
        group.pass_time(5)
    group.at(0).log.delete_records(2, 0, 3)
    group.produce()
    group.run()
    assert [group.at(each).log.start_offset for each in group.ids] == [2, 2, 2]
    group.pass_time(5)
    group.at(0).log.delete_records(3, 0, 4)
    group._do(group.ids[0], group.at(0).start_moved(group.now))
    group.run()
    assert [group.at(each).log.start_offset for each in group.ids] == [3, 3, 3], "without a round"


def test_messages_survive_the_wire() -> None:
    from orderwire.broker.replication.active_active_messages import Message

    for message in (RelayAppend(1, 0, True, b"x"), Closed(1, 2, 0, 3, [(3, 5, 1)])):
        data = msgspec.msgpack.encode(message)
        assert msgspec.msgpack.decode(data, type=Message) == message


def _placed(
    group: ReplicaGroup, base: int, producer: tuple[int, int, int] = (-1, -1, -1)
) -> bytearray:
    from orderwire.broker.wire.records import Record, build_batch

    return build_batch(
        [Record(b"v")],
        base_offset=base,
        leader_epoch=0,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


def test_without_flush_a_round_waits_for_nobodys_disk() -> None:
    group = ReplicaGroup(flush=Flush.NONE)
    group.slow = set(group.ids)
    token = group.produce(b"a")
    group.pass_time(20)
    assert isinstance(group.answers[token], Appended)
    assert all(len(each.files.pending) == 0 for each in group.replicas.values())
    assert all(each.high_watermark == 1 for each in group.replicas.values())


def test_flush_by_message_syncs_the_owners_journal_before_acks_one() -> None:
    """The paper's regime: every request by itself, original or not.  [S004:4.4, 12]"""
    group = ReplicaGroup(eager_copy=False, flush=Flush.MESSAGE)
    for broker in group.ids:
        group.files[broker].syncs.clear()
    group.produce(acks=1, connection=1)
    assert group.files[group.ids[0]].syncs == ["pending-0"]
    for _ in range(3):
        group.produce(acks=1, connection=2)
    for _ in range(3):
        group.deliver(0, 1)
    assert group.files[group.ids[1]].syncs == ["pending-0"] * 3
    assert group.files[group.ids[2]].syncs == []


def test_flush_by_group_answers_acks_one_from_the_page_cache() -> None:
    group = ReplicaGroup(eager_copy=False)
    for broker in group.ids:
        group.files[broker].syncs.clear()
    for connection in (1, 2, 3):
        group.produce(acks=1, connection=connection)
    while group.queues[group.ids[0], group.ids[1]]:
        group.deliver(0, 1)
    assert all(not group.files[broker].syncs for broker in group.ids)
    group.produce(acks=-1)
    group.run()
    logs = [name for name in group.files[group.ids[0]].syncs if name.endswith(".log")]
    assert len(logs) == 1, "one for all that the round brought"


def test_r5_nobody_is_late_before_what_has_come_is_read() -> None:
    """Answers that came while the original was held up are taken before anybody is judged."""
    group = ReplicaGroup(round_timeout_ns=1_000 * NS_PER_MS)
    original = group.original
    assert original is not None
    group.produce(b"a", acks=-1)
    for member in group.others:
        while group.queues[original, member]:
            group.deliver(original, member)
    group.now = Instant(group.now + 5_000 * NS_PER_MS)  # nobody has woken us meanwhile
    for member in group.others:
        while group.queues[member, original]:
            group.deliver(member, original)
    group.run()
    assert not group.noted(asked.MemberRemoved)
    assert isinstance(group.answers[1], Appended)


def test_r5_a_replica_that_is_being_opened_has_longer_than_a_connection_that_broke() -> None:
    group = ReplicaGroup(elect=False, link_grace_ns=100 * NS_PER_MS)
    group.held = {(a, b) for a in group.ids for b in group.ids if BrokerId(2) in (a, b)}
    group.pass_time(1_500)
    assert group.noted(asked.Elected)
    assert not group.noted(asked.MemberRemoved), "its broker is there, and opens others first"
    group.pass_time(1_500)
    assert [each.member for each in group.noted(asked.MemberRemoved)] == [2]


def test_r3_who_is_slow_to_promise_is_not_asked_over_and_over() -> None:
    group = ReplicaGroup(round_timeout_ns=2_000 * NS_PER_MS)
    original = group.original
    assert original is not None
    group.held = {(each, original) for each in group.others}
    group.sent.clear()
    group.produce(b"a", acks=-1)
    group.pass_time(1_900)
    assert not group.noted(asked.MemberRemoved)
    assert len(group.said(SyncClose, original)) <= 3 * len(group.others)
