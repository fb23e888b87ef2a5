"""How much of a lifetime is for delivering to readers, and how much for handing over.

A message that could not wait any longer is delivered at its deadline: one with a lifetime of its
own, and every one of `fixed-delay`.  At that very instant no reader could hand it over in time, so
the ordering algorithm gets a little less than the writer asked for.
"""

from orderwire.kernel import NS_PER_MS

TICK_NS = 1_000
"""Granule of stamps and lifetimes: one microsecond.  [S000:dec.6]"""

HANDING_OVER_NS_MAX = 20 * NS_PER_MS
_SHARE = 5
"""A fifth of a lifetime is for handing over, at most HANDING_OVER_NS_MAX."""
_MOST = HANDING_OVER_NS_MAX // TICK_NS


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
