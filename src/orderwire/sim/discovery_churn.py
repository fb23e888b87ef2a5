"""Drawn runs of discovery under joins, crashes, restarts, leaves, updates, loss and partitions.

After the last fault the run is quiet, and every view must come to equal the truth.  [S002 spec 4.3]
"""

from collections.abc import Callable
from functools import partial
from random import Random

import msgspec
from msgspec.structs import replace

from orderwire.discovery.messages import Join
from orderwire.discovery.ring import RangePolicy
from orderwire.discovery.settings import (
    FEW_MESSAGES,
    LITERAL,
    BootstrapSettings,
    DiscoverySettings,
    Mechanisms,
)
from orderwire.kernel import NS_PER_MS, NS_PER_S, stream
from orderwire.sim.discovery_world import SERVER, DiscoveryWorld, Faults

CHURN_S = 20.0
"""Faults happen within this time."""
QUIET_S = 40.0
"""A run whose views are not exact this long after the last fault has failed."""
STEP_NS = 500 * NS_PER_MS


class ChurnSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much happens."""

    participants: int = 16
    joins: int = 12
    crashes: int = 5
    silent_crashes: int = 3
    restarts: int = 4
    leaves: int = 4
    updates: int = 25
    id_space: int = 32
    loss_ratio: float = 0.02
    server_down_ratio: float = 0.6
    partition_ratio: float = 0.5
    seeds: int = 0
    """Without a server: this many participants are seeds, and they stay up …"""
    mortal_seeds: int = 0
    """… but these, which crash, leave and come back as all others do."""
    mechanisms: Mechanisms = Mechanisms()
    gossip_heartbeats: bool = False


class ChurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    exact_after_s: float | None
    """Since the last fault; None when the views never became exact."""
    wrong: tuple[str, ...]
    messages: int
    probes: tuple[str, ...] = ()


class _Churn:
    """One run being drawn."""

    def __init__(self, seed: int | str, settings: ChurnSettings) -> None:
        self.settings = settings
        self.chance = chance = stream(seed, "discovery/churn")
        slowest_ms = chance.choice((5, 50, 200))
        delays = stream(seed, "discovery/delays")
        literal = settings.mechanisms == LITERAL
        self.world = DiscoveryWorld(
            replace(
                FEW_MESSAGES if settings.gossip_heartbeats else DiscoverySettings(),
                mechanisms=settings.mechanisms,
                both_ways_bytes_max=chance.choice((0, -1, 1_024)),
                policy=RangePolicy.SUCC if literal else chance.choice(list(RangePolicy)[:2]),
            ),
            BootstrapSettings(id_space=settings.id_space),
            seed,
            lambda _source, _to: delays.randint(NS_PER_MS // 10, slowest_ms * NS_PER_MS),
            faults=Faults(loss_ratio=settings.loss_ratio),
            literal=literal,
        )
        self.last_ns = 0
        self.named = 0
        self.versions = 0
        self.steady: set[str] = set()

    def run(self) -> ChurnResult:
        """Let everything happen, then wait until the views are exact."""
        settings, world, chance = self.settings, self.world, self.chance
        if settings.seeds:
            world.seeds = tuple(f"p{at}" for at in range(settings.seeds))
            self.steady = set(world.seeds[settings.mortal_seeds :])
        else:
            world.server_up()
        boot_s = chance.choice((0.0, 0.5, 2.0))
        for _ in range(settings.participants):
            self._at(chance.uniform(0, boot_s), self._join)
        for times, act in (
            (settings.joins, self._join),
            (settings.crashes, self._crash),
            (settings.silent_crashes, self._crash_silently),
            (settings.restarts, self._restart),
            (settings.leaves, self._leave),
            (settings.updates, self._update),
        ):
            for _ in range(times):
                self._at(chance.uniform(0.5, CHURN_S), act)
        if not settings.seeds and chance.random() < settings.server_down_ratio:
            self._server_outage()
        if chance.random() < settings.partition_ratio:
            start_s = chance.uniform(1, CHURN_S - 1)
            self._at(start_s, self._partition)
            self._at(start_s + chance.uniform(0.5, 12), world.heal)
        world.run(self.last_ns)
        world.calm()
        for step in range(1, int(QUIET_S * NS_PER_S) // STEP_NS + 1):
            world.run(self.last_ns + step * STEP_NS)
            wrong = world.faults_of_views()
            if not wrong:
                return ChurnResult(
                    exact_after_s=step * STEP_NS / NS_PER_S, wrong=(), messages=world.sent
                )
        return ChurnResult(exact_after_s=None, wrong=tuple(wrong), messages=world.sent)

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        time_ns = round(time_s * NS_PER_S)
        self.last_ns = max(self.last_ns, time_ns)
        self.world.at(time_ns, act)

    def _server_outage(self) -> None:
        chance, world = self.chance, self.world
        start_s = chance.uniform(1, CHURN_S - 2)
        lost = chance.random() < 0.5
        recovery_ns = 0 if lost and chance.random() < 0.3 else None
        self._at(start_s, world.server_down)
        self._at(
            start_s + chance.uniform(0.5, 6),
            lambda: world.server_up(lost=lost, recovery_ns=recovery_ns),
        )

    def _one(self) -> str | None:
        there = [
            address
            for address in self.world.nodes()
            if address != SERVER and address not in self.steady
        ]
        return self.chance.choice(there) if there else None

    def _map(self) -> bytes:
        self.versions += 1
        return b"map %d" % self.versions

    def _join(self) -> None:
        address = f"p{self.named}"
        self.named += 1
        self.world.start(address, self._map())

    def _crash(self) -> None:
        if (address := self._one()) is not None:
            self.world.crash(address)

    def _crash_silently(self) -> None:
        if (address := self._one()) is not None:
            self.world.crash(address, silent=True)

    def _restart(self) -> None:
        if (address := self._one()) is not None:
            self.world.crash(address)
            self.world.start(address, self._map())

    def _leave(self) -> None:
        if (address := self._one()) is not None:
            self.world.leave(address)

    def _update(self) -> None:
        if (address := self._one()) is not None:
            self.world.change(address, self._map(), collect=self.chance.random() < 0.2)

    def _partition(self) -> None:
        there = [each for each in self.world.processes if each != SERVER]
        self.world.partition(set(self.chance.sample(there, k=len(there) // 2)))


def churn(seed: int | str, settings: ChurnSettings | None = None) -> ChurnResult:
    """Draw and judge one run."""
    return _Churn(seed, settings if settings is not None else ChurnSettings()).run()


class BootResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a boot."""

    wrong: tuple[str, ...]
    participants: int
    joins: int
    """JOIN messages, relayed ones included."""


class BootSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A random boot without faults; all repair is off. [S002 spec P1]"""

    participants_max: int = 24
    members: bool = True
    early: bool = True


def boot_without_repair(seed: int | str, settings: BootSettings | None = None) -> BootResult:
    """Start some participants over reliable channels; judge the views in the end."""
    settings = settings if settings is not None else BootSettings()
    chance = stream(seed, "discovery/boot")
    delays: Random = stream(seed, "discovery/delays")
    count = chance.randint(2, settings.participants_max)
    slowest_ms = chance.choice((1, 20, 500))
    spread_s = chance.choice((0.0, 0.0, 0.01, 0.5))
    world = DiscoveryWorld(
        DiscoverySettings(
            mechanisms=Mechanisms(
                ae=False,
                pull=False,
                server_sync=False,
                heartbeats=False,
                detect=False,
                arq=False,
                reroute=False,
                probe=False,
                members=settings.members,
                early=settings.early,
            ),
            both_ways_bytes_max=chance.choice((0, -1)),
            policy=chance.choice((RangePolicy.RANK, RangePolicy.SUCC)),
        ),
        BootstrapSettings(id_space=chance.choice((count, 32, 1 << 16))),
        seed,
        lambda _source, _to: delays.randint(NS_PER_MS // 100, slowest_ms * NS_PER_MS),
        record=True,
    )
    world.server_up()
    for at in range(count):
        start_ns = round(chance.uniform(0, spread_s) * NS_PER_S)
        world.at(start_ns, partial(world.start, f"p{at}", b"map %d" % at))
    world.run(60 * NS_PER_S)
    return BootResult(
        wrong=tuple(world.faults_of_views()),
        participants=count,
        joins=sum(isinstance(each.message, Join) for each in world.posted),
    )
