"""Lifetimes: in time means delivered in time, late means discarded, and no needless waiting."""

from collections.abc import Iterable, Iterator

from orderwire.trace.events import Event, EventKind
from orderwire.verify.history import History, Message, Timeline
from orderwire.verify.verdict import Check, Violation, conclude

LIVENESS = "liveness"
"""[S000:def.2] (i): delivered by the deadline when it arrived by it, else discarded."""
NO_DUPLICATES = "no-duplicates"
"""A process delivers a message at most once, and only one addressed to it."""
NO_NEEDLESS_WAITING = "no-needless-waiting"
"""Delivered as soon as it had arrived and its causal past was settled."""

EXCUSED_REASONS = frozenset({"future", "full"})
"""A copy refused to protect the process counts as lost, not as late."""
OVERTAKEN = "overtaken"
"""Discarded because a message that it should have preceded has been delivered already."""
EXPIRED = "expired"
"""Discarded because it came after its own deadline, but not after the run's lifetime."""


def check_liveness(history: History, *, timer_slack_ns: int = 0) -> Check:
    """Judge every arrival by the clock of the process where it happened.

    A delivery may be `timer_slack_ns` behind its deadline, where timers are coarse.  Without
    receive events, only what was delivered or discarded can be judged.  A message's own lifetime
    must be positive and at most the run's.
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
    for event in timeline.events:
        own_ns = event.lifetime_ns if event.kind is EventKind.SEND else None
        if own_ns is not None and not 0 < own_ns <= (history.lifetime_ns or own_ns):
            yield event, f"sent with a lifetime of {own_ns} ns, the run's is {history.lifetime_ns}"
    delivered = {message.key for _, message in timeline.deliveries}
    for event, message in timeline.deliveries:
        deadline_ns = history.deadline_ns(message)
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
        key = (event.source, event.number)
        discarded.add(key)
        why = _misjudged(history, timeline, event, delivered=key in delivered)
        if why:
            yield event, why
    if timeline.ended:
        for event in timeline.receives:
            key = (event.source, event.number)
            if key not in delivered and key not in discarded:
                yield event, "arrived, and was neither delivered nor discarded"


def _misjudged(history: History, timeline: Timeline, discard: Event, *, delivered: bool) -> str:
    """Say why this discard's reason is none, or return an empty string."""
    message = history.by_key.get((discard.source, discard.number))
    lifetime_ns = history.lifetime_ns
    if discard.reason in EXCUSED_REASONS:
        return ""
    if discard.reason == "duplicate":
        return "" if delivered else "discarded as a duplicate, never delivered"
    if discard.reason in (OVERTAKEN, EXPIRED):
        if message is None:
            return ""  # Nobody sent it: there is nothing to judge it by.
        if discard.reason == OVERTAKEN:
            if _is_overtaken(timeline, discard, message):
                return ""
            return "discarded as overtaken, nothing behind it had been delivered"
        if message.lifetime_ns is not None:
            lifetime_ns = message.lifetime_ns
    if lifetime_ns is None:
        return f"discarded as {discard.reason} although messages live for ever"
    early_ns = discard.stamp_ns + lifetime_ns - discard.arrived_ns
    if discard.arrived_ns >= 0 and early_ns >= 0:
        return f"discarded although it arrived {early_ns} ns before its deadline"
    return ""


def _is_overtaken(timeline: Timeline, discard: Event, discarded: Message) -> bool:
    """Whether a message that this one happened before had been delivered here."""
    return any(
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

    At its delivery, or one nanosecond after its deadline, or when a message that has it in its past
    was delivered and could wait no longer, or never.
    """
    settled: dict[int, float] = {}
    for message in history.messages:
        if message.destinations >> process & 1:
            deadline_ns = history.deadline_ns(message)
            settled[message.index] = float("inf") if deadline_ns is None else deadline_ns + 1
    for event, message in history.timelines[process].deliveries:
        deadline_ns = history.deadline_ns(message)
        settles = [message]
        if deadline_ns is not None and event.clock_ns >= deadline_ns:
            settles += history.past_of(message)
        for each in settles:
            if each.index in settled:
                settled[each.index] = min(settled[each.index], event.clock_ns)
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
            past = [settled[m.index] for m in history.past_of(message) if m.index in settled]
            earliest = earliest_ns(history, message, event, past)
            waits[process, event.position] = int(max(0, event.clock_ns - earliest))
    return waits


def earliest_ns(
    history: History, message: Message, event: Event, settled: Iterable[float]
) -> float:
    """Return when this delivery could have been, its past being settled at these instants.

    No message waits past its own deadline.
    """
    deadline_ns = history.deadline_ns(message)
    latest = max(settled, default=float("-inf"))
    if deadline_ns is not None:
        latest = min(latest, deadline_ns)
    return max(event.arrived_ns, latest)


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
