"""The whole in-sync set is gone, and another replica is put in its place: what was committed behind
its S is lost, and told; all else holds.  [S004:4.8]
"""

import msgspec
import pytest
from replication_cores import CORES
from replication_shapes import drawn_run, judged

from orderwire.broker.replication.office import Office
from orderwire.broker.replication.settings import Mode
from orderwire.sim.replication_run import Faults, RunSettings, run_replication
from orderwire.verify.replication import Batch, Committed, Lost, judge

MODES = list(Mode)
NAMES = [mode.value for mode in MODES]


def ruins(seed: int, mode: Mode) -> RunSettings:
    """As drawn, with the in-sync set gone one to three times.

    Of orphans that several have, whoever comes later finds the name of who was earlier in the log,
    if that is not deleted: then it is there twice.  [0044]
    """
    drawn = drawn_run(seed, mode, replicas=(2, 3, 3, 4))
    faults = Faults() if seed % 3 == 0 else drawn.faults
    if mode is Mode.ACTIVE_ACTIVE:
        faults = msgspec.structs.replace(faults, deletions=0)
    return msgspec.structs.replace(
        drawn,
        world=msgspec.structs.replace(drawn.world, acks_one_durable=False),
        faults=msgspec.structs.replace(faults, ruins=1 + seed % 3),
        acks_one_lost=True,
    )


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 10, 5))
def test_who_is_put_in_place_tells_the_loss_and_goes_on(mode: Mode, first: int) -> None:
    told = 0
    for seed in range(first, first + 5):
        outcome = judged(CORES[mode], ruins(seed, mode), seed)
        told += sum(isinstance(event, Lost) and event.unclean for event in outcome.history)
    assert told


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("first", range(100, 500, 100))
def test_many_unclean_elections(mode: Mode, first: int) -> None:
    for seed in range(first, first + 100):
        judged(CORES[mode], ruins(seed, mode), seed)


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_loss_that_is_not_told_is_found(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Office, "tell_loss", lambda *_: (True, []))
    found: set[str] = set()
    for seed in range(10):
        outcome = run_replication(CORES[mode], ruins(seed, mode), seed)
        found |= {breach.invariant for breach in outcome.breaches}
    assert "I2" in found


def test_only_who_knows_what_was_committed_contradicts_a_loss() -> None:
    first, second = (Batch(at, at, 0, at, (), seal=True) for at in range(2))
    committed = Committed(0, 1, 0, 2, (first, second))
    again = Committed(1, 1, 1, 2, (msgspec.structs.replace(second, epoch=1),))
    lost = Lost(1, 1, 1, 1, (second,))
    assert {each.invariant for each in judge([committed, lost])} == {"I6"}
    assert not judge([committed, msgspec.structs.replace(lost, unclean=True), again])
