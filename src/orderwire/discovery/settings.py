"""What a discovery participant and the bootstrap server can be told."""

import msgspec

from orderwire.discovery.ring import RangePolicy
from orderwire.kernel import NS_PER_MS, NS_PER_S

ID_SPACE_MAX = 1 << 64
EARLY_MESSAGES_MAX = 512
"""Messages kept for a participant that has no id yet. [FDP/1 R4]"""
EARLY_BYTES_MAX = 64 << 20
"""Bytes of them, at most."""
SMALL_ID_SPACE = 4096
"""Up to this size every id's last record is kept for ever. [FDP/1 R13]"""
DUPLICATES_MAX = 16_384
"""Broadcasts whose range is remembered, the oldest forgotten first. [FDP/1 R10]"""
DELTAS_MAX = 16
"""Longest chain of changes kept behind a full MAP. [S002 spec 5]"""
MAP_BYTES_MAX = 9 << 20
"""Longest MAP with the changes behind it, and longest change, of oneself and of others."""
CARRIED_BYTES_MAX = 8 << 20
"""Most bytes of MAPs in one message, beside the first; the others are asked for again."""
LISTED_BYTES_MAX = 8 << 20
"""Most bytes of headers or contacts in one message; anti-entropy tells of the others."""
RANGE_BYTES_MAX = 4 << 20
"""Most bytes of members in one copy of a JOIN: its MAP must fit the message, too. [FDP/1 R6]"""
MEMBERS_MAX = 65_536
"""Most participants in one domain; further ones are dropped and counted."""
PENDING_MAX = 16_384
"""Most relayed copies whose acknowledgements are awaited."""
RECENT_MAX = 4_096
"""Most copies without acknowledgement that can still be rerouted."""
PATIENCE_NS_MAX = 60 * NS_PER_S
"""Longest that a deadline for an acknowledgement grows by what is outstanding. [FDP/1 R18]"""


class Mechanisms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What FDP/1 adds to the printed protocol; each can be switched off to show what it is for.

    Only the simulator does that: every one of them off is the literal protocol, whose views stay
    wrong for ever when joins overlap. [S002:dec.1]
    """

    members: bool = True
    """The server's full list, explicit members in JOIN, the gap, pulls by the joiner. [R2 R6 R9]"""
    early: bool = True
    """Messages before the id are kept. [R4]"""
    versions: bool = True
    """Incarnations, versions and heartbeat counters decide what is newer. [R11]"""
    arq: bool = True
    """Unanswered JOINs and LEAVEs are sent again. [R14]"""
    reroute: bool = True
    """The range of a silent target goes to the next known member. [R14]"""
    heartbeats: bool = True
    detect: bool = True
    """Entries without evidence expire. [R13]"""
    pull: bool = True
    """A newer version seen in a header is fetched. [R12]"""
    ae: bool = True
    """Anti-entropy. [R15]"""
    probe: bool = True
    """Anti-entropy tries expired participants now and then. [R15]"""
    server_sync: bool = True
    """Leases are renewed, and what the server lists is met. [R16]"""
    ages: bool = True
    """Evidence carries its age. [D11]"""


LITERAL = Mechanisms(
    members=False,
    early=False,
    versions=False,
    arq=False,
    reroute=False,
    detect=False,
    pull=False,
    ae=False,
    probe=False,
    server_sync=False,
    ages=False,
)
"""What the protocol has as printed: take `RangePolicy.SUCC` with it."""


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times and choices of one participant.  All participants of a domain use the same.

    Times are nanoseconds; defaults are those of the specification (FDP/1).
    """

    heartbeat_min_ns: int = NS_PER_S
    heartbeat_max_ns: int = 1_500 * NS_PER_MS
    """A heartbeat's period is drawn from these bounds; an UPDATE starts it anew."""
    fail_ns: int = 6 * NS_PER_S
    """An entry without newer evidence for this long expires."""
    sync_min_ns: int = 500 * NS_PER_MS
    sync_max_ns: int = NS_PER_S
    """Period of anti-entropy; a tenth of it after joining and on news."""
    lease_ns: int = 9 * NS_PER_S
    """An id is free again when its holder has not renewed it for this long."""
    ack_ns: int = NS_PER_S
    """Base of the deadline for an acknowledgement."""
    rate_bytes_per_s: int = 1_250_000
    """Rate assumed for what is outstanding, until acknowledgements have measured it."""
    sends_max: int = 2
    """Unanswered sends after which a target is suspected."""
    pull_ns: int = 50 * NS_PER_MS
    """How long the joiner waits for its contacts' MAPs before it asks them."""
    ask_ns: int = NS_PER_S
    """A MAP is not asked for again within this time."""
    leave_ns: int = 2 * NS_PER_S
    """A leaver waits this long for acknowledgements, at most."""
    request_ns: int = NS_PER_S
    """An unanswered request for an id is sent again after this long."""
    gossip_heartbeats: bool = False
    """Heartbeat counters travel with anti-entropy alone; take a `fail_ns` of 9 s."""
    both_ways_bytes_max: int = 1_024
    """BiFDP serves broadcasts up to this size, FDP larger ones; 0 is FDP, -1 is BiFDP always."""
    policy: RangePolicy = RangePolicy.RANK
    maps_bytes_max: int = 512 << 20
    """Others' MAPs that are held together; further ones are asked for once there is room."""
    pending_bytes_max: int = 32 << 20
    """Relayed JOINs and LEAVEs that are held to be sent again; others are sent once."""
    recent_bytes_max: int = 8 << 20
    """UPDATEs that are held to be rerouted; the oldest are forgotten first."""
    mechanisms: Mechanisms = Mechanisms()

    def __post_init__(self) -> None:
        for low, high in (
            ("heartbeat_min_ns", "heartbeat_max_ns"),
            ("sync_min_ns", "sync_max_ns"),
        ):
            if not 0 < getattr(self, low) <= getattr(self, high):
                raise ValueError(
                    f"{low}={getattr(self, low)} and {high}={getattr(self, high)}:"
                    " both must be positive and the first not above the second"
                )
        for name in (
            "fail_ns",
            "lease_ns",
            "ack_ns",
            "rate_bytes_per_s",
            "sends_max",
            "pull_ns",
            "ask_ns",
            "leave_ns",
            "request_ns",
            "maps_bytes_max",
            "pending_bytes_max",
            "recent_bytes_max",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if self.both_ways_bytes_max < -1:
            raise ValueError(f"both_ways_bytes_max={self.both_ways_bytes_max} must be -1 or more")


FEW_MESSAGES = DiscoverySettings(
    gossip_heartbeats=True,
    fail_ns=9 * NS_PER_S,
    sync_min_ns=600 * NS_PER_MS,
    sync_max_ns=1_200 * NS_PER_MS,
)
"""At most 3 messages a second and participant when nothing happens, leases and their answers
included, whatever the number: what live participants use.  Decision 0020."""


class BootstrapSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the bootstrap server issues and for how long."""

    id_space: int = 256
    """Ids are 0 … id_space-1: so many participants, at most."""
    lease_ns: int = 9 * NS_PER_S
    recovery_ns: int | None = None
    """How long a server that lost its table issues no ids; None is one lease. [FDP/1 R1]"""

    def __post_init__(self) -> None:
        if not 1 <= self.id_space <= ID_SPACE_MAX:
            raise ValueError(f"id_space={self.id_space} must be from 1 to 2**64")
        if self.lease_ns <= 0:
            raise ValueError(f"lease_ns={self.lease_ns} must be positive")
        if self.recovery_ns is not None and self.recovery_ns < 0:
            raise ValueError(f"recovery_ns={self.recovery_ns} must not be negative")
