"""What a broker asks of its clients: who they are, and whether they may."""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Protocol

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log.storage import Storage
from orderwire.broker.security.acls import (
    Acls,
    Binding,
    Operation,
    ResourceType,
    decode_rules,
    encode_rules,
)
from orderwire.broker.security.credentials import Mechanism
from orderwire.broker.security.login import ANONYMOUS, Accounts, Login
from orderwire.broker.topic_config import Refusal
from orderwire.kernel.errors import LocalProtocolError, OrderwireError
from orderwire.kernel.parsing import UNREADABLE

UNAUTHENTICATED_BYTES_MAX = 64 << 10
"""Longest request of a client that has not said who it is."""
USERS_MAX = 100_000
SECRET_BYTES = 32
_DECISIONS_KEPT_MAX = 10_000
_FILE = "security.json"
_VERSION = 1

Done = Callable[[Refusal | None], None]
Change = Callable[[list[Binding]], list[Binding]]
"""From all rules to all rules; may be asked again when somebody else was quicker.  Raises
LocalProtocolError."""


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one broker demands."""

    mechanisms: tuple[Mechanism, ...] = ()
    """SASL mechanisms; none: nobody is asked who it is."""
    authorize: bool = False
    """Whether access control lists decide; otherwise everybody may do everything."""
    super_users: tuple[str, ...] = ()
    """Principals (`User:NAME`) that may do everything."""
    allow_without_acl: bool = False
    """Whether what no rule speaks of is everybody's."""


class SecurityStore(Protocol):
    """Where users and rules are kept; who opens it tells the guard of every change."""

    def put_user(self, name: str, texts: Mapping[str, str], done: Done) -> None:
        """Replace a user's credentials, mechanism → text; none: remove the user."""
        ...

    def change_rules(self, change: Change, done: Done) -> None:
        """Replace the rules by what `change` makes of them."""
        ...


class Guard:
    """The accounts, the rules, and one connection's login at a time."""

    def __init__(self, settings: SecuritySettings, secret: bytes, chance: Random) -> None:
        self.settings = settings
        self.accounts = Accounts(secret)
        self.acls = Acls(settings.super_users, allow_without_rules=settings.allow_without_acl)
        self.store: SecurityStore | None = None
        self.damaged = 0
        """Stored credentials that did not read."""
        self._chance = chance
        self._decisions: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}

    def login(self) -> Login | None:
        """Begin the login of a new connection; None when nobody is asked."""
        if not self.settings.mechanisms:
            return None
        return Login(self.accounts, self.settings.mechanisms, self._nonce)

    def _nonce(self) -> str:
        return self._chance.getrandbits(192).to_bytes(24, "big").hex()

    def permits(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Whether this client may do this."""
        if not self.settings.authorize:
            return True
        key = (principal, host, operation, kind, name)
        known = self._decisions.get(key)
        if known is None:
            known = self.acls.allows(*key)
            if len(self._decisions) >= _DECISIONS_KEPT_MAX:
                self._decisions.clear()
            self._decisions[key] = known
        return known

    def permits_some(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Whether there may be something to which this client may do this."""
        if not self.settings.authorize:
            return True
        return self.acls.allows_some(principal, host, operation, kind)

    def told_user(self, name: str, texts: Mapping[str, str]) -> None:
        """The store has these credentials for a user."""
        self.damaged += self.accounts.set_user(name, texts)

    def told_rules(self, rules: Iterable[Binding]) -> None:
        """The store has these rules."""
        self.acls.replace(rules)
        self._decisions.clear()


class SecurityDamaged(OrderwireError):
    """The broker's own file of users and rules does not read."""


class _Kept(msgspec.Struct):
    version: int
    secret: bytes
    users: dict[str, dict[str, str]]
    rules: list[Binding]


class FileSecurityStore:
    """Users and rules of a broker that is alone, in one file of its data directory."""

    def __init__(self, files: Storage, chance: Random) -> None:
        """Read the file, or begin one.  Raises SecurityDamaged."""
        self._files = files
        self._guard: Guard | None = None
        data = files.read_file(_FILE)
        if data is None:
            secret = chance.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
            self._kept = _Kept(_VERSION, secret, {}, [])
            self._save(self._kept)
            return
        try:
            self._kept = msgspec.json.decode(data, type=_Kept)
            decode_rules(encode_rules(self._kept.rules))
        except (*UNREADABLE, OrderwireError) as error:
            raise SecurityDamaged(f"{_FILE} ({len(data)} bytes) does not read: {error}") from error
        if self._kept.version != _VERSION:
            raise SecurityDamaged(f"{_FILE} has version {self._kept.version}; known: {_VERSION}")

    @property
    def secret(self) -> bytes:
        """Drawn when the file was made."""
        return self._kept.secret

    def tell(self, guard: Guard) -> None:
        """Let a guard know all, and every change from now on."""
        self._guard = guard
        guard.store = self
        for name, texts in self._kept.users.items():
            guard.told_user(name, texts)
        guard.told_rules(self._kept.rules)

    def put_user(self, name: str, texts: Mapping[str, str], done: Done) -> None:
        """Replace a user's credentials."""
        users = {**self._kept.users, name: dict(texts)}
        if not texts:
            del users[name]
        if len(users) > USERS_MAX:
            done(Refusal(ErrorCode.POLICY_VIOLATION, f"{USERS_MAX} users are kept at most"))
            return
        kept = msgspec.structs.replace(self._kept, users=users)
        self._save(kept)
        self._kept = kept
        if self._guard is not None:
            self._guard.told_user(name, texts)
        done(None)

    def change_rules(self, change: Change, done: Done) -> None:
        """Replace the rules."""
        try:
            rules = change(list(self._kept.rules))
        except LocalProtocolError as error:
            done(Refusal(ErrorCode.INVALID_REQUEST, str(error)))
            return
        kept = msgspec.structs.replace(self._kept, rules=rules)
        self._save(kept)
        self._kept = kept
        if self._guard is not None:
            self._guard.told_rules(rules)
        done(None)

    def _save(self, kept: _Kept) -> None:
        self._files.replace_file(_FILE, msgspec.json.encode(kept))


__all__ = [
    "ANONYMOUS",
    "Change",
    "Done",
    "FileSecurityStore",
    "Guard",
    "SecurityDamaged",
    "SecuritySettings",
    "SecurityStore",
]
