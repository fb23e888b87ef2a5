"""The audit of replication on Spark says, sentence by sentence, what the plain judge says."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from replication_crude import CrudeReplica
from replication_histories import broken, history
from replication_shapes import drawn_run

from orderwire.broker.replication.settings import Mode
from orderwire.cli.main import main
from orderwire.pipeline.replication_audit import findings_of, history_frame, report_of
from orderwire.pipeline.replication_source import is_history_source, read_histories
from orderwire.sim.replication_run import run_replication
from orderwire.trace.reader import record_bytes
from orderwire.verify.replication import Committed, Elected, Event, judge
from orderwire.verify.replication_audit import TITLES, audit_table
from orderwire.verify.replication_history import (
    Key,
    batches_from,
    noted_batches,
    table_of,
    write_history,
)
from orderwire.verify.verdict import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def drawn(count: int) -> dict[Key, list[Event]]:
    """Histories of a simulated partition, whole ones and their broken twins."""
    found: dict[Key, list[Event]] = {}
    for seed in range(count):
        outcome = run_replication(CrudeReplica, drawn_run(seed, Mode.ACTIVE_STANDBY), seed)
        found["simulated", "t", seed] = list(outcome.history)
        whole = history(Random(seed))
        found["whole", "t", seed] = whole
        for invariant in TITLES:
            found[invariant, "t", seed] = broken(invariant, whole, Random(seed))
    return found


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_spark_says_what_the_judge_says(spark: SparkSession, tmp_path: Path, suffix: str) -> None:
    told = drawn(3)
    write_history(tmp_path / f"h{suffix}", told)
    expected = {
        key: [(breach.invariant, breach.sentence) for breach in judge(events)]
        for key, events in told.items()
    }
    assert all(expected[invariant, "t", 0] for invariant in TITLES)
    with history_frame(spark, str(tmp_path)) as frame:
        findings = findings_of(frame).cache()
        rows = findings.collect()
        report = report_of(findings)
    found: dict[Key, list[tuple[str, str]]] = {key: [] for key in told}
    for row in rows:
        found[row.run_id, row.topic, row.partition] += [
            (row.invariant, sentence) for sentence in row.sentences
        ]
    assert {key: sorted(each) for key, each in found.items()} == {
        key: sorted(each) for key, each in expected.items()
    }
    assert report == audit_table(table_of(told))


def test_a_topic_holds_histories(
    spark: SparkSession, servers: str, new_topic: Callable[..., str]
) -> None:
    told = drawn(1)
    topic = new_topic("history")
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for key, events in told.items():
        for batch in batches_from(*key, events):
            producer.produce(topic, record_bytes(batch), f"{key}".encode())
    assert producer.flush(30) == 0
    source = f"{topic}@{servers}"
    assert is_history_source(source)
    with history_frame(spark, source) as frame:
        report = report_of(findings_of(frame))
    assert report == audit_table(table_of(told))


def test_brokers_in_a_topic_join_their_clients_files(
    spark: SparkSession, servers: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic("written")
    clients = tmp_path / "clients.parquet"
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    own: dict[Key, list[Event]] = {}
    for partition in range(2):
        events = history(Random(partition))
        own["mine", "t", partition] = [
            event for event in events if not isinstance(event, Committed | Elected)
        ]
        told = [event for event in events if isinstance(event, Committed | Elected)]
        if partition:
            told = [event for number, event in enumerate(told) if number != 5]
        noted = [(at + (at > 4 and partition), at, event) for at, event in enumerate(told)]
        for batch in noted_batches("cluster", "t", partition, "all/1", iter(noted)):
            producer.produce(topic, record_bytes(batch))
        for batch in noted_batches("cluster", "another", partition, "all/1", iter(noted)):
            producer.produce(topic, record_bytes(batch))
    assert producer.flush(30) == 0
    write_history(clients, own)
    source = f"{topic}@{servers}"
    with history_frame(spark, source, str(clients)) as frame:
        report = report_of(findings_of(frame))
    assert report == audit_table(read_histories(source, str(clients)))
    assert [(each.run_id, each.topic, each.verdict) for each in report.partitions] == [
        ("mine", "t", Verdict.VALID),
        ("mine", "t", Verdict.UNKNOWN),
    ]
    assert report.partitions[1].missing == ["rows of all/1 (1 rows)"]


def test_the_command_tells_histories_and_traces_apart(tmp_path: Path) -> None:
    path = tmp_path / f"{uuid.uuid4().hex}.parquet"
    write_history(path, drawn(2))
    found = tmp_path / "violations.parquet"
    done = CliRunner().invoke(main, ["audit", str(path), "--json", "--violations", str(found)])
    assert done.exit_code == 1, done.output
    told = json.loads(done.output)
    assert told["verdict"] == "INVALID"
    assert [check["id"] for check in told["checks"]] == list(TITLES)
    assert set(pq.read_table(found).column("invariant").to_pylist()) == set(TITLES)
