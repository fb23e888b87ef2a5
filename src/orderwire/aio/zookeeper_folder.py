"""A folder of znodes as it is: names and contents, kept up by watches."""

import asyncio
import contextlib
from collections.abc import Callable

from orderwire.aio.zookeeper_errors import NoZnode, ZnodeExists
from orderwire.aio.zookeeper_scope import SessionScope, Worker
from orderwire.broker.coordination.commands import ANY_VERSION, Znode
from orderwire.kernel import LocalProtocolError

NAME_CHARACTERS_MAX = 1_000
READ_AT_ONCE = 256
"""Znodes asked for together."""


class ZnodeFolder(Worker):
    """Mirrors the children of one znode that stays.

    `told(names)` and `listeners` are called in the loop after names have come, gone or changed;
    what is gone is in `znodes` no more.  Of several changes in a row only the last may be told.
    """

    def __init__(
        self, scope: SessionScope, path: str, told: Callable[[set[str]], None] | None = None
    ) -> None:
        super().__init__(scope)
        self.path = path
        self.znodes: dict[str, Znode] = {}
        self.listeners: list[Callable[[set[str]], None]] = [] if told is None else [told]
        self._names_due = True
        self._due: set[str] = set()
        self._changed: set[str] = set()
        """What has not been told yet, since reading did not come to its end."""
        self._hints: dict[str, Callable[[], None]] = {}
        self._reading = asyncio.Lock()

    def pending(self) -> bool:
        """Whether names or contents may have changed."""
        return self._names_due or bool(self._due)

    def missed(self) -> None:
        """Read the names again."""
        self._names_due = True

    def abandon(self) -> None:
        """The session is over."""
        super().abandon()
        self.again()

    def again(self) -> None:
        """Read everything again: nothing is watched any more, or in another session."""
        self._names_due = True
        self._due.update(self.znodes)
        self.kick()

    async def step(self) -> None:
        """Bring the mirror up to date."""
        await self.read()

    async def read_names(self, *anew: str) -> None:
        """Bring the mirror up to date now: all names, and these contents.

        Raises as the client does.
        """
        self._names_due = True
        self._due.update(anew)
        await self.read()

    async def read(self, name: str | None = None) -> None:
        """Bring the mirror up to date now, `name` too.  Raises as the client does."""
        async with self._reading:
            client = self.scope.client
            due, self._due = self._due, set()
            names_due, self._names_due = self._names_due or name is not None, False
            if name is not None:
                due.add(name)
            changed = self._changed
            try:
                if names_due:
                    names = set(await client.children(self.path, self._hint_names))
                    for gone in self.znodes.keys() - names:
                        self._forget(gone, changed)
                    due = (due & names) | (names - self.znodes.keys())
                wanted = sorted(due)
                for start in range(0, len(wanted), READ_AT_ONCE):
                    some = wanted[start : start + READ_AT_ONCE]
                    found = await asyncio.gather(*map(self._get, some))
                    for each, znode in zip(some, found, strict=True):
                        if znode is None:
                            self._forget(each, changed)
                        elif znode != self.znodes.get(each):
                            self.znodes[each] = znode
                            changed.add(each)
            except BaseException:
                self._due |= due
                self._names_due = self._names_due or names_due
                raise
            if changed:
                self._changed = set()
                for told in self.listeners:
                    told(changed)

    async def put(self, name: str, data: bytes, version: int | None = ANY_VERSION) -> None:
        """Write a znode, made if it is not there; it is in `znodes` when this returns.

        `version` is compared; None: it must not be there.  Raises BadVersion, ZnodeExists,
        LocalProtocolError when `name` is none, and what the client raises.
        """
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or name in (".", "..") or "/" in name:
            raise LocalProtocolError(f"{name!r} is no name of a znode: not empty, without '/'")
        client, path = self.scope.client, f"{self.path}/{name}"
        while True:
            if version is None:
                await client.create(path, data)
                break
            try:
                await client.set(path, data, version)
                break
            except NoZnode:
                if version != ANY_VERSION:
                    raise
            with contextlib.suppress(ZnodeExists):
                await client.create(path, data)
                break
        await self.read(name)

    async def remove(self, name: str, version: int = ANY_VERSION) -> None:
        """Delete a znode.  Raises NoZnode, BadVersion, and what the client raises."""
        await self.scope.client.delete(f"{self.path}/{name}", version)
        await self.read(name)

    async def _get(self, name: str) -> Znode | None:
        hint = self._hints.get(name)
        if hint is None:
            hint = self._hints[name] = lambda: self._hint(name)
        try:
            return await self.scope.client.get(f"{self.path}/{name}", hint)
        except NoZnode:
            return None

    def _forget(self, name: str, changed: set[str]) -> None:
        self._hints.pop(name, None)
        if self.znodes.pop(name, None) is not None:
            changed.add(name)

    def _hint_names(self) -> None:
        self._names_due = True
        self.kick()

    def _hint(self, name: str) -> None:
        self._due.add(name)
        self.kick()
