"""Small random runs, delivered without any order, and the faults a trace of one can have."""

import heapq
from collections import Counter
from itertools import pairwise
from random import Random

import msgspec

from orderwire.trace.events import Event, EventKind, RunSettings

RUN = "run"


def mask_bytes(members: set[int]) -> bytes:
    mask = sum(1 << member for member in members)
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


class RandomRun:
    """Processes that deliver whatever comes at once, over a network that does as it likes."""

    def __init__(self, chance: Random, run_id: str = RUN, *, own_lifetimes: bool = False) -> None:
        self.chance = chance
        self.own_lifetimes = own_lifetimes
        """Some messages have one of their own; some copies that were overtaken are discarded."""
        self.run_id = run_id
        members = chance.randint(1, 6)
        lifetime = chance.choice([None, 5, 20, 60])
        self.settings = RunSettings(
            algorithm="jang-delta",
            members=members,
            lifetime_ns=lifetime,
            epsilon_ns=chance.choice([0, 0, 2]),
        )
        self.loss = chance.choice([0.0, 0.1, 0.4])
        self.twice = chance.choice([0.0, 0.2])
        self.latency_max = chance.choice([1, 3, 15, 80])
        self.events: list[list[Event]] = [[] for _ in range(members)]
        self.stamps = [0] * members
        self.sent = [0] * members
        self.delivered: set[tuple[int, int, int]] = set()
        self.lives: dict[tuple[int, int], int | None] = {}
        self.past: dict[tuple[int, int], frozenset[tuple[int, int]]] = {}
        """What happened before each message."""
        self.known: list[set[tuple[int, int]]] = [set() for _ in range(members)]
        """What each process has sent, been handed, or has in the past of these."""
        self.told: list[set[tuple[int, int]]] = [set() for _ in range(members)]
        """What is in the past of what each process has been handed."""
        self.agenda: list[tuple[int, int, int, tuple[int, int, int, set[int]] | None]] = []
        self.order = 0

    def run(self, messages: int) -> list[Event]:
        detail = msgspec.json.encode(self.settings).decode()
        for process in range(self.settings.members):
            self.add(process, EventKind.START, 0, detail=detail)
        for _ in range(messages):
            self.later(self.chance.randint(0, 120), self.chance.randrange(self.settings.members))
        now = 0
        while self.agenda:
            now, _, process, copy = heapq.heappop(self.agenda)
            if copy is None:
                self.send(process, now)
            else:
                self.arrive(process, now, copy)
        for process in range(self.settings.members):
            self.add(process, EventKind.END, now + 1_000)
        return [event for timeline in self.events for event in timeline]

    def later(
        self, when: int, process: int, copy: tuple[int, int, int, set[int]] | None = None
    ) -> None:
        self.order += 1
        heapq.heappush(self.agenda, (when, self.order, process, copy))

    def add(self, process: int, kind: EventKind, now: int, **fields: object) -> None:
        self.events[process].append(
            Event(  # type: ignore[arg-type]
                run_id=self.run_id,
                process=process,
                position=len(self.events[process]),
                kind=kind,
                time_ns=now,
                clock_ns=now,
                **fields,
            )
        )

    def send(self, process: int, now: int) -> None:
        chance, members = self.chance, self.settings.members
        to = {chance.randrange(members) for _ in range(chance.randint(1, members))}
        stamp = max(now, self.stamps[process] + 1)
        self.stamps[process] = stamp
        number = self.sent[process]
        self.sent[process] += 1
        own = self.own_lifetime()
        self.lives[process, number] = self.settings.lifetime_ns if own is None else own
        self.past[process, number] = frozenset(self.known[process])
        self.known[process].add((process, number))
        self.add(
            process,
            EventKind.SEND,
            now,
            source=process,
            number=number,
            stamp_ns=stamp,
            destinations=mask_bytes(to),
            lifetime_ns=own,
        )
        copy = (process, number, stamp, to)
        for destination in sorted(to):
            if destination == process:
                self.arrive(process, now, copy)
            elif chance.random() < self.loss:
                if chance.random() < 0.7:
                    self.add(destination, EventKind.LOST, now, source=process, number=1)
            else:
                for _ in range(1 + (chance.random() < self.twice)):
                    self.later(now + chance.randint(0, self.latency_max), destination, copy)

    def own_lifetime(self) -> int | None:
        longest = self.settings.lifetime_ns
        if not self.own_lifetimes or self.chance.random() < 0.5:
            return None
        return self.chance.randint(1, longest or 60)

    def arrive(self, process: int, now: int, copy: tuple[int, int, int, set[int]]) -> None:
        source, number, stamp, _ = copy
        lifetime = self.settings.lifetime_ns
        key = (source, number, process)
        reason = ""
        if key in self.delivered:
            reason = "duplicate"
        elif lifetime is not None and stamp + lifetime < now:
            reason = "late"
        elif self.own_lifetimes:
            own = self.lives[source, number]
            if own is not None and stamp + own < now:
                reason = "expired"
            elif (source, number) in self.told[process] and self.chance.random() < 0.7:
                reason = "overtaken"
        kind = EventKind.DISCARD if reason else EventKind.DELIVER
        if not reason:
            self.delivered.add(key)
            self.stamps[process] = max(self.stamps[process], stamp)
            self.told[process] |= self.past[source, number]
            self.known[process] |= self.past[source, number] | {(source, number)}
        self.add(
            process,
            kind,
            now,
            source=source,
            number=number,
            stamp_ns=stamp,
            arrived_ns=now,
            reason=reason,
        )


def renumbered(events: list[Event]) -> list[Event]:
    """Give every event its position in its process's timeline, which holds no hole then."""
    seen: Counter[int] = Counter()
    made = []
    for event in events:
        made.append(msgspec.structs.replace(event, position=seen[event.process]))
        seen[event.process] += 1
    return made


FAULTS = (
    "drop delivery",
    "drop discard",
    "double",
    "swap",
    "misdeliver",
    "forge",
    "invent",
    "late",
)


OWN_FAULTS = (*FAULTS, "expire", "overtake", "relive")
"""And those of lifetimes of one's own."""


def damage(events: list[Event], fault: str, chance: Random) -> list[Event]:
    """Return the run with one fault of this kind, where it has a place for one."""
    deliveries = [at for at, event in enumerate(events) if event.kind is EventKind.DELIVER]
    if not deliveries:
        return events
    events = list(events)
    at = chance.choice(deliveries)
    event = events[at]
    if fault == "drop delivery":
        del events[at]
    elif fault == "drop discard":
        discards = [at for at, event in enumerate(events) if event.kind is EventKind.DISCARD]
        if discards:
            del events[chance.choice(discards)]
    elif fault == "double":
        events.insert(at + 1, event)
    elif fault == "swap":
        after = at + 1
        if events[after].kind is EventKind.DELIVER and event.source != event.process:
            times = {"time_ns": event.time_ns, "clock_ns": event.clock_ns}
            other = msgspec.structs.replace(events[after], **times)
            swapped = msgspec.structs.replace(
                event, time_ns=events[after].time_ns, clock_ns=events[after].clock_ns
            )
            if events[after].source != event.process and other.arrived_ns <= event.time_ns:
                events[at], events[after] = other, swapped
    elif fault == "misdeliver":
        astray = chance.randrange(6)
        later = [
            i
            for i, other in enumerate(events)
            if other.process == astray and other.time_ns > event.time_ns
        ]
        if later:
            events.insert(later[0], msgspec.structs.replace(event, process=astray))
    elif fault == "forge":
        events[at] = msgspec.structs.replace(event, stamp_ns=event.stamp_ns + 1)
    elif fault == "invent":
        events[at] = msgspec.structs.replace(event, number=event.number + 1_000)
    elif fault in ("expire", "overtake"):
        reason = "expired" if fault == "expire" else "overtaken"
        events[at] = msgspec.structs.replace(event, kind=EventKind.DISCARD, reason=reason)
    elif fault == "relive":
        at = chance.choice([i for i, e in enumerate(events) if e.kind is EventKind.SEND])
        life = chance.choice([None, 0, -1, 1, 3, 20, 60, 61])
        events[at] = msgspec.structs.replace(events[at], lifetime_ns=life)
    elif fault == "late":
        discards = [at for at, event in enumerate(events) if event.kind is EventKind.DISCARD]
        if discards:
            at = chance.choice(discards)
            events[at] = msgspec.structs.replace(
                events[at], kind=EventKind.DELIVER, reason="", arrived_ns=events[at].time_ns
            )
    return renumbered(events)


_OF_MESSAGES = (EventKind.SEND, EventKind.DELIVER, EventKind.DISCARD, EventKind.RECEIVE)


def restarted(events: list[Event], chance: Random) -> tuple[list[Event], list[Event]] | None:
    """Let one process of a run start again somewhere: as on sockets, and as in the simulator."""
    who = chance.choice(sorted({event.process for event in events}))
    mine = [event for event in events if event.process == who]
    latest = -1
    places = []
    for at, (event, follow) in enumerate(pairwise(mine), 1):
        latest = max(latest, event.time_ns, event.stamp_ns if event.source == who else -1)
        if latest < follow.time_ns:
            places.append((at, follow.time_ns))
    if not places:
        return None
    at, start_ns = chance.choice(places)
    first = next(event for event in mine if event.kind is EventKind.START)
    start = msgspec.structs.replace(first, time_ns=start_ns, clock_ns=start_ns)
    sent = sum(event.kind is EventKind.SEND for event in mine[:at])
    goes_on, again = [], []
    for event in events:
        if event.process == who and event.position == at:
            goes_on.append(msgspec.structs.replace(start, position=at))
            again.append(start)
        later = event.process == who and event.position >= at
        goes_on.append(msgspec.structs.replace(event, position=event.position + later))
        fields = {"position": event.position - at + 1 if later else event.position}
        if event.kind in _OF_MESSAGES and event.source == who and event.stamp_ns >= start_ns:
            fields["number"] = event.number - sent
        again.append(msgspec.structs.replace(event, **fields))
    return again, goes_on
