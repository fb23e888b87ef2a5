"""Every protocol under drawn clients, delays and faults: safe always, whole within 20 s after.

[S004:4.5] Faults: crashes (between two writes too), power failures, sessions that end or seem to,
links and processes that stand still, slow members, moves of the log's start; 2 to 5 replicas.
"""

import pytest
from replication_cores import CORES
from replication_shapes import drawn_run, judged

from orderwire.broker.replication.settings import Mode

MODES = list(Mode)
NAMES = [mode.value for mode in MODES]


@pytest.mark.paper("S004:I8")
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("block", range(4))
def test_promises_are_kept(mode: Mode, block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        judged(CORES[mode], drawn_run(seed, mode), seed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("block", range(100))
def test_promises_are_kept_in_ten_thousand_runs(mode: Mode, block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        judged(CORES[mode], drawn_run(seed, mode), seed)
