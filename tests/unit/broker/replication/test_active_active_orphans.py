"""What is told of batches whose fate is open: orphans, gaps, a deposed original.  [R8, I5, I9]"""

from collections.abc import Callable

import pytest
from tests.support.replica_group import ReplicaGroup

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.active_active_messages import Fenced, OrphanOffer, OrphanPlace
from orderwire.broker.wire.batch import CONTROL
from orderwire.broker.wire.records import Record, build_batch


def error(group: ReplicaGroup, token: int) -> ErrorCode:
    refused = group.answers[token]
    assert isinstance(refused, Refused), refused
    return refused.error


def test_i5_an_orphan_that_was_recovered_and_is_not_committed_is_not_published_again() -> None:
    """Too few are in sync after the recovery: S stays below what the last original gave it."""
    group = ReplicaGroup(min_insync_replicas=2)
    group.produce(b"at its place")
    group.pass_time(10)
    assert group.at(1).files.orphans.set_aside(build_batch([Record(b"orphan")], base_offset=0))
    group._do(group.ids[1], group.at(1).wake(group.now))
    assert isinstance(group.deliver(1, 0), OrphanOffer)
    while not isinstance(group.deliver(0, 1), OrphanPlace):
        pass  # it is in our journal now, behind its name
    group.held |= {(group.ids[0], group.ids[1]), (group.ids[1], group.ids[0])}
    group.crash(2)
    group.crash(0)
    group.held.clear()
    group.pass_time(2_000)
    assert group.original == 1
    assert group.znodes.isr == (1,)
    assert group.at(1).takes_produce
    assert group.at(1).high_watermark == 1
    group.start(0)
    group.start(2)
    group.pass_time(3_000)
    assert group.znodes.isr == (0, 1, 2)
    assert group.noted(asked.Republished) == [asked.Republished(0, 2, False)]
    for each in group.ids:
        found = [one.base_offset for one in group.log(each) if not one.attributes & CONTROL]
        assert found == [0, 2]
    assert len(group.said(OrphanPlace)) <= 1


def test_i5_a_gap_is_told_so_that_the_producer_fills_it() -> None:
    """[librdkafka #4953] OUT_OF_ORDER would give all its partitions a new epoch."""
    group = ReplicaGroup()
    first = group.produce(b"a", producer=(7, 0, 0))
    group.pass_time(10)
    assert group.answers[first] == Appended(0, 0)
    group.expire(0)
    refused = group.produce(b"b", producer=(7, 0, 1), at=1)  # not original yet
    assert error(group, refused) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    group.pass_time(1_000)
    assert group.original is not None
    behind = group.produce(b"c", producer=(7, 0, 2))
    anew = group.produce(b"c", producer=(7, 1, 1))
    assert error(group, behind) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert error(group, anew) is ErrorCode.NOT_ENOUGH_REPLICAS
    again = group.produce(b"b", producer=(7, 0, 1))
    behind = group.produce(b"c", producer=(7, 0, 2))
    group.pass_time(20)
    assert group.answers[again] == Appended(1, 1)
    assert group.answers[behind] == Appended(2, 2)


def test_i5_what_follows_a_sealed_batch_waits_for_it() -> None:
    group = ReplicaGroup(eager_copy=False)
    group.produce(acks=1, connection=1)  # the original's turn
    lost = group.produce(b"a", producer=(7, 0, 0))  # to broker 1, and lost there
    group.crash(1)
    group.pass_time(1_000)
    assert error(group, lost) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    again = group.produce(b"a", producer=(7, 0, 0))
    group.pass_time(20)
    assert isinstance(group.answers[again], Appended)
    early = group.produce(b"c", producer=(7, 0, 2))
    assert error(group, early) is ErrorCode.NOT_ENOUGH_REPLICAS


def _session_lost(group: ReplicaGroup) -> None:
    group._do(group.ids[0], group.at(0).session_lost(group.now))


def _another_elected(group: ReplicaGroup) -> None:
    group.znodes.end_session(group.sessions[group.ids[0]])
    for each in (1, 2):
        group.look(each)
    assert group.original != 0
    group.view(0, group.znodes.view())


def _a_higher_epoch_heard(group: ReplicaGroup) -> None:
    effects = group.at(0).receive(group.ids[1], Fenced(9), group.now)
    group._do(group.ids[0], effects)


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("way", [_session_lost, _another_elected, _a_higher_epoch_heard])
def test_i1_a_deposed_original_says_that_what_was_stored_may_be_there(
    way: Callable[[ReplicaGroup], None], acks: int
) -> None:
    """NOT_LEADER_OR_FOLLOWER means that nothing is stored: clients would send it elsewhere anew."""
    group = ReplicaGroup(eager_copy=False)
    group.held |= {(group.ids[1], group.ids[0]), (group.ids[2], group.ids[0])}
    tokens = [group.produce(b"v", connection=each, acks=acks) for each in range(3)]
    group.run()  # stored at each of the three, and two could not say so
    waiting = [each for each in tokens if each not in group.answers]
    assert len(waiting) == (3 if acks == -1 else 2)
    way(group)
    assert group.noted(asked.Deposed)
    assert not group.at(0).takes_produce
    for each in waiting:
        assert error(group, each) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    later = group.produce(at=0)
    assert error(group, later) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.paper("S004:R8")
@pytest.mark.parametrize("room", [4 << 20, 300])
def test_r8_a_round_carries_as_many_orphans_as_the_limits_allow(room: int) -> None:
    group = ReplicaGroup(eager_copy=False, sync_max_bytes=room)
    count = 12
    aside = group.at(1).files.orphans
    for number in range(count):
        batch = build_batch([Record(b"%d" % number)], base_offset=100 + number)
        assert aside.set_aside(batch)
    size = aside.kept_bytes // count
    rounds = group.at(0).rounds
    assert rounds is not None
    before = rounds.count
    group._do(group.ids[1], group.at(1).wake(group.now))
    group.pass_time(5_000)
    offers = [len(each.headers) for each in group.said(OrphanOffer, 1)]
    each = min(count, room // size)
    assert max(offers) == each
    assert len([one for one in offers if one == each]) >= count // each
    assert rounds.count - before <= -(-count // each) + 1
    again = [event.base_offset for event in group.noted(asked.Republished)]
    assert again == list(range(100, 100 + count)), "in their order"
    assert len(aside) == 0
    assert group.log(0) == group.log(1) == group.log(2)
    kept = [one for one in group.log(0) if not one.attributes & CONTROL]
    assert len(kept) == count


@pytest.mark.parametrize("copied", [True, False], ids=["committed", "sealed"])
def test_r8_half_of_an_orphan_may_be_deleted(copied: bool) -> None:
    """The log's start moves into a batch while its owner is away: the other half is kept, once."""
    group = ReplicaGroup(eager_copy=copied)
    group.produce(connection=1)
    group.pass_time(10)
    # The next session is broker 1's.
    group.held = {(group.ids[1], group.ids[0]), (group.ids[1], group.ids[2])}
    group.produce(b"deleted", b"kept", b"kept, too", acks=-1 if copied else 1, connection=2)
    group.run()
    assert group.at(1).files.end == 4
    assert group.at(1).high_watermark == 1
    group.crash(1)
    group.held.clear()
    group.pass_time(2_000)
    assert group.original == 0
    assert group.at(0).high_watermark == 4
    assert bool(group.seals(0)) is not copied
    group.at(0).log.delete_records(2, 0, 4)
    group.start(1)
    group.pass_time(3_000)
    assert group.znodes.isr == (0, 1, 2)
    again = group.noted(asked.Republished)
    assert [each.duplicate for each in again] == [copied]
    kept = [header.count for header in group.log(0) if not header.attributes & CONTROL]
    assert kept == [3], "whole, at one place"
    assert group.at(1).log.copy(2, 1 << 20) == group.at(0).log.copy(2, 1 << 20)


def test_r8_an_orphan_is_offered_again_when_nobody_answers() -> None:
    """Whoever is asked may not have heard yet that it is original: it has no answer."""
    group = ReplicaGroup()
    group.produce()
    group.pass_time(10)
    assert group.at(1).files.orphans.set_aside(build_batch([Record(b"orphan")], base_offset=0))
    group._do(group.ids[1], group.at(1).wake(group.now))
    assert isinstance(group.queues[group.ids[1], group.ids[0]].pop(), OrphanOffer)
    group.pass_time(1_900)
    assert not group.noted(asked.Republished)
    group.pass_time(200)
    assert [each.base_offset for each in group.noted(asked.Republished)] == [0]
    assert len(group.said(OrphanOffer)) == 2
