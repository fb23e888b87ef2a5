"""What the members of one ordering domain have agreed on."""

import msgspec

from orderwire.kernel import GROUP_SIZE_MAX, Destinations, Instant, LocalProtocolError, ms, us


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
    gap_patience_ns: int = ms(5_000)
    """fifo without lifetime: how long to wait for a copy of which the link says nothing."""
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

    def refuse_quiet(self, now: Instant) -> LocalProtocolError:
        """Say that a restarted member must not multicast yet."""
        return LocalProtocolError(
            f"restarted member must not multicast before {self.quiet_until_ns} ns, it is {now} ns"
        )
