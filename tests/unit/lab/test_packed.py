"""What a stranger gets who installs the wheel."""

import os
import subprocess
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import click
import pytest

from orderwire.lab.experiment import experiments

ROOT = Path(__file__).parents[3]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]


@pytest.mark.slow
def test_an_installed_wheel_finds_the_experiments(tmp_path: Path) -> None:
    line = ["uv", "build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT)]
    subprocess.run(line, check=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    environment = tmp_path / "fresh"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(packages)  # A wheel of pure Python: this is what pip does, too.
    packages.joinpath("others.pth").write_text(str(Path(click.__file__).parents[1]))
    told = subprocess.run(
        [environment / "bin" / "python", "-m", "orderwire", "lab", "list"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not told.returncode, told.stderr
    assert [each.split()[0] for each in told.stdout.splitlines()] == list(experiments())


def test_the_experiments_are_packed_beside_their_reader() -> None:
    assert SETTINGS["targets"]["wheel"]["force-include"] == {
        "experiments": "orderwire/lab/experiments"
    }
