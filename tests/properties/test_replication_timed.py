"""Where steps take time the promises are kept as well.  [S004:4.5]"""

import pytest

from orderwire.broker.flush import Flush
from orderwire.broker.replication.settings import (
    Coordination,
    Distribution,
    Mode,
    ReplicationSettings,
)
from orderwire.kernel import NS_PER_MS, NS_PER_S, stream
from orderwire.sim.replication_costs import Costs
from orderwire.sim.replication_timed import TimedPlan, TimedRun
from orderwire.verify.replication import Judge

SEEDS = 8


def drawn(seed: int, mode: Mode) -> TimedPlan:
    draw = stream(seed, f"timed/{mode.value}")
    return TimedPlan(
        mode=mode,
        brokers=draw.choice([2, 2, 3, 5]),
        partitions=draw.choice([1, 1, 2]),
        producers=draw.randint(2, 6),
        consumers=draw.randint(0, 4),
        readers=draw.randint(0, 3),
        messages=draw.randint(5, 40),
        acks=draw.choice([1, -1]),
        spread_reads=draw.random() < 0.7,
        fetch_bytes=draw.choice([1, 500, 1 << 20]),
        costs=Costs(
            send_ns=draw.choice([0, 8_000, 400_000]),
            store_ns=draw.choice([0, 500_000, 4_000_000]),
            sigma=draw.choice([0.0, 0.25, 1.0]),
        ),
        replication=ReplicationSettings(
            flush=draw.choice(list(Flush)),
            distribution=draw.choice(list(Distribution)),
            coordination=draw.choice(list(Coordination)),
            sync_interval_ns=draw.choice([10, 100]) * NS_PER_MS,
            sync_on_fetch=draw.random() < 0.5,
            eager_copy=draw.random() < 0.5,
            round_timeout_ns=1_000 * NS_PER_S,
            link_grace_ns=1_000 * NS_PER_S,
        ),
    )


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("mode", Mode)
def test_promises_are_kept_in_time(mode: Mode, seed: int) -> None:
    """[S004:4.5] I1 to I10, judged as it goes and at the end."""
    plan = drawn(seed, mode)
    judges = [Judge() for _ in range(plan.partitions)]
    run = TimedRun(plan, seed, on_event=lambda partition, event: judges[partition].take(event))
    run.run()
    for partition, judge in zip(run.partitions, judges, strict=True):
        partition.look()
        partition.settled()
        assert not judge.breaches, judge.breaches[:3]
        assert judge.end == plan.messages * len(partition.producers) == judge.acknowledged
        assert all(each.position == judge.end for each in partition.consumers)
