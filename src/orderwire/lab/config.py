"""The parameters of one run of an ordering algorithm, flat, and the run itself; rows of any kind.

`DiscoveryConfig`, `ReplicationConfig` and `TotalOrderConfig` are the other kinds.  All have
`algorithm`, `cost`, `check()` and `measure(seed)`.
"""

import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

import orderwire
from orderwire.kernel import ms
from orderwire.lab.discovery_config import DiscoveryConfig
from orderwire.lab.replication_config import ReplicationConfig
from orderwire.lab.total_order_config import TotalOrderConfig
from orderwire.ordering.catalog import ALGORITHMS, algorithm
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.clocks import ClockSettings
from orderwire.sim.delays import Constant, Exponential
from orderwire.sim.host import Computation
from orderwire.sim.measure import Measures, Plan, measure
from orderwire.sim.network import LinkDelay, NetworkSettings
from orderwire.sim.scenario import ScriptedSend, Workload

HALF = -1
"""`fan_out`: half of the others."""
CALIBRATION_MESSAGES = 300
CALIBRATION_WARM_UP_MAX = 1_000
CALIBRATION_SEEDS = 3
FUNNEL_ROUND_NS = ms(50)

HEAVY: Mapping[str, float] = {"prakash-raynal-singhal": 6.0, "kshemkalyani-singhal-flat": 3.0}
"""How much dearer than the others these are without a lifetime, roughly."""


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ordering"):
    """One run, without its seed."""

    algorithm: str
    members: int = 20
    messages: int = 1_000
    """Measured, of all processes together."""
    warm_up: int = 0
    fan_out: int = 3
    """Destinations a message; 0 = all others, -1 = half of them."""
    lifetime_ms: float = 250.0
    """Δ; 0 = for ever."""
    gap_ms: float = 100.0
    """Mean time between two messages of one process, exponential."""
    delay_least_ms: float = 5.0
    delay_mean_ms: float = 45.0
    """Exponential, added to the least."""
    loss: float = 0.0
    skew_ms: float = 0.0
    """ε, and how far the clocks really differ."""
    tick_us: int = 100
    payload_bytes: int = 1024
    max_cb: int = 4
    floor_cap: int | None = None
    tag_bytes_max: int | None = None
    send_empty_entries: bool = False
    """As S000 prints it; they never change a delivery."""
    cpu_factor: float = 0.0
    """Processor time is charged this many times; 0 = computation is free."""
    cpu_send_us: float = 0.0
    """What a multicast takes, all its copies encoded; with `cpu_receive_us` 0: to be measured."""
    cpu_receive_us: float = 0.0
    """What a copy takes that arrives, decoding and delivery included."""
    uplink_mbit: float = 0.0
    """Rate at which a process's copies leave one after another; 0 = at once."""
    printed_uplink: bool = False
    """Whether the uplink carries the papers' layout."""
    timed: bool = False
    """Measure processor time."""
    traffic: Literal["random", "funnel"] = "random"
    """funnel: all tell process 0 of slow messages between every two of the others."""

    def plan(self) -> Plan:
        """Return what the simulator is to do.  Raises ValueError for what makes no sense."""
        funnel = self.traffic == "funnel"
        fan_out = (self.members - 1) // 2 if self.fan_out == HALF else self.fan_out
        if fan_out >= self.members - 1:
            fan_out = 0
        settings = OrderingSettings(
            members=self.members,
            lifetime_ns=_ns(self.lifetime_ms) if self.lifetime_ms else None,
            epsilon_ns=_ns(self.skew_ms),
            tick_ns=self.tick_us * 1_000,
            max_cb=self.max_cb,
            floor_cap=self.floor_cap,
            tag_bytes_max=self.tag_bytes_max,
            send_empty_entries=self.send_empty_entries,
        )
        workload = Workload(
            messages=0 if funnel else self.warm_up + self.messages,
            gap_mean_ns=_ns(self.gap_ms),
            fan_out=fan_out,
            payload_bytes=self.payload_bytes,
            script=self._funnel() if funnel else (),
        )
        slow = Constant(delay_ns=_ns(0.8 * (self.lifetime_ms or 250.0)))
        network = NetworkSettings(
            delay=slow
            if funnel
            else Exponential(offset_ns=_ns(self.delay_least_ms), mean_ns=_ns(self.delay_mean_ms)),
            links=tuple(
                LinkDelay(source=source, to=0, delay=Constant(delay_ns=ms(1)))
                for source in range(1, self.members if funnel else 1)
            ),
            loss_ratio=self.loss,
            uplink_bits_per_s=int(self.uplink_mbit * 1e6) or None,
        )
        return Plan(
            settings=settings,
            workload=workload,
            network=network,
            clocks=ClockSettings(spread_ns=_ns(self.skew_ms)),
            warm_up=0 if funnel else self.warm_up,
            printed_uplink=self.printed_uplink,
        )

    def _funnel(self) -> tuple[ScriptedSend, ...]:
        """Everyone sends to everyone apart and tells process 0; that tells process 1.

        Process 0 then knows of messages on every slow link that are still alive.
        """
        others = range(1, self.members)
        step_ns = 2 * self.tick_us * 1_000
        sends: list[ScriptedSend] = []
        for turn in range(max(1, self.messages // (self.members * self.members))):
            start_ns = turn * FUNNEL_ROUND_NS
            for source in others:
                at_ns = start_ns
                for to in (*(each for each in others if each != source), 0):
                    sends.append(ScriptedSend(at_ns=at_ns, source=source, destinations=(to,)))
                    at_ns += step_ns
            told_ns = start_ns + (self.members + 2) * step_ns + ms(2)
            sends.append(ScriptedSend(at_ns=told_ns, source=0, destinations=(1,)))
        return tuple(sends)

    @property
    def uncalibrated(self) -> bool:
        """Whether processor time is to be charged that has yet to be measured."""
        return bool(self.cpu_factor) and not (self.cpu_send_us or self.cpu_receive_us)

    def rehearsal(self) -> "Config":
        """Return the run that measures what this one's computation costs."""
        return replace(
            self,
            messages=min(self.messages, CALIBRATION_MESSAGES),
            warm_up=min(self.warm_up, CALIBRATION_WARM_UP_MAX),
            cpu_factor=0.0,
            uplink_mbit=0.0,
            printed_uplink=False,
            timed=True,
        )

    @property
    def cost(self) -> float:
        """Roughly how long a run takes, in any unit."""
        fan_out = self.members if self.fan_out == 0 else self.members / 2
        fan_out = float(self.fan_out) if self.fan_out > 0 else fan_out
        size = self.members if self.lifetime_ms else 4 * self.members
        heavy = 1.0 if self.lifetime_ms else HEAVY.get(self.algorithm, 1.0)
        return (self.messages + self.warm_up) * (1 + fan_out) * (10 + size * heavy)

    def check(self) -> None:
        """Raise ValueError for what makes no sense."""
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm {self.algorithm!r}; there are {', '.join(ALGORITHMS)}")

    def measure(self, seed: int) -> dict[str, float]:
        """Run it; return its measures by name.

        Raises ValueError when computation is to be charged and nobody says what it costs.
        """
        plan = self.plan()
        charged: dict[str, float] = {}
        if self.uncalibrated:
            raise ValueError("what computation costs has not been measured: its calibration failed")
        if self.cpu_factor:
            charged = {
                "charged_send_us": self.cpu_send_us * self.cpu_factor,
                "charged_receive_us": self.cpu_receive_us * self.cpu_factor,
            }
            computation = Computation(
                submit_ns=round(charged["charged_send_us"] * 1e3),
                input_ns=round(charged["charged_receive_us"] * 1e3),
            )
            plan = replace(plan, computation=computation)
        timer = time.process_time_ns if self.timed else None
        plan = replace(plan, printed=not self.timed)
        return _means(measure(plan, algorithm(self.algorithm), seed, timer=timer), self) | charged


AnyConfig: TypeAlias = Config | DiscoveryConfig | ReplicationConfig | TotalOrderConfig
FAMILIES: Mapping[
    str,
    type[Config] | type[DiscoveryConfig] | type[ReplicationConfig] | type[TotalOrderConfig],
] = {
    "ordering": Config,
    "discovery": DiscoveryConfig,
    "replication": ReplicationConfig,
    "total-order": TotalOrderConfig,
}
"""Kinds of runs."""
_FOLDERS = {"replication": "broker", "total-order": "ordering"}
"""Where what a family runs lies, unless in the folder of its name."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration with one seed."""

    config: AnyConfig
    seed: int

    @property
    def name(self) -> str:
        """Fingerprint of configuration and seed."""
        return _fingerprint(msgspec.json.encode(self))


def code_version(family: str) -> str:
    """Return the fingerprint of everything that a run executes: a change runs all rows again."""
    root = Path(orderwire.__file__).parent
    folders = ("kernel", _FOLDERS.get(family, family), "sim")
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    here = Path(__file__)
    paths += [here, *sorted(here.parent.glob("*_config.py"))]
    paths += [here.parent / "models" / "s004.py"] if family == "replication" else []
    return _fingerprint(family.encode(), *(path.read_bytes() for path in paths))


def _fingerprint(*parts: bytes) -> str:
    state = blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little") + part)
    return state.hexdigest()


def run_spec(spec: str) -> str:
    """Run the row in this JSON and return its measures as JSON: what a task does."""
    row = msgspec.json.decode(spec, type=Row)
    return msgspec.json.encode(run_row(row)).decode()


def run_row(row: Row) -> dict[str, float]:
    """Run one row; return its measures by name.

    Raises ValueError when computation is to be charged and nobody says what it costs.
    """
    return row.config.measure(row.seed)


def _means(sums: Measures, config: Config) -> dict[str, float]:
    messages, copies = max(1, sums.messages), max(1, sums.copies)
    delivered = max(1, sums.delivered)
    means = {
        "control_bytes": sums.control_bytes / copies,
        "control_bytes_max": float(sums.control_bytes_max),
        "delivery_ms": sums.delivery_ns / delivered / 1e6,
        "wait_ms": sums.waited_ns / delivered / 1e6,
        "held_share": sums.held / delivered,
        "delivered_share": sums.delivered / copies,
        "late_share": sums.late / copies,
        "copies": float(sums.copies),
    }
    if config.timed:
        send_ns, receive_ns = sums.send_cpu_ns, sums.receive_cpu_ns
        means["send_cpu_us"] = send_ns / messages / 1e3
        means["receive_cpu_us"] = receive_ns / copies / 1e3
        means["message_cpu_us"] = (send_ns + receive_ns) / messages / 1e3
    else:
        means["printed_bytes"] = sums.printed_bytes / copies
        means["printed_bytes_max"] = float(sums.printed_bytes_max)
    if config.cpu_factor:
        means["busy_share"] = sums.busy_ns / max(1, sums.end_ns) / config.members
    return means
