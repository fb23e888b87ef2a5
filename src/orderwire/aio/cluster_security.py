"""Users and rules of a cluster, in ZooKeeper: every broker hears of every change.

`config/secret`, `config/acls`, and `config/users/<name>` with the name percent-encoded.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from orderwire.aio.zookeeper_errors import (
    BadVersion,
    NoZnode,
    ZnodeExists,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.aio.zookeeper_folder import ZnodeFolder
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.security.acls import AclsDamaged, decode_rules, encode_rules
from orderwire.broker.security.guard import SECRET_BYTES, Change, Done, Guard
from orderwire.broker.topic_config import Refusal
from orderwire.kernel import LocalProtocolError
from orderwire.kernel.parsing import UNREADABLE

_LOG = logging.getLogger(__name__)
_SECRET = "secret"
_RULES = "acls"
_ATTEMPTS_MAX = 20
"""Times that others may be quicker with a change of the rules."""
_CHANGES_MAX = 1_000
"""Changes that are under way."""

_Texts = dict[str, str]


class ClusterSecurity:
    """A SecurityStore; `tell` before the broker listens."""

    def __init__(
        self, config: ZnodeFolder, users: ZnodeFolder, settled: Callable[[], None]
    ) -> None:
        """`settled` follows every change that has been answered."""
        self._config = config
        self._users = users
        self._settled = settled
        self._guard: Guard | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def tell(self, guard: Guard) -> None:
        """Let a guard know all there is, and every change from now on.

        Raises AclsDamaged, and what ZooKeeper raises.
        """
        try:
            await self._config.put(_SECRET, secrets.token_bytes(SECRET_BYTES), None)
        except ZnodeExists:
            await self._config.read(_SECRET)
        guard.accounts.secret = self._config.znodes[_SECRET].data
        guard.store = self
        self._guard = guard
        if _RULES in self._config.znodes:
            guard.told_rules(decode_rules(self._config.znodes[_RULES].data))
        self._told_users(set(self._users.znodes))
        self._config.listeners.append(self._told_config)
        self._users.listeners.append(self._told_users)

    def close(self) -> None:
        """Leave off what is under way."""
        for task in list(self._tasks):
            task.cancel()

    def _told_config(self, names: set[str]) -> None:
        if _RULES not in names or self._guard is None:
            return
        znode = self._config.znodes.get(_RULES)
        try:
            self._guard.told_rules([] if znode is None else decode_rules(znode.data))
        except AclsDamaged as error:
            _LOG.error("the rules from before stay in force: %s", error)

    def _told_users(self, names: set[str]) -> None:
        assert self._guard is not None
        for name in names:
            znode = self._users.znodes.get(name)
            texts: _Texts = {}
            if znode is not None:
                try:
                    texts = msgspec.json.decode(znode.data, type=_Texts)
                except UNREADABLE:
                    self._guard.damaged += 1
                    _LOG.error("the credentials of user %r do not read", unquote(name))
            self._guard.told_user(unquote(name), texts)

    # -- changes ----------------------------------------------------------------------------

    def put_user(self, name: str, texts: Mapping[str, str], done: Done) -> None:
        """Replace a user's credentials, at every broker."""
        self._begin(self._put_user(quote(name, safe=""), texts), done)

    async def _put_user(self, name: str, texts: Mapping[str, str]) -> None:
        if texts:
            await self._users.put(name, msgspec.json.encode(texts))
            return
        try:
            await self._users.remove(name)
        except NoZnode:
            await self._users.read()

    def change_rules(self, change: Change, done: Done) -> None:
        """Replace the rules, at every broker; `change` sees what others have changed before."""
        self._begin(self._change_rules(change), done)

    async def _change_rules(self, change: Change) -> None:
        for _ in range(_ATTEMPTS_MAX):
            znode = self._config.znodes.get(_RULES)
            rules = change([] if znode is None else decode_rules(znode.data))
            try:
                version = None if znode is None else znode.version
                await self._config.put(_RULES, encode_rules(rules), version)
                return
            except (BadVersion, ZnodeExists, NoZnode):
                await self._config.read(_RULES)
        raise ZookeeperUnavailable(f"others changed the rules {_ATTEMPTS_MAX} times meanwhile")

    def _begin(self, work: Coroutine[Any, Any, None], done: Done) -> None:
        if len(self._tasks) >= _CHANGES_MAX:
            work.close()
            done(Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many changes are under way"))
            return

        async def carry_out() -> None:
            refusal: Refusal | None = None
            try:
                await work
            except (ZookeeperUnavailable, ZookeeperRefused) as error:
                refusal = Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
            except (LocalProtocolError, AclsDamaged) as error:
                refusal = Refusal(ErrorCode.INVALID_REQUEST, str(error))
            done(refusal)
            self._settled()

        task = asyncio.get_running_loop().create_task(carry_out())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
