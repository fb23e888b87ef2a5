"""The paper's evaluation on real processes: two brokers, closed loops, every message by itself.

Every producer sends a text in messages of 100 bytes, one request in flight; as many consumers count
its characters.  `produce`: producers alone; `consume`: what is there then, a message a fetch, and
`consume, 1 MiB a fetch`; `both`: at once, until the last consumer has all.  A point ends after
2,000 messages of each client or 10 s, whichever comes first; the paper's whole text are 1,524.
Rates are messages per second of wall clock; ratios are rates over active-standby's, all contestants
in turn at each point, beside the paper's number; σ is what explains the gain by S(2, σ).

Both replicas share one disk here, and clients and brokers the same processors, unlike in the paper.
The disk alone is measured beside: 100 bytes written and synced, again and again.
"""

import asyncio
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from struct import unpack
from typing import Any

import harness
import msgspec
from broker_servers import FETCH_VERSION, PRODUCE_VERSION, frame
from confluent_kafka.admin import AdminClient, NewTopic

from orderwire.aio.cluster_process import ClusterProcess
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
from orderwire.lab.models.s004 import TABLE_5, sigma_of

MESSAGE_BYTES = 100
TEXT_BYTES = 152_331
FETCH_BYTES = 1 << 20
BROKERS = 2
MESSAGES = 2_000
SECONDS = 10.0
PAUSE_S = 0.05
"""Between two attempts of a client that was refused."""
REDIRECTED_MAX = 200
"""Fetches in a row without a record, or refused requests, before a client gives up."""
ATTEMPTS = 20
"""To have a topic whose partitions have different originals."""
PATIENCE_S = 60.0
"""For what is committed to reach every reader."""


class Contestant(msgspec.Struct, frozen=True):
    """One way to replicate."""

    mode: str
    flush: str
    acks: int
    configs: tuple[tuple[str, str], ...] = ()
    partitions: int = 1
    spread: bool = False
    """Whether consumers read at both brokers."""
    anywhere: bool = False
    """Whether either broker takes what is produced."""


PAPER = (
    ("orderwire.distribution", "request"),
    ("orderwire.coordination", "zookeeper"),
    ("orderwire.sync.interval.ms", "5000"),
    ("orderwire.sync.on.fetch", "false"),
    ("orderwire.eager.copy", "false"),
)
STANDBY = "active-standby"
CONTESTANTS = {
    STANDBY: Contestant("active-standby", "message", 1),
    "active-active, the paper's": Contestant("active-active", "message", 1, PAPER, spread=True),
    "active-standby, 2 partitions": Contestant("active-standby", "message", 1, partitions=2),
    "active-standby, read at both": Contestant("active-standby", "message", 1, spread=True),
    "active-standby, group commit, acks=all": Contestant("active-standby", "group", -1),
    "active-active, sessions and RPC, acks=all": Contestant(
        "active-active", "group", -1, spread=True
    ),
    "lanes, acks=all": Contestant("active-active-lanes", "group", -1, spread=True, anywhere=True),
}
"""The first two are the paper's."""
PRINTED = {
    ("produce", 5): 1.9,
    ("produce", 20): 1.34,
    **{("consume", users): 1.7 for users in TABLE_5},
    **{("both, produced", users): ratios[0] for users, ratios in TABLE_5.items()},
    **{("both, consumed", users): ratios[1] for users, ratios in TABLE_5.items()},
}
"""Phase and users → what the paper gains."""


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


def produce_request(topic: str, partition: int, value: bytes, acks: int) -> bytes:
    batch = build_batch([Record(value, timestamp=int(time.time() * 1000))])
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])]
    body = encode_produce_request(ProduceRequest(None, acks, 30_000, data), PRODUCE_VERSION)
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, 0, body)


def fetch_request(topic: str, partition: int, offset: int, most_bytes: int) -> bytes:
    asked = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=most_bytes)
    body = encode_fetch_request(
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=most_bytes,
            topics=[FetchTopic(topic, partitions=[asked])],
        ),
        FETCH_VERSION,
    )
    return frame(ApiKey.FETCH, FETCH_VERSION, 0, body)


class Told:
    """What the producers of a topic have sent so far."""

    def __init__(self, partitions: int) -> None:
        self.characters = [0] * partitions
        """Acknowledged, of each partition."""
        self.ends = [0] * partitions
        """Behind the last offset that was told."""
        self.messages = 0
        self.again = 0
        """Requests that were refused and sent again: what they held may be there twice."""
        self.done = False
        self.done_at = 0.0

    def read(self, partition: int, characters: int, offset: int) -> bool:
        """Whether a consumer that has counted so many, and is here, has all."""
        all_told = offset >= self.ends[partition]
        return self.done and all_told and characters >= self.characters[partition]


class Read:
    """What the consumers have counted."""

    def __init__(self) -> None:
        self.messages = 0
        self.done_at = 0.0


async def produce(
    at: str, topic: str, partition: int, text: Sequence[bytes], acks: int, told: Told, until: float
) -> None:
    """Send the text, message by message, until its end or this time."""
    client = await Client.connect(at)
    for value in text:
        if time.perf_counter() > until:
            break
        for _ in range(REDIRECTED_MAX):
            answer = await client.ask(produce_request(topic, partition, value, acks))
            response, _ = decode_produce_response(memoryview(answer), 4, PRODUCE_VERSION)
            told_us = response.responses[0].partition_responses[0]
            if not told_us.error_code:
                break
            told.again += 1
            await asyncio.sleep(PAUSE_S)
        else:
            raise AssertionError(f"{topic}: refused again and again, error {told_us.error_code}")
        told.ends[partition] = max(told.ends[partition], told_us.base_offset + 1)
        told.characters[partition] += len(value)
        told.messages += 1
        told.done_at = time.perf_counter()
    client.close()


async def consume(
    at: str,
    topic: str,
    partition: int,
    told: Told,
    read: Read,
    *,
    most_bytes: int = FETCH_BYTES,
    messages: int | None = None,
    until: float | None = None,
) -> None:
    """Count characters from the start, to the end, so many messages, or this time."""
    client = await Client.connect(at)
    offset = counted = nothing = 0
    patience = time.perf_counter() + PATIENCE_S + (0 if told.done else SECONDS)
    while not told.read(partition, counted, offset) and (messages is None or offset < messages):
        now = time.perf_counter()
        if until is not None and now > until:
            break
        assert now < patience, f"{topic}: {counted} of {told.characters} characters came"
        answer = await client.ask(fetch_request(topic, partition, offset, most_bytes))
        response, _ = decode_fetch_response(memoryview(answer), 4, FETCH_VERSION)
        found = response.responses[0].partitions[0]
        records = found.records
        nothing = 0 if records else nothing + 1
        if not records:
            if found.error_code:
                assert nothing < REDIRECTED_MAX, f"{topic}: error {found.error_code}"
                await asyncio.sleep(PAUSE_S)
            continue
        for record in read_records(records):
            if record.offset >= offset:
                counted += len(record.value or b"")
                read.messages += 1
                offset = record.offset + 1
        read.done_at = time.perf_counter()
    client.close()
    sent = told.characters[partition] + told.again * MESSAGE_BYTES
    assert not told.done or counted <= sent, f"{topic}: {counted} characters, {sent} were sent"


def messages_of(text: bytes, count: int) -> list[bytes]:
    """The text in messages, from its start again where it is too short."""
    parts = [text[at : at + MESSAGE_BYTES] for at in range(0, len(text), MESSAGE_BYTES)]
    return list(itertools.islice(itertools.cycle(parts), count))


class Measurement:
    """One topic of one contestant, and what is done with it."""

    def __init__(self, name: str, cluster: ClusterProcess, topic: str) -> None:
        self.contestant = CONTESTANTS[name]
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        until = time.monotonic() + PATIENCE_S
        while len(self._admin.list_topics(timeout=10).brokers) < BROKERS:
            assert time.monotonic() < until, "the brokers do not find each other"
            time.sleep(0.2)
        for attempt in range(ATTEMPTS):
            self.topic = f"{topic}-{attempt}"
            self._originals = self._make()
            if len(set(self._originals)) == self.contestant.partitions:
                return
            self.remove()
        raise AssertionError(f"{topic}: its partitions have one original, {ATTEMPTS} times")

    def _make(self) -> list[str]:
        """Make the topic; returns the address of each partition's original."""
        contestant = self.contestant
        configs = {"orderwire.mode": contestant.mode, "min.insync.replicas": str(BROKERS)}
        configs |= dict(contestant.configs)
        wanted = NewTopic(self.topic, contestant.partitions, BROKERS, config=configs)
        self._admin.create_topics([wanted], operation_timeout=60)[self.topic].result(60)
        until = time.monotonic() + PATIENCE_S
        while True:
            seen = self._admin.list_topics(self.topic, timeout=10)
            partitions = seen.topics[self.topic].partitions
            leaders = [partitions[each].leader for each in sorted(partitions)]
            if len(leaders) == contestant.partitions and min(leaders) >= 0:
                return [f"{seen.brokers[each].host}:{seen.brokers[each].port}" for each in leaders]
            assert time.monotonic() < until, f"{self.topic}: its originals are {leaders}"
            time.sleep(0.2)

    def remove(self) -> None:
        """The topic is not needed any more."""
        self._admin.delete_topics([self.topic], operation_timeout=60)[self.topic].result(60)

    def _place(self, number: int, partition: int, *, spread: bool) -> str:
        brokers = self._cluster.brokers
        return brokers[number % BROKERS].address if spread else self._originals[partition]

    def producers(
        self, users: int, text: Sequence[bytes], seconds: float, told: Told
    ) -> list[Coroutine[Any, Any, None]]:
        """Each with the whole text."""
        until = time.perf_counter() + seconds
        found = []
        for number in range(users):
            partition = number % self.contestant.partitions
            at = self._place(number, partition, spread=self.contestant.anywhere)
            found.append(
                produce(at, self.topic, partition, text, self.contestant.acks, told, until)
            )
        return found

    def consumers(
        self, users: int, told: Told, read: Read, **limits: Any
    ) -> list[Coroutine[Any, Any, None]]:
        """Each reads all partitions."""
        return [
            consume(
                self._place(number, partition, spread=self.contestant.spread),
                self.topic,
                partition,
                told,
                read,
                **limits,
            )
            for number in range(users)
            for partition in range(self.contestant.partitions)
        ]


async def alone(
    measurement: Measurement, users: int, text: Sequence[bytes], seconds: float
) -> dict[str, float]:
    """Producers, then consumers.  Messages per second."""
    told = Told(measurement.contestant.partitions)
    start = time.perf_counter()
    await asyncio.gather(*measurement.producers(users, text, seconds, told))
    told.done = True
    found = {"produce": told.messages / (told.done_at - start)}
    await asyncio.gather(*measurement.consumers(BROKERS, told, Read()))  # Both have all.
    for name, limits in (
        ("consume", {"most_bytes": 1, "messages": len(text)}),
        ("consume, 1 MiB a fetch", {}),
    ):
        read, start = Read(), time.perf_counter()
        reading = measurement.consumers(users, told, read, until=start + seconds, **limits)
        await asyncio.gather(*reading)
        found[name] = read.messages / (read.done_at - start)
    return found


async def at_once(
    measurement: Measurement, users: int, text: Sequence[bytes], seconds: float
) -> dict[str, float]:
    """Producers and consumers; a message is consumed once all have it."""
    told, read = Told(measurement.contestant.partitions), Read()
    start = time.perf_counter()

    async def send() -> None:
        await asyncio.gather(*measurement.producers(users, text, seconds, told))
        told.done = True

    await asyncio.gather(send(), *measurement.consumers(users, told, read))
    assert read.messages >= users * told.messages, f"{read.messages} read, {told.messages} sent"
    end = max(read.done_at, told.done_at)
    return {
        "both, produced": told.messages / (told.done_at - start),
        "both, consumed": told.messages / (end - start),
    }


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


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What one contestant did with so many users, once."""

    contestant: str
    users: int
    repeat: int
    messages: int
    """Of each client at most."""
    seconds: float
    """Of each phase at most."""
    rates: dict[str, float]
    """Phase → messages per second."""
    brokers_cpu: float
    """Processors that both brokers kept busy, in the mean."""
    load: float
    """Processes that wanted a processor, over the minute that ended with it."""
    synced_write_ms: float
    """Just before."""


def measured(
    name: str, users: int, repeat: int, text: list[bytes], seconds: float, cluster: ClusterProcess
) -> Point:
    """Both measurements, each with a topic of its own."""
    rates: dict[str, float] = {}
    pids = [broker.pid for broker in cluster.brokers]
    with tempfile.TemporaryDirectory() as folder:
        disk_ms = synced_writes(Path(folder), 50)
    cpu_s = wall_s = 0.0
    for phase in (alone, at_once):
        topic = f"{phase.__name__}-{users}-{repeat}-{list(CONTESTANTS).index(name)}"
        measurement = Measurement(name, cluster, topic)
        cpu, wall = harness.cpu_s_of(pids), time.perf_counter()
        rates |= asyncio.run(phase(measurement, users, text, seconds))
        wall_s += time.perf_counter() - wall
        cpu_s += harness.cpu_s_of(pids) - cpu
        measurement.remove()
    return Point(
        contestant=name,
        users=users,
        repeat=repeat,
        messages=len(text),
        seconds=seconds,
        rates={phase: round(rate, 1) for phase, rate in rates.items()},
        brokers_cpu=round(cpu_s / wall_s, 2),
        load=os.getloadavg()[0],
        synced_write_ms=round(disk_ms, 3),
    )


def compared(points: Sequence[Point]) -> dict[str, dict[str, float | None]]:
    """Each phase with so many users: the paper's gain and those of all contestants over standby."""
    found: dict[str, dict[str, float | None]] = {}
    for users in sorted({each.users for each in points}):
        here = [each for each in points if each.users == users]
        base = {each.repeat: each.rates for each in here if each.contestant == STANDBY}
        for phase in next(iter(base.values()), {}):
            row: dict[str, float | None] = {"the paper": PRINTED.get((phase, users))}
            for name in CONTESTANTS:
                ratios = [
                    each.rates[phase] / base[each.repeat][phase]
                    for each in here
                    if each.contestant == name and name != STANDBY and each.repeat in base
                ]
                if ratios:
                    row[name] = round(statistics.median(ratios), 3)
            found[f"{phase}, {users} users"] = row
    return found


def explained(ratios: dict[str, dict[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """The σ of each gain of producing; None where no σ explains it: it is beyond S(2, 0)."""
    return {
        row: {
            name: round(sigma_of(BROKERS, gain), 3)
            if gain is not None and gain <= BROKERS
            else None
            for name, gain in gains.items()
        }
        for row, gains in ratios.items()
        if row.startswith("produce")
    }


def kept(path: Path | None) -> list[Point]:
    """What is there already."""
    if path is None or not path.exists():
        return []
    return [msgspec.json.decode(line, type=Point) for line in path.read_bytes().splitlines()]


def run(
    wanted: Sequence[tuple[int, int, str]],
    text: list[bytes],
    seconds: float,
    tell: Callable[[Point], None],
) -> None:
    """Measure these: repeat, users, contestant.  A cluster for each way to store, side by side."""
    flushes = sorted({CONTESTANTS[name].flush for _, _, name in wanted})
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clusters = {
            flush: stack.enter_context(
                ClusterProcess.start(folder / flush, f"--flush={flush}", replicas=BROKERS)
            )
            for flush in flushes
        }
        for repeat, users, name in wanted:
            cluster = clusters[CONTESTANTS[name].flush]
            tell(measured(name, users, repeat, text, seconds, cluster))


def main() -> None:
    parser = harness.arguments(__doc__, repeats=1)
    parser.add_argument("--text", type=Path, help="default: a text that Python carries")
    parser.add_argument(
        "--messages", type=int, help=f"of each client at most; default: {MESSAGES:,}"
    )
    parser.add_argument("--seconds", type=float, help=f"of a phase at most; default: {SECONDS:g}")
    parser.add_argument("--users", type=int, nargs="+", help="default: 5 10 20")
    parser.add_argument(
        "--keep", type=Path, help="a file for each point as it ends; what is there is not run again"
    )
    options = parser.parse_args()
    users = options.users or ([5] if options.quick else [5, 10, 20])
    seconds = options.seconds or (2.0 if options.quick else SECONDS)
    count = options.messages or (200 if options.quick else MESSAGES)
    text = messages_of(read_text(options.text)[:TEXT_BYTES], count)
    points = [
        each
        for each in kept(options.keep)
        if (each.messages, each.seconds) == (count, seconds) and each.users in users
    ]
    done = {(each.repeat, each.users, each.contestant) for each in points}
    wanted = [
        each
        for each in itertools.product(range(options.repeats), users, CONTESTANTS)
        if each not in done
    ]

    def tell(point: Point) -> None:
        points.append(point)
        print(msgspec.json.encode(point).decode(), file=sys.stderr)
        if options.keep is not None:
            with options.keep.open("ab") as file:
                file.write(msgspec.json.encode(point) + b"\n")

    if wanted:
        run(wanted, text, seconds, tell)
    ratios = compared(points)
    harness.report(
        "replication_paper",
        ours={f"{each.contestant}, {each.users} users, {each.repeat}": each for each in points},
        rivals={},
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
        sigma=explained(ratios),
        one_disk=True,
    )


if __name__ == "__main__":
    main()
