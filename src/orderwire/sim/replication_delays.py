"""How long each kind of step of a simulated partition takes, and where it happens.  [S004:5]"""

from orderwire.kernel import NS_PER_MS, NS_PER_US

DELAYS_NS: dict[str, tuple[int, int]] = {
    "deliver": (50 * NS_PER_US, 800 * NS_PER_US),
    "zk": (200 * NS_PER_US, 4 * NS_PER_MS),
    "read": (100 * NS_PER_US, 5 * NS_PER_MS),
    "view": (100 * NS_PER_US, 2 * NS_PER_MS),
    "sync_end_seen": (100 * NS_PER_US, 5 * NS_PER_MS),
    "locked": (100 * NS_PER_US, 5 * NS_PER_MS),
    "begin": (1 * NS_PER_MS, 10 * NS_PER_MS),
    "session_end": (1 * NS_PER_MS, 300 * NS_PER_MS),
    "told_lost": (1 * NS_PER_MS, 200 * NS_PER_MS),
    "connect": (1 * NS_PER_MS, 10 * NS_PER_MS),
    "up": (20 * NS_PER_US, 500 * NS_PER_US),
    "down": (20 * NS_PER_US, 5 * NS_PER_MS),
    "sync_begin": (10 * NS_PER_US, 50 * NS_PER_US),
    "sync_run": (100 * NS_PER_US, 3 * NS_PER_MS),
    "sync_end": (10 * NS_PER_US, 200 * NS_PER_US),
    "send": (200 * NS_PER_US, 8 * NS_PER_MS),
    "answer": (50 * NS_PER_US, 1 * NS_PER_MS),
    "lose": (100 * NS_PER_US, 5 * NS_PER_MS),
    "start": (5 * NS_PER_MS, 400 * NS_PER_MS),
    "reopen": (100 * NS_PER_US, 10 * NS_PER_MS),
}
"""Least and largest delay of each kind of step; one in fifty takes ten times as long."""
AT_BROKER = frozenset(
    {"view", "read", "sync_end_seen", "locked", "up", "down", "sync_begin", "sync_run"}
    | {"sync_end", "wake", "told_lost", "begin", "reopen"}
)
