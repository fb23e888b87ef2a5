"""When drawn faults come: at the k-th event of a kind, one behind the other."""

from random import Random
from typing import Any

import pytest

from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication import (
    active_active_messages,
    active_standby_messages,
    effects,
    lane_messages,
)
from orderwire.broker.replication.view import BrokerId
from orderwire.sim.replication_flips import flip_bit
from orderwire.sim.replication_moments import (
    COUNT_MAX,
    KINDS,
    PATIENCE_NS,
    WORK,
    Aim,
    Strike,
    kind_of,
)

LATE = 10 * PATIENCE_NS
"""Behind every pause that is drawn between two faults."""


def drawn(seed: int, *faults: str, kinds: tuple[str, ...] = ("round",)) -> Aim:
    return Aim(list(faults), kinds, Random(seed), 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_fault_comes_at_an_event_of_its_kind_and_befalls_who_takes_part(seed: int) -> None:
    aim = drawn(seed, "crashes")
    now = aim._since
    assert aim.happened("copy", 1, 2, now) is None
    strikes = [aim.happened("round", 1, 2, now) for _ in range(COUNT_MAX)]
    found = [each for each in strikes if each is not None]
    assert [each.fault for each in found] == ["crashes"]
    assert {found[0].who, found[0].other} == {1, 2}
    assert aim.left == []


def test_what_does_not_come_is_not_waited_for_for_ever() -> None:
    aim = drawn(0, "crashes", "pauses")
    found = aim.happened("fetch", 0, 0, LATE)
    assert isinstance(found, Strike)
    assert aim.left == ["pauses"]


def test_every_kind_is_drawn() -> None:
    kinds = {drawn(seed, "crashes", kinds=KINDS)._kind for seed in range(100)}
    assert kinds == set(KINDS)
    with pytest.raises(AssertionError, match="sleep"):
        drawn(0, "crashes", kinds=("sleep",))


def test_what_counts_as_work_is_named_as_it_is() -> None:
    """A message that is given another name would be met no more."""
    modules: list[Any] = [
        active_active_messages,
        active_standby_messages,
        effects,
        lane_messages,
    ]
    names = {name for module in modules for name in vars(module)}
    assert set(WORK) <= names
    assert kind_of(effects.Elect(0)) == "election"
    assert kind_of(effects.Note(effects.RoundOpened(0, 1, 0, 0, 1))) == "round"
    assert kind_of(effects.Tell(BrokerId(1), active_standby_messages.Here(0))) == "membership"
    assert kind_of(effects.Advance(1)) is None


def test_one_bit_flips_on_the_disk_too() -> None:
    storage = FaultyStorage()
    assert not flip_bit(storage, Random(0))
    file = storage.create("0" * 20 + ".log")
    file.append(bytes(64))
    file.sync()
    file.append(bytes(64))
    storage.create("epochs").append(bytes(64))
    for seed in range(20):
        assert flip_bit(storage, Random(seed))
        content = storage.disk.files["0" * 20 + ".log"].content
        assert sum(each.bit_count() for each in content) == 1
        assert flip_bit(storage, Random(seed)), "back again"
        assert not any(content)
        assert not any(storage.disk.files["0" * 20 + ".log"].durable)
