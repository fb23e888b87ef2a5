"""`orderwire ingest`, `metrics` and `count`, each alone, on the session of the tests."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from orderwire.aio.broker_process import BrokerProcess
from orderwire.cli.main import main
from orderwire.pipeline import session
from orderwire.trace.publish import TopicSink
from orderwire.trace.reader import write_trace
from orderwire.verify.synthetic import SyntheticSettings, synthetic_table

pytestmark = pytest.mark.spark

TEXT = (
    "  CHAPTER I\r\nAlice was — 한국어 — beginning\r\n  CHAPTER II\r\nto get very tired\r\n"
).encode()
SYNTHETIC = SyntheticSettings(events=600, members=4, fan_out=2, run_id="conference")


@pytest.fixture
def orderwire(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command as a shell would, but on the Spark session that is there already."""

    @contextmanager
    def shared(_: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return run


@pytest.fixture
def text_topic(servers: str, new_topic: Callable[..., str]) -> str:
    topic = new_topic("text", 1)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for at in range(0, len(TEXT), 10):
        producer.produce(topic, TEXT[at : at + 10])
    assert producer.flush(20) == 0
    return topic


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT)
    return file


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def test_a_trace_goes_from_its_topic_to_its_metrics(
    orderwire: Callable[..., Result],
    servers: str,
    new_topic: Callable[..., str],
    text_topic: str,
    text_file: Path,
    tmp_path: Path,
) -> None:
    topic, lake = new_topic("trace"), tmp_path / "lake"
    trace = synthetic_table(SYNTHETIC)
    with TopicSink(servers, topic) as sink:
        for batch in trace.to_batches(max_chunksize=200):
            sink.write(batch)
    ingest = ("ingest", "--bootstrap", servers, "--lake", lake, "--json")
    landed = document(orderwire(*ingest, "--trace-topic", topic, "--topic", text_topic))
    messages = -(-len(TEXT) // 10)
    assert landed["added"] == {
        "raw_messages": messages,
        "events": trace.num_rows,
        "dests": 400,
    }
    assert set(landed["versions"]) == {"raw_messages", "events", "dests"}
    again = document(orderwire(*ingest, "--trace-topic", topic))
    assert again["added"] == {"raw_messages": 0, "events": 0, "dests": 0}
    (run,) = document(orderwire("metrics", lake, "--json", "--lake", lake))["runs"]
    (same,) = document(orderwire("metrics", f"{topic}@{servers}", "--json"))["runs"]
    assert run == same
    assert (run["run_id"], run["written"], run["delivered"]) == ("conference", 400, 400)
    assert (run["delay_ms"]["p50"], run["lost"], run["late"]) == (20.0, 0, 0)
    counted = document(
        orderwire("count", lake, "--topic", text_topic, "--file", text_file, "--json")
    )
    assert (counted["bytes"], counted["matches_file"]) == (len(TEXT), True)


def test_topics_behind_tls_and_a_login_are_read_with_a_clients_settings(
    orderwire: Callable[..., Result], tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "brokers")
    cert, key = authority.issue("broker")
    users = tmp_path / "users"
    users.touch(0o600)
    users.write_text("root=toor-toor\nann=anns secret\n")
    options = [f"--tls-cert={cert}", f"--tls-key={key}", f"--users={users}", "--authorize"]
    options += ["--sasl=SCRAM-SHA-256", "--super-user=User:root", "--partitions=1"]
    trace = synthetic_table(SYNTHETIC)
    with BrokerProcess.start(tmp_path / "data", *options) as broker:
        login = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.ca),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "root",
            "sasl.password": "toor-toor",
        }
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0, **login})
        for topic in ("trace", "text"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
            may_read = AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                "User:ann",
                "*",
                AclOperation.READ,
                AclPermissionType.ALLOW,
            )
            admin.create_acls([may_read])[may_read].result(20)
        with TopicSink(broker.address, "trace", producer_settings=login) as sink:
            sink.write(trace.to_batches()[0])
        producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, **login})
        producer.produce("text", TEXT)
        assert producer.flush(20) == 0
        settings = tmp_path / "client.properties"
        settings.touch(0o600)
        login |= {"sasl.username": "ann", "sasl.password": "anns secret"}
        settings.write_text("# ann\n" + "".join(f"{k}={v}\n" for k, v in login.items()))
        as_ann = ("--client-config", settings, "--json")
        source, lake = f"trace@{broker.address}", tmp_path / "lake"
        ingest = ("ingest", "--bootstrap", broker.address, "--lake", lake, *as_ann)
        landed = document(orderwire(*ingest, "--trace-topic", "trace", "--topic", "text"))
        assert landed["added"]["events"] == trace.num_rows
        assert landed["added"]["raw_messages"] == 1
        for engine in ("local", "spark"):
            audited = document(orderwire("audit", source, "--engine", engine, *as_ann))
            assert audited["verdict"] == "VALID"
        (run,) = document(orderwire("metrics", source, *as_ann))["runs"]
        assert run["written"] == 400
        assert document(orderwire("count", f"text@{broker.address}", *as_ann))["bytes"] == len(TEXT)
        settings.write_text(settings.read_text().replace("anns secret", "guessed"))
        refused = orderwire("audit", source, *as_ann)
        assert refused.exit_code == 2
        assert "uthentication" in refused.output


def test_metrics_of_a_file_are_for_people_too(
    orderwire: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "trace.arrow"
    write_trace(file, synthetic_table(SYNTHETIC))
    shown = orderwire("metrics", file, "--waiting")
    assert shown.exit_code == 0, shown.output
    assert "conference: jang-delta, Δ 60 ms" in shown.stdout
    assert "waiting: " in shown.stdout


def test_a_text_is_counted_in_its_topic(
    orderwire: Callable[..., Result], servers: str, text_topic: str, text_file: Path
) -> None:
    source = f"{text_topic}@{servers}"
    counted = document(orderwire("count", source, "--file", text_file, "--stream", "--json"))
    assert counted["bytes"] == len(TEXT)
    assert counted["characters"] == len(TEXT.decode())
    assert counted["words"] == len(TEXT.split())
    assert counted["matches_file"] is True
    assert [chapter["heading"] for chapter in counted["chapters"]] == ["CHAPTER I", "CHAPTER II"]
    assert sum(window["bytes"] for window in counted["windows"]) == len(TEXT)
    text_file.write_bytes(TEXT + b"more")
    differs = orderwire("count", source, "--file", text_file)
    assert differs.exit_code == 1
    assert "CHAPTER II" in differs.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("ingest", "--bootstrap", "h:1", "--lake", "x"), 2, "name at least one topic"),
        (("count", "nothing"), 2, "neither TOPIC@HOST:PORT nor a lake"),
        (("metrics", "nothing"), 2, "neither a file or folder that exists"),
        (("metrics", "t@h:1", "--follow"), 2, "--follow needs --lake"),
        (("count", "no-such-topic@{servers}"), 2, "topic no-such-topic does not exist on"),
        (
            ("ingest", "--bootstrap", "{servers}", "--lake", "{tmp}", "--topic", "no-such"),
            2,
            "no-such",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_wrong_use_is_told_in_a_sentence(
    orderwire: Callable[..., Result],
    servers: str,
    tmp_path: Path,
    arguments: tuple[str, ...],
    status: int,
    told: str,
) -> None:
    filled = [argument.format(servers=servers, tmp=tmp_path) for argument in arguments]
    result = orderwire(*filled)
    assert result.exit_code == status, result.output
    assert told in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
