"""Events per second of the simulator, beside SimPy on the same scenario.

The scenario: n processes multicast small messages at exponential gaps to three others; every copy
travels 5 ms plus an exponential delay; a receiver holds each message until its stamp plus 250 ms
and then takes it.  One event is one multicast, one arrival or one timed delivery; both sides must
count the same number of each, from the same random draws.

* `ours`: the simulator as it is used: a core behind the contract, its codec, links, one timer.
* `simpy`: idiomatic SimPy: a generator per sender, the latency process of SimPy's own example
  "Event Latency" per copy, a store per receiver, a process per hold.  No codec.
* `simpy_callbacks`: SimPy used as leanly as it allows: timeouts with callbacks, no processes.
* `simpy_core`: the very core and codec of `ours`, driven by SimPy timeouts with callbacks.
"""

import struct
from collections.abc import Callable, Generator
from functools import partial
from heapq import heappop, heappush
from typing import Any

import msgspec
import simpy
from harness import (
    arguments,
    interleave,
    median_ratio,
    report,
    summarise,
    units_per_cpu_s,
    units_per_s,
)

from orderwire.kernel import (
    Effects,
    Indicate,
    Instant,
    ProcessId,
    RemoteProtocolError,
    Send,
    ms,
    stream,
)
from orderwire.sim.clocks import TrueClock
from orderwire.sim.delays import Exponential, sampler
from orderwire.sim.host import Host
from orderwire.sim.network import Network, NetworkSettings
from orderwire.sim.world import COMMAND, World

MEMBERS = 20
FAN_OUT = 3
GAP_NS = ms(100)
HOLD_NS = ms(250)
DELAY = Exponential(offset_ns=ms(5), mean_ns=ms(45))
SEED = 1


class Message(msgspec.Struct, frozen=True, gc=False):
    """Stamped by its sender."""

    number: int
    stamp: int


class Say(msgspec.Struct, frozen=True, gc=False):
    """Command: send the next message to these."""

    to: tuple[ProcessId, ...]


class Taken(msgspec.Struct, frozen=True, gc=False):
    """Indication: the message was due."""

    source: ProcessId
    number: int


class HoldCodec:
    """Two fixed fields."""

    _form = struct.Struct("<IQ")

    def encode(self, pdu: Message) -> bytes:
        """Return twelve bytes."""
        return self._form.pack(pdu.number, pdu.stamp)

    def decode(self, data: bytes | memoryview) -> Message:
        """Parse twelve bytes."""
        try:
            return Message(*self._form.unpack(data))
        except struct.error as error:
            raise RemoteProtocolError(str(error)) from None


class Hold:
    """Take every message at its stamp plus a fixed time."""

    def __init__(self, hold_ns: int) -> None:
        self._hold_ns = hold_ns
        self._number = 0
        self._due: list[tuple[int, int, int]] = []

    def submit(self, command: Say, now: Instant) -> Effects:
        """Send."""
        message = Message(self._number, now)
        self._number += 1
        return [Send(to, message) for to in command.to]

    def receive(self, source: ProcessId, pdu: Message, now: Instant) -> Effects:
        """Hold."""
        heappush(self._due, (pdu.stamp + self._hold_ns, source, pdu.number))
        return []

    def wake(self, now: Instant) -> Effects:
        """Take what is due."""
        due = self._due
        effects: Effects = []
        while due and due[0][0] <= now:
            _, source, number = heappop(due)
            effects.append(Indicate(Taken(ProcessId(source), number)))
        return effects

    def next_deadline(self) -> Instant | None:
        """Return when the first is due."""
        return Instant(self._due[0][0]) if self._due else None


class Counts:
    """What happened, by kind."""

    def __init__(self) -> None:
        self.sent = self.arrived = self.taken = 0

    def total(self) -> int:
        """All events."""
        return self.sent + self.arrived + self.taken

    def key(self) -> tuple[int, int, int]:
        """For the comparison of contestants."""
        return self.sent, self.arrived, self.taken


class Draws:
    """The same random draws for every contestant: one stream per sender, one for the network."""

    def __init__(self) -> None:
        self.gaps = [stream(SEED, f"workload/{me}") for me in range(MEMBERS)]
        self.delay = sampler(DELAY, stream(SEED, "network"))
        self._others = [[ProcessId(p) for p in range(MEMBERS) if p != me] for me in range(MEMBERS)]

    def gap_ns(self, me: int) -> int:
        """Time to the sender's next multicast."""
        return int(self.gaps[me].expovariate(1.0) * GAP_NS)

    def peers(self, me: int) -> tuple[ProcessId, ...]:
        """Three neighbours, from a random one on."""
        others = self._others[me]
        first = int(self.gaps[me].random() * len(others))
        return tuple(others[(first + step) % len(others)] for step in range(FAN_OUT))


class HoldFamily:
    """The benchmark's protocol, as the simulator meets it."""

    received = None

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def boot(self, me: ProcessId, incarnation: int, now: Instant) -> tuple[Hold, HoldCodec]:
        return Hold(HOLD_NS), HoldCodec()

    def tell(self, me: ProcessId, indication: Any) -> None:
        self._counts.taken += 1

    def crashed(self, me: ProcessId) -> None:
        raise AssertionError("no process crashes here")

    def copy_lost(self, source: int, to: int, incarnation: int, copy: int) -> None:
        raise AssertionError("no copy is lost here")

    def loss_report(self, source: ProcessId, copy: int) -> None:
        return None


def run_ours(messages: int) -> Counts:
    """Our world, hosts and network."""
    counts, draws, world = Counts(), Draws(), World()
    network = Network(
        world,
        MEMBERS,
        NetworkSettings(delay=DELAY),
        stream(SEED, "network"),
        on_lost=lambda *_: None,
        tell_lost=lambda *_: None,
    )
    family = HoldFamily(counts)
    hosts = [
        Host(ProcessId(me), world, network, TrueClock(), family, members=MEMBERS)
        for me in range(MEMBERS)
    ]
    for host in hosts:
        network.attach(host.arrive)
        host.start()

    def say(me: ProcessId, _: None) -> None:
        if counts.sent < messages:
            counts.sent += 1
            hosts[me].submit(Say(draws.peers(me)))
            world.at(world.now_ns + draws.gap_ns(me), COMMAND, say, me)

    for me in range(MEMBERS):
        world.at(draws.gap_ns(me), COMMAND, say, ProcessId(me))
    while (next_ns := world.next_ns()) is not None:
        world.run(next_ns + ms(1_000))
    counts.arrived = counts.sent * FAN_OUT
    return counts


def run_simpy(messages: int) -> Counts:
    """Generators, stores, and a latency process per copy: as SimPy's documentation has it."""
    counts, draws, env = Counts(), Draws(), simpy.Environment()
    stores = [simpy.Store(env) for _ in range(MEMBERS)]

    def latency(to: int, message: tuple[int, int, int]) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(draws.delay())
        stores[to].put(message)

    def sender(me: int) -> Generator[simpy.Event, Any, None]:
        number = 0
        while True:
            yield env.timeout(draws.gap_ns(me))
            if counts.sent >= messages:
                return
            counts.sent += 1
            for to in draws.peers(me):
                env.process(latency(to, (me, number, env.now)))
            number += 1

    def hold(message: tuple[int, int, int]) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(message[2] + HOLD_NS - env.now if message[2] + HOLD_NS > env.now else 0)
        counts.taken += 1

    def receiver(me: int) -> Generator[simpy.Event, Any, None]:
        while True:
            message = yield stores[me].get()
            counts.arrived += 1
            env.process(hold(message))

    for me in range(MEMBERS):
        env.process(sender(me))
        env.process(receiver(me))
    env.run()
    return counts


def run_simpy_callbacks(messages: int) -> Counts:
    """Timeouts with callbacks only."""
    counts, draws, env = Counts(), Draws(), simpy.Environment()

    def after(delay_ns: int, act: Callable[[simpy.Event], None]) -> None:
        env.timeout(delay_ns).callbacks.append(act)

    def take(_: simpy.Event) -> None:
        counts.taken += 1

    def arrive(stamp: int, _: simpy.Event) -> None:
        counts.arrived += 1
        after(max(0, stamp + HOLD_NS - env.now), take)

    def say(me: int, _: simpy.Event) -> None:
        if counts.sent < messages:
            counts.sent += 1
            stamp = env.now
            for _to in draws.peers(me):
                after(draws.delay(), partial(arrive, stamp))
            after(draws.gap_ns(me), partial(say, me))

    for me in range(MEMBERS):
        after(draws.gap_ns(me), partial(say, me))
    env.run()
    return counts


def run_simpy_core(messages: int) -> Counts:
    """Our core and codec, SimPy's timeouts with callbacks as the engine."""
    counts, draws, env = Counts(), Draws(), simpy.Environment()
    codec = HoldCodec()
    cores = [Hold(HOLD_NS) for _ in range(MEMBERS)]
    armed: list[int | None] = [None] * MEMBERS

    def after(delay_ns: int, act: Callable[[simpy.Event], None]) -> None:
        env.timeout(delay_ns).callbacks.append(act)

    def apply(me: int, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                after(draws.delay(), partial(arrive, me, effect.to, codec.encode(effect.pdu)))
            else:
                counts.taken += 1
        deadline = cores[me].next_deadline()
        if deadline is not None and (armed[me] is None or deadline < armed[me]):
            armed[me] = deadline
            after(max(0, deadline - env.now), partial(fire, me, deadline))

    def fire(me: int, deadline: int, _: simpy.Event) -> None:
        if armed[me] == deadline:
            armed[me] = None
            apply(me, cores[me].wake(env.now))

    def arrive(source: ProcessId, me: ProcessId, data: bytes, _: simpy.Event) -> None:
        counts.arrived += 1
        apply(me, cores[me].receive(source, codec.decode(data), env.now))

    def say(me: int, _: simpy.Event) -> None:
        if counts.sent < messages:
            counts.sent += 1
            apply(me, cores[me].submit(Say(draws.peers(me)), env.now))
            after(draws.gap_ns(me), partial(say, me))

    for me in range(MEMBERS):
        after(draws.gap_ns(me), partial(say, me))
    env.run()
    return counts


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, repeats=5).parse_args()
    messages = 3_000 if options.quick else 20_000
    contestants = {
        "ours": run_ours,
        "simpy": run_simpy,
        "simpy_callbacks": run_simpy_callbacks,
        "simpy_core": run_simpy_core,
    }
    outcomes = {name: run(messages).key() for name, run in contestants.items()}
    assert len(set(outcomes.values())) == 1, f"contestants differ: {outcomes}"
    rounds = interleave(
        {name: lambda run=run: run(messages).total() for name, run in contestants.items()},
        options.repeats,
        warm_up=False,
    )
    ours = rounds["ours"]
    rivals = {name: runs for name, runs in rounds.items() if name != "ours"}
    report(
        "sim_events",
        ours=msgspec.to_builtins(summarise(ours)),
        rivals={name: msgspec.to_builtins(summarise(runs)) for name, runs in rivals.items()},
        ratios={
            f"{name}_{label}": median_ratio(ours, runs, figure)
            for name, runs in rivals.items()
            for label, figure in (("per_s", units_per_s), ("per_cpu_s", units_per_cpu_s))
        },
        repeats=options.repeats,
        as_json=options.json,
        target="ours ≥ 2 × simpy events per second",
    )


if __name__ == "__main__":
    main()
