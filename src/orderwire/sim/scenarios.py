"""The named scenarios.  `orderwire sim run NAME`."""

from collections.abc import Mapping
from pathlib import Path

from orderwire.kernel import ms, us
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.clocks import ClockSettings
from orderwire.sim.delays import Bimodal, Edge, Exponential, Pareto, Uniform
from orderwire.sim.network import NetworkSettings
from orderwire.sim.scenario import (
    Crash,
    Faults,
    Partition,
    Scenario,
    Swarm,
    Workload,
    read_scenario,
)

CONFERENCE_NS = ms(250)
"""Lifetime of the video conference.  [S000:sec.2.2]"""

_TALK = Workload(
    messages=200, gap_mean_ns=ms(20), answer_ratio=0.2, answers_max=100, to_self_ratio=0.1
)

_ALL = (
    Scenario(
        name="s000-small",
        about="Four members, a tail of delays, a little loss: the first thing to run.",
        settings=OrderingSettings(members=4, lifetime_ns=ms(50)),
        workload=Workload(messages=40, gap_mean_ns=ms(10), answer_ratio=0.1),
        network=NetworkSettings(delay=Exponential(offset_ns=ms(1), mean_ns=ms(9)), loss_ratio=0.03),
    ),
    Scenario(
        name="s000-reordering",
        about="The paper's simulation: exponential gaps of 0.1 s, fan-out 3, heavy reordering.",
        settings=OrderingSettings(members=10, lifetime_ns=CONFERENCE_NS, tick_ns=us(100)),
        workload=Workload(messages=500, gap_mean_ns=ms(100), fan_out=3, payload_bytes=1024),
        network=NetworkSettings(delay=Exponential(offset_ns=ms(5), mean_ns=ms(45))),
    ),
    Scenario(
        name="lossy",
        about="Every fifth copy is lost, some come twice, and nobody says which.",
        settings=OrderingSettings(members=5, lifetime_ns=ms(60)),
        workload=_TALK,
        network=NetworkSettings(
            delay=Pareto(offset_ns=ms(1), scale_ns=ms(4), alpha=1.3, cap_ns=ms(150)),
            loss_ratio=0.2,
            duplicate_ratio=0.1,
        ),
    ),
    Scenario(
        name="partition",
        about="Two sides lose each other twice; once, one side still hears the other.",
        settings=OrderingSettings(members=6, lifetime_ns=ms(80)),
        workload=_TALK,
        network=NetworkSettings(
            delay=Uniform(low_ns=ms(1), high_ns=ms(30)), loss_ratio=0.02, give_up_ns=ms(80)
        ),
        faults=Faults(
            partitions=(
                Partition(start_ns=ms(150), end_ns=ms(300), side=(0, 1, 2)),
                Partition(start_ns=ms(400), end_ns=ms(500), side=(4, 5), one_way=True),
            )
        ),
    ),
    Scenario(
        name="churn",
        about="Members crash with all they know and come back; one stays away.",
        settings=OrderingSettings(members=6, lifetime_ns=ms(40), epsilon_ns=ms(1)),
        workload=Workload(messages=300, gap_mean_ns=ms(15), answer_ratio=0.2, answers_max=100),
        network=NetworkSettings(
            delay=Exponential(offset_ns=us(500), mean_ns=ms(10)), duplicate_ratio=0.1
        ),
        clocks=ClockSettings(spread_ns=ms(1), drift_ppm_max=200),
        faults=Faults(
            crashes=(
                Crash(process=0, at_ns=ms(120), restart_ns=ms(130)),
                Crash(process=1, at_ns=ms(200), restart_ns=ms(201)),
                Crash(process=0, at_ns=ms(350), restart_ns=ms(420)),
                Crash(process=2, at_ns=ms(400), restart_ns=ms(400)),
                Crash(process=5, at_ns=ms(500)),
            )
        ),
    ),
    Scenario(
        name="skewed",
        about="Clocks 5 ms apart and drifting, timers of 2 ms, copies due right at the deadline.",
        settings=OrderingSettings(members=5, lifetime_ns=ms(30), epsilon_ns=ms(5)),
        workload=_TALK,
        network=NetworkSettings(
            delay=Edge(low_ns=0, high_ns=ms(30), edge_ns=ms(30), edge_ratio=0.2), loss_ratio=0.05
        ),
        clocks=ClockSettings(spread_ns=ms(5), drift_ppm_max=5_000, timer_granularity_ns=ms(2)),
    ),
    Scenario(
        name="funnel",
        about="Everything to everyone over near and far ways; answers at the instant of delivery.",
        settings=OrderingSettings(members=8, lifetime_ns=ms(100)),
        workload=Workload(
            messages=100, gap_mean_ns=ms(30), answer_ratio=0.4, answers_max=60, burst_ratio=0.3
        ),
        network=NetworkSettings(
            delay=Bimodal(near_ns=us(200), far_ns=ms(70), far_ratio=0.2, spread_ns=ms(5))
        ),
    ),
    Scenario(
        name="swarm",
        about="The seed draws size, rates, and which faults exist at all.",
        settings=OrderingSettings(members=4, lifetime_ns=ms(50)),
        swarm=Swarm(),
    ),
    Scenario(
        name="swarm-steady",
        about="As `swarm`, but no process crashes.",
        settings=OrderingSettings(members=4, lifetime_ns=ms(50)),
        swarm=Swarm(crashes=False),
    ),
    Scenario(
        name="swarm-churn",
        about="As `swarm`, but members join late, leave, and restart again and again.",
        algorithm="bounded-jang",
        settings=OrderingSettings(members=4, lifetime_ns=ms(50)),
        swarm=Swarm(churn=True, crashes=False, messages_max=160),
    ),
)

SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def find_scenario(name: str) -> Scenario:
    """Return the scenario of this name, or the one in the file of this name.

    Raises ValueError that says what there is.
    """
    if name in SCENARIOS:
        return SCENARIOS[name]
    path = Path(name)
    if path.suffix in (".toml", ".json"):
        if not path.is_file():
            raise ValueError(f"no scenario file {name!r}")
        return read_scenario(path)
    raise ValueError(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}, or FILE.toml")
