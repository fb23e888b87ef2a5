"""How a member of a totally ordered group takes part.  [S003]"""

import msgspec

from orderwire.aio.total_member import PackLimits
from orderwire.aio.total_port import Deaf
from orderwire.aio.total_relay import (
    refuse_datagram_bytes,
    refuse_multicast_interface,
    refuse_receive_bytes,
)
from orderwire.kernel import NS_PER_MS, NS_PER_S, LocalProtocolError
from orderwire.ordering.total.settings import Delivery

HEARTBEAT_MAX_NS = 100 * NS_PER_MS
"""Who waits for others asks them this seldom at last; nobody is suspected sooner."""
COUNT_MAX = 1 << 24
_DURATION_MAX_NS = 86_400 * NS_PER_S


class TotalGroupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a member takes part; the same at every member, but for what says otherwise.

    Raises LocalProtocolError.
    """

    delivery: Delivery = Delivery.PREACK
    """PREACK: every destination has the message; ACK: they all know that of each other, too."""
    window: int = 64
    """Packs of its own that a member may have under way."""
    buffers: int = 1_024
    """Packs that may wait at a member, those included that the application has not read."""
    pack_bytes: int = 4_096
    """What is written meanwhile to the same destinations travels together, up to this size."""
    queue_messages_max: int = 4_096
    """Messages that wait for the window before `write` does."""
    receive_bytes: int | None = None
    """SO_RCVBUF, at this member; None: as much as the kernel gives."""
    datagram_bytes_max: int | None = None
    """None: 8,192 on this machine, else what the path takes unfragmented."""
    repeats: bool = True
    """Whether each datagram carries the messages of the one before once more."""
    multicast_interface: str = "127.0.0.1"
    """Address of this member's interface, where the relay sends multicasts."""
    outages: tuple[Deaf, ...] = ()
    """When this member is to be deaf, for tests."""
    fail_ns: int = 2 * NS_PER_S
    """A member that was asked for so long without an answer is suspected."""
    linger_ns: int = 500 * NS_PER_MS
    """Who leaves goes on answering the others until nothing has come for so long."""
    insecure: bool = False
    """Whether datagrams may go beyond this machine: nothing encrypts or authenticates them."""

    def __post_init__(self) -> None:
        if not isinstance(self.delivery, Delivery):
            raise LocalProtocolError(
                f"delivery={self.delivery!r} must be Delivery.PREACK or Delivery.ACK"
            )
        for name, least, most in (
            ("window", 1, COUNT_MAX),
            ("buffers", 1, COUNT_MAX),
            ("pack_bytes", 1, PackLimits().message_bytes_max),
            ("queue_messages_max", 1, COUNT_MAX),
            ("fail_ns", HEARTBEAT_MAX_NS, _DURATION_MAX_NS),
            ("linger_ns", 0, _DURATION_MAX_NS),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise LocalProtocolError(
                    f"{name}={value!r} must be a whole number from {least} to {most}"
                )
        refuse_datagram_bytes(self.datagram_bytes_max)
        refuse_receive_bytes(self.receive_bytes)
        refuse_multicast_interface(self.multicast_interface)
        if not isinstance(self.outages, tuple) or not all(
            isinstance(outage, Deaf) for outage in self.outages
        ):
            raise LocalProtocolError(f"outages={self.outages!r} must be a tuple of Deaf")
