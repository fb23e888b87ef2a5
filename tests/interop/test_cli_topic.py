"""`orderwire topic` against a real broker: a file goes in and comes out byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orderwire.aio.broker_process import BrokerProcess
from orderwire.cli.main import main

pytestmark = pytest.mark.interop


def call(broker: BrokerProcess, *order: str) -> Result:
    return CliRunner().invoke(main, ["topic", *order, "--bootstrap", broker.address])


def answer(broker: BrokerProcess, *order: str) -> Any:
    done = call(broker, *order, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("options", "messages"), [(["--message-bytes", "100"], 61), (["--compression", "zstd"], 400)]
)
def test_file_goes_in_and_comes_out(
    broker: BrokerProcess, tmp_path: Path, options: list[str], messages: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"".join(b"line %4d ends\n" % n for n in range(399)) + b"x" * 415)
    topic = f"cli-{messages}"
    size = source.stat().st_size
    wrote = answer(broker, "write", topic, "--file", str(source), *options)
    copied = answer(broker, "read", topic, "--out", str(tmp_path / "copy"))
    expected = {"topic": topic, "messages": -(-size // 100) if messages == 61 else 400}
    assert wrote == copied == {**expected, "bytes": size}
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert call(broker, "read", topic).stdout_bytes == source.read_bytes()


def test_topics_are_made_described_and_deleted(broker: BrokerProcess) -> None:
    made = answer(broker, "create", "cli-t", "--partitions", "2", "--config", "retention.ms=99")
    assert made == {"topic": "cli-t", "partitions": 2}
    assert {"topic": "cli-t", "partitions": 2} in answer(broker, "list")["topics"]
    described = answer(broker, "describe", "cli-t")
    assert described["configs"]["retention.ms"] == "99"
    assert [row["end"] for row in described["partitions"]] == [0, 0]
    again = call(broker, "create", "cli-t")
    assert again.exit_code == 1
    assert "already exists" in again.output
    assert answer(broker, "delete", "cli-t") == {"deleted": "cli-t"}
    for order in (["describe", "cli-t"], ["read", "cli-t"], ["delete", "cli-t"]):
        assert call(broker, *order).exit_code == 1


def test_a_topic_has_as_many_copies_as_brokers_were_told_unless_it_says(
    broker: BrokerProcess,
) -> None:
    brokers = len(broker.address.split(","))
    for topic, options, copies in (("all", [], brokers), ("one", ["--replication", "1"], 1)):
        answer(broker, "create", f"cli-{topic}", *options)
        (row,) = answer(broker, "describe", f"cli-{topic}")["partitions"]
        assert len(row["replicas"]) == len(row["in_sync"]) == copies
        assert "in sync: " in call(broker, "describe", f"cli-{topic}").output
    refused = call(broker, "create", "cli-many", "--replication", str(brokers + 1))
    assert refused.exit_code == 1


def test_reading_ends_after_as_many_as_were_asked_for(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"a\nb\nc\n")
    answer(broker, "write", "cli-some", "--file", str(source))
    assert call(broker, "read", "cli-some", "--messages", "2").stdout_bytes == b"a\nb\n"
    assert answer(broker, "read", "cli-some")["messages"] == 3
