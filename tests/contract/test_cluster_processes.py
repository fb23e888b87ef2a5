"""Three broker processes and a ZooKeeper: what is acknowledged survives, whoever is killed."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_client import Acked, in_sync, logs_of, make_topic, read_all, until

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]
MAIN = "from orderwire.cli.main import main; main()"
MODES = list(Mode)


def asked(*order: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *order], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_acked_messages_survive_the_original_and_it_comes_back(tmp_path: Path, mode: Mode) -> None:
    with ClusterProcess.start(tmp_path, mode=mode, session_ms=8_000) as cluster:
        make_topic(cluster.bootstrap, "t")
        every = Acked(cluster.bootstrap, "t", **{"enable.idempotence": True})
        every.send(100)
        every.flush()

        def told() -> list[dict[str, object]]:
            answer = asked("cluster", "status", "--zookeeper", cluster.zookeeper, "--json")
            brokers: list[dict[str, object]] = json.loads(answer)["brokers"]
            return brokers

        places = [one for one in told()[0]["partitions"] if one["topic"] == "t"]  # type: ignore[index, attr-defined]
        original = places[0]["original"]
        assert places[0]["isr"] == [0, 1, 2]
        killed = time.monotonic()
        cluster.brokers[original].kill()
        every.send(400, 0.01)
        every.flush()
        assert not every.errors
        assert len(every.at) == 500
        assert every.largest_gap_s(killed) < 6, (
            "the session of a process that has ended was waited for"
        )
        cluster.restart(original)
        until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1, 2], "it did not come back")
        every.send(100)
        every.flush()
        assert read_all(cluster.bootstrap, "t", 600) == every.at

        def level() -> bool:
            marks = {
                (one["high_watermark"], one["end_offset"])
                for broker in told()
                for one in broker["partitions"]  # type: ignore[attr-defined]
                if one["topic"] == "t"
            }
            return len(marks) == 1 and len(told()) == 3

        until(level, "the replicas did not become level")
        topic = next(
            path.name
            for path in (tmp_path / "broker-0" / "topics").iterdir()
            if not list(path.glob("1"))
        )
        assert cluster.stop() == [0, 0, 0]
        logs = [logs_of(tmp_path / f"broker-{index}", topic) for index in range(3)]
        assert logs[0]
        assert logs[0] == logs[1] == logs[2]
        for broker in cluster.brokers:
            assert "Traceback" not in broker.log.read_text()


def test_a_cluster_from_the_shell_leaves_nothing_behind(tmp_path: Path) -> None:
    order = [sys.executable, "-c", MAIN, "cluster", "up", "--mode", "active-standby", "--json"]
    with subprocess.Popen(order, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told = json.loads(process.stdout.readline())
            make_topic(told["bootstrap"], "t")
            every = Acked(told["bootstrap"], "t")
            every.send(10)
            every.flush()
            shown = asked("cluster", "status", "--zookeeper", told["zookeeper"], "--topic", "t")
            assert "active-standby" in shown
            assert "0,1,2" in shown
        finally:
            process.terminate()
        assert process.wait(60) == 0
    for broker in told["brokers"]:
        assert not os.path.exists(f"/proc/{broker['pid']}")


def test_brokers_end_with_the_shell_that_is_killed(tmp_path: Path) -> None:
    order = [sys.executable, "-c", MAIN, "cluster", "up", "--replicas", "1", "--json"]
    with subprocess.Popen(order, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        process.kill()
    until(
        lambda: not any(os.path.exists(f"/proc/{one['pid']}") for one in told["brokers"]),
        "a broker goes on alone",
    )


def test_a_broker_that_was_killed_is_back_at_once_whatever_its_session(tmp_path: Path) -> None:
    """It ends its own old session by the key in its locked directory."""
    with ClusterProcess.start(tmp_path, session_ms=30_000) as cluster:
        make_topic(cluster.bootstrap, "t")
        every = Acked(cluster.bootstrap, "t")
        every.send(10)
        every.flush()
        key = tmp_path / "broker-1" / "zookeeper-session"
        assert key.stat().st_mode & 0o777 == 0o600
        cluster.brokers[1].kill()
        begun = time.monotonic()
        cluster.restart(1)
        assert time.monotonic() - begun < 12
        until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1, 2], "it did not come back")
        every.send(10)
        every.flush()
        assert cluster.stop() == [0, 0, 0]
        assert not key.exists()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_broker_that_lost_its_disk_is_not_elected_alone(tmp_path: Path, mode: Mode) -> None:
    """All end at once, one comes back first with nothing: what was acknowledged is not gone."""
    with ClusterProcess.start(tmp_path, mode=mode, session_ms=2_000) as cluster:
        make_topic(cluster.bootstrap, "t")
        every = Acked(cluster.bootstrap, "t")
        every.send(50)
        every.flush()
        for broker in cluster.brokers:
            broker.kill()
        shutil.rmtree(tmp_path / "broker-0")
        cluster.restart(0)
        time.sleep(4)
        cluster.restart(1)
        cluster.restart(2)
        until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1, 2], "it did not come back")
        assert read_all(cluster.bootstrap, "t", 50) == every.at
