"""One run, rebuilt from its trace: messages, what every process did, and who knew of what.

The causal past of every message is an exact bit set: happened-before over send and deliver events,
where a message sent to oneself is delivered at once and a discarded one carries nothing.
[S000:def.1]  Quadratic on purpose: the linear kernels are checked against this.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from orderwire.kernel import Destinations, members_of
from orderwire.kernel.parsing import parsed
from orderwire.trace.events import Event, EventKind, RunSettings

MessageKey = tuple[int, int]
"""(source, number)."""


@dataclass(frozen=True)
class Message:
    """A message that was sent."""

    index: int
    """Its bit in causal pasts."""
    source: int
    number: int
    stamp_ns: int
    destinations: int
    position: int
    past: int
    """Bit set of the messages that happened before it."""
    lifetime_ns: int | None
    """Its own lifetime, where that is not the run's."""

    @property
    def key(self) -> MessageKey:
        """(source, number)."""
        return self.source, self.number

    def __str__(self) -> str:
        return f"message {self.number} of process {self.source}"


@dataclass
class Timeline:
    """What one process did, in its own order."""

    deliveries: list[tuple[Event, Message]] = field(default_factory=list)
    discards: list[Event] = field(default_factory=list)
    receives: list[Event] = field(default_factory=list)
    unsent: list[Event] = field(default_factory=list)
    """Deliveries of messages that no process sent."""
    ended: bool = False
    events: list[Event] = field(default_factory=list)


class History:
    """A run as the oracles see it."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.messages: list[Message] = []
        self.by_key: dict[MessageKey, Message] = {}
        self.timelines: dict[int, Timeline] = {}

    @property
    def lifetime_ns(self) -> int | None:
        """Δ of the run."""
        return self.settings.lifetime_ns

    def deadline_ns(self, message: Message) -> int | None:
        """Last instant at which this message may be delivered, by its own lifetime or the run's."""
        lifetime_ns = self.lifetime_ns if message.lifetime_ns is None else message.lifetime_ns
        return None if lifetime_ns is None else message.stamp_ns + lifetime_ns

    def past_of(self, message: Message) -> Iterator[Message]:
        """Yield the messages that happened before this one."""
        for index in members_of(Destinations(message.past)):
            yield self.messages[index]

    def incomplete(self) -> str:
        """Say which processes' traces are not complete, or return an empty string."""
        expected = range(self.settings.members)
        missing = [
            process
            for process in expected
            if process not in self.timelines or not self.timelines[process].ended
        ]
        if not missing:
            return ""
        shown = ", ".join(map(str, missing[:10]))
        return f"no complete trace of process {shown}"


def rebuild(events: Iterable[Event], settings: RunSettings | None = None) -> History:
    """Return the history of one run; its settings come from a start event unless given.

    Raises ValueError when the events are of several runs, when positions have holes or repeat, or
    when nothing says what the settings are.
    """
    ordered = sorted(events, key=lambda event: (event.process, event.position))
    runs = {event.run_id for event in ordered}
    if len(runs) > 1:
        raise ValueError(f"events of {len(runs)} runs, expected one: {sorted(runs)[:3]}")
    if settings is None:
        starts = [event for event in ordered if event.kind is EventKind.START]
        if not starts:
            raise ValueError("no start event says what the settings of the run are")
        settings = parsed(
            msgspec.json.Decoder(RunSettings).decode,
            starts[0].detail,
            "no settings of a run",
            ValueError,
        )
    history = History(settings)
    for event in ordered:
        timeline = history.timelines.setdefault(event.process, Timeline())
        if event.position != len(timeline.events):
            raise ValueError(
                f"process {event.process}: position {event.position}, "
                f"expected {len(timeline.events)}"
            )
        timeline.events.append(event)
    _walk(history)
    return history


def _walk(history: History) -> None:
    """Step the processes, each as far as it can go, until none can: an order of happened-before."""
    sent = {
        (event.process, event.number)
        for timeline in history.timelines.values()
        for event in timeline.events
        if event.kind is EventKind.SEND
    }
    known = dict.fromkeys(history.timelines, 0)
    """Per process, the bit set of messages sent or delivered in its past."""
    at = dict.fromkeys(history.timelines, 0)
    moved = True
    while moved:
        moved = False
        for process, timeline in history.timelines.items():
            while at[process] < len(timeline.events):
                event = timeline.events[at[process]]
                if event.kind is EventKind.SEND:
                    known[process] |= _send(history, event, known[process])
                elif event.kind is EventKind.DELIVER:
                    key = (event.source, event.number)
                    message = history.by_key.get(key)
                    if message is None and key in sent:
                        break  # Its sender has to be walked further first.
                    if message is None:
                        timeline.unsent.append(event)
                    else:
                        timeline.deliveries.append((event, message))
                        known[process] |= message.past | 1 << message.index
                elif event.kind is EventKind.DISCARD:
                    timeline.discards.append(event)
                elif event.kind is EventKind.RECEIVE:
                    timeline.receives.append(event)
                elif event.kind is EventKind.END:
                    timeline.ended = True
                at[process] += 1
                moved = True
    for process, timeline in history.timelines.items():
        if at[process] < len(timeline.events):
            event = timeline.events[at[process]]
            raise ValueError(
                f"process {process} delivers message {event.number} of process {event.source} "
                f"at position {event.position} although its sending depends on that delivery"
            )


def _send(history: History, event: Event, past: int) -> int:
    """Record a message; return its bit."""
    key = (event.process, event.number)
    if key in history.by_key:
        raise ValueError(f"process {key[0]} sends message {key[1]} twice")
    message = Message(
        index=len(history.messages),
        source=event.process,
        number=event.number,
        stamp_ns=event.stamp_ns,
        destinations=int.from_bytes(event.destinations, "little"),
        position=event.position,
        past=past,
        lifetime_ns=event.lifetime_ns,
    )
    history.messages.append(message)
    history.by_key[key] = message
    return 1 << message.index
