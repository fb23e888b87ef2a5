"""Replay of a schedule written down copy by copy: who sends when, which copy arrives when.

Time is in ticks of one nanosecond.  Inside one tick: sends marked `before_arrivals`, then arrivals
in the order their copies were sent, then the other sends, then timers.  A process's clock reads
real time plus its offset; its timer fires at the next multiple of `timer_granularity` of its clock.
Every PDU goes through the codec.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from orderwire.kernel import Effects, Indicate, Instant, ProcessId, Send, destinations
from orderwire.ordering.catalog import Algorithm, OrderingSettings
from orderwire.ordering.pdu import Delivered, Discarded, Multicast, Sent
from orderwire.trace.events import Event, EventKind, RunSettings

EVENTS_MAX = 1_000_000
"""Bound on the arrivals, sends and timers of one replay."""

_EARLY_SEND, _ARRIVAL, _SEND = range(3)


@dataclass(frozen=True, kw_only=True)
class ScheduledSend:
    """One message and the fate of its copies."""

    id: str
    at: int
    sender: int
    to: tuple[int, ...]
    arrive: Mapping[int, int | None]
    """Destination → real arrival time; None: the copy is lost."""
    again: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Destination → when further copies arrive, duplicated by the network."""
    before_arrivals: bool = False
    lifetime: int | None = None
    """A lifetime of its own, for algorithms that know such; None: the schedule's."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A whole scenario."""

    processes: int
    lifetime: int | None
    sends: tuple[ScheduledSend, ...]
    epsilon: int = 0
    clock_offsets: tuple[int, ...] = ()
    """Per process; empty: all 0."""
    timer_granularity: int = 1


@dataclass(frozen=True, kw_only=True)
class SentMessage:
    """What became of a scheduled send."""

    id: str
    sender: int
    number: int
    stamp: int
    pdus: Mapping[int, Any]
    """Destination → the PDU as it came out of the codec."""
    control_bytes: int


@dataclass
class Replayed:
    """What happened."""

    events: list[Event]
    messages: dict[str, SentMessage] = field(default_factory=dict)
    ids: dict[tuple[int, int], str] = field(default_factory=dict)
    """(sender, number) → id of the scheduled send."""
    delivered: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    """Process → (id, local tick), in order."""
    discarded: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    wakes: int = 0


def replay(
    schedule: Schedule,
    algorithm: Algorithm,
    *,
    run_id: str = "replay",
    **options: Any,
) -> Replayed:
    """Run this schedule through one algorithm; `options` are fields of OrderingSettings."""
    return _Replayer(schedule, algorithm, run_id, options).run()


class _Replayer:
    def __init__(
        self, schedule: Schedule, algorithm: Algorithm, run_id: str, options: Mapping[str, Any]
    ) -> None:
        members = schedule.processes
        settings = OrderingSettings(
            members=members,
            lifetime_ns=schedule.lifetime,
            epsilon_ns=schedule.epsilon,
            tick_ns=1,
            **options,
        )
        offsets = schedule.clock_offsets or (0,) * members
        self.schedule = schedule
        earliest = min((send.at for send in schedule.sends), default=0)
        self.shift = max(0, -(earliest + min(offsets)))
        """Added to every clock, so that none reads less than 0; taken off what is reported."""
        self.offsets = [offset + self.shift for offset in offsets]
        processes = [ProcessId(process) for process in range(members)]
        self.cores = [algorithm.create(process, settings) for process in processes]
        self.codecs = [algorithm.codec(process, settings) for process in processes]
        self.positions = [0] * members
        self.run_id = run_id
        self.replayed = Replayed(events=[])
        self.detail = msgspec.json.encode(
            RunSettings(
                algorithm=algorithm.name,
                members=members,
                lifetime_ns=schedule.lifetime,
                epsilon_ns=schedule.epsilon,
            )
        ).decode()
        self.heap: list[tuple[int, int, int, Any]] = []
        self.sequence = 0

    def push(self, at: int, phase: int, what: Any) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (at, phase, self.sequence, what))

    def run(self) -> Replayed:
        members = range(self.schedule.processes)
        for process in members:
            self.replayed.delivered[process] = []
            self.replayed.discarded[process] = []
            self.record(process, 0, EventKind.START, detail=self.detail)
        for send in self.schedule.sends:
            self.push(send.at, _EARLY_SEND if send.before_arrivals else _SEND, send)
        now = 0
        for _ in range(EVENTS_MAX):
            due = [(self.due(process), process) for process in members]
            timer = min((at for at, _ in due if at is not None), default=None)
            if self.heap and (timer is None or self.heap[0][0] <= timer):
                now, phase, _, what = heapq.heappop(self.heap)
                if phase == _ARRIVAL:
                    process, source, data = what
                    self.arrive(process, source, data, now)
                else:
                    self.send(what, now)
            elif timer is not None:
                now = max(now, timer)
                for at, process in due:
                    if at is not None and at <= now:
                        self.replayed.wakes += 1
                        self.apply(process, self.cores[process].wake(self.clock(process, now)), now)
            else:
                break
        else:
            raise RuntimeError(f"a replay of more than {EVENTS_MAX} steps")
        for process in members:
            self.record(process, now, EventKind.END)
        return self.replayed

    def clock(self, process: int, now: int) -> Instant:
        return Instant(now + self.offsets[process])

    def due(self, process: int) -> int | None:
        """When this process's timer fires, in real time."""
        deadline = self.cores[process].next_deadline()
        if deadline is None:
            return None
        granularity = self.schedule.timer_granularity
        local = deadline - self.shift
        return -(-local // granularity) * granularity + self.shift - self.offsets[process]

    def send(self, send: ScheduledSend, now: int) -> None:
        payload = send.id.encode()
        command = Multicast(payload, destinations(send.to), send.lifetime)
        effects = self.cores[send.sender].submit(command, self.clock(send.sender, now))
        pdus: dict[int, Any] = {}
        sent: Sent | None = None
        for effect in effects:
            if isinstance(effect, Send):
                data = self.codecs[send.sender].encode(effect.pdu)
                pdu = self.codecs[effect.to].decode(memoryview(data))
                assert pdu == effect.pdu, f"{pdu} came out of the codec for {effect.pdu}"
                pdus[effect.to] = pdu
                at = send.arrive[effect.to]
                arrivals = [] if at is None else [at]
                for arrival in (*arrivals, *send.again.get(effect.to, ())):
                    self.push(arrival, _ARRIVAL, (effect.to, send.sender, data))
            elif isinstance(effect, Indicate) and isinstance(effect.indication, Sent):
                sent = effect.indication
        assert sent is not None, f"no indication that {send.id} was sent"
        self.replayed.ids[send.sender, sent.number] = send.id
        self.replayed.messages[send.id] = SentMessage(
            id=send.id,
            sender=send.sender,
            number=sent.number,
            stamp=sent.stamp - self.shift,
            pdus=pdus,
            control_bytes=sent.control_bytes,
        )
        own = None if send.lifetime == self.schedule.lifetime else send.lifetime
        self.apply(send.sender, effects, now, payload_bytes=len(payload), lifetime=own)

    def arrive(self, process: int, source: int, data: bytes, now: int) -> None:
        pdu = self.codecs[process].decode(memoryview(data))
        effects = self.cores[process].receive(ProcessId(source), pdu, self.clock(process, now))
        self.record(
            process,
            now,
            EventKind.RECEIVE,
            source=source,
            number=pdu.number,
            stamp_ns=pdu.stamp,
        )
        self.apply(process, effects, now)

    def apply(
        self,
        process: int,
        effects: Effects,
        now: int,
        payload_bytes: int = 0,
        lifetime: int | None = None,
    ) -> None:
        """Record what the core indicates.  `payload_bytes` and `lifetime` are of what it sends."""
        local = self.clock(process, now) - self.shift
        for effect in effects:
            if not isinstance(effect, Indicate):
                continue
            indication = effect.indication
            if isinstance(indication, Sent):
                mask = indication.destinations
                self.record(
                    process,
                    now,
                    EventKind.SEND,
                    source=process,
                    number=indication.number,
                    stamp_ns=indication.stamp,
                    destinations=mask.to_bytes((mask.bit_length() + 7) // 8, "little"),
                    control_bytes=indication.control_bytes,
                    payload_bytes=payload_bytes,
                    lifetime_ns=lifetime,
                )
                continue
            assert isinstance(indication, Delivered | Discarded)
            name = self.replayed.ids[indication.source, indication.number]
            is_delivery = isinstance(indication, Delivered)
            lists = self.replayed.delivered if is_delivery else self.replayed.discarded
            lists[process].append((name, local))
            self.record(
                process,
                now,
                EventKind.DELIVER if is_delivery else EventKind.DISCARD,
                source=indication.source,
                number=indication.number,
                stamp_ns=indication.stamp,
                arrived_ns=indication.arrived,
                control_bytes=indication.control_bytes,
                reason="" if isinstance(indication, Delivered) else indication.reason.value,
            )

    def record(self, process: int, now: int, kind: EventKind, **columns: Any) -> None:
        self.replayed.events.append(
            Event(
                run_id=self.run_id,
                process=process,
                position=self.positions[process],
                kind=kind,
                time_ns=now,
                clock_ns=self.clock(process, now),
                **columns,
            )
        )
        self.positions[process] += 1
