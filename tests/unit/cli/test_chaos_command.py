"""What `orderwire chaos` refuses."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from orderwire.cli.main import main


def test_a_disk_that_nothing_slows_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(main, ["chaos", "--fault=slow-disk", f"--data={tmp_path / 'c'}"])
    assert done.exit_code == 1
    assert "slow-disk needs strace" in done.output


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    done = CliRunner().invoke(main, ["chaos", f"--data={tmp_path}"])
    assert done.exit_code == 2
    assert "is not empty" in done.output
