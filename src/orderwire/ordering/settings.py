"""What the members of one ordering domain have agreed on."""

import msgspec

from orderwire.kernel import GROUP_SIZE_MAX, Destinations, Instant, LocalProtocolError, ms, us

TAG_BYTES_LEAST = 8
"""Smallest `tag_bytes_max`: a tag takes at most this much with everything cut."""


class OrderingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one ordering domain: the same at every member.  Raises ValueError."""

    members: int
    """Number of processes, ids 0 … members-1."""
    lifetime_ns: int | None = None
    """Δ: how long after its stamp a message may still be delivered; None = for ever."""
    epsilon_ns: int = 0
    """ε: bound on the difference of any two members' clocks."""
    tick_ns: int = us(1)
    """Granule of stamps; shorter than the shortest gap between sends that lasts.  [S000:dec.2]"""
    future_guard_ns: int = ms(1_000)
    """A stamp further than ε plus this ahead of the local clock is refused."""
    waiting_messages_max: int = 65_536
    """How many messages may wait for others at one member; more are dropped as if lost."""
    send_empty_entries: bool = False
    """jang-delta: also send entries without destinations; they never change a delivery."""
    max_cb: int = 4
    """MAX_CB, algorithms with bounded tags: messages named per destination.  [S001:sec.3]"""
    floor_cap: int | None = None
    """bounded-jang: MAX_CB with floors, messages named per destination; None: any number."""
    tag_bytes_max: int | None = None
    """bounded-jang: longest encoded control information behind the head; None: no bound."""
    floor_held_target_permille: int | None = None
    """bounded-jang: how many of 1,000 messages a floor may hold before tags grow again.

    None: all of `tag_bytes_max` may be used.
    """
    gap_patience_ns: int = ms(120_000)
    """fifo without lifetime: how long to wait for a copy of which the link says nothing.

    Longer than a link repairs anything: what it brings after all would be dropped as late.
    """
    quiet_until_ns: int = 0
    """A restarted member must not multicast before this: its start plus Δ plus ε."""
    first_number: int = 0
    """Number of the first message sent; a restarted member goes on behind its old ones."""

    def __post_init__(self) -> None:
        if not 1 <= self.members <= GROUP_SIZE_MAX:
            raise ValueError(f"members={self.members} is not within 1 … {GROUP_SIZE_MAX}")
        if self.tick_ns < 1:
            raise ValueError(f"tick_ns={self.tick_ns} is not positive")
        lifetime_ns = self.lifetime_ns
        if lifetime_ns is not None and (lifetime_ns < 1 or lifetime_ns % self.tick_ns):
            raise ValueError(
                f"lifetime_ns={lifetime_ns} is no positive multiple of tick_ns={self.tick_ns}"
            )
        for name in ("epsilon_ns", "future_guard_ns", "quiet_until_ns", "first_number"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is negative")
        if self.floor_cap is not None and self.floor_cap < 0:
            raise ValueError(f"floor_cap={self.floor_cap} is negative")
        if self.tag_bytes_max is not None and self.tag_bytes_max < TAG_BYTES_LEAST:
            raise ValueError(
                f"tag_bytes_max={self.tag_bytes_max} is below {TAG_BYTES_LEAST}, which a tag takes"
                " with everything cut"
            )
        target = self.floor_held_target_permille
        if target is not None and (self.tag_bytes_max is None or not 0 <= target <= 1_000):
            raise ValueError(
                f"floor_held_target_permille={target} is not within 0 … 1,000, or there is no"
                " tag_bytes_max to steer within"
            )
        for name in ("max_cb", "waiting_messages_max", "gap_patience_ns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is not positive")

    def refuse_destinations(self, destinations: Destinations) -> LocalProtocolError:
        """Say what is wrong with the destination set of a command."""
        if destinations == 0:
            return LocalProtocolError("a multicast needs at least one destination, got none")
        return LocalProtocolError(
            f"destinations {destinations:#x} name a process outside 0 … {self.members - 1}"
        )

    def require_lifetime(self, algorithm: str) -> None:
        """Raise ValueError when messages live for ever, which this algorithm cannot bear."""
        if self.lifetime_ns is None:
            raise ValueError(f"{algorithm} needs a lifetime, got lifetime_ns=None")

    def require_common_lifetime(self, algorithm: str, lifetime_ns: int | None) -> None:
        """Raise LocalProtocolError when a message is to have another lifetime than the others."""
        if lifetime_ns is not None and lifetime_ns != self.lifetime_ns:
            raise LocalProtocolError(
                f"{algorithm} gives all messages lifetime_ns={self.lifetime_ns}, "
                f"got {lifetime_ns} for one"
            )

    def refuse_quiet(self, now: Instant) -> LocalProtocolError:
        """Say that a restarted member must not multicast yet."""
        return LocalProtocolError(
            f"restarted member must not multicast before {self.quiet_until_ns} ns, it is {now} ns"
        )
