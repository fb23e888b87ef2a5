"""Causal order: of two delivered messages, the one that happened before comes first.

Two forms of the same check: over exact causal pasts, and over vector clocks (how many messages of
each process are in a message's past), which a trace may carry as evidence.  [S000:def.2]
"""

from orderwire.verify.delta import earliest_ns, settled_ns
from orderwire.verify.history import History, Message
from orderwire.verify.verdict import Check, Violation, conclude

CAUSAL_ORDER = "causal-order"
"""[S000:def.2] (ii): m1 → m2, both delivered at a process: m1 is first there."""
DELTA_CAUSAL_ORDER = "delta-causal-order"
"""S001, definition 2: the same, only for pairs sent within Δ of each other."""


def check_causal_order(history: History) -> Check:
    """Every delivery that follows one of a causally later message is a violation."""
    return _check(history, CAUSAL_ORDER, within_lifetime=False)


def check_delta_causal_order(history: History) -> Check:
    """The same for pairs with SendTime(m1) + Δ ≥ SendTime(m2) alone; weaker."""
    return _check(history, DELTA_CAUSAL_ORDER, within_lifetime=True)


def violating_pairs(history: History, *, within_lifetime: bool = False) -> list[Violation]:
    """Return every pair in the wrong order, not only the first of each delivery."""
    check_id = DELTA_CAUSAL_ORDER if within_lifetime else CAUSAL_ORDER
    found: list[Violation] = []
    for process, timeline in history.timelines.items():
        for at, (event, message) in enumerate(timeline.deliveries):
            for earlier_event, earlier in timeline.deliveries[:at]:
                if not earlier.past >> message.index & 1:
                    continue
                if within_lifetime and not _within_lifetime(history, message, earlier):
                    continue
                found.append(
                    Violation(
                        check=check_id,
                        process=process,
                        position=event.position,
                        source=message.source,
                        number=message.number,
                        other_source=earlier.source,
                        other_number=earlier.number,
                        other_position=earlier_event.position,
                        why=f"{message} happened before {earlier}, which was delivered first",
                    )
                )
    return found


def _within_lifetime(history: History, first: Message, second: Message) -> bool:
    deadline_ns = history.deadline_ns(first)
    return deadline_ns is None or deadline_ns >= second.stamp_ns


def _check(history: History, check_id: str, *, within_lifetime: bool) -> Check:
    """One violation per delivery, with the first message that overtook it as evidence."""
    first_of: dict[tuple[int, int], Violation] = {}
    for violation in violating_pairs(history, within_lifetime=within_lifetime):
        first_of.setdefault((violation.process, violation.position), violation)
    violations = list(first_of.values())
    examined = 0
    for process, timeline in history.timelines.items():
        examined += len(timeline.deliveries)
        violations += [
            Violation(
                check=check_id,
                process=process,
                position=event.position,
                source=event.source,
                number=event.number,
                why=f"nobody sent message {event.number} of process {event.source}",
            )
            for event in timeline.unsent
            if event.source in history.timelines and history.timelines[event.source].ended
        ]
    return conclude(check_id, examined, violations, history.incomplete())


def vector_clock(history: History, message: Message) -> list[int]:
    """Return how many messages of each process happened before this one."""
    clock = [0] * history.settings.members
    for past in history.past_of(message):
        clock[past.source] += 1
    return clock


def overtaken_by_vector_clock(history: History) -> set[tuple[int, int]]:
    """Return the (process, position) of violating deliveries, found with vector clocks alone.

    In delivery order keep the maximum of the vector clocks delivered; a message counted in it
    already has been overtaken.
    """
    rank = _ranks(history)
    found: set[tuple[int, int]] = set()
    for process, timeline in history.timelines.items():
        highest = [0] * history.settings.members
        for event, message in timeline.deliveries:
            if rank[message.index] < highest[message.source]:
                found.add((process, event.position))
            clock = vector_clock(history, message)
            highest = [max(a, b) for a, b in zip(highest, clock, strict=True)]
    return found


def _ranks(history: History) -> list[int]:
    """Return for every message how many its sender had sent before."""
    counts: dict[int, int] = {}
    ranks: list[int] = [0] * len(history.messages)
    for message in sorted(history.messages, key=lambda m: (m.source, m.position)):
        ranks[message.index] = counts.get(message.source, 0)
        counts[message.source] = ranks[message.index] + 1
    return ranks


def needless_waits_by_vector_clock(history: History) -> dict[tuple[int, int], int]:
    """Return needless waiting per delivery, computed from vector clocks alone, in ns.

    Per (process, sender) the prefix maximum, over that sender's messages, of when each is settled;
    the earliest possible delivery is the maximum of it at the vector clock's counts.
    """
    rank = _ranks(history)
    by_sender: dict[int, list[Message]] = {}
    for message in sorted(history.messages, key=lambda m: (m.source, rank[m.index])):
        by_sender.setdefault(message.source, []).append(message)
    waits: dict[tuple[int, int], int] = {}
    for process, timeline in history.timelines.items():
        settled = settled_ns(history, process)
        prefix: dict[int, list[float]] = {}
        for sender, messages in by_sender.items():
            running: list[float] = [float("-inf")]
            for message in messages:
                running.append(max(running[-1], settled.get(message.index, running[-1])))
            prefix[sender] = running
        for event, message in timeline.deliveries:
            clock = vector_clock(history, message)
            past = [prefix[k][count] for k, count in enumerate(clock) if k in prefix]
            earliest = earliest_ns(history, message, event, past)
            waits[process, event.position] = int(max(0, event.clock_ns - earliest))
    return waits
