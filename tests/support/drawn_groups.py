"""Small drawn runs of groups with views and a channel, as they should be, and faults for them."""

from collections import Counter
from random import Random

import msgspec

from orderwire.kernel import members_of
from orderwire.trace.events import Event, EventKind, RunSettings

RUN = "group"
MEMBERS_MAX = 6


def mask_bytes(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


class DrawnGroup:
    """A group in which one order is drawn, and everybody keeps to it."""

    def __init__(
        self, chance: Random, run_id: str = RUN, lag_max: int = 0, changes: float = 0.15
    ) -> None:
        """Members are handed things up to `lag_max` after they were sent, each always so.

        `changes`: the share of steps that change the view.
        """
        self.changes = changes
        self.chance = chance
        self.lag = [chance.randint(0, lag_max) if lag_max else 0 for _ in range(MEMBERS_MAX)]
        self.run_id = run_id
        self.founders = chance.randint(1, 4)
        self.settings = RunSettings(algorithm="tachikawa-st", members=MEMBERS_MAX, open=True)
        self.events: dict[int, list[Event]] = {}
        self.sent: Counter[int] = Counter()
        self.now = 0
        self.place = 0
        self.incarnation = chance.choice([0, 2**63])
        self.views = chance.choice([0, 0, 3])
        self.members = (1 << self.founders) - 1

    def run(self, messages: int) -> list[Event]:
        for process in range(self.founders):
            self.begin(process)
        for _ in range(messages):
            self.now += self.chance.randint(0, 3)
            if self.chance.random() < self.changes:
                self.change()
            elif self.members:
                self.message()
        for process in members_of(self.members):
            self.add(process, EventKind.END)
        return [event for process in sorted(self.events) for event in self.events[process]]

    def add(self, process: int, kind: EventKind, **fields: object) -> None:
        timeline = self.events.setdefault(process, [])
        lag = self.lag[process] if kind in (EventKind.RECEIVE, EventKind.DELIVER) else 0
        fields.setdefault("time_ns", max(self.now + lag, self.reached(process)))
        timeline.append(
            Event(  # type: ignore[arg-type]
                run_id=self.run_id,
                process=process,
                position=len(timeline),
                kind=kind,
                clock_ns=self.now,
                **fields,
            )
        )

    def reached(self, process: int) -> int:
        """The time of its last event."""
        timeline = self.events.get(process)
        return timeline[-1].time_ns if timeline else 0

    def begin(self, process: int) -> None:
        if process not in self.events:
            detail = msgspec.json.encode(self.settings).decode()
            self.add(process, EventKind.START, detail=detail)
        self.install(process)

    def install(self, process: int) -> None:
        mask = mask_bytes(self.members)
        self.add(process, EventKind.INSTALL, number=self.views, destinations=mask)

    def change(self) -> None:
        """A new view: somebody crashes, is told that it is out, or joins; or nothing of it."""
        chance = self.chance
        old = self.members
        out = [p for p in members_of(old) if chance.random() < 0.2]
        new = [p for p in range(MEMBERS_MAX) if p not in self.events and chance.random() < 0.3]
        back = [p for p in self.events if self.told(p) and chance.random() < 0.3]
        members = old & ~sum(1 << p for p in out) | sum(1 << p for p in [*new, *back])
        if not members & old:
            return
        self.members = members
        self.views += chance.randint(1, 2)
        if chance.random() < 0.3:
            self.incarnation += 1
            self.place = chance.randint(0, 5)
        for process in out:
            if chance.random() < 0.5:
                self.install(process)
        for process in members_of(members):
            self.begin(process)

    def told(self, process: int) -> bool:
        """Whether it has stopped, and knows."""
        last = self.events[process][-1]
        mask = int.from_bytes(last.destinations, "little")
        return last.kind is EventKind.INSTALL and not mask >> process & 1

    def message(self) -> None:
        chance = self.chance
        present = list(members_of(self.members))
        source = chance.choice(present)
        self.now = max(self.now, self.reached(source))
        mask = sum(1 << p for p in present if chance.random() < 0.6) or 1 << source
        number = self.sent[source]
        self.sent[source] += 1
        stamp = self.now
        self.add(
            source,
            EventKind.SEND,
            source=source,
            number=number,
            stamp_ns=stamp,
            destinations=mask_bytes(mask),
        )
        for process in present:
            if chance.random() < 0.8:
                self.add(
                    process,
                    EventKind.RECEIVE,
                    source=source,
                    number=number,
                    incarnation=self.incarnation,
                    channel_number=self.place,
                )
        self.place += chance.randint(1, 2)
        told = chance.random() < 0.7
        for process in members_of(mask):
            self.add(
                process,
                EventKind.DELIVER,
                source=source,
                number=number,
                stamp_ns=stamp,
                arrived_ns=self.now,
                destinations=mask_bytes(mask) if told else b"",
            )


FAULTS = ("swap", "drop", "move", "double", "view", "mask", "unview", "misplace", "reborn", "cut")


def broken(events: list[Event], fault: str, chance: Random) -> list[Event]:
    """Break one thing, if there is such a thing; the timelines stay dense."""
    kinds = {
        "swap": EventKind.DELIVER,
        "drop": EventKind.DELIVER,
        "move": EventKind.DELIVER,
        "double": EventKind.DELIVER,
        "view": EventKind.INSTALL,
        "mask": EventKind.INSTALL,
        "unview": EventKind.INSTALL,
        "misplace": EventKind.RECEIVE,
        "reborn": EventKind.RECEIVE,
        "cut": EventKind.END,
    }
    rows = [at for at, event in enumerate(events) if event.kind is kinds[fault]]
    if not rows:
        return events
    events = list(events)
    at = chance.choice(rows)
    event = events[at]
    same = [other for other in rows if events[other].process == event.process]
    if fault in ("drop", "unview", "cut"):
        del events[at]
    elif fault in ("swap", "move"):
        other = chance.choice(same)
        if fault == "swap":
            events[at], events[other] = events[other], events[at]
        else:
            events.insert(other, events.pop(at))
    elif fault == "double":
        events.insert(chance.choice(same) + 1, event)
    elif fault == "view":
        number = max(0, event.number + chance.randint(-2, 2))
        events[at] = msgspec.structs.replace(event, number=number)
    elif fault == "mask":
        mask = int.from_bytes(event.destinations, "little") ^ 1 << chance.randrange(MEMBERS_MAX)
        events[at] = msgspec.structs.replace(event, destinations=mask_bytes(mask))
    elif fault == "misplace":
        assert event.channel_number is not None
        number = event.channel_number + chance.randint(-3, 3)
        events[at] = msgspec.structs.replace(event, channel_number=number)
    else:
        assert event.incarnation is not None
        incarnation = abs(event.incarnation + chance.choice((-1, 1)))
        events[at] = msgspec.structs.replace(event, incarnation=incarnation)
    return renumbered(events)


def renumbered(events: list[Event]) -> list[Event]:
    """Give every event its position in its process's timeline, and a time that does not go back."""
    seen: Counter[int] = Counter()
    times: dict[int, int] = {}
    made = []
    for event in events:
        now = times[event.process] = max(times.get(event.process, 0), event.time_ns)
        position = seen[event.process]
        made.append(msgspec.structs.replace(event, position=position, time_ns=now))
        seen[event.process] += 1
    return made
