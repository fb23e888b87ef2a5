"""The demo's three brokers: one is killed in the middle and comes back; nothing is missed."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.aio.cluster_status import ask_status
from orderwire.broker.replication.settings import Mode
from orderwire.chaos.clients import Moved, Sent
from orderwire.chaos.history import Life, Sample, histories
from orderwire.chaos.run import folder_name
from orderwire.cli.demo.children import ChildError
from orderwire.cli.demo.replicas import FoundReplicas, Places, found_partitions
from orderwire.kernel import OrderwireError
from orderwire.verify.replication_history import write_history

REPLICAS = 3
KILL_AFTER_S = 3.0
"""After the talk has begun."""
AWAY_S = 2.0
IN_SYNC_SECONDS_MAX = 60.0
READ_SECONDS_MAX = 30.0
_LOOK_S = 0.05
_ASK_SECONDS_MAX = 30.0
_CONSUMED_MAX = 500


class Brokers:
    """Leads the brokers."""

    def __init__(self, cluster: ClusterProcess, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._killed: int | None = None
        self._took_over_s: float | None = None
        self._in_sync_s: float | None = None
        self._gaps_s: dict[tuple[str, int], float] = {}
        self._before: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        """What the broker that was killed had taken and sent by then."""
        self._samples: dict[str, list[Sample]] = {}
        """High watermarks by topic."""

    @classmethod
    def start(cls, folder: Path) -> "Brokers":
        """Start three active-active brokers and a ZooKeeper in this folder."""
        cluster = ClusterProcess.start(folder, replicas=REPLICAS, mode=Mode.ACTIVE_ACTIVE)
        return cls(cluster, folder)

    async def lose_one(self, topic: str) -> None:
        """Kill the original of this topic's first partition, and start it again."""
        await asyncio.sleep(KILL_AFTER_S)
        places = await self._ask()
        said = places.get((topic, 0), {})
        victim = next((one["original"] for one in said.values()), None)
        if victim is None:
            raise ChildError(f"no broker knows who is original of {topic}")
        for place, each in places.items():
            if victim in each:
                counts = (each[victim]["taken_bytes"], each[victim]["sent_bytes"])
                self._before[place] = {victim: counts}
        orphaned = {
            place
            for place, each in places.items()
            if any(one["original"] == victim for one in each.values())
        }
        self._killed = victim
        began = time.monotonic()
        await asyncio.to_thread(self.cluster.brokers[victim].kill)
        while True:
            places = await self._ask()
            after_s = time.monotonic() - began
            for place, each in places.items():
                if place in orphaned and _has_original(each, victim):
                    self._gaps_s.setdefault(place, after_s)
            if places and all(_has_original(each, victim) for each in places.values()):
                break
            await asyncio.sleep(_LOOK_S)
            self._check(began, "an original in every partition")
        self._took_over_s = after_s
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(self.cluster.restart, victim)
        began = time.monotonic()
        while not _in_sync(await self._ask()):
            await asyncio.sleep(_LOOK_S)
            self._check(began, "the broker that came back in sync")
        self._in_sync_s = time.monotonic() - began

    async def found(self, topic: str, sent: Sequence[Sent], prefix: str) -> FoundReplicas:
        """Wait until all replicas have committed the same, and say how it went.

        The history of this topic's one partition is written to a file: what its producer heard,
        what a reader gets now, and what the brokers noted and stored.
        """
        began = time.monotonic()
        places = await self._ask()
        while not _equal(places) and time.monotonic() - began < IN_SYNC_SECONDS_MAX:
            await asyncio.sleep(_LOOK_S)
            places = await self._ask()
        history = self._folder / "history.parquet"
        await asyncio.to_thread(self._write_history, history, topic, places, sent, prefix)
        counted = await self._ask()
        counted = {place: counted.get(place, said) for place, said in places.items()}
        return FoundReplicas(
            mode=Mode.ACTIVE_ACTIVE.value,
            replicas=REPLICAS,
            killed=self._killed,
            took_over_s=self._took_over_s,
            in_sync_s=self._in_sync_s,
            partitions=len(places),
            equal=_equal(places),
            places=found_partitions(counted, self._before, self._gaps_s, REPLICAS),
            history=str(history),
        )

    def close(self) -> None:
        """End all brokers."""
        self.cluster.stop()

    def _write_history(
        self, path: Path, topic: str, places: Places, sent: Sequence[Sent], prefix: str
    ) -> None:
        said = places[topic, 0]
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        described = admin.describe_topics(TopicCollection([topic]))[topic]
        topic_id = folder_name(described.result(_ASK_SECONDS_MAX).topic_id)
        high = max(one["high_watermark"] for one in said.values())
        moved = _read_back(self.cluster.bootstrap, topic, high)
        lives = [
            Life(
                broker,
                self._folder / f"broker-{broker}",
                self.cluster.brokers[broker].log,
                {0: one["high_watermark"]},
            )
            for broker, one in sorted(said.items())
        ]
        newest = max(said.values(), key=lambda one: int(one["epoch"]))
        found = histories(
            topic,
            topic_id,
            1,
            lives,
            {0: tuple(sorted(newest["isr"]))},
            sent,
            moved,
            self._samples.get(topic, []),
            acks_one_lost=False,
            prefix=prefix,
        )
        write_history(path, {("demo", topic, 0): found[0]})

    async def _ask(self) -> Places:
        """Ask every broker that lives."""
        places: Places = {}
        for broker in self.cluster.brokers:
            if not broker.is_running:
                continue
            with contextlib.suppress(OSError, TimeoutError, OrderwireError):
                answer = await ask_status(broker.internal)
                me = answer["broker"]
                for one in answer["partitions"]:
                    places.setdefault((one["topic"], one["partition"]), {})[me] = one
                    if one["partition"] == 0:
                        self._samples.setdefault(one["topic"], []).append(
                            Sample(0, me, broker.pid, one["high_watermark"])
                        )
        return places

    @staticmethod
    def _check(began: float, wanted: str) -> None:
        if time.monotonic() - began > IN_SYNC_SECONDS_MAX:
            raise ChildError(f"{wanted}: not after {IN_SYNC_SECONDS_MAX:.0f} s")


def _read_back(bootstrap: str, topic: str, end: int) -> list[Moved]:
    """Read the topic's one partition up to this offset, as any consumer does; keys are names."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    moved: list[Moved] = []
    position = 0
    began = time.monotonic()
    consumer.assign([TopicPartition(topic, 0, position)])
    try:
        while position < end and time.monotonic() - began < READ_SECONDS_MAX:
            records = [
                (int(message.offset() or 0), bytes(message.key() or b"").decode().strip("<>"))
                for message in consumer.consume(_CONSUMED_MAX, _LOOK_S)
                if message.error() is None
            ]
            if records:
                next_position = records[-1][0] + 1
                moved.append(Moved("reader", 0, position, next_position, tuple(records)))
                position = next_position
    finally:
        consumer.close()
    return moved


def _has_original(said: dict[int, dict[str, object]], gone: int) -> bool:
    return any(one["original"] not in (None, gone) for one in said.values())


def _in_sync(places: Places) -> bool:
    """Whether every replica is in the in-sync set, as all of them say."""
    return bool(places) and all(
        len(said) == REPLICAS and all(len(one["isr"]) == REPLICAS for one in said.values())
        for said in places.values()
    )


def _equal(places: Places) -> bool:
    return _in_sync(places) and all(
        len({one["high_watermark"] for one in said.values()}) == 1 for said in places.values()
    )
