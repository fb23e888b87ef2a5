"""What the members of one totally ordered group have agreed on."""

from enum import Enum

import msgspec

from orderwire.kernel import GROUP_SIZE_MAX, ms


class Delivery(Enum):
    """When ST hands a message to the application.  [S003:sec.3.3]"""

    ACK = "ack"
    """At acknowledgement, as the paper does: every destination knows that every other has it."""
    PREACK = "preack"
    """At pre-acknowledgement: every destination has it.  As safe, in half the time."""


class Stability(Enum):
    """Whose acceptance makes a PDU stable.  [S003:sec.3.3]"""

    DST = "dst"
    """That of its destinations."""
    ALL = "all"
    """That of all members: simpler, and waits for those whom the PDU does not concern."""


class TotalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one group: the same at every member.  Raises ValueError."""

    members: int
    """Number of processes of the first view, ids 0 … members-1."""
    delivery: Delivery = Delivery.ACK
    stability: Stability = Stability.DST
    window: int = 64
    """W: own messages that some destination has not accepted yet, at most.  [S003:sec.3.2]"""
    buffers: int = 4096
    """IBF: places for messages that wait here, as announced to the others."""
    headroom: int = 1
    """H of the flow condition.  Physically there are (1 + 1/H) · IBF places.  [S003:sec.3.2]"""
    pending_max: int = 65_536
    """Messages of the application that may wait for the window."""
    future_max: int = 65_536
    """PDUs of an epoch that is not complete here yet; more are dropped as if lost."""
    ack_delay_ns: int = ms(2)
    """T_ack: how long a due acknowledgement may wait for a message to ride on."""
    heartbeat_ns: int = ms(10)
    """T_hb: first interval of the polls while something is not settled, or told and not here."""
    heartbeat_max_ns: int = ms(200)
    """T_hb_max: the interval grows by half each time, up to this."""
    control_ns: int = ms(10)
    """T_ctl: how often a recovery's control PDU is repeated."""
    nak_ns: int = ms(10)
    """T_nak: how often empty places are asked for."""
    guard_ns: int = ms(5)
    """T_guard: a PDU is not repeated sooner than this after its last copy."""
    fail_ns: int | None = None
    """T_fail: a member asked for this long without a PDU of its is suspected; None: never."""

    def __post_init__(self) -> None:
        if not 1 <= self.members <= GROUP_SIZE_MAX:
            raise ValueError(f"members={self.members} is not within 1 … {GROUP_SIZE_MAX}")
        for name in (
            "window",
            "headroom",
            "pending_max",
            "future_max",
            "ack_delay_ns",
            "heartbeat_ns",
            "control_ns",
            "nak_ns",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is not positive")
        if self.guard_ns < 0:
            raise ValueError(f"guard_ns={self.guard_ns} is negative")
        if self.heartbeat_max_ns < self.heartbeat_ns:
            raise ValueError(
                f"heartbeat_max_ns={self.heartbeat_max_ns} is below"
                f" heartbeat_ns={self.heartbeat_ns}"
            )
        if self.fail_ns is not None and self.fail_ns < self.heartbeat_max_ns:
            raise ValueError(
                f"fail_ns={self.fail_ns} is below heartbeat_max_ns={self.heartbeat_max_ns}:"
                " a member could not be asked in that time"
            )
        least = self.headroom * self.members
        if self.buffers < least:
            raise ValueError(
                f"buffers={self.buffers} is below headroom · members = {least}: nobody could send"
            )
