"""Settings of the Simple Discovery Protocol: the paper's, a modern one, those of products.

The products' numbers are from their public documentation; what it does not state is as in MODERN.
"""

from typing import Literal

import msgspec

from orderwire.discovery.sdp_messages import HEARTBEAT_BYTES
from orderwire.kernel import ms

ACKNACK_NUMBERS_MAX = 256
"""Most numbers that RTPS lets one set hold."""


class SdpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SPDP and SEDP.  [S002:sec.2]"""

    announcements: int = 6
    """How often a participant announces itself at its start …"""
    announcement_spacing_ns: int = ms(100)
    announcement_period_ns: int = ms(30_000)
    """… and how far apart afterwards."""
    announcement_jitter_ns: int = ms(1)
    """The first one waits for a random part of this: hosts are never in step to the microsecond.
    In lock-step all send to one peer after the other, and its port drops a third of it.
    [S002:dec.3]"""
    lease_ns: int = ms(100_000)
    """A participant that was not announced for so long is gone."""
    reply: Literal["none", "at once", "jittered"] = "jittered"
    """Whether a participant that meets a new one announces itself again, to all: a newcomer does
    not know those whose first announcements came before it."""
    reply_jitter_ns: int = ms(100)
    """A jittered answer waits for a random part of this, and serves all that were met meanwhile."""
    replies: int = 3
    """How many jittered answers follow the newest meeting, since any may be lost."""
    repair_ns: int = ms(1_000)
    """P: how often a writer sends a HEARTBEAT to peers that lack data; the first time between
    one and two P after the start.  [S002:dec.4]"""
    acknowledge_each: bool = True
    """Acknowledge every datum, as the paper has it; otherwise HEARTBEATs only."""
    nack_numbers_max: int | None = None
    """Most numbers of one ACKNACK; None names all that are missing."""
    follow_up: bool = False
    """A HEARTBEAT follows the data at once."""
    heartbeat_response_ns: int = 0
    """How long a reader waits before it answers a HEARTBEAT."""
    nack_response_ns: int = 0
    """How long a writer waits before it repairs."""
    blocking: bool = False
    """The sender waits for room in its own queue instead of losing what does not fit."""
    endpoints_per_datagram: int = 1
    participant_bytes: int = 200
    endpoint_bytes: int = 130
    """Payload of one endpoint in a datagram of its own: 196 bytes on the wire."""
    heartbeat_bytes: int = 130
    """Payload of a HEARTBEAT, in the paper's network as large as data.  It matters when one
    follows the data: what is smaller still finds room in a full queue.  [S002:dec.5]"""


PAPER = SdpSettings()
"""What reproduces the published times: all at once into a queue that overflows, repair each
second.  [S002:dec.2]"""

MODERN = SdpSettings(
    acknowledge_each=False,
    nack_numbers_max=ACKNACK_NUMBERS_MAX,
    follow_up=True,
    blocking=True,
    endpoint_bytes=250,
    heartbeat_bytes=HEARTBEAT_BYTES,
)
"""What a present implementation does.  [S002:dec.6]"""

VENDORS = {
    "rtps": msgspec.structs.replace(
        MODERN, heartbeat_response_ns=ms(500), nack_response_ns=ms(200)
    ),
    "fastdds": msgspec.structs.replace(
        MODERN,
        announcements=5,
        announcement_period_ns=ms(3_000),
        lease_ns=ms(20_000),
        repair_ns=ms(3_000),
    ),
    "cyclonedds": msgspec.structs.replace(MODERN, announcements=1, repair_ns=ms(100)),
    "connext": msgspec.structs.replace(
        MODERN,
        announcements=5,
        announcement_spacing_ns=ms(1_000),
        repair_ns=ms(3_000),
    ),
    "connext-ros2": msgspec.structs.replace(
        MODERN,
        announcements=5,
        announcement_spacing_ns=ms(1_000),
        repair_ns=ms(100),
    ),
}
"""Named defaults: the RTPS specification's, and those of products."""
