"""A simulated domain that leaves a trace of its discovery."""

from functools import partial
from random import Random
from typing import Any

from orderwire.discovery.effects import Address
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import Message, encode
from orderwire.discovery.settings import LITERAL, BootstrapSettings, DiscoverySettings
from orderwire.kernel import NS_PER_MS, NS_PER_S, stream
from orderwire.participant.discovery_trace import DiscoveryRecorder
from orderwire.sim.discovery_world import SERVER, DiscoveryCore, DiscoveryWorld, Faults, Process
from orderwire.trace.discovery_events import DiscoveryTimeline
from orderwire.trace.events import NO_ORDER, DiscoveryRun, Event, RunSettings

PARTICIPANTS_MAX = 64


class RecordedDomain(DiscoveryWorld):
    """Participants go by numbers in the order of their first start; the server is none."""

    def __init__(
        self,
        seed: int | str,
        *,
        settings: DiscoverySettings | None = None,
        delay_ms: tuple[int, int] = (1, 20),
        faults: Faults | None = None,
    ) -> None:
        settings = settings if settings is not None else DiscoverySettings()
        literal = settings.mechanisms == LITERAL
        delays: Random = stream(seed, "recorded/delays")
        super().__init__(
            settings,
            BootstrapSettings(),
            seed,
            lambda _source, _to: delays.randint(*(bound * NS_PER_MS for bound in delay_ms)),
            faults=faults,
            literal=literal,
        )
        self.events: list[Event] = []
        self.lines: dict[Address, DiscoveryTimeline] = {}
        self.recorders: dict[Address, DiscoveryRecorder] = {}
        """Of the present lives."""
        self.run_settings = RunSettings(
            algorithm=NO_ORDER,
            members=PARTICIPANTS_MAX,
            discovery=DiscoveryRun(
                protocol="fdp-literal" if literal else "fdp", fail_ns=settings.fail_ns
            ),
        )
        self.listeners.append(self._note)

    def finish(self) -> tuple[list[Event], RunSettings]:
        """End all timelines; return the trace and the run's settings."""
        for line in self.lines.values():
            line.end(self.world.now_ns)
        return self.events, self.run_settings

    def _begin(self, address: Address, core: DiscoveryCore) -> Process:
        if address != SERVER:
            now = self.world.now_ns
            line = self.lines.get(address)
            if line is None:
                line = DiscoveryTimeline("domain", len(self.lines), self.events.append)
                self.lines[address] = line
                line.start(self.run_settings, now)
            assert isinstance(core, FdpNode)
            recorder = self.recorders[address] = DiscoveryRecorder(core, now)
            recorder.write_to(line)
        return super()._begin(address, core)

    def crash(self, address: Address, *, silent: bool = False) -> None:
        """Stop a process, and say so in its place."""
        self.lines[address].gone(self.world.now_ns)
        super().crash(address, silent=silent)

    def leave(self, address: Address) -> None:
        """Let a participant leave."""
        self.recorders[address].leaving(self.world.now_ns)
        super().leave(address)

    def change(self, address: Address, map_bytes: bytes, *, collect: bool = False) -> None:
        """Change a participant's MAP."""
        super().change(address, map_bytes, collect=collect)
        self.recorders[address].changed(self.world.now_ns)

    def deliver(self, source: Address, process: Process, message: Message) -> None:
        """Hand a message to a process."""
        if process.address != SERVER:
            recorder = self.recorders[process.address]
            recorder.heard(self.world.now_ns, message, len(encode(message)))
        super().deliver(source, process, message)

    def _send(self, source: Process, to: Address, message: Message) -> None:
        if source.address != SERVER:
            recorder = self.recorders[source.address]
            recorder.posted(self.world.now_ns, message, len(encode(message)))
        super()._send(source, to, message)

    def _note(self, now: int, address: Address, indication: Any) -> None:
        if address != SERVER:
            self.recorders[address].told(now, indication)


def begin(domain: RecordedDomain, count: int, spread_s: float) -> None:
    """Start the server and some participants within a stretch of time."""
    domain.server_up()
    chance = stream(0, "recorded/starts")
    for at in range(count):
        start_ns = round(chance.uniform(0, spread_s) * NS_PER_S)
        name = f"p{at}"
        domain.at(start_ns, partial(domain.start, name, name.encode()))
