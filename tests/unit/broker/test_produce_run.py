"""A run of requests does what the same requests do one by one, byte for byte."""

import struct
from random import Random

import pytest
from logs import batch
from nodes import Node, decode, fetch_request

from orderwire.broker.flush import Flush
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replies import Client, Outcome, Reply
from orderwire.broker.requests.produce_run import Run, produce_run
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.topics import TopicSettings
from orderwire.broker.wire.apis import API_BY_KEY, ApiKey
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.broker.wire.single_produce import NEWEST, OLDEST

FAST = BrokerSettings(flush=Flush.NONE, topics=TopicSettings(auto_create=False))
EACH = BrokerSettings(flush=Flush.MESSAGE, topics=TopicSettings(auto_create=False))
CLIENT = Client("10.0.0.1", "here", 9092)
VERSIONS = (OLDEST, 5, 7, 8, 9, 12, NEWEST)


class Twin:
    """A broker with one topic that serves runs, or not."""

    def __init__(self, *, runs: bool, settings: BrokerSettings = FAST) -> None:
        self.runs = runs
        self.log = FaultyStorage()
        self.node = Node(settings)
        self.topic_id = self.node.create("t", 2)
        self.node.broker.close(self.node.now)
        self.node = Node(settings, self.node.files, {(self.topic_id, 0): self.log})
        self.together: list[int] = []
        """How many requests each run had."""

    def frame(self, version: int, correlation: int, records: bytes, index: int = 0) -> bytes:
        topic = TopicProduceData("t", self.topic_id, [PartitionProduceData(index, records)])
        body = ProduceRequest(None, 1, 1_000, [topic])
        api = API_BY_KEY[ApiKey.PRODUCE]
        head = struct.pack(">hhih", ApiKey.PRODUCE, version, correlation, 3) + b"cli"
        head += b"\0" if api.request_header_version(version) == 2 else b""
        whole = head + api.encode_request(body, version)
        return struct.pack(">i", len(whole)) + whole

    def run(self, data: memoryview, at: int, requests_max: int = 1_000) -> Run | None:
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        shape = self.node.broker.shape(data[at + 4 : end])
        if shape is None:
            return None
        assert shape.fits(data, at)
        broker = self.node.broker
        return produce_run(
            broker,
            shape,
            data,
            at,
            self.node.now,
            token=1,
            client=CLIENT,
            requests_max=requests_max,
            request_bytes_max=1 << 20,
        )

    def serve(self, frames: list[bytes]) -> bytes:
        """Serve these frames; returns the bytes of the answers, the delay of an error left out."""
        data = memoryview(bytearray(b"".join(frames)))
        at = 0
        answers: list[bytes] = []
        while at < len(data):
            run = self.run(data, at) if self.runs else None
            if run is not None:
                self.together.append(run.requests)
                assert run.reply is not None
                reply, at = run.reply, run.end
            else:
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                done = self.node.broker.serve(data[at + 4 : end], CLIENT, 1, self.node.now)
                assert isinstance(done, Reply)
                reply, at = done, end
            assert sum(map(len, reply.parts)) == reply.length
            answers += [bytes(part) for part in reply.parts]  # type: ignore[arg-type]
        return b"".join(answers)

    def stored(self) -> dict[str, bytes]:
        return {name: bytes(file.content) for name, file in self.log.disk.files.items()}


def twins(settings: BrokerSettings = FAST) -> tuple[Twin, Twin]:
    together, alone = Twin(runs=True, settings=settings), Twin(runs=False, settings=settings)
    alone.topic_id = together.topic_id
    return together, alone


def check(frames: list[bytes]) -> Twin:
    """Both serve the same frames the same way."""
    together, alone = twins()
    assert together.serve(frames) == alone.serve(frames)
    assert together.stored() == alone.stored()
    for twin in (together, alone):
        partition = twin.node.broker.partition("t", 0)
        assert partition is not None
        assert partition.high_watermark == partition.log.end_offset
    return together


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_is_stored_and_answered_as_its_requests_would_be(version: int) -> None:
    chance = Random(version)
    twin = Twin(runs=True)
    sizes = [chance.choice((0, 1, 40, 60, 61, 62, 63, 100, 300)) for _ in range(60)]
    frames = [
        twin.frame(version, 7 * number, batch(*[chance.randbytes(size)] * chance.randint(1, 3)))
        for number, size in enumerate(sizes)
    ]
    assert sum(check(frames).together) >= 40


def test_equal_requests_are_one_run_but_for_the_first_of_a_log() -> None:
    twin = Twin(runs=True)
    frames = [twin.frame(7, number, batch(b"x" * 100)) for number in range(64)]
    assert check(frames).together == [63]


@pytest.mark.parametrize("version", VERSIONS)
def test_flips_end_a_run_and_change_nothing_else(version: int) -> None:
    chance = Random(f"flips/{version}")
    twin = Twin(runs=True)
    ordinary = [twin.frame(version, number, batch(b"x" * 100)) for number in range(3)]
    for _ in range(100):
        broken = bytearray(ordinary[1])
        # Beyond length, key, version and correlation id: those decide what is served at all.
        broken[chance.randrange(12, len(broken))] ^= 1 << chance.randrange(8)
        together, alone = twins()
        results = []
        for each in (together, alone):
            try:
                each.serve(ordinary[:2])
                results.append(each.serve([*ordinary[1:], bytes(broken), *ordinary]))
            except Exception as error:  # what a broken request raises is part of the answer
                results.append(repr(error).encode())
        assert results[0] == results[1]
        assert together.stored() == alone.stored()


def test_other_partitions_versions_and_clients_end_a_run() -> None:
    twin = Twin(runs=True)
    one = twin.frame(9, 1, batch(b"x"))
    frames = [one] * 4 + [twin.frame(9, 1, batch(b"x"), 1)] * 3 + [twin.frame(8, 1, batch(b"x"))]
    frames += [one.replace(b"cli", b"two")] * 2 + [one]
    assert check(frames).together == [3, 2, 1, 2, 1]


def test_idempotent_producers_are_judged_one_by_one() -> None:
    twin = Twin(runs=True)

    def sent(producer: int, epoch: int, sequence: int) -> bytes:
        return twin.frame(9, sequence, batch(b"a", b"b", producer=(producer, epoch, sequence)))

    wrap = (1 << 31) - 2
    in_order = [sent(5, 0, sequence) for sequence in range(0, 20, 2)]
    frames = [*in_order, *in_order[-3:], sent(5, 0, 40), sent(5, 1, 0), sent(5, 0, 20)]
    frames += [sent(6, 0, wrap), sent(6, 0, 0), sent(6, 0, 2), sent(5, 1, 2), sent(6, 0, 4)]
    assert max(check(frames).together) == 9
    chance = Random("producers")
    for _ in range(30):
        check(
            [
                sent(chance.randint(5, 6), chance.randint(0, 1), 2 * chance.randint(0, 3))
                for _ in range(12)
            ]
        )


def test_a_segment_is_closed_between_two_requests_of_a_run() -> None:
    together, alone = twins()
    frames = [together.frame(7, number, batch(b"x" * 100)) for number in range(20)]
    for twin in (together, alone):
        partition = twin.node.broker.partition("t", 0)
        assert partition is not None
        partition.log.config = type(partition.log.config)(segment_bytes=1_000)
    assert together.serve(frames) == alone.serve(frames)
    assert together.stored() == alone.stored()
    assert len([name for name in together.stored() if name.endswith(".log")]) > 2


def test_a_full_disk_is_told_to_every_client_that_it_meets() -> None:
    together, alone = twins()
    frames = [together.frame(7, number, batch(b"x" * 100)) for number in range(10)]
    for twin in (together, alone):
        twin.serve(frames[:1])
        twin.log.disk.room_bytes = 0
    assert together.serve(frames) == alone.serve(frames)
    assert together.stored() == alone.stored()


def test_a_topic_that_is_gone_ends_the_run() -> None:
    twin = Twin(runs=True)
    frames = [twin.frame(7, number, batch(b"x")) for number in range(4)]
    twin.serve(frames)
    shape = twin.node.broker.shape(memoryview(bytearray(frames[0]))[4:])
    assert shape is not None
    topic = twin.node.broker.topics.get("t")
    assert topic is not None
    twin.node.broker.topics.delete(topic)
    twin.node.broker.close_partitions(topic, twin.node.now)
    data = memoryview(bytearray(b"".join(frames)))
    assert twin.run(data, 0) is None


def test_a_run_ends_at_its_limits_and_at_a_request_that_is_not_all_there() -> None:
    twin = Twin(runs=True)
    frames = [twin.frame(9, number, batch(b"x" * 200)) for number in range(5)]
    twin.serve(frames[:1])
    whole = b"".join(frames)
    for cut in (1, 3, 4, 100, len(frames[0])):
        found = twin.run(memoryview(bytearray(whole[: len(whole) - cut])), 0)
        assert found is not None
        assert (found.requests, found.end) == (4, 4 * len(frames[0]))
    found = twin.run(memoryview(bytearray(whole)), 0, requests_max=2)
    assert found is not None
    assert found.requests == 2


def test_with_a_sync_for_every_message_there_are_no_runs() -> None:
    twin = Twin(runs=True, settings=EACH)
    twin.serve([twin.frame(7, number, batch(b"x")) for number in range(4)])
    assert twin.together == []


def test_a_consumer_that_waits_is_woken_by_a_run() -> None:
    twin = Twin(runs=True)
    frames = [twin.frame(7, number, batch(b"x")) for number in range(4)]
    twin.serve(frames[:1])
    ask = fetch_request("t", [(0, 1)], wait_ms=1_000)
    token, done = twin.node.send(ApiKey.FETCH, 12, ask)
    assert done is Outcome.PARKED
    twin.serve(frames)
    twin.node.collect()
    woken = decode(ApiKey.FETCH, 12, twin.node.late[token])
    assert woken.responses[0].partitions[0].high_watermark == 5
