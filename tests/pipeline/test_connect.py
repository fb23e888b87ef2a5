"""Spark Connect: the source and the audits in a client that has no JVM of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from orderwire.trace.reader import record_bytes, write_trace
from orderwire.verify.audit import audit
from orderwire.verify.source import TableSource
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table

pytestmark = pytest.mark.spark

CLIENT = Path(__file__).with_name("connect_client.py")
RECORD_EVENTS = 500


def connect_address(spark: SparkSession) -> str:
    """Where the session's JVM takes Spark Connect clients (`conftest.py`)."""
    jvm = spark._jvm
    assert jvm is not None
    service = getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


def test_a_connect_client_reads_a_topic_and_audits_it(
    spark: SparkSession, servers: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    table = synthetic_table(
        SyntheticSettings(events=4_000, members=5, fan_out=3, faults=Faults(lost=0.01))
    )
    write_trace(tmp_path / "trace.parquet", table)
    topic = new_topic("connect", 2)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    records = 0
    for process in range(5):
        mine = table.filter(pc.equal(table.column("process"), process)).combine_chunks()
        for batch in mine.to_batches(max_chunksize=RECORD_EVENTS):
            producer.produce(topic, record_bytes(batch), f"synthetic/{process}")
            records += 1
    assert producer.flush(30) == 0
    client = subprocess.run(
        [
            *(sys.executable, str(CLIENT)),
            *(f"{topic}@{servers}", str(tmp_path / "trace.parquet"), str(tmp_path / "audit")),
        ],
        env={**os.environ, "SPARK_REMOTE": connect_address(spark)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert client.returncode == 0, client.stderr[-3_000:]
    told = json.loads(client.stdout.splitlines()[-1])
    expected, _ = audit(TableSource(table))
    assert told == {
        "session": "pyspark.sql.connect.session",
        "records": records,
        "frame": expected.verdict.value,
        "frame_accounting": expected.runs[0].accounting,
        "live": expected.verdict.value,
        "live_accounting": expected.runs[0].accounting,
    }
