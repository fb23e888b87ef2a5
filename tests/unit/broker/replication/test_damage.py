"""Flipped bits in one replica: detected, not served, never elected, repaired.  [S004:9.10, 10.4]"""

from typing import Any

import pytest
from tests.support.counting_storage import CountingStorage
from tests.support.replica_group import ReplicaGroup

from orderwire.broker.log import Appended, LogConfig, LogDamaged, PartitionLog
from orderwire.broker.replication.active_active import ActiveActiveReplica
from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes
from orderwire.broker.replication.active_standby import ActiveStandby
from orderwire.broker.replication.damage import open_or_set_aside
from orderwire.broker.replication.settings import Mode, ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import HEADER_BYTES
from orderwire.broker.wire.records import Record, build_batch
from orderwire.kernel import NS_PER_MS, Instant

MODES = list(Mode)
NAMES = [mode.value for mode in MODES]
LOG = "0" * 20 + ".log"
FIELDS = {
    "base offset": 7,
    "length": 11,
    "epoch": 15,
    "magic": 16,
    "crc": 20,
    "attributes": 22,
    "last offset delta": 26,
    "base timestamp": 34,
    "max timestamp": 42,
    "producer id": 50,
    "producer epoch": 52,
    "base sequence": 56,
    "count": 60,
    "body": HEADER_BYTES + 3,
}
"""Field → the place of a byte of it in a batch."""


class Opening:
    """Makes replicas as the runtime does."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.damage: list[str] = []

    def __call__(
        self,
        me: BrokerId,
        storage: CountingStorage,
        log: LogConfig,
        settings: ReplicationSettings,
        now: Instant,
    ) -> Any:
        def make() -> Any:
            if self.mode is Mode.ACTIVE_STANDBY:
                return ActiveStandby(me, storage, log, settings, now)
            if self.mode is Mode.ACTIVE_ACTIVE:
                return ActiveActiveReplica(me, storage, log, settings, now)
            opened = PartitionLog.open(storage, log, now // NS_PER_MS, cuts_damage=False)
            return ActiveActiveLanes(me, storage, opened, settings, now)

        replica, reason = open_or_set_aside(storage, make, log.recovery_bytes)
        if reason is not None:
            self.damage.append(reason)
        return replica


def filled(mode: Mode) -> tuple[ReplicaGroup, Opening]:
    opening = Opening(mode)
    group = ReplicaGroup(make=opening)
    for number in range(6):
        token = group.produce(b"%d" % number)
        group.pass_time(20)
        assert isinstance(group.answers[token], Appended)
    return group, opening


def stop(group: ReplicaGroup, broker: int) -> None:
    group.at(broker).close()
    group.crash(broker)


def flip(group: ReplicaGroup, broker: int, at: int, batch: int = 2) -> None:
    """One bit of a batch."""
    content = group.files[BrokerId(broker)].files[LOG].content
    size = len(content) // 6
    content[batch * size + at] ^= 0x10


def same(group: ReplicaGroup) -> bool:
    copies = [group.at(broker).log.copy(0, 1 << 20) for broker in group.ids]
    return bool(copies[0]) and copies[0] == copies[1] == copies[2]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_flipped_bit_while_it_is_down_is_found_and_repaired(mode: Mode, field: str) -> None:
    group, opening = filled(mode)
    victim = group.others[-1]
    stop(group, victim)
    group.pass_time(5_000)
    flip(group, victim, FIELDS[field])
    group.start(victim)
    assert len(opening.damage) == 1
    assert group.at(victim).high_watermark == 0, "nothing of it is served"
    group.pass_time(5_000)
    assert group.znodes.isr == group.ids
    assert same(group)
    assert f"aside-{LOG}.kept" in group.files[victim].files


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_damaged_replica_is_not_elected_even_when_it_is_the_first(mode: Mode) -> None:
    group, _ = filled(mode)
    for broker in group.ids:
        stop(group, broker)
    assert group.znodes.isr == group.ids
    flip(group, 2, FIELDS["body"])
    group.start(2)
    group.pass_time(5_000)
    assert group.original is None
    assert group.at(2).status()["is_blank"]
    group.start(2 - 1)
    group.start(0)
    group.pass_time(10_000)
    assert group.original in (0, 1)
    assert group.znodes.isr == group.ids
    assert same(group)
    token = group.produce(b"more")
    group.pass_time(20)
    assert group.answers[token] == Appended(6, 6)


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_nothing_that_fails_its_checksum_goes_to_a_peer(mode: Mode) -> None:
    """Found while it runs, it ends the broker; the next start sets the log aside."""
    group, opening = filled(mode)
    victim = group.others[-1]
    flip(group, victim, FIELDS["body"])
    with pytest.raises(LogDamaged):
        group.at(victim).log.copy(0, 1 << 20)
    group.crash(victim)
    group.start(victim)
    group.pass_time(10_000)
    assert len(opening.damage) == 1
    assert group.znodes.isr == group.ids
    assert same(group)


def test_what_was_found_is_not_forgotten_in_a_crash() -> None:
    group, opening = filled(Mode.ACTIVE_ACTIVE)
    stop(group, 2)
    storage = group.files[BrokerId(2)]
    storage.replace_file("damaged", b"seen before")
    group.start(2)
    assert opening.damage == ["seen before"]
    assert "damaged" not in storage.files
    group.pass_time(10_000)
    assert same(group)


@pytest.mark.parametrize("field", sorted(set(FIELDS) - {"length"}))
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_damage_behind_the_last_checkpoint_is_no_torn_tail(mode: Mode, field: str) -> None:
    group, opening = filled(mode)
    victim = group.others[-1]
    group.crash(victim)
    group.files[victim].remove("checkpoint")
    flip(group, victim, FIELDS[field])
    group.start(victim)
    assert len(opening.damage) == 1
    group.pass_time(5_000)
    assert group.znodes.isr == group.ids
    assert same(group)


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_torn_tail_is_cut_off_and_nothing_is_set_aside(mode: Mode) -> None:
    group, opening = filled(mode)
    victim = group.others[-1]
    group.crash(victim)
    group.files[victim].remove("checkpoint")
    content = group.files[victim].files[LOG].content
    content += content[: len(content) // 6 - 5]
    group.start(victim)
    assert not opening.damage
    group.pass_time(5_000)
    assert same(group)


def test_a_damaged_log_is_not_cut_before_it_is_written_down() -> None:
    """A start that ends in between would leave a log that looks like one with a torn tail."""
    storage = CountingStorage()
    log = PartitionLog.open(storage, LogConfig(), 0)
    for number in range(4):
        log.append(build_batch([Record(value=b"%d" % number)]), 0, 0)
    file = storage.open(LOG)
    whole = bytearray(file.read(0, file.size))
    whole[file.size // 4 + HEADER_BYTES + 3] ^= 1
    file.truncate(0)
    file.append(whole)
    with pytest.raises(LogDamaged, match="good batches behind it"):
        PartitionLog.open(storage, LogConfig(), 0, cuts_damage=False)
    assert storage.open(LOG).size == len(whole)
    assert PartitionLog.open(storage, LogConfig(), 0).recovery.damaged
