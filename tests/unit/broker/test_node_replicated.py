"""A broker whose partitions have replicas: what is asked of them, what clients hear meanwhile."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from logs import batch
from nodes import decode
from replicated_world import ALL, ID, Puppet, World, produce, produced

from orderwire.broker import coordinators
from orderwire.broker.cluster import (
    GROUPS_TOPIC,
    Question,
    group_partition,
)
from orderwire.broker.coordinators import RELOAD_NS
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, LogConfig, PartitionLog, Refused
from orderwire.broker.questions import ASK_AGAIN_NS
from orderwire.broker.replication.effects import (
    Advance,
    Answer,
    Note,
    Recovered,
    Replace,
)
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.replies import Client, Outcome, Reply
from orderwire.broker.requests.produce_run import Run, produce_run
from orderwire.broker.settling import HOLD_NS
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic, TopicSettings
from orderwire.broker.upkeep import UNCLEAN_AFTER_NS
from orderwire.broker.wire.apis import API_BY_KEY, ApiKey
from orderwire.broker.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from orderwire.broker.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from orderwire.broker.wire.generated.delete_groups import DeleteGroupsRequest
from orderwire.broker.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from orderwire.broker.wire.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from orderwire.broker.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from orderwire.broker.wire.generated.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from orderwire.broker.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from orderwire.broker.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from orderwire.broker.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from orderwire.broker.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from orderwire.broker.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.broker.wire.generated.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from orderwire.broker.wire.records import Record, build_batch
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant, ms


def frames(count: int, version: int = 9) -> memoryview:
    """Requests in a row as a client sends them that does not batch; number n has n + 1 records."""
    api = API_BY_KEY[ApiKey.PRODUCE]
    whole = bytearray()
    for number in range(count):
        data = [PartitionProduceData(0, batch(*[b"x" * (60 // (number + 1))] * (number + 1)))]
        body = ProduceRequest(None, -1, 1_000, [TopicProduceData("t", ID, data)])
        head = struct.pack(">hhihs", ApiKey.PRODUCE, version, 100 + number, 1, b"c")
        head += b"\0" if api.request_header_version(version) == 2 else b""
        frame = head + api.encode_request(body, version)
        whole += struct.pack(">i", len(frame)) + frame
    return memoryview(whole)


def run_of(world: World, data: memoryview, token: int = 50) -> Run | None:
    end = 4 + int.from_bytes(data[:4], "big")
    shape = world.broker.shape(data[4:end])
    assert shape is not None
    found = produce_run(
        world.broker,
        shape,
        data,
        0,
        world.now,
        token=token,
        client=world.client,
        requests_max=1_000,
        request_bytes_max=1 << 20,
    )
    world.take()
    return found


def split(version: int, done: Reply | None) -> list[tuple[int, int, int]]:
    """Correlation id, error and offset of each frame."""
    assert done is not None
    data = b"".join(map(bytes, done.parts))  # type: ignore[arg-type]
    assert len(data) == done.length
    found = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        answer = decode(ApiKey.PRODUCE, version, Reply([data[:size]], size))
        part = answer.responses[0].partition_responses[0]
        found.append((int.from_bytes(data[4:8], "big"), part.error_code, part.base_offset))
        data = data[size:]
    return found


def fetch(offset: int, wait_ms: int = 500, epoch: int = -1) -> FetchRequest:
    place = [FetchPartition(0, epoch, offset, -1, -1, 1 << 20)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic("t", partitions=place)]
    )


def fetched(reply: Any, version: int = 12) -> Any:
    assert isinstance(reply, Reply)
    return decode(ApiKey.FETCH, version, reply).responses[0].partitions[0]


class Later:
    """Another thread that does its jobs when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, Instant], None]]] = []

    def __call__(
        self, job: Callable[[], Any], then: Callable[[Any, Instant], None], now: Instant
    ) -> None:
        self.jobs.append((job, then))

    def run(self, now: Instant) -> None:
        for job, then in self.jobs:
            then(job(), now)
        self.jobs.clear()


def test_a_replica_is_opened_aside_once_there_is_a_view_and_hears_then_what_came() -> None:
    aside = Later()
    world = World(aside=aside, is_read=False)
    replicas = world.broker.replicas
    assert replicas is not None
    replicas.connected(BrokerId(1), world.now)
    replicas.connected(BrokerId(2), world.now)
    replicas.receive(ID, 0, BrokerId(1), "first", world.now)  # type: ignore[arg-type]
    assert not aside.jobs, "which epochs are over is not known"
    world.cluster.is_read = True
    replicas.viewed(ID, 0, world.cluster.of, world.now)
    replicas.viewed(ID, 0, world.cluster.of, world.now)
    assert len(aside.jobs) == 1
    replicas.receive(ID, 0, BrokerId(2), "second", world.now)  # type: ignore[arg-type]
    replicas.disconnected(BrokerId(1), world.now)
    assert world.broker.partition("t", 0) is None
    assert world.broker.exists("t", 0)
    _, done = world.send(ApiKey.PRODUCE, 9, produce())
    assert produced(done)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    aside.run(world.now)
    assert world.partition.replica is world.replica
    assert [what for what in world.replica.heard if what[0] != "view"] == [
        ("connected", 2),
        ("second", 2),
    ]
    assert world.replica.heard[0] == ("view", 3)


def test_files_that_are_being_opened_stay_until_they_are() -> None:
    aside = Later()
    world = World(aside=aside, partitions=2)
    world.broker.topic_gone(ID, world.now)
    assert world.removed == []
    aside.run(world.now)
    assert world.removed == ["t"]
    assert all(replica.log.is_closed for replica in world.replicas)
    assert world.broker.partition("t", 0) is None


@pytest.mark.paper("S004:4.6")
def test_an_original_in_doubt_takes_nothing_and_gives_nothing_up() -> None:
    world = World()
    assert world.broker.replicas is not None
    world.broker.replicas.session_in_doubt(True)
    _, done = world.send(ApiKey.PRODUCE, 9, produce())
    assert produced(done)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.replica.asked == []
    world.broker.replicas.session_in_doubt(False)
    world.send(ApiKey.PRODUCE, 9, produce())
    assert len(world.replica.asked) == 1


def sequenced(topic: str, sequence: int) -> ProduceRequest:
    records = build_batch(
        [Record(b"x", timestamp=1)], producer_id=7, producer_epoch=0, base_sequence=sequence
    )
    data = [PartitionProduceData(0, records)]
    return ProduceRequest(None, -1, 1_000, [TopicProduceData(topic, ID, data)])


@pytest.mark.parametrize("version", [9, 13])
def test_a_batch_that_found_no_replica_comes_before_those_behind_it(version: int) -> None:
    """What a producer has in flight may find the replica open in the middle."""
    aside = Later()
    world = World(aside=aside)

    def answer(sequence: int) -> Any:
        _, done = world.send(ApiKey.PRODUCE, version, sequenced("t", sequence))
        if not isinstance(done, Reply):
            return done
        topic = decode(ApiKey.PRODUCE, version, done).responses[0]
        return topic.partition_responses[0].error_code

    assert answer(0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    aside.run(world.now)
    assert answer(1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.replica.asked == []
    assert answer(0) is answer(1) is Outcome.PENDING


@pytest.mark.parametrize("version", [9, 13])
def test_a_batch_that_found_no_topic_comes_before_those_behind_it(version: int) -> None:
    world = World(topic="other")
    other = world.broker.topics.get("other")
    assert other is not None
    world.broker.topic_gone(ID, world.now)
    _, done = world.send(ApiKey.PRODUCE, version, sequenced("t", 0))
    assert isinstance(done, Reply)
    world.replicas = [Puppet(PartitionView(3, BrokerId(0), ALL, 5, ALL))]
    world.broker.topic_changed(msgspec.structs.replace(other, name="t"), world.now)
    _, done = world.send(ApiKey.PRODUCE, version, sequenced("t", 1))
    assert isinstance(done, Reply)
    topic = decode(ApiKey.PRODUCE, version, done).responses[0]
    assert topic.partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    for sequence in (0, 1):
        assert world.send(ApiKey.PRODUCE, version, sequenced("t", sequence))[1] is Outcome.PENDING


def test_a_member_in_doubt_takes_what_members_take() -> None:
    world = World("active-active-lanes", original=1)
    assert world.broker.replicas is not None
    world.replica.takes_produce = True
    world.broker.replicas.session_in_doubt(True)
    world.send(ApiKey.PRODUCE, 9, produce())
    assert len(world.replica.asked) == 1


def test_a_produce_is_answered_when_its_replica_answers() -> None:
    world = World()
    token, done = world.send(ApiKey.PRODUCE, 9, produce())
    assert done is Outcome.PENDING
    assert world.replica.asked[0][1:] == (4, -1)
    world.tell(Answer(world.replica.asked[0][0], Appended(7, 7)))
    assert produced(world.late[token])[0].base_offset == 7


@pytest.mark.parametrize("version", [7, 9, 13])
def test_requests_in_a_row_are_one_to_their_replica_and_each_is_answered(version: int) -> None:
    world = World()
    data = frames(3, version)
    run = run_of(world, data)
    assert run == Run(None, 3, len(data))
    assert [each[1:] for each in world.replica.asked] == [(4, -1)]
    assert not world.late
    world.tell(Answer(world.replica.asked[0][0], Appended(40, 45)))
    assert split(version, world.late[50]) == [(100, 0, 40), (101, 0, 41), (102, 0, 43)]
    assert not world.replica.forgotten


def test_requests_in_a_row_may_be_answered_at_once() -> None:
    world = World()
    world.replica.at_once = Appended(0, 2)
    run = run_of(world, frames(2))
    assert run is not None
    assert split(9, run.reply) == [(100, 0, 0), (101, 0, 1)]
    assert run_of(world, frames(1)) is None, "one alone goes the usual way"


def test_requests_in_a_row_are_refused_together_but_for_their_content() -> None:
    world = World()
    world.replica.at_once = Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "two are gone")
    run = run_of(world, frames(2))
    assert run is not None
    assert split(9, run.reply) == [(n, ErrorCode.NOT_ENOUGH_REPLICAS, -1) for n in (100, 101)]
    world.replica.at_once = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not here")
    run = run_of(world, frames(2))
    assert run is not None
    assert run.reply is not None
    assert run.reply.delay_ns > 0
    world.replica.at_once = Refused(ErrorCode.CORRUPT_MESSAGE, "one of them")
    assert run_of(world, frames(2)) is None, "each is told by itself"


def test_requests_in_a_row_are_answered_in_time_and_forgotten() -> None:
    world = World()
    run_of(world, frames(2))
    world.wait(ms(999))
    assert not world.late
    world.wait(ms(1))
    assert [each[1] for each in split(9, world.late[50])] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    run_of(world, frames(2), token=51)
    world.broker.parked.forget(51)
    assert world.replica.forgotten == [each[0] for each in world.replica.asked]


def test_every_partition_of_a_request_has_its_own_answer() -> None:
    world = World()
    token, done = world.send(ApiKey.PRODUCE, 9, produce(places=2))
    assert done is Outcome.PENDING
    world.tell(
        Answer(world.replica.asked[0][0], Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "two are gone"))
    )
    answers = produced(world.late[token])
    assert answers[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert answers[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_without_acknowledgement_nothing_is_waited_for() -> None:
    world = World()
    _, done = world.send(ApiKey.PRODUCE, 9, produce(acks=0))
    assert done is Outcome.NOTHING
    world.tell(Answer(world.replica.asked[0][0], Appended(0, 0)))
    assert world.replica.asked[0][2] == 1
    assert not world.late


@pytest.mark.parametrize("places", [1, 2])
def test_a_request_is_answered_within_the_time_its_client_allows(places: int) -> None:
    world = World()
    token, _ = world.send(ApiKey.PRODUCE, 9, produce(places=places))
    world.wait(ms(999))
    assert token not in world.late
    world.wait(ms(1))
    assert produced(world.late[token])[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert world.replica.forgotten == [world.replica.asked[0][0]]
    world.tell(Answer(world.replica.asked[0][0], Appended(0, 0)))


def test_a_connection_that_ends_forgets_what_it_asked_for() -> None:
    world = World()
    token, _ = world.send(ApiKey.PRODUCE, 9, produce())
    world.broker.parked.forget(token)
    assert world.replica.forgotten == [world.replica.asked[0][0]]
    world.tell(Answer(world.replica.asked[0][0], Appended(0, 0)))
    assert not world.late


def test_refusals_that_clients_retry_at_once_are_delayed() -> None:
    world = World(original=1)
    world.replica.at_once = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not here")
    _, done = world.send(ApiKey.PRODUCE, 9, produce())
    assert isinstance(done, Reply)
    assert done.delay_ns > 0


def test_a_fetch_waits_at_the_high_watermark_and_wishes_for_a_round() -> None:
    world = World("active-standby")
    world.replica.fill(3)
    world.tell(Advance(2))
    assert fetched(world.send(ApiKey.FETCH, 12, fetch(0))[1]).high_watermark == 2
    token, done = world.send(ApiKey.FETCH, 12, fetch(2))
    assert done is Outcome.PARKED
    assert world.replica.wishes == 1
    world.tell(Advance(3))
    assert fetched(world.late[token]).records


def test_a_follower_parks_what_it_has_not_yet_and_never_calls_it_out_of_range() -> None:
    """[S004:10] 9 and 10."""
    world = World("active-standby", original=1)
    world.replica.fill(2)
    world.tell(Advance(2))
    token, done = world.send(ApiKey.FETCH, 12, fetch(50))
    assert done is Outcome.PARKED
    world.wait(500 * NS_PER_MS)
    assert fetched(world.late[token]).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    world.cluster.asks.clear()
    token, _ = world.send(ApiKey.FETCH, 12, fetch(50))
    assert world.cluster.answer(Question.END, 50) == [1]
    world.take()
    assert token not in world.late, "it may come any moment"
    world.replica.serves_fetch = False
    left = world.send(ApiKey.FETCH, 12, fetch(0))[1]
    assert fetched(left).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert left.delay_ns > 0


@pytest.mark.parametrize("wait_ms", [0, 500])
@pytest.mark.parametrize("mode", ["active-standby", "active-active", "active-active-lanes"])
def test_a_follower_asks_the_original_whether_an_offset_is_behind_the_end(
    mode: str, wait_ms: int
) -> None:
    """[S004:4.7], [S004:10] 16: else a client waits for what never comes."""
    world = World(mode, original=1)
    world.replica.takes_produce = mode == "active-active-lanes"
    world.replica.fill(2)
    world.tell(Advance(2))
    token, done = world.send(ApiKey.FETCH, 12, fetch(50, wait_ms))
    assert done is Outcome.PARKED
    assert world.cluster.answer(Question.END, 49) == [1]
    world.take()
    assert fetched(world.late[token]).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    token, _ = world.send(ApiKey.FETCH, 12, fetch(50, wait_ms))
    refused = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not any more")
    world.cluster.answer(Question.END, refused)
    world.wait(500 * NS_PER_MS)
    assert fetched(world.late[token]).error_code == ErrorCode.OFFSET_NOT_AVAILABLE


def test_only_an_original_that_is_sure_tells_where_the_log_ends() -> None:
    world = World()
    world.replica.fill(3)
    told: list[int | Refused] = []

    def asked(question: Question = Question.END, topic_id: bytes = ID) -> Any:
        assert world.broker.replicas is not None
        world.broker.replicas.questions.answer(question, topic_id, 0, 0, told.append, world.now)
        world.learn()
        if not told:  # it may yet become so
            world.wait(HOLD_NS)
        last = told.pop()
        return last.error if isinstance(last, Refused) else last

    assert asked() == 3
    assert asked(Question.START) == 0
    assert asked(topic_id=bytes(16)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.cluster.sure = False
    assert asked() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.cluster.sure = True
    world.replica.takes_produce = False
    assert asked() is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_original_knows_where_the_log_ends() -> None:
    world = World("active-standby")
    world.replica.fill(2)
    world.tell(Advance(1))
    assert world.send(ApiKey.FETCH, 12, fetch(2))[1] is Outcome.PARKED
    far = world.send(ApiKey.FETCH, 12, fetch(3))[1]
    assert fetched(far).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_only_the_original_sends_consumers_elsewhere_and_only_once() -> None:
    """[S004:10] 11."""
    world = World()
    world.replica.fill(1)
    world.tell(Advance(1))
    sent = []
    for connection in range(6):
        world.client = Client("10.0.0.1", "here", 9092, connection=connection)
        first = fetched(world.send(ApiKey.FETCH, 12, fetch(0))[1])
        sent.append(first.preferred_read_replica)
        assert bool(first.records) == (first.preferred_read_replica == -1)
        again = fetched(world.send(ApiKey.FETCH, 12, fetch(0))[1])
        assert again.preferred_read_replica == -1
        assert again.records
    assert sent == [-1, 1, 2, -1, 1, 2]
    old = fetched(world.send(ApiKey.FETCH, 10, fetch(0))[1], 10)
    assert old.records
    world = World(original=1)
    world.replica.fill(1)
    world.tell(Advance(1))
    assert fetched(world.send(ApiKey.FETCH, 12, fetch(0))[1]).preferred_read_replica == -1


def test_only_brokers_that_live_are_named() -> None:
    world = World()
    world.cluster.alive = [BrokerId(0), BrokerId(2)]
    world.replica.fill(1)
    world.tell(Advance(1))
    sent = set()
    for connection in range(4):
        world.client = Client("10.0.0.1", "here", 9092, connection=connection)
        sent.add(fetched(world.send(ApiKey.FETCH, 12, fetch(0))[1]).preferred_read_replica)
    assert sent == {-1, 2}
    ask = MetadataRequest([MetadataRequestTopic(name="t")])
    about = decode(ApiKey.METADATA, 9, world.send(ApiKey.METADATA, 9, ask)[1])
    assert [one.node_id for one in about.brokers] == [0, 2]
    assert list(about.topics[0].partitions[0].offline_replicas) == [1]


def test_with_lanes_every_client_has_a_leader_of_its_own() -> None:
    world = World("active-active-lanes", original=1)
    ask = MetadataRequest([MetadataRequestTopic(name="t")])
    named = set()
    for number in range(40):
        world.client = Client(f"10.0.0.{number}", "here", 9092, connection=number)
        about = decode(ApiKey.METADATA, 9, world.send(ApiKey.METADATA, 9, ask)[1])
        place = about.topics[0].partitions[0]
        assert place.leader_epoch == 3
        named.add(place.leader_id)
    assert named == {0, 1, 2}


def test_epochs_of_clients_are_compared() -> None:
    world = World("active-standby")
    assert fetched(world.send(ApiKey.FETCH, 12, fetch(0, epoch=2))[1]).error_code == (
        ErrorCode.FENCED_LEADER_EPOCH
    )
    assert fetched(world.send(ApiKey.FETCH, 12, fetch(0, epoch=4))[1]).error_code == (
        ErrorCode.UNKNOWN_LEADER_EPOCH
    )


def test_only_who_knows_what_is_committed_tells_the_end() -> None:
    world = World("active-standby", original=1)
    ask = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])])

    def answer() -> Any:
        done = world.send(ApiKey.LIST_OFFSETS, 7, ask)[1]
        return decode(ApiKey.LIST_OFFSETS, 7, done).topics[0].partitions[0]

    assert answer().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world = World("active-standby")
    world.replica.takes_produce = False
    assert answer().error_code == ErrorCode.LEADER_NOT_AVAILABLE
    world.replica.takes_produce = True
    world.replica.fill(4)
    world.tell(Advance(3))
    found = answer()
    assert (found.offset, found.leader_epoch) == (3, 3)


@pytest.mark.parametrize("mode", ["active-standby", "active-active"])
def test_an_epoch_ends_where_the_log_does_though_s_is_not_there_yet(mode: str) -> None:
    """A consumer may have read further than an original knows to be committed."""
    world = World(mode)
    world.replica.fill(4)
    world.tell(Advance(1))

    def answer(epoch: int) -> Any:
        ask = OffsetForLeaderEpochRequest(
            -1, [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, epoch)])]
        )
        done = world.send(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, ask)[1]
        return decode(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, done).topics[0].partitions[0]

    found = answer(3)
    assert (found.leader_epoch, found.end_offset) == (3, 4)
    view = PartitionView(4, BrokerId(0), ALL, 6, ALL)
    world.cluster.of = view
    assert world.broker.replicas is not None
    world.broker.replicas.viewed(ID, 0, view, world.now)
    found = answer(3)
    assert (found.leader_epoch, found.end_offset) == (3, 4)


@pytest.mark.parametrize("mode", ["active-standby", "active-active", "active-active-lanes"])
def test_nobody_is_sent_to_a_broker_that_was_killed_whose_session_lives(mode: str) -> None:
    world = World(mode, original=1)

    def told(*ended: int) -> tuple[int, int]:
        world.cluster.ended = {BrokerId(one) for one in ended}
        done = world.send(ApiKey.METADATA, 9, MetadataRequest(None))[1]
        found = decode(ApiKey.METADATA, 9, done).topics[0].partitions[0]
        return found.leader_id, found.error_code

    nobody = (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    if mode != "active-active-lanes":
        assert told() == told(2) == (1, ErrorCode.NONE)
        assert told(1) == nobody
        return
    leader, _ = told()
    other, _ = told(leader)
    assert other not in (leader, -1)
    assert told(0, 1, 2) == nobody


def test_a_missing_topic_is_made_once() -> None:
    world = World()
    ask = MetadataRequest([MetadataRequestTopic(name="u")], True)
    for _ in range(3):
        about = decode(ApiKey.METADATA, 9, world.send(ApiKey.METADATA, 9, ask)[1])
        assert about.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert len(world.cluster.made) == 1
    topic, done = world.cluster.made[0]
    assert topic.replicas == (ALL,)
    done(None)


class Groups(World):
    """Broker 0 coordinates every group."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__("active-standby", topic=GROUPS_TOPIC, partitions=partitions)
        self.kept: list[bytes] = []
        """What was written, in its order."""
        for index in range(partitions):
            self.tell(Note(Recovered(3, 0)), index=index)

    def commit(self, offset: int, group: str = "g") -> int:
        """Commit for group g; the topic that is committed to is the only one there is."""
        place = [OffsetCommitRequestPartition(0, offset, -1, None)]
        body = OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(GROUPS_TOPIC, place)])
        return self.send(ApiKey.OFFSET_COMMIT, 8, body)[0]

    def ask(self, *groups: str) -> tuple[int, Any]:
        asked = [OffsetFetchRequestGroup(group, topics=None) for group in groups or ("g",)]
        body = OffsetFetchRequest(groups=asked)
        return self.send(ApiKey.OFFSET_FETCH, 8, body)

    def keep(self, index: int = 0) -> None:
        """What is written last becomes part of the log, and is committed."""
        replica = self.replicas[index]
        self.kept.append(bytes(replica.records[-1]))
        done = replica.log.append(replica.records.pop(), 3, 0)
        assert isinstance(done, Appended)
        self.tell(Advance(replica.log.end_offset), index=index)
        self.tell(Answer(replica.asked[-1][0], done), index=index)

    def take_over(self, written: list[bytes] | None = None) -> None:
        """Become original: of a log that holds this, or of our own again."""
        for records in written or ():
            self.replica.log.append(bytearray(records), 3, 0)
        end = self.replica.log.end_offset
        self.tell(Advance(end), Note(Recovered(4, end)))

    def known(self, *groups: str) -> list[int]:
        """Each group's committed offset; −1: there is none."""
        found = decode(ApiKey.OFFSET_FETCH, 8, self.ask(*groups)[1]).groups
        return [one.topics[0].partitions[0].committed_offset if one.topics else -1 for one in found]

    @staticmethod
    def committed(reply: Any) -> int:
        group = decode(ApiKey.OFFSET_FETCH, 8, reply).groups[0]
        if group.error_code:
            return -int(group.error_code)
        return int(group.topics[0].partitions[0].committed_offset) if group.topics else -1


def test_groups_are_taken_up_again_after_too_few_replicas_were_in_sync() -> None:
    world = Groups()
    token = world.commit(10)
    world.keep()
    answer = decode(ApiKey.OFFSET_COMMIT, 8, world.late[token])
    assert answer.topics[0].partitions[0].error_code == 0
    token = world.commit(20)
    refusal = Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "one is left")
    world.tell(Answer(world.replica.asked[-1][0], refusal))
    answer = decode(ApiKey.OFFSET_COMMIT, 8, world.late[token])
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert world.committed(world.ask()[1]) == -ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    deadline = world.broker.next_deadline()
    assert deadline <= world.now + RELOAD_NS
    world.wait(RELOAD_NS)
    assert world.committed(world.ask()[1]) == 10
    token = world.commit(30)
    world.keep()
    assert world.committed(world.ask()[1]) == 30


def test_a_sync_is_answered_though_its_group_cannot_be_kept() -> None:
    world = Groups()
    ask = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"m")],
    )
    token, done = world.send(ApiKey.JOIN_GROUP, 3, ask)
    assert done is Outcome.PARKED
    world.wait(10 * NS_PER_S)  # more members might have come
    joined = decode(ApiKey.JOIN_GROUP, 3, world.late[token])
    given = [SyncGroupRequestAssignment(joined.member_id, b"all of it")]
    sync = SyncGroupRequest("g", joined.generation_id, joined.member_id, assignments=given)
    token, done = world.send(ApiKey.SYNC_GROUP, 3, sync)
    assert done is Outcome.PARKED
    assert world.replica.asked, "the generation is being written"
    world.wait(world.broker.settings.commit_wait_ns)
    answer = decode(ApiKey.SYNC_GROUP, 3, world.late[token])
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    world.late.clear()
    world.keep()
    assert not world.late


def test_an_offset_is_told_when_no_other_coordinator_can_lack_it() -> None:
    world = Groups()
    world.commit(10)
    token, done = world.ask()
    assert done is Outcome.PENDING
    assert token not in world.late
    world.keep()
    assert world.committed(world.late[token]) == 10


def test_who_may_have_been_overtaken_coordinates_nothing() -> None:
    world = Groups()
    world.commit(10)
    world.keep()
    world.cluster.sure = False
    assert world.committed(world.ask()[1]) == -ErrorCode.NOT_COORDINATOR
    world.cluster.sure = True
    assert world.committed(world.ask()[1]) == 10


def test_clients_do_not_touch_what_keeps_the_groups() -> None:
    world = Groups()
    grow = CreatePartitionsRequest([CreatePartitionsTopic(GROUPS_TOPIC, 9, None)], 1_000)
    answer = decode(ApiKey.CREATE_PARTITIONS, 2, world.send(ApiKey.CREATE_PARTITIONS, 2, grow)[1])
    assert answer.results[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    forget = DeleteRecordsRequest(
        [DeleteRecordsTopic(GROUPS_TOPIC, [DeleteRecordsPartition(0, -1)])], 1_000
    )
    answer = decode(ApiKey.DELETE_RECORDS, 2, world.send(ApiKey.DELETE_RECORDS, 2, forget)[1])
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    alter = IncrementalAlterConfigsRequest(
        [AlterConfigsResource(2, GROUPS_TOPIC, [AlterableConfig("retention.ms", 0, "1")])]
    )
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    answer = decode(key, 1, world.send(key, 1, alter)[1])
    assert answer.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    world = World()
    make = CreateTopicsRequest([CreatableTopic(GROUPS_TOPIC, 1, 1)], 1_000)
    answer = decode(ApiKey.CREATE_TOPICS, 5, world.send(ApiKey.CREATE_TOPICS, 5, make)[1])
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    world.send(ApiKey.METADATA, 9, MetadataRequest([MetadataRequestTopic(name=GROUPS_TOPIC)]))
    made = world.cluster.made[0][0]
    assert made.partitions == world.broker.settings.group_partitions
    assert made.configs["orderwire.mode"] == "active-standby"


def alter(world: World, name: str, value: str | None) -> Any:
    operation = 1 if value is None else 0
    config = [AlterableConfig(name, operation, value)]
    ask = IncrementalAlterConfigsRequest([AlterConfigsResource(2, "t", config)])
    return world.send(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask)


def test_changed_topic_settings_reach_running_replicas() -> None:
    world = World()
    token, done = alter(world, "min.insync.replicas", "2")
    assert done is Outcome.PARKED
    changed, done = world.cluster.changed[0]
    assert world.replica.settings is None
    world.broker.topic_changed(changed, world.now)
    done(None)
    world.take()
    answer = decode(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, world.late[token])
    assert answer.responses[0].error_code == ErrorCode.NONE
    assert world.replica.settings is not None
    assert world.replica.settings.min_insync_replicas == 2
    many = msgspec.structs.replace(
        changed,
        configs={
            **changed.configs,
            "min.insync.replicas": "9",
            "orderwire.round.timeout.ms": "70",
            "orderwire.hole.policy": "wait",
        },
    )
    world.broker.topic_changed(many, world.now)
    assert world.replica.settings.min_insync_replicas == 3, "there are no more replicas"
    assert world.replica.settings.round_timeout_ns == 70 * NS_PER_MS
    assert world.replica.settings.hole_policy.value == "wait"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("orderwire.mode", "active-standby"),
        ("orderwire.mode", None),
        ("orderwire.coordination", "zookeeper"),
    ],
)
def test_what_replicas_agreed_on_for_ever_is_not_changed(name: str, value: str | None) -> None:
    world = World()
    _, done = alter(world, name, value)
    answer = decode(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, done)
    assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
    assert not world.cluster.changed


def forget_until(world: World, before: int) -> tuple[int, Any]:
    place = [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, before)])]
    return world.send(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(place, 1_000))


def forgotten(done: Any) -> tuple[int, int]:
    place = decode(ApiKey.DELETE_RECORDS, 2, done).topics[0].partitions[0]
    return place.error_code, place.low_watermark


def test_records_are_deleted_durably_at_the_original_and_at_the_others() -> None:
    world = World()
    world.replica.fill(4)
    world.tell(Advance(3))
    assert forgotten(forget_until(world, 4)[1]) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert world.replica.starts == []
    token, done = forget_until(world, 2)
    assert done is Outcome.PARKED
    assert world.replica.starts == [2]
    again = PartitionLog.open(world.replica.storage, LogConfig(), 0)
    assert again.start_offset == 2, "what is answered survives"
    assert world.cluster.answer(Question.START, 2) == [1, 2]
    world.take()
    assert forgotten(world.late[token]) == (0, 2)
    token, done = forget_until(world, 1)
    assert world.replica.starts == [2], "nothing has moved"
    assert world.cluster.answer(Question.START, 2) == [1, 2]
    world.take()
    assert forgotten(world.late[token]) == (0, 2)
    world.cluster.alive = [BrokerId(0)]
    assert forgotten(forget_until(world, -1)[1]) == (0, 3), "nobody else lives"


def test_records_are_deleted_when_the_last_member_has_heard_of_it() -> None:
    world = World()
    world.replica.fill(4)
    world.tell(Advance(3))
    token, _ = forget_until(world, 2)
    first, second = world.cluster.asks
    first[-1](2)
    second[-1](1)
    world.take()
    assert token not in world.late
    world.cluster.asks.clear()
    world.wait(ASK_AGAIN_NS)
    assert world.replica.starts == [2, 2], "what it was told may have come too early for it"
    assert world.cluster.answer(Question.START, _GONE) == [2]
    world.wait(ASK_AGAIN_NS)
    world.cluster.alive = [BrokerId(0), BrokerId(1)]
    world.cluster.answer(Question.START, _GONE)
    world.take()
    assert forgotten(world.late[token]) == (0, 2), "who has died is not waited for"
    token, _ = forget_until(world, 3)
    world.replica.view = msgspec.structs.replace(world.cluster.of, original=BrokerId(1))
    world.cluster.answer(Question.START, 2)
    world.wait(ASK_AGAIN_NS)
    assert forgotten(world.late[token]) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


_GONE = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "out of reach")


@pytest.mark.parametrize("mode", ["active-standby", "active-active"])
def test_only_the_original_deletes_records(mode: str) -> None:
    world = World(mode, original=1)
    world.replica.fill(4)
    world.tell(Advance(3))
    assert forgotten(forget_until(world, 2)[1]) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert world.replica.log.start_offset == 0
    assert not world.cluster.asks


def test_with_lanes_the_original_is_asked_to_delete_records() -> None:
    world = World("active-active-lanes", original=1)
    world.replica.takes_produce = True
    world.replica.fill(4)
    world.tell(Advance(3))
    token, done = forget_until(world, 2)
    assert done is Outcome.PARKED
    assert world.cluster.asks[0][:4] == (1, Question.DELETE_RECORDS, 0, 2)
    assert world.replica.log.start_offset == 0
    world.cluster.answer(Question.DELETE_RECORDS, 2)
    world.take()
    assert forgotten(world.late[token]) == (0, 2)
    assert world.replica.log.start_offset == 2, "the client reads here"
    token, _ = forget_until(world, 3)
    refused = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not any more")
    world.cluster.answer(Question.DELETE_RECORDS, refused)
    world.take()
    assert forgotten(world.late[token]) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    world.replica.view = msgspec.structs.replace(world.cluster.of, original=None)
    assert forgotten(forget_until(world, 3)[1]) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_what_retention_deletes_is_told_at_once() -> None:
    world = World()
    world.replica.log.config = LogConfig(segment_bytes=1, retention_bytes=1)
    world.replica.fill(4)
    world.tell(Advance(4))
    world.wait(world.broker.settings.retention_check_ns)
    assert world.replica.log.start_offset > 0
    assert world.replica.starts == [world.replica.log.start_offset]


@pytest.mark.parametrize("first", [0, 1])
def test_groups_of_several_shards_are_deleted_when_all_of_them_keep_it(first: int) -> None:
    world = Groups(partitions=2)
    names = ["a", "d"]
    assert [group_partition(name, 2) for name in names] == [1, 0]
    for name in names:
        world.commit(5, name)
        world.keep(group_partition(name, 2))
    ask = DeleteGroupsRequest(names)
    token, done = world.send(ApiKey.DELETE_GROUPS, 2, ask)
    assert done is Outcome.PENDING
    world.keep(first)
    assert token not in world.late
    world.keep(1 - first)
    answer = decode(ApiKey.DELETE_GROUPS, 2, world.late[token])
    assert [(one.group_id, one.error_code) for one in answer.results] == [("a", 0), ("d", 0)]
    gone = world.send(ApiKey.DELETE_GROUPS, 2, ask)[1]
    errors = [one.error_code for one in decode(ApiKey.DELETE_GROUPS, 2, gone).results]
    assert errors == [ErrorCode.GROUP_ID_NOT_FOUND] * 2


def test_groups_are_not_called_deleted_when_one_shard_does_not_keep_it() -> None:
    world = Groups(partitions=2)
    for name, index in (("a", 1), ("d", 0)):
        world.commit(5, name)
        world.keep(index)
    token, _ = world.send(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["a", "d"]))
    refusal = Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "one is left")
    world.tell(Answer(world.replicas[1].asked[-1][0], refusal), index=1)
    answer = decode(ApiKey.DELETE_GROUPS, 2, world.late[token])
    assert {one.error_code for one in answer.results} == {ErrorCode.NOT_COORDINATOR}
    world.keep(0)


def test_offsets_of_several_shards_are_told_when_all_of_them_keep_them() -> None:
    world = Groups(partitions=2)
    world.commit(5, "a")
    world.commit(6, "d")
    token, done = world.ask("a", "d")
    assert done is Outcome.PENDING
    world.keep(0)
    assert token not in world.late
    world.keep(1)
    groups = decode(ApiKey.OFFSET_FETCH, 8, world.late[token]).groups
    told = [one.topics[0].partitions[0].committed_offset for one in groups]
    assert told == [5, 6]


NAMES = [f"group{number}" for number in range(5)]


def busy(monkeypatch: pytest.MonkeyPatch) -> tuple[Groups, list[int]]:
    """Groups that have committed so often that their partition began anew more than once."""
    monkeypatch.setattr(coordinators, "SNAPSHOT_FROM_BYTES", 4_000)
    world = Groups()
    for number in range(200):
        world.commit(number, NAMES[number % 5])
        world.keep()
    return world, list(range(195, 200))


def test_a_snapshot_shortens_what_a_successor_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    world, expected = busy(monkeypatch)
    log = world.replica.log
    assert log.start_offset > 100
    assert world.replica.starts[-1] == log.start_offset, "the others begin there, too"
    long = [one for one in world.kept if len(one) > 500]
    assert 2 <= len(long) == len(world.replica.starts) <= 15, "most commits are written alone"
    assert world.known(*NAMES) == expected
    world.take_over()
    assert world.known(*NAMES) == expected
    world.commit(1_000, NAMES[0])
    world.keep()
    assert world.known(*NAMES) == [1_000, *expected[1:]]


def test_a_large_snapshot_is_written_in_parts_with_commits_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinators, "SNAPSHOT_FROM_BYTES", 6_000)
    monkeypatch.setattr(coordinators, "SNAPSHOT_PART_BYTES", 100)
    names = [f"group{number}" for number in range(40)]
    world = Groups()
    expected = dict.fromkeys(names, -1)
    for number in range(400):
        name = names[number * 7 % len(names)]
        world.commit(number, name)
        expected[name] = number
        world.keep()
    while world.replica.records:  # the rest of a snapshot goes on by itself
        world.keep()
    assert max(map(len, world.kept)) < 700, "never everything at once"
    assert world.replica.starts, "the log begins with a snapshot"
    assert world.replica.starts == sorted(set(world.replica.starts))
    assert world.known(*names) == list(expected.values())
    world.take_over()
    assert world.known(*names) == list(expected.values())
    for cut in range(len(world.kept) - 60, len(world.kept) + 1, 3):
        other = Groups()
        other.take_over(world.kept[:cut])
        told = other.known(*names)
        other.take_over(world.kept[cut:])
        assert other.known(*names) == list(expected.values()), (cut, told)


def test_a_successor_whose_log_begins_earlier_knows_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, expected = busy(monkeypatch)
    for cut in range(len(world.kept) - 8, len(world.kept) + 1):
        after = Groups()
        after.take_over(world.kept[:cut])
        rounds = [max(number for number in range(cut) if number % 5 == one) for one in range(5)]
        assert after.known(*NAMES) == rounds
    assert rounds == expected


def test_a_group_that_is_deleted_with_a_snapshot_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinators, "SNAPSHOT_FROM_BYTES", 1_000)
    world = Groups()
    world.commit(7, "gone")
    world.keep()
    while not world.replica.starts and len(b"".join(world.kept)) <= 1_000:
        world.commit(8, "stays")
        world.keep()
    token, _ = world.send(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["gone"]))
    world.keep()
    assert token in world.late
    assert world.replica.starts, "this was the write with the snapshot"
    after = Groups()
    after.take_over(world.kept)
    assert after.replica.log.start_offset == 0
    assert after.known("gone", "stays") == [-1, 8]


def test_topics_that_are_being_made_count() -> None:
    world = World()
    limits = TopicSettings()
    each = limits.partitions_max
    count = limits.partitions_total_max // each + 3
    topics = [CreatableTopic(f"t{n}", each, -1) for n in range(count)]
    world.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics, 1_000))
    assert sum(topic.partitions for topic, _ in world.cluster.made) < limits.partitions_total_max
    assert world.cluster.made
    for _, done in list(world.cluster.made):
        done(Refusal(ErrorCode.REQUEST_TIMED_OUT, "not now"))
    world.cluster.made.clear()
    world.send(ApiKey.METADATA, 9, MetadataRequest([MetadataRequestTopic(name="x")]))
    assert len(world.cluster.made) == 1


def test_nobody_waits_for_a_topic_that_was_deleted() -> None:
    world = World()
    assert world.broker.replicas is not None
    world.cluster.of = PartitionView(-1, None, ALL, 0, ALL)
    ready: list[int] = []
    world.broker.replicas.when_ready(world.partition.of, lambda: ready.append(1))
    world.broker.topic_gone(ID, world.now)
    assert not ready
    world.cluster.of = PartitionView(3, BrokerId(0), ALL, 5, ALL)
    world.broker.topic_changed(Topic("t", ID, 1, {}, (ALL,)), world.now)
    world.broker.replicas.viewed(ID, 0, world.cluster.of, world.now)
    assert not ready


def test_a_broker_that_was_just_killed_is_not_called_controller() -> None:
    world = World()
    replicas = world.broker.replicas
    assert replicas is not None
    replicas.me = BrokerId(2)

    def controller() -> int:
        done = world.send(ApiKey.METADATA, 9, MetadataRequest([]))[1]
        return int(decode(ApiKey.METADATA, 9, done).controller_id)

    assert controller() == 2
    replicas.connected(BrokerId(1), world.now)
    assert controller() == 1
    replicas.connected(BrokerId(0), world.now)
    assert controller() == 0
    replicas.disconnected(BrokerId(0), world.now)
    assert controller() == 1


def elect(world: World, *places: int, kind: int = 0, everything: bool = False) -> tuple[int, Any]:
    asked = None if everything else [TopicPartitions("t", list(places))]
    return world.send(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(kind, asked, 1_000))


def held(done: Any) -> list[tuple[int, int]]:
    answer = decode(ApiKey.ELECT_LEADERS, 2, done)
    assert answer.error_code == 0
    return [
        (one.partition_id, one.error_code)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]


@pytest.mark.parametrize("original", [0, 1])
@pytest.mark.parametrize("everything", [False, True])
def test_an_election_is_answered_when_the_preferred_replica_is_original(
    original: int, everything: bool
) -> None:
    world = World(original=original)
    view = msgspec.structs.replace(world.cluster.of, preferred=BrokerId(2))
    world.cluster.of = world.replica.view = view
    assert world.broker.replicas is not None
    world.broker.replicas.connected(BrokerId(2), world.now)
    token, done = elect(world, 0, everything=everything)
    assert done is Outcome.PARKED
    if original == 0:
        assert world.replica.given == [2]
    else:
        assert world.cluster.answer(Question.HAND_OVER, 0) == [1]
        assert world.replica.given == []
    world.take()
    assert token not in world.late
    changed = msgspec.structs.replace(view, original=BrokerId(2), epoch=4)
    world.cluster.of = changed
    world.broker.replicas.viewed(ID, 0, changed, world.now)
    world.take()
    assert held(world.late[token]) == [(0, 0)]
    again = elect(world, 0, everything=everything)[1]
    assert held(again) == ([] if everything else [(0, ErrorCode.ELECTION_NOT_NEEDED)])


def test_an_election_that_cannot_be_held_is_refused() -> None:
    world = World(original=1)
    view = msgspec.structs.replace(world.cluster.of, preferred=BrokerId(2), isr=ALL[:2])
    world.cluster.of = world.replica.view = view
    away = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert held(elect(world, 0, 5)[1]) == [(0, away), (5, unknown)]
    unknown_kind = decode(ApiKey.ELECT_LEADERS, 2, elect(world, 0, kind=2)[1])
    assert unknown_kind.error_code == ErrorCode.INVALID_REQUEST
    world.cluster.of = msgspec.structs.replace(view, isr=ALL)
    token, _ = elect(world, 0)
    world.cluster.answer(Question.HAND_OVER, Refused(away, "not reached"))
    world.take()
    assert held(world.late[token]) == [(0, away)]
    token, _ = elect(world, 0)
    world.wait(1_000 * NS_PER_MS)
    assert held(world.late[token]) == [(0, ErrorCode.REQUEST_TIMED_OUT)]


def bereft(*isr: int) -> World:
    """Nobody is original; we are not in sync, or blank."""
    world = World(original=1)
    members = tuple(BrokerId(each) for each in isr)
    view = msgspec.structs.replace(world.cluster.of, original=None, isr=members)
    world.cluster.of = world.replica.view = view
    world.replica.is_blank = 0 in isr
    return world


def logs(world: World, broker: int, epoch: int | Refused, end: int | Refused) -> None:
    """Answer what a broker was asked of its log."""
    answers = {Question.EPOCH: epoch, Question.LOG_END: end}
    asks, world.cluster.asks = world.cluster.asks, []
    for to, question, index, value, done in asks:
        if to == broker:
            done(answers[question])
        else:
            world.cluster.asks.append((to, question, index, value, done))
    world.take()


def test_the_latest_log_takes_the_place_of_who_was_in_sync() -> None:
    world = bereft(0, 2)
    world.replica.fill(5)  # of epoch 3, copied since its disk was lost
    world.cluster.alive = [BrokerId(0), BrokerId(1)]
    token, done = elect(world, 0, kind=1)
    assert done is Outcome.PARKED
    assert not world.cluster.replaced, "not every one has said what it has"
    logs(world, 1, 2, 9)
    assert world.cluster.replaced == [Replace(BrokerId(0), 5, 3)], "epochs count before ends"
    assert token not in world.late
    assert world.broker.replicas is not None
    view = msgspec.structs.replace(world.cluster.of, isr=ALL[:1], version=6)
    world.broker.replicas.viewed(ID, 0, view, world.now)
    world.take()
    assert token not in world.late
    view = msgspec.structs.replace(view, original=BrokerId(0), epoch=4)
    world.broker.replicas.viewed(ID, 0, view, world.now)
    world.take()
    assert held(world.late[token]) == [(0, 0)]
    world = bereft(2)
    world.replica.fill(5)
    world.cluster.alive = [BrokerId(0), BrokerId(1)]
    elect(world, 0, kind=1)
    logs(world, 1, 3, 6)
    assert world.cluster.replaced == [Replace(BrokerId(1), 5, 3)]
    world = bereft(2)
    world.cluster.alive = [BrokerId(0), BrokerId(1)]
    elect(world, 0, kind=1, everything=True)
    logs(world, 1, Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "out of reach"), 0)
    assert world.cluster.replaced == [Replace(BrokerId(0), 5, 3)], "who is silent is left out"


def test_nobody_takes_the_place_of_who_may_have_everything() -> None:
    world = World(original=1)
    assert held(elect(world, 0, 5, kind=1)[1]) == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert held(elect(world, 0, kind=1, everything=True)[1]) == []
    none = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    world = bereft(2)
    world.cluster.alive = []
    assert held(elect(world, 0, kind=1)[1]) == [(0, none)]
    for epoch, error in (
        (3, ErrorCode.ELECTION_NOT_NEEDED),
        (-1, ErrorCode.ELECTION_NOT_NEEDED),
        (Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "out of reach"), none),
    ):
        world = bereft(1)
        world.cluster.alive = [BrokerId(0), BrokerId(1)]
        token, _ = elect(world, 0, kind=1)
        logs(world, 1, epoch, 9)
        assert held(world.late[token]) == [(0, error)], epoch
        assert not world.cluster.replaced
    world = bereft(1)
    world.cluster.alive = [BrokerId(0), BrokerId(1)]
    elect(world, 0, kind=1)
    logs(world, 1, -2, 0)
    assert world.cluster.replaced, "it has lost its disk"


@pytest.mark.parametrize("epoch", [-1, 3])
def test_brokers_tell_which_log_they_have_and_whether_they_know_that_it_is_all(epoch: int) -> None:
    world = World(original=1)
    assert world.broker.replicas is not None
    questions = world.broker.replicas.questions
    if epoch == 3:
        world.replica.fill(4)
    found: list[int | Refused] = []
    for blank in (False, True):
        world.replica.is_blank = blank
        for question in (Question.EPOCH, Question.LOG_END):
            questions.answer(question, ID, 0, 0, found.append, world.now)
    assert found == [epoch, 4 if epoch == 3 else 0, -3 - epoch, 4 if epoch == 3 else 0]
    world.replica.view = None
    questions.answer(Question.EPOCH, ID, 0, 0, found.append, world.now)
    assert isinstance(found[-1], Refused), "before its first view it knows of no loss"


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_a_topic_may_allow_it_without_anybody_asking(allowed: str) -> None:
    world = bereft(2)
    world.cluster.alive = [BrokerId(0)]
    configs = {"orderwire.mode": "active-active", "unclean.leader.election.enable": allowed}
    world.broker.topic_changed(Topic("t", ID, 1, configs, (ALL,)), world.now)
    assert world.broker.replicas is not None
    world.broker.replicas.upkeep.look_soon(world.now)
    begun = world.now
    wanted = [Replace(BrokerId(0), 5, 3)] if allowed == "true" else []
    while world.now - begun < 2 * UNCLEAN_AFTER_NS:
        world.wait(NS_PER_S)
        if world.now - begun < UNCLEAN_AFTER_NS:
            assert not world.cluster.replaced, "who is in sync may come back"
    assert world.cluster.replaced[:1] == wanted
    view = msgspec.structs.replace(world.cluster.of, original=BrokerId(0), epoch=4)
    world.cluster.of = view
    world.cluster.replaced.clear()
    world.wait(2 * UNCLEAN_AFTER_NS)
    world.wait(2 * UNCLEAN_AFTER_NS)
    assert not world.cluster.replaced


def test_consumers_read_no_further_than_a_loss_when_it_is_told() -> None:
    world = World(original=1)
    partition = world.partition
    partition.high_watermark = 9
    world.replica.high_watermark = 4
    assert world.broker.replicas is not None
    world.broker.replicas.viewed(ID, 0, world.cluster.of, world.now)
    assert partition.high_watermark == 4
