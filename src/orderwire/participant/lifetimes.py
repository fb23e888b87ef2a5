"""Lifetimes of single messages: what a writer may ask for, and what of it is for handing over.

A message that could not wait any longer is delivered at its own deadline.  At that very instant no
reader could hand it over in time, so the order gets a little less than the writer asked for.
"""

from orderwire.kernel import NS_PER_MS, LocalProtocolError
from orderwire.ordering.catalog import algorithm
from orderwire.participant.qos import HANDING_OVER_NS_MAX, TICK_NS, Order, whole_ticks

_SHARE = 5
"""A fifth of a lifetime is for handing over, at most HANDING_OVER_NS_MAX."""
_MOST = HANDING_OVER_NS_MAX // TICK_NS


def own_lifetime_ns(order: Order, lifetime_ms: float) -> int | None:
    """Return a message's own lifetime, in nanoseconds; None when it is the domain's.

    Raises LocalProtocolError when the order has one for all, and when it is out of bounds.
    """
    longest_ns = order.lifetime_ns
    if longest_ns is None or not algorithm(order.algorithm).own_lifetimes:
        raise LocalProtocolError(
            f"lifetime_ms={lifetime_ms!r} has no effect: all messages of {order.algorithm} live as"
            " long, as the order says. Published(algorithm='rodrigues-deadline', lifetime_ms=…)"
            " gives messages lifetimes of their own"
        )
    lifetime_ns = whole_ticks("lifetime_ms", lifetime_ms)
    if lifetime_ns > longest_ns:
        raise LocalProtocolError(
            f"lifetime_ms={lifetime_ms!r} of a message must be at most"
            f" {longest_ns / NS_PER_MS:g}, its order's lifetime_ms"
        )
    return None if lifetime_ns == longest_ns else lifetime_ns


def delivered_within_ns(lifetime_ns: int) -> int:
    """Return for how long of its lifetime a message may be delivered to readers.

    A lifetime below a tenth of a second may count as a microsecond less.
    """
    ticks = lifetime_ns // TICK_NS
    if ticks // _SHARE >= _MOST:
        return (ticks - _MOST) * TICK_NS
    if ticks % _SHARE == _SHARE - 1:
        ticks -= 1  # or it could not be told from the next one
    return (ticks - ticks // _SHARE) * TICK_NS


def handed_over_within_ns(delivered_ns: int) -> int:
    """Undo `delivered_within_ns`: how long after its stamp a message may be handed over."""
    ticks = delivered_ns // TICK_NS
    return (ticks + min(_MOST, ticks // (_SHARE - 1))) * TICK_NS
