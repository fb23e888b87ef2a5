"""The verdict over one run: the oracles' checks, the books, and delivery after the healing.

A restarted process is judged as it knew the world: what an earlier incarnation delivered may come
again, and what it was waiting for is gone with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from orderwire.ordering.catalog import Algorithm
from orderwire.ordering.pdu import DiscardReason
from orderwire.sim.group import Finding, Message
from orderwire.trace.events import Event, EventKind
from orderwire.verify.causal import check_causal_order
from orderwire.verify.delta import (
    check_liveness,
    check_no_duplicates,
    check_no_needless_waiting,
)
from orderwire.verify.fifo import check_fifo_order
from orderwire.verify.history import History, MessageKey, Timeline, rebuild
from orderwire.verify.verdict import Check, Verdict, Violation, conclude

BOOKS = "books"
"""Every copy is delivered, discarded, lost or meant for a crashed process, and is what was sent."""
DELIVERED_AFTER_HEALING = "delivered-after-healing"
"""What is sent after the faults is delivered at every running destination within the bound."""

Oracle = Callable[[History], Check]


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    verdict: Verdict
    checks: list[Check]
    """The promises of the algorithm."""
    control: list[Check]
    """Orders it does not promise, for comparison: they do not count."""

    def why(self) -> str:
        """Return the first violation in words, or an empty string."""
        for check in self.checks:
            for violation in check.violations:
                return f"{check.id} at process {violation.process}: {violation.why}"
        return ""


def judge(
    algorithm: Algorithm,
    events: Sequence[Event],
    *,
    findings: Sequence[Finding],
    healed: Sequence[Message],
    running: int,
    bound_ns: int,
    timer_slack_ns: int,
    crashes: bool,
) -> Judgement:
    """Apply every check.

    `healed` are the messages sent after the healing, `running` the processes (bit mask) that ran
    to the end; `timer_slack_ns` is how late coarse timers may be.
    """
    histories = _incarnations(rebuild(events))

    def over_all(oracle: Oracle) -> Check:
        return _merged([oracle(history) for history in histories])

    order: dict[str, Oracle] = {"fifo-order": check_fifo_order, "causal-order": check_causal_order}
    promised = _promised_orders(algorithm)
    checks = [
        _check_books(events, findings),
        over_all(check_no_duplicates),
        over_all(lambda history: check_liveness(history, timer_slack_ns=timer_slack_ns)),
        *(over_all(order[name]) for name in promised),
    ]
    if algorithm.expectation == "exact" and not crashes:
        checks.append(
            over_all(lambda h: check_no_needless_waiting(h, timer_slack_ns=timer_slack_ns))
        )
    if healed:
        checks.append(_check_healed(events, healed, running, bound_ns))
    control = [over_all(oracle) for name, oracle in order.items() if name not in promised]
    return Judgement(verdict=_overall(checks), checks=checks, control=control)


def _promised_orders(algorithm: Algorithm) -> tuple[str, ...]:
    weaker = {"unordered": (), "fifo": ("fifo-order",)}
    if algorithm.expectation is None and algorithm.name in weaker:
        return weaker[algorithm.name]
    return ("fifo-order", "causal-order")


def _overall(checks: Sequence[Check]) -> Verdict:
    """Return INVALID if any check is; VALID if one is and the rest had nothing to look at."""
    verdicts = {check.verdict for check in checks}
    for verdict in (Verdict.INVALID, Verdict.VALID):
        if verdict in verdicts:
            return verdict
    return Verdict.UNKNOWN


def _merged(checks: Sequence[Check]) -> Check:
    """One check over all incarnations."""
    violations = [violation for check in checks for violation in check.violations]
    return conclude(checks[0].id, sum(check.examined for check in checks), violations)


def _incarnations(history: History) -> list[History]:
    """Return one history per incarnation; the messages and their pasts are the same in all."""
    parts = {process: _split(timeline) for process, timeline in history.timelines.items()}
    histories = []
    for index in range(max(map(len, parts.values()), default=0)):
        part = History(history.settings)
        part.messages, part.by_key = history.messages, history.by_key
        for process, incarnations in parts.items():
            empty = Timeline(ended=True)
            part.timelines[process] = incarnations[index] if index < len(incarnations) else empty
        histories.append(part)
    return histories


def _split(timeline: Timeline) -> list[Timeline]:
    """Cut a timeline at its starts; leave out what an earlier part had delivered already."""
    starts = [event.position for event in timeline.events if event.kind is EventKind.START]
    bounds = [*starts[1:], len(timeline.events)]
    parts: list[Timeline] = []
    known: set[MessageKey] = set()
    low = 0
    for index, high in enumerate(bounds):
        last = index == len(bounds) - 1
        ended = last and timeline.ended

        def within(position: int, low: int = low, high: int = high) -> bool:
            return low <= position < high

        deliveries = [
            (event, message)
            for event, message in timeline.deliveries
            if within(event.position) and message.key not in known
        ]
        parts.append(
            replace(
                timeline,
                deliveries=deliveries,
                discards=[
                    event
                    for event in timeline.discards
                    if within(event.position)
                    and (event.source, event.number) not in known
                    # A crash takes with it what waits: only its duplicate is on record then.
                    and (ended or event.reason != DiscardReason.DUPLICATE.value)
                ],
                receives=[
                    event
                    for event in timeline.receives
                    if ended
                    and within(event.position)
                    and (event.source, event.number) not in known
                ],
                unsent=[event for event in timeline.unsent if within(event.position)],
                ended=True,
                events=timeline.events[low:high],
            )
        )
        known |= {message.key for _, message in deliveries}
        low = high
    return parts


def _check_books(events: Sequence[Event], findings: Sequence[Finding]) -> Check:
    examined = sum(event.kind in (EventKind.SEND, EventKind.DELIVER) for event in events)
    return conclude(
        BOOKS,
        examined,
        [
            Violation(
                check=BOOKS,
                process=finding.process,
                position=-1,
                source=finding.source,
                number=finding.number,
                why=str(finding),
            )
            for finding in findings
        ],
    )


def _check_healed(
    events: Sequence[Event], healed: Sequence[Message], running: int, bound_ns: int
) -> Check:
    delivered_ns: Mapping[tuple[int, int, int], int] = {
        (event.process, event.source, event.number): event.time_ns
        for event in events
        if event.kind is EventKind.DELIVER
    }
    violations: list[Violation] = []
    examined = 0
    for message in healed:
        for process in range(running.bit_length()):
            if not message.destinations & running & 1 << process:
                continue
            examined += 1
            at_ns = delivered_ns.get((process, message.source, message.number))
            took = "never" if at_ns is None else f"{at_ns - message.sent_ns} ns after its send"
            if at_ns is None or at_ns - message.sent_ns > bound_ns:
                violations.append(
                    Violation(
                        check=DELIVERED_AFTER_HEALING,
                        process=process,
                        position=-1,
                        source=message.source,
                        number=message.number,
                        why=(
                            f"message {message.number} of process {message.source}, sent after "
                            f"all faults, was delivered {took}; the bound is {bound_ns} ns"
                        ),
                    )
                )
    return conclude(DELIVERED_AFTER_HEALING, examined, violations)
