"""What `flush` promises when the power fails, in the active-active modes.  [S004:4.4]"""

import pytest
from replication_cores import CORES
from replication_shapes import judged

from orderwire.broker.replication.active_active_member import Member
from orderwire.broker.replication.settings import Mode, ReplicationSettings
from orderwire.broker.settings import Flush
from orderwire.kernel import NS_PER_MS, NS_PER_S
from orderwire.sim.replication_clients import ProducerSettings, WorldSettings
from orderwire.sim.replication_run import Faults, RunSettings, run_replication

MODES = [Mode.ACTIVE_ACTIVE, Mode.ACTIVE_ACTIVE_LANES]
NAMES = [mode.value for mode in MODES]


def life(mode: Mode, flush: Flush, *, acks: int, faults: Faults, replicas: int = 3) -> RunSettings:
    """Rounds are far apart, and nobody has a copy before: only the owner's disk can keep it."""
    lanes = mode is Mode.ACTIVE_ACTIVE_LANES
    return RunSettings(
        world=WorldSettings(
            producers=tuple(
                ProducerSettings(
                    acks=acks,
                    idempotent=acks == -1,  # clients refuse the other: a lost batch leaves a gap
                    batches=(1, 2) * 20,
                    in_flight_max=1,
                    any_replica=lanes,
                    home=home,
                )
                for home in range(3)
            ),
            acks_one_durable=flush is Flush.MESSAGE,
        ),
        replication=ReplicationSettings(
            flush=flush,
            min_insync_replicas=1,
            round_timeout_ns=60 * NS_PER_MS,
            link_grace_ns=20 * NS_PER_MS,
            sync_interval_ns=NS_PER_S,
            sync_on_fetch=False,
            eager_copy=False,
        ),
        faults=faults,
    )


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("flush", [Flush.GROUP, Flush.MESSAGE], ids=["group", "message"])
def test_what_is_promised_survives_power_failures(mode: Mode, acks: int, flush: Flush) -> None:
    for seed in range(2):
        judged(CORES[mode], life(mode, flush, acks=acks, faults=Faults(power_failures=4)), seed)


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("acks", [1, -1])
def test_without_flush_processes_may_end_but_not_machines(mode: Mode, acks: int) -> None:
    faults = Faults(crashes=4, torn_crashes=2, expiries=1, link_breaks=2)
    for seed in range(2):
        judged(CORES[mode], life(mode, Flush.NONE, acks=acks, faults=faults), seed)


def test_by_message_every_request_has_to_be_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """In lanes others have what acks=1 acknowledges, so that few power failures take it."""
    monkeypatch.setattr(Member, "put_on_disk", lambda self: None)
    settings = life(Mode.ACTIVE_ACTIVE, Flush.MESSAGE, acks=1, faults=Faults(power_failures=4))
    found = (
        breach.invariant
        for seed in range(8)
        for breach in run_replication(CORES[Mode.ACTIVE_ACTIVE], settings, seed).breaches
    )
    assert "I4" in found
