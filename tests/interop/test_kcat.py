"""kcat, with the librdkafka 2.0.2 that distributions ship, against a real broker."""

import os
import shutil
import subprocess

import pytest
from kafka_raw import RawClient
from sealed_topic import TOPIC, VALUES

from orderwire.aio.broker_process import BrokerProcess
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

pytestmark = pytest.mark.interop

SECONDS_MAX = 30.0


@pytest.fixture
def kcat() -> str:
    path = shutil.which("kcat")
    if path is None:
        assert os.environ.get("CI") != "true", "kcat is missing: apt-get install kcat"
        pytest.skip("kcat is not installed: apt-get install kcat")
    return path


def call(kcat: str, broker: BrokerProcess, *options: str, given: bytes = b"") -> bytes:
    done = subprocess.run(
        [kcat, "-b", broker.address, *options],
        input=given,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_really_used_and_read_to_the_end(
    kcat: str, broker: BrokerProcess, codec: str
) -> None:
    """Old librdkafka switches compression off unless Produce is announced from version 0."""
    topic = f"kcat-{codec}"
    lines = b"".join(b"%06d" % n + b"d" * 94 + b"\n" for n in range(1_000))
    call(kcat, broker, "-P", "-t", topic, "-z", codec, "-X", "linger.ms=20", given=lines)
    assert call(kcat, broker, "-C", "-t", topic, "-o", "beginning", "-e", "-q") == lines
    ask = FetchRequest(
        topics=[FetchTopic(topic, partitions=[FetchPartition(0, -1, 0, -1, -1, 1 << 24)])]
    )
    with RawClient(broker.address) as raw:
        stored = raw.ask(ApiKey.FETCH, 4, ask).responses[0].partitions[0].records
    if codec == "none":
        assert len(stored) > len(lines)
    else:
        assert len(stored) < len(lines) / 4


def test_seals_are_stepped_over(kcat: str, sealed: BrokerProcess) -> None:
    """[S004:8.3] In the middle, and behind the last record: it hears of the end."""
    read = call(kcat, sealed, "-C", "-t", TOPIC, "-o", "beginning", "-e", "-q")
    assert read.split() == VALUES


def test_metadata_is_listed(kcat: str, broker: BrokerProcess) -> None:
    call(kcat, broker, "-P", "-t", "kcat-listed", given=b"x\n")
    assert b'topic "kcat-listed" with 1 partitions' in call(kcat, broker, "-L")


def test_group_reads_commits_and_resumes(kcat: str, broker: BrokerProcess) -> None:
    call(kcat, broker, "-P", "-t", "kcat-group", given=b"".join(b"%d\n" % n for n in range(30)))
    group = ["-G", "kcat-g", "-X", "auto.offset.reset=earliest", "-q"]
    first = call(kcat, broker, *group, "-c", "10", "kcat-group")
    assert first.split() == [b"%d" % n for n in range(10)]
    second = call(kcat, broker, *group, "-e", "kcat-group")
    assert second.split() == [b"%d" % n for n in range(10, 30)]


def test_offset_is_found_by_time(kcat: str, broker: BrokerProcess) -> None:
    call(kcat, broker, "-P", "-t", "kcat-time", given=b"a\nb\n")
    assert b"offset 2" in call(kcat, broker, "-Q", "-t", "kcat-time:0:-1")
