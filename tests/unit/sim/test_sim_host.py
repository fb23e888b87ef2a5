"""A host feeds its core, applies effects in order, keeps one timer; with a core of no family."""

from typing import Any

import msgspec
import pytest

from orderwire.kernel import (
    Broadcast,
    Effects,
    Indicate,
    Input,
    Instant,
    ProcessId,
    Received,
    RemoteProtocolError,
    Send,
    Submitted,
    Via,
    Woken,
    stream,
)
from orderwire.sim.clocks import BoundedClock, Clock, TrueClock
from orderwire.sim.delays import Constant
from orderwire.sim.host import ChargedHost, Computation, Host
from orderwire.sim.network import Network, NetworkSettings
from orderwire.sim.world import COMMAND, World


class Ping(msgspec.Struct, frozen=True):
    """The only PDU; `hops` is left to go."""

    hops: int


class Begin(msgspec.Struct, frozen=True):
    """Command: start pinging."""

    hops: int


class PingCodec:
    def encode(self, pdu: Ping) -> bytes:
        return bytes((pdu.hops,))

    def decode(self, data: bytes | memoryview) -> Ping:
        if len(data) != 1:
            raise RemoteProtocolError(f"a ping of {len(data)} bytes")
        return Ping(data[0])


class Pinger:
    """Answers every ping with one hop less; when none is left, an alarm rings 100 ns later."""

    alarm_ns = 100

    def __init__(self, me: ProcessId) -> None:
        self.me = me
        self.alarm: Instant | None = None
        self.operations = 0

    def submit(self, command: Begin, now: Instant) -> Effects:
        self.operations += 1
        return [Indicate("begun"), Broadcast(Ping(command.hops))]

    def receive(self, source: ProcessId, pdu: Ping, now: Instant) -> Effects:
        self.operations += 3
        if pdu.hops:
            return [Indicate(f"ping {pdu.hops}"), Send(source, Ping(pdu.hops - 1), Via.STREAM)]
        self.alarm = Instant(now + self.alarm_ns)
        return []

    def wake(self, now: Instant) -> Effects:
        if self.alarm is None or self.alarm > now:
            return []
        self.alarm = None
        return [Indicate("alarm")]

    def next_deadline(self) -> Instant | None:
        return self.alarm


class PingFamily:
    """Boots pingers and listens."""

    received = None

    def __init__(self, group: "Group") -> None:
        self.group = group

    def boot(self, me: ProcessId, incarnation: int, now: Instant) -> tuple[Pinger, PingCodec]:
        core = self.group.core(me)
        self.group.cores[me] = core
        return core, PingCodec()

    def tell(self, me: ProcessId, indication: Any) -> None:
        self.group.told.append((self.group.world.now_ns, me, indication))

    def crashed(self, me: ProcessId) -> None:
        self.group.told.append((self.group.world.now_ns, me, "crashed"))

    def copy_lost(self, source: int, to: int, incarnation: int, copy: int) -> None:
        raise AssertionError("no copy is lost here")

    def loss_report(self, source: ProcessId, copy: int) -> None:
        return None


class Group:
    def __init__(
        self,
        *,
        clock: Clock | None = None,
        computation: Computation | None = None,
        granularity_ns: int = 1,
        core: type[Pinger] = Pinger,
    ) -> None:
        self.world = World()
        self.told: list[tuple[int, ProcessId, Any]] = []
        self.inputs: list[tuple[ProcessId, Input]] = []
        self.cores: dict[ProcessId, Pinger] = {}
        self.core = core
        network = Network(
            self.world,
            3,
            NetworkSettings(delay=Constant(delay_ns=10)),
            stream(1, "network"),
            on_lost=lambda *_: None,
            tell_lost=lambda *_: None,
        )
        named: dict[str, Any] = {
            "members": 3,
            "timer_granularity_ns": granularity_ns,
            "record": lambda me, record: self.inputs.append((me, record)),
        }
        make: type[Host] = Host
        if computation is not None:
            make = ChargedHost
            named["computation"] = computation
        family = PingFamily(self)
        self.hosts = [
            make(ProcessId(me), self.world, network, clock or TrueClock(), family, **named)
            for me in range(3)
        ]
        for host in self.hosts:
            network.attach(host.arrive)
            host.start()

    def at(self, time_ns: int, act: Any, *arguments: Any) -> None:
        self.world.at(time_ns, COMMAND, lambda *_: act(*arguments))


def test_effects_are_applied_in_order_and_the_timer_rings() -> None:
    group = Group()
    group.at(0, group.hosts[0].submit, Begin(1))
    group.world.run(1_000)
    assert group.told == [
        (0, 0, "begun"),
        (10, 1, "ping 1"),
        (10, 2, "ping 1"),
        (120, 0, "alarm"),
    ]


def test_inputs_are_recorded_with_the_process_clock() -> None:
    group = Group()
    group.at(5, group.hosts[0].submit, Begin(0))
    group.world.run(1_000)
    assert group.inputs == [
        (0, Submitted(5, msgspec.Raw(b'{"hops":0}'))),
        (1, Received(15, ProcessId(0), b"\x00")),
        (2, Received(15, ProcessId(0), b"\x00")),
        (1, Woken(115)),
        (2, Woken(115)),
    ]


def test_a_later_deadline_is_seen_when_the_timer_fires() -> None:
    group = Group()
    group.at(0, group.hosts[0].submit, Begin(0))
    group.at(50, group.hosts[2].submit, Begin(0))
    group.world.run(1_000)
    assert [told for told in group.told if told[2] == "alarm"] == [
        (110, 2, "alarm"),
        (160, 0, "alarm"),
        (160, 1, "alarm"),
    ]
    assert [record for me, record in group.inputs if me == 1 and isinstance(record, Woken)] == [
        Woken(160)
    ]


def test_coarse_timers_fire_at_multiples() -> None:
    group = Group(granularity_ns=64)
    group.at(0, group.hosts[0].submit, Begin(0))
    group.world.run(1_000)
    assert [told for told in group.told if told[2] == "alarm"] == [
        (128, 1, "alarm"),
        (128, 2, "alarm"),
    ]


def test_timers_follow_the_process_clock() -> None:
    clock = BoundedClock(1_000, 100_000, phase_ns=0)
    group = Group(clock=clock)
    group.at(0, group.hosts[0].submit, Begin(0))
    group.world.run(1_000)
    alarm_ns = clock.read(10) + 100
    assert (clock.when(alarm_ns), 1, "alarm") in group.told
    assert clock.when(alarm_ns) < 110


def test_a_crash_takes_timers_and_arrivals_and_a_restart_begins_anew() -> None:
    group = Group()
    one = group.hosts[1]
    group.at(0, group.hosts[0].submit, Begin(0))
    group.at(50, one.crash)
    group.at(55, group.hosts[0].submit, Begin(0))
    group.at(60, one.submit, Begin(0))
    group.at(70, one.start)
    before = group.cores[ProcessId(1)]
    group.world.run(1_000)
    assert [told for told in group.told if told[1] == 1] == [(50, 1, "crashed")]
    assert group.cores[ProcessId(1)] is not before
    assert one.incarnation == 1


def test_malformed_pdus_are_dropped_and_counted() -> None:
    group = Group()
    group.at(0, group.hosts[0].arrive, ProcessId(1), b"too long")
    group.world.run(10)
    assert (group.hosts[0].malformed, group.told) == (1, [])


class Sleepy(Pinger):
    """Breaks the contract: leaves what is due."""

    def wake(self, now: Instant) -> Effects:
        return []


def test_a_core_that_does_not_act_on_a_deadline_is_caught() -> None:
    group = Group(core=Sleepy)
    group.at(0, group.hosts[0].submit, Begin(0))
    with pytest.raises(AssertionError, match=r"wake\(110\) left a deadline at 110"):
        group.world.run(1_000)


def test_computation_delays_effects_and_queues_inputs() -> None:
    group = Group(computation=Computation(input_ns=20, operation_ns=1))
    group.at(0, group.hosts[0].submit, Begin(1))
    group.at(0, group.hosts[0].submit, Begin(1))
    group.world.run(1_000)
    begun = [time_ns for time_ns, me, told in group.told if (me, told) == (0, "begun")]
    assert begun == [21, 42]
    pings = [time_ns for time_ns, me, told in group.told if (me, told) == (1, "ping 1")]
    assert pings == [21 + 10 + 23, 21 + 10 + 23 + 23]


def test_a_queued_arrival_keeps_its_time() -> None:
    group = Group(computation=Computation(input_ns=50))
    group.at(0, group.hosts[0].submit, Begin(0))
    group.at(1, group.hosts[2].submit, Begin(0))
    group.world.run(2_000)
    arrivals = [record for me, record in group.inputs if me == 1 and isinstance(record, Received)]
    assert [arrival.now for arrival in arrivals] == [60, 61]
    assert isinstance(group.hosts[1], ChargedHost)
    assert group.hosts[1].busy_ns == 150  # Two arrivals, one alarm.


class Uncounted:
    """A core without a count of operations."""

    def __init__(self, me: ProcessId) -> None:
        self.inner = Pinger(me)
        self.submit, self.receive = self.inner.submit, self.inner.receive
        self.wake, self.next_deadline = self.inner.wake, self.inner.next_deadline


def test_a_charge_that_nobody_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="Uncounted does not count its operations"):
        Group(computation=Computation(operation_ns=1), core=Uncounted)  # type: ignore[arg-type]
