"""Three broker processes and a ZooKeeper: what is acknowledged survives, whoever is killed."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from cluster_client import QUIET, Acked, in_sync, logs_of, make_topic, read_all, until
from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka_raw import RawClient

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.find_coordinator import FindCoordinatorRequest

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
    with ClusterProcess.start(tmp_path, mode=mode, session_ms=30_000) as cluster:
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
        assert every.largest_gap_s(killed) < 18, (  # a session ends 20 to 30 s after its last word
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
    order.append(f"--data={tmp_path}")  # who is killed removes nothing
    with subprocess.Popen(order, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        process.kill()
    until(
        lambda: not any(os.path.exists(f"/proc/{one['pid']}") for one in told["brokers"]),
        "a broker goes on alone",
    )


@contextlib.contextmanager
def upped(*options: str) -> "Iterator[subprocess.Popen[str]]":
    """Killed when the test fails: else it is waited for."""
    order = [sys.executable, "-c", MAIN, "cluster", "up", "--replicas", "1", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(order, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    """A busy port is a failure, a wrong option a wrong use; what an earlier start wrote is old."""
    data = f"--data={tmp_path}"
    with socket.create_server(("127.0.0.1", 0)) as busy:
        with upped(data, f"--listen=127.0.0.1:{busy.getsockname()[1]}") as process:
            told = process.communicate(timeout=90)
        assert process.returncode == 1
        assert "address already in use" in told[1]
    with upped(data, "--broker-option=--flush=sometimes") as process:
        told = process.communicate(timeout=90)
    assert process.returncode == 2
    assert "'sometimes' is not one of" in told[1]
    assert "address already in use" not in told[1]


def test_who_waits_for_a_zookeeper_is_told_and_may_stop(tmp_path: Path) -> None:
    with upped(f"--data={tmp_path}", "--zookeeper=127.0.0.1:1") as process:
        assert process.stderr is not None
        assert "do not run yet" in process.stderr.readline()
        log = tmp_path / "broker-0.log"
        until(
            lambda: "no ZooKeeper at 127.0.0.1:1 answers yet" in log.read_text(), "it says nothing"
        )
        assert "Connection refused" in log.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_status_says_when_there_is_nothing_to_show(tmp_path: Path) -> None:
    def refused(*options: str) -> str:
        order = [sys.executable, "-c", MAIN, "cluster", "status", *options]
        done = subprocess.run(order, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert done.stdout == ""
        return done.stderr

    with ClusterProcess.start(tmp_path, replicas=1) as cluster:
        here = f"--zookeeper={cluster.zookeeper}"
        assert "no broker knows a topic 'missing'" in refused(here, "--topic=missing")
        assert "no broker of a cluster lives at" in refused(f"{here}/elsewhere")
        cluster.freeze(0)
        assert "does not answer: not in time" in refused(here)
        cluster.thaw(0)


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
        assert time.monotonic() - begun < 18  # a session ends 20 to 30 s after its last word
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


class Spread(Acked):
    """Over partitions, which have the same offsets."""

    def _done(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))


class Reader(Thread):
    """A member of a group that commits each message it has read, and remembers what was told."""

    def __init__(self, bootstrap: str, ended: Event) -> None:
        super().__init__()
        self.settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            **QUIET,
        }
        self.ended = ended
        self.read: list[tuple[int, bytes]] = []
        self.told: list[tuple[float, int, int]] = []
        """When, of which partition, up to where."""
        self.failed = 0

    def run(self) -> None:
        consumer = Consumer(self.settings)
        consumer.subscribe(["t"])
        while not self.ended.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error():
                continue
            self.read.append((message.partition(), message.value()))
            try:
                done = consumer.commit(message=message, asynchronous=False)
            except KafkaException:
                self.failed += 1  # not known: it may be there
                continue
            for place in done:
                if place.error is None:
                    self.told.append((time.monotonic(), place.partition, place.offset))
        consumer.close()


def coordinator_of(bootstrap: str, group: str) -> int:
    for address in bootstrap.split(","):
        with contextlib.suppress(ConnectionRefusedError), RawClient(address) as raw:
            ask = FindCoordinatorRequest(group)
            found = raw.ask_again(ApiKey.FIND_COORDINATOR, 3, ask, lambda each: [each.error_code])
            return int(found.node_id)
    raise AssertionError("no broker answers")


def committed(bootstrap: str) -> dict[int, int]:
    asker = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", **QUIET})
    places = asker.committed([TopicPartition("t", index) for index in range(2)], 30)
    asker.close()
    return {place.partition: place.offset for place in places}


def test_a_group_goes_on_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    """No committed offset is lost or goes back."""
    with ClusterProcess.start(tmp_path, session_ms=8_000) as cluster:
        make_topic(cluster.bootstrap, "t", 2)
        every = Spread(cluster.bootstrap, "t", **{"enable.idempotence": True})
        ended = Event()
        readers = [Reader(cluster.bootstrap, ended) for _ in range(2)]
        for one in readers:
            one.start()
        try:
            until(
                lambda: every.send(5, 0.01) is None and all(len(one.told) > 5 for one in readers),
                "both members should read",
            )
            gone = coordinator_of(cluster.bootstrap, "readers")
            cluster.brokers[gone].kill()
            killed = time.monotonic()
            until(
                lambda: (
                    every.send(5, 0.01) is None
                    and sum(at > killed + 0.5 for one in readers for at, _, _ in one.told) > 20
                ),
                "the group does not go on",
            )
            every.flush()
            assert not every.errors
            until(
                lambda: (
                    {value for one in readers for _, value in one.read}
                    >= {b"%d" % number for number in range(every.sent)}
                ),
                "something was never read",
            )
        finally:
            ended.set()
            for one in readers:
                one.join(20)
        assert coordinator_of(cluster.bootstrap, "readers") != gone
        now = committed(cluster.bootstrap)
        for partition in range(2):
            told = sorted(each for one in readers for each in one.told if each[1] == partition)
            ends = [end for _, _, end in told]
            assert ends, "both partitions are read"
            assert now[partition] >= max(ends), "a committed offset is lost"
            before = [end for at, _, end in told if at <= killed]
            after = [end for at, _, end in told if at > killed]
            assert not before or not after or min(after) >= max(before), "it went back"
