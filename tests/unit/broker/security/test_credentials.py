"""What is kept of passwords."""

import pytest

from orderwire.broker.security.credentials import (
    ITERATIONS_MAX,
    SCRAM,
    Credential,
    CredentialDamaged,
    Mechanism,
    check_user,
    credentials_unless,
    prepared,
)
from orderwire.kernel.errors import LocalProtocolError

SALT = b"salt of 24 bytes or so.."


@pytest.mark.parametrize("mechanism", SCRAM)
def test_text_form_reads_back(mechanism: Mechanism) -> None:
    made = Credential.from_password(mechanism, "pencil", SALT)
    assert Credential.from_text(mechanism, made.to_text()) == made
    assert made.is_of("pencil")
    assert not made.is_of("Pencil")
    assert not made.is_of("")
    assert "pencil" not in made.to_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "salt=AAAA",
        "salt=AAAA,stored_key=AAAA,server_key=AAAA,iterations=4096",
        "salt=!,stored_key=AAAA,server_key=AAAA,iterations=4096",
        "salt=AAAA,stored_key=AAAA,server_key=AAAA,iterations=many",
    ],
)
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(CredentialDamaged, match="SCRAM-SHA-256"):
        Credential.from_text(Mechanism.SCRAM_SHA_256, text)


@pytest.mark.parametrize("iterations", [0, 4_095, ITERATIONS_MAX + 1])
def test_iterations_have_limits(iterations: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"iterations={iterations}"):
        Credential.from_password(Mechanism.SCRAM_SHA_256, "pencil", SALT, iterations)
    good = Credential.from_password(Mechanism.SCRAM_SHA_256, "pencil", SALT)
    text = good.to_text().replace("iterations=4096", f"iterations={iterations}")
    with pytest.raises(CredentialDamaged, match=f"{iterations} iterations"):
        Credential.from_text(Mechanism.SCRAM_SHA_256, text)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_passwords_are_prepared(typed: str, meant: str) -> None:
    """The examples of RFC 4013, and a space that is none of ASCII."""
    assert prepared(typed) == meant


@pytest.mark.parametrize(
    "typed", ["\u0007", "\u0627\u0031", "\u0627a\u0628", "", "\u00ad", "\ue000"]
)
def test_prohibited_passwords_are_refused_untold(typed: str) -> None:
    with pytest.raises(LocalProtocolError, match="password") as refused:
        prepared(typed)
    assert not typed or typed not in str(refused.value)


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb"])
def test_user_names_have_limits(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="user name"):
        check_user(name)


def test_a_password_that_is_kept_already_is_left_alone() -> None:
    salts = iter([b"one" * 8, b"two" * 8, b"six" * 8, b"ten" * 8])
    texts = credentials_unless({}, "pencil", lambda: next(salts))
    assert texts is not None
    known = {each: Credential.from_text(each, texts[each.value]) for each in SCRAM}
    assert all(each.is_of("pencil") for each in known.values())
    assert credentials_unless(known, "pencil", lambda: next(salts)) is None
    assert credentials_unless({SCRAM[0]: known[SCRAM[0]]}, "pencil", lambda: b"x" * 24) is not None
    assert credentials_unless(known, "pen", lambda: next(salts)) is not None
