"""What a cluster keeps in ZooKeeper of topics."""

import msgspec
import pytest

from orderwire.broker.coordination.commands import Check, Set
from orderwire.broker.coordination.layout import (
    BrokerData,
    IsrData,
    Malformed,
    OriginalData,
    PartitionPaths,
    decode_isr,
    decode_topic,
    encode_topic,
)
from orderwire.broker.coordination.partition import Seen, change_isr, create_topic, lose, replace
from orderwire.broker.replication.effects import ChangeIsr, Lose, Replace
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


def test_another_in_place_of_who_was_in_sync_stays_marked_until_the_loss_is_told() -> None:
    paths = PartitionPaths("t", 0)
    one, two, three = (BrokerId(each) for each in range(3))
    now = Seen(4, 5, None, 0, (one, two), 7)
    wish = Replace(three, 7, 4)
    done = replace(paths, now, wish)
    assert done is not None
    check, put = done
    assert check == Check(paths.epoch, 5), "whoever was elected meanwhile stays"
    assert isinstance(put, Set)
    assert put.version == 7
    assert decode_isr(paths.isr, put.data) == IsrData(4, (three,), True)
    original = OriginalData(three, "x", 5)
    assert replace(paths, msgspec.structs.replace(now, original=original), wish) is None
    assert replace(paths, msgspec.structs.replace(now, isr_version=8), wish) is None
    assert replace(paths, msgspec.structs.replace(now, epoch=5), wish) is None
    elected = Seen(5, 6, original, 9, (three,), 8, unclean=True)
    assert elected.view((0, 1, 2)).unclean
    wider = change_isr(paths, elected, three, ChangeIsr((one, three), 8, 5))
    assert wider is not None
    assert isinstance(wider[-1], Set)
    assert decode_isr(paths.isr, wider[-1].data).unclean, "the loss is not told yet"
    told = lose(paths, elected, three, Lose(5, 20, 40, True))
    assert told is not None
    assert isinstance(told[-1], Set)
    assert not decode_isr(paths.isr, told[-1].data).unclean
