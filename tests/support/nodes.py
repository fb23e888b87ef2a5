"""A broker without sockets: requests in, replies out, faults on order."""

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

from orderwire.broker.log import LogConfig, MemoryStorage, PartitionLog, Storage
from orderwire.broker.node import Broker, Commit
from orderwire.broker.replies import Client, Outcome, Reply
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.topics import Topic
from orderwire.broker.wire.apis import API_BY_KEY, ApiKey
from orderwire.broker.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.kernel import NS_PER_MS, Instant

START = Instant(1_700_000_000_000 * NS_PER_MS)


class Node:
    """One broker over memory (or a given disk), driven by hand."""

    def __init__(
        self,
        settings: BrokerSettings,
        files: Storage | None = None,
        logs: dict[tuple[bytes, int], Storage] | None = None,
        now: Instant = START,
    ) -> None:
        self.files = files if files is not None else MemoryStorage()
        self.logs = logs if logs is not None else {}
        self.removed: list[str] = []
        self.now = now
        self.late: dict[int, Reply] = {}
        """Replies to parked requests, by token."""
        self._token = 0
        self.broker = Broker(
            settings, self.files, self._open, self._remove, Random(len(self.logs)), now
        )

    def _open(self, topic: Topic, index: int, config: LogConfig) -> PartitionLog:
        storage = self.logs.setdefault((topic.topic_id, index), MemoryStorage())
        return PartitionLog.open(storage, config, self.now // NS_PER_MS)

    def _remove(self, topic: Topic) -> None:
        self.removed.append(topic.name)

    def send(self, key: int, version: int, body: Any) -> tuple[int, Reply | Outcome]:
        """Serve one request; returns its token and what came of it."""
        api = API_BY_KEY[key]
        self._token += 1
        head = struct.pack(">hhih", key, version, self._token, 1) + b"c"
        if api.request_header_version(version) == 2:
            head += b"\0"
        frame = memoryview(bytearray(head + api.encode_request(body, version)))
        done = self.broker.serve(frame, Client("10.0.0.1", "here", 9092), self._token, self.now)
        self.collect()
        return self._token, done

    def ask(self, key: int, version: int, body: Any) -> Any:
        """Serve one request that must be answered at once, and decode the reply."""
        token, done = self.send(key, version, body)
        if done is Outcome.PARKED:
            done = self.late.pop(token)
        assert isinstance(done, Reply), done
        return decode(key, version, done)

    def collect(self) -> None:
        """Take the replies that have become possible."""
        while self.broker.parked.has_ready:
            self.late.update(self.broker.parked.ready())

    def advance(self, ns: int) -> None:
        """Let time pass."""
        until = Instant(self.now + ns)
        while self.broker.next_deadline() <= until:
            self.now = max(self.now, self.broker.next_deadline())
            self.broker.wake(self.now)
            self.collect()
        self.now = until

    def commit(self) -> Commit | None:
        """Run one group commit to its end."""
        commit = self.broker.take_commit(self.now)
        if commit is not None:
            commit.run()
            self.broker.committed(commit, self.now)
            self.collect()
        return commit

    # -- shorthands -------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1) -> bytes:
        """Make a topic and return its id."""
        ask = CreateTopicsRequest([CreatableTopic(name, partitions, 1)])
        made = self.ask(ApiKey.CREATE_TOPICS, 7, ask).topics[0]
        assert made.error_code == 0, made.error_message
        return bytes(made.topic_id)

    def produce(self, topic: str, batch: bytes | bytearray | None, index: int = 0) -> Any:
        """Append one batch and return the partition's answer."""
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(index, batch)])]
        answer = self.ask(ApiKey.PRODUCE, 9, ProduceRequest(None, -1, 1000, data))
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int = 0, index: int = 0, wait_ms: int = 0) -> Any:
        """Read one partition and return its answer."""
        ask = fetch_request(topic, [(index, offset)], wait_ms=wait_ms)
        return self.ask(ApiKey.FETCH, 12, ask).responses[0].partitions[0]


def fetch_request(
    topic: str, places: Sequence[tuple[int, int]], *, wait_ms: int = 0, min_bytes: int = 1
) -> FetchRequest:
    """A fetch of these (partition, offset)s."""
    asked = [FetchPartition(index, -1, offset, -1, -1, 1 << 20) for index, offset in places]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=min_bytes, topics=[FetchTopic(topic, partitions=asked)]
    )


def decode(key: int, version: int, done: Reply) -> Any:
    """Decode a reply frame whose parts are in memory."""
    api = API_BY_KEY[key]
    data = b"".join(bytes(part) for part in done.parts)  # type: ignore[arg-type]
    assert int.from_bytes(data[:4], "big") == len(data) - 4 == done.length - 4
    at = 9 if api.response_header_version(version) else 8
    body, end = api.decode_response(memoryview(bytearray(data)), at, version)
    assert end == len(data)
    return body
