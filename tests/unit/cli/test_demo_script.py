"""The conference's script loses no byte of the text and lets everyone speak."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.cli.demo.script import (
    UTTERANCE_BYTES_MAX,
    UTTERANCES_MAX,
    ScriptError,
    default_text,
    listeners,
    read_text,
    utterances_of,
    write_script,
)


@given(st.binary(max_size=5_000), st.integers(2, 8))
def test_rooms_joined_are_the_text(text: bytes, members: int) -> None:
    rooms = write_script(text, members)
    assert b"".join(said for room in rooms for said in room.utterances) == text
    assert all(len(set(room.members)) == len(room.members) for room in rooms)


def test_a_large_text_is_told_in_bounded_pieces() -> None:
    parts = utterances_of(b"x" * 3_000_000 + b"\r\n" + b"line\n" * 500_000)
    assert len(parts) <= 1.1 * UTTERANCES_MAX
    assert max(map(len, parts)) <= UTTERANCE_BYTES_MAX


def test_default_text_is_real_prose_of_the_python_installation() -> None:
    text = default_text()
    assert len(text) > 100_000
    assert read_text(None) == text


def test_every_member_speaks_and_is_heard() -> None:
    rooms = write_script(default_text(), 6)
    speakers = {room.speaker(k) for room in rooms for k in range(len(room.utterances))}
    assert speakers == set(range(6))
    assert listeners(rooms, 0) == (1, 2, 4, 5)
    assert 3 not in listeners(rooms, 0)


@pytest.mark.parametrize("content", [b"", b"\r\n \n"])
def test_a_file_without_text_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "empty.txt"
    file.write_bytes(content)
    with pytest.raises(ScriptError, match="holds no text"):
        read_text(file)
    with pytest.raises(ScriptError, match="cannot read"):
        read_text(tmp_path / "missing.txt")
