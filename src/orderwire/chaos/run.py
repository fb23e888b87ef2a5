"""A cluster under drawn faults, with clients: rounds, then peace, then the evidence.

`ChaosRun(settings, folder).run()` returns the history of every partition and how long clients had
to wait for new originals.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from orderwire.aio.broker_process import BrokerDidNotStart
from orderwire.aio.cluster_process import ClusterProcess
from orderwire.aio.cluster_status import ask_status
from orderwire.aio.history_options import HISTORY_TOPIC
from orderwire.aio.zookeeper_client import ZookeeperClient
from orderwire.aio.zookeeper_server import ZookeeperServerSettings, managed_zookeeper
from orderwire.broker.coordination.layout import BROKERS
from orderwire.broker.replication.settings import Mode
from orderwire.chaos.clients import Consuming, Producing, Sent
from orderwire.chaos.faults import FAULTS, Target, befalling, drawn, usable
from orderwire.chaos.history import Life, Sample, histories
from orderwire.chaos.wires import Wires
from orderwire.kernel import OrderwireError, stream
from orderwire.pipeline.replication_source import read_histories
from orderwire.trace.errors import TraceError
from orderwire.verify.replication import Committed, Event
from orderwire.verify.replication_history import Parts, by_partition, parts_from

TOPIC = "chaos"
REPLICAS = 3
HEAL_SECONDS_MAX = 60.0
"""So long after a fault everybody has to be in sync; longer is a violation of I8."""
WRITTEN_SECONDS_MAX = 60.0
"""How long brokers may take to write the last of their history."""
_LOOK_S = 0.1
_WATCH_S = 0.01
_PORTS = (20_000, 30_000)


class ChaosSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done to whom."""

    mode: Mode = Mode.ACTIVE_ACTIVE
    seed: int = 1
    rounds: int = 20
    faults: tuple[str, ...] = tuple(FAULTS)
    partitions: int = 3
    session_ms: int = 1_500
    pause_ms: int = 30
    """Between two bursts of a producer, about."""
    quiet_ms: int = 300
    """Between everybody in sync and the next fault, at least."""
    history: bool = False
    """Brokers write their history into a topic, which is judged beside their files."""
    seconds_max: float = 3_600.0
    """No round begins later."""


class Round(msgspec.Struct, frozen=True):
    """One fault and what came of it."""

    number: int
    fault: str
    gone: tuple[int, ...]
    began_s: float
    lasted_s: float
    healed_s: float
    """From its end until all partitions had everybody in sync."""
    gaps_s: tuple[float, ...]
    """For each partition whose original was gone: the longest time without an acknowledgement, or
    what of it was left when the original's session had ended."""
    waits_s: tuple[float, ...]
    """All of it."""


class ChaosResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run leaves."""

    rounds: list[Round]
    histories: Mapping[int, list[Event]]
    """By partition, with what brokers did from their logs and files."""
    written: Mapping[int, list[Event]] | None
    """The same with what they wrote into their topic instead."""
    messages: list[Sent]
    sent: int
    acknowledged: int
    consumed: int
    odd: list[str]
    """What went wrong beside the histories: brokers that did not start, tracebacks, consumers'
    errors."""


class ChaosFailed(OrderwireError):
    """It cannot begin, or the cluster did not become whole again; the message says why, or how."""


class ChaosRun:
    """One run."""

    def __init__(
        self, settings: ChaosSettings, folder: Path, tell: Callable[[str], None] = print
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.odd: list[str] = []
        self.rounds: list[Round] = []
        self._tell = tell
        self._draw = stream(settings.seed, "chaos/faults")
        self._samples: list[Sample] = []
        self._lives: dict[int, int] = {}
        self._gone_at: dict[int, list[float]] = {}
        """When each broker's znode went."""
        self._topic_id = ""
        self._silent: dict[int, str] = {}
        """Brokers that did not say how they are when they were last asked, and why."""

    def run(self) -> ChaosResult:
        """Do it all.  Raises ChaosFailed, OSError, BrokerDidNotStart."""
        settings = self.settings
        if not usable(settings.faults):
            raise ChaosFailed("slow-disk needs strace, which is missing: apt-get install strace")
        if len(usable(settings.faults)) < len(settings.faults):
            self._tell("strace is missing: no disk is slow")
        self.folder.mkdir(parents=True, exist_ok=True)
        server = managed_zookeeper(self.folder / "zookeeper", ZookeeperServerSettings())
        wires = Wires()
        server.start()
        try:
            host, _, port = server.address.rpartition(":")
            each: list[list[str]] = []
            for broker in range(REPLICAS):
                inside = _free_port()
                outside = wires.to_broker(broker, "127.0.0.1", inside)
                zookeeper = wires.to_zookeeper(broker, host, int(port))
                each.append(
                    [
                        f"--internal-listen=127.0.0.1:{inside}",
                        f"--internal-advertise=127.0.0.1:{outside}",
                        f"--zookeeper=127.0.0.1:{zookeeper}",
                    ]
                )
            cluster = ClusterProcess.start(
                self.folder,
                *([f"--history-topic={HISTORY_TOPIC}"] if settings.history else []),
                replicas=REPLICAS,
                mode=settings.mode,
                zookeeper=server.address,
                session_ms=settings.session_ms,
                each=each,
            )
            cluster.server = server
            try:
                with self._watching(server.address):
                    return self._with_clients(cluster, wires)
            finally:
                for process in cluster.brokers:
                    if process.is_running:
                        os.kill(process.pid, signal.SIGCONT)
                        process.kill()
        finally:
            wires.close()
            server.stop()

    # -- rounds -----------------------------------------------------------------------------

    def _with_clients(self, cluster: ClusterProcess, wires: Wires) -> ChaosResult:
        settings = self.settings
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._until(lambda: len(admin.list_topics(timeout=10).brokers) == REPLICAS, 30)
        made = admin.create_topics([NewTopic(TOPIC, settings.partitions, REPLICAS)])
        made[TOPIC].result(30)
        described = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(30)
        self._topic_id = folder_name(described.topic_id)
        producers = [
            Producing(
                f"p{number}",
                cluster.bootstrap,
                TOPIC,
                settings.partitions,
                stream(settings.seed, f"chaos/producer/{number}"),
                acks=acks,
                idempotent=idempotent,
                pause_s=settings.pause_ms / 1_000,
            )
            for number, (acks, idempotent) in enumerate(
                [(-1, True), (-1, True), (-1, False), (1, False)]
            )
        ]
        consumers = [
            Consuming(f"c{number}", cluster.bootstrap, TOPIC, settings.partitions)
            for number in range(2)
        ]
        self._whole(cluster, wires)
        for client in [*producers, *consumers]:
            client.start()
        failed = ""
        began = time.monotonic()
        try:
            for number in range(settings.rounds):
                if time.monotonic() - began > settings.seconds_max:
                    break
                self._round(number, cluster, wires, producers)
        except (ChaosFailed, BrokerDidNotStart) as error:
            failed = str(error)
            self.odd.append(failed)
            self._tell(failed)
        for producer in producers:
            producer.stop()
        for producer in producers:
            producer.join(70)
        partitions = range(settings.partitions)
        with contextlib.suppress(ChaosFailed):
            self._whole(cluster, wires, level=True)
        self._until(
            lambda: all(
                consumer.positions[each] >= _end_of_records(producers, each)
                for consumer in consumers
                for each in partitions
            ),
            20,
        )
        for consumer in consumers:
            consumer.stop()
            consumer.join(30)
            self.odd += [f"{consumer.name}: {error}" for error in dict.fromkeys(consumer.errors)]
        # Now, not before: replicas are level, too, while a round of the last messages is under way.
        status = self._status(cluster)
        with contextlib.suppress(ChaosFailed):
            status = self._whole(cluster, wires, level=True)
        isr = {each: _isr(status, each) for each in partitions}
        high = {
            broker: {
                one["partition"]: one["high_watermark"]
                for one in told["partitions"]
                if one["topic"] == TOPIC
            }
            for broker, told in status.items()
        }
        written = self._written(cluster, high) if settings.history else None
        for process in cluster.brokers:
            process.ask_to_end()
        for process in cluster.brokers:
            process.stop()
        for broker in range(REPLICAS):
            log = (self.folder / f"broker-{broker}.log").read_text(errors="replace")
            if "Traceback" in log:
                at = log.index("Traceback")
                self.odd.append(f"broker {broker} wrote: {log[at : at + 3_000]}")
        lives = [
            Life(
                broker,
                self.folder / f"broker-{broker}",
                self.folder / f"broker-{broker}.log",
                high.get(broker, {}),
            )
            for broker in range(REPLICAS)
        ]
        found = partial(
            histories,
            TOPIC,
            self._topic_id,
            settings.partitions,
            lives,
            isr,
            [one for producer in producers for one in producer.sent],
            [one for consumer in consumers for one in consumer.moved],
            self._samples,
            acks_one_lost=settings.mode is Mode.ACTIVE_STANDBY,
        )
        sent = [one for producer in producers for one in producer.sent]
        return ChaosResult(
            rounds=self.rounds,
            histories=found(),
            written=None if written is None else found(written=written),
            messages=sent,
            sent=len(sent),
            acknowledged=sum(one.offset >= 0 for one in sent),
            consumed=sum(len(one.records) for consumer in consumers for one in consumer.moved),
            odd=self.odd,
        )

    def _written(
        self, cluster: ClusterProcess, high: Mapping[int, Mapping[int, int]]
    ) -> dict[int, Parts]:
        """What brokers wrote of themselves, once all of it is there."""
        parts: dict[int, Parts] = {}
        end = time.monotonic() + WRITTEN_SECONDS_MAX
        while time.monotonic() < end:
            with contextlib.suppress(TraceError):
                table = read_histories(f"{HISTORY_TOPIC}@{cluster.bootstrap}")
                parts = {
                    partition: parts_from(rows)
                    for (_, topic, partition), rows in by_partition(table)
                    if topic == TOPIC
                }
            told = {
                (event.broker, partition, event.high_watermark)
                for partition, each in parts.items()
                for noted in each.written.values()
                for event in (one.event for one in noted)
                if isinstance(event, Committed)
            }
            if all(
                mark == 0 or (broker, partition, mark) in told
                for broker, marks in high.items()
                for partition, mark in marks.items()
            ):
                return parts
            time.sleep(_LOOK_S)
        self.odd.append(f"brokers did not write all of their history in {WRITTEN_SECONDS_MAX:g} s")
        return parts

    def _round(
        self, number: int, cluster: ClusterProcess, wires: Wires, producers: list[Producing]
    ) -> None:
        status = self._whole(cluster, wires)
        time.sleep(self.settings.quiet_ms / 1_000)
        originals = {each: _original(status, each) for each in range(self.settings.partitions)}
        target = Target(
            cluster,
            wires,
            self.folder,
            self._topic_id,
            originals,
            {each: _end(status, each) for each in originals},
            self.settings.session_ms / 1_000,
            self._draw,
        )
        name = drawn(self._draw, usable(self.settings.faults))
        began = time.monotonic()
        with befalling(name, target) as gone:
            pass
        ended = time.monotonic()
        self._whole(cluster, wires, since=ended)
        healed = time.monotonic()
        gaps, waits = self._gaps(began, gone, originals, producers)
        told = Round(
            number,
            name,
            tuple(gone),
            began,
            ended - began,
            healed - ended,
            tuple(gaps),
            tuple(waits),
        )
        self.rounds.append(told)
        slow = f", gap {max(gaps):.2f} s" if gaps else ""
        self._tell(
            f"{number}: {name} {list(gone)} {told.lasted_s:.1f} s,"
            f" whole after {told.healed_s:.1f} s{slow}"
        )

    def _gaps(
        self,
        began: float,
        gone: list[int],
        originals: Mapping[int, int],
        producers: list[Producing],
    ) -> tuple[list[float], list[float]]:
        """How long each partition without its original took nothing."""
        gaps: list[float] = []
        waits: list[float] = []
        now = time.monotonic()
        for partition, original in originals.items():
            if original not in gone:
                continue
            times = sorted(
                one.answered_s
                for producer in producers
                for one in producer.sent[-5_000:]
                if one.partition == partition and not one.error and began <= one.answered_s <= now
            )
            if not times:
                continue
            start, end = max(
                zip([began, *times], times, strict=False), key=lambda pair: pair[1] - pair[0]
            )
            waits.append(end - start)
            ended = [at for at in self._gone_at.get(original, []) if start <= at <= end]
            gaps.append(end - ended[0] if ended else end - start)
        return gaps, waits

    # -- what the cluster says --------------------------------------------------------------

    def _status(self, cluster: ClusterProcess) -> dict[int, dict[str, Any]]:
        running = {index: each for index, each in enumerate(cluster.brokers) if each.is_running}

        async def ask() -> list[dict[str, Any] | BaseException]:
            asked = [ask_status(each.internal) for each in running.values()]
            return await asyncio.gather(*asked, return_exceptions=True)

        answers = dict(zip(running, asyncio.run(ask()), strict=True))
        told = {at: one for at, one in answers.items() if not isinstance(one, BaseException)}
        self._silent = {at: repr(one) for at, one in answers.items() if at not in told}
        for broker, one in told.items():
            life = cluster.brokers[broker].pid
            for each in one["partitions"]:
                if each["topic"] == TOPIC:
                    self._samples.append(
                        Sample(each["partition"], broker, life, each["high_watermark"])
                    )
        return told

    def _whole(
        self, cluster: ClusterProcess, wires: Wires, *, since: float = 0.0, level: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Wait until every broker says that every partition has all in sync, and with `level` that
        all have the same, orphans included."""
        end = (since or time.monotonic()) + HEAL_SECONDS_MAX
        status: dict[int, dict[str, Any]] = {}
        while time.monotonic() < end:
            status = self._status(cluster)
            if len(status) == REPLICAS and all(
                _is_whole(status, each, level) for each in range(self.settings.partitions)
            ):
                return status
            for index, broker in enumerate(cluster.brokers):
                if not broker.is_running:
                    self.odd.append(f"broker {index} ended by itself")
                    cluster.restart(index)
                    wires.reopen(index)
            time.sleep(_LOOK_S)
        told = {
            broker: [
                {key: each.get(key) for key in ("partition", "epoch", "original", "isr", "role")}
                | {"hw": each["high_watermark"], "end": each["end_offset"]}
                for each in one["partitions"]
                if each["topic"] == TOPIC
            ]
            for broker, one in status.items()
        }
        silent = f"; no status of {self._silent}" if self._silent else ""
        raise ChaosFailed(f"not whole after {HEAL_SECONDS_MAX:g} s: {told}{silent}")

    def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not holds() and time.monotonic() < end:
            time.sleep(_LOOK_S)

    @contextlib.contextmanager
    def _watching(self, zookeeper: str) -> Iterator[None]:
        """Note when a broker's session ends."""
        stopping = threading.Event()

        async def watch() -> None:
            async with ZookeeperClient(zookeeper) as client:
                there: set[int] = set()
                while not stopping.is_set():
                    with contextlib.suppress(OSError, OrderwireError):
                        now = {int(name) for name in await client.children(BROKERS)}
                        for broker in there - now:
                            self._gone_at.setdefault(broker, []).append(time.monotonic())
                        there = now
                    await asyncio.sleep(_WATCH_S)

        thread = threading.Thread(target=lambda: asyncio.run(watch()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(10)


def _free_port() -> int:
    """A port that nobody has, outside of the range from which the kernel gives ports away."""
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def folder_name(topic_id: Any) -> str:
    """What brokers call the folder of a topic."""
    word = (1 << 64) - 1
    upper, lower = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return f"{upper & word:016x}{lower & word:016x}"


def _places(
    status: Mapping[int, Mapping[str, Any]], partition: int
) -> dict[int, Mapping[str, Any]]:
    return {
        broker: one
        for broker, told in status.items()
        for one in told["partitions"]
        if one["topic"] == TOPIC and one["partition"] == partition
    }


def _is_whole(status: Mapping[int, Mapping[str, Any]], partition: int, level: bool) -> bool:
    places = _places(status, partition)
    epochs = {one["epoch"] for one in places.values()}
    whole = (
        len(places) == REPLICAS
        and len(epochs) == 1
        and all(
            one["original"] is not None and sorted(one["isr"]) == list(range(REPLICAS))
            for one in places.values()
        )
    )
    marks = {(one["high_watermark"], one["end_offset"]) for one in places.values()}
    waiting = any(one.get("orphans") for one in places.values())
    return whole and not (level and (len(marks) > 1 or waiting))


def _original(status: Mapping[int, Mapping[str, Any]], partition: int) -> int:
    return int(next(iter(_places(status, partition).values()))["original"])


def _isr(status: Mapping[int, Mapping[str, Any]], partition: int) -> tuple[int, ...]:
    places = _places(status, partition)
    if not places:
        return ()
    newest = max(places.values(), key=lambda one: int(one["epoch"]))
    return tuple(sorted(newest["isr"]))


def _end(status: Mapping[int, Mapping[str, Any]], partition: int) -> int:
    return min((one["high_watermark"] for one in _places(status, partition).values()), default=0)


def _end_of_records(producers: list[Producing], partition: int) -> int:
    return max(
        (one.offset + 1 for each in producers for one in each.sent if one.partition == partition),
        default=0,
    )
