"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512.  [RFC 5802, RFC 7677]"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable

import msgspec

from orderwire.broker.security.credentials import ITERATIONS_MIN, SALT_BYTES, Credential, Mechanism
from orderwire.kernel.errors import RemoteProtocolError

MESSAGE_BYTES_MAX = 4_096
NONCE_CHARACTERS_MAX = 512
NO_SUCH_LOGIN = "authentication failed: no such user, or another password"
"""What everybody hears: it tells nothing of which users there are."""

Find = Callable[[str, Mechanism], Credential | None]
"""Returns the credential of a user for a mechanism."""


class LoginRefused(Exception):
    """The client is not who it says; the message is for it."""


class ScramServer:
    """One login: `first`, then `final`."""

    def __init__(self, mechanism: Mechanism, find: Find, nonce: str, secret: bytes) -> None:
        """`nonce` is drawn for this login.  `secret` is the cluster's own: an unknown user gets a
        salt that follows from it, the same each time, as a known one does."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._secret = secret
        self._credential: Credential | None = None
        self._is_known = False
        self._binding = ""
        self._said = ""
        self.user = ""

    def first(self, data: bytes) -> bytes:
        """Answer the client's first message.  Raises RemoteProtocolError, LoginRefused."""
        text = _text(data)
        flag, comma, rest = text.partition(",")
        authorization, comma2, bare = rest.partition(",")
        if not comma or not comma2 or flag[:1] not in ("n", "y"):
            raise RemoteProtocolError(
                f"a SCRAM login begins with {flag[:20]!r}; channel binding is not supported"
            )
        self._binding = f"{flag},{authorization},"
        fields = _fields(bare)
        if not fields or fields[0][0] != "n" or len(fields) < 2 or fields[1][0] != "r":
            raise RemoteProtocolError("a SCRAM login has no user name or no nonce")
        if any(name == "tokenauth" for name, _ in fields):
            raise LoginRefused("delegation tokens are not supported")
        self.user = _name(fields[0][1])
        if authorization and _name(authorization.removeprefix("a=")) != self.user:
            raise LoginRefused("to act for another user is not supported")
        nonce = fields[1][1]
        if not nonce or len(nonce) > NONCE_CHARACTERS_MAX:
            raise RemoteProtocolError(f"a SCRAM nonce of {len(nonce)} characters")
        self._nonce = nonce + self._nonce
        found = self._find(self.user, self._mechanism)
        self._is_known = found is not None
        self._credential = found if found is not None else self._made_up()
        salt = b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._said = f"{bare},{answer}"
        return answer.encode()

    def final(self, data: bytes) -> bytes:
        """Check the proof; answer with ours.  Raises RemoteProtocolError, LoginRefused."""
        credential = self._credential
        assert credential is not None, "final before first"
        text = _text(data)
        without, comma, proof_text = text.rpartition(",p=")
        fields = dict(_fields(without))
        if not comma or "c" not in fields or "r" not in fields:
            raise RemoteProtocolError("a SCRAM login ends without binding, nonce or proof")
        proof = _bytes(proof_text)
        if _bytes(fields["c"]) != self._binding.encode():
            raise RemoteProtocolError("a SCRAM login ends with another binding than it began with")
        digest = self._mechanism.digest
        said = f"{self._said},{without}".encode()
        signature = hmac.digest(credential.stored_key, said, digest)
        if len(proof) != len(signature):
            raise RemoteProtocolError(
                f"a SCRAM proof of {len(proof)} bytes; expected {len(signature)}"
            )
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        stored = hashlib.new(digest, client_key).digest()
        is_right = hmac.compare_digest(stored, credential.stored_key)
        same_nonce = hmac.compare_digest(fields["r"].encode(), self._nonce.encode())
        if not (is_right and same_nonce and self._is_known):
            raise LoginRefused(NO_SUCH_LOGIN)
        verifier = hmac.digest(credential.server_key, said, digest)
        return b"v=" + b64encode(verifier)

    def _made_up(self) -> Credential:
        """What an unknown user seems to have."""
        salt = hmac.digest(self._secret, f"{self._mechanism.value} {self.user}".encode(), "sha256")
        key = hmac.digest(self._secret, salt, self._mechanism.digest)
        return Credential(self._mechanism, salt[:SALT_BYTES], ITERATIONS_MIN, key, key)


class PlainLogin(msgspec.Struct, frozen=True):
    """A user and a password, to be checked aside: deriving takes milliseconds."""

    user: str
    password: str

    @classmethod
    def parse(cls, data: bytes) -> "PlainLogin":
        """Read `[authzid] NUL user NUL password`.  Raises RemoteProtocolError, LoginRefused."""
        parts = _text(data).split("\0")
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise RemoteProtocolError("a PLAIN login is no user and password between NULs")
        if parts[0] and parts[0] != parts[1]:
            raise LoginRefused("to act for another user is not supported")
        return cls(parts[1], parts[2])

    def __repr__(self) -> str:
        return f"PlainLogin({self.user!r}, …)"


def _text(data: bytes) -> str:
    if len(data) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a login message of {len(data)} bytes; at most {MESSAGE_BYTES_MAX} are taken"
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a login message is no UTF-8 text") from None


def _fields(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (part.partition("=") for part in text.split(","))]


def _name(text: str) -> str:
    """Undo the escapes of `,` and `=`."""
    name = text.replace("=2C", ",").replace("=3D", "=")
    if text.count("=") != text.count("=2C") + text.count("=3D"):
        raise RemoteProtocolError("a user name has a '=' that is no escape")
    return name


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise RemoteProtocolError("a login message holds bytes that are no base 64") from None
