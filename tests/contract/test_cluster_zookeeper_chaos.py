"""One original an epoch, and never two that are sure of it at one time, whatever happens.

Brokers contend for partitions while their sessions end, connections break, and the server stops,
dies and comes back.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from functools import partial

import pytest
from cluster_member import Told, joined, topic_of, until

from orderwire.aio.cluster_zookeeper import ClusterTimes, ClusterZookeeper
from orderwire.aio.zookeeper_client import ZookeeperClient
from orderwire.aio.zookeeper_errors import ZookeeperUnavailable
from orderwire.aio.zookeeper_server import (
    ManagedZookeeper,
    ZookeeperServerSettings,
    managed_zookeeper,
)
from orderwire.broker.replication.effects import ChangeIsr, Elect
from orderwire.broker.replication.view import BrokerId, PartitionView

pytestmark = [pytest.mark.network, pytest.mark.timeout(280)]

BROKERS = (1, 2, 3)
PARTITIONS = 12
SESSION_MS = 2_000
TROUBLES = ("silence kill " * 2 + "hang-up stop restart freeze renew").split()


class Wire:
    """Between one broker and the server; while it is cut nothing passes, and nothing breaks."""

    def __init__(self, server: ManagedZookeeper) -> None:
        self._server = server
        self._open = asyncio.Event()
        self._open.set()
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._listening = await asyncio.start_server(self._take, "127.0.0.1", 0)
        host, port = self._listening.sockets[0].getsockname()
        return f"{host}:{port}"

    async def cut(self, seconds: float) -> None:
        self._open.clear()
        await asyncio.sleep(seconds)
        self._open.set()

    async def close(self) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._tasks.add(me)
        host, port = self._server.address.split(":")
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection(host, int(port))
            ways = [
                asyncio.ensure_future(self._pass(*way)) for way in ((reader, there), (back, writer))
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()
            self._tasks.discard(me)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._open.wait()
            writer.write(data)


class Contender(Told):
    """Wants to be original of everything; when it is, it changes the in-sync set."""

    def __init__(self, me: int, judge: "Judge") -> None:
        super().__init__()
        self.me = BrokerId(me)
        self.judge = judge
        self.killed = False
        """Its session was ended from outside: it cannot know before it is told."""

    def viewed(self, topic_id: bytes, index: int, view: PartitionView) -> None:
        super().viewed(topic_id, index, view)
        self.judge.look(index, view)
        cluster = self.judge.clusters[self.me]
        topic = self.topics[topic_id]
        if view.original is None and self.me in view.isr:
            cluster.carry_out(topic, index, Elect(view.epoch))
        elif view.original == self.me and self.judge.chance.random() < 0.5:
            isr = tuple(sorted({self.me, *self.judge.chance.sample(view.replicas, 2)}))
            if isr != view.isr:
                cluster.carry_out(topic, index, ChangeIsr(isr, view.version, view.epoch))

    def session_lost(self) -> None:
        super().session_lost()
        self.views.clear()
        self.killed = False


class Judge:
    """Sees what every broker believes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clusters: dict[int, ClusterZookeeper] = {}
        self.members: dict[int, Contender] = {}
        self.wires: dict[int, Wire] = {}
        self.originals: dict[tuple[int, int], BrokerId] = {}
        self.sets: dict[tuple[int, int], tuple[int, ...]] = {}

    def look(self, index: int, view: PartitionView) -> None:
        if view.original is not None:
            known = self.originals.setdefault((index, view.epoch), view.original)
            assert known == view.original, f"two originals of epoch {view.epoch}"
        assert self.sets.setdefault((index, view.version), view.isr) == view.isr
        now_ns = time.monotonic_ns()
        sure = [
            member.me
            for member in self.members.values()
            for (_, at), held in member.views.items()
            if at == index and held.original == member.me and not member.killed
            if self.clusters[member.me].is_sure(now_ns)
        ]
        assert len(sure) <= 1, f"{sure} are sure to be original of {index}"


async def trouble(judge: Judge, server: ManagedZookeeper, address: str) -> str:
    """Do one bad thing."""
    chance = judge.chance
    victim = chance.choice(BROKERS)
    cluster = judge.clusters[victim]
    match chance.choice(TROUBLES):
        case "kill" if cluster.scope.usable and cluster.client.session_key is not None:
            member = judge.members[victim]
            member.killed, lost = True, member.lost
            while member.lost == lost:  # The two who share it may take it from each other.
                async with ZookeeperClient(address, key=cluster.client.session_key) as other:
                    with contextlib.suppress(ZookeeperUnavailable):
                        await other.exists("/")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await until(lambda: member.lost > lost)
            return "kill"
        case "hang-up":
            cluster.client.hang_up()
            return "hang-up"
        case "silence":
            await judge.wires[victim].cut(SESSION_MS / 1_000 * chance.choice([0.3, 0.8, 1.5]))
            return "silence"
        case "stop":
            os.kill(server.pid, signal.SIGSTOP)
            await asyncio.sleep(chance.choice([0.3, 1.0, SESSION_MS / 1_000 * 1.5]))
            os.kill(server.pid, signal.SIGCONT)
            return "stop"
        case "restart":
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(chance.choice([0.0, 0.5]))
            await asyncio.to_thread(server.start)
            return "restart"
        case "freeze":  # Of us, with kazoo's threads awake: the worst for who goes by the clock.
            time.sleep(chance.choice([0.5, SESSION_MS / 1_000 * 1.2]))
            return "freeze"
        case "renew":
            cluster.client._give_up("the test says so")
            return "renew"
        case _:  # To kill who has no session.
            return "nothing"


async def contend(judge: Judge, server: ManagedZookeeper, times: ClusterTimes | None) -> None:
    """Have three brokers join and contend."""
    for number in BROKERS:
        member = judge.members[number] = Contender(number, judge)
        wire = judge.wires[number] = Wire(server)
        address = f"{await wire.start()}/chaos"
        cluster, _ = joined(address, number, session_ms=SESSION_MS, told=member, times=times)
        judge.clusters[number] = cluster
        await cluster.open()
    await judge.clusters[1].topics.create(topic_of("t", PARTITIONS, BROKERS))


async def end(judge: Judge) -> None:
    for cluster in judge.clusters.values():
        await cluster.close()
    for wire in judge.wires.values():
        await wire.close()


SETTINGS = ZookeeperServerSettings(tick_ms=100, session_ms_min=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_one_original_whatever_happens_to_sessions(seed: int) -> None:
    faults: list[object] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        judge = Judge(seed)
        async with managed_zookeeper(settings=SETTINGS) as server:
            await contend(judge, server, None)
            done: dict[str, int] = {}
            stop = time.monotonic() + 30
            while time.monotonic() < stop and not faults:
                what = await trouble(judge, server, f"{server.address}/chaos")
                done[what] = done.get(what, 0) + 1
                await asyncio.sleep(judge.chance.choice([0.05, 0.3, 1.0]))
            usable = partial(all_usable, judge)
            await until(lambda: faults or usable(), "all are back", 40)
            await until(lambda: faults or agreed(judge), "all see the same", 40)
            print(f"seed {seed}: {done}, {len(judge.originals)} epochs, {len(judge.sets)} sets")
            assert all(cluster.scope.malformed == 0 for cluster in judge.clusters.values())
            await end(judge)

    asyncio.run(work())
    assert not faults, faults[0]


@pytest.mark.slow
def test_who_trusts_a_silent_session_for_too_long_is_found() -> None:
    faults: list[dict[str, object]] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        judge = Judge(0)
        async with managed_zookeeper(settings=SETTINGS) as server:
            times = ClusterTimes(sure_permille=5_000, silent_permille=5_000)
            await contend(judge, server, times)
            await until(lambda: agreed(judge), "all see the same")
            for number in BROKERS:
                await judge.wires[number].cut(SESSION_MS / 1_000 * 2)
            await end(judge)

    asyncio.run(work())
    assert any("are sure to be original" in str(fault["exception"]) for fault in faults), faults


def all_usable(judge: Judge) -> bool:
    return all(cluster.scope.usable for cluster in judge.clusters.values())


def agreed(judge: Judge) -> bool:
    """Whether all see the same views, each partition with an original."""
    views = [
        sorted(member.views.items(), key=lambda each: each[0]) for member in judge.members.values()
    ]
    return (
        views[0] == views[1] == views[2]
        and len(views[0]) == PARTITIONS
        and all(view.original is not None for _, view in views[0])
    )
