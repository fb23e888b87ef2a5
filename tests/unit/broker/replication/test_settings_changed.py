"""Running replicas are given other settings: what waits for them goes on, or is refused."""

from typing import Any

import msgspec
from standby_group import Group, running
from tests.support.replica_group import ReplicaGroup
from tests.support.replication_lanes import Side, batch

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication.settings import Coordination, OrphanPolicy, ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, NS_PER_S


def configure(group: Group, **changes: Any) -> None:
    settings = msgspec.structs.replace(group.settings, **changes)
    for who in group.ids:
        group.do(who, group.replicas[who].configure(settings, group.now))


def test_what_was_agreed_when_a_replica_was_opened_stays() -> None:
    first = ReplicationSettings()
    wanted = ReplicationSettings(
        min_insync_replicas=1,
        flush=Flush.NONE,
        coordination=Coordination.ZOOKEEPER,
        orphan_policy=OrphanPolicy.DROP,
        pending_bytes_max=1,
    )
    changed = first.changed_to(wanted)
    assert changed == ReplicationSettings(min_insync_replicas=1, orphan_policy=OrphanPolicy.DROP)


def test_a_standby_partition_takes_another_minimum() -> None:
    group = running(3, min_insync_replicas=2)
    group.cut(0, 1)
    group.cut(0, 2)
    group.shrink(0)
    one = group.send(0, b"one", acks=1)
    assert one in group.answers
    assert group.high(0) == 0
    refused = group.answers[group.send(0, b"all")]
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
    configure(group, min_insync_replicas=1)
    assert group.high(0) == 1, "what waited for a second replica is committed"
    assert isinstance(group.answers[group.send(0, b"alone")], Appended)
    configure(group, min_insync_replicas=2)
    assert isinstance(group.answers[group.send(0, b"again")], Refused)


def test_a_standby_original_waits_as_long_as_it_is_told_now() -> None:
    group = running(3, min_insync_replicas=2, round_timeout_ns=60 * NS_PER_S)
    group.send(0, b"a")
    group.talk([0, 1])
    original = group.replicas[BrokerId(0)]
    configure(group, round_timeout_ns=100 * NS_PER_MS)
    due = original.next_deadline()
    assert due is not None
    assert due <= group.now + 100 * NS_PER_MS


def test_an_active_active_partition_takes_other_times_and_another_minimum() -> None:
    group = ReplicaGroup(sync_interval_ns=60 * NS_PER_S, round_timeout_ns=200 * NS_PER_MS)
    assert group.original == 0

    def change(**changes: Any) -> None:
        group.settings = msgspec.structs.replace(group.settings, **changes)
        for who in group.ids:
            if who in group.replicas:
                group._do(who, group.at(who).configure(group.settings, group.now))

    group.produce(acks=1)
    group.run()
    group.pass_time(1_000)
    assert group.watermarks() == [0, 0, 0], "no round is due"
    change(sync_interval_ns=20 * NS_PER_MS)
    group.run()
    group.pass_time(30)
    assert group.watermarks() == [1, 1, 1]
    group.crash(2)
    group.pass_time(1_000)
    waiting = group.produce()
    change(min_insync_replicas=3)
    group.run()
    refused = group.answers[waiting]
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    group.pass_time(1_000)
    assert group.watermarks() == [1, 1], "too few are in sync"
    change(min_insync_replicas=1)
    group.run()
    group.pass_time(1_100)
    assert group.watermarks() == [2, 2]


def test_every_part_of_an_active_active_replica_has_the_same_settings() -> None:
    group = ReplicaGroup()
    replica = group.at(0)
    settings = msgspec.structs.replace(group.settings, orphan_policy=OrphanPolicy.DROP)
    replica.configure(settings, group.now)
    assert replica.original is not None
    assert replica.rounds is not None
    parts = (
        replica.member,
        replica.rejoining,
        replica.republisher,
        replica.original,
        replica.rounds,
    )
    assert all(part.settings == replica.settings == settings for part in parts)


def test_a_partition_with_lanes_takes_another_minimum() -> None:
    side = Side(round_timeout_ns=100 * NS_PER_MS)
    side.settle()
    side.crash(1)
    side.crash(2)
    side.produce(0, batch("one"), acks=1)
    side.settle(NS_PER_S)
    original = side.replicas[0]
    assert original.high_watermark == 0
    settings = msgspec.structs.replace(side.settings, min_insync_replicas=1)
    side._do(0, original.configure(settings, side.now))
    side.settle()
    assert original.high_watermark == 1
    two = side.produce(0, batch("two"))
    side.settle()
    assert side.offset(two) == 1
