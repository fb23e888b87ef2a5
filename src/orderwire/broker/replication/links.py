"""Which peers a replica can talk to."""

import msgspec

from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import Instant


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello", gc=False):
    """The first word over a connection: my replica of the partition is open."""

    epoch: int
    """The highest that I know."""
    answer: bool
    """Whether I have not heard you yet."""


class Links:
    """Connections, and who was heard over them.

    A connection between brokers says nothing of one partition: what is sent before the peer has
    opened its replica is dropped there.  So a peer is up once it was heard.
    """

    def __init__(self) -> None:
        self._connected: set[BrokerId] = set()
        self._heard: set[BrokerId] = set()
        self._silent_since: dict[BrokerId, Instant] = {}
        self._ended: set[BrokerId] = set()
        """Whose process is known to have ended."""

    def up(self, broker: BrokerId) -> bool:
        """Whether what is sent arrives, as far as we know."""
        return broker in self._heard

    def is_connected(self, broker: BrokerId) -> bool:
        """Whether there is a connection to its broker, heard or not."""
        return broker in self._connected

    def connected(self, broker: BrokerId) -> None:
        """There is a connection; nothing was heard over it."""
        self._connected.add(broker)
        self._ended.discard(broker)

    def heard(self, broker: BrokerId) -> bool:
        """Something has come; returns whether it is the first of this connection."""
        if broker in self._heard or broker not in self._connected:
            return False
        self._heard.add(broker)
        self._silent_since.pop(broker, None)
        return True

    def disconnected(self, broker: BrokerId, now: Instant) -> bool:
        """The connection is gone; returns whether the peer was up."""
        self._connected.discard(broker)
        up = broker in self._heard
        self._heard.discard(broker)
        self._silent_since.setdefault(broker, now)
        return up

    def ended(self, broker: BrokerId) -> None:
        """Its process has ended: it will not be heard before there is another connection."""
        if broker not in self._connected:
            self._ended.add(broker)

    def silent_since(self, broker: BrokerId, now: Instant) -> Instant:
        """Since when a peer that is not up is not; from now on, if nobody has looked before."""
        return self._silent_since.setdefault(broker, now)

    def silent_until(
        self, broker: BrokerId, now: Instant, settings: ReplicationSettings
    ) -> Instant:
        """How long a member that is not up may be silent.  Where its broker is connected, its
        replica is being opened, one after the other with all the rest there."""
        patience = 0 if broker in self._ended else settings.link_grace_ns
        if broker in self._connected:
            patience = max(patience, settings.round_timeout_ns)
        return Instant(self.silent_since(broker, now) + patience)

    def look_anew(self) -> None:
        """Who is not up has from now on the time to come."""
        self._silent_since.clear()
