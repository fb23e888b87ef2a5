"""The one Spark session of a test run, and a fresh checkpoint folder for each test."""

import contextlib
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from spark_connector import connector_jars

from orderwire.aio.broker_process import BrokerProcess
from orderwire.pipeline.kafka_client import CLIENTS
from orderwire.pipeline.session import SessionSettings, spark_session

CONNECT_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
"""The test session also serves Spark Connect clients, at a port that the system chooses."""


@pytest.fixture(scope="session")
def connector(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Jars of Spark's own connector, of which the session knows when a test asks for them."""
    return connector_jars(tmp_path_factory.mktemp("connector"))


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    more = dict(CONNECT_SERVER)
    if any("connector" in getattr(test, "fixturenames", ()) for test in request.session.items):
        # Without them only those tests fail that ask for them.
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            more["spark.jars"] = ",".join(request.getfixturevalue("connector"))
    scratch = tmp_path_factory.mktemp("spark")
    settings = SessionSettings(name="orderwire-tests", scratch=str(scratch), more=more)
    with spark_session(settings) as session:
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
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a broker of ours, for the whole test run."""
    with BrokerProcess.start(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address
        CLIENTS.sweep(0)


@pytest.fixture(scope="session")
def new_topic(servers: str) -> Callable[..., str]:
    """Make a topic of four partitions with a fresh name."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def make(prefix: str, partitions: int = 4) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        (made,) = admin.create_topics([NewTopic(name, partitions, 1)]).values()
        made.result(30)
        return name

    return make
