"""The one Spark session of a test run, and a fresh checkpoint folder for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from orderwire.pipeline.kafka_client import CLIENTS
from orderwire.pipeline.session import SessionSettings, spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    with spark_session(SessionSettings(name="orderwire-tests", scratch=str(scratch))) as session:
        yield session


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Where a streaming query of this test keeps its progress."""
    return str(tmp_path / "checkpoint")


@pytest.fixture(autouse=True)
def _no_query_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop what a failed test left running, so that it cannot disturb the next one."""
    yield
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        for query in session.streams.active:
            query.stop()


@pytest.fixture(scope="session")
def mock_servers() -> Iterator[str]:
    """HOST:PORT of librdkafka's mock cluster: a real port; topics have 4 partitions."""
    owner = Producer(
        {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0}
    )
    brokers = owner.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    CLIENTS.sweep(0)
    owner.flush(1)
