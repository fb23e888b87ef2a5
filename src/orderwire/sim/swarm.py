"""Swarm faults: the seed draws size, rates and which faults exist at all.

A fault that is always there hides what happens without it, so each exists in about half of the
seeds.  About a third of the seeds live on a grid: all times are multiples of one coarse step and
the lifetime is too, so that sends, arrivals and deadlines meet in the same nanosecond.
"""

from random import Random

from msgspec.structs import replace

from orderwire.kernel import ms, stream, us
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.sim.clocks import ClockSettings
from orderwire.sim.delays import (
    Bimodal,
    Constant,
    Delay,
    Edge,
    Exponential,
    Pareto,
    Uniform,
)
from orderwire.sim.network import NetworkSettings
from orderwire.sim.scenario import Crash, Faults, Join, Partition, Scenario, Swarm

GRID_NS = ms(1)


def drawn(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with everything in it that its swarm leaves to this seed."""
    swarm = scenario.swarm
    if swarm is None:
        return scenario
    chance = stream(seed, "swarm")
    members = chance.randint(2, swarm.members_max)
    grid_ns = GRID_NS if chance.random() < 0.33 else 1
    tick_ns = chance.choice((1, us(1), us(100)))
    lifetime_ns = scenario.settings.lifetime_ns
    if lifetime_ns is not None:
        lifetime_ns = ms(chance.randint(3, 100))
    reach_ns = lifetime_ns or ms(50)
    epsilon_ns = us(chance.choice((50, 500, 3_000))) if swarm.skew and _exists(chance) else 0
    epsilon_ns = min(epsilon_ns, reach_ns // 4)
    granularity_ns = ms(chance.choice((1, 2, 5))) if swarm.coarse_timers and _exists(chance) else 1
    gap_ns = ms(chance.choice((1, 4, 15, 60)))
    workload = replace(
        scenario.workload,
        messages=chance.randint(3, swarm.messages_max),
        gap_mean_ns=gap_ns,
        fan_out=chance.choice((0, 0, 1, min(2, members - 1), members // 2)),
        to_self_ratio=chance.choice((0.0, 0.0, 0.3)),
        burst_ratio=chance.choice((0.0, 0.2, 0.5)),
        answer_ratio=chance.choice((0.0, 0.2, 0.4)),
        answers_max=swarm.messages_max,
    )
    entry = ALGORITHMS.get(scenario.algorithm)
    if swarm.own_lifetimes and entry is not None and entry.own_lifetimes:
        living = stream(seed, "swarm/lifetimes")  # of its own: the others get what they always got
        ratio = living.choice((0.1, 0.5, 0.9)) if _exists(living) else 0.0
        workload = replace(workload, own_lifetime_ratio=ratio)
    span_ns = max(gap_ns, gap_ns * workload.messages // members)
    network = NetworkSettings(
        delay=_delay(chance, reach_ns),
        loss_ratio=chance.choice((0.02, 0.1, 0.5)) if swarm.loss and _exists(chance) else 0.0,
        duplicate_ratio=(
            chance.choice((0.05, 0.3)) if swarm.duplication and _exists(chance) else 0.0
        ),
        reorder_ratio=chance.choice((0.05, 0.3)) if swarm.reordering and _exists(chance) else 0.0,
        reorder_ns=chance.randint(1, 2 * reach_ns),
        in_order=not swarm.reordering or chance.random() < 0.1,
        give_up_ns=reach_ns if chance.random() < 0.5 or lifetime_ns is None else None,
        grid_ns=grid_ns,
    )
    faults = _faults(chance, swarm, members, span_ns)
    if swarm.churn:
        messages = min(swarm.messages_max, members * chance.randint(4, 12) * reach_ns // gap_ns)
        workload = replace(workload, messages=messages)
        network = replace(network, incarnations=True)
        faults = _churn(chance, faults, members, gap_ns * messages // members, reach_ns)
    return replace(
        scenario,
        settings=replace(
            scenario.settings,
            members=members,
            tick_ns=tick_ns,
            lifetime_ns=lifetime_ns,
            epsilon_ns=epsilon_ns,
        ),
        workload=workload,
        network=network,
        clocks=ClockSettings(
            spread_ns=epsilon_ns,
            drift_ppm_max=chance.choice((0, 100, 5_000)) if epsilon_ns else 0,
            timer_granularity_ns=granularity_ns,
        ),
        faults=faults,
        liveness=replace(
            scenario.liveness, delay=Uniform(low_ns=us(10), high_ns=min(ms(2), reach_ns // 4))
        ),
        swarm=None,
    )


def _exists(chance: Random) -> bool:
    return chance.random() < 0.5


def _delay(chance: Random, reach_ns: int) -> Delay:
    """Draw a distribution whose delays lie around the lifetime, mostly below it."""
    match chance.randrange(7):
        case 0:
            return Constant(delay_ns=chance.choice((0, us(1), reach_ns // 3, reach_ns)))
        case 1:
            return Uniform(low_ns=0, high_ns=chance.choice((ms(1), reach_ns // 2, 2 * reach_ns)))
        case 2:
            return Exponential(offset_ns=us(100), mean_ns=reach_ns // chance.choice((2, 5, 20)))
        case 3:
            return Bimodal(
                near_ns=us(200),
                far_ns=reach_ns * chance.choice((1, 3, 5)) // 4,
                far_ratio=chance.choice((0.05, 0.3, 0.5)),
                spread_ns=reach_ns // 4,
            )
        case 4:
            return Pareto(
                offset_ns=us(100), scale_ns=reach_ns // 20 + 1, alpha=1.2, cap_ns=3 * reach_ns
            )
        case _:
            return Edge(low_ns=0, high_ns=reach_ns, edge_ns=reach_ns, edge_ratio=0.3)


def _faults(chance: Random, swarm: Swarm, members: int, span_ns: int) -> Faults:
    """Draw partitions and crashes within the time in which messages are sent."""
    partitions: list[Partition] = []
    if swarm.partitions and _exists(chance):
        for _ in range(chance.randint(1, 3)):
            start_ns = chance.randrange(span_ns)
            side = chance.sample(range(members), chance.randint(1, members - 1))
            partitions.append(
                Partition(
                    start_ns=start_ns,
                    end_ns=start_ns + chance.randrange(span_ns),
                    side=tuple(sorted(side)),
                    one_way=chance.random() < 0.3,
                )
            )
    crashes: list[Crash] = []
    if swarm.crashes and members > 2 and _exists(chance):
        for process in sorted(chance.sample(range(members), chance.randint(1, members - 2))):
            at_ns = chance.randrange(span_ns)
            stays_away = chance.random() < 0.25
            restart_ns = None if stays_away else at_ns + chance.randrange(span_ns)
            crashes.append(Crash(process=process, at_ns=at_ns, restart_ns=restart_ns))
    return Faults(partitions=tuple(partitions), crashes=tuple(crashes))


def _churn(chance: Random, faults: Faults, members: int, span_ns: int, reach_ns: int) -> Faults:
    """Draw the lives of every process but one: it joins, restarts some times, perhaps leaves."""
    joins: list[Join] = []
    crashes: list[Crash] = []
    stays = chance.randrange(members)
    for process in range(members):
        if process == stays or chance.random() < 0.2:
            continue
        at_ns = 0
        if chance.random() < 0.3:
            at_ns = chance.randint(1, span_ns // 2 + 1)
            joins.append(Join(process=process, at_ns=at_ns))
        for _ in range(chance.randint(0, 4)):
            # A life ends before, at the end of, or long after its silence.
            at_ns += chance.randint(1, chance.choice((reach_ns, 3 * reach_ns)))
            away_ns = chance.choice((0, 1, reach_ns // 4, reach_ns, 2 * reach_ns))
            leaves = chance.random() < 0.1
            restart_ns = None if leaves else at_ns + away_ns
            crashes.append(Crash(process=process, at_ns=at_ns, restart_ns=restart_ns))
            if leaves:
                break
            at_ns += away_ns
    return Faults(partitions=faults.partitions, crashes=tuple(crashes), joins=tuple(joins))
