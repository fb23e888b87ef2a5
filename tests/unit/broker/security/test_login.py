"""Logins: RFC 7677's example, wrong ones, and what a stranger can learn."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.security.credentials import SCRAM, Credential, Mechanism
from orderwire.broker.security.login import (
    Accounts,
    Challenge,
    CheckAside,
    LoggedIn,
    Login,
    Refusal,
)
from orderwire.broker.security.scram import (
    MESSAGE_BYTES_MAX,
    NO_SUCH_LOGIN,
    PlainLogin,
    ScramServer,
)
from orderwire.kernel.errors import RemoteProtocolError

SECRET = bytes(range(32))
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)


def accounts(password: str = "pencil", user: str = "user") -> Accounts:
    found = Accounts(SECRET)
    texts = {each.value: Credential.from_password(each, password, SALT).to_text() for each in SCRAM}
    assert found.set_user(user, texts) == 0
    return found


def login(mechanism: Mechanism, known: Accounts | None = None) -> Login:
    one = Login(known or accounts(), (*SCRAM, Mechanism.PLAIN), lambda: NONCE)
    assert one.handshake(mechanism.value) is ErrorCode.NONE
    return one


def proof_of(mechanism: Mechanism, user: str, password: str, challenge: bytes) -> bytes:
    """What an independent client answers."""
    name = mechanism.digest
    fields = dict(part.split(b"=", 1) for part in challenge.split(b","))
    salted = hashlib.pbkdf2_hmac(
        name, password.encode(), b64decode(fields[b"s"]), int(fields[b"i"])
    )
    key = hmac.digest(salted, b"Client Key", name)
    without = b"c=biws,r=" + fields[b"r"]
    said = b",".join([b"n=" + user.encode() + b",r=mine", challenge, without])
    signature = hmac.digest(hashlib.new(name, key).digest(), said, name)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return without + b",p=" + b64encode(proof)


def test_example_of_rfc_7677() -> None:
    one = login(Mechanism.SCRAM_SHA_256)
    first = one.authenticate(FIRST)
    assert first == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    done = one.authenticate(FINAL)
    assert done == LoggedIn("User:user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert one.principal == "User:user"


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    ("user", "password", "is_right"),
    [("user", "pencil", True), ("user", "pen", False), ("stranger", "pencil", False)],
)
def test_only_the_right_password_logs_in(
    mechanism: Mechanism, user: str, password: str, is_right: bool
) -> None:
    one = login(mechanism)
    challenge = one.authenticate(f"n,,n={user},r=mine".encode())
    assert isinstance(challenge, Challenge)
    done = one.authenticate(proof_of(mechanism, user, password, challenge.data))
    assert isinstance(done, LoggedIn) is is_right
    if not is_right:
        assert done == Refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, NO_SUCH_LOGIN)
        assert one.principal is None
        again = one.authenticate(proof_of(mechanism, user, "pencil", challenge.data))
        assert again == Refusal(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate out of turn")


def test_unknown_users_look_like_known_ones() -> None:
    """The same salt each time, another one for another name, as long as a real one is made."""
    salts = []
    for user in ("stranger", "stranger", "other"):
        challenge = login(Mechanism.SCRAM_SHA_256).authenticate(f"n,,n={user},r=x".encode())
        assert isinstance(challenge, Challenge)
        fields = dict(part.split(b"=", 1) for part in challenge.data.split(b","))
        salts.append(b64decode(fields[b"s"]))
        assert fields[b"i"] == b"4096"
    assert salts[0] == salts[1] != salts[2]
    assert len(salts[0]) == 24


def test_names_are_unescaped() -> None:
    one = login(Mechanism.SCRAM_SHA_256, accounts(user="a,b=c"))
    challenge = one.authenticate(b"n,,n=a=2Cb=3Dc,r=mine")
    assert isinstance(challenge, Challenge)
    answer = proof_of(Mechanism.SCRAM_SHA_256, "a=2Cb=3Dc", "pencil", challenge.data)
    assert isinstance(one.authenticate(answer), LoggedIn)
    assert one.principal == "User:a,b=c"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"n,,",
        b"p=tls-unique,,n=user,r=x",
        b"n,,n=user",
        b"n,,r=x,n=user",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=x",
        b"n,,n=user,r=" + b"x" * 513,
        b"n,a=other,n=user,r=x",
        b"n,,n=user,r=x,tokenauth=true",
        b"\xff\xfe",
        b"n" * (MESSAGE_BYTES_MAX + 1),
    ],
)
def test_malformed_first_messages_are_refused(data: bytes) -> None:
    refused = login(Mechanism.SCRAM_SHA_256).authenticate(data)
    assert isinstance(refused, Refusal)
    assert refused.error is ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        FINAL.replace(b",p=", b",q="),
        FINAL.replace(b"c=biws", b"c=eSws"),
        FINAL.replace(b"c=biws,", b""),
        FINAL.replace(b"EkqO%", b"EkqP%"),
        FINAL[:-8],
        FINAL.replace(b"p=dHzb", b"p=d!zb"),
    ],
)
def test_malformed_final_messages_are_refused(data: bytes) -> None:
    one = login(Mechanism.SCRAM_SHA_256)
    one.authenticate(FIRST)
    refused = one.authenticate(data)
    assert isinstance(refused, Refusal)
    assert one.principal is None


def test_plain_is_checked_aside_once() -> None:
    known = accounts()
    one = login(Mechanism.PLAIN, known)
    aside = one.authenticate(b"\0user\0pencil")
    assert isinstance(aside, CheckAside)
    assert "pencil" not in repr(aside)
    assert isinstance(one.authenticate(b"\0user\0pencil"), Refusal)
    one = login(Mechanism.PLAIN, known)
    aside = one.authenticate(b"user\0user\0pencil")
    assert isinstance(aside, CheckAside)
    assert one.checked(is_right=known.is_right(aside.login)) == LoggedIn("User:user", b"")
    assert isinstance(login(Mechanism.PLAIN, known).authenticate(b"\0user\0pencil"), LoggedIn)
    known.set_user("user", {SCRAM[0].value: accounts("pen").users["user"][SCRAM[0]].to_text()})
    assert isinstance(login(Mechanism.PLAIN, known).authenticate(b"\0user\0pencil"), CheckAside)


@pytest.mark.parametrize(("user", "password"), [("user", "pen"), ("stranger", "pencil")])
def test_plain_refuses_the_wrong(user: str, password: str) -> None:
    known = accounts()
    one = login(Mechanism.PLAIN, known)
    aside = one.authenticate(f"\0{user}\0{password}".encode())
    assert isinstance(aside, CheckAside)
    refused = one.checked(is_right=known.is_right(aside.login))
    assert refused == Refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, NO_SUCH_LOGIN)


@pytest.mark.parametrize("data", [b"", b"user", b"\0user", b"\0\0x", b"\0user\0", b"a\0b\0c\0d"])
def test_malformed_plain_is_refused(data: bytes) -> None:
    assert isinstance(login(Mechanism.PLAIN).authenticate(data), Refusal)
    with pytest.raises(RemoteProtocolError, match="PLAIN"):
        PlainLogin.parse(data)


def test_handshake_comes_first_and_once() -> None:
    one = Login(accounts(), SCRAM, lambda: NONCE)
    assert one.names == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert one.handshake("PLAIN") is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert one.handshake("GSSAPI") is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert one.handshake("SCRAM-SHA-512") is ErrorCode.NONE
    assert one.handshake("SCRAM-SHA-512") is ErrorCode.ILLEGAL_SASL_STATE
    early = Login(accounts(), SCRAM, lambda: NONCE).authenticate(FIRST)
    assert early == Refusal(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate out of turn")


def test_damaged_credentials_are_counted_and_nobodys() -> None:
    known = accounts()
    assert known.set_user("user", {"SCRAM-SHA-256": "salt=", "SCRAM-SHA-512": "?"}) == 2
    assert known.find("user", Mechanism.SCRAM_SHA_256) is None


def test_channel_binding_is_refused_by_name() -> None:
    server = ScramServer(SCRAM[0], accounts().find, NONCE, SECRET)
    with pytest.raises(RemoteProtocolError, match="channel binding"):
        server.first(b"p=tls-unique,,n=user,r=x")
