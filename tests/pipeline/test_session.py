"""The session: what it starts, what it refuses, what it leaves behind."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from orderwire.kernel.java import JavaMissingError, java_major
from orderwire.pipeline.session import SessionSettings, check_java, spark_settings


@pytest.mark.parametrize(
    ("told", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_java_version_is_read(told: str, major: int | None) -> None:
    assert java_major(told) == major


def test_missing_java_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match="apt-get install openjdk-17"):
        check_java()


def test_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match="is Java 11"):
        check_java()


def test_callers_settings_override_ours(tmp_path: Path) -> None:
    settings = SessionSettings(more={"spark.ui.enabled": "true"}, memory_mib=512)
    made = spark_settings(settings, tmp_path)
    assert made["spark.ui.enabled"] == "true"
    assert made["spark.driver.memory"] == "512m"


def test_cluster_session_is_not_bound_to_loopback(tmp_path: Path) -> None:
    made = spark_settings(SessionSettings(master="spark://h:7077"), tmp_path)
    assert "spark.driver.bindAddress" not in made
    assert made["spark.executor.memory"] == "768m"


@pytest.mark.spark
def test_arrow_goes_in_through_workers_and_out(spark: SparkSession) -> None:
    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            doubled = [2 * value for value in batch.column("n").to_pylist()]
            yield pa.RecordBatch.from_pydict({"n": doubled})

    table = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    made = spark.createDataFrame(table).mapInArrow(double, "n long").toArrow()
    assert sorted(made.column("n").to_pylist()) == [2, 4, 6]
