"""What other brokers' users reported, tried on ours: §10 of the broker's specification.

Here: 1 nats-server #3402, 2 #4174, 5 redpanda #3039 and #3038, 7 librdkafka #4953, 15 pulsar
#23011.  Elsewhere:

- 3 nats-server #7564, 12 kafka #8812: power failures of `properties/test_replication_*.py`;
- 6 redpanda #22670: `test_an_expired_producer_may_go_on` of the log and of lanes;
- 8 aiokafka #1155: `test_aiokafka.py`;
- 9 redpanda #31580, 10 franz-go #885, 11 kafka #12877, sarama #2076: `unit/broker/
  test_node_replicated.py`;
- 13 kafka #129, #5654: members that rejoin, in `properties/test_replication_*.py`;
- 14 kafka-python #1390, kafkajs #562, redpanda #8698, aiokafka #71, #911:
  `test_seals_are_stepped_over` of each client, and `pipeline/test_spark_connector.py`;
- 18 librdkafka #4956: each client's module, with every codec, alone and in every mode;
- 16 librdkafka #5158: `test_recreated_topic_is_another_one`, and at every replica in
  `test_topics_in_a_cluster.py`;
- 4 nats-server #7549, 17 nats-server #5412, #6600: `test_damage_and_power_cuts.py`.
"""

import time
from pathlib import Path

import pytest
from cluster_client import make_topic
from confluent_kafka.admin import AdminClient
from kafka_raw import RawClient

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.broker.wire.records import Record, build_batch
from orderwire.chaos.faults import FAULTS
from orderwire.chaos.run import TOPIC, ChaosResult, ChaosRun, ChaosSettings
from orderwire.verify.replication_audit import HistoryReport, audit_table
from orderwire.verify.replication_history import table_of
from orderwire.verify.verdict import Verdict

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]
EVERY_MODE = pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)


def audited(folder: Path, settings: ChaosSettings) -> tuple[ChaosResult, HistoryReport]:
    result = ChaosRun(settings, folder).run()
    told = {("chaos", TOPIC, each): events for each, events in result.histories.items()}
    return result, audit_table(table_of(told))


def expect_valid(result: ChaosResult, report: HistoryReport) -> None:
    broken = {check.id: check.examples for check in report.checks if check.violations}
    assert broken == {}
    assert result.odd == []
    assert report.verdict is Verdict.VALID
    assert result.acknowledged > 100


QUICK = ("pause", "part-pair", "expire", "kill-original")


@EVERY_MODE
def test_a_sample_of_faults_leaves_a_valid_history(tmp_path: Path, mode: Mode) -> None:
    expect_valid(*audited(tmp_path, ChaosSettings(mode=mode, seed=5, rounds=3, faults=QUICK)))


@EVERY_MODE
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.slow
def test_every_fault_leaves_a_valid_history(tmp_path: Path, fault: str, mode: Mode) -> None:
    expect_valid(*audited(tmp_path, ChaosSettings(mode=mode, seed=77, rounds=2, faults=(fault,))))


@EVERY_MODE
@pytest.mark.slow
def test_1_and_2_and_7_originals_killed_under_load_lose_and_repeat_nothing(
    tmp_path: Path, mode: Mode
) -> None:
    """nats-server #3402 and #4174, librdkafka #4953."""
    settings = ChaosSettings(mode=mode, seed=2, rounds=10, faults=("kill-original",))
    expect_valid(*audited(tmp_path, settings))


@EVERY_MODE
@pytest.mark.slow
def test_15_an_original_that_was_frozen_past_its_session_changes_nothing(
    tmp_path: Path, mode: Mode
) -> None:
    """pulsar #23011."""
    settings = ChaosSettings(mode=mode, seed=3, rounds=6, faults=("freeze", "isolate", "expire"))
    expect_valid(*audited(tmp_path, settings))


def five_in_flight(address: str, sent_ms: int) -> list[PartitionProduceResponse]:
    """Send five batches of an idempotent producer at once, always the same ones."""
    with RawClient(address) as client:
        for sequence in range(5):
            records = build_batch(
                [Record(b"%d" % sequence, timestamp=sent_ms)],
                producer_id=1 << 40,
                producer_epoch=0,
                base_sequence=sequence,
            )
            data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])]
            request = ProduceRequest(None, -1, 5_000, data)
            client.send(client.frame(ApiKey.PRODUCE, 9, request))
        return [
            client.response(ApiKey.PRODUCE, 9).responses[0].partition_responses[0] for _ in range(5)
        ]


@EVERY_MODE
def test_5_a_batch_that_comes_again_has_the_offset_it_had(tmp_path: Path, mode: Mode) -> None:
    """redpanda #3039, #3038: five requests in flight, every answer lost, all of them sent again."""
    with ClusterProcess.start(tmp_path, mode=mode) as cluster:
        make_topic(cluster.bootstrap, "t")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        answers: list[list[int]] = []
        sent_ms = time.time_ns() // 1_000_000  # of today: retention removes what is old
        until = time.monotonic() + 60
        while len(answers) < 2:
            leader = admin.list_topics("t", 20).topics["t"].partitions[0].leader
            parts = five_in_flight(cluster.brokers[leader].address, sent_ms)
            if [part.error_code for part in parts] == [0] * 5:
                answers.append([part.base_offset for part in parts])
            else:  # another is original by now
                assert time.monotonic() < until, parts
        assert answers[0] == answers[1] == list(range(answers[0][0], answers[0][0] + 5))
