"""Lifetimes: in time means delivered in time, late means discarded, and no needless waiting."""

from collections.abc import Iterator

from orderwire.trace.events import Event
from orderwire.verify.history import History, Message, Timeline
from orderwire.verify.verdict import Check, Violation, conclude

LIVENESS = "liveness"
"""[S000:def.2] (i): delivered by the deadline when it arrived by it, else discarded."""
NO_DUPLICATES = "no-duplicates"
"""A process delivers a message at most once, and only one addressed to it."""
NO_NEEDLESS_WAITING = "no-needless-waiting"
"""Delivered as soon as it had arrived and its causal past was settled."""

EXCUSED_REASONS = frozenset({"future", "full", "expired"})
"""A copy refused to protect the process counts as lost, not as late; so does one that had a shorter
lifetime of its own, which the trace does not tell."""
OVERTAKEN = "overtaken"
"""Discarded because a message that it should have preceded has been delivered already."""


def check_liveness(history: History, *, timer_slack_ns: int = 0) -> Check:
    """Judge every arrival by the clock of the process where it happened.

    A delivery may be `timer_slack_ns` behind its deadline, where timers are coarse.  Without
    receive events, only what was delivered or discarded can be judged.
    """
    violations: list[Violation] = []
    examined = 0
    for process, timeline in history.timelines.items():
        examined += len(timeline.deliveries) + len(timeline.discards)
        for event, why in _liveness_of(history, timeline, timer_slack_ns):
            violations.append(
                Violation(
                    check=LIVENESS,
                    process=process,
                    position=event.position,
                    source=event.source,
                    number=event.number,
                    why=why,
                )
            )
    return conclude(LIVENESS, examined, violations, history.incomplete())


def _liveness_of(
    history: History, timeline: Timeline, timer_slack_ns: int
) -> Iterator[tuple[Event, str]]:
    """Yield what this process treated wrongly, and why."""
    delivered = {message.key for _, message in timeline.deliveries}
    for event, message in timeline.deliveries:
        deadline_ns = history.deadline_ns(message.stamp_ns)
        if event.arrived_ns > event.clock_ns:
            yield event, f"delivered at {event.clock_ns} ns, before it arrived"
        if deadline_ns is None:
            continue
        if event.arrived_ns > deadline_ns:
            late_ns = event.arrived_ns - deadline_ns
            yield event, f"delivered although it arrived {late_ns} ns after its deadline"
        elif event.clock_ns > deadline_ns + timer_slack_ns:
            yield event, f"delivered {event.clock_ns - deadline_ns} ns after its deadline"
    discarded = set()
    for event in timeline.discards:
        discarded.add((event.source, event.number))
        if event.reason in EXCUSED_REASONS or (event.source, event.number) in delivered:
            continue
        deadline_ns = history.deadline_ns(event.stamp_ns)
        if event.reason == OVERTAKEN:
            if not _is_overtaken(history, timeline, event):
                yield event, "discarded as overtaken, nothing behind it had been delivered"
        elif event.reason == "duplicate":
            yield event, "discarded as a duplicate, never delivered"
        elif deadline_ns is None:
            yield event, "discarded as late although messages live for ever"
        elif event.arrived_ns <= deadline_ns:
            early_ns = deadline_ns - event.arrived_ns
            yield event, f"discarded although it arrived {early_ns} ns before its deadline"
    if timeline.ended:
        for event in timeline.receives:
            key = (event.source, event.number)
            if key not in delivered and key not in discarded:
                yield event, "arrived, and was neither delivered nor discarded"


def _is_overtaken(history: History, timeline: Timeline, discard: Event) -> bool:
    """Whether a message that this one happened before had been delivered here."""
    discarded = history.by_key.get((discard.source, discard.number))
    return discarded is not None and any(
        message.past >> discarded.index & 1
        for event, message in timeline.deliveries
        if event.position < discard.position
    )


def check_no_duplicates(history: History) -> Check:
    """Find messages delivered twice, or to a process that is not one of their destinations."""
    violations: list[Violation] = []
    examined = 0
    for process, timeline in history.timelines.items():
        first: dict[int, Event] = {}
        for event, message in timeline.deliveries:
            examined += 1
            why = ""
            earlier = first.setdefault(message.index, event)
            if earlier is not event:
                why = f"{message} was delivered before, at position {earlier.position}"
            elif not message.destinations >> process & 1:
                why = f"{message} was not addressed to process {process}"
            if why:
                violations.append(
                    Violation(
                        check=NO_DUPLICATES,
                        process=process,
                        position=event.position,
                        source=message.source,
                        number=message.number,
                        why=why,
                    )
                )
    return conclude(NO_DUPLICATES, examined, violations, history.incomplete())


def settled_ns(history: History, process: int) -> dict[int, float]:
    """When each message addressed to this process is settled there, by its clock.

    At its delivery, or one nanosecond after its deadline, or never.
    """
    settled: dict[int, float] = {}
    for message in history.messages:
        if message.destinations >> process & 1:
            deadline_ns = history.deadline_ns(message.stamp_ns)
            settled[message.index] = float("inf") if deadline_ns is None else deadline_ns + 1
    for event, message in history.timelines[process].deliveries:
        if message.index in settled:
            settled[message.index] = event.clock_ns
    return settled


def needless_waits(history: History) -> dict[tuple[int, int], int]:
    """Return for each delivery, by (process, position), how long it waited for nothing, in ns.

    No algorithm that cannot know the fate of messages in flight could deliver earlier than when
    the message has arrived and every message to this process in its past is settled.
    """
    waits: dict[tuple[int, int], int] = {}
    for process, timeline in history.timelines.items():
        settled = settled_ns(history, process)
        for event, message in timeline.deliveries:
            earliest = _earliest_ns(history, message, event, settled)
            waits[process, event.position] = int(max(0, event.clock_ns - earliest))
    return waits


def _earliest_ns(
    history: History, message: Message, event: Event, settled: dict[int, float]
) -> float:
    earliest: float = event.arrived_ns
    for past in history.past_of(message):
        earliest = max(earliest, settled.get(past.index, earliest))
    return earliest


def check_no_needless_waiting(history: History, *, timer_slack_ns: int = 0) -> Check:
    """Find deliveries that waited longer than causality and lifetimes ask for."""
    violations: list[Violation] = []
    waits = needless_waits(history)
    for process, timeline in history.timelines.items():
        for event, message in timeline.deliveries:
            wait_ns = waits[process, event.position]
            if wait_ns > timer_slack_ns:
                violations.append(
                    Violation(
                        check=NO_NEEDLESS_WAITING,
                        process=process,
                        position=event.position,
                        source=message.source,
                        number=message.number,
                        why=f"waited {wait_ns} ns longer than needed",
                    )
                )
    return conclude(NO_NEEDLESS_WAITING, len(waits), violations, history.incomplete())
