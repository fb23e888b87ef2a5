"""The ordering family in the simulator: boots its cores and writes down what they do.

Beside the trace it keeps the books: of every copy that was sent it knows whether it was delivered,
discarded, lost or meant for a process that crashed.  What is wrong by itself, without any order in
mind, is noted here as a `Finding`; whether the order was kept is for the oracles of `verify`.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from orderwire.kernel import Core, Instant, ProcessId, members_of
from orderwire.ordering.catalog import Algorithm
from orderwire.ordering.pdu import (
    Codec,
    Delivered,
    Discarded,
    DiscardReason,
    Lost,
    Multicast,
    OrderingIndication,
    Sent,
)
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.world import World
from orderwire.trace.events import Event, EventKind, RunSettings


class Finding(msgspec.Struct, frozen=True, gc=False):
    """Something that must not happen."""

    what: str
    process: int
    source: int
    number: int
    time_ns: int
    detail: str = ""

    def __str__(self) -> str:
        return (
            f"{self.what}: message {self.source}/{self.number} at process {self.process}, "
            f"{self.time_ns} ns{', ' + self.detail if self.detail else ''}"
        )


class Message(msgspec.Struct):
    """One multicast, as its sender made it."""

    source: int
    number: int
    stamp: int
    destinations: int
    payload: bytes
    sent_ns: int
    vector_clock: list[int]
    settled: int = 0
    """Destinations where a copy was delivered or discarded."""
    lost: int = 0
    """Destinations whose copy never arrives."""
    down: int = 0
    """Destinations that crashed after the send, or were not running."""


class OrderingGroup:
    """Boots, observes and keeps the books of one ordering group."""

    def __init__(
        self,
        world: World,
        run_id: str,
        algorithm: Algorithm,
        settings: OrderingSettings,
        clock_of: Callable[[ProcessId], int],
        *,
        timer_slack_ns: int,
        trace_receives: bool,
        quarantine: bool = True,
        on_delivered: Callable[[ProcessId, Delivered], None],
    ) -> None:
        members = settings.members
        self.events: list[Event] = []
        self.indications: list[tuple[int, ProcessId, OrderingIndication]] = []
        """True time, process, indication."""
        self.findings: list[Finding] = []
        self.messages: dict[tuple[int, int], Message] = {}
        self.quiet_until: list[Instant] = [Instant(0)] * members
        """By each process's own clock: a restarted one must not send before."""
        self.submitted: list[deque[Multicast]] = [deque() for _ in range(members)]
        """Each process's multicasts that have not been indicated as sent."""
        self._world = world
        self._run_id = run_id
        self._algorithm = algorithm
        self._settings = settings
        self._clock_of = clock_of
        self._on_delivered = on_delivered
        self._quarantine = quarantine
        self._timer_slack_ns = timer_slack_ns
        self._positions = [0] * members
        self._running = 0
        self._vectors = [[0] * members for _ in range(members)]
        self._incarnations = [0] * members
        self._link_numbers: dict[tuple[int, int, int], list[int]] = {}
        """Source, its incarnation, destination → numbers of the copies sent, in order."""
        self._lost_copies: list[tuple[int, int, int, int]] = []
        self._untold: Counter[tuple[int, int]] = Counter()
        """Destination, source → copies lost of which the link has not told the destination."""
        self._delivered: list[set[tuple[int, int]]] = [set() for _ in range(members)]
        """What each process's present incarnation has delivered."""
        self.received = self._note_received if trace_receives else None

    # What hosts call

    def boot(
        self, me: ProcessId, incarnation: int, now: Instant
    ) -> tuple[Core[Any, Any], Codec[Any]]:
        """Return a new core; a restarted one goes on numbering and keeps quiet for Δ + ε."""
        settings = self._settings
        if incarnation:
            quiet_ns = now
            if self._quarantine:
                quiet_ns = Instant(now + (settings.lifetime_ns or 0) + settings.epsilon_ns + 1)
            self.quiet_until[me] = quiet_ns
            settings = replace(
                settings, quiet_until_ns=quiet_ns, first_number=self._vectors[me][me]
            )
        self._incarnations[me] = incarnation
        self._delivered[me] = set()
        self._running |= 1 << me
        detail = msgspec.json.encode(
            RunSettings(
                algorithm=self._algorithm.name,
                members=settings.members,
                lifetime_ns=settings.lifetime_ns,
                epsilon_ns=settings.epsilon_ns,
                clock="shared",
                timer_slack_ns=self._timer_slack_ns,
            )
        ).decode()
        self._event(me, EventKind.START, detail=detail)
        return self._algorithm.create(me, settings), self._algorithm.codec(me, settings)

    def tell(self, me: ProcessId, indication: OrderingIndication) -> None:
        """Write down an indication."""
        self.indications.append((self._world.now_ns, me, indication))
        if isinstance(indication, Delivered):
            self._note_delivered(me, indication)
        elif isinstance(indication, Sent):
            self._note_sent(me, indication)
        else:
            self._note_discarded(me, indication)

    def crashed(self, me: ProcessId) -> None:
        """Write off every copy that this process has not settled."""
        self._running &= ~(1 << me)
        self.submitted[me].clear()
        for message in self.messages.values():
            message.down |= 1 << me & message.destinations & ~message.settled

    def copy_lost(self, source: int, to: int, incarnation: int, copy: int) -> None:
        """Remember a lost copy; which message it was is known when its send is indicated."""
        self._untold[to, source] += 1
        self._lost_copies.append((source, to, incarnation, copy))

    def loss_report(self, source: ProcessId, copy: int) -> Lost:
        """Return the command that tells a core of a lost copy."""
        return Lost(source, copy, copy)

    def note_loss_told(self, me: ProcessId, source: ProcessId) -> None:
        """Write down that the link told this process of a lost copy."""
        self._untold[me, source] -= 1
        self._event(me, EventKind.LOST, source=source, number=1)

    def finish(self) -> None:
        """End every running process's trace and close the books.

        What the links never told is told to the trace now: an audit accounts for every copy.
        """
        for (to, source), count in sorted(self._untold.items()):
            if count and self._running >> to & 1:
                self._event(ProcessId(to), EventKind.LOST, source=source, number=count)
        for process in members_of(self._running):
            self._event(process, EventKind.END)
        for source, to, incarnation, copy in self._lost_copies:
            number = self._link_numbers[source, incarnation, to][copy]
            self.messages[source, number].lost |= 1 << to
        for message in self.messages.values():
            open_at = message.destinations & ~(message.settled | message.lost | message.down)
            for process in members_of(open_at):
                self._find("arrived and was neither delivered nor discarded", process, message)

    # The books

    def _note_sent(self, me: ProcessId, sent: Sent) -> None:
        vector = self._vectors[me]
        evidence = vector.copy()
        command = self.submitted[me].popleft()
        usual = command.lifetime_ns in (None, self._settings.lifetime_ns)
        message = Message(
            me,
            sent.number,
            sent.stamp,
            sent.destinations,
            command.payload,
            self._world.now_ns,
            evidence,
            down=sent.destinations & ~self._running,
        )
        if sent.number != vector[me]:
            self._find("numbered out of turn", me, message, f"expected number {vector[me]}")
        vector[me] = sent.number + 1
        self.messages[me, sent.number] = message
        incarnation = self._incarnations[me]
        for to in members_of(sent.destinations):
            if to != me:
                self._link_numbers.setdefault((me, incarnation, to), []).append(sent.number)
        destinations: int = sent.destinations
        self._event(
            me,
            EventKind.SEND,
            source=me,
            number=sent.number,
            stamp_ns=sent.stamp,
            destinations=destinations.to_bytes((destinations.bit_length() + 7) // 8, "little"),
            control_bytes=sent.control_bytes,
            payload_bytes=len(message.payload),
            lifetime_ns=None if usual else command.lifetime_ns,
            vector_clock=evidence,
        )

    def _note_received(self, me: ProcessId, source: ProcessId, pdu: Any) -> None:
        self._event(
            me,
            EventKind.RECEIVE,
            source=source,
            number=pdu.number,
            stamp_ns=pdu.stamp * self._settings.tick_ns,
            payload_bytes=len(pdu.payload),
        )

    def _note_delivered(self, me: ProcessId, delivered: Delivered) -> None:
        source, number = delivered.source, delivered.number
        self._event(
            me,
            EventKind.DELIVER,
            source=source,
            number=number,
            stamp_ns=delivered.stamp,
            arrived_ns=delivered.arrived,
            control_bytes=delivered.control_bytes,
            payload_bytes=len(delivered.payload),
        )
        message = self.messages.get((source, number))
        if message is None or message.stamp != delivered.stamp:
            unknown = Message(source, number, delivered.stamp, 0, b"", -1, [])
            self._find("delivered what nobody sent", me, message or unknown)
            return
        if not message.destinations >> me & 1:
            self._find("delivered to a process that is no destination", me, message)
        if delivered.payload != message.payload:
            self._find("delivered with another payload", me, message)
        if delivered.destinations != message.destinations:
            self._find("delivered with other destinations", me, message)
        if (source, number) in self._delivered[me]:
            self._find("delivered twice", me, message)
        self._delivered[me].add((source, number))
        message.settled |= 1 << me
        if source != me:
            vector = self._vectors[me]
            vector[:] = map(max, vector, message.vector_clock)
            vector[source] = max(vector[source], number + 1)
        self._on_delivered(me, delivered)

    def _note_discarded(self, me: ProcessId, discarded: Discarded) -> None:
        source, number = discarded.source, discarded.number
        self._event(
            me,
            EventKind.DISCARD,
            source=source,
            number=number,
            stamp_ns=discarded.stamp,
            arrived_ns=discarded.arrived,
            reason=discarded.reason.value,
            control_bytes=discarded.control_bytes,
            payload_bytes=discarded.payload_bytes,
        )
        message = self.messages.get((source, number))
        if message is None:
            unknown = Message(source, number, discarded.stamp, 0, b"", -1, [])
            self._find("discarded what nobody sent", me, unknown)
        elif discarded.reason is not DiscardReason.DUPLICATE:
            message.settled |= 1 << me

    def _find(self, what: str, process: int, message: Message, detail: str = "") -> None:
        self.findings.append(
            Finding(what, process, message.source, message.number, self._world.now_ns, detail)
        )

    def _event(self, me: ProcessId, kind: EventKind, **more: Any) -> None:
        position = self._positions[me]
        self._positions[me] = position + 1
        self.events.append(
            Event(
                run_id=self._run_id,
                process=me,
                position=position,
                kind=kind,
                time_ns=self._world.now_ns,
                clock_ns=self._clock_of(me),
                **more,
            )
        )
