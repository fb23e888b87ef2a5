"""Becoming a member of a cluster: the driver, the internal listener, and each mode's replicas."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orderwire.aio.addresses import is_loopback
from orderwire.aio.cluster_driver import ZookeeperDriver
from orderwire.aio.cluster_frames import Codec
from orderwire.aio.cluster_host import ClusterHost
from orderwire.aio.cluster_replicas import MESSAGES, open_replica
from orderwire.aio.cluster_session import KeptSession
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.history_options import HistoryOptions
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.aio.zookeeper_client import ClientSettings
from orderwire.broker.log import Storage
from orderwire.broker.replicas import ReplicaOf
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_S, Instant, LocalProtocolError

if TYPE_CHECKING:
    from orderwire.aio.cluster_history import ClusterHistory


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker joins a cluster.  Raises LocalProtocolError."""

    zookeeper: str
    """The ensemble, with a folder behind it if wanted."""
    session_ns: int = 6 * NS_PER_S
    """A broker that ZooKeeper has not heard for so long has gone."""
    access: ZookeeperAccess | None = None
    internal_host: str = "127.0.0.1"
    internal_port: int = 0
    """Where the other brokers find this one; 0: a free port."""
    internal_advertised: tuple[str, int] | None = None
    """What the others are told instead: an address that leads here."""
    internal_tls: Credentials | None = None
    insecure: bool = False
    """Listen for brokers beyond this machine without TLS."""
    history: HistoryOptions | None = None
    """Where this broker writes its history; None: nowhere."""

    def __post_init__(self) -> None:
        if not (is_loopback(self.internal_host) or self.insecure or self.internal_tls is not None):
            raise LocalProtocolError(
                f"{self.internal_host} is reachable from other machines, and without TLS the"
                " internal listener neither encrypts nor authenticates: listen on 127.0.0.1, give"
                " it TLS, or say insecure"
            )


class ClusterJoining:
    """A broker's way into its cluster."""

    def __init__(self, options: ClusterOptions, me: int) -> None:
        self._options = options
        self._me = BrokerId(me)

    async def join(self, data: Path) -> ClusterHost:
        """Listen for the other brokers; the host goes on when the broker listens for clients.

        `data` is the broker's directory, locked: no other process is this broker.
        """
        options = self._options
        incarnation = secrets.token_hex(8)
        driver = ZookeeperDriver(
            options.zookeeper,
            self._me,
            incarnation,
            client=ClientSettings(session_ns=options.session_ns),
            access=options.access,
            kept=KeptSession(data, options.zookeeper),
        )
        host = ClusterHost(
            self._me,
            driver,
            incarnation,
            Codec(MESSAGES),
            tls=options.internal_tls,
            advertised=options.internal_advertised,
            history=self._history(data, incarnation),
        )
        await host.links.listen(options.internal_host, options.internal_port)
        return host

    def _history(self, data: Path, incarnation: str) -> "ClusterHistory | None":
        if self._options.history is None:
            return None
        from orderwire.aio.cluster_history import ClusterHistory  # brings Arrow and a client

        return ClusterHistory(self._options.history, data, self._me, incarnation)

    def open_replica(self, of: ReplicaOf, storage: Storage, now: Instant) -> Replica:
        """Open this broker's replica of a partition.  Raises StorageError."""
        return open_replica(of, storage, self._me, now)
