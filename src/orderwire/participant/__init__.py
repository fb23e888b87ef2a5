"""The public API, in DDS's words: participants write to topics and read them."""

from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.impairment import Impairment
from orderwire.aio.total_member import TotalMessage
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.kernel import LocalProtocolError, OrderwireError
from orderwire.ordering.total.pdu import Installed
from orderwire.ordering.total.settings import Delivery
from orderwire.participant.backbone import Backbone, GatewayState
from orderwire.participant.drops import Dropped
from orderwire.participant.participant import Participant
from orderwire.participant.peers import ForeignPeer, Peer
from orderwire.participant.qos import (
    DeltaCausal,
    Fifo,
    Order,
    Published,
    SelectiveTotal,
    Unordered,
)
from orderwire.participant.reader import Overflow, Reader
from orderwire.participant.samples import Counters, MemberChange, ReaderCounters, Sample, Written
from orderwire.participant.topics import Topic
from orderwire.participant.total_group import TotalGroup
from orderwire.participant.total_settings import TotalGroupSettings
from orderwire.participant.tracing import Trace
from orderwire.participant.writer import DATA_BYTES_MAX, Writer

__all__ = [
    "DATA_BYTES_MAX",
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
