"""Brokers for all client tests: one alone, and three as one in every mode.

Each test uses topics and groups of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sealed_topic import leave_sealed_topic

from orderwire.aio.broker_process import BrokerProcess
from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode

ALONE = "alone"
IN_A_CLUSTER = {
    "test_aiokafka",
    "test_cli_topic",
    "test_confluent_kafka",
    "test_java_client",
    "test_kafka_python",
    "test_kafkajs",
    "test_kcat",
}
"""Modules whose tests hold for a cluster as well."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run client tests against every kind of broker."""
    if "broker" not in metafunc.fixturenames:
        return
    kinds = [ALONE]
    if metafunc.module.__name__.rpartition(".")[2] in IN_A_CLUSTER:
        kinds += [mode.value for mode in Mode]
    metafunc.parametrize("broker", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess | ClusterProcess]:
    """What clients are given: an address, or those of all brokers."""
    folder: Path = tmp_path_factory.mktemp("broker")
    if request.param == ALONE:
        with BrokerProcess.start(folder / "data", "--flush", "group") as process:
            yield process
        brokers = [process]
    else:
        with ClusterProcess.start(folder, mode=Mode(request.param)) as cluster:
            yield cluster
        brokers = cluster.brokers
    for one in brokers:
        assert "Traceback" not in one.log.read_text()


@pytest.fixture(scope="session")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a topic that has seals in the middle and at the end."""
    folder = tmp_path_factory.mktemp("sealed") / "data"
    leave_sealed_topic(folder)
    with BrokerProcess.start(folder) as process:
        yield process
