"""When a bootstrap server waits to learn who is there.  Decision 0023."""

from pathlib import Path

import pytest

from orderwire.cli.bootstrap_state import Keeper, State, must_recover, runtime_path
from orderwire.kernel import LocalProtocolError

HELD, FREE = State(7, held=True), State(7, held=False)
HERE, ELSEWHERE = "127.0.0.1:7400", "192.168.1.2:7400"


@pytest.mark.parametrize(
    ("before", "address", "listen", "first", "expected"),
    [
        (None, HERE, HERE, False, False),  # whoever held an id would be on this machine, too
        (None, ELSEWHERE, ELSEWHERE, False, True),
        (None, ELSEWHERE, "0.0.0.0:7400", False, True),
        (None, ELSEWHERE, ELSEWHERE, True, False),
        (HELD, HERE, HERE, False, True),
        (HELD, HERE, HERE, True, True),  # what is known is above what is told
        (HELD, ELSEWHERE, ELSEWHERE, True, True),
        (FREE, ELSEWHERE, ELSEWHERE, False, False),
        (HELD, HERE, "127.0.0.1:0", False, False),  # a port that nobody can have known
        (None, ELSEWHERE, "0.0.0.0:0", False, False),
    ],
)
def test_it_waits_where_ids_may_be_held(
    before: State | None, address: str, listen: str, first: bool, expected: bool
) -> None:
    assert must_recover(before, address=address, listen=listen, first=first) is expected


def test_a_server_that_is_killed_leaves_word_that_ids_may_be_held(tmp_path: Path) -> None:
    path = tmp_path / "state"
    keeper = Keeper(path, lasting=True)
    assert keeper.before is None
    keeper.begin(5)
    assert Keeper(path, lasting=True).before == State(5, held=True)
    keeper.end(6, held=False)
    assert Keeper(path, lasting=True).before == State(6, held=False)


@pytest.mark.parametrize("held", [False, True])
def test_where_no_server_comes_again_nothing_is_left_behind(tmp_path: Path, held: bool) -> None:
    keeper = Keeper(tmp_path / "state", lasting=False)
    keeper.begin(5)
    keeper.end(5, held=held)
    assert keeper.path.exists() == held


def test_each_domain_and_address_has_a_file_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    asked = [("a", HERE), ("a", ELSEWHERE), ("b", HERE), ("a/../..", HERE), ("가" * 200, HERE)]
    paths = {runtime_path(domain, address) for domain, address in asked}
    assert len(paths) == len(asked)
    assert {path.parent for path in paths} == {tmp_path / "orderwire"}
    for path in paths:
        State(1).save(path)


def test_a_folder_that_another_may_have_made_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "orderwire").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalProtocolError, match="--state"):
        runtime_path("a", HERE)
