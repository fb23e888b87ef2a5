"""What a run costs, without its trace: sizes, waiting, delays and, if asked, processor time.

A trace takes an event for every copy and a vector clock for every message; a figure of the papers
needs sums only.  Here a host runs as in `sim.run`, with the same streams of chance, so that the
same seed gives every algorithm the same messages, destinations and losses.  [S000:sec.5.3]

Behind the last message that counts, every process sends on for a while: a load that fades would
make the tags of the last messages smaller, of as many as there are processes.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from orderwire.kernel import Core, Instant, ProcessId, Via, ms, stream
from orderwire.ordering.catalog import Algorithm
from orderwire.ordering.pdu import (
    Codec,
    Delivered,
    DiscardReason,
    Lost,
    Multicast,
    OrderingIndication,
    Sent,
)
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.clocks import Clock, ClockSettings, clocks
from orderwire.sim.host import ChargedHost, Computation, Host
from orderwire.sim.network import Network, NetworkSettings
from orderwire.sim.scenario import Workload
from orderwire.sim.workload import Applications
from orderwire.sim.world import World

STEP_NS = ms(100)


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run to measure."""

    settings: OrderingSettings
    workload: Workload
    network: NetworkSettings = NetworkSettings()
    clocks: ClockSettings = ClockSettings()
    computation: Computation | None = None
    warm_up: int = 0
    """Messages, of all processes together, sent before the first that counts."""
    printed: bool = True
    """Whether to compute the size in the papers' layout too: it costs time."""
    printed_uplink: bool = False
    """Whether the uplink carries the papers' layout instead of ours."""
    header_bytes: int = 0
    """What the uplink carries of every copy beside payload and control information."""


class Measures(msgspec.Struct, kw_only=True):
    """Sums over what was sent after the warm-up."""

    messages: int = 0
    copies: int = 0
    control_bytes: int = 0
    """Encoded control information, head included, of all copies together."""
    control_bytes_max: int = 0
    printed_bytes: int = 0
    """In the papers' layout of 4-byte integers, without the head."""
    printed_bytes_max: int = 0
    delivered: int = 0
    delivery_ns: int = 0
    """From the multicast to the delivery, true time, of all deliveries together."""
    waited_ns: int = 0
    """From arrival to delivery, by the receiver's clock."""
    held: int = 0
    """Deliveries that waited at all."""
    late: int = 0
    discarded: int = 0
    """Arrived, dropped for another reason than being late."""
    busy_ns: int = 0
    """Charged computation of all processes, warm-up included."""
    end_ns: int = 0
    send_cpu_ns: int = 0
    """Processor time of all multicasts together; 0 without a timer."""
    receive_cpu_ns: int = 0
    """Processor time of all arrivals and timers together; 0 without a timer."""


class _Frame:
    """A copy on the simulated wire: the PDU itself, as long as it would be."""

    __slots__ = ("data", "length", "pdu", "printed")

    def __init__(self, pdu: Any, printed: int, length: int, data: bytes) -> None:
        self.pdu = pdu
        self.printed = printed
        self.length = length
        self.data = data
        """The encoded PDU of a timed run; empty otherwise."""

    def __len__(self) -> int:
        return self.length


class _Carrier:
    """Puts PDUs into frames.  Encoding is for timed runs: the size is known without it."""

    def __init__(self, plan: Plan, algorithm: Algorithm) -> None:
        self._plan = plan
        self._printed = algorithm.printed_bytes if plan.printed else None

    def encode(self, pdu: Any) -> Any:
        return self._frame(pdu, b"")

    def decode(self, data: Any) -> Any:
        return data.pdu

    def _frame(self, pdu: Any, data: bytes) -> _Frame:
        plan = self._plan
        printed = 0 if self._printed is None else self._printed(pdu, plan.settings)
        control = printed if plan.printed_uplink else len(pdu.control)
        length = plan.header_bytes + control + plan.workload.payload_bytes
        return _Frame(pdu, printed, length, data)


class _Stopwatch:
    """Adds up what calls cost while it is on."""

    def __init__(self, timer: Callable[[], int]) -> None:
        self._timer = timer
        self.on = False
        self.sums_ns = {"send": 0, "receive": 0}

    def timed(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, its time added to this sum."""

        def timed(*arguments: Any) -> Any:
            began = self._timer()
            result = call(*arguments)
            if self.on:
                self.sums_ns[what] += self._timer() - began
            return result

        return timed


class _TimedCore:
    """A core whose calls are timed."""

    def __init__(self, core: Core[Any, Any], watch: _Stopwatch) -> None:
        self.submit = watch.timed("send", core.submit)
        self.receive = watch.timed("receive", core.receive)
        self.wake = watch.timed("receive", core.wake)
        self.next_deadline = core.next_deadline


class _TimedCarrier(_Carrier):
    """Encodes and decodes for real, and times it."""

    def __init__(
        self, plan: Plan, algorithm: Algorithm, codec: Codec[Any], watch: _Stopwatch
    ) -> None:
        super().__init__(plan, algorithm)
        self._encode = watch.timed("send", codec.encode)
        self._decode = watch.timed("receive", codec.decode)

    def encode(self, pdu: Any) -> Any:
        return self._frame(pdu, self._encode(pdu))

    def decode(self, data: Any) -> Any:
        return self._decode(data.data)


class _CountingNetwork(Network):
    """Counts every copy when it leaves."""

    def __init__(self, group: "_Group", *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._group = group

    def sender(self, source: int) -> Callable[[int, bytes, Via], None]:
        """Return the function by which this process lets a copy leave now."""
        send = super().sender(source)
        group = self._group

        def counted(to: int, data: Any, via: Via) -> None:
            group.copy(source, data)
            send(to, data, via)

        return counted


class _Group:
    """Boots cores, counts what they send and deliver."""

    received: Callable[[ProcessId, ProcessId, Any], None] | None = None

    def __init__(
        self,
        world: World,
        algorithm: Algorithm,
        plan: Plan,
        clocks_: list[Clock],
        watch: _Stopwatch | None,
    ) -> None:
        members = plan.settings.members
        self.sums = Measures()
        self._world = world
        self._algorithm = algorithm
        self._plan = plan
        self._clocks = clocks_
        self._watch = watch
        self._multicasts = 0
        self._numbers = [0] * members
        self._counted = [range(0)] * members
        """Per sender, the numbers of its messages that count."""
        self._last = plan.workload.messages or 1 << 62
        self._sent_ns: dict[tuple[int, int], int] = {}

    def boot(
        self, me: ProcessId, incarnation: int, now: Instant
    ) -> tuple[Core[Any, Any], Codec[Any]]:
        """Return a core, and a codec that makes frames."""
        assert incarnation == 0, "nothing crashes here"
        settings, algorithm, watch = self._plan.settings, self._algorithm, self._watch
        core = algorithm.create(me, settings)
        if watch is None:
            return core, _Carrier(self._plan, algorithm)
        codec = algorithm.codec(me, settings)
        return _TimedCore(core, watch), _TimedCarrier(self._plan, algorithm, codec, watch)

    def multicast(self, me: int) -> None:
        """Take notice that this process is about to send."""
        number = self._numbers[me]
        self._numbers[me] = number + 1
        self._multicasts += 1
        is_counted = self._plan.warm_up < self._multicasts <= self._last
        if is_counted:
            self.sums.messages += 1
            self._counted[me] = range((self._counted[me] or [number])[0], number + 1)
            self._sent_ns[me, number] = self._world.now_ns
        if self._watch is not None:
            self._watch.on = is_counted

    def copy(self, source: int, frame: _Frame) -> None:
        """Count a copy that leaves."""
        pdu = frame.pdu
        if pdu.number not in self._counted[source]:
            return
        sums = self.sums
        sums.copies += 1
        control, printed = len(pdu.control), frame.printed
        sums.control_bytes += control
        sums.printed_bytes += printed
        if control > sums.control_bytes_max:
            sums.control_bytes_max = control
        if printed > sums.printed_bytes_max:
            sums.printed_bytes_max = printed

    def tell(self, me: ProcessId, indication: OrderingIndication) -> None:
        """Count an indication."""
        if isinstance(indication, Sent) or indication.source == me:
            return
        if indication.number not in self._counted[indication.source]:
            return
        sums = self.sums
        if isinstance(indication, Delivered):
            now_ns = self._world.now_ns
            sums.delivered += 1
            sums.delivery_ns += now_ns - self._sent_ns[indication.source, indication.number]
            waited_ns = self._clocks[me].read(now_ns) - indication.arrived
            sums.waited_ns += waited_ns
            sums.held += waited_ns > 0
        elif indication.reason is DiscardReason.LATE:
            sums.late += 1
        else:
            sums.discarded += 1

    def crashed(self, me: ProcessId) -> None:
        """Never called: nothing crashes here."""
        raise AssertionError("nothing crashes here")

    def copy_lost(self, source: int, to: int, incarnation: int, copy: int) -> None:
        """Take notice of a lost copy: what is not delivered nor dropped was lost."""

    def loss_report(self, source: ProcessId, copy: int) -> Lost:
        """Return the command that tells a core of a lost copy."""
        return Lost(source, copy, copy)


def measure(
    plan: Plan, algorithm: Algorithm, seed: int, *, timer: Callable[[], int] | None = None
) -> Measures:
    """Run the plan with this seed and return its sums.

    With `timer`, which tells processor time in ns, what the cores and their codecs cost is measured
    too: such a run encodes and decodes for real.  Raises ValueError for settings that the algorithm
    refuses.
    """
    members = plan.settings.members
    world = World()
    clocks_ = clocks(plan.clocks, members, stream(seed, "clocks"))
    watch = None if timer is None else _Stopwatch(timer)
    group = _Group(world, algorithm, plan, clocks_, watch)
    hosts: list[Host] = []

    def tell_lost(source: int, to: int, incarnation: int, copy: int) -> None:
        hosts[to].submit(group.loss_report(ProcessId(source), copy))

    network = _CountingNetwork(
        group,
        world,
        members,
        plan.network,
        stream(seed, "network"),
        on_lost=group.copy_lost,
        tell_lost=tell_lost,
    )
    for me in range(members):
        charged: dict[str, Any] = {}
        kind: type[Host] = Host
        if plan.computation is not None:
            charged["computation"] = plan.computation
            kind = ChargedHost
        hosts.append(
            kind(
                ProcessId(me),
                world,
                network,
                clocks_[me],
                group,
                members=members,
                timer_granularity_ns=plan.clocks.timer_granularity_ns,
                **charged,
            )
        )
    for host in hosts:
        network.attach(host.arrive)
    for host in hosts:
        host.start()

    def submit(me: ProcessId, command: Multicast) -> bool:
        group.multicast(me)
        hosts[me].submit(command)
        return True

    # The payload is a number only; its length is a number too, for the uplink.
    workload = replace(plan.workload, payload_bytes=0)
    if workload.messages:
        workload = replace(workload, messages=workload.messages + members)
    Applications(
        world, workload, plan.settings, seed, submit, grid_ns=plan.network.grid_ns, until_ns=None
    )
    while (next_ns := world.next_ns()) is not None:
        world.run(next_ns + STEP_NS)
    sums = group.sums
    sums.end_ns = world.now_ns
    sums.busy_ns = sum(host.busy_ns for host in hosts if isinstance(host, ChargedHost))
    if watch is not None:
        sums.send_cpu_ns, sums.receive_cpu_ns = watch.sums_ns["send"], watch.sums_ns["receive"]
    return sums
