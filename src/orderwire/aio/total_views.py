"""The views of a group in ZooKeeper.  [S003:dec.1]

Below `/orderwire/groups/GROUP`:

    members/ID      ephemeral, one for every process that lives; its czxid is the incarnation
    relays/r-…      ephemeral, one for every relay; the oldest is used, the others stand by
    state/view      the newest view, changed by compare-and-set

Any process proposes: when who lives is no longer who is in the view, the rule (`view_rules`) says
what follows, and the first to write it has agreed it with all.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from orderwire.aio.addresses import split_address
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.aio.zookeeper_client import ClientSettings, Session, ZookeeperClient
from orderwire.aio.zookeeper_errors import (
    BadVersion,
    NoZnode,
    ZnodeExists,
    ZnodeFailure,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.aio.zookeeper_folder import ZnodeFolder
from orderwire.aio.zookeeper_scope import SessionScope
from orderwire.kernel import (
    GROUP_SIZE_MAX,
    NS_PER_MS,
    NS_PER_S,
    LocalProtocolError,
    ProcessId,
)
from orderwire.kernel.parsing import UNREADABLE
from orderwire.ordering.total.pdu import Member
from orderwire.ordering.total.view_rules import Entrant, RelayAt, StoredView, next_view

_LOG = logging.getLogger(__name__)

ROOT = "/orderwire/groups"
PROPOSE_NS = 30 * NS_PER_MS
"""Who is next in the order of ids waits so much longer before it proposes."""
SESSION_NS = 4 * NS_PER_S
"""A process that is silent for so long is no member any more."""
_FAILED = (ZookeeperUnavailable, ZookeeperRefused, ZnodeFailure)


class _MemberData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    installed: int = -1


class _RelayData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: str


def group_path(group: str) -> str:
    """Return the folder of a group, whatever characters its name has.

    Raises LocalProtocolError.
    """
    if not 0 < len(group) <= 200:
        raise LocalProtocolError(f"{group!r} is no name of a group: 1 to 200 characters")
    return f"{ROOT}/{quote(group, safe='').replace('.', '%2E')}"


class _Registered:
    """Keeps a session and its folders; what is common to members and relays."""

    def __init__(
        self,
        ensemble: str,
        group: str,
        client: ClientSettings | None,
        access: ZookeeperAccess | None,
    ) -> None:
        self.path = group_path(group)
        self._group = group
        self.client = ZookeeperClient(
            ensemble,
            client or ClientSettings(session_ns=SESSION_NS),
            access=access,
            on_session=self._on_session,
        )
        self.scope = SessionScope(self.client)

    async def _open(self) -> None:
        await self.client.open()
        for name in ("members", "relays", "state"):
            await self.client.ensure(f"{self.path}/{name}")

    async def close(self) -> None:
        """End the session, and with it what was entered."""
        self.scope.cancel()
        await self.client.close()

    def _on_session(self, session: Session) -> None:
        raise NotImplementedError


class GroupViews(_Registered):
    """One process's part in the views of its group.

    `told(view)` is called in the loop with every new view, `lost()` when the session has ended:
    then this process is no member any more.
    """

    def __init__(
        self,
        ensemble: str,
        group: str,
        *,
        told: Callable[[StoredView], None],
        lost: Callable[[], None],
        least: int = 1,
        client: ClientSettings | None = None,
        access: ZookeeperAccess | None = None,
    ) -> None:
        """`least`: how many processes must be there before the first view."""
        super().__init__(ensemble, group, client, access)
        self.view = StoredView()
        self.me: Member | None = None
        self.malformed = 0
        self._told = told
        self._lost = lost
        self._least = least
        self._installed = -1
        self._members = ZnodeFolder(self.scope, f"{self.path}/members", self._changed)
        self._relays = ZnodeFolder(self.scope, f"{self.path}/relays", self._changed)
        self._state = ZnodeFolder(self.scope, f"{self.path}/state", self._changed)
        self._proposing: asyncio.Task[None] | None = None

    async def enter(self) -> Member:
        """Enter this process under the lowest id that is free; return id and incarnation.

        Raises ZookeeperUnavailable, ZookeeperRefused, LocalProtocolError.
        """
        await self._open()
        with contextlib.suppress(ZnodeExists):
            await self.client.create(f"{self.path}/state/view", msgspec.json.encode(StoredView()))
        data = msgspec.json.encode(_MemberData())
        taken = set(await self.client.children(f"{self.path}/members"))
        for process in range(GROUP_SIZE_MAX):
            if str(process) in taken:
                continue
            path = f"{self.path}/members/{process}"
            try:
                await self.client.create(path, data, ephemeral=True)
            except ZnodeExists:
                continue
            znode = await self.client.get(path)
            self.me = Member(ProcessId(process), znode.created_zxid)
            self._watch()
            return self.me
        raise LocalProtocolError(f"all {GROUP_SIZE_MAX} ids of the group are taken")

    def _watch(self) -> None:
        self.scope.live = True
        for folder in (self._state, self._relays, self._members):
            folder.kick()

    def look_again(self) -> None:
        """Read who lives: somebody does not answer."""
        self._members.again()
        self._relays.again()

    def installed(self, number: int) -> None:
        """Tell the others that this process has installed a view."""
        self._installed = number
        self.scope.spawn(self._tell_installed())

    async def _tell_installed(self) -> None:
        while True:
            assert self.me is not None
            number = self._installed
            data = msgspec.json.encode(_MemberData(number))
            try:
                await self.client.set(f"{self.path}/members/{self.me.process}", data)
            except NoZnode:
                return
            except _FAILED as error:
                self.scope.failed(error)
                await asyncio.sleep(0.1)
                continue
            if number == self._installed:
                return

    def lacking(self) -> str:
        """Say what this process waits for before it is in a view."""
        where = f"group {self._group!r} at ZooKeeper {self.client.ensemble}"
        if self.me is None or "view" not in self._state.znodes:
            return f"ZooKeeper at {self.client.ensemble} has not answered"
        if not self._standing():
            return f"no relay of {where} is there (orderwire channel --zookeeper … --group …)"
        alive = len(self.alive())
        if not self.view.members and alive < self._least:
            return f"{alive} of {self._least} processes of {where} are there"
        return f"no view of {where} could follow with this process"

    def _on_session(self, session: Session) -> None:
        if not self.scope.live:
            return
        if session is Session.LOST:
            self.scope.cancel()
            self._lost()
        elif session is Session.CONNECTED:
            for folder in (self._state, self._relays, self._members):
                folder.again()

    # ------------------------------------------------------------------ views

    def _changed(self, _: set[str]) -> None:
        znode = self._state.znodes.get("view")
        if znode is not None:
            try:
                view = msgspec.json.decode(znode.data, type=StoredView)
            except UNREADABLE:
                self.malformed += 1
                return
            if view.number > self.view.number:
                self.view = view
                self._told(view)
        if self._proposing is None and self._next() is not None:
            self._proposing = self.scope.spawn(self._propose())
            self._proposing.add_done_callback(self._proposed)

    def _proposed(self, _: "asyncio.Task[None]") -> None:
        self._proposing = None
        if self.scope.live:  # What came while it ended was left to it.
            self._changed(set())

    def alive(self) -> dict[ProcessId, Entrant]:
        """Return who lives."""
        found = {}
        for name, znode in self._members.znodes.items():
            try:
                process = int(name)
                data = msgspec.json.decode(znode.data, type=_MemberData)
            except (ValueError, *UNREADABLE):
                self.malformed += 1
                continue
            if 0 <= process < GROUP_SIZE_MAX and znode.owner:
                member = Member(ProcessId(process), znode.created_zxid)
                found[member.process] = Entrant(member, data.installed)
        return found

    def _standing(self) -> list[RelayAt]:
        """Return the relays that live, the oldest first."""
        found = []
        for znode in sorted(self._relays.znodes.values(), key=lambda znode: znode.created_zxid):
            try:
                data = msgspec.json.decode(znode.data, type=_RelayData)
                split_address(data.address)
            except (LocalProtocolError, *UNREADABLE):
                self.malformed += 1
                continue
            found.append(RelayAt(data.address, znode.created_zxid))
        return found

    def _next(self) -> StoredView | None:
        assert self.me is not None
        if "view" not in self._state.znodes:
            return None
        return next_view(
            self.view, self.alive(), self._standing(), self.me.process, least=self._least
        )

    async def _propose(self) -> None:
        """Write the view that should follow, unless another was quicker."""
        assert self.me is not None
        rank = sorted(self.alive()).index(self.me.process) if self.me.process in self.alive() else 0
        while True:
            await asyncio.sleep((1 + rank) * PROPOSE_NS / NS_PER_S)
            view = self._next()
            if view is None:
                return
            version = self._state.znodes["view"].version
            try:
                await self._state.put("view", msgspec.json.encode(view), version)
                _LOG.info("view %d: members %s", view.number, [m.process for m in view.members])
            except BadVersion:
                pass
            except _FAILED as error:
                self.scope.failed(error)
            try:
                await self._state.read("view")
            except _FAILED as error:
                self.scope.failed(error)


class RelayPlace(_Registered):
    """A relay's place among those of its group; `renewed(incarnation)` whenever that is new."""

    def __init__(
        self,
        ensemble: str,
        group: str,
        address: str,
        *,
        renewed: Callable[[int], None],
        client: ClientSettings | None = None,
        access: ZookeeperAccess | None = None,
    ) -> None:
        super().__init__(ensemble, group, client, access)
        self.address = address
        self._renewed = renewed

    async def enter(self) -> None:
        """Stand in the row of relays.  Raises ZookeeperUnavailable, ZookeeperRefused."""
        await self._open()
        await self._stand()
        self.scope.live = True

    async def _stand(self) -> None:
        data = msgspec.json.encode(_RelayData(self.address))
        path = await self.client.create(
            f"{self.path}/relays/r-", data, ephemeral=True, sequence=True
        )
        self._renewed((await self.client.get(path)).created_zxid)

    def _on_session(self, session: Session) -> None:
        if session is Session.LOST and self.scope.live:
            self.scope.spawn(self._stand_again())

    async def _stand_again(self) -> None:
        while True:
            try:
                await self._stand()
            except _FAILED as error:
                self.scope.failed(error)
                await asyncio.sleep(0.2)
            else:
                return
