"""Small runs of discovery in simulated time, for tests: a domain, its boot, what was sent."""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from orderwire.discovery.settings import BootstrapSettings, DiscoverySettings, Mechanisms
from orderwire.kernel import NS_PER_MS, NS_PER_S, stream
from orderwire.sim.discovery_script import message_name
from orderwire.sim.discovery_world import SERVER, DiscoveryWorld, Faults

Delay = Callable[[str, str], int]
MS, S = NS_PER_MS, NS_PER_S


def off(*names: str) -> Mechanisms:
    """All of FDP/1 but these mechanisms."""
    return Mechanisms(**dict.fromkeys(names, False))


NO_REPAIR = off("ae", "pull", "server_sync", "heartbeats", "detect", "arq", "reroute", "probe")
"""The boot alone, without anything that would repair it."""


def drawn_delay(seed: int | str, low_ns: int, high_ns: int) -> Delay:
    """Delays drawn for each message."""
    chance: Random = stream(seed, "test/delays")
    return lambda _source, _to: chance.randint(low_ns, high_ns)


def fixed_delay(delay_ns: int = MS) -> Delay:
    """The same delay for every message."""
    return lambda _source, _to: delay_ns


def domain(
    *,
    seed: int | str = 0,
    id_space: int = 1 << 16,
    delay: Delay | None = None,
    dropped: Iterable[int] = (),
    mechanisms: Mechanisms | None = None,
    bootstrap: dict[str, Any] | None = None,
    **settings: Any,
) -> DiscoveryWorld:
    """Return a domain with its server up; everything that is sent is kept."""
    if mechanisms is not None:
        settings["mechanisms"] = mechanisms
    world = DiscoveryWorld(
        DiscoverySettings(**settings),
        BootstrapSettings(id_space=id_space, **(bootstrap or {})),
        seed,
        delay if delay is not None else fixed_delay(),
        faults=Faults(dropped=frozenset(dropped)),
        record=True,
    )
    world.server_up()
    return world


def start_all(world: DiscoveryWorld, count: int, *, map_bytes: int = 8) -> None:
    """Start p0, p1 … now; every MAP is another one."""
    for at in range(count):
        world.start(f"p{at}", b"%*d" % (map_bytes, at))


def sent(world: DiscoveryWorld, *, after_ns: int = 0, source: str | None = None) -> Counter[str]:
    """How many messages of each type left."""
    return Counter(
        message_name(each.message)
        for each in world.posted
        if each.time_ns >= after_ns and source in (None, each.source)
    )


def exact_within(world: DiscoveryWorld, wait_ns: int, step_ns: int = 10 * MS) -> int | None:
    """Let time pass until the views are exact; return how long it took, None when it never was."""
    begin = world.world.now_ns
    while world.world.now_ns < begin + wait_ns:
        if not world.faults_of_views():
            return world.world.now_ns - begin
        world.run(world.world.now_ns + step_ns)
    return None if world.faults_of_views() else wait_ns


def by_id(world: DiscoveryWorld) -> dict[int, str]:
    """Which address holds which id."""
    return {node.id: address for address, node in world.nodes().items() if node.id is not None}


def server_of(world: DiscoveryWorld) -> Any:
    """The bootstrap server that runs."""
    return world.processes[SERVER].core
