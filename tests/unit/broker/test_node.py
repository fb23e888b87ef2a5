"""Requests against a broker in memory: what is visible when, what waits, what is refused."""

from typing import Any

import pytest
from logs import batch
from nodes import Node, decode, fetch_request

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import MemoryStorage, StorageError
from orderwire.broker.log.faulty import FaultyDisk, FaultyStorage
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.topics import TopicSettings
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from orderwire.broker.wire.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from orderwire.broker.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from orderwire.broker.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from orderwire.broker.wire.generated.find_coordinator import FindCoordinatorRequest
from orderwire.broker.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from orderwire.broker.wire.generated.init_producer_id import InitProducerIdRequest
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
from orderwire.broker.wire.records import read_records
from orderwire.kernel import NS_PER_MS, ms
from orderwire.kernel.errors import OrderwireError, RemoteProtocolError

FAST = BrokerSettings(flush=Flush.NONE, topics=TopicSettings(auto_create=False))
SAFE = BrokerSettings(flush=Flush.GROUP, topics=TopicSettings(auto_create=False))


def values(answer: Any) -> list[bytes | None]:
    return [record.value for record in read_records(bytes(answer.records))]


def test_what_is_written_is_read() -> None:
    node = Node(FAST)
    node.create("t")
    assert node.produce("t", batch(b"a", b"b")).base_offset == 0
    assert node.produce("t", batch(b"c")).base_offset == 2
    answer = node.fetch("t")
    assert values(answer) == [b"a", b"b", b"c"]
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 3)


def test_nothing_is_visible_before_it_is_on_disk() -> None:
    """With flush=group consumers never read what a power failure could take back."""
    node = Node(SAFE)
    node.create("t")
    _, done = node.send(
        ApiKey.PRODUCE,
        9,
        ProduceRequest(
            None,
            1,
            1000,
            [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(b"a"))])],
        ),
    )
    assert isinstance(done, Reply)
    assert done.durable
    assert values(node.fetch("t")) == []
    token, parked = node.send(ApiKey.FETCH, 12, fetch_request("t", [(0, 0)], wait_ms=1000))
    assert parked is Outcome.PARKED
    node.commit()
    woken = decode(ApiKey.FETCH, 12, node.late[token])
    assert values(woken.responses[0].partitions[0]) == [b"a"]


def test_a_disk_fault_under_a_deleted_topic_does_not_end_the_broker() -> None:
    """Its files are renamed while the worker thread may still be writing beside them."""
    node = Node(SAFE)
    node.create("t")
    node.produce("t", batch(b"a"))
    commit = node.broker.take_commit(node.now)
    assert commit is not None
    (_, _, job), *_ = commit.logs
    assert job is not None

    def fail() -> None:
        raise StorageError("cannot write: no such file or directory")

    job.run = fail  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        commit.run()
    deleted = node.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState("t")]))
    assert deleted.responses[0].error_code == ErrorCode.NONE
    commit.run()
    node.broker.committed(commit, node.now)


def test_commit_puts_the_data_down_before_the_offsets_that_refer_to_it() -> None:
    """[broker.md §10.17] After a power failure no group is ahead of its data."""
    disk = FaultyDisk()
    files = FaultyStorage(disk)
    node = Node(SAFE, files)
    node.create("t")
    node.produce("t", batch(b"a", b"b"))
    assert node.broker.has_unsynced
    commit_offset(node, 2)
    order: list[str] = []
    commit = node.broker.take_commit(node.now)
    assert commit is not None
    (_, _, job), *_ = commit.logs
    assert job is not None
    run = job.run
    job.run = lambda: (order.append("data"), run())[1]  # type: ignore[method-assign]
    append = node.broker._journal.append

    def noted(framed: bytes) -> None:
        order.append("offsets")
        append(framed)

    node.broker._journal.append = noted  # type: ignore[method-assign]
    commit.run()
    assert order == ["data", "offsets"]


def commit_offset(node: Node, offset: int, topic: str = "t") -> int:
    place = [OffsetCommitRequestPartition(0, offset, 0, "m")]
    ask = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic(topic, place)])
    answer = node.ask(ApiKey.OFFSET_COMMIT, 8, ask)
    return int(answer.topics[0].partitions[0].error_code)


def test_offsets_and_topics_survive_a_restart_in_memory_of_the_disk() -> None:
    node = Node(SAFE)
    topic_id = node.create("t", 2)
    node.produce("t", batch(b"a", b"b"))
    assert commit_offset(node, 1) == 0
    assert commit_offset(node, 1, "missing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.commit()
    again = Node(SAFE, node.files, node.logs)
    assert again.broker.cluster_id == node.broker.cluster_id
    described = again.ask(ApiKey.METADATA, 12, MetadataRequest(None)).topics
    assert [(one.name, bytes(one.topic_id), len(one.partitions)) for one in described] == [
        ("t", topic_id, 2)
    ]
    assert values(again.fetch("t")) == [b"a", b"b"]
    groups = [OffsetFetchRequestGroup("g", topics=None)]
    found = again.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups)).groups[0]
    assert found.topics[0].partitions[0].committed_offset == 1
    assert found.topics[0].partitions[0].metadata == "m"


def test_full_disk_is_an_error_for_the_producer_and_no_loss() -> None:
    disk = FaultyDisk()
    node = Node(FAST)
    topic_id = node.create("t")
    node.logs.clear()
    node.logs[topic_id, 0] = FaultyStorage(disk)
    node = Node(FAST, node.files, node.logs)
    assert node.produce("t", batch(b"a")).error_code == ErrorCode.NONE
    disk.room_bytes = 10
    assert node.produce("t", batch(b"b")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.room_bytes = None
    assert node.produce("t", batch(b"c")).base_offset == 1
    assert values(node.fetch("t")) == [b"a", b"c"]


def test_failed_sync_is_raised_to_the_runtime() -> None:
    disk = FaultyDisk()
    node = Node(SAFE)
    topic_id = node.create("t")
    node.logs[topic_id, 0] = FaultyStorage(disk)
    node = Node(SAFE, node.files, node.logs)
    node.produce("t", batch(b"a"))
    disk.sync_fails = True
    commit = node.broker.take_commit(node.now)
    assert commit is not None
    with pytest.raises(StorageError):
        commit.run()


def test_idempotent_retries_of_five_requests_are_told_the_first_offsets() -> None:
    """[broker.md §10.5] The answers to five requests in flight are lost; all are sent again."""
    node = Node(FAST)
    node.create("t")
    producer = node.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(None)).producer_id
    sent = [batch(b"%d" % n, producer=(producer, 0, n)) for n in range(5)]
    first = [node.produce("t", bytearray(each)).base_offset for each in sent]
    retried = [node.produce("t", bytearray(each)) for each in sent]
    assert [answer.base_offset for answer in retried] == first == list(range(5))
    assert {answer.error_code for answer in retried} == {0}
    gap = node.produce("t", batch(b"x", producer=(producer, 0, 9)))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(values(node.fetch("t"))) == 5


def test_producer_that_idled_past_its_expiry_goes_on() -> None:
    """[broker.md §10.6] Its next sequence is accepted, not called out of order."""
    node = Node(FAST)
    node.create("t")
    assert node.produce("t", batch(b"a", producer=(7, 0, 0))).error_code == 0
    node.advance(ms(2 * 24 * 3600 * 1000))
    assert node.produce("t", batch(b"b", producer=(7, 0, 1))).error_code == 0


def test_retry_of_what_waits_for_the_disk_is_held_back_too() -> None:
    node = Node(SAFE)
    node.create("t")
    sent = batch(b"a", producer=(7, 0, 0))
    for _ in range(2):
        data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, bytearray(sent))])]
        _, done = node.send(ApiKey.PRODUCE, 9, ProduceRequest(None, 1, 1000, data))
        assert isinstance(done, Reply)
        assert done.durable


def test_producer_ids_are_never_handed_out_twice() -> None:
    node = Node(FAST)
    seen = {node.broker.producer_ids.take() for _ in range(1_500)}
    again = Node(FAST, node.files, node.logs)
    seen |= {again.broker.producer_ids.take() for _ in range(1_500)}
    assert len(seen) == 3_000


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (ProduceRequest(None, 2, 0, []), None),
        (ProduceRequest("tx", -1, 0, []), None),
    ],
)
def test_produce_requests_without_partitions_are_answered(body: Any, error: None) -> None:
    assert Node(FAST).ask(ApiKey.PRODUCE, 9, body).responses == []


def test_produce_refusals() -> None:
    node = Node(FAST)
    node.create("t")
    assert node.produce("t", None).error_code == ErrorCode.INVALID_RECORD
    assert node.produce("t", b"").error_code == ErrorCode.INVALID_RECORD
    assert node.produce("t", b"garbage" * 20).error_code in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_RECORD,
    )
    assert node.produce("t", batch(b"x"), 5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.produce("no", batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    damaged = batch(b"hello")
    damaged[-2] ^= 1
    assert node.produce("t", damaged).error_code == ErrorCode.CORRUPT_MESSAGE
    large = batch(bytes(1_100_000))
    assert node.produce("t", large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    for acks, transaction, error in (
        (7, None, ErrorCode.INVALID_REQUIRED_ACKS),
        (-1, "tx", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ):
        data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(b"x"))])]
        answer = node.ask(ApiKey.PRODUCE, 9, ProduceRequest(transaction, acks, 0, data))
        assert answer.responses[0].partition_responses[0].error_code == error
    assert values(node.fetch("t")) == []


def test_acks_0_has_no_reply() -> None:
    node = Node(FAST)
    node.create("t")
    data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(b"x"))])]
    _, done = node.send(ApiKey.PRODUCE, 9, ProduceRequest(None, 0, 0, data))
    assert done is Outcome.NOTHING
    assert values(node.fetch("t")) == [b"x"]
    data = [TopicProduceData("no", partition_data=[PartitionProduceData(0, batch(b"x"))])]
    with pytest.raises(RemoteProtocolError):
        node.send(ApiKey.PRODUCE, 9, ProduceRequest(None, 0, 0, data))


def test_topics_are_named_by_id_from_version_13_on() -> None:
    node = Node(FAST)
    topic_id = node.create("t")
    unknown = bytes(15) + b"\x09"
    for one, error in ((topic_id, 0), (unknown, ErrorCode.UNKNOWN_TOPIC_ID)):
        data = [TopicProduceData("", one, [PartitionProduceData(0, batch(b"x"))])]
        answer = node.ask(ApiKey.PRODUCE, 13, ProduceRequest(None, -1, 0, data))
        assert answer.responses[0].partition_responses[0].error_code == error
        ask = FetchRequest(topics=[FetchTopic("", one, [FetchPartition(0, -1, 0, -1, -1, 100)])])
        fetched = node.ask(ApiKey.FETCH, 17, ask).responses[0]
        assert bytes(fetched.topic_id) == one
        assert fetched.partitions[0].error_code == error


def test_recreated_topic_is_another_one() -> None:
    """[broker.md §10.16] Whoever still reads the old one is told, by id and by offset."""
    node = Node(FAST)
    old_id = node.create("t")
    node.produce("t", batch(b"a", b"b"))
    commit_offset(node, 2)
    token, parked = node.send(ApiKey.FETCH, 12, fetch_request("t", [(0, 2)], wait_ms=10_000))
    assert parked is Outcome.PARKED
    assert (
        node.ask(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]))
        .responses[0]
        .error_code
        == ErrorCode.NONE
    )
    told = decode(ApiKey.FETCH, 12, node.late[token]).responses[0].partitions[0]
    assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.removed == ["t"]
    assert node.create("t") != old_id
    assert node.fetch("t", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    ask = FetchRequest(topics=[FetchTopic("", old_id, [FetchPartition(0, -1, 0, -1, -1, 100)])])
    by_id = node.ask(ApiKey.FETCH, 13, ask).responses[0].partitions[0]
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    groups = [OffsetFetchRequestGroup("g", topics=None)]
    assert (
        node.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups)).groups[0].topics == []
    )
    by_unknown = DeleteTopicsRequest([DeleteTopicState(topic_id=old_id)])
    assert node.ask(ApiKey.DELETE_TOPICS, 6, by_unknown).responses[0].error_code == (
        ErrorCode.UNKNOWN_TOPIC_ID
    )


def test_fetch_waits_until_there_is_enough_or_its_time_is_over() -> None:
    node = Node(FAST)
    node.create("t", 2)
    ask = fetch_request("t", [(0, 0), (1, 0)], wait_ms=500, min_bytes=150)
    token, parked = node.send(ApiKey.FETCH, 12, ask)
    assert parked is Outcome.PARKED
    node.produce("t", batch(b"a"))
    assert token not in node.late
    node.produce("t", batch(bytes(100)), 1)
    both = decode(ApiKey.FETCH, 12, node.late[token]).responses[0].partitions
    assert [len(values(one)) for one in both] == [1, 1]
    ask = fetch_request("t", [(0, 1)], wait_ms=500)
    token, _ = node.send(ApiKey.FETCH, 12, ask)
    node.advance(ms(500) - 1)
    assert token not in node.late
    node.advance(1)
    assert values(decode(ApiKey.FETCH, 12, node.late[token]).responses[0].partitions[0]) == []


def test_forgotten_fetch_is_not_answered() -> None:
    node = Node(FAST)
    node.create("t")
    token, _ = node.send(ApiKey.FETCH, 12, fetch_request("t", [(0, 0)], wait_ms=500))
    node.broker.parked.forget(token)
    node.produce("t", batch(b"a"))
    node.advance(ms(1000))
    assert token not in node.late


def test_fetch_bounds_bytes_but_the_first_batch_is_whole() -> None:
    node = Node(FAST)
    node.create("t", 3)
    for index in range(3):
        node.produce("t", batch(bytes(1_000)), index)
    asked = [FetchPartition(index, -1, 0, -1, -1, 10) for index in range(3)]
    ask = FetchRequest(max_bytes=10, topics=[FetchTopic("t", partitions=asked)])
    got = node.ask(ApiKey.FETCH, 12, ask).responses[0].partitions
    assert [len(values(one)) for one in got] == [1, 0, 0]


def test_isolation_levels_differ_in_the_list_of_aborted_transactions_only() -> None:
    node = Node(FAST)
    node.create("t")
    node.produce("t", batch(b"a"))
    for level, aborted in ((0, None), (1, [])):
        topics = [FetchTopic("t", partitions=[FetchPartition(0, -1, 0, -1, -1, 1000)])]
        got = node.ask(ApiKey.FETCH, 12, FetchRequest(isolation_level=level, topics=topics))
        assert got.responses[0].partitions[0].aborted_transactions == aborted
        assert values(got.responses[0].partitions[0]) == [b"a"]


def test_leader_epochs_are_checked() -> None:
    node = Node(FAST)
    node.create("t")
    node.produce("t", batch(b"a"))
    topics = [FetchTopic("t", partitions=[FetchPartition(0, 5, 0, -1, -1, 1000)])]
    got = node.ask(ApiKey.FETCH, 12, FetchRequest(topics=topics)).responses[0].partitions[0]
    assert got.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    for epoch, expected in ((0, (0, 1)), (3, (-1, -1))):
        ask = OffsetForLeaderEpochRequest(
            -1, [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, epoch)])]
        )
        end = node.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, ask).topics[0].partitions[0]
        assert (end.leader_epoch, end.end_offset) == expected


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_all_none_or_some(version: int) -> None:
    """[broker.md §6.5] Version 0 means all by an empty list, later ones by null."""
    node = Node(FAST)
    node.create("a")
    node.create("b")
    everything = MetadataRequest([] if version == 0 else None)
    answer = node.ask(ApiKey.METADATA, version, everything)
    assert [topic.name for topic in answer.topics] == ["a", "b"]
    assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [(1, "here", 9092)]
    if version:
        assert node.ask(ApiKey.METADATA, version, MetadataRequest([])).topics == []
    one = MetadataRequest([MetadataRequestTopic(name="missing")])
    assert node.ask(ApiKey.METADATA, version, one).topics[0].error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_metadata_makes_missing_topics_only_when_both_sides_want_it() -> None:
    node = Node(BrokerSettings(flush=Flush.NONE))
    wanted = [MetadataRequestTopic(name="new")]
    no = node.ask(ApiKey.METADATA, 12, MetadataRequest(wanted, allow_auto_topic_creation=False))
    assert no.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    yes = node.ask(ApiKey.METADATA, 12, MetadataRequest(wanted))
    assert yes.topics[0].error_code == ErrorCode.NONE
    bad = [MetadataRequestTopic(name="no/slash")]
    assert node.ask(ApiKey.METADATA, 12, MetadataRequest(bad)).topics[0].error_code == (
        ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    assert node.produce("by-produce", batch(b"x")).error_code == ErrorCode.NONE


def test_errors_that_are_retried_at_once_are_held_back() -> None:
    node = Node(FAST)
    ask = MetadataRequest([MetadataRequestTopic(name="missing")])
    _, done = node.send(ApiKey.METADATA, 12, ask)
    assert isinstance(done, Reply)
    assert done.delay_ns == RETRY_DELAY_NS
    _, done = node.send(ApiKey.FETCH, 12, fetch_request("missing", [(0, 0)], wait_ms=500))
    assert isinstance(done, Reply)
    assert done.delay_ns == RETRY_DELAY_NS


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (CreatableTopic("ok", 1, 1), ErrorCode.NONE),
        (CreatableTopic("", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("..", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("a" * 250, 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("ümlaut", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("there", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (CreatableTopic("with_dots", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("ok", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic("ok", 10_001, 1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic("ok", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            CreatableTopic("ok", 1, 1, configs=[CreatableTopicConfig("cleanup.policy", "compact")]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            CreatableTopic("ok", 1, 1, configs=[CreatableTopicConfig("no.such", "1")]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            CreatableTopic("ok", 1, 1, configs=[CreatableTopicConfig("retention.ms", "soon")]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            CreatableTopic("ok", -1, -1, [CreatableReplicaAssignment(0, [1])]),
            ErrorCode.NONE,
        ),
        (
            CreatableTopic("ok", -1, -1, [CreatableReplicaAssignment(0, [2])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_topics_that_may_and_may_not_be_made(topic: CreatableTopic, error: ErrorCode) -> None:
    node = Node(FAST)
    node.create("there")
    node.create("with.dots")
    dry = node.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([topic], validate_only=True))
    assert dry.topics[0].error_code == error
    assert node.broker.topics.get("ok") is None
    made = node.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([topic]))
    assert made.topics[0].error_code == error
    assert (node.broker.topics.get("ok") is not None) == (error is ErrorCode.NONE)


def test_one_request_must_not_name_a_topic_twice() -> None:
    twice = CreateTopicsRequest([CreatableTopic("t", 1, 1), CreatableTopic("t", 2, 1)])
    made = Node(FAST).ask(ApiKey.CREATE_TOPICS, 7, twice).topics
    assert {topic.error_code for topic in made} == {ErrorCode.INVALID_REQUEST}


def test_partitions_only_grow() -> None:
    node = Node(FAST)
    node.create("t", 2)
    for count, error in ((2, 37), (1, 37), (4, 0)):
        ask = CreatePartitionsRequest([CreatePartitionsTopic("t", count, None)])
        assert node.ask(ApiKey.CREATE_PARTITIONS, 3, ask).results[0].error_code == error
    assert node.produce("t", batch(b"x"), 3).error_code == 0


def test_changed_configuration_reaches_the_log() -> None:
    node = Node(FAST)
    node.create("t")

    def change(name: str, operation: int, value: str | None) -> int:
        resource = AlterConfigsResource(2, "t", [AlterableConfig(name, operation, value)])
        ask = IncrementalAlterConfigsRequest([resource])
        return int(node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask).responses[0].error_code)

    assert change("max.message.bytes", 0, "100") == 0
    assert node.produce("t", batch(bytes(200))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert change("max.message.bytes", 1, None) == 0
    assert node.produce("t", batch(bytes(200))).error_code == 0
    assert change("cleanup.policy", 2, "compact") == ErrorCode.INVALID_CONFIG
    assert change("cleanup.policy", 2, "delete") == 0
    assert change("retention.ms", 2, "5") == ErrorCode.INVALID_CONFIG
    assert change("no.such", 0, "5") == ErrorCode.INVALID_CONFIG
    assert change("retention.ms", 9, "5") == ErrorCode.INVALID_REQUEST
    resources = [
        DescribeConfigsResource(2, "t", ["retention.ms"]),
        DescribeConfigsResource(4, "1", None),
        DescribeConfigsResource(2, "missing", None),
        DescribeConfigsResource(9, "x", None),
    ]
    ask = DescribeConfigsRequest(resources, include_synonyms=True, include_documentation=True)
    topic, broker, missing, unknown = node.ask(ApiKey.DESCRIBE_CONFIGS, 4, ask).results
    assert [(one.name, one.value) for one in topic.configs] == [("retention.ms", "604800000")]
    assert "orderwire.flush" in {one.name for one in broker.configs}
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unknown.error_code == ErrorCode.INVALID_REQUEST


def test_transactions_are_refused_where_clients_ask_first() -> None:
    node = Node(FAST)
    asked = InitProducerIdRequest("tx", 1000)
    answer = node.ask(ApiKey.INIT_PRODUCER_ID, 4, asked)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    for version in range(1, 5):
        ask = FindCoordinatorRequest("tx", 1, ["tx"])
        found = node.ask(ApiKey.FIND_COORDINATOR, version, ask)
        first = found.coordinators[0] if version == 4 else found
        assert first.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    groups = FindCoordinatorRequest("", 0, ["g", "h"])
    named = node.ask(ApiKey.FIND_COORDINATOR, 4, groups).coordinators
    assert [(one.key, one.node_id, one.port) for one in named] == [("g", 1, 9092), ("h", 1, 9092)]


def test_flush_none_still_syncs_now_and_then() -> None:
    """So that recovery after a kill has little to read."""
    node = Node(FAST)
    node.create("t")
    node.produce("t", batch(b"a"))
    assert not node.broker.has_unsynced
    node.advance(FAST.checkpoint_ns)
    assert node.broker.has_unsynced
    node.commit()
    partition = node.broker.partition("t", 0)
    assert partition is not None
    assert partition.log.synced_offset == 1


def test_partly_failed_produce_is_late_and_durable() -> None:
    """One partition is missing, one was written: its reply waits for the delay and the disk."""
    node = Node(SAFE)
    node.create("t")
    parts = [PartitionProduceData(0, batch(b"a")), PartitionProduceData(9, batch(b"b"))]
    data = [TopicProduceData("t", partition_data=parts)]
    _, done = node.send(ApiKey.PRODUCE, 9, ProduceRequest(None, -1, 0, data))
    assert isinstance(done, Reply)
    assert done.durable
    assert done.delay_ns == RETRY_DELAY_NS


def test_damage_found_while_reading_is_told_not_served() -> None:
    node = Node(FAST)
    topic_id = node.create("t")
    node.produce("t", batch(b"a"))
    node.produce("t", batch(b"b"))
    storage = node.logs[topic_id, 0]
    assert isinstance(storage, MemoryStorage)
    name = next(name for name in storage.names() if name.endswith(".log"))
    storage.files[name].content[7] ^= 1  # the base offset, which no checksum covers
    assert node.fetch("t").error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_topic_that_cannot_be_written_down_is_not_made() -> None:
    disk = FaultyDisk()
    node = Node(FAST, FaultyStorage(disk))
    disk.sync_fails = True
    with pytest.raises(StorageError):
        node.create("t")
    assert node.broker.topics.get("t") is None
    disk.sync_fails = False
    node.create("t")
    assert Node(FAST, node.files, node.logs).broker.topics.get("t") is not None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("topics.json", b"not json"),
        ("topics.json", b'{"version":9,"topics":[]}'),
        ("broker.json", b"{}"),
        ("broker.json", b'{"version":9,"cluster_id":"x","next_producer_id":0}'),
    ],
)
def test_damaged_files_are_named_at_the_start(name: str, content: bytes) -> None:
    node = Node(FAST)
    node.create("t")
    node.files.replace_file(name, content)
    with pytest.raises(OrderwireError, match=name):
        Node(FAST, node.files, node.logs)


def test_a_scrub_reads_no_faster_than_it_may() -> None:
    rate = 1_000
    settings = BrokerSettings(scrub_bytes_per_s=rate, scrub_pause_ns=10 * NS_PER_MS)
    node = Node(settings)
    topic_id = node.create("t")
    for _ in range(20):
        node.produce("t", batch(b"a"))
    scrub = node.broker.scrub
    start = node.now
    while not scrub.passes:
        node.advance(NS_PER_MS)
        piece = scrub.take()
        if piece is not None:
            scrub.done(piece, piece.run(), node.now)
    size = 20 * len(batch(b"a"))
    assert scrub.bytes_read == size
    assert node.now - start >= size * 1_000_000_000 // rate
    storage = node.logs[topic_id, 0]
    assert isinstance(storage, MemoryStorage)
    name = next(name for name in storage.names() if name.endswith(".log"))
    storage.files[name].content[5 * len(batch(b"a")) - 1] ^= 1
    while scrub.passes < 3:
        node.advance(NS_PER_MS)
        piece = scrub.take()
        if piece is not None:
            scrub.done(piece, piece.run(), node.now)
    assert scrub.damaged == 1, "told once"
    assert len(node.broker.take_damages()) == 1
    assert Node(BrokerSettings(scrub_bytes_per_s=0)).broker.scrub.next_deadline() is None
