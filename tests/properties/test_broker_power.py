"""Power failures at any moment: what was answered is there, and no group is ahead of its data."""

from random import Random

from hypothesis import given, note, settings
from hypothesis import strategies as st
from logs import batch
from nodes import Node, decode

from orderwire.broker.flush import Flush
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replies import Reply
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.broker.wire.records import read_records

SETTINGS = BrokerSettings(flush=Flush.GROUP)


class Machine:
    """A broker on disks that forget, and what its clients were told."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.files = FaultyStorage()
        self.log = FaultyStorage()
        self.node = Node(SETTINGS, self.files)
        self.topic_id = b""
        self.told: dict[int, bytes] = {}
        """Value by offset of every acknowledged message."""
        self.committed = -1
        self.waiting: list[tuple[int, bytes]] = []
        self.waiting_commit = -1
        self.number = 0

    def boot(self) -> None:
        self.node = Node(SETTINGS, self.files, {(self.topic_id, 0): self.log})

    def begin(self) -> None:
        """Make the topic, on the disk that forgets."""
        self.topic_id = self.node.create("t")
        self.node.broker.close(self.node.now)
        self.log = FaultyStorage()
        self.boot()

    def produce(self) -> None:
        value = b"%d" % self.number
        self.number += 1
        data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(value))])]
        _, done = self.node.send(ApiKey.PRODUCE, 9, ProduceRequest(None, 1, 0, data))
        assert isinstance(done, Reply)
        assert done.durable
        answer = decode(ApiKey.PRODUCE, 9, done).responses[0].partition_responses[0]
        self.waiting.append((answer.base_offset, value))

    def commit_offset(self) -> None:
        """As a consumer does: an offset of what it could read."""
        partition = self.node.broker.partition("t", 0)
        assert partition is not None
        offset = partition.high_watermark
        place = [OffsetCommitRequestPartition(0, offset, 0, "")]
        ask = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", place)])
        _, done = self.node.send(ApiKey.OFFSET_COMMIT, 8, ask)
        assert isinstance(done, Reply)
        assert done.durable
        self.waiting_commit = offset

    def group_commit(self) -> None:
        self.node.commit()
        self.told.update(self.waiting)
        self.waiting.clear()
        self.committed = max(self.committed, self.waiting_commit)

    def power_failure(self) -> None:
        self.files = self.files.after_crash(self.chance)
        self.log = self.log.after_crash(self.chance)
        self.waiting.clear()
        self.waiting_commit = -1
        self.boot()
        self.check()

    def check(self) -> None:
        partition = self.node.broker.partition("t", 0)
        assert partition is not None
        found: dict[int, bytes | None] = {}
        offset = 0
        while offset < partition.high_watermark:
            records = list(read_records(bytes(self.node.fetch("t", offset).records)))
            found.update((record.offset, record.value) for record in records)
            offset = records[-1].offset + 1
        for at, value in self.told.items():
            assert found.get(at) == value, f"acknowledged at {at}, now {found.get(at)!r}"
        kept = self.node.broker.groups.offsets_of("g").get(("t", 0))
        if self.committed >= 0:
            assert kept is not None
            assert kept.offset >= self.committed
        assert kept is None or kept.offset <= partition.log.end_offset


@given(
    chance=st.randoms(use_true_random=False),
    steps=st.lists(
        st.sampled_from(["produce", "produce", "commit_offset", "group_commit", "power_failure"]),
        max_size=40,
    ),
)
@settings(max_examples=100)
def test_answers_outlive_the_power(chance: Random, steps: list[str]) -> None:
    note(" ".join(steps))
    machine = Machine(chance)
    machine.begin()
    for step in [*steps, "power_failure"]:
        getattr(machine, step)()


class Hasty(Machine):
    """A broken twin: it tells producers before the disk has it."""

    def produce(self) -> None:
        super().produce()
        self.told.update(self.waiting)


def test_answering_before_the_disk_has_it_is_found_out() -> None:
    def survives(seed: int) -> bool:
        machine = Hasty(Random(seed))
        machine.begin()
        try:
            for step in ("produce", "group_commit", "produce", "produce", "power_failure"):
                getattr(machine, step)()
        except AssertionError:
            return False
        return True

    assert not all(survives(seed) for seed in range(20))
