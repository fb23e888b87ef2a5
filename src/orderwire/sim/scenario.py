"""A scenario: everything that is decided before a run, as data."""

from pathlib import Path

import msgspec

from orderwire.kernel import UNREADABLE, ms
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.clocks import ClockSettings
from orderwire.sim.delays import Delay, Uniform
from orderwire.sim.host import Computation
from orderwire.sim.network import NetworkSettings


class ScriptedSend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One multicast at a given time."""

    at_ns: int
    """True time."""
    source: int
    destinations: tuple[int, ...]
    payload: bytes = b""
    before_arrivals: bool = False
    """Whether it comes before what arrives at the same instant, instead of after it."""
    lifetime_ns: int | None = None
    """One of its own, where the algorithm knows such; None: the group's."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the simulated applications send.  Open loop, except for answers."""

    messages: int = 100
    """Multicasts of all processes together in the safety phase, without answers and script."""
    gap_mean_ns: int = ms(100)
    """Mean time between two multicasts of one process, exponential.  [S000:sec.5.3]"""
    fan_out: int = 0
    """Destinations per message, drawn anew each time; 0 = everyone else."""
    to_self_ratio: float = 0.0
    """Probability that the sender is a destination too."""
    burst_ratio: float = 0.0
    """Probability that the next multicast of a process follows at the same instant."""
    answer_ratio: float = 0.0
    """Probability that a process multicasts at the very instant of a delivery."""
    answers_max: int = 1_000
    own_lifetime_ratio: float = 0.0
    """Share of the multicasts with a lifetime of their own, any one below the group's."""
    payload_bytes: int = 32
    script: tuple[ScriptedSend, ...] = ()

    def __post_init__(self) -> None:
        for name in ("to_self_ratio", "burst_ratio", "answer_ratio", "own_lifetime_ratio"):
            ratio = getattr(self, name)
            if not 0 <= ratio <= 1:
                raise ValueError(f"{name}={ratio} is no probability: it must be from 0 to 1")
        for name in ("messages", "gap_mean_ns", "fan_out", "answers_max", "payload_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is negative")


class Partition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From `start_ns` to `end_ns` no copy passes between `side` and the others."""

    start_ns: int
    end_ns: int
    side: tuple[int, ...]
    one_way: bool = False
    """Cut only what leaves `side`."""


class Crash(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process stops and loses its state.  To the others a member that leaves has stopped, too."""

    process: int
    at_ns: int
    restart_ns: int | None = None
    """When it starts again with a new core; None: it stays away for good."""


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process starts for the first time after the others have."""

    process: int
    at_ns: int


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What breaks in the safety phase, beside the network's own ratios."""

    partitions: tuple[Partition, ...] = ()
    crashes: tuple[Crash, ...] = ()
    """In the order of their times for one process: it may crash and come back again and again."""
    joins: tuple[Join, ...] = ()
    quarantine: bool = True
    """Whether a restarted process sends nothing for Δ + ε.  False is the twin that breaks order."""


class Liveness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The phase after the faults: all is healed, every process that runs sends to all that run."""

    rounds: int = 3
    """How often each process sends; 0 = no such phase."""
    gap_ns: int = ms(2)
    """Between two of these sends."""
    delay: Delay = Uniform(low_ns=100_000, high_ns=ms(2))
    """Of every link; its longest delay must be known."""
    bound_ns: int = 0
    """Delivery is demanded within the longest delay, a timer period and ε, and this."""


class Swarm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the seed draws too.  Each allowed fault exists in about half of the seeds."""

    members_max: int = 7
    messages_max: int = 60
    loss: bool = True
    duplication: bool = True
    reordering: bool = True
    partitions: bool = True
    crashes: bool = True
    churn: bool = False
    """Members join late, leave, and restart again and again, and datagrams name their lives."""
    skew: bool = True
    coarse_timers: bool = True
    own_lifetimes: bool = True
    """Some messages live shorter than others, where the algorithm knows such."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cores, workload, network and faults.  With a seed it is one run, always the same."""

    name: str
    about: str = ""
    algorithm: str = "jang-delta"
    """Catalog name."""
    settings: OrderingSettings
    workload: Workload = Workload()
    network: NetworkSettings = NetworkSettings()
    clocks: ClockSettings = ClockSettings()
    faults: Faults = Faults()
    liveness: Liveness = Liveness()
    computation: Computation | None = None
    """What the cores' work costs; None = nothing."""
    safety_ns: int | None = None
    """Length of the safety phase; None = until the workload has sent its messages."""
    trace_receives: bool = True
    """Record arrivals as events of their own."""
    swarm: Swarm | None = None
    """What the seed draws in place of what is said above; None = nothing but chance itself."""

    def __post_init__(self) -> None:
        members = range(self.settings.members)
        named = [
            *(crash.process for crash in self.faults.crashes),
            *(join.process for join in self.faults.joins),
            *(process for cut in self.faults.partitions for process in cut.side),
            *(process for each in self.network.links for process in (each.source, each.to)),
            *(process for send in self.workload.script for process in send.destinations),
            *(send.source for send in self.workload.script),
        ]
        for process in named:
            if process not in members:
                raise ValueError(
                    f"scenario {self.name!r} names process {process}, "
                    f"members are 0 … {self.settings.members - 1}"
                )
        for cut in self.faults.partitions:
            if cut.end_ns < cut.start_ns:
                raise ValueError(f"partition ends before it starts: {cut}")
        for crash in self.faults.crashes:
            if crash.restart_ns is not None and crash.restart_ns < crash.at_ns:
                raise ValueError(f"process restarts before it crashes: {crash}")
        joined = [join.process for join in self.faults.joins]
        if len(set(joined)) < len(joined):
            raise ValueError(f"a process joins twice, the second time it restarts: {joined}")
        entry = ALGORITHMS.get(self.algorithm)
        has_own = self.workload.own_lifetime_ratio > 0 or any(
            send.lifetime_ns is not None for send in self.workload.script
        )
        if has_own and entry is not None and not entry.own_lifetimes:
            raise ValueError(f"{self.algorithm} gives all messages one lifetime")
        if self.workload.fan_out >= self.settings.members:
            raise ValueError(
                f"fan_out={self.workload.fan_out} in a group of {self.settings.members}"
            )


def read_scenario(path: Path) -> Scenario:
    """Read a scenario from a TOML or JSON file.  Raises ValueError that says what is wrong."""
    data = path.read_bytes()
    try:
        if path.suffix == ".toml":
            return msgspec.toml.decode(data, type=Scenario)
        return msgspec.json.decode(data, type=Scenario)
    except UNREADABLE as error:
        raise ValueError(f"{path.name} is no scenario: {error}") from None
