"""Several domains with gateways in simulated time: a `DiscoveryWorld`, an address a backbone."""

from random import Random
from typing import Any

from orderwire.discovery.commands import Change, End
from orderwire.discovery.domains import GATEWAY_PROPERTY
from orderwire.discovery.effects import Address
from orderwire.discovery.entrance import SeedEntrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.foreign import foreign_of
from orderwire.discovery.gateway import Gateway, PostOn
from orderwire.discovery.map_codec import CompactMaps, decode, decode_map, encode_map
from orderwire.discovery.maps import EndpointData, Map, ParticipantData
from orderwire.discovery.messages import Message
from orderwire.discovery.settings import BootstrapSettings, DiscoverySettings
from orderwire.discovery.summaries import CompactSummaries
from orderwire.kernel import Instant, ms, stream
from orderwire.sim.discovery_world import DiscoveryWorld, Faults, Process

Foreign = dict[tuple[str, str], list[EndpointData]]
"""Domain and guid → endpoints."""


SEEDS = 2
"""The first so many participants of a domain are its seeds."""


class _Side:
    """A gateway, as it listens on one backbone."""

    def __init__(self, gateway: Gateway, backbone: str) -> None:
        self.gateway = gateway
        self.backbone = backbone

    def submit(self, command: Any, now: Instant) -> Any:
        return self.gateway.submit(command, now, self.backbone)

    def receive(self, source: Address, message: Message, now: Instant) -> Any:
        return self.gateway.receive(source, message, now, self.backbone)

    def wake(self, now: Instant) -> Any:
        return self.gateway.wake(now)

    def next_deadline(self) -> Instant | None:
        return None  # The home process has the timer.


class DomainsWorld(DiscoveryWorld):
    """Domain and number make an address: `a0`, `a1` … of domain `a`."""

    def __init__(
        self,
        backbones: dict[str, tuple[str, ...]],
        seed: int,
        *,
        loss_ratio: float = 0.0,
        willing: int = 3,
        gateway: type[Gateway] = Gateway,
    ) -> None:
        """`backbones` names for each domain those that its gateways join."""
        chance = stream(seed, "delay")
        super().__init__(
            DiscoverySettings(),
            BootstrapSettings(id_space=1 << 64),
            seed,
            lambda _from, _to: chance.randrange(ms(1), ms(10)),
            faults=Faults(loss_ratio=loss_ratio),
            record=True,
        )
        self.backbones = backbones
        self.willing = willing
        self._gateway = gateway
        self.own: dict[Address, Map] = {}
        self._made = 0

    # -- participants ------------------------------------------------------------------------

    def begin(self, address: Address, endpoints: list[EndpointData]) -> None:
        """Start a participant; the first few of a domain are willing to be gateways."""
        willing = int(address[1:]) < self.willing

        def node(_address: Address, _entrance: Any, settings: Any, chance: Random) -> Any:
            domain = address[0]
            seeds = tuple(f"{domain}{number}" for number in range(SEEDS))
            entrance = self._by_seeds(address, f"{address}#{self.lives.get(address, 0)}", seeds)
            home = FdpNode(address, entrance, settings, chance, CompactMaps())
            if not willing:
                return home
            return self._gateway(domain, home, self.backbones[domain], self._maker(address))

        self.own[address] = self._map(address, endpoints)
        self.start(address, encode_map(self.own[address]), node=node)

    def _map(self, address: Address, endpoints: list[EndpointData]) -> Map:
        willing = int(address[1:]) < self.willing
        properties = ((GATEWAY_PROPERTY, "willing"),) if willing else ()
        return Map.of(ParticipantData(address, properties=properties), endpoints)

    def _by_seeds(self, address: Address, guid: str, seeds: tuple[Address, ...]) -> SeedEntrance:
        return SeedEntrance(
            guid,
            address,
            seeds,
            self.settings,
            stream(self._seed, f"entrance/{guid}"),
            started_ms=1_000_000 + self.world.now_ns // 1_000_000,
            id_space=1 << 64,
        )

    def _maker(self, home: Address) -> Any:
        def make(backbone: str, guid: str) -> FdpNode:
            address = f"{home}@{backbone}"
            seeds = tuple(
                f"{domain}{number}@{backbone}"
                for domain, names in sorted(self.backbones.items())
                if backbone in names
                for number in range(self.willing)
            )
            self._made += 1
            chance = stream(self._seed, f"{address}/{self._made}")
            entrance = self._by_seeds(address, guid, seeds)
            return FdpNode(address, entrance, self.settings, chance, CompactSummaries())

        return make

    def tell(self, address: Address, endpoints: list[EndpointData]) -> None:
        """Change a participant's endpoints."""
        self.own[address] = self._map(address, endpoints)
        self.command(address, Change(map=encode_map(self.own[address])))

    def die(self, address: Address) -> None:
        """Crash a participant without a word, on all its rings."""
        for each in [each for each in self.processes if each.partition("@")[0] == address]:
            self.crash(each, silent=True)
        del self.own[address]

    def go(self, address: Address) -> None:
        """Let a participant leave."""
        self.command(address, End())
        del self.own[address]

    def _apply(self, process: Process, effects: Any) -> None:
        home = self.processes[process.address.partition("@")[0]]
        if isinstance(home.core, Gateway):
            for name in home.core._names:
                address = f"{home.address}@{name}"
                if (name in home.core._backbones) != (address in self.processes):
                    if address in self.processes:
                        del self.processes[address]
                    else:
                        self._begin(address, _Side(home.core, name))
        for effect in effects:
            if isinstance(effect, PostOn):
                at = f"{home.address}@{effect.backbone}"
                # The last goodbye is sent when nobody listens there any more.
                sender = self.processes.get(at) or Process(at, home.core, -1)
                self._send(sender, effect.to, effect.message)
        super()._apply(home, [each for each in effects if not isinstance(each, PostOn)])

    # -- judgement --------------------------------------------------------------------------

    def gateways(self) -> dict[str, list[Address]]:
        """Return the gateways of every domain."""
        found: dict[str, list[Address]] = {domain: [] for domain in self.backbones}
        for address, process in sorted(self.processes.items()):
            if isinstance(process.core, Gateway) and process.core.is_gateway:
                found[address[0]].append(address)
        return found

    def foreign_at(self, address: Address) -> Foreign:
        """Return what a participant knows of other domains."""
        core = self.processes[address].core
        home = core.home if isinstance(core, Gateway) else core
        assert isinstance(home, FdpNode)
        maps = [decode(each.map) for each in home.live().values() if each.map is not None]
        if isinstance(core, Gateway):
            maps.append(Map(ParticipantData(""), foreign=core.foreign))
        found: Foreign = {}
        for entry in foreign_of(maps):
            whole = decode_map(entry.map)
            found[entry.domain, whole.participant.guid] = list(whole.endpoints)
        return found

    def expected_at(self, domain: str) -> Foreign:
        """Return, by definition, what this domain should know of the others."""
        mine = [
            (each.kind, each.topic)
            for address, whole in self.own.items()
            if address[0] == domain
            for each in whole.endpoints
        ]
        expected: Foreign = {}
        for address, whole in self.own.items():
            shared = set(self.backbones[domain]) & set(self.backbones[address[0]])
            endpoints = [
                each for each in whole.endpoints if (each.kind.opposite, each.topic) in mine
            ]
            if address[0] != domain and shared and endpoints:
                expected[address[0], address] = endpoints
        return expected

    def wrong(self) -> list[str]:
        """Return what participants do not know, or should not."""
        found = []
        for address in sorted(self.own):
            expected, known = self.expected_at(address[0]), self.foreign_at(address)
            if known != expected:
                found.append(f"{address} knows {known}, expected {expected}")
        return found
