"""How discovery uses the network: every queue, wait and retry has its limit here."""

import msgspec

from orderwire.discovery.messages import MESSAGE_BYTES_MAX
from orderwire.discovery.settings import MEMBERS_MAX
from orderwire.kernel import NS_PER_MS, NS_PER_S


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How discovery uses the network.  Times are nanoseconds."""

    connect_ns: int = 3 * NS_PER_S
    """An address whose kernel has not answered by then is unreachable."""
    attempt_ns: int = 100 * NS_PER_MS
    """Without an answer for so long, a second attempt starts beside the first, a third after twice
    as long again."""
    attempts_max: int = 3
    half_open_max: int = 128
    """Attempts under way, to all addresses."""
    dialling_max: int = MEMBERS_MAX
    """Addresses that wait for room among these; a further one is unreachable."""
    hello_ns: int = 10 * NS_PER_S
    """A connection that has not said who it is by then is closed."""
    frame_ns: int = 10 * NS_PER_S
    """How long one message may take to arrive, beside its length's share."""
    frame_bytes_per_s_min: int = 16 << 10
    """Slowest arrival of a long message."""
    stuck_ns: int = 10 * NS_PER_S
    """A peer that takes nothing of what waits for so long is unreachable."""
    silence_ns: int = 10 * NS_PER_S
    """A host that does not answer for so long is unreachable: TCP keepalive, user timeout."""
    idle_ns: int = 30 * NS_PER_S
    """A connection without messages for so long is closed. [FDP/1 R18]"""
    close_ns: int = 2 * NS_PER_S
    """How long closing waits for what was posted to be written."""
    inbound_max: int = 4_096
    """Connections that others have opened."""
    unknown_max: int = 1_024
    """Those of them that have not said who they are; the oldest makes room, once it had time to."""
    waiting_bytes_max: int = 32 << 20
    """Bytes of messages that wait for one address; the oldest are dropped."""
    waiting_total_bytes_max: int = 128 << 20
    """Bytes of messages that wait for all addresses."""
    held_bytes_max: int = 64 << 20
    """Bytes received of messages that are not whole."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    same_host: bool = True
    """Take a hello only from the host that it names; not between hosts behind translated
    addresses."""


def seconds(value_ns: int) -> float:
    """Return nanoseconds as the loop's seconds."""
    return value_ns / NS_PER_S
