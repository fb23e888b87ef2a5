"""Elections, zombies, returns and orphans of an active-active partition.  [R2, R7, R8, G9-G13]"""

import pytest
from tests.support.logs import placed
from tests.support.replica_group import ReplicaGroup

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, LogConfig, MemoryStorage, Refused
from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.active_active import ActiveActiveReplica
from orderwire.broker.replication.active_active_messages import (
    CaughtUp,
    Collect,
    CommittedLog,
    Fenced,
    InSync,
    OrphanLater,
    OrphanOffer,
    OrphanPlace,
    RejoinFetch,
    RelayAppend,
    RelayStored,
    SyncCopy,
)
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.links import Hello
from orderwire.broker.replication.settings import OrphanPolicy, ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.wire.batch import CONTROL
from orderwire.kernel import Instant

NOON = Instant(1_700_000_000_000_000_000)


def messages(group: ReplicaGroup, broker: int) -> list[tuple[int, int]]:
    """Offset and count of every batch of clients."""
    return [
        (each.base_offset, each.count)
        for each in group.log(broker)
        if not each.attributes & CONTROL
    ]


def stored_at_1_only(group: ReplicaGroup) -> int:
    """An acks=1 request at offset 1 that broker 1 has stored, and nobody else."""
    group.produce(acks=1, connection=1)
    token = group.produce(b"a", acks=1, connection=2)
    group.deliver(0, 1)
    group.deliver(1, 0)
    assert group.answers[token] == Appended(1, 1)
    return token


def test_r7_the_new_original_collects_from_all_in_sync_before_it_takes_requests() -> None:
    group = ReplicaGroup(eager_copy=False)
    stored_at_1_only(group)
    group.held |= {(group.ids[1], group.ids[2]), (group.ids[2], group.ids[1])}
    group.crash(0)
    new = group.original
    assert new is not None
    assert not group.at(new).takes_produce
    refused = group.answers[group.produce()]
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    group.held.clear()
    group.pass_time(500)
    assert group.at(new).takes_produce
    assert {message.epoch for message in group.said(Collect, new)} == {1}
    # Offset 0 was at the original only, which is gone.
    assert group.seals(1) == group.seals(2) == [(0, 0)]
    assert messages(group, 1) == messages(group, 2) == [(1, 1)]
    token = group.produce()
    group.pass_time(10)
    assert group.answers[token] == Appended(2, 2)


def test_r7_seals_bear_the_epoch_of_what_stands_around() -> None:
    group = ReplicaGroup(eager_copy=False)
    stored_at_1_only(group)
    group.crash(0)
    group.pass_time(500)
    assert [(each.base_offset, each.leader_epoch) for each in group.log(2)] == [(0, 0), (1, 0)]


def test_r7_who_does_not_answer_leaves_the_in_sync_set() -> None:
    group = ReplicaGroup(4)
    group.held |= {(a, group.ids[3]) for a in group.ids if a != 3}
    group.crash(0)
    group.pass_time(2500)
    assert group.znodes.isr == (1, 2)
    assert group.at(group.original or 0).takes_produce


def test_g9_an_acknowledged_message_survives_its_original() -> None:
    group = ReplicaGroup()
    token = group.produce(b"kept")
    group.run()
    assert group.answers[token] == Appended(0, 0)
    group.crash(0)
    group.pass_time(500)
    later = group.produce(b"later")
    group.pass_time(20)
    assert group.answers[later] == Appended(1, 1)
    assert messages(group, 1) == messages(group, 2) == [(0, 1), (1, 1)]


def test_g10_a_zombie_commits_nothing_and_steps_down() -> None:
    group = ReplicaGroup()
    group.expire(0)  # it does not hear of it
    group.pass_time(50, run=False)
    token = group.produce(at=0)
    group.pass_time(500)
    assert isinstance(group.answers[token], Refused)
    assert group.at(0).original is None
    assert group.at(0).files.known_epoch == 1
    assert [type(each) for each in group.noted(asked.Deposed)] == [asked.Deposed]
    assert group.said(Fenced) or group.said(Collect)


def test_a_lost_session_ends_it_at_once() -> None:
    group = ReplicaGroup()
    group.held |= {(group.ids[0], group.ids[1])}
    token = group.produce()
    group._do(group.ids[0], group.at(0).session_lost(group.now))
    refused = group.answers[token]
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "it is stored"
    assert not group.at(0).takes_produce
    # Its znode is still there: it is given up, not taken up again.
    group.held.clear()
    group.look(0)
    assert asked.Resign(0) in [each for _, each in group.asked]
    group.pass_time(500)
    assert group.znodes.epoch == 1


@pytest.mark.parametrize("known", [False, True])
def test_a_new_original_waits_for_nobody_whose_process_is_known_to_have_ended(known: bool) -> None:
    group = ReplicaGroup()
    group.produce()
    group.pass_time(10)
    group.crash(0, known=known)
    group.pass_time(10)
    assert group.original is not None
    assert group.at(group.original).takes_produce is known
    group.pass_time(300)
    assert group.at(group.original).takes_produce
    group.start(0)  # and it is let in again, as anybody
    group.pass_time(500)
    assert group.znodes.isr == (0, 1, 2)


def test_an_original_that_restarts_gives_its_old_znode_up() -> None:
    group = ReplicaGroup()
    group.produce()
    group.pass_time(10)
    files = group.files[group.ids[0]]
    group.replicas[group.ids[0]].close()
    fresh = group.make(group.ids[0], files, group.at(0).log.config, group.settings, group.now)
    group.replicas[group.ids[0]] = fresh
    for other in group.others:
        group._do(other, group.at(other).disconnected(group.ids[0], group.now))
        group.connect(0, other)
    group.look(0)
    group.pass_time(500)
    assert group.znodes.epoch == 1
    assert group.watermarks() == [1, 1, 1]


def test_r8_a_replica_that_was_away_gets_what_it_lacks_and_is_let_in() -> None:
    group = ReplicaGroup(message_bytes_max=200)
    group.crash(2)
    group.pass_time(300)
    for _ in range(6):
        group.produce(b"while it was away")
        group.pass_time(5)
    group.sent.clear()
    group.start(2)
    group.pass_time(500)
    assert group.znodes.isr == (0, 1, 2)
    assert group.watermarks() == [6, 6, 6]
    assert group.log(2) == group.log(0)
    assert len(group.said(RejoinFetch, 2)) == 3, "in pieces"
    assert [each.member for each in group.noted(asked.MemberJoined)] == [2]


def test_i8_an_original_that_is_heard_in_an_epoch_before_is_asked_all_the_same() -> None:
    """It said hello before it was elected; that it is there counts, and it says so once only."""
    me, original = BrokerId(0), BrokerId(2)
    replica = ActiveActiveReplica(me, MemoryStorage(), LogConfig(), ReplicationSettings(), NOON)
    ids = tuple(map(BrokerId, range(3)))
    replica.viewed(PartitionView(5, original, ids[1:], 1, replicas=ids), NOON)
    replica.connected(original, NOON)
    effects = replica.receive(original, Hello(4, answer=False), NOON)
    assert [type(each.message) for each in effects if isinstance(each, asked.Tell)] == [RejoinFetch]


def test_r8_it_is_let_in_while_requests_go_on() -> None:
    group = ReplicaGroup()
    group.crash(2)
    group.pass_time(300)
    group.start(2)
    tokens = []
    for _ in range(100):
        tokens.append(group.produce())
        group.pass_time(1)
    group.pass_time(100)
    assert group.znodes.isr == (0, 1, 2)
    assert all(isinstance(group.answers[token], Appended) for token in tokens)
    assert group.watermarks() == [100, 100, 100]


def test_r8_nobody_is_let_in_who_lacks_something() -> None:
    group = ReplicaGroup()
    group.crash(2)
    group.pass_time(300)
    group.produce()
    group.pass_time(5)
    group.start(2)
    caught = CaughtUp(0, 0)  # what it could have said before
    group._do(group.ids[0], group.at(0).receive(group.ids[2], caught, group.now))
    assert group.znodes.isr == (0, 1)
    group.pass_time(500)
    assert group.znodes.isr == (0, 1, 2)
    assert group.watermarks() == [1, 1, 1]


def test_r8_who_is_in_sync_already_is_told_so() -> None:
    group = ReplicaGroup()
    fetch = RejoinFetch(0, 0, 0, [])
    effects = group.at(0).receive(group.ids[1], fetch, group.now)
    assert [each.message for each in effects if isinstance(each, asked.Tell)] == [InSync(0, 0)]


@pytest.mark.parametrize("idempotent", [False, True])
def test_r8_g12_g13_orphans_are_published_again(idempotent: bool) -> None:
    group = ReplicaGroup(eager_copy=False)
    producer = (7, 0, 0) if idempotent else None
    group.produce(acks=1, connection=1)
    token = group.produce(b"a", b"b", acks=1, connection=2, producer=producer)
    group.deliver(0, 1)
    group.deliver(1, 0)
    assert group.answers[token] == Appended(1, 2)
    group.crash(1)
    other = group.produce(connection=1)
    group.pass_time(1000)
    assert group.answers[other] == Appended(3, 3)
    assert group.seals(0) == [(1, 2)]
    group.start(1)
    group.pass_time(2000)
    assert group.znodes.isr == (0, 1, 2)
    assert group.noted(asked.Orphaned) == [asked.Orphaned(1, 0, 2)]
    assert group.noted(asked.Republished) == [asked.Republished(1, 5, False)]
    assert (
        messages(group, 0) == messages(group, 1) == messages(group, 2) == [(0, 1), (3, 1), (5, 2)]
    )
    assert group.watermarks() == [7, 7, 7]
    assert len(group.at(1).files.orphans) == 0


def test_r8_two_replicas_that_have_the_same_orphan_publish_it_once() -> None:
    group = ReplicaGroup(min_insync_replicas=1)
    group.held |= {(group.ids[0], group.ids[2])}
    group.produce(b"kept by two", acks=1)
    copy = group.at(0).files.read((0, 1), 1000)
    assert group.at(1).files.keep(copy) is None
    # Broker 2 goes on alone, without it.
    view = group.znodes
    view.isr, view.version = (group.ids[2],), 1
    group.held.clear()
    for each in (0, 1):
        group.crash(each)
    group.pass_time(500)
    assert group.original == 2
    group.produce(b"instead")
    group.pass_time(10)
    group.start(0)
    group.start(1)
    group.pass_time(3000)
    assert group.znodes.isr == (0, 1, 2)
    assert len(group.noted(asked.Orphaned)) == 2
    assert sorted(each.new_offset for each in group.noted(asked.Republished)) == [2, 2]
    assert messages(group, 0) == messages(group, 1) == messages(group, 2) == [(0, 1), (2, 1)]


def test_r8_an_orphan_that_its_producer_sent_again_is_left_out() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.produce(acks=1, connection=1)
    lost = group.produce(b"a", producer=(7, 0, 0))
    group.deliver(0, 1)  # broker 1 has it, and says so to nobody
    group.crash(1)
    group.pass_time(1000)
    assert isinstance(group.answers[lost], Refused)
    again = group.produce(b"a", producer=(7, 0, 0))
    group.pass_time(1000)
    assert group.answers[again] == Appended(2, 2)
    group.start(1)
    group.pass_time(2000)
    assert group.noted(asked.Republished) == [asked.Republished(1, 2, True)]
    assert messages(group, 0) == messages(group, 1) == [(0, 1), (2, 1)]


@pytest.mark.parametrize("policy", [OrphanPolicy.QUARANTINE, OrphanPolicy.DROP])
def test_r8_orphans_may_stay_aside_or_go(policy: OrphanPolicy) -> None:
    group = ReplicaGroup(eager_copy=False, orphan_policy=policy)
    stored_at_1_only(group)
    group.crash(1)
    group.pass_time(2000)
    group.start(1)
    group.pass_time(2000)
    assert group.znodes.isr == (0, 1, 2)
    assert not group.said(OrphanOffer)
    assert len(group.at(1).files.orphans) == (1 if policy is OrphanPolicy.QUARANTINE else 0)


def test_r8_an_orphan_waits_until_it_is_settled_what_stands_at_its_place() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.held.add((group.ids[0], group.ids[2]))
    group.produce(acks=1, connection=1)
    orphan = group.at(0).files.read((0, 1), 1000)
    group.at(1).files.orphans.set_aside(orphan)
    effects = group.at(1).wake(group.now)
    group._do(group.ids[1], effects)
    group.run()
    assert group.said(OrphanLater, 0)
    assert not group.said(OrphanPlace)
    group.held.clear()
    group.pass_time(200)
    assert group.noted(asked.Republished) == [asked.Republished(0, 0, True)]
    assert messages(group, 1) == [(0, 1)]


def test_g13_what_differs_is_cut_off_and_what_is_equal_stays() -> None:
    group = ReplicaGroup()
    for _ in range(3):
        group.produce()
        group.pass_time(5)
    group.crash(2)
    group.pass_time(300)
    for _ in range(2):
        group.produce()
        group.pass_time(5)
    group.start(2)
    group.pass_time(500)
    fetched = [(message.offset, len(message.records)) for message in group.said(CommittedLog, 0)]
    assert fetched[0][0] == 1, "S was noted once: all behind is compared, not written again"
    assert group.log(2) == group.log(0)
    assert not group.noted(asked.Orphaned)


def test_rejoining_behind_the_start_of_the_log() -> None:
    group = ReplicaGroup()
    group.produce()
    group.pass_time(5)
    group.crash(2)
    group.pass_time(300)
    for _ in range(4):
        group.produce(b"a", b"b")
        group.pass_time(5)
    group.at(0).log.delete_records(6, 0, 9)
    group.start(2)
    group.pass_time(500)
    assert group.znodes.isr == (0, 1, 2)
    assert group.at(2).log.start_offset == 6
    assert group.watermarks() == [9, 9, 9]


def test_i9_duplicates_of_what_is_not_committed_wait_for_it() -> None:
    group = ReplicaGroup()
    group.held |= {(group.ids[1], group.ids[0])}
    first = group.produce(producer=(7, 0, 0))
    again = group.produce(producer=(7, 0, 0))
    group.run()
    assert not group.answers
    group.held.clear()
    group.run()
    assert group.answers[first] == group.answers[again] == Appended(0, 0)
    third = group.produce(producer=(7, 0, 0))
    assert group.answers[third] == Appended(0, 0, duplicate=True)


def test_i9_duplicates_are_known_to_the_next_original() -> None:
    group = ReplicaGroup()
    group.held |= {(group.ids[1], group.ids[0]), (group.ids[2], group.ids[0])}
    group.produce(producer=(7, 0, 0))
    group.run()
    group.crash(0)
    group.held.clear()
    group.pass_time(500)
    again = group.produce(producer=(7, 0, 0))
    group.pass_time(20)
    later = group.produce(producer=(7, 0, 1))
    group.pass_time(20)
    first = group.answers[again]
    assert isinstance(first, Appended)
    assert first.base_offset == 0
    assert group.answers[later] == Appended(1, 1)


def test_i9_a_producer_in_doubt_waits_for_a_round() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.produce(acks=1, connection=1)  # the original's turn
    first = group.produce(producer=(7, 0, 0))  # to broker 1, and lost there
    group.crash(1)
    second = group.produce(producer=(7, 0, 1))
    refused = group.answers[second]
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
    group.pass_time(1000)
    failed = group.answers[first]
    assert isinstance(failed, Refused)
    assert failed.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    again = group.produce(producer=(7, 0, 0))
    after = group.produce(producer=(7, 0, 1))
    group.pass_time(20)
    assert group.answers[again] == Appended(2, 2)
    assert group.answers[after] == Appended(3, 3)


@pytest.mark.paper("S004:R7")
def test_a_replica_that_lost_its_disk_is_not_elected_and_takes_anothers_log() -> None:
    group = ReplicaGroup(3)
    token = group.produce(b"x")
    group.pass_time(100)
    for each in group.ids:
        group.crash(each)
    group.files[BrokerId(2)] = MemoryStorage()
    for _ in range(2):
        group.start(2)
        group.pass_time(30_000)
        assert group.znodes.original is None
        assert group.znodes.isr == (0, 1, 2)
        group.crash(2)
    for each in (2, 0, 1):
        group.start(each)
    group.pass_time(10_000)
    assert group.original in (0, 1)
    assert group.answers[token] == Appended(0, 0)
    assert group.znodes.isr == (0, 1, 2)
    assert group.log(2)[0] == group.log(0)[0]
    group.crash(0)
    group.crash(1)
    group.start(1)
    group.pass_time(10_000)
    assert group.original is not None, "it is as good as any by now"


def test_i8_an_original_that_lacks_what_is_committed_gives_the_epoch_to_who_has_it() -> None:
    """It does not know it: its log was cut, or lost with the machine's memory."""
    group = ReplicaGroup(3)
    token = group.produce(b"x")
    group.pass_time(100)
    for each in group.ids:
        group.crash(each)
    group.files[BrokerId(2)] = storage = MemoryStorage()
    Kept(storage).settle()
    group.start(2)
    assert group.original == 2
    for each in (0, 1):
        group.start(each)
    group.pass_time(10_000)
    assert group.original in (0, 1)
    assert group.answers[token] == Appended(0, 0)
    assert group.znodes.isr == (0, 1, 2)
    assert group.log(2)[0] == group.log(0)[0]


def test_i8_what_a_recovery_promised_in_vain_the_next_attempt_assigns() -> None:
    """Who alone had the last batch lost it before anybody had copied it."""
    me, original = BrokerId(0), BrokerId(1)
    replica = ActiveActiveReplica(me, MemoryStorage(), LogConfig(), ReplicationSettings(), NOON)
    ids = tuple(map(BrokerId, range(3)))
    replica.viewed(PartitionView(1, original, ids, 0, replicas=ids), NOON)
    for each in ids[1:]:
        replica.connected(each, NOON)
        replica.receive(each, Hello(1, answer=False), NOON)
    pulls = [(ids[2], 0, 1)]
    replica.receive(original, Collect(1, 1, 0), NOON)
    replica.receive(original, SyncCopy(1, 1, 0, 1, pulls, [], 0), NOON)
    replica.receive(original, Collect(1, 1, 1), NOON)
    replica.receive(original, SyncCopy(1, 1, 1, 0, [], [], 0), NOON)
    relay = RelayAppend(1, 0, True, bytes(placed(0, epoch=1)))
    effects = replica.receive(original, relay, NOON)
    said = [each.message for each in effects if isinstance(each, asked.Tell)]
    assert RelayStored(1, 0) in said


@pytest.mark.paper("S004:I6")
@pytest.mark.parametrize("looks", [True, False])
def test_i6_a_new_original_does_not_take_sync_start_back(looks: bool) -> None:
    """With too few it commits no more than somebody was told; ZooKeeper has heard of more."""
    group = ReplicaGroup(min_insync_replicas=3)
    if not looks:
        group.znodes.least_sync = lambda: -1  # type: ignore[method-assign]
    for _ in range(2):
        group.produce()
        group.pass_time(10)
    group.produce()
    for _ in range(100):
        if group.znodes.sync_start[0] == 3:
            break
        ready = [pair for pair, queue in group.queues.items() if queue]
        if ready:
            group.deliver(*ready[0])
        for broker in group.ids:
            group.sync(broker)
    assert group.znodes.sync_start[0] == 3
    group.at(2).close()  # it notes what it was told
    for broker in (2, 1, 0):
        group.crash(broker)
    group.start(1)
    assert group.at(1).high_watermark == 1
    group.start(2)
    group.pass_time(2_000)
    assert group.original == 1
    assert group.at(1).high_watermark == 2, "as much as broker 2 was told"
    assert group.znodes.sync_start[0] == (3 if looks else 2)
    assert group.znodes.sync_end[0] >= group.znodes.sync_start[0]


@pytest.mark.paper("S004:R8")
def test_i1_who_wants_in_has_to_have_what_was_recovered_with_too_few() -> None:
    """It may be committed and acknowledged, though the new original does not know: it is told to
    commit no more than somebody heard of, and who comes first would be original next."""
    group = ReplicaGroup(min_insync_replicas=2)
    tokens = []
    for _ in range(4):
        tokens.append(group.produce())
        group.pass_time(10)
    assert [group.answers[token] for token in tokens] == [Appended(n, n) for n in range(4)]
    for broker in (2, 1, 0):
        group.crash(broker)
    group.start(0)
    group.pass_time(2_000)
    assert group.znodes.isr == (0,)
    assert group.at(0).high_watermark == 1, "as much as was noted"
    group.start(2)
    while 2 not in group.znodes.isr:
        group.pass_time(1)
    group.crash(0)
    group.pass_time(2_000)
    assert group.original == 2
    assert len(group.log(2)) == 4
    assert not group.noted(asked.Orphaned)
