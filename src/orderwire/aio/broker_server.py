"""A broker on real sockets and files: accept, feed, group-commit, keep time, close in order."""

import asyncio
import logging
import secrets
from asyncio import AbstractEventLoop, Server, TimerHandle
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from random import SystemRandom
from ssl import SSLContext
from typing import Any, Protocol, TypeAlias

import msgspec

from orderwire.aio.accepting import accept_no_more, turns
from orderwire.aio.broker_connection import Connection, Slot
from orderwire.aio.broker_files import BrokerFiles
from orderwire.aio.clock import GroupClock
from orderwire.aio.cluster_host import ClusterHost
from orderwire.aio.tls_listener import TlsListener
from orderwire.broker.flush import Flush
from orderwire.broker.log import Storage, StorageError
from orderwire.broker.log.checking import Checked
from orderwire.broker.node import Broker, Commit
from orderwire.broker.parked import Aside
from orderwire.broker.replicas import OpenReplica, ReplicaOf
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replies import Reply
from orderwire.broker.scrub import Piece
from orderwire.broker.security.credentials import SALT_BYTES, credentials_unless
from orderwire.broker.security.guard import FileSecurityStore, Guard, SecuritySettings
from orderwire.broker.security.login import Login
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant
from orderwire.kernel.errors import OrderwireError, RemoteProtocolError

_LOG = logging.getLogger(__name__)
_HANDSHAKE_S = 10.0
"""How long a client may take over its TLS handshake."""
_TICK_S = 1.0
"""How often time limits of connections are looked at."""
_ANY = ("0.0.0.0", "::")
_BACKLOG = 1_024
_DRAIN_S = 2.0
"""How long a stopping broker waits for clients to take replies that are on their way."""
_LATE_NS = 20 * NS_PER_MS
"""A timer that is this late found the loop held up: what has come meanwhile is read first."""
_READ_FIRST_S = 0.001
_LOOK_S = 0.002
"""How often a stopping broker looks whether it is done."""


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one listener grants its clients."""

    request_bytes_max: int = 100 << 20
    """Longest request frame."""
    connections_max: int = 5_000
    """Open connections."""
    connections_per_address_max: int = 1_000
    """Open connections from one address."""
    receive_bytes_max: int = 1 << 30
    """All receive buffers together."""
    pipelined_max: int = 1_000
    """Requests of one connection that wait for their replies."""
    backlog_bytes_max: int = 4 << 20
    """Reply bytes waiting for a slow client before its requests are read no further."""
    first_request_ns: int = 10 * NS_PER_S
    """A connection that has sent no whole request by then is closed."""
    frame_ns: int = 30 * NS_PER_S
    """How long one request may take to arrive, beside its length's share."""
    frame_bytes_per_s_min: int = 64 << 10
    """Slowest arrival of a long request."""
    idle_ns: int = 600 * NS_PER_S
    """A connection without traffic for this long is closed."""
    shrink_ns: int = 5 * NS_PER_S
    """How long an unused large buffer is kept."""


class BrokerFailed(OrderwireError):
    """The broker had to stop: its disk failed, and nothing more may be promised."""


ReplicaOpener: TypeAlias = Callable[[ReplicaOf, Storage, Instant], Replica]
"""Opens a replica in its partition's directory.  Raises StorageError."""


class Joining(Protocol):
    """How a broker becomes a member of a cluster."""

    async def join(self, data: Path) -> ClusterHost:
        """Find ZooKeeper, and listen for the other brokers; `data` is locked by this process."""
        ...

    def open_replica(self, of: ReplicaOf, storage: Storage, now: Instant) -> Replica:
        """A ReplicaOpener."""
        ...


class BrokerServer:
    """One broker, one listener."""

    def __init__(
        self,
        files: BrokerFiles,
        settings: BrokerSettings,
        limits: BrokerLimits,
        advertise: tuple[str, int] | None,
        host: ClusterHost | None = None,
        open_replica: ReplicaOpener | None = None,
        guard: Guard | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        self.limits = limits
        self.clock = GroupClock()
        self.holds_durable = settings.flush is not Flush.NONE
        self.refusals: Counter[str] = Counter()
        """Closed or refused connections by peer address."""
        self.address: tuple[str, int] = ("", 0)
        self.failed: asyncio.Future[BrokerFailed] = self.loop.create_future()
        """Done when the broker had to stop by itself."""
        self._files = files
        self._advertise = advertise
        self._one_by_one = settings.flush is Flush.MESSAGE
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="orderwire-disk")
        self._login_worker: ThreadPoolExecutor | None = None
        self._opener: ThreadPoolExecutor | None = None
        self._scrub_worker: ThreadPoolExecutor | None = None
        self._guard = guard
        self._tls = tls
        self._connections: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._received_bytes = 0
        self._parked: dict[int, Slot] = {}
        self._unsynced: list[tuple[Slot, Reply]] = []
        self._commits: list[tuple[Commit, list[tuple[Slot, Reply]]]] = []
        self._committing = False
        self._current: list[tuple[Slot, Reply]] | None = None
        """Who waits for the commit that is being written."""
        self._timer: TimerHandle | None = None
        self._armed_for = Instant(0)
        self._has_read = False  # whether a late timer has waited for what had come
        self._ticker: TimerHandle | None = None
        self._server: Server | TlsListener | None = None
        self.host = host
        """This broker's part in its cluster; None when it is alone."""
        self.next_token = count(1).__next__
        self.broker = Broker(
            settings,
            files.storage,
            lambda topic, index, config: files.open_log(topic, index, config, self.clock.now()),
            self._remove_topic,
            SystemRandom(secrets.randbits(64)),
            self.clock.now(),
            cluster=host,
            open_replica=None if open_replica is None else self._replica_opener(open_replica),
            guard=guard,
            aside=self._open_aside,
        )

    def _open_aside(
        self, job: Callable[[], Any], then: Callable[[Any, Instant], None], now: Instant
    ) -> None:
        """Read files in a thread of its own: it may take longer than a session."""
        if self._opener is None:
            self._opener = ThreadPoolExecutor(1, thread_name_prefix="orderwire-open")
        future = self.loop.run_in_executor(self._opener, job)

        def opened(done: "asyncio.Future[Any]") -> None:
            if done.cancelled() or self._server is None or self.failed.done():
                return
            try:
                then(done.result(), self.clock.now())
            except StorageError as error:
                self.fail(error)
                return
            self.after_turn()

        future.add_done_callback(opened)

    def _replica_opener(self, opener: ReplicaOpener) -> OpenReplica:
        return lambda of: opener(of, self._files.storage_of(of.topic, of.index), self.clock.now())

    @classmethod
    async def start(
        cls,
        data: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        settings: BrokerSettings | None = None,
        limits: BrokerLimits | None = None,
        advertise: tuple[str, int] | None = None,
        cluster: Joining | None = None,
        security: SecuritySettings | None = None,
        tls: SSLContext | None = None,
    ) -> "BrokerServer":
        """Recover the data directory and listen; with `cluster`, as a member of one.

        Port 0 takes a free one; `address` tells which.  `advertise` is the address clients are
        told to use; by default the one they connected to.  With `tls` every connection is
        encrypted.  Raises DataDirectoryInUse, and OSError when the address cannot be bound.
        """
        files = BrokerFiles(data, alone=cluster is None)
        member: ClusterHost | None = None
        try:
            if cluster is not None:
                member = await cluster.join(data)
            server = cls(
                files,
                settings if settings is not None else BrokerSettings(),
                limits if limits is not None else BrokerLimits(),
                advertise,
                member,
                None if cluster is None else cluster.open_replica,
                None if security is None else cls._guarded(files, security, alone=cluster is None),
                tls,
            )
            await server._listen(host, port)
        except BaseException:
            if member is not None:
                await member.close()
            files.close()
            raise
        return server

    @staticmethod
    def _guarded(files: BrokerFiles, security: SecuritySettings, *, alone: bool) -> Guard:
        chance = SystemRandom()
        if not alone:  # the cluster tells it
            return Guard(security, b"", chance)
        store = FileSecurityStore(files.storage, chance)
        guard = Guard(security, store.secret, chance)
        store.tell(guard)
        return guard

    async def _listen(self, host: str, port: int) -> None:
        if self._tls is not None:
            self._server = TlsListener(
                self._tls,
                lambda: Connection(self),
                may_enter=self._may_enter,
                handshake_s=_HANDSHAKE_S,
            )
            await self._server.bind(host, port, _BACKLOG)
            self.address = self._server.address
        else:
            self._server = await self.loop.create_server(
                lambda: Connection(self), host, port, backlog=_BACKLOG, start_serving=False
            )
            name = self._server.sockets[0].getsockname()
            self.address = (str(name[0]), int(name[1]))
        if self.host is not None:
            await self.host.start(self, self._advertise or self.address)
        topics = {topic.topic_id.hex() for topic in self.broker.topics}
        if self.host is not None and self.host.driver.knows_every_topic():
            for aside in self._files.set_strays_aside(topics, self.host.cluster_id):
                self._worker.submit(self._files.discard, aside)
        else:
            self._files.report_strays(topics)
        if isinstance(self._server, TlsListener):
            self._server.start()
        else:
            await self._server.start_serving()
        self._tick()
        self._arm()

    async def close(self) -> None:
        """Stop accepting, answer what is on its way to disk, sync, close logs and files."""
        if self._server is None:
            return
        if self.host is not None and not self.failed.done():
            await self.host.before_close()
        await accept_no_more(self._server)
        for timer in (self._timer, self._ticker):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections):
            connection.drain()
        until = self.loop.time() + _DRAIN_S
        while not self.failed.done() and (
            self._committing
            or (
                self.loop.time() < until
                and (self._parked or any(one.backlog_bytes for one in self._connections))
            )
        ):
            await asyncio.sleep(_LOOK_S)
        if self.host is not None:  # now others take over
            await self.host.close()
        for connection in list(self._connections):
            connection.abort()
        await turns()
        self._server = None
        self._worker.shutdown(wait=True)
        if self._opener is not None:
            self._opener.shutdown(wait=True, cancel_futures=True)
        for worker in (self._login_worker, self._scrub_worker):
            if worker is not None:
                worker.shutdown(wait=False, cancel_futures=True)
        if not self.failed.done():
            self.broker.close(self.clock.now())
        self._files.close()

    # -- connections ------------------------------------------------------------------------

    async def set_users(self, passwords: Mapping[str, str]) -> None:
        """Let these users have these passwords; who has it already keeps what is stored.

        Raises BrokerFailed when they cannot be kept.
        """
        guard = self._guard
        for name, password in passwords.items():
            assert guard is not None
            assert guard.store is not None
            known = dict(guard.accounts.users.get(name, {}))
            texts = await self.loop.run_in_executor(
                None, credentials_unless, known, password, partial(secrets.token_bytes, SALT_BYTES)
            )
            if texts is None:
                continue
            kept: asyncio.Future[Refusal | None] = self.loop.create_future()
            guard.store.put_user(name, texts, kept.set_result)
            refusal = await kept
            if refusal is not None:
                raise BrokerFailed(f"user {name!r} cannot be kept: {refusal.message}")

    def login(self) -> Login | None:
        """Begin the login of a new connection; None where nobody is asked."""
        return None if self._guard is None else self._guard.login()

    def advertised_to(self, host: str, port: int) -> tuple[str, int]:
        """Return the address that a client on this socket address is told."""
        return self._advertise if self._advertise is not None else (host, port)

    def _may_enter(self, host: str) -> bool:
        """Whether another TLS handshake may begin: those under way count as connections."""
        assert isinstance(self._server, TlsListener)
        return self._has_room(host, self._server.handshakes)

    def _has_room(self, host: str, handshakes: Counter[str]) -> bool:
        count = len(self._connections) + handshakes.total()
        from_there = self._by_address[host] + handshakes[host]
        if count >= self.limits.connections_max:
            self._refuse(host, f"{count} connections are open")
            return False
        if from_there >= self.limits.connections_per_address_max:
            self._refuse(host, f"{from_there} connections are open from there")
            return False
        return True

    def admit(self, connection: Connection) -> bool:
        """Count a connection in, unless there are too many."""
        host = connection.client.host
        if not self._has_room(host, Counter()):
            return False
        self._connections.add(connection)
        self._by_address[host] += 1
        self._received_bytes += connection.buffer_bytes
        return True

    def dismiss(self, connection: Connection) -> None:
        """Count a connection out."""
        host = connection.client.host
        self._connections.discard(connection)
        self._by_address[host] -= 1
        if not self._by_address[host]:
            del self._by_address[host]
        self._received_bytes -= connection.buffer_bytes

    def reserve(self, more: int) -> None:
        """Account for a receive buffer that grows or shrinks.

        Raises RemoteProtocolError when all of them together would be too large.
        """
        if more > 0 and self._received_bytes + more > self.limits.receive_bytes_max:
            raise RemoteProtocolError(
                f"receive buffers hold {self._received_bytes} bytes, {more} more are asked for;"
                f" the limit is {self.limits.receive_bytes_max}"
            )
        self._received_bytes += more

    def refused(self, connection: Connection, error: OrderwireError) -> None:
        """Note what a client did wrong, or what the disk did; the connection is being closed."""
        self._refuse(connection.client.host, str(error))

    def _refuse(self, host: str, why: str) -> None:
        self.refusals[host] += 1
        if self.refusals[host].bit_count() == 1:  # the 1st, 2nd, 4th, …: a flood stays readable
            _LOG.warning(
                "closed a connection of %s (%d so far): %s", host, self.refusals[host], why
            )

    # -- replies that come later ------------------------------------------------------------

    def park(self, slot: Slot) -> None:
        """Keep the slot of a parked request until the broker answers it."""
        self._parked[slot.token] = slot

    def forget(self, slot: Slot) -> None:
        """Drop a parked request whose connection is gone."""
        if self._parked.pop(slot.token, None) is not None:
            self.broker.parked.forget(slot.token)

    def fill_later(self, slot: Slot, reply: Reply) -> None:
        """Send a reply that is held back, so that its client does not spin."""
        self.loop.call_later(reply.delay_ns / NS_PER_S, self._fill, slot, reply)

    def _fill(self, slot: Slot, reply: Reply) -> None:
        if reply.durable and self.holds_durable:
            self.fill_when_durable(slot, reply)
        else:
            slot.fill(reply)

    def after_turn(self) -> None:
        """Answer what has become possible, and keep the timer right."""
        broker = self.broker
        for aside in broker.parked.take_asides():
            self._look_aside(aside)
        piece = broker.scrub.take()
        if piece is not None:
            self._read_aside(piece)
        for partition, reason in broker.take_damages():
            _LOG.error(
                "%s-%d is damaged, nothing of it is served: %s",
                partition.topic,
                partition.index,
                reason,
            )
        filled: dict[Connection, None] = {}
        while broker.parked.has_ready:
            for token, reply in broker.parked.ready():
                slot = self._parked.pop(token)
                if reply.delay_ns:
                    self.fill_later(slot, reply)
                elif reply.durable and self.holds_durable:
                    self.fill_when_durable(slot, reply)
                else:
                    slot.reply = reply
                    slot.connection.take_filled(slot)
                    filled[slot.connection] = None
            for connection in filled:  # each in one piece, however many of its requests
                connection.send_filled()
            filled.clear()
        if broker.has_unsynced:
            self._commit_soon()
        if self.host is not None:
            self.host.flush()
        self._arm()

    def _look_aside(self, aside: Aside) -> None:
        """Derive a key from a password, in a thread of its own: the disk's must not wait."""
        if self._login_worker is None:
            self._login_worker = ThreadPoolExecutor(1, thread_name_prefix="orderwire-login")
        future = self.loop.run_in_executor(self._login_worker, aside.job)

        def found(done: "asyncio.Future[bool]") -> None:
            if not done.cancelled():
                self.broker.parked.aside_done(aside, done.result())
                self.after_turn()

        future.add_done_callback(found)

    def _read_aside(self, piece: Piece) -> None:
        """Read and check a piece of a log, in a thread of its own: no commit waits for it."""
        if self._scrub_worker is None:
            self._scrub_worker = ThreadPoolExecutor(1, thread_name_prefix="orderwire-scrub")
        future = self.loop.run_in_executor(self._scrub_worker, piece.run)

        def read(done: "asyncio.Future[Checked]") -> None:
            if done.cancelled() or self._server is None or self.failed.done():
                return
            if done.exception() is None:
                self.broker.scrub.done(piece, done.result(), self.clock.now())
            else:
                self.broker.scrub.failed(self.clock.now())
            self.after_turn()

        future.add_done_callback(read)

    def _arm(self) -> None:
        deadline = self.broker.next_deadline()
        if self._timer is not None:
            if self._armed_for <= deadline:
                return
            self._timer.cancel()
        delay_ns = max(deadline - self.clock.now(), 0)
        self._armed_for = deadline
        self._timer = self.loop.call_later(delay_ns / NS_PER_S, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = Instant(max(self._armed_for, self.clock.now()))
        if now - self._armed_for >= _LATE_NS and not self._has_read:
            # Others seem late that are not: we are.
            self._has_read = True
            self._timer = self.loop.call_later(_READ_FIRST_S, self._wake)
            return
        self._has_read = False
        try:
            self.broker.wake(now)
        except StorageError as error:
            self.fail(error)
            return
        self.after_turn()

    def _tick(self) -> None:
        now = self.clock.now()
        for connection in list(self._connections):
            why = connection.overdue(now)
            if why is None:
                connection.shrink(now)
            else:
                if why != "idle":
                    self._refuse(connection.client.host, why)
                connection.abort()
        self._ticker = self.loop.call_later(_TICK_S, self._tick)

    # -- group commit -----------------------------------------------------------------------

    def fill_when_durable(self, slot: Slot, reply: Reply) -> None:
        """Send a reply when everything written so far is on disk."""
        self._unsynced.append((slot, reply))
        if self._one_by_one:
            self._take_commit()
        self._commit_soon()

    def _commit_soon(self) -> None:
        if not self._committing:
            self._committing = True
            self.loop.call_soon(self._begin_commit)

    def _take_commit(self) -> None:
        commit = self.broker.take_commit(self.clock.now())
        waiting, self._unsynced = self._unsynced, []
        if commit is not None:
            self._commits.append((commit, waiting))
        elif self._commits:  # a retry: what it repeats is on its way to disk with the last commit
            self._commits[-1][1].extend(waiting)
        elif self._current is not None:
            self._current.extend(waiting)
        else:
            for slot, reply in waiting:
                slot.fill(reply)

    def _begin_commit(self) -> None:
        if not self._commits:
            self._take_commit()
        if not self._commits or self.failed.done():
            self._committing = False
            return
        commit, waiting = self._commits.pop(0)
        self._current = waiting
        future = self.loop.run_in_executor(self._worker, commit.run)
        future.add_done_callback(lambda done: self._end_commit(done, commit, waiting))

    def _end_commit(
        self,
        done: "asyncio.Future[None]",
        commit: Commit,
        waiting: list[tuple[Slot, Reply]],
    ) -> None:
        error = done.exception()
        if error is not None:
            self.fail(error)
            return
        try:
            self.broker.committed(commit, self.clock.now())
        except StorageError as failed:
            self.fail(failed)
            return
        self._current = None
        for slot, reply in waiting:
            slot.fill(reply)
        self._committing = False
        if self._commits or self._unsynced or self.broker.has_unsynced:
            self._commit_soon()
        self.after_turn()

    def _remove_topic(self, topic: Topic) -> None:
        aside = self._files.set_aside(topic)
        if aside is not None:
            self._worker.submit(self._files.discard, aside)

    def fail(self, error: BaseException) -> None:
        """Stop: after a failed fdatasync nobody knows what is on disk."""
        _LOG.critical("the disk failed, the broker stops: %s", error)
        self._committing = False
        if not self.failed.done():
            self.failed.set_result(BrokerFailed(f"the disk failed: {error}"))
        for connection in list(self._connections):
            connection.abort()
