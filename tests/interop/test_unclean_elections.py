"""Everybody in sync is gone for ever, disks and all: what is left of a partition goes on.

[S004:4.8] By Kafka's ElectLeaders, over processes that are killed and real clients.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_client import QUIET, SECONDS_MAX, Acked, in_sync, make, read_all, until
from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]
EVERY_MODE = pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
MAIN = "from orderwire.cli.main import main; main()"
PLACE = TopicPartition("t", 0)
EARLIEST = {"auto.offset.reset": "earliest"}


def status(cluster: ClusterProcess, *options: str) -> str:
    order = ("cluster", "status", "--zookeeper", cluster.zookeeper, "--topic", "t", *options)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *order], capture_output=True, text=True, timeout=60
    )
    return done.stdout


def told(cluster: ClusterProcess) -> list[dict[str, Any]]:
    """What every broker that answers says of the partition."""
    brokers = json.loads(status(cluster, "--json"))["brokers"]
    return [one for broker in brokers for one in broker["partitions"]]


def ruined(cluster: ClusterProcess, folder: Path, **config: str) -> dict[int, bytes]:
    """Broker 2 lacks the second half; 0 has lost its disk, and 1 does not come back."""
    make(cluster.bootstrap, NewTopic("t", 1, replica_assignment=[[0, 1, 2]], config=config))
    until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1, 2], "it did not begin")
    every = Acked(cluster.bootstrap, "t")
    every.send(20)
    every.flush()
    cluster.brokers[2].stop()
    every.send(20)
    every.flush()
    until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1], "who has gone is in sync")
    assert not every.errors
    for index in (0, 1):
        cluster.brokers[index].kill()
    shutil.rmtree(folder / "broker-0")
    for index in (2, 0):
        cluster.restart(index)
    until(
        lambda: sorted(one["is_blank"] for one in told(cluster)) == [False, True],
        "who has lost its disk does not know",
    )
    return every.at


@EVERY_MODE
def test_an_operator_goes_on_with_what_is_left(tmp_path: Path, mode: Mode) -> None:
    with ClusterProcess.start(tmp_path, mode=mode, session_ms=2_000) as cluster:
        acked = ruined(cluster, tmp_path)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        until(
            lambda: {one["original"] for one in told(cluster)} == {None},
            "a dead broker stays original, or another is elected by itself",
        )
        assert admin.elect_leaders(ElectionType.UNCLEAN, [PLACE]).result(SECONDS_MAX)[PLACE] is None
        until(  # others learn it a moment later
            lambda: all(one["original"] is not None and one["lost"] for one in told(cluster)),
            "nobody was elected, or it is not told what is lost",
        )
        for one in told(cluster):
            assert one["original"] == 2, "who has most is elected, not who has lost its disk"
            assert [each["unclean"] for each in one["lost"]] == [True]
            assert one["lost"][0]["from"] == 20
        assert "unclean election" in cluster.brokers[2].log.read_text()
        assert "from offset 20 on and nobody has, by an unclean election" in status(cluster)
        again = admin.elect_leaders(ElectionType.UNCLEAN, [PLACE]).result(SECONDS_MAX)[PLACE]
        assert again is not None
        assert again.code() == KafkaError.ELECTION_NOT_NEEDED
        assert admin.elect_leaders(ElectionType.UNCLEAN).result(SECONDS_MAX) == {}
        until(lambda: in_sync(cluster.bootstrap, "t") == [0, 2], "the blank one did not copy")
        cluster.restart(1)
        until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1, 2], "who returned is not in sync")
        more = Acked(cluster.bootstrap, "t")
        more.send(30)
        more.flush()
        assert not more.errors
        assert min(more.at) >= 20, "what was kept stays where it was"
        found = read_all(cluster.bootstrap, "t", 50, **EARLIEST)
        first = {at: acked[at] for at in range(20)}
        assert {at: value for at, value in found.items() if at < 20} == first
        for broker in cluster.brokers:
            assert "Traceback" not in broker.log.read_text()


def test_a_topic_may_allow_it_once_and_for_all(tmp_path: Path) -> None:
    with ClusterProcess.start(tmp_path, session_ms=2_000) as cluster:
        ruined(cluster, tmp_path, **{"unclean.leader.election.enable": "true"})
        until(lambda: {one["original"] for one in told(cluster)} == {2}, "nobody was elected", 60)
        more = Acked(cluster.bootstrap, "t")
        more.send(5)
        more.flush()
        assert not more.errors
