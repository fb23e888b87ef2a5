"""What a reader is asked for, and that its options go together."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from orderwire.kernel import LocalProtocolError
from orderwire.participant.qos import Order, SelectiveTotal
from orderwire.participant.reader import Overflow
from orderwire.participant.topics import Decode, Pattern, Topic


class Asked(NamedTuple):
    """Which topics, in which order, read how."""

    pattern: Pattern
    order: Order
    decode: Decode | None


def asked_for(pattern: Topic | str, order: Order | None, decode: Decode | None) -> Asked:
    """Return what `participant.reader(…)` is asked for.  Raises LocalProtocolError."""
    if isinstance(pattern, Topic):
        if order is not None or decode is not None:
            raise LocalProtocolError(
                f"reader of topic {pattern.name!r}: order= and decode= have no effect, they"
                " come from the topic"
            )
        return Asked(Pattern(pattern.name), pattern.order, pattern.decode)
    if not isinstance(order, Order):
        raise LocalProtocolError(
            f"reader({pattern!r}) needs order=…, the same as its writers' topics have:"
            " Unordered(), Fifo(), DeltaCausal(lifetime_ms=…), Published(algorithm=…) or"
            " SelectiveTotal()"
        )
    return Asked(Pattern(pattern), order, decode)


def check_options(
    callback: Callable[..., Any] | None,
    on_error: Callable[..., Any] | None,
    asked: Asked,
    overflow: Overflow | None,
    queue_samples_max: int,
    in_thread: bool,
) -> Overflow:
    """Refuse what has no effect or makes no sense; return what a full queue does.

    Raises LocalProtocolError.
    """
    if callback is None and (on_error is not None or in_thread):
        raise LocalProtocolError("on_error= and in_thread= have no effect without callback=")
    for what, function, takes in (
        ("callback", callback, "one sample"),
        ("on_error", on_error, "an error and a sample"),
        ("decode", asked.decode, "the data"),
    ):
        if function is not None and not callable(function):
            raise LocalProtocolError(f"{what}={function!r} must be a function of {takes}")
    total = isinstance(asked.order, SelectiveTotal)
    if overflow is None:
        overflow = Overflow.HOLD if total else Overflow.DROP_OLDEST
    if not isinstance(overflow, Overflow) or (overflow is Overflow.HOLD and not total):
        raise LocalProtocolError(
            f"overflow={overflow!r} must be Overflow.DROP_OLDEST or Overflow.DROP_NEWEST, or with"
            " SelectiveTotal() Overflow.HOLD"
        )
    if in_thread and asyncio.iscoroutinefunction(callback):
        raise LocalProtocolError("in_thread=True has no effect on a coroutine function")
    if not isinstance(queue_samples_max, int) or queue_samples_max < 1:
        raise LocalProtocolError(f"queue_samples_max={queue_samples_max!r} must be at least 1")
    return overflow
