"""The parameters of one run of a discovery protocol, flat, and the run itself."""

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from orderwire.discovery.messages import Message
from orderwire.discovery.sdp_settings import MODERN, PAPER, VENDORS, SdpSettings
from orderwire.discovery.settings import FEW_MESSAGES, DiscoverySettings
from orderwire.kernel import NS_PER_S
from orderwire.sim.discovery_lan import (
    DiscoveryResult,
    DiscoveryScenario,
    Ids,
    Variant,
    run_discovery,
)
from orderwire.sim.discovery_upkeep import UpkeepPlan, run_upkeep
from orderwire.sim.lan import LanSettings
from orderwire.sim.lan_streams import MSS_BYTES
from orderwire.sim.population import (
    TABLE_3_PARTICIPANTS,
    TABLE_4_SPLITS,
    Population,
    TopicSettings,
    case,
    mixed,
)
from orderwire.sim.sdp_run import SdpResult, SdpScenario, run_sdp

SDP: Mapping[str, SdpSettings] = {"sdp-paper": PAPER, "sdp-modern": MODERN} | {
    f"sdp-{name}": settings for name, settings in VENDORS.items()
}
BLOOM = "sdp-bloom"
MODERN_SERVICE_NS = 20_000
MODERN_BUFFER = 277
"""What a datagram costs a receiver, and how many wait: 212,992 bytes on Linux hold so many."""
PROTOCOLS = (*SDP, BLOOM, *(each.value for each in Variant))
CASES = (*TABLE_3_PARTICIPANTS, *TABLE_4_SPLITS)
SEGMENTS_MBIT_MAX = 10.0
"""Up to here connections are simulated segment by segment."""
HOPS_SHOWN_MAX = 12
BLOOM_SHARE = 0.1
FDP_EVENT = 10.0
"""An event of FDP takes about so many times as long as one of SDP."""


class DiscoveryConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="discovery"
):
    """One run, without its seed."""

    algorithm: str
    """The protocol."""
    case: str = ""
    """Of the paper's Tables 3 and 4; empty: `participants` in the mix of Table 3."""
    participants: int = 64
    mbit: float = 100.0
    """Rate of every link."""
    window_s: float = 0.55
    """Starts are spread over this; SDP's too when `sdp_window`."""
    sdp_window: bool = False
    """Whether SDP's participants start apart: in the paper's results all start at once."""
    endpoint_bytes: int = 80
    """L_E, in merged messages."""
    queue_kb: float = 150.0
    """Output queue of a host that sends datagrams; 0 = no limit."""
    port_kb: float = 150.0
    """Queue of a port of the switch, for datagrams; 0 = no limit."""
    repair_s: float = 0.0
    """SDP's P; 0 = the protocol's own."""
    payload_bytes: int = 0
    """Of one datum of SDP; 0 = the protocol's own."""
    per_datagram: int = 1
    """Endpoints in one datum of SDP."""
    acknowledge_each: bool | None = None
    """Whether SDP acknowledges every datum; None = as the protocol does."""
    nack_numbers: int = 0
    """Most numbers of one ACKNACK, and a HEARTBEAT behind the data; 0 = the protocol's own."""
    service_us: float = 0.0
    """What a datagram costs a receiver of SDP; 0 = the protocol's own."""
    receive_buffer: int = 0
    """Datagrams that wait at such a receiver; 0 = the protocol's own."""
    topics: int = 2_000
    """For SDPBloom."""
    zipf: float = 0.0
    ids: Ids = Ids.RANDOM
    streams: str = ""
    """`fluid` or `segments`; empty: segments up to 10 Mbit/s."""
    near_first: bool = False
    upkeep: bool = False
    """Measure updates, silence, a join, a goodbye and a crash instead of the boot alone."""
    updates: int = 0
    """Measure so many updates instead of the boot alone."""
    update_bytes: int = 368
    gossip: bool = False
    """Heartbeats travel with anti-entropy alone: the settings of live participants."""
    until_s: float = 300.0

    def population(self) -> Population:
        """Return who takes part."""
        return case(self.case) if self.case else mixed(self.participants)

    def check(self) -> None:
        """Raise ValueError for what makes no sense."""
        if self.algorithm not in PROTOCOLS:
            raise ValueError(f"protocol {self.algorithm!r}; there are {', '.join(PROTOCOLS)}")
        if self.case and self.case not in CASES:
            raise ValueError(f"case {self.case!r}; there are {', '.join(CASES)}")
        if self.streams not in ("", "fluid", "segments"):
            raise ValueError(f"streams {self.streams!r}; expected fluid or segments")
        if (self.upkeep or self.updates) and self.is_sdp:
            raise ValueError(f"{self.algorithm}: upkeep and updates are measured of FDP and mesh")

    @property
    def is_sdp(self) -> bool:
        """Whether it is one of the baselines that send endpoints one by one."""
        return self.algorithm in SDP or self.algorithm == BLOOM

    @property
    def cost(self) -> float:
        """Roughly how long a run takes, in events of SDP."""
        population = self.population()
        n, total = population.participants, population.endpoints_total
        if self.is_sdp:
            return 4.0 * n * total * (BLOOM_SHARE if self.algorithm == BLOOM else 1.0)
        events = 4.0 * n * n
        if self.segments:
            events += 8.0 * n * total * self.endpoint_bytes / MSS_BYTES
        if self.upkeep:
            events += (10.0 if self.gossip else 60.0) * n * n
        return FDP_EVENT * events

    @property
    def segments(self) -> bool:
        """Whether connections are simulated segment by segment."""
        if self.streams:
            return self.streams == "segments"
        return self.mbit <= SEGMENTS_MBIT_MAX

    def measure(self, seed: int) -> dict[str, float]:
        """Run it; return its measures by name."""
        if self.is_sdp:
            return _of_result(run_sdp(self._sdp(), seed))
        scenario = self._scenario()
        if self.upkeep or self.updates:
            plan = UpkeepPlan(
                updates=self.updates or 4,
                update_bytes=self.update_bytes,
                idle_ns=10 * NS_PER_S if self.upkeep else 0,
            )
            return {
                name: float(value)
                for name, value in msgspec.structs.asdict(run_upkeep(scenario, plan, seed)).items()
            }
        return _of_discovery(run_discovery(scenario, seed))

    def _sdp(self) -> SdpScenario:
        settings = SDP.get(self.algorithm, PAPER)
        modern = self.algorithm in SDP and not settings.acknowledge_each
        lan = LanSettings(
            bits_per_s=round(self.mbit * 1e6),
            host_queue_bytes=round(self.queue_kb * 1_000) or None,
            switch_queue_bytes=round(self.port_kb * 1_000) or None,
            service_ns=round(self.service_us * 1_000) or (MODERN_SERVICE_NS if modern else 0),
            receive_buffer=self.receive_buffer or (MODERN_BUFFER if modern else None),
        )
        bloom = self.algorithm == BLOOM
        return SdpScenario(
            population=self.population(),
            sdp=self._changed(settings),
            lan=lan,
            topics=TopicSettings(topics=self.topics, zipf_exponent=self.zipf) if bloom else None,
            start_window_ns=round(self.window_s * 1e9) if self.sdp_window else 0,
            until_ns=round(self.until_s * 1e9),
        )

    def _changed(self, settings: SdpSettings) -> SdpSettings:
        """Return the protocol's settings with what differs here."""
        changes: dict[str, Any] = {"endpoints_per_datagram": self.per_datagram}
        if self.repair_s:
            changes["repair_ns"] = round(self.repair_s * 1e9)
        if self.payload_bytes:
            changes["endpoint_bytes"] = self.payload_bytes
        if self.acknowledge_each is not None:
            changes["acknowledge_each"] = self.acknowledge_each
        if self.nack_numbers:
            changes |= {"nack_numbers_max": self.nack_numbers, "follow_up": True}
        return replace(settings, **changes)

    def _scenario(self) -> DiscoveryScenario:
        settings = FEW_MESSAGES if self.gossip else DiscoverySettings()
        lan = LanSettings(
            bits_per_s=round(self.mbit * 1e6),
            host_queue_bytes=None,
            switch_queue_bytes=None,
            streams="segments" if self.segments else "fluid",
        )
        return DiscoveryScenario(
            population=self.population(),
            variant=Variant(self.algorithm),
            settings=settings,
            lan=lan,
            endpoint_bytes=self.endpoint_bytes,
            start_window_ns=round(self.window_s * 1e9),
            ids=self.ids,
            near_first=self.near_first,
            spare=int(self.upkeep),
            until_ns=round(self.until_s * 1e9),
        )


def _of_result(result: SdpResult) -> dict[str, float]:
    """Return what is measured of every protocol."""
    n = len(result.rows)
    return {
        "max_s": result.max_s,
        "max_both_up_s": result.max_both_up_s,
        "p50_s": result.p50_s,
        "pairs_missing": float(result.pairs_missing),
        "missing_percent": 100 * result.pairs_missing / (n * (n - 1)),
        "reception_percent": 100 * result.reception_ratio,
        "sent": float(result.sent),
        "payload_mb": result.payload_bytes / 1e6,
        "wire_mb": result.wire_bytes / 1e6,
        "events": float(result.events),
        "ended_s": result.ended_s,
    } | {f"level{level}_s": result.level_mean_s(level) for level in _levels(result)}


def _levels(result: SdpResult) -> list[int]:
    return sorted({row.level for row in result.rows})


def _of_discovery(result: DiscoveryResult) -> dict[str, float]:
    hops = sum(result.hops.values())
    found = _of_result(result) | {
        "connections": float(result.connections),
        "join_ack_maps_max": float(result.join_ack_maps_max),
        "join_ack_kb_max": result.join_ack_bytes_max / 1e3,
        "hops_mean": sum(hop * count for hop, count in result.hops.items()) / max(1, hops),
        "hops_max": float(max(result.hops, default=0)),
    }
    found |= {f"hop{hop}": float(result.hops.get(hop, 0)) for hop in range(1, HOPS_SHOWN_MAX + 1)}
    kinds = dict.fromkeys((kind.__name__ for kind in get_args(Message)), 0) | result.kind_bytes
    found |= {f"kb_{kind}": size / 1e3 for kind, size in sorted(kinds.items())}
    return found
