"""Replicas whose steps take time: what they are charged, and that it is always the same."""

import pytest
from msgspec.structs import replace

from orderwire.broker.flush import Flush
from orderwire.broker.replication.settings import (
    Coordination,
    Distribution,
    Mode,
    ReplicationSettings,
)
from orderwire.broker.wire.records import Record, build_batch
from orderwire.kernel import NS_PER_MS, NS_PER_S
from orderwire.kernel.errors import LocalProtocolError
from orderwire.sim.replication_costs import Costs, Meter, batches_in
from orderwire.sim.replication_timed import TimedPlan, run_timed

PATIENT = ReplicationSettings(
    flush=Flush.MESSAGE,
    round_timeout_ns=1_000 * NS_PER_S,
    link_grace_ns=1_000 * NS_PER_S,
    sync_interval_ns=5 * NS_PER_S,
)
PAPER = replace(
    PATIENT,
    distribution=Distribution.REQUEST,
    coordination=Coordination.ZOOKEEPER,
    sync_on_fetch=False,
    eager_copy=False,
)
STANDBY = TimedPlan(mode=Mode.ACTIVE_STANDBY, replication=PATIENT, messages=40)
ACTIVE = TimedPlan(mode=Mode.ACTIVE_ACTIVE, replication=PAPER, messages=40)


def test_costs_count_the_first_in_full_and_the_others_in_part() -> None:
    costs = Costs(send_ns=10, store_ns=100, sigma=0.5, rho=0.1)
    assert [costs.of_message(each) for each in (0, 1, 11)] == [10, 10, 20]
    assert [costs.of_storing(each) for each in (0, 1, 3)] == [0, 100, 200]
    with pytest.raises(LocalProtocolError, match="sigma=-1"):
        Costs(sigma=-1)


def test_batches_are_counted_by_their_lengths() -> None:
    batch = bytes(build_batch([Record(value=b"x" * 100)]))
    assert [batches_in(data) for data in (b"", batch, batch * 3, batch * 2 + batch[:30])] == [
        0,
        1,
        3,
        2,
    ]


def test_a_meter_tells_messages_stored_alone_from_those_stored_together() -> None:
    meter = Meter(Costs(store_ns=100, sigma=0.5))
    for count in (1, 0, 3):
        meter.sync(count)
    assert (meter.take(), meter.take()) == (300, 0)
    assert (meter.alone_ns, meter.together_ns, meter.stored) == (100, 200, 4)


def test_one_producer_waits_for_what_one_message_takes() -> None:
    """Standby, acks=1: two links, a request and an answer, one storing, one copy on its way."""
    plan = replace(STANDBY, producers=1, messages=1, costs=Costs(client_ns=0))
    costs = plan.costs
    wanted = 2 * costs.link_ns + 3 * costs.send_ns + costs.store_ns
    assert run_timed(plan, 1).answer_ns == wanted


def test_both_disks_of_active_active_work_at_once() -> None:
    standby, active = run_timed(STANDBY, 1), run_timed(ACTIVE, 1)
    assert 1.9 < standby.produce_ns / active.produce_ns <= 2
    assert standby.stored == [200, 200]
    assert active.stored == [300, 300]  # its share, and all of them in the round
    assert active.rounds == 1
    assert [each["alone"] for each in active.busy_ns] == [200 * NS_PER_MS] * 2


def test_a_round_within_the_measured_time_costs_what_it_stores() -> None:
    """n / (1 + n σ): every replica writes every message once more."""
    plan = replace(ACTIVE, replication=replace(PAPER, sync_interval_ns=40 * NS_PER_MS))
    plan = replace(plan, messages=200)
    gain = run_timed(replace(STANDBY, messages=200), 1).produce_ns / run_timed(plan, 1).produce_ns
    assert gain == pytest.approx(2 / 1.5, rel=0.06)


@pytest.mark.parametrize("mode", Mode)
def test_a_seed_gives_the_same_times(mode: Mode) -> None:
    plan = TimedPlan(mode=mode, replication=PATIENT, messages=20, acks=-1, consumers=3, brokers=3)
    assert run_timed(plan, 7) == run_timed(plan, 7)
    assert run_timed(plan, 7) != run_timed(plan, 8)


def test_partitions_share_disks_and_have_different_originals() -> None:
    plan = replace(STANDBY, partitions=2, producers=4)
    result = run_timed(plan, 1)
    assert sum(result.stored) == 2 * 160
    assert all(each["client"] > 0 for each in result.busy_ns)


def test_readers_read_at_both_or_at_one() -> None:
    slow = Costs(send_ns=400_000)
    plan = replace(ACTIVE, producers=1, readers=6, fetch_bytes=1, costs=slow)
    both = run_timed(plan, 1)
    one = run_timed(replace(plan, spread_reads=False), 1)
    assert one.read_ns / both.read_ns == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("wrong", [{"brokers": 0}, {"partitions": 65}])
def test_nonsense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(LocalProtocolError, match="expected 1 … 16, 1 … 64"):
        run_timed(replace(STANDBY, **wrong), 1)
