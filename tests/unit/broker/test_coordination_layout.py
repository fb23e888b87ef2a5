"""What a cluster keeps in ZooKeeper of topics."""

import msgspec
import pytest

from orderwire.broker.coordination.layout import (
    BrokerData,
    Malformed,
    OriginalData,
    decode_topic,
    encode_topic,
)
from orderwire.broker.coordination.partition import Seen, create_topic
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.topics import Topic

TOPIC = Topic("t", bytes(range(16)), 2, {"a": "b"}, ((2, 0), (0, 1, 2)), 3)


def test_a_topic_reads_as_it_was_written() -> None:
    assert decode_topic("t", encode_topic(TOPIC)) == TOPIC
    assert decode_topic("t", encode_topic(TOPIC).replace(b',"replication":3', b"")).replication == 0
    assert msgspec.json.encode(BrokerData("h", 1, "h:2", "x"))


@pytest.mark.parametrize("replicas", [((1, 1), (0,)), ((), (0,)), ((-1,), (0,))])
def test_a_partition_has_different_brokers_one_at_least(
    replicas: tuple[tuple[int, ...], ...],
) -> None:
    with pytest.raises(Malformed):
        decode_topic("t", encode_topic(msgspec.structs.replace(TOPIC, replicas=replicas)))


def test_the_first_replica_is_the_preferred_original() -> None:
    isr = tuple(BrokerId(each) for each in (0, 2))
    now = Seen(4, 1, OriginalData(BrokerId(0), "x", 4), 9, isr, 7)
    assert now.view((2, 0)) == PartitionView(4, BrokerId(0), isr, 7, isr, BrokerId(2))
    data = [getattr(each, "data", b"") for each in create_topic(TOPIC)]
    assert b'{"epoch":-1,"isr":[0,2]}' in data, "in-sync sets ascend"
