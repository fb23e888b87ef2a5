"""Connections between the hosts of a LAN: handshakes, resets, and who learns what.

One duplex connection serves a pair.  Its opener sends SYN until it has an answer, with a second
try after one second; two that open at once keep the connection of the smaller host.  Each end has
its own view: a host that went down has forgotten its connections, and answers what still arrives
on them with a reset, unless it is silent.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from orderwire.sim.lan_link import Frame, Link
from orderwire.sim.world import TIMER

TCP_OVERHEAD_BYTES = 90
"""Preamble, Ethernet, gap between frames, IP and TCP with time stamps: also a bare segment."""
MSS_BYTES = 1_448
"""Most bytes of a message in one segment."""
SYN_RETRY_NS = 1_000_000_000
"""When a handshake that has no answer is tried again; doubled each time."""
WAITING_MAX = 100_000
"""Most messages that wait for one handshake."""

Broken: TypeAlias = Callable[[int, int], None]
"""Called with a host and the other end of a connection that it has lost."""


class Connection:
    """One duplex connection, as both its ends and the wire between them know it."""

    __slots__ = ("asked_ns", "dead", "ends", "halves", "open", "opened_ns", "probing", "waiting")

    def __init__(self, opener: int, other: int, opened_ns: int) -> None:
        self.ends = (opener, other)
        self.opened_ns = opened_ns
        self.asked_ns = [opened_ns, opened_ns]
        """When each end sent what the other's answer opens it by: its SYN, or the answer to one."""
        self.open = [False, False]
        """Whether each end may send: the opener's and the other's."""
        self.dead = False
        """Whether an end has left."""
        self.waiting: tuple[list[tuple[int, Any]], list[tuple[int, Any]]] = ([], [])
        """What each end wants to send once the connection is open."""
        self.halves: Any = None
        """State of each direction, of the model that needs it."""
        self.probing = [False, False]
        """Whether each end is waiting for a silent host."""

    def side(self, host: int) -> int:
        """0 for the opener, 1 for the other end."""
        return 0 if self.ends[0] == host else 1


class Streams(ABC):
    """All connections of a LAN; how bytes move on an open one is the subclass's."""

    def __init__(
        self,
        link: Link,
        deliver: Callable[[int, int, Any], None],
        broken: Broken | None,
        *,
        give_up_ns: int,
    ) -> None:
        self._link = link
        self._world = link.world
        self._deliver = deliver
        self._tell_broken = broken
        self._give_up_ns = give_up_ns
        self._ends: list[dict[int, Connection]] = [{} for _ in range(link.hosts)]
        self.opened = 0
        """Connections whose handshake was completed."""
        self.broke = 0
        """How often an end was told that its connection is broken."""

    @abstractmethod
    def _transmit(self, connection: Connection, side: int, payload_bytes: int, item: Any) -> None:
        """Send a message on a connection that is open at this side."""

    def connected(self, source: int, to: int) -> bool:
        """Whether `source` has a connection to `to` on which it may send."""
        connection = self._ends[source].get(to)
        return connection is not None and connection.open[connection.side(source)]

    def send(self, source: int, to: int, payload_bytes: int, item: Any) -> None:
        """Send on this pair's connection, or keep the message until it is open."""
        connection = self._ends[source].get(to)
        if connection is None:
            assert self._tell_broken is not None, "streams need a callback `broken`"
            connection = Connection(source, to, self._world.now_ns)
            self._ends[source][to] = connection
            self._send_syn(connection, 0)
        side = connection.side(source)
        if connection.open[side]:
            self._transmit(connection, side, payload_bytes, item)
        else:
            waiting = connection.waiting[side]
            assert len(waiting) < WAITING_MAX, f"{source}→{to}: too much waits for a handshake"
            waiting.append((payload_bytes, item))

    def close(self, source: int, to: int) -> None:
        """Leave the connection; the other end gets a reset."""
        connection = self._ends[source].pop(to, None)
        if connection is not None:
            connection.dead = True
            self._reset(source, to, connection)

    def down(self, host: int, *, silent: bool) -> None:
        """Forget all connections of this host; unless it is silent, their other ends get resets."""
        ends = self._ends[host]
        for other, connection in sorted(ends.items()):
            connection.dead = True
            if not silent:
                self._reset(host, other, connection)
        ends.clear()

    def _control(
        self, source: int, to: int, act: Callable[[int, Frame], None], connection: Connection
    ) -> None:
        self._link.send_frame(source, to, TCP_OVERHEAD_BYTES, 0, act, connection)

    def _holds(self, host: int, other: int, connection: Connection) -> bool:
        return self._ends[host].get(other) is connection

    def _received(self, to: int, frame: Frame) -> bool:
        """Count a frame that has arrived; return False when nobody is there to read it."""
        counts = self._link.counts[to]
        if self._link.is_silent(to):
            counts.dropped_while_down += 1
            return False
        counts.received += 1
        counts.received_bytes += frame[1]
        return True

    def _send_syn(self, connection: Connection, attempt: int) -> None:
        opener, other = connection.ends
        if connection.open[0] or not self._holds(opener, other, connection):
            return
        left_ns = connection.opened_ns + self._give_up_ns - self._world.now_ns
        if left_ns <= 0:
            self._break(opener, other, connection)
            return
        self._control(opener, other, self._syn_arrives, connection)
        at_ns = self._world.now_ns + min(SYN_RETRY_NS << attempt, left_ns)
        self._world.at(at_ns, TIMER, self._send_syn, connection, attempt + 1)

    def _syn_arrives(self, to: int, frame: Frame) -> None:
        source, connection = frame[0], frame[4]
        if not self._received(to, frame):
            return
        if self._link.is_down(to) or connection.dead:
            self._reset(to, source, connection)
            return
        mine = self._ends[to].get(source)
        first = mine is not connection
        if mine is not None and first:
            if mine.ends[0] == to and not mine.open[0]:
                if to < source:
                    return  # Both open at once: mine stays, and the other end will take it.
                connection.waiting[1].extend(mine.waiting[0])
                mine.dead = True
            else:
                self._break(to, source, mine)  # The other end has forgotten it.
                if self._ends[to].get(source) is not None:
                    return  # Whoever was told has opened another one.
        self._ends[to][source] = connection
        if first:
            connection.asked_ns[1] = self._world.now_ns
            self._send_syn_ack(connection, 0)
        else:
            self._control(to, source, self._syn_ack_arrives, connection)

    def _send_syn_ack(self, connection: Connection, attempt: int) -> None:
        opener, other = connection.ends
        if connection.open[1] or not self._holds(other, opener, connection):
            return
        wait_ns = SYN_RETRY_NS << attempt
        if wait_ns > self._give_up_ns:
            self._break(other, opener, connection)
            return
        self._control(other, opener, self._syn_ack_arrives, connection)
        self._world.at(
            self._world.now_ns + wait_ns, TIMER, self._send_syn_ack, connection, attempt + 1
        )

    def _syn_ack_arrives(self, to: int, frame: Frame) -> None:
        source, connection = frame[0], frame[4]
        if not self._received(to, frame):
            return
        if not self._holds(to, source, connection):
            self._reset(to, source, connection)
            return
        self._control(to, source, self._ack_arrives, connection)
        if not connection.open[0]:
            self.opened += 1
            self._begin(connection, 0)

    def _ack_arrives(self, to: int, frame: Frame) -> None:
        source, connection = frame[0], frame[4]
        if not self._received(to, frame):
            return
        if not self._holds(to, source, connection):
            self._reset(to, source, connection)
        elif not connection.open[1]:
            self._begin(connection, 1)

    def _begin(self, connection: Connection, side: int) -> None:
        """Let this end send, first what has waited."""
        connection.open[side] = True
        waiting = connection.waiting[side]
        for payload_bytes, item in waiting:
            self._transmit(connection, side, payload_bytes, item)
        waiting.clear()

    def _reset(self, source: int, to: int, connection: Connection) -> None:
        self._control(source, to, self._reset_arrives, connection)

    def _reset_arrives(self, to: int, frame: Frame) -> None:
        source, connection = frame[0], frame[4]
        if self._received(to, frame) and self._holds(to, source, connection):
            self._break(to, source, connection)

    def _break(self, host: int, other: int, connection: Connection) -> None:
        """Let this end forget the connection and say so."""
        assert self._tell_broken is not None
        del self._ends[host][other]
        connection.dead = True
        self.broke += 1
        self._tell_broken(host, other)
