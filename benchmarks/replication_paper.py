"""The paper's evaluation on real processes: two brokers, closed loops, every message by itself.

Every producer sends a text in messages of 100 bytes, one request in flight; as many consumers read
all that is produced and count its characters.  `produce`: producers alone; `consume`: one text that
is there; `both`: at once, until the last consumer has all.  Times are wall clock, from the first
request on; ratios are active-standby's time over the other's, in the same run.

Two things are not as in the paper: both replicas share one disk here, and our active-active puts a
message that acks=1 acknowledges into the page cache; a round makes it durable.  The disk alone is
measured beside: one message of 100 bytes written and synced, again and again.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import unpack
from typing import Any

import harness
import msgspec
from broker_servers import FETCH_VERSION, PRODUCE_VERSION, frame
from confluent_kafka.admin import AdminClient, NewTopic

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    decode_produce_response,
    encode_produce_request,
)
from orderwire.broker.wire.records import Record, build_batch, read_records
from orderwire.cli.demo.script import read_text

MESSAGE_BYTES = 100
TEXT_BYTES = 152_331
FETCH_BYTES = 1 << 20
BROKERS = 2
PHASES = ("produce", "consume", "both")
PAUSE_S = 0.05
"""Between two attempts of a client that was refused."""
REDIRECTED_MAX = 200
"""Fetches in a row without a record, or refused requests, before a client gives up."""


class Contestant(msgspec.Struct, frozen=True):
    """One way to replicate."""

    mode: Mode
    flush: str
    acks: int
    configs: tuple[str, ...] = ()

    @property
    def spread(self) -> bool:
        """Whether consumers read at both brokers."""
        return self.mode is not Mode.ACTIVE_STANDBY


PAPER = (
    "orderwire.distribution=request",
    "orderwire.coordination=zookeeper",
    "orderwire.sync.interval.ms=5000",
    "orderwire.sync.on.fetch=false",
    "orderwire.eager.copy=false",
)
STANDBY = "active-standby"
CONTESTANTS = {
    STANDBY: Contestant(Mode.ACTIVE_STANDBY, "message", 1),
    "active-active, the paper's": Contestant(Mode.ACTIVE_ACTIVE, "message", 1, PAPER),
    "active-standby, group commit, acks=all": Contestant(Mode.ACTIVE_STANDBY, "group", -1),
    "active-active, sessions and RPC, acks=all": Contestant(Mode.ACTIVE_ACTIVE, "group", -1),
    "lanes, acks=all": Contestant(Mode.ACTIVE_ACTIVE_LANES, "group", -1),
}


class Client:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str) -> "Client":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=4 * FETCH_BYTES))

    async def ask(self, request: bytes) -> bytes:
        self._writer.write(request)
        (size,) = unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


def produce_request(topic: str, value: bytes, acks: int) -> bytes:
    batch = build_batch([Record(value, timestamp=int(time.time() * 1000))])
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])]
    body = encode_produce_request(ProduceRequest(None, acks, 30_000, data), PRODUCE_VERSION)
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, 0, body)


def fetch_request(topic: str, offset: int) -> bytes:
    asked = FetchPartition(0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    body = encode_fetch_request(
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic, partitions=[asked])],
        ),
        FETCH_VERSION,
    )
    return frame(ApiKey.FETCH, FETCH_VERSION, 0, body)


async def produce(address: str, topic: str, text: list[bytes], acks: int) -> None:
    """Send the text, message by message."""
    client = await Client.connect(address)
    for value in text:
        for _ in range(REDIRECTED_MAX):
            answer = await client.ask(produce_request(topic, value, acks))
            response, _ = decode_produce_response(memoryview(answer), 4, PRODUCE_VERSION)
            error = response.responses[0].partition_responses[0].error_code
            if not error:
                break
            await asyncio.sleep(PAUSE_S)
        else:
            raise AssertionError(f"{topic}: refused again and again, error {error}")
    client.close()


async def consume(address: str, topic: str, characters: int) -> None:
    """Read from the start until so many characters have come."""
    client = await Client.connect(address)
    offset = counted = nothing = 0
    until = time.monotonic() + 600
    while counted < characters:
        assert time.monotonic() < until, f"{topic}: {counted} of {characters} characters came"
        answer = await client.ask(fetch_request(topic, offset))
        response, _ = decode_fetch_response(memoryview(answer), 4, FETCH_VERSION)
        partition = response.responses[0].partitions[0]
        records = partition.records
        nothing = 0 if records else nothing + 1
        if not records:
            if partition.error_code:
                assert nothing < REDIRECTED_MAX, f"{topic}: error {partition.error_code}"
                await asyncio.sleep(PAUSE_S)
            continue
        for record in read_records(records):
            if record.offset >= offset:
                counted += len(record.value or b"")
                offset = record.offset + 1
    client.close()
    assert counted == characters, f"{topic}: {counted} characters, {characters} were written"


def messages_of(text: bytes, limit: int | None) -> list[bytes]:
    found = [text[at : at + MESSAGE_BYTES] for at in range(0, len(text), MESSAGE_BYTES)]
    return found[:limit]


class Cluster:
    """Two brokers that run, and a topic for each measurement."""

    def __init__(self, name: str, process: ClusterProcess) -> None:
        self.contestant = CONTESTANTS[name]
        self._process = process
        self._admin = AdminClient({"bootstrap.servers": process.bootstrap, "log_level": 0})
        self._topics = 0

    def make_topic(self) -> tuple[str, str]:
        """Returns its name and the address of its original."""
        self._topics += 1
        topic = f"text-{self._topics}"
        until = time.monotonic() + 60
        while len(self._admin.list_topics(timeout=10).brokers) < BROKERS:
            assert time.monotonic() < until, "the brokers do not find each other"
            time.sleep(0.2)
        made = self._admin.create_topics([NewTopic(topic, 1, BROKERS)], operation_timeout=60)
        made[topic].result(60)
        while True:
            seen = self._admin.list_topics(topic, timeout=10)
            leader = seen.topics[topic].partitions[0].leader if topic in seen.topics else -1
            if leader >= 0:
                where = seen.brokers[leader]
                return topic, f"{where.host}:{where.port}"
            assert time.monotonic() < until, "nobody was elected"
            time.sleep(0.2)

    def place(self, number: int, original: str, *, spread: bool) -> str:
        """Where a client goes."""
        brokers = self._process.brokers
        return brokers[number % BROKERS].address if spread else original

    def measure(self, phase: str, users: int, text: list[bytes]) -> dict[str, float]:
        """Seconds of one phase."""
        contestant = self.contestant
        topic, original = self.make_topic()
        size = sum(map(len, text))
        lanes = contestant.mode is Mode.ACTIVE_ACTIVE_LANES

        def producer(number: int) -> Awaitable[None]:
            at = self.place(number, original, spread=lanes)
            return produce(at, topic, text, contestant.acks)

        def consumer(number: int, texts: int) -> Awaitable[None]:
            at = self.place(number, original, spread=contestant.spread)
            return consume(at, topic, size * texts)

        async def run() -> dict[str, float]:
            found: dict[str, float] = {}
            reading: list[Awaitable[None]] = []
            if phase == "consume":
                await producer(0)
                await consumer(0, 1)
            elif phase == "both":
                reading = [consumer(each, users) for each in range(users)]
            start = time.perf_counter()
            if phase == "consume":
                reading = [consumer(each, 1) for each in range(users)]

            async def timed(name: str, work: list[Awaitable[None]]) -> None:
                await asyncio.gather(*work)
                found[f"{name}_s"] = time.perf_counter() - start

            work = [timed("consume", reading)] if reading else []
            if phase != "consume":
                work.append(timed("produce", [producer(each) for each in range(users)]))
            await asyncio.gather(*work)
            return found

        return asyncio.run(run())


def synced_writes(folder: Path, count: int) -> float:
    """Median milliseconds to write 100 bytes and sync them."""
    times = []
    with (folder / "probe").open("wb") as file:
        for _ in range(count):
            start = time.perf_counter()
            file.write(os.urandom(MESSAGE_BYTES))
            file.flush()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measured(
    name: str, text: list[bytes], users: list[int], repeats: int, tell: Callable[[str], None]
) -> dict[str, list[dict[str, float]]]:
    """All phases of one contestant, `repeats` times."""
    contestant = CONTESTANTS[name]
    configs = ("min.insync.replicas=2", *contestant.configs)
    options = [f"--flush={contestant.flush}", *(f"--topic-config={each}" for each in configs)]
    rows: dict[str, list[dict[str, float]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ClusterProcess.start(
            Path(folder), *options, replicas=BROKERS, mode=contestant.mode
        ) as process,
    ):
        cluster = Cluster(name, process)
        for count in users:
            for phase in PHASES:
                row = f"{phase}, {count} users"
                rows[row] = [cluster.measure(phase, count, text) for _ in range(repeats)]
                tell(f"{name}: {row}: {rows[row]}")
    return rows


def main() -> None:
    parser = harness.arguments(__doc__, repeats=1)
    parser.add_argument("--text", type=Path, help="default: a text that Python carries")
    parser.add_argument("--messages", type=int, help="of each producer; default: the whole text")
    parser.add_argument("--users", type=int, nargs="+", help="default: 5 10 20")
    options = parser.parse_args()
    users = options.users or ([5] if options.quick else [5, 10, 20])
    limit = options.messages or (100 if options.quick else None)
    text = messages_of(read_text(options.text)[:TEXT_BYTES], limit)

    def tell(said: str) -> None:
        print(said, file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        disk_ms = synced_writes(Path(folder), 200)
    found = {name: measured(name, text, users, options.repeats, tell) for name in CONTESTANTS}
    medians: dict[str, dict[str, Any]] = {
        name: {
            row: {
                key: round(statistics.median(run[key] for run in runs), 4)
                for key in sorted(runs[0])
            }
            for row, runs in rows.items()
        }
        for name, rows in found.items()
    }
    ratios = {
        f"{STANDBY} over {name}, {row}, {key}": round(medians[STANDBY][row][key] / value, 3)
        for name, rows in medians.items()
        if name != STANDBY
        for row, values in rows.items()
        for key, value in values.items()
    }
    harness.report(
        "replication_paper",
        ours=medians,
        rivals={},
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
        messages=len(text),
        synced_write_ms=round(disk_ms, 3),
        one_disk=True,
    )


if __name__ == "__main__":
    main()
