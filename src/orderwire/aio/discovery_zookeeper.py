"""ZooKeeper in place of a bootstrap server: ids, a total order of joins, and who is there.  [S002]

A newcomer makes its znode and reads all others' names once, in one request; nobody watches them, as
n joins would tell n²/2.  Later each reads them now and then, as it would renew a lease, and meets
who is new to it. [FDP/1 R16]  What the names say: `orderwire.aio.zookeeper_entries`.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from orderwire.aio.addresses import split_address
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.aio.zookeeper_client import ClientSettings, Session, ZookeeperClient
from orderwire.aio.zookeeper_entries import DomainData, Entry, Folder, domain_path, is_before
from orderwire.aio.zookeeper_errors import (
    NoZnode,
    SessionExpired,
    ZnodeExists,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.discovery.commands import Granted, IdWanted, Meet
from orderwire.discovery.effects import Address
from orderwire.discovery.messages import Contact
from orderwire.discovery.settings import ID_SPACE_MAX, MEMBERS_MAX
from orderwire.kernel import NS_PER_MS, NS_PER_S, LocalProtocolError, parsed

_LOG = logging.getLogger(__name__)

_DRAWS_MAX = 100
"""Ids tried that turn out to be somebody's before the folder is read again."""


class BootstrapTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When ZooKeeper is asked, in nanoseconds."""

    refresh_ns: int = 10 * NS_PER_S
    """A participant reads who is there this often, up to a half more or less."""
    retry_min_ns: int = 100 * NS_PER_MS
    retry_max_ns: int = 5 * NS_PER_S
    """Pause after what failed, doubling from the first to the second."""


class ZookeeperBootstrap:
    """Gives one participant its id: drives an `FdpNode` with an `OutsideEntrance`.

    `submit` takes `Granted` and `Meet` in the loop, e.g. a `DiscoveryHost`'s; every `IdWanted` that
    the host tells is passed to `wanted`.  While no ZooKeeper answers the domain goes on: only
    newcomers wait.  `close` before the node is told to end, so that newcomers do not hear of it.
    """

    def __init__(
        self,
        ensemble: str,
        domain: str,
        address: Address,
        submit: Callable[[Granted | Meet], None],
        *,
        id_space: int = ID_SPACE_MAX,
        wish: int | None = None,
        times: BootstrapTimes | None = None,
        client: ClientSettings | None = None,
        access: ZookeeperAccess | None = None,
    ) -> None:
        """`address` is where others reach the participant; `id_space` holds for a new domain.

        Raises LocalProtocolError.
        """
        split_address(address)
        if not 1 <= id_space <= ID_SPACE_MAX:
            raise LocalProtocolError(f"id_space={id_space} must be from 1 to 2**64")
        if wish is not None and not 0 <= wish < id_space:
            raise LocalProtocolError(f"wish={wish} must be below the id space of {id_space}")
        self.client = ZookeeperClient(ensemble, client, access=access, on_session=self._on_session)
        self.malformed = 0
        """Znodes that no correct participant makes, each time they were read."""
        self.granted = 0
        self.entered = 0
        """Times that this participant has made its znode."""
        self.trouble: str | None = None
        """Why ZooKeeper does not help at the moment; None when it does."""
        self._domain = domain
        self._address = address
        self._submit = submit
        self._id_space = id_space
        self._wish = wish
        self._times = times or BootstrapTimes()
        self._nonce = secrets.token_hex(8)
        self._chance = Random(self._nonce)
        self._lost_inc: int | None = None
        """An id is wanted, and this incarnation's is gone."""
        self._held: tuple[int, int] | None = None
        self._known: Folder | None = None
        self._tried = False
        """There may be znodes of ours."""
        self._name: str | None = None
        """Of our znode of this session."""
        self._claim: str | None = None
        """Our last znode among the ids."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to connect."""
        await self.client.open()
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(_report)

    async def close(self) -> None:
        """Take the participant's znode away and end the session."""
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        finally:
            await self.client.close()

    def wanted(self, indication: IdWanted) -> None:
        """The node has no id: get it one."""
        self._lost_inc = indication.lost_inc
        self._held = None
        self._changed.set()

    def _on_session(self, session: Session) -> None:
        if session is Session.LOST:
            self._known = self._name = None  # The ensemble may have begun anew.
        self._changed.set()

    # -- the work ---------------------------------------------------------------------------

    async def _work(self) -> None:
        failures = 0
        while True:
            pause_ns = self._refresh_ns()
            try:
                self._changed.clear()
                await self._step()
                if self.trouble is not None:
                    _LOG.info("ZooKeeper at %s serves %s again", self.client.ensemble, self._domain)
                failures, self.trouble = 0, None
            except (ZookeeperUnavailable, ZookeeperRefused, NoZnode, _Unusable) as error:
                if isinstance(error, NoZnode):
                    self._known = None
                if self.trouble is None:
                    _LOG.warning("domain %s goes on without ZooKeeper: %s", self._domain, error)
                self.trouble = str(error)
                pause_ns = min(self._times.retry_min_ns << failures, self._times.retry_max_ns)
                failures = min(failures + 1, 16)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ns / NS_PER_S):
                    await self._changed.wait()

    def _refresh_ns(self) -> int:
        half = self._times.refresh_ns // 2
        return half + self._chance.randrange(2 * half + 1)

    async def _step(self) -> None:
        """Bring ZooKeeper and the node to where they should be."""
        if self._lost_inc is None and self._held is None:
            return
        folder = await self._folder()
        if self._lost_inc is not None:
            await self._grant(folder)
            return
        assert self._held is not None
        entries = await self._entries(folder)
        if self._name is None or not any(name == self._name for _, name in entries):
            await self._enter_again(folder, *self._held)
            entries = await self._entries(folder)
        members = self._contacts(folder, entries, None)
        if self._held is not None and members:
            self._tell(Meet(members))

    def _tell(self, command: Granted | Meet) -> None:
        try:
            self._submit(command)
        except LocalProtocolError as error:  # The host has been closed, and we shall be.
            _LOG.debug("domain %s: %s", self._domain, error)

    async def _folder(self) -> Folder:
        """Return the domain, begun if it is not there."""
        if self._known is not None:
            return self._known
        path = domain_path(self._domain)
        place = f"{path}/participants"
        try:
            node = await self.client.get(place)
        except NoZnode:
            await self.client.ensure(place, msgspec.json.encode(DomainData(self._id_space)))
            node = await self.client.get(place)
        holds = f"{place} holds {node.data[:100]!r}"
        data = parsed(msgspec.json.Decoder(DomainData).decode, node.data, holds, _Unusable)
        if not 1 <= data.id_space <= self._id_space:
            raise _Unusable(
                f"{place} is a domain with {data.id_space} ids; expected 1 to {self._id_space}"
            )
        self._known = Folder(path, data.id_space, node.created_ms // 1_000)
        return self._known

    async def _grant(self, folder: Folder) -> None:
        """Enter the participant anew, and give the node its id and all that came before."""
        lost_inc = self._lost_inc
        lost = self.client.sessions_lost
        if self._tried:
            await self._withdraw(folder)
        self._tried = True
        identity = None
        if folder.id_space != ID_SPACE_MAX:
            identity = await self._draw(folder)
        entry = await self._enter(folder, identity, None, lost)
        own = folder.contact(entry)
        assert own is not None
        members = self._contacts(folder, await self._entries(folder), entry.number)
        if self._lost_inc != lost_inc:
            return
        self._lost_inc = None
        self._held = (own.id, own.inc)
        self.granted += 1
        self._tell(Granted(own.id, own.inc, folder.id_space, members))

    async def _enter_again(self, folder: Folder, identity: int, inc: int) -> None:
        """After the end of a session: the same id, unless another has drawn it meanwhile.

        Then the node learns that from the other, and wants a new one. [R11.1]
        """
        lost = self.client.sessions_lost
        await self._withdraw(folder)  # What is there of a session that we gave up.
        if folder.id_space != ID_SPACE_MAX and not await self._take(folder, identity):
            return
        await self._enter(folder, identity, inc, lost)

    async def _enter(
        self, folder: Folder, identity: int | None, inc: int | None, lost: int
    ) -> Entry:
        """Make our znode in the session that came after `lost` others."""
        wish = Entry(self._address, self._nonce, identity, inc, 0)
        path = await self.client.create(
            f"{folder.participants}/{wish.prefix()}", ephemeral=True, sequence=True
        )
        if self.client.sessions_lost != lost:  # The folder may be a new one, with another epoch.
            raise SessionExpired("the session ended while the participant was entered")
        self.entered += 1
        self._name = path.rpartition("/")[2]
        entry = Entry.parse(self._name)
        assert entry is not None, path
        return entry

    async def _withdraw(self, folder: Folder) -> None:
        """Delete what is ours: of a lost id, or of an attempt whose answer was lost."""
        for entry, name in await self._entries(folder):
            if entry.nonce == self._nonce:
                with contextlib.suppress(NoZnode):
                    await self.client.delete(f"{folder.participants}/{name}")
        self._name = None
        if self._claim is not None:
            with contextlib.suppress(NoZnode):
                if (await self.client.get(self._claim)).data == self._nonce.encode():
                    await self.client.delete(self._claim)
            self._claim = None

    # -- ids of a small space ---------------------------------------------------------------

    async def _draw(self, folder: Folder) -> int:
        """Take a free id.  Raises _Unusable when there is none."""
        taken: set[int] = set()
        with contextlib.suppress(NoZnode):  # Nobody has taken any yet.
            taken.update(map(folder.taken, await self.client.children(folder.ids)))
        taken.discard(-1)
        if self._wish is not None and self._wish < folder.id_space:
            if await self._take(folder, self._wish):
                return self._wish
            taken.add(self._wish)
        for _ in range(_DRAWS_MAX):
            if len(taken) >= folder.id_space:
                break
            identity = self._free(folder, taken)
            if await self._take(folder, identity):
                return identity
            taken.add(identity)
        raise _Unusable(f"all {folder.id_space} ids of domain {self._domain!r} are taken")

    def _free(self, folder: Folder, taken: set[int]) -> int:
        """Draw an id that is not among these, at random: their order matters. [S002 spec 0.8]"""
        start = self._chance.randrange(folder.id_space)
        for step in range(len(taken) + 1):
            identity = (start + step) % folder.id_space
            if identity not in taken:
                return identity
        raise AssertionError((folder, len(taken)))

    async def _take(self, folder: Folder, identity: int) -> bool:
        """Make the id's znode; False when it is another's."""
        path = folder.id_path(identity)
        self._claim = path
        try:
            try:
                await self.client.create(path, self._nonce.encode(), ephemeral=True)
            except NoZnode:
                await self.client.ensure(folder.ids)
                await self.client.create(path, self._nonce.encode(), ephemeral=True)
        except ZnodeExists:
            self._claim = None
            return False
        return True

    # -- who is there -----------------------------------------------------------------------

    async def _entries(self, folder: Folder) -> list[tuple[Entry, str]]:
        """Read the participants' znodes, in no order."""
        entries: list[tuple[Entry, str]] = []
        for name in await self.client.children(folder.participants):
            entry = Entry.parse(name)
            if entry is None or folder.contact(entry) is None:
                self.malformed += 1
            elif len(entries) < MEMBERS_MAX:
                entries.append((entry, name))
        return entries

    def _contacts(
        self, folder: Folder, entries: list[tuple[Entry, str]], before: int | None
    ) -> tuple[Contact, ...]:
        """Return whom these name, in the order of joining, one an address; not ourselves."""
        newest: dict[Address, tuple[int, Contact]] = {}
        for entry, _ in entries:
            contact = folder.contact(entry)
            assert contact is not None
            if entry.address == self._address or entry.nonce == self._nonce:
                continue
            if before is not None and not is_before(entry.number, before):
                continue
            known = newest.get(entry.address)
            if known is None or known[1].inc < contact.inc:
                newest[entry.address] = (entry.number, contact)
        return tuple(contact for _, contact in sorted(newest.values(), key=_by_number))


class _Unusable(Exception):
    """The domain's znodes are not as ours; the message says how."""


def _by_number(each: tuple[int, Any]) -> int:
    return each[0]


def _report(task: "asyncio.Task[None]") -> None:
    """Tell of a fault of ours at once, not when the task is waited for."""
    if not task.cancelled() and task.exception() is not None:
        context = {"message": "the ZooKeeper bootstrap failed", "exception": task.exception()}
        task.get_loop().call_exception_handler(context)
