"""What the demo's processes must agree on."""

import socket
from contextlib import ExitStack

import msgspec

from orderwire.aio.impairment import Impairment
from orderwire.cli.demo.script import MEMBER_NAMES

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

IMPAIRMENT = Impairment(delay_ms=4, jitter_mean_ms=12, loss_ratio=0.02, duplicate_ratio=0.01)
"""What happens to every datagram at the socket boundary: heavy reordering, some loss."""


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one member's process is told at its start."""

    run: str
    me: int
    addresses: dict[str, str]
    """Member name → host:port, in the order of member ids."""
    brokers: str
    text_path: str | None
    impairment: Impairment


class AnalystSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the Spark process is told at its start."""

    run: str
    members: list[str]
    brokers: str
    folder: str
    text_path: str | None


def free_addresses(count: int) -> dict[str, str]:
    """Return this many loopback addresses whose port is free for TCP and UDP, by member name."""
    addresses: dict[str, str] = {}
    with ExitStack() as taken:
        while len(addresses) < count:
            stream = taken.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            stream.bind(("127.0.0.1", 0))
            port = stream.getsockname()[1]
            datagram = taken.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            try:
                datagram.bind(("127.0.0.1", port))
            except OSError:
                continue
            addresses[MEMBER_NAMES[len(addresses)]] = f"127.0.0.1:{port}"
    return addresses
