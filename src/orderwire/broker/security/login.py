"""One connection's way to a principal: SaslHandshake, then SaslAuthenticate until it is known."""

import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.security.credentials import SCRAM, Credential, CredentialDamaged, Mechanism
from orderwire.broker.security.scram import (
    NO_SUCH_LOGIN,
    LoginRefused,
    PlainLogin,
    ScramServer,
)
from orderwire.kernel.errors import RemoteProtocolError

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for who did not say who it is."""
PASSWORDS_KNOWN_MAX = 1_000
"""Passwords that were right, kept as keyed hashes: who comes again costs no derivation."""


class Accounts:
    """Users and their credentials, kept in memory and changed by whoever reads their store."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is drawn once for the cluster and kept: made-up salts follow from it."""
        self.secret = secret
        self._users: dict[str, dict[Mechanism, Credential]] = {}
        self._right: OrderedDict[bytes, None] = OrderedDict()

    @property
    def users(self) -> Mapping[str, Mapping[Mechanism, Credential]]:
        """By name."""
        return self._users

    def set_user(self, name: str, texts: Mapping[str, str]) -> int:
        """Replace what is known of a user by mechanism → text; returns how many do not read."""
        found: dict[Mechanism, Credential] = {}
        damaged = 0
        for mechanism in SCRAM:
            if mechanism.value in texts:
                try:
                    found[mechanism] = Credential.from_text(mechanism, texts[mechanism.value])
                except CredentialDamaged:
                    damaged += 1
        if found:
            self._users[name] = found
        else:
            self._users.pop(name, None)
        return damaged

    def remove_user(self, name: str) -> None:
        """Forget a user."""
        self._users.pop(name, None)

    def find(self, name: str, mechanism: Mechanism) -> Credential | None:
        """Return a credential."""
        return self._users.get(name, {}).get(mechanism)

    def is_known_password(self, login: PlainLogin) -> bool:
        """Whether this password was right before, and the credential is still the same."""
        return any(
            self._mark(login, each) in self._right
            for each in self._users.get(login.user, {}).values()
        )

    def is_right(self, login: PlainLogin) -> bool:
        """Derive and compare: milliseconds, for known and unknown users alike."""
        known = next(iter(self._users.get(login.user, {}).values()), None)
        credential = known or Credential(SCRAM[0], self.secret, 4_096, self.secret, self.secret)
        return credential.is_of(login.password) and known is not None

    def note_right(self, login: PlainLogin) -> None:
        """Remember that this password is right."""
        for each in list(self._users.get(login.user, {}).values())[:1]:
            self._right[self._mark(login, each)] = None
        while len(self._right) > PASSWORDS_KNOWN_MAX:
            self._right.popitem(last=False)

    def _mark(self, login: PlainLogin, credential: Credential) -> bytes:
        said = f"{login.user}\0{login.password}\0".encode() + credential.stored_key
        return hmac.digest(self.secret, said, "sha256")


class Challenge(msgspec.Struct, frozen=True):
    """The client has to go on."""

    data: bytes


class LoggedIn(msgspec.Struct, frozen=True):
    """The client is this principal."""

    principal: str
    data: bytes


class CheckAside(msgspec.Struct, frozen=True):
    """Ask `Accounts.is_right` in another thread, then call `Login.checked`."""

    login: PlainLogin


class Refusal(msgspec.Struct, frozen=True):
    """The login failed: answer with this, then close."""

    error: ErrorCode
    message: str


class Login:
    """One connection's login, and its result."""

    def __init__(
        self, accounts: Accounts, mechanisms: tuple[Mechanism, ...], nonce: Callable[[], str]
    ) -> None:
        """`mechanisms` are those of the listener: PLAIN only where it is encrypted."""
        self._accounts = accounts
        self._mechanisms = mechanisms
        self._nonce = nonce
        self._mechanism: Mechanism | None = None
        self._scram: ScramServer | None = None
        self._aside: PlainLogin | None = None
        self._is_over = False
        self.principal: str | None = None
        """Who it is; None while that is unknown."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the mechanisms that there are."""
        return tuple(each.value for each in self._mechanisms)

    def handshake(self, mechanism: str) -> ErrorCode:
        """Choose a mechanism."""
        if self._mechanism is not None or self._is_over:
            return ErrorCode.ILLEGAL_SASL_STATE
        chosen = next((each for each in self._mechanisms if each.value == mechanism), None)
        if chosen is None:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._mechanism = chosen
        return ErrorCode.NONE

    def authenticate(self, data: bytes) -> Challenge | LoggedIn | CheckAside | Refusal:
        """Take the client's next message."""
        mechanism = self._mechanism
        if mechanism is None or self._aside is not None or self._is_over:
            self._is_over = True
            return Refusal(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate out of turn")
        try:
            if mechanism is Mechanism.PLAIN:
                return self._plain(PlainLogin.parse(data))
            if self._scram is None:
                self._scram = ScramServer(
                    mechanism, self._accounts.find, self._nonce(), self._accounts.secret
                )
                return Challenge(self._scram.first(data))
            return self._done(self._scram.user, self._scram.final(data))
        except (LoginRefused, RemoteProtocolError) as error:
            self._is_over = True
            return Refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))

    def _plain(self, login: PlainLogin) -> LoggedIn | CheckAside:
        if self._accounts.is_known_password(login):
            return self._done(login.user, b"")
        self._aside = login
        return CheckAside(login)

    def checked(self, *, is_right: bool) -> LoggedIn | Refusal:
        """Take the answer to `CheckAside`."""
        login, self._aside = self._aside, None
        assert login is not None
        if not is_right:
            self._is_over = True
            return Refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, NO_SUCH_LOGIN)
        self._accounts.note_right(login)
        return self._done(login.user, b"")

    def _done(self, user: str, data: bytes) -> LoggedIn:
        self._is_over = True
        self.principal = f"User:{user}"
        return LoggedIn(self.principal, data)
