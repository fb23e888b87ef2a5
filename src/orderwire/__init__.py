"""Publish/subscribe in which order is a quality of service."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderwire.participant import (
        Backbone,
        Counters,
        Credentials,
        Delivery,
        DeltaCausal,
        Dropped,
        Fifo,
        ForeignPeer,
        GatewayState,
        Impairment,
        Installed,
        LocalProtocolError,
        MemberChange,
        Order,
        OrderwireError,
        Overflow,
        Participant,
        Peer,
        Published,
        Reader,
        ReaderCounters,
        Sample,
        SelectiveTotal,
        Topic,
        TotalGroup,
        TotalGroupSettings,
        TotalMessage,
        Trace,
        Unordered,
        Writer,
        Written,
        ZookeeperAccess,
    )

__all__ = [
    "Backbone",
    "Counters",
    "Credentials",
    "Delivery",
    "DeltaCausal",
    "Dropped",
    "Fifo",
    "ForeignPeer",
    "GatewayState",
    "Impairment",
    "Installed",
    "LocalProtocolError",
    "MemberChange",
    "Order",
    "OrderwireError",
    "Overflow",
    "Participant",
    "Peer",
    "Published",
    "Reader",
    "ReaderCounters",
    "Sample",
    "SelectiveTotal",
    "Topic",
    "TotalGroup",
    "TotalGroupSettings",
    "TotalMessage",
    "Trace",
    "Unordered",
    "Writer",
    "Written",
    "ZookeeperAccess",
]


def __getattr__(name: str) -> Any:
    """Import the API when it is first used: programs that need only a part stay quick."""
    if name in __all__:
        from orderwire import participant

        return getattr(participant, name)
    raise AttributeError(f"module 'orderwire' has no attribute {name!r}")
