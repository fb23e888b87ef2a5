"""A ZooKeeper session awaited from one event loop; kazoo and its threads stay in this module.

async with ZookeeperClient("zk1:2181,zk2:2181/chroot", on_session=told) as client:
    path = await client.create("/orderwire/x-", ephemeral=True, sequence=True)

kazoo connects and reconnects by itself.  An operation that is not answered raises
ZookeeperUnavailable: it may have been carried out all the same.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from orderwire.aio.addresses import split_address
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.aio.zookeeper_errors import (
    BadVersion,
    MultiRefused,
    NoChildrenHere,
    NoZnode,
    SessionExpired,
    ZnodeExists,
    ZnodeFailure,
    ZnodeNotEmpty,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.broker.coordination.commands import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Made,
    Operation,
    Set,
    Znode,
)
from orderwire.kernel import NS_PER_MS, NS_PER_S, LocalProtocolError

_LOG = logging.getLogger(__name__)
_KAZOO_LOG = logging.getLogger(f"{__name__}.kazoo")
_KAZOO_LOG.setLevel(logging.ERROR)  # It warns at every attempt; we tell when the state changes.

SERVERS_MAX = 16
"""Servers of an ensemble that are tried."""
CLOSED_AT_ONCE = "closed at once"
_CALL_S = 2.0
"""How long a server may take to hang up on us, or to be connected to."""
_STATES_CLOSED = (kazoo_errors.ConnectionClosedError, kazoo_errors.SessionExpiredError)
_NOT_HEARD = (*_STATES_CLOSED, kazoo_errors.ConnectionLoss)
"""What kazoo says itself; every other answer is a server's."""
_FAILURES: dict[type[Exception], type[ZnodeFailure]] = {
    kazoo_errors.NoNodeError: NoZnode,
    kazoo_errors.NodeExistsError: ZnodeExists,
    kazoo_errors.BadVersionError: BadVersion,
    kazoo_errors.NotEmptyError: ZnodeNotEmpty,
    kazoo_errors.NoChildrenForEphemeralsError: NoChildrenHere,
}
_FOLLOWED = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
"""What the other operations of a failed transaction say."""
Told: TypeAlias = Callable[[], None]
SessionKey: TypeAlias = tuple[int, bytes]
"""A session's number and its password: who knows both may go on with it, or end it."""


class Session(Enum):
    """What has become of the session."""

    CONNECTED = "connected"
    """To the same session as before, or to a new one after LOST."""
    SUSPENDED = "suspended"
    """There is no connection; the session may end meanwhile."""
    LOST = "lost"
    """It has ended, and its ephemeral znodes with it."""


_SESSIONS = {
    KazooState.CONNECTED: Session.CONNECTED,
    KazooState.SUSPENDED: Session.SUSPENDED,
    KazooState.LOST: Session.LOST,
}


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of a session, in nanoseconds."""

    session_ns: int = 10 * NS_PER_S
    """A client that is silent for so long has gone; the server may set other limits."""
    reply_ns: int = 5 * NS_PER_S
    """How long an answer may take, the connection included."""
    retry_min_ns: int = 100 * NS_PER_MS
    retry_max_ns: int = 2 * NS_PER_S
    """Pause between rounds of attempts to connect, doubling from the first to the second."""
    give_up_ns: int = 30 * NS_PER_S
    """A session without a connection for so long is given up for a new one.  ZooKeeper never lets
    a client back that has seen more than the server: not after it has lost its data."""
    close_ns: int = 2 * NS_PER_S
    """How long closing waits for the server, where there is a connection."""


class Ensemble(msgspec.Struct, frozen=True):
    """Where the servers are, and the folder of theirs that is ours."""

    servers: tuple[str, ...]
    chroot: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST:PORT,HOST:PORT…`, with `/folder` behind it if wanted.

        Raises LocalProtocolError.
        """
        hosts, slash, folder = text.partition("/")
        servers = tuple(hosts.split(","))
        if len(servers) > SERVERS_MAX:
            raise LocalProtocolError(f"{len(servers)} ZooKeeper servers; expected 1 to 16")
        for server in servers:
            try:
                split_address(server)
            except LocalProtocolError as error:
                raise LocalProtocolError(f"ZooKeeper at {text!r}: {error}") from None
        parts = folder.removesuffix("/").split("/")
        if slash and folder and any(part in ("", ".", "..") for part in parts):
            raise LocalProtocolError(f"ZooKeeper at {text!r}: {slash}{folder} is no path of znodes")
        return cls(servers, "/" + "/".join(parts) if folder else "")


class ZookeeperClient:
    """One session.  Paths begin with `/`, below the chroot of the ensemble's address.

    `on_session(state)` is called in the loop, in order, whenever the session's state changes.
    """

    def __init__(
        self,
        ensemble: str,
        settings: ClientSettings | None = None,
        *,
        access: ZookeeperAccess | None = None,
        on_session: Callable[[Session], None] | None = None,
        key: SessionKey | None = None,
    ) -> None:
        """`key` is of a session to go on with, should it not have ended: closing ends it then.

        Raises LocalProtocolError when `ensemble` is no address.
        """
        self.ensemble = ensemble
        self.settings = settings or ClientSettings()
        self.session = Session.LOST
        self.sessions_lost = 0
        """Sessions that have ended: what was made in an earlier one is gone if ephemeral."""
        self.heard_ns = 0
        """When the newest answer of this session was asked for, by the monotonic clock: so long
        after it the server does not end the session.  0 when it has not answered yet."""
        self._access = access or ZookeeperAccess()
        self._key = key
        self._agreed_ns = 0
        self._heard = _Heard()
        self._on_session = on_session
        self._where = Ensemble.parse(ensemble)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected = asyncio.Event()
        self._kazoo: Any = None
        self._giving_up: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Begin to connect; operations wait for the connection."""
        assert self._kazoo is None
        self._loop = asyncio.get_running_loop()
        self._begin(self._key)

    def _begin(self, key: SessionKey | None = None) -> None:
        """Have kazoo seek a session of its own, or go on with this one."""
        settings = self.settings
        kazoo = self._kazoo = KazooClient(
            hosts=",".join(self._where.servers),
            timeout=settings.session_ns / NS_PER_S,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=settings.retry_min_ns / NS_PER_S,
                max_delay=settings.retry_max_ns / NS_PER_S,
            ),
            logger=self._heard.logger,
            client_id=key,
            **_options(self._access),
        )
        self._agreed_ns = 0
        connect = kazoo._connection._connect

        def agree(*arguments: Any) -> Any:
            """In kazoo's thread: connect, and keep what kazoo does not."""
            times = connect(*arguments)
            if kazoo is self._kazoo:
                self._agreed_ns = int(times[0] * 3 / 2) * NS_PER_MS  # It waits ⅔ for an answer.
            return times

        kazoo._connection._connect = agree
        kazoo.add_listener(partial(self._in_kazoo, kazoo))
        kazoo.start_async()

    @property
    def session_key(self) -> SessionKey | None:
        """Of the session that is connected; None while there is none."""
        key: SessionKey | None = None if self._kazoo is None else self._kazoo.client_id
        return key

    @property
    def session_ns(self) -> int:
        """After how long a silence the server ends the session; it may not be what we wished."""
        return self._agreed_ns or self.settings.session_ns

    def hang_up(self) -> None:
        """Break the connection, as one that has gone silent: kazoo makes another by itself."""
        line = getattr(getattr(self._kazoo, "_connection", None), "_socket", None)
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """End the session, and its ephemeral znodes with it."""
        kazoo, self._kazoo = self._kazoo, None
        if kazoo is None or self._loop is None:
            return
        self._on_session = None
        if self._giving_up is not None:
            self._giving_up.cancel()
        closed = asyncio.Event()
        _in_thread(_stop, kazoo, self._loop, closed.set)
        if self._connected.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.close_ns / NS_PER_S):
                    await closed.wait()
        self._told(Session.LOST)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- operations -------------------------------------------------------------------------
    #
    # `watch` is called in the loop, once, after what was read has changed; also when the connection
    # breaks or the session ends: it is a hint to read again. [S004:G14]  The same `watch` on what
    # it watches already is no second one.

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """Make a znode and return its path, whose end is a number if `sequence`.

        Raises ZnodeExists, NoZnode without a parent, and NoChildrenHere.
        """
        made = await self._ask("create", path, data, ephemeral=ephemeral, sequence=sequence)
        return str(made)[len(self._where.chroot) :]

    async def ensure(self, path: str, data: bytes = b"") -> None:
        """Make a znode that stays, and those above it, unless they are there."""
        parts = (self._where.chroot + path).strip("/").split("/")
        for count in range(1, len(parts) + 1):
            content = data if count == len(parts) else b""
            with contextlib.suppress(ZnodeExists):
                await self._ask_at("create", "/" + "/".join(parts[:count]), content)

    async def get(self, path: str, watch: Told | None = None) -> Znode:
        """Return what a znode holds.  Raises NoZnode, and then nothing is watched."""
        data, stat = await self._ask("get", path, self._hint(watch))
        return Znode(data or b"", stat.version, stat.czxid, stat.ctime, stat.ephemeralOwner)

    async def exists(self, path: str, watch: Told | None = None) -> bool:
        """Say whether there is a znode; `watch` waits for one to be made, too."""
        return await self._ask("exists", path, self._hint(watch)) is not None

    async def sync(self, path: str) -> None:
        """Let the server that we ask have heard of all that any has by now."""
        await self._ask("sync", path)

    async def children(self, path: str, watch: Told | None = None) -> list[str]:
        """Return the names below a znode, in no order.  Raises NoZnode."""
        names: list[str] = await self._ask("get_children", path, self._hint(watch))
        return names

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace what a znode holds if it has this version, and return its new one.

        Raises BadVersion and NoZnode.
        """
        stat = await self._ask("set", path, data, version)
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a znode if it has this version.  Raises BadVersion, NoZnode, ZnodeNotEmpty."""
        await self._ask("delete", path, version)

    async def multi(self, *operations: Operation) -> list[Made]:
        """Do all of these at one moment, or nothing.  Raises MultiRefused, which says why."""
        chroot = self._where.chroot

        def start(kazoo: Any) -> Any:
            work = kazoo.transaction()
            for operation in operations:
                path = chroot + operation.path
                match operation:
                    case Create(_, data, ephemeral, sequence):
                        work.create(path, data, ephemeral=ephemeral, sequence=sequence)
                    case Set(_, data, version):
                        work.set_data(path, data, version)
                    case Delete(_, version):
                        work.delete(path, version)
                    case Check(_, version):
                        work.check(path, version)
            return work.commit_async()

        what = f"a transaction at {operations[0].path}"
        results = await self._answer(start, what)
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, _FOLLOWED):
                found = _FAILURES.get(type(result))
                if found is None:
                    raise self._refusal(result, what) from result
                raise MultiRefused(index, operations[index], found.failure)
        return [_made(result, len(chroot)) for result in results]

    def _hint(self, watch: Told | None) -> "_Hint | None":
        return None if watch is None or self._loop is None else _Hint(self._loop, watch)

    async def _ask(self, name: str, path: str, *arguments: Any, **options: Any) -> Any:
        return await self._ask_at(name, self._where.chroot + path, *arguments, **options)

    async def _ask_at(self, name: str, path: str, *arguments: Any, **options: Any) -> Any:
        def start(kazoo: Any) -> Any:
            return getattr(kazoo, f"{name}_async")(path, *arguments, **options)

        return await self._answer(start, f"{name} of {path}", path)

    async def _answer(self, start: Callable[[Any], Any], what: str, path: str = "") -> Any:
        """Have kazoo do it, and wait in the loop."""
        try:
            async with asyncio.timeout(self.settings.reply_ns / NS_PER_S):
                await self._connected.wait()
                return await self._result(start)
        except TimeoutError:
            raise ZookeeperUnavailable(
                f"no ZooKeeper at {self.ensemble} has answered for"
                f" {self.settings.reply_ns // NS_PER_MS} ms{await self.why()}"
            ) from None
        except _STATES_CLOSED:
            raise SessionExpired(f"the session at {self.ensemble} has ended") from None
        except kazoo_errors.ConnectionLoss:
            raise ZookeeperUnavailable(f"the connection to {self.ensemble} broke") from None
        except kazoo_errors.KazooException as error:
            found = _FAILURES.get(type(error))
            if found is not None:
                raise found(path) from None
            raise self._refusal(error, what) from error

    def _refusal(self, error: Exception, what: str) -> ZookeeperRefused:
        if isinstance(error, kazoo_errors.AuthFailedError | kazoo_errors.NoAuthError):
            return ZookeeperRefused(
                f"{self.ensemble} refuses {what} to us: its znodes are another user's, or"
                " what we are known by is wrong"
            )
        return ZookeeperRefused(f"{self.ensemble} refuses {what}: {type(error).__name__}")

    async def _result(self, start: Callable[[Any], Any]) -> Any:
        kazoo, loop = self._kazoo, self._loop
        if kazoo is None or loop is None:
            raise kazoo_errors.ConnectionClosedError
        done: asyncio.Future[Any] = loop.create_future()
        sent_ns = time.monotonic_ns()

        def settle(result: Any) -> None:
            error = None if result.successful() else result.exception
            if kazoo is self._kazoo and not isinstance(error, _NOT_HEARD):
                self.heard_ns = max(self.heard_ns, sent_ns)
            if done.done():
                return
            if error is None:
                done.set_result(result.value)
            else:
                done.set_exception(error)

        def in_kazoo(result: Any) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
                loop.call_soon_threadsafe(settle, result)

        start(kazoo).rawlink(in_kazoo)
        return await done

    async def why(self) -> str:
        """Say what is known of why there is no connection, behind a colon."""
        if self._connected.is_set():
            return ""
        asked = [_silent_call(server) for server in self._where.servers]
        if CLOSED_AT_ONCE in await asyncio.gather(*asked):
            return (
                ": a server closes connections at once, as one does that has as many as it takes"
                " (maxClientCnxns, of one address 60 unless set higher)"
            )
        last = self._heard.last
        if "broken" in last and self._access.ca is None:
            last += "; if it takes TLS alone, we need its CA"
        return f": {last}" if last else ""

    # -- the session ------------------------------------------------------------------------

    def _in_kazoo(self, kazoo: Any, state: Any) -> None:
        """Called by kazoo in its own thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
            self._loop.call_soon_threadsafe(self._told_by, kazoo, _SESSIONS[state])

    def _told_by(self, kazoo: Any, session: Session) -> None:
        if kazoo is self._kazoo:
            self._told(session)

    def _give_up(self, why: str = "no server continues it") -> None:
        """Begin anew after a session that has no future."""
        kazoo, loop = self._kazoo, self._loop
        assert loop is not None
        _LOG.warning("our session at ZooKeeper %s is given up: %s", self.ensemble, why)
        _in_thread(_stop, kazoo, loop, lambda: None)
        self._begin()
        self._told(Session.LOST)

    def _told(self, session: Session) -> None:
        self.session = session
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        if session is Session.SUSPENDED and self._loop is not None:
            wait_s = self.settings.give_up_ns / NS_PER_S
            self._giving_up = self._loop.call_later(wait_s, self._give_up)
        if session is Session.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        if session is Session.LOST:
            self.sessions_lost += 1
            self.heard_ns = 0
        if self._on_session is not None:
            self._on_session(session)


def _options(access: ZookeeperAccess) -> dict[str, Any]:
    """Return access as kazoo's options."""
    found: dict[str, Any] = {}
    if access.ca is not None:
        found |= {"use_ssl": True, "ca": str(access.ca), "check_hostname": access.check_hostname}
    if access.cert is not None:
        found |= {"certfile": str(access.cert), "keyfile": str(access.key)}
    if access.digest is not None:
        found |= {"auth_data": [("digest", access.digest)], "default_acl": CREATOR_ALL_ACL}
    return found


class _Hint:
    """A watch as kazoo holds it, in a set: of two that call the same, it calls one."""

    __slots__ = ("_loop", "_watch")

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: Told) -> None:
        self._loop = loop
        self._watch = watch

    def __call__(self, event: object) -> None:
        """Called by kazoo in its own thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
            self._loop.call_soon_threadsafe(self._watch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hint) and self._watch == other._watch

    def __hash__(self) -> int:
        return hash(self._watch)


def _made(result: Any, skipped: int) -> Made:
    """Return what one operation of a transaction answered."""
    if isinstance(result, str):
        return result[skipped:]
    return None if isinstance(result, bool) else int(result.version)


class _Heard:
    """What kazoo says when a connection fails; it tries on, and does not raise it."""

    def __init__(self) -> None:
        self.last = ""
        self.logger = logging.Logger(_KAZOO_LOG.name, logging.WARNING)
        handler = logging.Handler()
        handler.emit = self._emit  # type: ignore[method-assign]
        self.logger.addHandler(handler)

    def _emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if "CONNECTING" not in said:  # It is what follows from the one before.
            self.last = said.removeprefix("Connection dropped: ")
        if record.levelno >= logging.ERROR:
            _KAZOO_LOG.handle(record)


async def _silent_call(server: str) -> str:
    """Connect, say nothing, and return whether we were hung up on."""
    host, port = split_address(server)
    try:
        async with asyncio.timeout(_CALL_S):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return ""
    try:
        async with asyncio.timeout(_CALL_S):
            return "" if await reader.read(1) else CLOSED_AT_ONCE
    except TimeoutError:
        return ""
    except OSError:
        return CLOSED_AT_ONCE
    finally:
        writer.transport.abort()


def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Do what may wait for a server that is silent, and what no end of ours waits for."""
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _stop(kazoo: Any, loop: asyncio.AbstractEventLoop, then: Callable[[], object]) -> None:
    """End kazoo's threads."""
    try:
        kazoo.stop()
        kazoo.close()
    except Exception as error:  # It may find its own thread still at work.
        _LOG.warning("closing a ZooKeeper session: %r", error)
    with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
        loop.call_soon_threadsafe(then)
