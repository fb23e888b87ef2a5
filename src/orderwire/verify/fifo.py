"""Sender order: a process delivers the messages of one sender in the order they were sent."""

from orderwire.trace.events import Event
from orderwire.verify.history import History, Message
from orderwire.verify.verdict import Check, Violation, conclude

FIFO_ORDER = "fifo-order"


def check_fifo_order(history: History) -> Check:
    """One violation per delivery that follows a later message of the same sender."""
    violations: list[Violation] = []
    examined = 0
    for process, timeline in history.timelines.items():
        for at, (event, message) in enumerate(timeline.deliveries):
            examined += 1
            overtaken = _first_later(timeline.deliveries[:at], message)
            if overtaken is not None:
                other_event, other = overtaken
                violations.append(
                    Violation(
                        check=FIFO_ORDER,
                        process=process,
                        position=event.position,
                        source=message.source,
                        number=message.number,
                        other_source=other.source,
                        other_number=other.number,
                        other_position=other_event.position,
                        why=f"{message} was sent before {other}, which was delivered first",
                    )
                )
    return conclude(FIFO_ORDER, examined, violations, history.incomplete())


def _first_later(
    deliveries: list[tuple[Event, Message]], message: Message
) -> tuple[Event, Message] | None:
    """Return the first of these deliveries that is of a later message of the same sender."""
    for event, other in deliveries:
        if other.source == message.source and other.position > message.position:
            return event, other
    return None
