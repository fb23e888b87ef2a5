"""Which domain a participant joins, and how."""

import msgspec

from orderwire.aio.addresses import PORT_MAX, resolved, split_address
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.discovery.settings import FEW_MESSAGES, DiscoverySettings
from orderwire.kernel import GROUP_SIZE_MAX, LocalProtocolError
from orderwire.participant.backbone import Backbone

GROUP_SIZE = 256
"""Members of a group that finds itself by seeds, at most; a bootstrap server says its own."""
JOIN_S = 30.0
"""How long joining a domain may take."""
LIVE_SETTINGS = FEW_MESSAGES
"""Few messages when nothing happens: a member that dies is off the list 9 s later, and no longer
written to as soon as its connection breaks."""


class DomainSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which domain to join, and how.  Raises LocalProtocolError on a contradiction."""

    domain: str
    bootstrap: str | None = None
    """`host:port` of the bootstrap server."""
    seeds: tuple[str, ...] = ()
    """`host:port` of members that are always there, in place of a server."""
    zookeeper: str | None = None
    """`host:port,…` of a ZooKeeper ensemble, maybe with a path, in place of a server."""
    zookeeper_access: ZookeeperAccess | None = None
    """TLS and user of that ensemble."""
    listen: str = "127.0.0.1:0"
    """Where discovery listens; data sockets are on the same host.  An IPv4 address."""
    advertise: str | None = None
    """Host, with or without a port, that others call where `listen` is none they can: `0.0.0.0`, or
    an address of a container.  They must see what we send come from that host."""
    data_port: int = 0
    """Of the data sockets, TCP and UDP; 0: any free one."""
    wish: int | None = None
    """The id that we would like of the server, if it is free."""
    credentials: Credentials | None = None
    insecure: bool = False
    group_size: int = GROUP_SIZE
    join_s: float = JOIN_S
    interest_only: bool = False
    """Endpoints are told to those alone who match one.  The same at all members."""
    gateway: tuple[Backbone, ...] = ()
    """Where we are ready to stand for our domain."""
    discovery: DiscoverySettings = LIVE_SETTINGS

    def __post_init__(self) -> None:
        if sum(map(bool, (self.bootstrap, self.seeds, self.zookeeper))) != 1:
            raise LocalProtocolError(
                f"domain {self.domain!r} needs bootstrap='host:port', seeds=['host:port', …] or"
                " zookeeper='host:port,…', one of the three"
            )
        if self.interest_only and self.gateway:
            raise LocalProtocolError(
                f"domain {self.domain!r} with interest_only=True has no gateways: they must know"
                " all endpoints of their domain"
            )
        if self.zookeeper_access is not None and self.zookeeper is None:
            raise LocalProtocolError("zookeeper_access= has no effect without zookeeper=")
        host, _ = split_address(self.listen)
        if ":" in host:
            raise LocalProtocolError(
                f"listen={self.listen!r}: data go over IPv4 alone, so participants listen on IPv4"
                " addresses"
            )
        if not 0 <= self.data_port <= PORT_MAX:
            raise LocalProtocolError(f"data_port={self.data_port} must be from 0 to {PORT_MAX}")
        if not 1 <= self.group_size <= GROUP_SIZE_MAX:
            raise LocalProtocolError(
                f"group_size={self.group_size} must be from 1 to {GROUP_SIZE_MAX}"
            )


async def called(address: str) -> str:
    """Return the number of a server or seed.  Raises LocalProtocolError, OSError."""
    number = await resolved(address)
    if ":" in split_address(number)[0]:
        raise LocalProtocolError(
            f"{address} is at {number}: participants listen on IPv4, and call nobody beyond it"
        )
    return number
