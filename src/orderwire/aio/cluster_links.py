"""The connections of one broker to the others of its cluster: the lower id of a pair dials."""

import asyncio
import logging
from asyncio import Server
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count

import msgspec

from orderwire.aio.accepting import accept_no_more
from orderwire.aio.cluster_frames import (
    ADMINISTRATOR,
    VERSION,
    Ask,
    Codec,
    FrameKind,
    Hello,
    Told,
    content_of,
    message_frame,
    plain_frame,
    read_request,
)
from orderwire.aio.cluster_link import HELLO_WAIT_S, Link
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.tls_listener import TlsListener
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel.errors import RemoteProtocolError

_LOG = logging.getLogger(__name__)

STRANGERS_MAX = 64
"""Connections that have not said who they are, or are administrators'."""
_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_DIAL_WAIT_S = 3.0
_BACKLOG = 256
_REFUSALS = 3
"""Refused connections in a row that prove the end of a process."""
_REFUSED_S = 0.01
"""From one of them to the next question."""
_PROBES = 20
_PROBE_S = 0.03


class Peer(msgspec.Struct, frozen=True):
    """Another broker, as its znode tells."""

    host: str
    port: int
    """Of its internal listener."""
    incarnation: str


class ClusterLinks:
    """At most one link to each other broker.

    `connected` and `disconnected` are called in turn for each broker; `received(source, topic id,
    partition, message)` in between may raise RemoteProtocolError: it ends the link.
    """

    def __init__(
        self,
        me: BrokerId,
        cluster_id: Callable[[], str],
        incarnation: str,
        codec: Codec,
        *,
        tls: Credentials | None,
        connected: Callable[[BrokerId], None],
        disconnected: Callable[[BrokerId], None],
        received: Callable[[BrokerId, bytes, int, msgspec.Struct], None],
        requested: Callable[[BrokerId, Ask | Told], None],
        process_ended: Callable[[BrokerId, str], None],
        settled: Callable[[], None],
        status: Callable[[], bytes],
    ) -> None:
        self.malformed: Counter[str] = Counter()
        """Links ended as a peer's fault, by its address."""
        self.ends: Counter[str] = Counter()
        """Why links have ended."""
        self._me = me
        self._cluster_id = cluster_id
        self._incarnation = incarnation
        self._codec = codec
        self._tls = tls
        self._connected = connected
        self._disconnected = disconnected
        self._received = received
        self._requested = requested
        self._process_ended = process_ended
        self._probes: set[asyncio.Task[None]] = set()
        self._doubted: dict[BrokerId, Peer] = {}
        """Those whose link has ended, until we know that their process lives."""
        self._settled = settled
        self._status = status
        self._peers: dict[BrokerId, Peer] = {}
        self._links: dict[BrokerId, Link] = {}
        self._strangers: set[Link] = set()
        self._dialling: dict[BrokerId, asyncio.Task[None]] = {}
        self._next = count(1).__next__
        self._server: Server | TlsListener | None = None
        self._closing = False
        self._told: msgspec.Struct | None = None
        self._told_frame: bytes | bytearray = b""
        """What was told last in this turn, to whomever, and its frame."""
        self.address = ("", 0)

    async def listen(self, host: str, port: int) -> None:
        """Take connections.  Raises OSError."""
        if self._tls is not None:
            self._server = TlsListener(
                self._tls.server,
                lambda: self._link(None),
                may_enter=self._may_enter,
                handshake_s=HELLO_WAIT_S,
            )
            await self._server.bind(host, port, _BACKLOG)
            self._server.start()
            self.address = self._server.address
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: self._link(None), host, port, backlog=_BACKLOG
        )
        name = self._server.sockets[0].getsockname()
        self.address = (str(name[0]), int(name[1]))

    async def close(self) -> None:
        """End every connection."""
        self._closing = True
        for task in [*self._dialling.values(), *self._probes]:
            task.cancel()
        for link in [*self._links.values(), *self._strangers]:
            link.close("we are closing")
        if self._server is not None:
            await accept_no_more(self._server)

    def restart(self, why: str) -> None:
        """End every link and make another: nothing of what is on its way arrives."""
        for broker in list(self._links):
            self._drop(broker, why)
            self._dial(broker)

    def know(self, peers: Mapping[BrokerId, Peer]) -> None:
        """Take which other brokers there are; links to those that have gone end."""
        for broker, link in list(self._links.items()):
            peer = peers.get(broker)
            if peer is None or link.hello is None or peer.incarnation != link.hello.incarnation:
                self._drop(broker, "its znode has gone")
        self._peers = dict(peers)
        for broker in peers:
            self._dial(broker)

    def tell(
        self, to: BrokerId, kind: FrameKind, topic_id: bytes, index: int, message: msgspec.Struct
    ) -> None:
        """Send a message if there is a link; without one it is lost, as in a connection's end.

        The same object told to several is one frame.
        """
        link = self._links.get(to)
        if link is None:
            return
        if message is not self._told:
            self._told, self._told_frame = message, message_frame(kind, topic_id, index, message)
        link.send(self._told_frame)

    def ask(self, to: BrokerId, kind: FrameKind, message: Ask | Told) -> bool:
        """Send something beside the replicas' messages; False when there is no link."""
        link = self._links.get(to)
        if link is None:
            return False
        link.send(plain_frame(kind, content_of(message)))
        return True

    def flush(self) -> None:
        """Send what was told."""
        self._told, self._told_frame = None, b""
        for link in list(self._links.values()):
            link.flush()

    @property
    def reached(self) -> list[BrokerId]:
        """Brokers that are connected, ascending."""
        return sorted(self._links)

    def may_have_ended(self, broker: BrokerId) -> bool:
        """Whether its link has ended, and perhaps its process: that is seen at once, its session
        lasts a while."""
        doubted = self._doubted.get(broker)
        return doubted is not None and self._peers.get(broker) == doubted

    # -- dialling ---------------------------------------------------------------------------

    def _dial(self, broker: BrokerId) -> None:
        if (
            self._me < broker
            and broker in self._peers
            and broker not in self._links
            and broker not in self._dialling
            and not self._closing
        ):
            task = asyncio.get_running_loop().create_task(self._call(broker))
            self._dialling[broker] = task

    async def _call(self, broker: BrokerId) -> None:
        """Try until there is a link, or the broker has gone."""
        loop = asyncio.get_running_loop()
        attempt = 0
        try:
            while not self._closing and broker not in self._links:
                peer = self._peers.get(broker)
                if peer is None:
                    return
                hello = self._hello(broker, self._next())
                context = None if self._tls is None else self._tls.client
                try:
                    async with asyncio.timeout(_DIAL_WAIT_S):
                        _, link = await loop.create_connection(
                            lambda hello=hello: self._link(hello),
                            peer.host,
                            peer.port,
                            ssl=context,
                        )
                    await link.greeted_or_ended.wait()
                except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
                    self.ends[type(error).__name__] += 1
                await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
                attempt += 1
        finally:
            self._dialling.pop(broker, None)

    def _hello(self, target: int, connection: int) -> Hello:
        return Hello(VERSION, self._cluster_id(), self._me, self._incarnation, connection, target)

    def _link(self, hello: Hello | None) -> Link:
        return Link(
            hello=hello,
            opened=self._opened,
            greeted=self._greeted,
            received=self._frame,
            settled=self._settled,
            ended=self._ended,
        )

    def _may_enter(self, host: str) -> bool:
        """Whether another TLS handshake may begin."""
        assert isinstance(self._server, TlsListener)
        if len(self._strangers) + self._server.handshakes.total() < STRANGERS_MAX:
            return True
        self.ends["too many strangers"] += 1
        return False

    def _opened(self, link: Link) -> None:
        """Somebody is there; who has called is a stranger until it says who it is."""
        if self._closing:
            link.close("we are closing")
        elif not link.dialled and len(self._strangers) >= STRANGERS_MAX:
            link.close("too many strangers")
        else:
            self._strangers.add(link)

    # -- links ------------------------------------------------------------------------------

    def _greeted(self, link: Link, hello: Hello) -> None:
        """Take the link in, or refuse it by RemoteProtocolError."""
        if hello.source == ADMINISTRATOR:
            link.greet(self._hello(ADMINISTRATOR, hello.connection))
            return
        broker = BrokerId(hello.source)
        peer = self._peers.get(broker)
        if not self._cluster_id():
            link.close("not a member yet")  # it will try again
            return
        if hello.cluster_id != self._cluster_id() or hello.target != self._me:
            raise RemoteProtocolError(
                f"a hello for broker {hello.target} of cluster {hello.cluster_id!r}: this is"
                f" {self._me} of {self._cluster_id()!r}"
            )
        if peer is None or peer.incarnation != hello.incarnation:
            link.close("not known in this incarnation (yet)")  # it will try again
            return
        before = self._links.get(broker)
        if before is not None:
            assert before.hello is not None
            if before.hello.connection >= hello.connection:
                link.close("an older connection")
                return
            self._drop(broker, "a newer connection took its place")
        self._strangers.discard(link)
        self._links[broker] = link
        self._doubted.pop(broker, None)
        if self._me > broker:  # it has dialled
            link.greet(self._hello(broker, hello.connection))
        self._connected(broker)

    def _frame(self, link: Link, kind: int, content: memoryview) -> None:
        assert link.hello is not None
        source = link.hello.source
        if source == ADMINISTRATOR:
            if kind != FrameKind.STATUS:
                raise RemoteProtocolError(f"a frame of kind {kind} from an administrator")
            link.send(plain_frame(FrameKind.STATUS, self._status()))
            link.flush()
            return
        if self._links.get(BrokerId(source)) is not link:
            return  # it is being closed
        if kind < FrameKind.ACTIVE_STANDBY:
            self._requested(BrokerId(source), read_request(kind, content))
            return
        topic_id, index, message = self._codec.read(kind, content)
        self._received(BrokerId(source), topic_id, index, message)

    def _drop(self, broker: BrokerId, why: str) -> None:
        """End a link, and tell at once."""
        link = self._links.pop(broker, None)
        if link is not None:
            self._strangers.add(link)  # until it has ended
            link.close(why)
            self._disconnected(broker)

    def _ended(self, link: Link, why: str) -> None:
        self.ends[why.partition(":")[0]] += 1
        if why.startswith("malformed"):
            self.malformed[link.host] += 1
            if self.malformed[link.host].bit_count() == 1:
                _LOG.warning("link with %s closed: %s", link.host, why)
        self._strangers.discard(link)
        if link.hello is None or link.hello.source == ADMINISTRATOR:
            return
        broker = BrokerId(link.hello.source)
        if self._links.get(broker) is link:
            _LOG.info("link with broker %d ended: %s", broker, why)
            del self._links[broker]
            peer = self._peers.get(broker)
            if self._closing:
                peer = None
            if peer is not None:  # who is told that the link has ended asks
                self._doubted[broker] = peer
            self._disconnected(broker)
            self._settled()
            self._dial(broker)
            if peer is not None:
                task = asyncio.get_running_loop().create_task(self._probe(broker, peer))
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)

    async def _probe(self, broker: BrokerId, peer: Peer) -> None:
        """After a link has ended: see whether the process has, too.

        Its listener lives as long as it does, so a host that refuses the connection has no such
        process any more; who does not answer may be slow, and its session decides.
        """
        ended = await self._refuses(peer)
        if self._peers.get(broker) != peer or broker in self._links:
            return
        if not ended:
            self._doubted.pop(broker, None)
        else:
            _LOG.info("broker %d does not listen any more: its process has ended", broker)
            self._process_ended(broker, peer.incarnation)

    async def _refuses(self, peer: Peer) -> bool:
        """Whether nobody listens there any more."""
        refusals = 0
        for _ in range(_PROBES):
            try:
                async with asyncio.timeout(_DIAL_WAIT_S):
                    _, writer = await asyncio.open_connection(peer.host, peer.port)
            except ConnectionRefusedError:
                refusals += 1
                if refusals == _REFUSALS:
                    return True
                pause_s = _REFUSED_S
            except (OSError, TimeoutError):
                return False
            else:  # of a process that is ending the listener may be the last to go
                writer.transport.abort()
                refusals = 0
                pause_s = _PROBE_S
            await asyncio.sleep(pause_s)
        return False
