"""One broker for all client tests; each test uses topics and groups of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orderwire.aio.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with BrokerProcess.start(folder / "data", "--flush", "group") as process:
        yield process
    assert "Traceback" not in process.log.read_text()
