"""Runs of FDP, BiFDP and their rival, the full mesh, on the simulated LAN, at the paper's sizes.

A MAP is as many zero bytes as the paper's formula says, one object for all who hold it, so sizes
on the wire are those of `messages.nominal_bytes` and cost no memory.  The bootstrap server is a
host of its own.  A run ends when everybody has everybody's MAP; the literal protocol, which may
never get there, when nothing has been learned for a while.
"""

from array import array
from collections import Counter
from enum import Enum
from functools import partial
from random import Random
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from orderwire.discovery.commands import Learnt, WholeMaps
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import (
    Broadcast,
    Heartbeat,
    Join,
    JoinAck,
    Message,
    nominal_bytes,
)
from orderwire.discovery.ring import RangePolicy
from orderwire.discovery.settings import LITERAL, BootstrapSettings, DiscoverySettings
from orderwire.discovery.tcp_mesh import MeshNode
from orderwire.kernel import NS_PER_MS, NS_PER_S, ms, stream
from orderwire.sim.discovery_world import SERVER, DiscoveryWorld
from orderwire.sim.lan import Lan, LanSettings
from orderwire.sim.population import ENDPOINT_BYTES, Population
from orderwire.sim.sdp_run import SdpParticipantRow, SdpResult
from orderwire.sim.world import World

SLICE_NS = 10 * NS_PER_MS
"""How often a run looks whether it is done."""
FOR_EVER_NS = 1 << 62
"""The printed server knows no leases."""
QUIET_NS = 3 * NS_PER_S
"""A protocol without repair is done when nothing has been learned for so long."""


class Variant(Enum):
    """Which protocol runs."""

    FDP = "fdp"
    """FDP/1: every broadcast once around."""
    BIFDP = "bifdp"
    """FDP/1 with every broadcast half around in both directions."""
    BY_SIZE = "fdp-by-size"
    """Small broadcasts both ways, large ones once around: what live participants do."""
    FDP_LITERAL = "fdp-literal"
    """As printed."""
    BIFDP_LITERAL = "bifdp-literal"
    MESH = "mesh"

    @property
    def literal(self) -> bool:
        """Whether nothing repairs what is lost."""
        return self in (Variant.FDP_LITERAL, Variant.BIFDP_LITERAL)


class Ids(Enum):
    """In which order the server issues ids."""

    RANDOM = "random"
    ASCENDING = "ascending"
    REVERSED = "reversed"
    """0, n/2, n/4, …: bits reversed."""


LAN = LanSettings(host_queue_bytes=None, switch_queue_bytes=None)
"""Queues do not limit streams: a fluid message fills a port for its whole length, and handshakes
behind it would be lost as behind segments they are not."""


class DiscoveryScenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run."""

    population: Population
    variant: Variant = Variant.FDP
    settings: DiscoverySettings = DiscoverySettings()
    lan: LanSettings = LAN
    endpoint_bytes: int = ENDPOINT_BYTES
    """L_E: 80 in the paper, 9 when MAPs are compact."""
    start_window_ns: int = ms(550)
    """Starts are spread over this, uniformly.  [S002:dec.10]"""
    ids: Ids = Ids.RANDOM
    id_space: int = 0
    """0 is the least power of two that holds all."""
    near_first: bool = False
    """Updates and heartbeats go to the nearest successor first, as printed."""
    spare: int = 0
    """Further participants that do not start by themselves."""
    until_ns: int = 60 * NS_PER_S
    """A run that is not done by then ends with pairs missing."""

    def core_settings(self) -> DiscoverySettings:
        """Return the settings of the protocol that runs."""
        ways = {Variant.FDP: 0, Variant.FDP_LITERAL: 0, Variant.BIFDP: -1}
        settings = self.settings
        if self.variant is Variant.BIFDP_LITERAL or self.variant in ways:
            settings = replace(settings, both_ways_bytes_max=ways.get(self.variant, -1))
        if self.variant.literal:
            settings = replace(settings, mechanisms=LITERAL, policy=RangePolicy.SUCC)
        return settings


class DiscoveryResult(SdpResult, frozen=True, kw_only=True):
    """What one run measured; messages are those of participants and server, each one a stream's.

    Heartbeats are in `kinds` and `kind_bytes` alone: how many there are is a matter of how long one
    looks.
    """

    kind_bytes: dict[str, int]
    """Payload bytes sent, by the kind of message."""
    hops: dict[int, int]
    """JOINs received, by their hop count."""
    join_ack_maps_max: int
    """Most MAPs in one JOIN_ACK."""
    join_ack_bytes_max: int
    connections: int
    """Opened, those with the server included."""


class _NearFirst(FdpNode):
    """Sends the copies of a broadcast in the printed order."""

    def submit(self, command: Any, now: Any) -> DiscoveryEffects:
        """Take a command."""
        return _reversed(super().submit(command, now))

    def receive(self, source: Address, message: Message, now: Any) -> DiscoveryEffects:
        """Take a message."""
        return _reversed(super().receive(source, message, now))


def _reversed(effects: DiscoveryEffects) -> DiscoveryEffects:
    """Return the effects with the copies of broadcasts in reverse order."""
    places = [
        at
        for at, each in enumerate(effects)
        if isinstance(each, Post) and isinstance(each.message, Broadcast)
    ]
    turned = list(effects)
    for at, other in zip(places, reversed(places), strict=True):
        turned[at] = effects[other]
    return turned


Core: TypeAlias = FdpNode | MeshNode


class LanRun:
    """The domain on its LAN, and who has learned whom when."""

    def __init__(self, scenario: DiscoveryScenario, seed: int) -> None:
        self.scenario = scenario
        population = scenario.population
        self.n = n = population.participants
        self.hosts = n + scenario.spare
        self.world = World()
        self.lan = Lan(
            self.world, self.hosts + 1, scenario.lan, self._deliver, self._broken, seed=seed
        )
        self.names: list[Address] = [f"p{host}" for host in range(self.hosts)] + [SERVER]
        self.host_of = {name: host for host, name in enumerate(self.names)}
        id_space = scenario.id_space or 1 << max(1, (self.hosts - 1).bit_length())
        settings = scenario.core_settings()
        lease_ns = FOR_EVER_NS if scenario.variant.literal else settings.lease_ns
        self.domain = DiscoveryWorld(
            settings,
            BootstrapSettings(id_space=id_space, lease_ns=lease_ns),
            seed,
            lambda source, to: 0,
            literal=scenario.variant.literal,
            world=self.world,
            channel=self,
        )
        self.domain.listeners.append(self._hear)
        self.domain.server_up()
        chance = stream(seed, "discovery/ids")
        self._wishes: list[int] | None = None
        if scenario.ids is Ids.RANDOM:
            self._wishes = chance.sample(range(id_space), self.hosts)
        elif scenario.ids is Ids.ASCENDING:
            self._wishes = []
        chance = stream(seed, "discovery/starts")
        window_ns = scenario.start_window_ns
        self.starts_ns = [chance.randrange(window_ns) if window_ns else 0 for _ in range(n)]
        self.starts_ns += [0] * scenario.spare
        self._issued = 0
        self.sent: Counter[type[Message]] = Counter()
        self.sent_bytes: Counter[type[Message]] = Counter()
        self.received = 0
        self.hops: Counter[int] = Counter()
        self._join_ack = (0, 0)
        """Most MAPs and most bytes of one."""
        self.known_ns = array("q", [0]) * (self.hosts * self.hosts)
        """By source · hosts + receiver: when its MAP was first learned."""
        self.pairs_left = n * (n - 1)
        self.learned_ns = 0
        for host in range(n):
            self.domain.at(self.starts_ns[host], partial(self.start, host))

    # -- participants -----------------------------------------------------------------------

    def start(self, host: int) -> None:
        """Start this participant."""
        scenario = self.scenario
        wish: int | None = None
        if self._wishes is not None:
            wish = self._wishes[host] if self._wishes else self._issued
            self._issued += 1
        counts = scenario.population
        size = counts.map_bytes(host % self.n, scenario.endpoint_bytes)
        self.domain.start_core(self.names[host], bytes(size), self._make, wish=wish)

    def _make(
        self, address: Address, entrance: Entrance, settings: DiscoverySettings, chance: Random
    ) -> Core:
        form = self.form()
        if self.scenario.variant is Variant.MESH:
            return MeshNode(address, entrance, settings, chance, form)
        kind = _NearFirst if self.scenario.near_first else FdpNode
        return kind(address, entrance, settings, chance, form)

    def form(self) -> WholeMaps:
        """Return how the participants' changes are told."""
        return WholeMaps()

    # -- the channel ------------------------------------------------------------------------

    def send(self, source: Address, to: Address, message: Message) -> None:
        """Let a message leave now."""
        size = nominal_bytes(message)
        kind = type(message)
        self.sent[kind] += 1
        self.sent_bytes[kind] += size
        if kind is JoinAck:
            assert isinstance(message, JoinAck)
            maps, most = self._join_ack
            self._join_ack = max(maps, len(message.maps or ())), max(most, size)
        self.lan.send_stream(self.host_of[source], self.host_of[to], size, message)

    def _deliver(self, to: int, source: int, message: Message) -> None:
        process = self.domain.processes.get(self.names[to])
        if process is None:
            return
        self.received += type(message) is not Heartbeat
        if type(message) is Join:
            self.hops[message.hop] += 1
        self.domain.deliver(self.names[source], process, message)

    def _broken(self, source: int, to: int) -> None:
        if self.names[source] in self.domain.processes:
            self.domain.unreachable(self.names[source], self.names[to])

    def _hear(self, now_ns: int, address: Address, indication: Any) -> None:
        if type(indication) is not Learnt:
            return
        source, to = self.host_of[indication.addr], self.host_of[address]
        place = source * self.hosts + to
        if not self.known_ns[place]:
            self.known_ns[place] = now_ns
            self.learned_ns = now_ns
            self.pairs_left -= 1

    # -- the run ----------------------------------------------------------------------------

    def boot(self) -> None:
        """Let all start and learn of each other."""
        scenario, world = self.scenario, self.world
        while self.pairs_left and world.now_ns < scenario.until_ns:
            world.run(min(world.now_ns + SLICE_NS, scenario.until_ns))
            since_ns = max(self.learned_ns, scenario.start_window_ns)
            if scenario.variant.literal and world.now_ns - since_ns > QUIET_NS:
                break

    def result(self) -> DiscoveryResult:
        """Return what has been measured so far."""
        counts = self.lan.counts
        return DiscoveryResult(
            rows=tuple(self._row(source) for source in range(self.n)),
            p50_s=self._median_s(),
            sent=self.sent.total() - self.sent[Heartbeat],
            received=self.received,
            payload_bytes=self.sent_bytes.total() - self.sent_bytes[Heartbeat],
            wire_bytes=sum(count.wire_bytes for count in counts),
            kinds={kind.__name__: count for kind, count in self.sent.items()},
            kind_bytes={kind.__name__: count for kind, count in self.sent_bytes.items()},
            hops=dict(sorted(self.hops.items())),
            join_ack_maps_max=self._join_ack[0],
            join_ack_bytes_max=self._join_ack[1],
            connections=self.lan.streams.opened,
            events=self.world.events,
            ended_s=self.world.now_ns / NS_PER_S,
        )

    def _row(self, source: int) -> SdpParticipantRow:
        starts, begin = self.starts_ns, source * self.hosts
        known = [
            (at_ns, max(starts[source], starts[to]))
            for to, at_ns in enumerate(self.known_ns[begin : begin + self.n])
            if at_ns
        ]
        last_ns = max((at for at, _ in known), default=starts[source])
        return SdpParticipantRow(
            participant=source,
            level=self.scenario.population.levels[source],
            endpoints=self.scenario.population.endpoints[source],
            start_s=starts[source] / NS_PER_S,
            from_start_s=(last_ns - starts[source]) / NS_PER_S,
            from_both_up_s=max((at - up for at, up in known), default=0) / NS_PER_S,
            pairs_missing=self.n - 1 - len(known),
        )

    def _median_s(self) -> float:
        """Return the median latency from the owner's start, over endpoints and who learns them."""
        latencies: list[tuple[int, int]] = []
        for source, count in enumerate(self.scenario.population.endpoints):
            begin = source * self.hosts
            latencies += [
                (at_ns - self.starts_ns[source], count)
                for at_ns in self.known_ns[begin : begin + self.n]
                if at_ns
            ]
        latencies.sort()
        left = sum(count for _, count in latencies) // 2
        for latency_ns, count in latencies:
            left -= count
            if left < 0:
                return latency_ns / NS_PER_S
        return 0.0


def run_discovery(scenario: DiscoveryScenario, seed: int) -> DiscoveryResult:
    """Run one scenario; the same seed gives the same run."""
    run = LanRun(scenario, seed)
    run.boot()
    return run.result()
