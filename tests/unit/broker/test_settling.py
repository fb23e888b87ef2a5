"""Requests that come sooner than news of what they name."""

from typing import Any

import msgspec
import pytest
from nodes import decode
from replicated_world import ALL, ID, World, produce, produced

from orderwire.broker.cluster import Question
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.hearing import HEAR_NS
from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication.effects import Note, Recovered
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.replies import Outcome
from orderwire.broker.settling import HELD_BYTES_MAX, HOLD_NS, Named
from orderwire.broker.topics import Topic
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from orderwire.broker.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from orderwire.broker.wire.generated.metadata import MetadataRequest, MetadataRequestTopic

NEW = b"n" * 16


def records(name: str = "t", before: int = -1) -> DeleteRecordsRequest:
    return DeleteRecordsRequest([DeleteRecordsTopic(name, [DeleteRecordsPartition(0, before)])])


def deleted(done: Any) -> tuple[int, int]:
    place = decode(ApiKey.DELETE_RECORDS, 2, done).topics[0].partitions[0]
    return place.error_code, place.low_watermark


def leader(done: Any) -> tuple[int, int]:
    place = decode(ApiKey.METADATA, 9, done).topics[0].partitions[0]
    return place.error_code, place.leader_id


def view_changes(world: World, **changes: Any) -> None:
    view = msgspec.structs.replace(world.cluster.of, **changes)
    world.cluster.of = view
    assert world.broker.replicas is not None
    world.broker.replicas.viewed(ID, 0, view, world.now)
    world.take()


def metadata(world: World) -> tuple[int, Any]:
    return world.begin(ApiKey.METADATA, 9, MetadataRequest(None))


def test_a_topic_that_is_news_is_waited_for() -> None:
    world = World()
    token, done = world.begin(ApiKey.DELETE_RECORDS, 2, records("u"))
    assert done is Outcome.PARKED
    assert [asked for asked, _ in world.cluster.learning] == [["u"]]
    world.broker.topic_changed(Topic("u", NEW, 1, {}, (ALL,)), world.now)
    assert world.learn() == ["u"]
    world.cluster.answer(Question.START, 0)  # the members have forgotten as much
    world.take()
    assert deleted(world.late[token])[0] == ErrorCode.NONE


def test_what_zookeeper_has_not_got_is_unknown_at_once() -> None:
    world = World()
    token, _ = world.begin(ApiKey.DELETE_RECORDS, 2, records("u"))
    world.learn()
    assert deleted(world.late[token])[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_who_comes_while_zookeeper_is_asked_shares_the_next_question() -> None:
    """The answer under way may be older than what the later ones name."""
    world = World()
    tokens = [world.begin(ApiKey.DELETE_RECORDS, 2, records(name))[0] for name in "uvwv"]
    (asked, done), *more = world.cluster.learning
    assert asked == ["u"]
    assert more == []
    world.cluster.learning.clear()
    done(world.now)
    world.take()
    assert set(world.late) == {tokens[0]}
    assert world.learn() == ["v", "w"]
    assert set(world.late) == set(tokens)


def test_a_zookeeper_that_does_not_answer_is_waited_for_once() -> None:
    world = World()
    token, _ = world.begin(ApiKey.DELETE_RECORDS, 2, records("u"))
    world.wait(HOLD_NS - 1)
    assert token not in world.late
    world.wait(HOLD_NS)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert deleted(world.late[token])[0] == unknown
    assert deleted(world.begin(ApiKey.DELETE_RECORDS, 2, records("u"))[1])[0] == unknown
    world.learn()
    assert world.begin(ApiKey.DELETE_RECORDS, 2, records("u"))[1] is Outcome.PARKED


def test_a_topic_is_changed_as_it_is_in_zookeeper() -> None:
    world = World()
    ask = CreatePartitionsRequest([CreatePartitionsTopic("t", 3, None)], 1_000, False)
    world.begin(ApiKey.CREATE_PARTITIONS, 2, ask)
    assert world.cluster.changed == []
    configs = {"orderwire.mode": "active-active", "retention.ms": "7"}
    newer = Topic("t", ID, 1, configs, (ALL,))
    world.broker.topic_changed(newer, world.now)
    assert world.learn() == ["t"]
    ((grown, _),) = world.cluster.changed
    assert (grown.partitions, grown.configs) == (3, configs)


@pytest.mark.parametrize("mode", ["active-standby", "active-active", "active-active-lanes"])
def test_what_nobody_leads_is_held_until_somebody_does(mode: str) -> None:
    world = World(mode, original=1)
    view_changes(world, original=None)
    token, done = metadata(world)
    assert done is Outcome.PARKED
    world.wait(HOLD_NS // 2)
    assert token not in world.late
    view_changes(world, original=BrokerId(2), epoch=4, isr=ALL[2:])
    assert leader(world.late[token]) == (ErrorCode.NONE, 2)


def test_what_nobody_leads_is_waited_for_once_and_not_by_each() -> None:
    world = World(original=1)
    view_changes(world, original=None)
    nobody = (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    first, _ = metadata(world)
    world.wait(HOLD_NS // 2)
    second, _ = metadata(world)
    world.wait(HOLD_NS // 2)
    assert leader(world.late[first]) == leader(world.late[second]) == nobody
    assert leader(metadata(world)[1]) == nobody
    view_changes(world, original=BrokerId(0), epoch=4)  # we are, and it has to be recovered
    view_changes(world, original=None, epoch=4)
    assert leader(metadata(world)[1]) == nobody
    world.replica.takes_produce = True
    view_changes(world, original=BrokerId(0), epoch=5)
    view_changes(world, original=None, epoch=5)
    assert metadata(world)[1] is Outcome.PARKED


def test_a_leader_is_named_once_it_has_answered() -> None:
    world = World(original=1)
    token, done = metadata(world)
    assert done is Outcome.PARKED
    later, _ = metadata(world)
    assert world.cluster.answer(Question.START, 0) == [1]
    world.take()
    assert leader(world.late[token]) == (ErrorCode.NONE, 1)
    assert later not in world.late  # it was asked before that one came
    assert world.cluster.answer(Question.START, Refused(ErrorCode.NONE, "whatever")) == [1]
    world.take()
    assert leader(world.late[later]) == (ErrorCode.NONE, 1)


def test_a_leader_that_turns_out_to_have_ended_is_not_named() -> None:
    world = World(original=1)
    token, _ = metadata(world)
    world.cluster.ended.add(BrokerId(1))
    world.cluster.answer(Question.START, Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "out of reach"))
    world.take()
    assert token not in world.late
    view_changes(world, original=BrokerId(2), epoch=4)
    assert leader(world.late[token]) == (ErrorCode.NONE, 2)


def test_a_silent_leader_is_waited_for_once() -> None:
    world = World(original=1)
    token, _ = metadata(world)
    world.wait(HEAR_NS)
    assert leader(world.late[token]) == leader(metadata(world)[1]) == (ErrorCode.NONE, 1)
    world.cluster.answer(Question.START, 0)
    assert metadata(world)[1] is Outcome.PARKED


def test_who_answers_late_is_not_taken_for_silent_while_it_is_asked_again() -> None:
    world = World(original=1)
    metadata(world)
    world.wait(HEAR_NS - 1)
    metadata(world)
    world.cluster.answer(Question.START, 0)
    world.take()
    world.wait(HEAR_NS // 2)  # the second question is open by then, and not yet for long
    assert metadata(world)[1] is Outcome.PARKED


def test_however_many_ask_a_leader_has_two_questions_at_most() -> None:
    """One that is open, and one that all who came meanwhile share."""
    world = World(original=1, partitions=5)
    first, *others = [metadata(world)[0] for _ in range(50)]
    assert world.cluster.answer(Question.START, 0) == [1]
    world.take()
    assert set(world.late) == {first}
    assert world.cluster.answer(Question.START, 0) == [1]
    world.take()
    assert set(world.late) == {first, *others}
    assert world.cluster.asks == []


def test_with_lanes_every_leader_is_asked_once_for_all_partitions() -> None:
    world = World("active-active-lanes", partitions=5)
    token, _ = metadata(world)
    assert world.cluster.answer(Question.START, 0) == [1, 2]
    world.take()
    assert leader(world.late[token])[0] == ErrorCode.NONE


def test_a_refresh_looks_at_each_partition_when_it_comes_and_when_it_is_answered() -> None:
    """Two looks, however many other brokers are heard: refreshes name hundreds of topics."""
    world = World(original=1, partitions=5)
    world.cluster.views = 0
    token, _ = metadata(world)
    world.cluster.answer(Question.START, 0)
    world.take()
    assert token in world.late
    assert world.cluster.views == 2 * 5


@pytest.mark.parametrize("answered", [True, False])
def test_what_nobody_leads_any_more_while_the_leader_is_asked_is_held(answered: bool) -> None:
    world = World(original=1)
    token, _ = metadata(world)
    view_changes(world, original=None)
    if answered:
        world.cluster.answer(Question.START, 0)
        world.take()
    else:
        world.wait(HEAR_NS)
    assert token not in world.late
    view_changes(world, original=BrokerId(2), epoch=4)
    assert leader(world.late[token]) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("places", [1, 2])
def test_an_original_that_recovers_takes_what_has_waited(version: int, places: int) -> None:
    world = World("active-standby", partitions=places)
    for replica in world.replicas:
        replica.takes_produce = False
        replica.at_once = Appended(7, 7, False)
    token, done = world.begin(ApiKey.PRODUCE, version, produce(places=places))
    assert done is Outcome.PARKED
    for index, replica in enumerate(world.replicas):
        assert token not in world.late
        replica.takes_produce = True
        world.tell(Note(Recovered(3, 0)), index=index)
    done = decode(ApiKey.PRODUCE, version, world.late[token])
    assert [one.base_offset for one in done.responses[0].partition_responses] == [7] * places


def test_an_original_that_recovers_for_long_refuses() -> None:
    world = World("active-standby")
    world.replica.takes_produce = False
    world.replica.at_once = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is being recovered")
    token, _ = world.begin(ApiKey.PRODUCE, 9, produce())
    world.wait(HOLD_NS)
    assert produced(world.late[token])[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_has_gone_is_not_served() -> None:
    world = World("active-standby")
    world.replica.takes_produce = False
    token, _ = world.begin(ApiKey.PRODUCE, 9, produce())
    world.broker.parked.forget(token)
    world.replica.takes_produce = True
    world.tell(Note(Recovered(3, 0)))
    assert world.replica.asked == []
    assert not world.settling.holds_any


def test_there_is_room_for_so_many_bytes() -> None:
    world = World(original=1)
    view_changes(world, original=None)
    named = [Named("t", None)]
    assert world.settling.wait(named, lambda now: None, world.now, HELD_BYTES_MAX)
    assert not world.settling.wait(named, lambda now: None, world.now, 1)
    world.wait(HOLD_NS)
    assert not world.settling.holds_any


def test_another_broker_is_answered_once_we_know_that_we_are_original() -> None:
    world = World("active-active-lanes", original=1)
    view_changes(world, original=None)
    answers: list[int | Refused] = []
    assert world.broker.replicas is not None
    questions = world.broker.replicas.questions
    questions.answer(Question.DELETE_RECORDS, ID, 0, -1, answers.append, world.now)
    assert answers == []
    world.replica.takes_produce = True
    view_changes(world, original=BrokerId(0), epoch=4)
    world.cluster.answer(Question.START, 0)
    assert answers == [0]


def test_a_topic_that_goes_is_waited_for_no_more() -> None:
    world = World(original=1)
    view_changes(world, original=None)
    ask = MetadataRequest([MetadataRequestTopic(name="t")], False)
    token, _ = world.begin(ApiKey.METADATA, 9, ask)
    world.broker.topic_gone(ID, world.now)
    world.wait(HOLD_NS // 10)
    error = decode(ApiKey.METADATA, 9, world.late[token]).topics[0].error_code
    assert error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
