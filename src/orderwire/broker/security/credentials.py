"""What is kept of a password: salt, iterations, StoredKey and ServerKey of RFC 5802, never itself.

The text form is Kafka's, as in ZooKeeper's `/config/users`:
`salt=…,stored_key=…,server_key=…,iterations=4096`.
"""

import hashlib
import hmac
import stringprep
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from enum import Enum

import msgspec

from orderwire.kernel.errors import LocalProtocolError, OrderwireError

ITERATIONS_MIN = 4_096
"""RFC 5802's least."""
ITERATIONS_MAX = 16_384
"""Kafka's most: deriving takes that long at the client."""
PASSWORD_BYTES_MAX = 1_024
USER_CHARACTERS_MAX = 256
SALT_BYTES = 24


class Mechanism(Enum):
    """SASL mechanisms, by their registered names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """The hash's name; of SCRAM only."""
        return {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[self.value]


SCRAM = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


class CredentialDamaged(OrderwireError):
    """The text is no credential."""


class Credential(msgspec.Struct, frozen=True):
    """One user's, for one mechanism."""

    mechanism: Mechanism
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def to_text(self) -> str:
        """In Kafka's form."""
        fields = {
            "salt": self.salt,
            "stored_key": self.stored_key,
            "server_key": self.server_key,
        }
        shown = [f"{name}={b64encode(value).decode()}" for name, value in fields.items()]
        return ",".join([*shown, f"iterations={self.iterations}"])

    @classmethod
    def from_text(cls, mechanism: Mechanism, text: str) -> "Credential":
        """Read it back.  Raises CredentialDamaged."""
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            found = cls(
                mechanism,
                b64decode(fields["salt"], validate=True),
                int(fields["iterations"]),
                b64decode(fields["stored_key"], validate=True),
                b64decode(fields["server_key"], validate=True),
            )
        except (KeyError, ValueError) as error:
            raise CredentialDamaged(f"a {mechanism.value} credential does not read") from error
        size = hashlib.new(mechanism.digest).digest_size
        if len(found.stored_key) != size or len(found.server_key) != size or not found.salt:
            raise CredentialDamaged(f"a {mechanism.value} credential has keys of another length")
        if not ITERATIONS_MIN <= found.iterations <= ITERATIONS_MAX:
            raise CredentialDamaged(
                f"a {mechanism.value} credential has {found.iterations} iterations; expected"
                f" {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        return found

    @classmethod
    def from_salted(
        cls, mechanism: Mechanism, salt: bytes, iterations: int, salted: bytes
    ) -> "Credential":
        """Make it from a SaltedPassword.  Raises LocalProtocolError."""
        _check_iterations(iterations)
        client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
        stored_key = hashlib.new(mechanism.digest, client_key).digest()
        server_key = hmac.digest(salted, b"Server Key", mechanism.digest)
        return cls(mechanism, salt, iterations, stored_key, server_key)

    @classmethod
    def from_password(
        cls, mechanism: Mechanism, password: str, salt: bytes, iterations: int = ITERATIONS_MIN
    ) -> "Credential":
        """Derive it: takes milliseconds, so not in an event loop.  Raises LocalProtocolError."""
        _check_iterations(iterations)
        salted = hashlib.pbkdf2_hmac(
            mechanism.digest, prepared(password).encode(), salt, iterations
        )
        return cls.from_salted(mechanism, salt, iterations, salted)

    def is_of(self, password: str) -> bool:
        """Whether this password gives this credential: takes milliseconds."""
        try:
            made = Credential.from_password(
                self.mechanism, password, self.salt, self.iterations
            ).stored_key
        except LocalProtocolError:
            return False
        return hmac.compare_digest(made, self.stored_key)


def credentials_unless(
    known: Mapping[Mechanism, Credential], password: str, salt: Callable[[], bytes]
) -> dict[str, str] | None:
    """Return what to keep of a user's password, mechanism → text; None when it is kept already.

    `salt` draws one.  Takes milliseconds.  Raises LocalProtocolError.
    """
    if all(each in known and known[each].is_of(password) for each in SCRAM):
        return None
    made = (Credential.from_password(each, password, salt()) for each in SCRAM)
    return {each.mechanism.value: each.to_text() for each in made}


def _check_iterations(iterations: int) -> None:
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise LocalProtocolError(
            f"iterations={iterations}; expected {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )


def prepared(text: str) -> str:
    """SASLprep [RFC 4013]: what two ways of typing one password have in common.

    Raises LocalProtocolError for characters that it prohibits, and without telling the password.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each
        for each in text
        if not stringprep.in_table_b1(each)
    )
    done = unicodedata.normalize("NFKC", mapped)
    if not done or len(done.encode()) > PASSWORD_BYTES_MAX:
        raise LocalProtocolError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    prohibited = (
        *(stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3),
        *(stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6),
        *(stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9),
    )
    if any(is_in(each) for each in done for is_in in prohibited):
        raise LocalProtocolError("a password has characters that SASLprep prohibits")
    if any(map(stringprep.in_table_d1, done)):  # right to left: all of it, ends included
        ends = stringprep.in_table_d1(done[0]) and stringprep.in_table_d1(done[-1])
        if any(map(stringprep.in_table_d2, done)) or not ends:
            raise LocalProtocolError("a password mixes directions in a way SASLprep prohibits")
    return done


def check_user(name: str) -> None:
    """Raises LocalProtocolError when this is no name for a user."""
    if not name or len(name) > USER_CHARACTERS_MAX or not name.isprintable():
        raise LocalProtocolError(
            f"user name {name[:40]!r} has {len(name)} characters; expected 1 to"
            f" {USER_CHARACTERS_MAX} printable ones"
        )
