"""Links between processes: delay, loss, duplication, reordering, partitions.

A datagram copy is lost, duplicated, held back or overtaken independently of all others.  A stream
is reliable and in order; while it is cut its bytes wait, and a restart of either end loses them.

With `incarnations` a datagram names the life of its sender and the one of its receiver that it is
meant for, as the link's do on sockets.  Another life of the receiver drops it, and so does a
receiver that has met a later life of its sender.  Two lives meet by a hello after the restart, or
by the first datagram before that.  [decision 0008]
"""

from collections.abc import Callable
from heapq import heappush
from random import Random
from typing import Any, TypeAlias

import msgspec

from orderwire.kernel import ProcessId, Via, probe
from orderwire.sim.delays import Constant, Delay, Sampler, sampler
from orderwire.sim.world import ARRIVAL, World

Arrive: TypeAlias = Callable[[Any, Any], None]
"""Called with the source and the encoded PDU."""

HELLO_PAUSE_NS = 1_000_000
"""How long a hello that a partition stops waits before it is tried again."""

STREAM_HELD_MAX = 100_000
"""Most PDUs that wait for one cut stream to heal."""


class LinkDelay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One directed link whose delay differs from the others'."""

    source: int
    to: int
    delay: Delay


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the links do to copies.  Ratios are probabilities per copy, from 0 to 1."""

    delay: Delay = Constant(delay_ns=1_000_000)
    links: tuple[LinkDelay, ...] = ()
    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    """The second copy takes its own delay."""
    reorder_ratio: float = 0.0
    """Such a copy is held back by up to `reorder_ns` more."""
    reorder_ns: int = 0
    in_order: bool = False
    """No copy overtakes another of the same link."""
    give_up_ns: int | None = None
    """How long after the departure of a lost copy its receiver is told; None is never."""
    grid_ns: int = 1
    """Arrivals are put off to a multiple of this, so that many meet in one instant."""
    incarnations: bool = False
    """Datagrams name the lives of both ends, and those of other lives are dropped."""
    uplink_bits_per_s: int | None = None
    """Copies of one sender leave one after another at this rate; None is at once."""

    def __post_init__(self) -> None:
        for name in ("loss_ratio", "duplicate_ratio", "reorder_ratio"):
            ratio = getattr(self, name)
            if not 0 <= ratio <= 1:
                raise ValueError(f"{name}={ratio} is no probability: it must be from 0 to 1")
        if self.reorder_ns < 0 or (self.give_up_ns is not None and self.give_up_ns < 0):
            raise ValueError("reorder_ns and give_up_ns must not be negative")
        if self.grid_ns < 1:
            raise ValueError(f"grid_ns={self.grid_ns} must be positive")
        if self.uplink_bits_per_s is not None and self.uplink_bits_per_s <= 0:
            raise ValueError(f"uplink_bits_per_s={self.uplink_bits_per_s} must be positive")


class Counts(msgspec.Struct, kw_only=True):
    """What happened to copies."""

    lost: int = 0
    cut: int = 0
    """Lost to a partition."""
    duplicated: int = 0
    held_back: int = 0
    stale: int = 0
    """Dropped since they were from or for another life."""


class _Link:
    """One direction between two processes."""

    __slots__ = ("copies", "cuts", "delay", "held", "incarnation", "last_ns", "met")

    def __init__(self, delay: Sampler) -> None:
        self.delay = delay
        self.copies = 0
        self.cuts = 0
        self.last_ns = 0
        self.incarnation = 0
        self.met = 0
        """Which life of the destination the source has met last."""
        self.held: list[bytes] = []


class Network:
    """All links of one group."""

    def __init__(
        self,
        world: World,
        members: int,
        settings: NetworkSettings,
        chance: Random,
        *,
        on_lost: Callable[[int, int, int, int], None],
        tell_lost: Callable[[int, int, int, int], None],
    ) -> None:
        """`on_lost` and `tell_lost` get source, destination, incarnation of the source, copy index.

        The first is called when the copy is lost, the second when its receiver is to be told.
        """
        self._world = world
        self._members = members
        self._settings = settings
        self._chance = chance
        self._draw = chance.random
        self._loss = settings.loss_ratio
        self._duplicate = settings.duplicate_ratio
        self._reorder = settings.reorder_ratio
        self._in_order = settings.in_order
        self._grid_ns = settings.grid_ns
        self._plain = self._is_plain()
        self._on_lost = on_lost
        self._tell_lost = tell_lost
        self._arrive: list[Arrive] = []
        self._uplink_free_ns = [0] * members
        special = {(each.source, each.to): each.delay for each in settings.links}
        usual = sampler(settings.delay, chance)
        self._links = [
            [
                _Link(sampler(special[source, to], chance) if (source, to) in special else usual)
                for to in range(members)
            ]
            for source in range(members)
        ]
        self.counts = Counts()
        self.last_arrival_ns = 0
        """Nothing sent so far arrives, or is reported lost, after this."""

    def attach(self, arrive: Arrive) -> None:
        """Connect the next process, in the order of their ids."""
        assert len(self._arrive) < self._members, "more processes than members"
        self._arrive.append(arrive)

    def sender(self, source: int) -> Callable[[int, bytes, Via], None]:
        """Return the function by which this process lets a copy leave now."""
        links = self._links[source]
        arrive = self._arrive
        world = self._world
        heap = world.heap
        sequence = world.sequence
        datagram = Via.DATAGRAM

        def send(to: int, data: bytes, via: Via) -> None:
            link = links[to]
            copy = link.copies
            link.copies = copy + 1
            if not self._plain or link.cuts or via is not datagram:
                self._send_otherwise(link, source, to, copy, data, via)
                return
            arrival_ns = world.now_ns + link.delay()
            if arrival_ns > self.last_arrival_ns:
                self.last_arrival_ns = arrival_ns
            heappush(heap, (arrival_ns, ARRIVAL, sequence(), arrive[to], source, data))

        return send

    def _send_otherwise(
        self, link: _Link, source: int, to: int, copy: int, data: bytes, via: Via
    ) -> None:
        departure_ns = self._departure_ns(source, len(data))
        if via is Via.STREAM:
            self._send_stream(link, source, to, data, departure_ns)
        elif link.cuts or (self._loss and self._draw() < self._loss):
            self._lose(link, source, to, copy, departure_ns)
        elif self._settings.incarnations:
            ends = (source, to, link.incarnation, link.met, copy)
            self._send_datagram(link, to, self._arrive_named, ends, data, departure_ns)
        else:
            self._send_datagram(link, to, self._arrive[to], source, data, departure_ns)

    def cut(self, source: int, to: int) -> None:
        """Lose every datagram of this direction, and hold its stream, until healed."""
        self._links[source][to].cuts += 1

    def heal(self, source: int, to: int) -> None:
        """Undo one cut.  What waited in the stream leaves now."""
        link = self._links[source][to]
        assert link.cuts > 0, f"link {source}→{to} is not cut"
        link.cuts -= 1
        if not link.cuts:
            held, link.held = link.held, []
            for data in held:
                self._send_stream(link, source, to, data, self._world.now_ns)

    def restarted(self, process: int, incarnation: int) -> None:
        """Forget the streams of this process; its copies are counted from 0 again."""
        for other in range(self._members):
            outgoing, incoming = self._links[process][other], self._links[other][process]
            outgoing.copies = 0
            outgoing.incarnation = incarnation
            outgoing.met = incoming.incarnation
            outgoing.held.clear()
            incoming.held.clear()
            if self._settings.incarnations and other != process:
                self._greet(process, other, incarnation)

    def _greet(self, process: int, other: int, incarnation: int) -> None:
        """Let the hello of this life reach the other; one way, the other's takes no time."""
        at_ns = self._world.now_ns + self._links[process][other].delay()
        self.last_arrival_ns = max(self.last_arrival_ns, at_ns)
        self._world.at(at_ns, ARRIVAL, self._hello, (process, other), incarnation)

    def _hello(self, ends: tuple[int, int], incarnation: int) -> None:
        process, other = ends
        link = self._links[process][other]
        if incarnation != link.incarnation:
            return  # That life has ended.
        if link.cuts:
            at_ns = self._world.now_ns + HELLO_PAUSE_NS
            self._world.at(at_ns, ARRIVAL, self._hello, ends, incarnation)
            return
        self._links[other][process].met = incarnation

    def calm(self, delay: Delay) -> None:
        """End all faults: every link healed and reliable, with this delay."""
        self._loss = self._duplicate = self._reorder = 0.0
        self._grid_ns = 1
        self._plain = self._is_plain()
        usual = sampler(delay, self._chance)
        for source, links in enumerate(self._links):
            for to, link in enumerate(links):
                link.delay = usual
                while link.cuts:
                    self.heal(source, to)

    def _is_plain(self) -> bool:
        return not (
            self._loss
            or self._duplicate
            or self._reorder
            or self._in_order
            or self._settings.uplink_bits_per_s
            or self._settings.incarnations
            or self._grid_ns != 1
        )

    def _departure_ns(self, source: int, size_bytes: int) -> int:
        now_ns = self._world.now_ns
        rate = self._settings.uplink_bits_per_s
        if rate is None:
            return now_ns
        start_ns = max(now_ns, self._uplink_free_ns[source])
        self._uplink_free_ns[source] = departure_ns = (
            start_ns + size_bytes * 8 * 1_000_000_000 // rate
        )
        return departure_ns

    def _send_datagram(
        self, link: _Link, to: int, arrive: Arrive, source: Any, data: bytes, departure_ns: int
    ) -> None:
        self._schedule(link, to, departure_ns, arrive, source, data)
        if self._duplicate and self._draw() < self._duplicate:
            probe("sim: copy duplicated")
            self.counts.duplicated += 1
            self._schedule(link, to, departure_ns, arrive, source, data)

    def _arrive_named(self, ends: tuple[int, int, int, int, int], data: bytes) -> None:
        """Hand over a datagram that is from and for the present lives of its ends."""
        source, to, incarnation, target, copy = ends
        back = self._links[to][source]
        if target != back.incarnation or incarnation < back.met:
            probe("sim: copy of another life")
            self.counts.stale += 1
            self._on_lost(source, to, incarnation, copy)
            return
        back.met = incarnation
        self._arrive[to](source, data)

    def _schedule(
        self, link: _Link, to: int, departure_ns: int, arrive: Arrive, source: Any, data: Any
    ) -> None:
        arrival_ns = departure_ns + link.delay()
        if self._reorder and self._draw() < self._reorder:
            probe("sim: copy held back")
            self.counts.held_back += 1
            arrival_ns += int(self._draw() * self._settings.reorder_ns)
        grid_ns = self._grid_ns
        if grid_ns != 1:
            arrival_ns = -(-arrival_ns // grid_ns) * grid_ns
        if self._in_order:
            arrival_ns = max(arrival_ns, link.last_ns)
            link.last_ns = arrival_ns
        self.last_arrival_ns = max(self.last_arrival_ns, arrival_ns)
        self._world.at(arrival_ns, ARRIVAL, arrive, source, data)

    def _send_stream(
        self, link: _Link, source: int, to: int, data: bytes, departure_ns: int
    ) -> None:
        if link.cuts:
            probe("sim: stream held by a partition")
            assert len(link.held) < STREAM_HELD_MAX, f"stream {source}→{to} holds too much"
            link.held.append(data)
            return
        arrival_ns = max(departure_ns + link.delay(), link.last_ns)
        link.last_ns = arrival_ns
        self.last_arrival_ns = max(self.last_arrival_ns, arrival_ns)
        ends = (source, link.incarnation, self._links[to][source].incarnation)
        self._world.at(arrival_ns, ARRIVAL, self._arrive_stream, (to, *ends), data)

    def _arrive_stream(self, ends: tuple[int, int, int, int], data: bytes) -> None:
        to, source, incarnation, incarnation_to = ends
        if (
            self._links[source][to].incarnation == incarnation
            and self._links[to][source].incarnation == incarnation_to
        ):
            self._arrive[to](ProcessId(source), data)

    def _lose(self, link: _Link, source: int, to: int, copy: int, departure_ns: int) -> None:
        if link.cuts:
            probe("sim: copy cut off by a partition")
            self.counts.cut += 1
        else:
            probe("sim: copy lost")
            self.counts.lost += 1
        self._on_lost(source, to, link.incarnation, copy)
        give_up_ns = self._settings.give_up_ns
        if give_up_ns is None:
            return
        told_ns = departure_ns + give_up_ns
        self.last_arrival_ns = max(self.last_arrival_ns, told_ns)
        self._world.at(told_ns, ARRIVAL, self._report_lost, (source, to), (link.incarnation, copy))

    def _report_lost(self, ends: tuple[int, int], which: tuple[int, int]) -> None:
        source, to = ends
        incarnation, copy = which
        if self._links[source][to].incarnation == incarnation:
            self._tell_lost(source, to, incarnation, copy)
