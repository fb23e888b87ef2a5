"""How few messages a round takes, and what goes into the log before it.  [R5, R8-R10]"""

import pytest
from tests.support.replica_group import ReplicaGroup

from orderwire.broker.flush import Flush
from orderwire.broker.log import Appended
from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.active_active_messages import SyncCopy, SyncPull


def _waves(group: ReplicaGroup, token: int) -> int:
    """How often messages cross until the answer is there."""
    count = 0
    while token not in group.answers:
        count += 1
        crossing = [pair for pair, queue in group.queues.items() for _ in queue]
        assert crossing, "nothing is on its way"
        for source, to in crossing:
            group.deliver(source, to)
    return count


@pytest.mark.parametrize("connection", [1, 2, 3])
def test_acks_all_is_answered_after_one_way_there_and_back(connection: int) -> None:
    """Whoever owns it: members have the batch before the close, and lack nothing.  [R5, R10]"""
    group = ReplicaGroup(flush=Flush.NONE)
    for each in (1, 2, 3):
        group.produce(connection=each)
        group.run()
        group.pass_time(10)
    group.sent.clear()
    token = group.produce(connection=connection)
    assert _waves(group, token) == 2
    assert not group.said(SyncCopy)
    assert not group.said(SyncPull)
    assert group.answers[token] == Appended(3, 3)


def test_what_is_sent_to_all_goes_into_the_log_at_once_unless_there_is_a_gap() -> None:
    group = ReplicaGroup(flush=Flush.NONE)
    group.produce()
    group.run()
    first = group.produce()  # the next round is not due yet
    group.run()
    assert [replica.log.end_offset for replica in group.replicas.values()] == [2, 2, 2]
    assert group.watermarks() == [1, 1, 1]
    assert first not in group.answers
    group.produce(acks=1, connection=2)
    last = group.produce(connection=1)
    group.run()
    ends = [(replica.log.end_offset, replica.files.end) for replica in group.replicas.values()]
    assert ends == [(2, 4), (2, 4), (2, 4)], "the gap stands at all but its owner, whose is acks=1"
    group.pass_time(10)
    assert group.answers[last] == Appended(3, 3)
    assert group.log(0) == group.log(1) == group.log(2)


def test_with_flush_by_message_the_paper_s_journal_keeps_what_no_round_has_settled() -> None:
    group = ReplicaGroup(flush=Flush.MESSAGE)
    group.produce()
    group.run()
    group.produce()
    group.run()
    assert [replica.log.end_offset for replica in group.replicas.values()] == [1, 1, 1]
    assert [replica.files.end for replica in group.replicas.values()] == [2, 2, 2]


def test_what_the_log_has_above_s_is_given_up_as_what_the_journal_has() -> None:
    """Others committed without: it becomes an orphan, and is published again.  [R8]"""
    group = ReplicaGroup(flush=Flush.NONE)
    group.produce()
    group.run()
    group.produce(b"only here", connection=1)
    group.held |= {(group.ids[0], group.ids[1]), (group.ids[0], group.ids[2])}
    assert group.at(0).log.end_offset == 2
    group.crash(0)
    group.held.clear()
    group.pass_time(1000)
    other = group.produce(b"other")
    group.pass_time(10)
    assert group.answers[other] == Appended(1, 1)
    group.start(0)
    group.pass_time(3000)
    assert [each.base_offset for each in group.noted(asked.Orphaned)] == [1]
    assert group.log(0) == group.log(1) == group.log(2)
    assert group.at(0).log.end_offset == 4, "behind the batch that names it"


def test_a_round_begins_two_milliseconds_after_the_one_before_began() -> None:
    """However long that took.  [R9]"""
    group = ReplicaGroup(flush=Flush.NONE)
    group.pass_time(10)
    slow = group.produce()
    group.pass_time(3, run=False)
    group.run()
    assert slow in group.answers
    token = group.produce()
    group.run()
    assert token in group.answers
