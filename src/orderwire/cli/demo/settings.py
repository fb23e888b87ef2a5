"""What the demo's processes must agree on."""

import msgspec

from orderwire.aio.impairment import Impairment
from orderwire.discovery.settings import FEW_MESSAGES
from orderwire.kernel import NS_PER_S, ms
from orderwire.participant import Trace
from orderwire.participant.discovery_trace import DISCOVERY_RUN, discovery_run

LIFETIME_MS = 250
"""Δ of both groups: S000's video conference.  [S000:sec.2.2]"""
FRAME_INTERVAL_MS = 20
FRAME_BYTES = 160
"""A voice frame: 20 ms of 64 kbit/s."""
MESSAGE_BYTES = 100
"""Size of the durable text's messages: S004's workload."""
PATIENCE_MS = 2 * LIFETIME_MS
"""How long a speaker waits for the utterance before its own."""

TIMER_SLACK_MS = LIFETIME_MS
"""Members share their processors with Spark: one may be run that late."""

TRACE_TOPIC = "conference.trace"
DELIVERY_TOPIC = "conference.deliveries"
TEXT_TOPIC = "conference.text"
ORDERED, CONTROL = "ordered", "control"
DISCOVERY = DISCOVERY_RUN
"""Runs of the trace: two ordering groups, and how their members found each other."""
DOMAIN = "conference"
"""Of discovery."""
GUEST = "guest"
"""Is there, is killed, comes back and listens."""

FLOOR = "floor"
"""Domain of the traders' discovery."""
BOOK = "book"
"""Their group with one order, and the run of its trace."""
INSTRUMENTS = ("book/eu/gold", "book/eu/oil", "book/us/gold", "book/us/oil")
TRADERS = {
    "Mill": "book/**",
    "Ricardo": "book/**",
    "Sraffa": "book/eu/*",
    "Say": "book/*/gold",
}
"""Who keeps which part of the book; all write to all of it."""
BOOK_UPDATES = 150
"""Of each instrument, by each trader."""
BOOK_INTERVAL_MS = 20
RELAY_SESSION_MS = 1_500
"""How long ZooKeeper waits for a silent relay; one that was busy stands in the row again."""
TRADER_SESSION_MS = 15_000
"""None of them is killed, and Spark's start keeps the machine busy."""

IMPAIRMENT = Impairment(delay_ms=4, jitter_mean_ms=12, loss_ratio=0.02, duplicate_ratio=0.01)
"""What happens to every datagram at the socket boundary: heavy reordering, some loss."""


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one member's process is told at its start."""

    run: str
    me: int
    members: list[str]
    """Names, in the order of member ids."""
    bootstrap: str
    """Where the domain's server listens."""
    brokers: str
    text_path: str | None
    impairment: Impairment


class GuestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the guest's process is told at its start."""

    name: str
    me: int
    """Its id, behind the members'."""
    bootstrap: str
    listen: str
    """Any port in its first life, the same address in the next one."""
    listens: bool
    """Whether it hears the others: in its second life."""
    run: str
    brokers: str
    impairment: Impairment


class TraderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a trader's process is told at its start."""

    name: str
    reads: str
    traders: int
    readers: dict[str, int]
    """How many read each instrument."""
    run: str
    trace: str
    zookeeper: str


class Update(msgspec.Struct, frozen=True, array_like=True):
    """A price that a trader was handed."""

    time_ns: int
    """When, since the Unix epoch."""
    instrument: str
    source: str
    number: int
    """The source's own number of its message."""


class AnalystSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the Spark process is told at its start."""

    run: str
    members: list[str]
    brokers: str
    folder: str
    text_path: str | None


def settle_s() -> float:
    """Return how long after the last change the audit of discovery may judge views, in seconds."""
    promise = discovery_run(FEW_MESSAGES, timer_slack_ns=ms(TIMER_SLACK_MS))
    return promise.settle_ns / NS_PER_S


def trace_of(run: str, brokers: str) -> Trace:
    """Return where a member's events go."""
    return Trace(
        run=run,
        brokers=brokers,
        topic=TRACE_TOPIC,
        flush_interval_ms=500,
        timer_slack_ms=TIMER_SLACK_MS,
    )
