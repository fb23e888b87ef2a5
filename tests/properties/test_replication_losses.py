"""Power failures of all replicas at once, where nobody waits for a disk: S goes back, and is told.

[S004:4.8] Each disk keeps another part of what was not synced.  What is lost was to be expected;
that the partition elects, serves and agrees again, and that no S goes back without being told, was
not.
"""

import msgspec
import pytest
from replication_cores import CORES
from replication_shapes import drawn_run, judged

from orderwire.broker.flush import Flush
from orderwire.broker.replication.settings import Mode
from orderwire.sim.replication_run import Faults, RunSettings
from orderwire.verify.replication import (
    Batch,
    Committed,
    Delivered,
    Event,
    Lost,
    Requested,
    RoundEnd,
    WentBack,
    judge,
)

MODES = list(Mode)
NAMES = [mode.value for mode in MODES]


def blackouts(seed: int, mode: Mode) -> RunSettings:
    """As drawn, with the power failing everywhere one to three times."""
    drawn = drawn_run(seed, mode, replicas=(2, 3, 3, 4))
    faults = Faults() if seed % 3 == 0 else drawn.faults
    return msgspec.structs.replace(
        drawn,
        world=msgspec.structs.replace(drawn.world, acks_one_durable=False),
        replication=msgspec.structs.replace(drawn.replication, flush=Flush.NONE),
        faults=msgspec.structs.replace(
            faults, power_failures=0, deletions=0, blackouts=1 + seed % 3
        ),
        acks_one_lost=True,
    )


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 10, 5))
def test_a_power_failure_of_all_is_told_and_gone_on_from(mode: Mode, first: int) -> None:
    told = 0
    for seed in range(first, first + 5):
        outcome = judged(CORES[mode], blackouts(seed, mode), seed)
        told += sum(isinstance(event, Lost) for event in outcome.history)
    assert told


@pytest.mark.parametrize("seed", [44, 48, 127, 152])
def test_lanes_whose_files_lost_different_parts_go_on(seed: int) -> None:
    """44: half of a copied log is nobody's to be lost; 127: one that is not told yet still serves.

    48, 152: what a start finds noted of S counts from the first view on.
    """
    mode = Mode.ACTIVE_ACTIVE_LANES
    judged(CORES[mode], blackouts(seed, mode), seed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("first", range(100, 1100, 100))
def test_many_power_failures_of_all(mode: Mode, first: int) -> None:
    for seed in range(first, first + 100):
        judged(CORES[mode], blackouts(seed, mode), seed)


def batch(first: int, epoch: int = 0) -> Batch:
    return Batch(first, first, epoch, first, (), seal=True)


def test_only_what_is_told_lets_s_go_back() -> None:
    committed = Committed(0, 1, 0, 3, (batch(0), batch(1), batch(2)))
    again = Committed(0, 1, 2, 3, (batch(2, epoch=1),))
    lost = Lost(1, 0, 2, 3, (batch(0), batch(1)))
    back = WentBack(0, 1, 2)
    assert not judge([committed, RoundEnd(0, 3, 3), lost, back, RoundEnd(1, 2, 2), again])
    assert {each.invariant for each in judge([committed, back])} == {"I6"}
    assert {each.invariant for each in judge([committed, again])} == {"I2"}
    said = [committed, RoundEnd(0, 3, 3), RoundEnd(1, 2, 2)]
    assert {each.invariant for each in judge(said)} == {"I6"}


def test_what_a_replica_in_sync_has_is_not_lost() -> None:
    committed = Committed(0, 1, 0, 2, (batch(0), batch(1)))
    assert {each.invariant for each in judge([committed, Lost(1, 0, 1, 2, (batch(1),))])} == {"I6"}


def broken(*events: Event) -> set[str]:
    return {each.invariant for each in judge(events)}


def test_only_who_has_not_heard_of_a_loss_serves_what_is_lost() -> None:
    kept = Batch(0, 0, 0, 0, ("a",))
    gone = Batch(1, 1, 0, 1, ("b",))
    before: list[Event] = [
        Requested("p", ("a", "b"), acks=1),
        *(Committed(broker, 1, 0, 2, (kept, gone)) for broker in (0, 1)),
    ]
    lost = Lost(1, 0, 1, 2)
    served = Delivered("c", 1, 1, 2, 2, ((1, "b"),))
    assert not broken(*before, lost, served)
    other = Delivered("c", 1, 1, 2, 2, ((1, "x"),))
    assert broken(*before, lost, other) == {"I3"}
    told = WentBack(1, 1, 1)
    assert broken(*before, lost, told, served) == {"I3"}
    anew = Committed(1, 2, 0, 1, (kept,))
    assert broken(*before, lost, anew, served) == {"I3"}
