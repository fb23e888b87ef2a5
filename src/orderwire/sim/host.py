"""One simulated process: feeds its core, applies its effects, re-arms one timer."""

from collections import deque
from collections.abc import Callable
from heapq import heappush
from typing import Any, Protocol, TypeVar, assert_never, runtime_checkable

import msgspec

from orderwire.kernel import (
    Broadcast,
    Core,
    Effects,
    Indicate,
    Input,
    Instant,
    ProcessId,
    Received,
    RemoteProtocolError,
    Send,
    Woken,
    probe,
    submitted,
)
from orderwire.ordering.pdu import Codec
from orderwire.sim.clocks import Clock, TrueClock
from orderwire.sim.network import Network
from orderwire.sim.world import EARLY_COMMAND, TIMER, World

NEVER = 1 << 63
BACKLOG_INPUTS_MAX = 1_000_000
"""Most inputs that wait for one busy processor."""

PduT = TypeVar("PduT")


class Family(Protocol):
    """A protocol as the simulator meets it: how to start a process, and who listens to it."""

    def boot(
        self, me: ProcessId, incarnation: int, now: Instant
    ) -> tuple[Core[Any, Any], Codec[Any]]:
        """Return a new core without memory of earlier incarnations, and its codec."""
        ...

    def tell(self, me: ProcessId, indication: Any) -> None:
        """Take what a core indicates."""
        ...

    @property
    def received(self) -> Callable[[ProcessId, ProcessId, Any], None] | None:
        """Called with process, source and PDU before a core gets it; None if nobody cares."""
        ...

    def crashed(self, me: ProcessId) -> None:
        """Take notice that this process has stopped and lost its state."""
        ...

    def copy_lost(self, source: int, to: int, incarnation: int, copy: int) -> None:
        """Take notice that this copy, counted from 0 per link, will never arrive."""
        ...

    def loss_report(self, source: ProcessId, copy: int) -> Any | None:
        """Return the command that tells a core of a lost copy, or None if none does."""
        ...


@runtime_checkable
class Counted(Protocol):
    """A core that counts its own work, for the cost model."""

    @property
    def operations(self) -> int:
        """How many elementary operations so far; never decreases."""
        ...


class Computation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a core's work costs.  A counted charge: replayable, unlike a measured one."""

    input_ns: int = 0
    """Every call of the core."""
    submit_ns: int | None = None
    """A command of the application, when it costs something else than other calls."""
    operation_ns: int = 0
    """Every operation that a `Counted` core counts."""
    lag_max_ns: int = 20_000_000
    """An input's effects may come this much later than the input; beyond, a promise is broken."""


class Host:
    """Runs one process of a world.  Computation is free."""

    def __init__(
        self,
        me: ProcessId,
        world: World,
        network: Network,
        clock: Clock,
        family: Family,
        *,
        members: int,
        timer_granularity_ns: int = 1,
        record: Callable[[ProcessId, Input], None] | None = None,
    ) -> None:
        assert timer_granularity_ns >= 1, timer_granularity_ns
        self.me = me
        self.incarnation = -1
        self.running = False
        self.malformed = 0
        """PDUs that the codec or the core refused."""
        self._world = world
        self._network = network
        self._send = network.sender(me)
        self._clock = clock
        self._true_clock = isinstance(clock, TrueClock)
        self._family = family
        self._tell = family.tell
        self._received = family.received
        self._others = [ProcessId(other) for other in range(members) if other != me]
        self._granularity_ns = timer_granularity_ns
        self._record = record
        self._armed = NEVER

    def start(self) -> None:
        """Start, or restart with lost state."""
        assert not self.running, f"process {self.me} is running"
        self.incarnation += 1
        self.running = True
        self._armed = NEVER
        if self.incarnation:
            probe("sim: process restarted")
            self._network.restarted(self.me, self.incarnation)
        core, codec = self._family.boot(self.me, self.incarnation, self.now())
        self._core = core
        self._encode, self._decode = codec.encode, codec.decode
        self._receive, self._next_deadline = core.receive, core.next_deadline
        self._rearm()

    def crash(self) -> None:
        """Stop at once; everything the process knew is lost."""
        assert self.running, f"process {self.me} is not running"
        probe("sim: process crashed")
        self.running = False
        self._family.crashed(self.me)

    def now(self) -> Instant:
        """Read this process's clock."""
        true_ns = self._world.now_ns
        return true_ns if self._true_clock else self._clock.read(true_ns)

    def submit(self, command: Any, now: Instant | None = None) -> None:
        """Feed a command of the application."""
        if not self.running:
            return
        if now is None:
            now = self.now()
        if self._record is not None:
            self._record(self.me, submitted(now, command))
        self._apply(self._core.submit(command, now))
        self._rearm()

    def arrive(self, source: ProcessId, data: bytes, now: Instant | None = None) -> None:
        """Feed a PDU that the network brings."""
        if not self.running:
            probe("sim: arrival at a crashed process")
            return
        if now is None:  # Written out: the busiest call of a run.
            true_ns = self._world.now_ns
            now = true_ns if self._true_clock else self._clock.read(true_ns)
        if self._record is not None:
            self._record(self.me, Received(now, source, data))
        try:
            pdu = self._decode(data)
            if self._received is not None:
                self._received(self.me, source, pdu)
            effects = self._receive(source, pdu, now)
        except RemoteProtocolError:
            self.malformed += 1
            return
        if effects:
            self._apply(effects)
        deadline = self._next_deadline()
        if deadline is not None and deadline < self._armed:
            self._arm(deadline)

    def _rearm(self) -> None:
        """Set the timer when the next deadline is before it; a later one is seen when it fires."""
        deadline = self._next_deadline()
        if deadline is not None and deadline < self._armed:
            self._arm(deadline)

    def _arm(self, deadline: Instant) -> None:
        self._armed = deadline
        granularity_ns = self._granularity_ns
        true_ns: int = deadline
        if granularity_ns != 1:
            true_ns = -(-deadline // granularity_ns) * granularity_ns
        if not self._true_clock:
            true_ns = self._clock.when(true_ns)
        world = self._world
        heappush(
            world.heap,
            (
                true_ns if true_ns > world.now_ns else world.now_ns,
                TIMER,
                world.sequence(),
                self._fire,
                self.incarnation,
                deadline,
            ),
        )

    def _fire(self, incarnation: int, deadline: int) -> None:
        if deadline != self._armed or incarnation != self.incarnation or not self.running:
            return  # An earlier deadline has taken its place, or the process that set it is gone.
        self._armed = NEVER
        true_ns = self._world.now_ns
        now = true_ns if self._true_clock else self._clock.read(true_ns)
        due = self._next_deadline()
        if due is not None and due <= now:
            if self._record is not None:
                self._record(self.me, Woken(now))
            self._apply(self._core.wake(now))
            due = self._next_deadline()
            assert due is None or due > now, f"wake({now}) left a deadline at {due}"
        if due is not None:
            self._arm(due)

    def _apply(self, effects: Effects) -> None:
        """Carry out effects, in order.

        A chain of isinstance, not a match: this loop is the hottest of a run, and class patterns
        with captures take three times as long.
        """
        encoded: Any = None
        data = b""
        for effect in effects:
            if isinstance(effect, Send):
                pdu = effect.pdu
                if pdu is not encoded:
                    encoded, data = pdu, self._encode(pdu)
                self._send(effect.to, data, effect.via)
            elif isinstance(effect, Indicate):
                self._tell(self.me, effect.indication)
            elif isinstance(effect, Broadcast):
                data = self._encode(effect.pdu)
                encoded = effect.pdu
                for other in self._others:
                    self._send(other, data, effect.via)
            else:
                assert_never(effect)


class ChargedHost(Host):
    """A process whose computation takes time: inputs queue, effects happen when it is done.

    The core still sees an arrival with the time at which it came, as a real host stamps what it
    receives before its loop gets round to it.
    """

    def __init__(self, *args: Any, computation: Computation, **named: Any) -> None:
        super().__init__(*args, **named)
        self._computation = computation
        self._busy = False
        self._called = False
        self._effects: Effects = []
        self._backlog: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.busy_ns = 0
        """Computation charged so far, all incarnations together."""

    def start(self) -> None:
        """Start with an empty backlog.  Refuses a charge per operation that nobody counts."""
        self._backlog.clear()
        self._busy = False
        super().start()
        self._counted = self._core if isinstance(self._core, Counted) else None
        if self._computation.operation_ns and self._counted is None:
            raise ValueError(
                f"operation_ns={self._computation.operation_ns} would charge nothing: "
                f"{type(self._core).__name__} does not count its operations"
            )

    def submit(self, command: Any, now: Instant | None = None) -> None:
        """Queue a command of the application."""
        self._queue(Host.submit, command)

    def arrive(self, source: ProcessId, data: bytes, now: Instant | None = None) -> None:
        """Queue a PDU, with the time of its arrival."""
        self._queue(Host.arrive, source, data, self.now())

    def _fire(self, incarnation: int, deadline: int) -> None:
        self._queue(Host._fire, incarnation, deadline)

    def _queue(self, act: Callable[..., None], *arguments: Any) -> None:
        if not self._busy:
            self._work(act, arguments)
            return
        probe("sim: input waited for a busy processor")
        assert len(self._backlog) < BACKLOG_INPUTS_MAX, f"process {self.me} is overloaded"
        self._backlog.append((act, arguments))

    def _work(self, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Compute now, and be done with it when its charge has passed."""
        if not self.running:
            return
        self._called = act is not Host._fire
        self._effects = []
        before = self._operations()
        act(self, *arguments)
        charge_ns = self._computation.operation_ns * (self._operations() - before)
        if act is Host.submit and self._computation.submit_ns is not None:
            charge_ns += self._computation.submit_ns
        elif self._called:
            charge_ns += self._computation.input_ns
        self.busy_ns += charge_ns
        self._busy = True
        world = self._world
        world.at(
            world.now_ns + charge_ns, EARLY_COMMAND, self._finish, self.incarnation, self._effects
        )

    def _finish(self, incarnation: int, effects: Effects) -> None:
        if incarnation != self.incarnation or not self.running:
            return
        super()._apply(effects)
        self._busy = False
        if self._backlog:
            self._work(*self._backlog.popleft())

    def _apply(self, effects: Effects) -> None:
        self._called = True
        self._effects = effects

    def _operations(self) -> int:
        return 0 if self._counted is None else self._counted.operations
