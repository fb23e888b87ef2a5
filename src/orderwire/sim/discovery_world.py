"""Participants of a discovery domain and their bootstrap server, in simulated time.

Every process listens at an address.  Messages between two processes keep their order.  A process
that crashes resets its connections, unless it does so silently; one that restarts at the same
address loses what was on its way.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.commands import (
    Change,
    Command,
    End,
    Gone,
    Joined,
    Learnt,
    Refused,
    Start,
    Unreachable,
)
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance, SeedEntrance, ServerEntrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import Message
from orderwire.discovery.settings import BootstrapSettings, DiscoverySettings
from orderwire.kernel import Indicate, Instant, stream
from orderwire.sim.discovery_judge import faults_of_views, leftovers
from orderwire.sim.world import ARRIVAL, COMMAND, FAULT, TIMER, World

SERVER: Address = "server"
NEVER = 1 << 63


class Posted(msgspec.Struct, frozen=True, gc=False):
    """One message that left."""

    time_ns: int
    source: Address
    to: Address
    message: Message


class DiscoveryCore(Protocol):
    """A participant or a server."""

    def submit(self, command: Any, now: Instant) -> DiscoveryEffects:
        """Take a command."""
        ...

    def receive(self, source: Address, message: Any, now: Instant) -> DiscoveryEffects:
        """Take a message."""
        ...

    def wake(self, now: Instant) -> DiscoveryEffects:
        """Act on what is due."""
        ...

    def next_deadline(self) -> Instant | None:
        """When `wake` is due."""
        ...


CoreT = TypeVar("CoreT", bound=DiscoveryCore)

Arrive: TypeAlias = Callable[[Address, Address, int, Message], None]


class Channel(Protocol):
    """What carries messages."""

    def send(self, source: Address, to: Address, message: Message) -> None:
        """Let a message leave now."""
        ...


class Faults(msgspec.Struct, kw_only=True):
    """What the channel does beside delaying."""

    loss_ratio: float = 0.0
    """A message vanishes and nobody is told."""
    dropped: frozenset[int] = frozenset()
    """Indices of messages that vanish, counted from 0."""


class Process:
    """One process at one address, one life."""

    def __init__(self, address: Address, core: DiscoveryCore, life: int) -> None:
        self.address = address
        self.core = core
        self.life = life
        self.armed = NEVER


class DiscoveryWorld:
    """A domain.  `say` is told every indication: time, address, indication."""

    def __init__(
        self,
        settings: DiscoverySettings,
        bootstrap: BootstrapSettings,
        seed: int | str,
        delay_ns: Callable[[Address, Address], int],
        *,
        faults: Faults | None = None,
        literal: bool = False,
        record: bool = False,
        world: World | None = None,
        channel: Channel | None = None,
    ) -> None:
        self.world = world if world is not None else World()
        self.settings = settings
        self._bootstrap = bootstrap
        self._seed = seed
        self._chance = stream(seed, "discovery/channel")
        self._delay_ns = delay_ns
        self._faults = faults if faults is not None else Faults()
        self._literal = literal
        self._channel = channel
        self.processes: dict[Address, Process] = {}
        self.lives: dict[Address, int] = {}
        self.seeds: tuple[Address, ...] = ()
        self._last_ns: dict[tuple[Address, Address], int] = {}
        self._side: dict[Address, int] = {}
        self._silent: set[Address] = set()
        self._epoch = 0
        self.sent = 0
        self.posted: list[Posted] = []
        self._record = record
        self.gone_ns: dict[Address, int] = {}
        """When each participant that left was gone."""
        self._refused: set[Address] = set()
        """Who asked for an id and was told that there is none."""
        self.listeners: list[Callable[[int, Address, Any], None]] = []

    # -- processes --------------------------------------------------------------------------

    def server_up(self, *, lost: bool = False, recovery_ns: int | None = None) -> None:
        """Start the server; `lost` says that it has forgotten its table."""
        process = self.processes.get(SERVER)
        if process is not None:
            self._silent.discard(SERVER)
            if not lost:
                return
        self._epoch += 1
        settings = self._bootstrap
        if recovery_ns is not None:
            settings = msgspec.structs.replace(settings, recovery_ns=recovery_ns)
        server = BootstrapServer(
            settings,
            self.world.now_ns,
            epoch=self._epoch,
            recovering=lost,
            successors_only=self._literal,
            both_ways=self.settings.both_ways_bytes_max < 0,
        )
        self._begin(SERVER, server)

    def server_down(self) -> None:
        """Cut the server off; it keeps its table."""
        self._silent.add(SERVER)

    def start(
        self,
        address: Address,
        map_bytes: bytes,
        *,
        wish: int | None = None,
        node: Callable[..., FdpNode] = FdpNode,
    ) -> FdpNode:
        """Start a participant at this address, or a new one after a crash."""
        return self.start_core(address, map_bytes, node, wish=wish)

    def start_core(
        self,
        address: Address,
        map_bytes: bytes,
        make: Callable[[Address, Entrance, DiscoverySettings, Random], CoreT],
        *,
        wish: int | None = None,
    ) -> CoreT:
        """Start a participant of whatever kind `make` returns."""
        life = self.lives.get(address, 0)
        guid = f"{address}#{life}"
        chance = stream(self._seed, f"discovery/{guid}")
        core = make(address, self._entrance(address, guid, wish, chance), self.settings, chance)
        process = self._begin(address, core)
        self._apply(process, core.submit(Start(map=map_bytes), self.world.now_ns))
        return core

    def _entrance(self, address: Address, guid: str, wish: int | None, chance: Random) -> Entrance:
        if self.seeds:
            started_ms = 1_000_000 + self.world.now_ns // 1_000_000
            return SeedEntrance(
                guid,
                address,
                self.seeds,
                self.settings,
                chance,
                started_ms=started_ms,
                id_space=self._bootstrap.id_space,
            )
        return ServerEntrance(guid, address, SERVER, self.settings, wish=wish)

    def _begin(self, address: Address, core: DiscoveryCore) -> Process:
        life = self.lives.get(address, 0)
        self.lives[address] = life + 1
        process = self.processes[address] = Process(address, core, life)
        self._silent.discard(address)
        self._refused.discard(address)
        return process

    def crash(self, address: Address, *, silent: bool = False) -> None:
        """Stop a process; its peers see a reset unless it is silent."""
        process = self.processes.pop(address)
        process.armed = NEVER
        if silent:
            self._silent.add(address)
            return
        for other in self.processes.values():
            if other.address != SERVER:
                self._tell_unreachable(other, address)

    def command(self, address: Address, command: Command) -> None:
        """Give a participant a command."""
        process = self.processes[address]
        self._apply(process, process.core.submit(command, self.world.now_ns))

    def change(self, address: Address, map_bytes: bytes, *, collect: bool = False) -> None:
        """Change a participant's MAP."""
        self.command(address, Change(map=map_bytes, collect=collect))

    def leave(self, address: Address) -> None:
        """Let a participant leave."""
        self.command(address, End())

    def partition(self, group: set[Address]) -> None:
        """Cut the group off from the rest; the server is reached by both."""
        self._side = dict.fromkeys(group, 1)

    def heal(self) -> None:
        """End the partition."""
        self._side = {}

    def calm(self) -> None:
        """End loss and partitions, and bring the server back."""
        self._faults = Faults()
        self.heal()
        self._silent.discard(SERVER)

    def at(self, time_ns: int, act: Callable[[], object]) -> None:
        """Do this at that time."""
        self.world.at(time_ns, FAULT, self._do, act)

    @staticmethod
    def _do(act: Callable[[], object], _: None) -> None:
        act()

    def run(self, until_ns: int) -> None:
        """Let time pass up to there."""
        self.world.run(until_ns)

    # -- messages ---------------------------------------------------------------------------

    def _send(self, source: Process, to: Address, message: Message) -> None:
        index = self.sent
        self.sent += 1
        if self._record:
            self.posted.append(Posted(self.world.now_ns, source.address, to, message))
        if self._channel is not None:
            self._channel.send(source.address, to, message)
            return
        now = self.world.now_ns
        faults = self._faults
        cut = (
            self._side.get(source.address, 0) != self._side.get(to, 0)
            and to != SERVER
            and source.address != SERVER
        )
        lost = index in faults.dropped or (
            faults.loss_ratio and self._chance.random() < faults.loss_ratio
        )
        if cut or lost or to in self._silent:
            return
        pair = (source.address, to)
        arrival_ns = max(now + self._delay_ns(*pair), self._last_ns.get(pair, 0))
        self._last_ns[pair] = arrival_ns
        life = self.lives.get(to, 0) - 1 if to in self.processes else -1
        self.world.at(arrival_ns, ARRIVAL, self._arrive, (source, to, life), message)

    def _arrive(self, ends: tuple[Process, Address, int], message: Message) -> None:
        source, to, life = ends
        process = self.processes.get(to)
        if process is None or process.life != life:
            if to not in self._silent and self.processes.get(source.address) is source:
                self._tell_unreachable(source, to)
            return
        self.deliver(source.address, process, message)

    def deliver(self, source: Address, process: Process, message: Message) -> None:
        """Hand a message to a process."""
        self._apply(process, process.core.receive(source, message, self.world.now_ns))

    def unreachable(self, address: Address, peer: Address) -> None:
        """Tell a process that its connection to a peer has ended."""
        self._unreachable(self.processes[address], peer)

    def _tell_unreachable(self, process: Process, address: Address) -> None:
        delay_ns = self._delay_ns(address, process.address)
        when = self.world.now_ns + delay_ns
        self.world.at(when, ARRIVAL, self._unreachable, process, address)

    def _unreachable(self, process: Process, address: Address) -> None:
        if self.processes.get(process.address) is process:
            command = Unreachable(address=address)
            self._apply(process, process.core.submit(command, self.world.now_ns))

    def _apply(self, process: Process, effects: DiscoveryEffects) -> None:
        for effect in effects:
            if isinstance(effect, Post):
                self._send(process, effect.to, effect.message)
            else:
                assert isinstance(effect, Indicate)
                self._tell(process, effect.indication)
        due = process.core.next_deadline()
        if due is not None and due < process.armed:
            process.armed = due
            when = max(due, self.world.now_ns)
            self.world.at(when, TIMER, self._fire, process, due)

    def _fire(self, process: Process, due: int) -> None:
        if process.armed != due or self.processes.get(process.address) is not process:
            return
        process.armed = NEVER
        self._apply(process, process.core.wake(self.world.now_ns))

    def _tell(self, process: Process, indication: Any) -> None:
        now = self.world.now_ns
        for listener in self.listeners:
            listener(now, process.address, indication)
        if isinstance(indication, Learnt):
            return  # As most are.
        if isinstance(indication, Refused):
            self._refused.add(process.address)
        elif isinstance(indication, Joined):
            self._refused.discard(process.address)
        elif isinstance(indication, Gone):
            self.gone_ns[process.address] = now
            self.world.at(now, COMMAND, self._end, process)

    def _end(self, process: Process, _: None) -> None:
        if self.processes.get(process.address) is process:
            del self.processes[process.address]

    # -- judgement --------------------------------------------------------------------------

    def nodes(self) -> dict[Address, FdpNode]:
        """Return the participants that are there and do not leave."""
        return {
            address: process.core
            for address, process in self.processes.items()
            if isinstance(process.core, FdpNode) and not process.core.leaving
        }

    def admitted(self) -> dict[Address, FdpNode]:
        """Return those of them that were not refused an id: the domain is full, or recovers."""
        return {
            address: node
            for address, node in self.nodes().items()
            if node.id is not None or address not in self._refused
        }

    def faults_of_views(
        self, *, ignore_extra: bool = False, ignore_refused: bool = False
    ) -> list[str]:
        """Return what is wrong with the views: missing, dead or stale entries, in words.

        `ignore_refused` says that whoever was refused an id takes no part.
        """
        nodes = self.admitted() if ignore_refused else self.nodes()
        return faults_of_views(nodes, ignore_extra=ignore_extra)

    def faults_at_rest(self) -> list[str]:
        """Return what is wrong when all has come to rest: also with what views do not show.

        Contacts and suspicions are settled, everybody is sent to, and nobody is refused an id
        while one is free.  Some of it is still under way within a lease and twice the fail time
        after the last fault.
        """
        nodes = self.admitted()
        full = len(nodes) >= self._bootstrap.id_space
        return [*self.faults_of_views(ignore_refused=full), *leftovers(nodes)]
