"""Originals that give their office to another: nothing is lost, doubled, or left unknown."""

import msgspec
import pytest
from replication_cores import CORES
from replication_shapes import drawn_run

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication.effects import Resign
from orderwire.broker.replication.settings import Mode
from orderwire.sim.replication_run import Faults, ReplicationRun

MODES = pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)


class Watched(ReplicationRun):
    """Counts who resigns, and what clients hear that they cannot make sense of."""

    resigned = 0
    unknown = 0

    def watch(self) -> None:
        world = self.world
        answered, carry_out = world.answered, world._do

        def heard(token: int, who: int, connection: int, result: Appended | Refused) -> None:
            if isinstance(result, Refused):
                unknown = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                self.unknown += result.error is unknown
            answered(token, who, connection, result)

        def do(broker: object, effect: object) -> None:
            self.resigned += isinstance(effect, Resign)
            carry_out(broker, effect)  # type: ignore[arg-type]

        world.answered = heard  # type: ignore[method-assign]
        world._do = do  # type: ignore[method-assign]


@MODES
def test_where_nothing_fails_every_request_is_answered_before_an_original_goes(mode: Mode) -> None:
    resigned = 0
    for seed in range(12):
        drawn = drawn_run(seed, mode, replicas=(2, 3))
        run = Watched(
            CORES[mode], msgspec.structs.replace(drawn, faults=Faults(hand_overs=8)), seed
        )
        run.watch()
        outcome = run.run()
        assert not outcome.breaches, f"seed {seed}: {outcome.breaches[:3]}"
        assert outcome.settled_ns is not None, f"seed {seed}"
        assert not outcome.unsent, f"seed {seed}"
        assert not run.unknown, f"seed {seed}: somebody does not know whether it is stored"
        resigned += run.resigned
    assert resigned > 30, "it was tried"
