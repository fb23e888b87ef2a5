"""The demo's three brokers: one is killed in the middle and comes back; nothing is missed."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import msgspec

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.aio.cluster_status import ask_status
from orderwire.broker.replication.settings import Mode
from orderwire.cli.demo.children import ChildError
from orderwire.kernel import OrderwireError

REPLICAS = 3
KILL_AFTER_S = 3.0
"""After the talk has begun."""
AWAY_S = 2.0
IN_SYNC_SECONDS_MAX = 60.0
_LOOK_S = 0.2

Places = dict[tuple[str, int], dict[int, dict[str, Any]]]
"""What each broker says of each partition."""


class FoundReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the replicas; goes into the demo's JSON."""

    mode: str
    replicas: int
    killed: int | None
    """The broker that was killed: the original of the text's partition."""
    took_over_s: float | None
    """From the kill until every partition had an original that lives."""
    in_sync_s: float | None
    """From its new start until it was in sync in every partition."""
    partitions: int
    equal: bool
    """Whether in the end every replica of every partition had committed as much."""


class Brokers:
    """Leads the brokers."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        self._killed: int | None = None
        self._took_over_s: float | None = None
        self._in_sync_s: float | None = None

    @classmethod
    def start(cls, folder: Path) -> "Brokers":
        """Start three active-active brokers and a ZooKeeper in this folder."""
        return cls(ClusterProcess.start(folder, replicas=REPLICAS, mode=Mode.ACTIVE_ACTIVE))

    async def lose_one(self, topic: str) -> None:
        """Kill the original of this topic's first partition, and start it again."""
        await asyncio.sleep(KILL_AFTER_S)
        places = await self._ask()
        said = places.get((topic, 0), {})
        victim = next((one["original"] for one in said.values()), None)
        if victim is None:
            raise ChildError(f"no broker knows who is original of {topic}")
        self._killed = victim
        await asyncio.to_thread(self.cluster.brokers[victim].kill)
        began = time.monotonic()
        while not self._has_originals(await self._ask(), victim):
            await asyncio.sleep(_LOOK_S)
            self._check(began, "an original in every partition")
        self._took_over_s = time.monotonic() - began
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(self.cluster.restart, victim)
        began = time.monotonic()
        while not _in_sync(await self._ask()):
            await asyncio.sleep(_LOOK_S)
            self._check(began, "the broker that came back in sync")
        self._in_sync_s = time.monotonic() - began

    async def found(self) -> FoundReplicas:
        """Wait until all replicas have committed the same, and say how it went."""
        began = time.monotonic()
        places = await self._ask()
        while not _equal(places) and time.monotonic() - began < IN_SYNC_SECONDS_MAX:
            await asyncio.sleep(_LOOK_S)
            places = await self._ask()
        return FoundReplicas(
            mode=Mode.ACTIVE_ACTIVE.value,
            replicas=REPLICAS,
            killed=self._killed,
            took_over_s=self._took_over_s,
            in_sync_s=self._in_sync_s,
            partitions=len(places),
            equal=_equal(places),
        )

    def close(self) -> None:
        """End all brokers."""
        self.cluster.stop()

    async def _ask(self) -> Places:
        """Ask every broker that lives."""
        places: Places = {}
        for broker in self.cluster.brokers:
            if not broker.is_running:
                continue
            with contextlib.suppress(OSError, TimeoutError, OrderwireError):
                answer = await ask_status(broker.internal)
                for one in answer["partitions"]:
                    places.setdefault((one["topic"], one["partition"]), {})[answer["broker"]] = one
        return places

    @staticmethod
    def _has_originals(places: Places, gone: int) -> bool:
        return bool(places) and all(
            any(one["original"] not in (None, gone) for one in said.values())
            for said in places.values()
        )

    @staticmethod
    def _check(began: float, wanted: str) -> None:
        if time.monotonic() - began > IN_SYNC_SECONDS_MAX:
            raise ChildError(f"{wanted}: not after {IN_SYNC_SECONDS_MAX:.0f} s")


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
