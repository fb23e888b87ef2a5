"""The overhead equations of active-active replication, and what may be gained at all.  [S004]

Symbols: n replicas, m messages of a period, r the cost of sending one, s that of storing one; a how
many replicas a message is sent to and stored by in active-standby, b how often a message travels in
a synchronisation.  All costs are times, in whatever unit r and s have.
"""

from math import ceil

from orderwire.kernel.errors import LocalProtocolError


def _check(n: int, m: int) -> None:
    if n < 2:
        raise LocalProtocolError(f"n={n} replicas; replication needs at least 2")
    if m < 1:
        raise LocalProtocolError(f"m={m} messages; expected at least 1")


def active_standby_cost(n: int, m: int, r: float, s: float, *, a: int = 1) -> float:
    """Time that active-standby takes for m messages.  [S004:eq.1]"""
    _check(n, m)
    return a * m * (2 * r + s)


def active_active_cost(n: int, m: int, r: float, s: float, *, b: int = 1) -> float:
    """Time that active-active takes to synchronise m messages.  [S004:eq.2]

    Of m messages a replica lacks k = ⌈m (n − 1) / n⌉.
    """
    _check(n, m)
    k = ceil(m * (n - 1) / n)
    return (n + 1 + k * b) * r + k * s


def relay_cost(n: int, m: int, r: float) -> float:
    """What (2) leaves out: (n − 1) / n of all messages, and of their answers, pass the original."""
    _check(n, m)
    return 2 * r * m * (n - 1) / n


def printed_loss_at_best(n: int, m: int, r: float, s: float) -> float:
    """T_AA − T_AS for a = b = 1 as it is printed; it does not follow from (1) and (2)."""
    _check(n, m)
    return ((n - 1) / n + n) * r - ceil(m / n) * s


def loss_at_best(n: int, m: int, r: float, s: float) -> float:
    """T_AA − T_AS for a = b = 1, ⌈⌉ left out."""
    _check(n, m)
    return (n + 1) * (1 - m / n) * r - m / n * s


def printed_gain_at_worst(n: int, m: int, r: float, s: float) -> float:
    """T_AS − T_AA for a = n − 1, b = 2 as it is printed: without m, and a factor n − 1 short."""
    _check(n, m)
    return (n - 2 / n - 3) * r + (n - 1) / n * s


def gain_at_worst(n: int, m: int, r: float, s: float) -> float:
    """T_AS − T_AA for a = n − 1, b = 2, ⌈⌉ left out."""
    _check(n, m)
    squared = (n - 1) ** 2 / n
    return (2 * m * squared - (n + 1)) * r + m * squared * s


def speed_up(n: int, sigma: float) -> float:
    """The most that n replicas with a disk each can gain: every one of them stores every message.

    `sigma` is what a message costs in a synchronised batch, as a share of what it costs by itself.
    """
    _check(n, 1)
    if not sigma >= 0:
        raise LocalProtocolError(f"sigma={sigma}; expected a share of at least 0")
    return n / (1 + (n - 1) * sigma)


def speed_up_with_own_share(n: int, sigma: float) -> float:
    """`speed_up` where a replica's own share is stored a second time, in the round's batch.

    Ours do so: a journal has the share as it came, the log has all messages in order.
    """
    return 1 / (1 / speed_up(n, sigma) + sigma / n)


def messages_through(n: int, *, spread: bool, relayed: bool) -> float:
    """How often the busiest broker's network carries a message of a producer, in or out.

    `spread`: each replica takes its share of them; `relayed`: from the original, not from clients.
    Neither: one broker takes all and sends each to the others.
    """
    _check(n, 1)
    if not spread:
        return float(n)
    return 1 + (3 if relayed else 1) * (n - 1) / n


def sigma_of(n: int, gain: float) -> float:
    """The `sigma` that explains this gain of n replicas: `speed_up` turned round."""
    _check(n, 1)
    if not 0 < gain <= n:
        raise LocalProtocolError(f"gain={gain}; {n} replicas gain more than 0 and at most {n}")
    return (n / gain - 1) / (n - 1)


TABLE_5 = {5: (1.098, 1.133), 10: (1.191, 1.206), 20: (1.320, 1.346)}
"""Printed times of active-standby over active-active: producers and consumers, by their number.
[S004:tab.5]"""


def claimed_end_to_end() -> dict[int, float]:
    """What the text claims of Table 5 (1.11 to 1.33): the means of its two ratios."""
    return {users: sum(ratios) / 2 for users, ratios in TABLE_5.items()}
