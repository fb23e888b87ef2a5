"""Processes of a group whose views ZooKeeper keeps: members, and relays; to kill, and to judge."""

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from orderwire.aio.addresses import join_address
from orderwire.aio.total_relay import ChannelRelay
from orderwire.aio.total_views import RelayPlace
from orderwire.aio.zookeeper_server import ZookeeperServerSettings, managed_zookeeper
from orderwire.verify.audit import audit
from orderwire.verify.selective_total import Logs
from orderwire.verify.source import open_source
from orderwire.verify.verdict import Verdict

QUICK = ZookeeperServerSettings(tick_ms=100, session_ms_min=200)
MEMBER = Path(__file__).parent / "total_view_member.py"


class Process:
    """A member or a relay, with what it has told."""

    def __init__(self, command: list[str], log: Path | None = None) -> None:
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.log = log
        self.told: dict[str, Any] = {}
        """A relay's first words."""

    def say(self, word: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(word + "\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def end(self) -> None:
        """Kill it and close its pipes."""
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        assert self.log is not None
        if not self.log.exists():
            return []
        whole = self.log.read_text().rpartition("\n")[0]
        found = [json.loads(line) for line in whole.splitlines()]
        return [event for event in found if kind in (None, event["kind"])]

    def delivered(self) -> list[str]:
        return [event["message"] for event in self.events("delivered")]


def start_relay(zookeeper: str, group: str, *options: str) -> Process:
    """Start a relay that stands in the row of this group's relays."""
    channel = [sys.executable, "-m", "orderwire", "channel", "--listen", "127.0.0.1:0"]
    where = ["--json", "--zookeeper", zookeeper, "--group", group]
    relay = Process([*channel, *where, *options])
    assert relay.popen.stdout is not None
    relay.told = json.loads(relay.popen.stdout.readline())
    return relay


class Cluster:
    """Processes of one group."""

    def __init__(self, zookeeper: str, name: str, folder: Path) -> None:
        self.zookeeper, self.name, self.folder = zookeeper, name, folder
        self.trace = folder / "trace"
        self.members: list[Process] = []
        self.relays: list[Process] = []

    def add_relay(self, *options: str) -> Process:
        relay = start_relay(self.zookeeper, self.name, *options)
        self.relays.append(relay)
        return relay

    def add_member(self, least: int = 1) -> Process:
        seed = chr(ord("a") + len(self.members))
        log = self.folder / f"{seed}.jsonl"
        command = [sys.executable, str(MEMBER), self.zookeeper, self.name, str(least), str(log)]
        member = Process([*command, seed, str(self.trace)], log)
        self.members.append(member)
        return member

    def judge(self, dead: tuple[Process, ...] = ()) -> None:
        """Check all that was promised."""
        sent, received, to = {}, {}, {}
        ids: dict[int, int] = {}
        for index, member in enumerate(self.members):
            ids[index] = int(member.events("entered")[0]["me"])
            sent[index] = [event["message"] for event in member.events("written")]
            received[index] = member.delivered()
            for event in member.events("written"):
                to[event["message"]] = set(event["to"])
        logs = Logs(sent=sent, received=received, destinations=to)
        alive = [index for index, m in enumerate(self.members) if m not in dead]
        everybody = range(len(self.members))
        assert all(map(logs.is_order_preserving, everybody))
        assert all(logs.are_order_equivalent(a, b) for a in everybody for b in everybody)
        assert logs.is_acyclic()
        for index in everybody:
            for event in self.members[index].events("delivered"):
                to.setdefault(event["message"], set(event["to"]))
        founders = {
            index
            for index in alive
            if any(event["number"] == 1 for event in self.members[index].events("view"))
        }
        has = {index: set(received[index]) for index in everybody}
        for message in {m for index in everybody for m in received[index]}:
            # Survivors that it is for have all got it: nobody may have it alone.
            for index in founders:
                assert ids[index] not in to[message] or message in has[index], (message, index)
        for index in alive:
            mine = set(sent[index])
            for message in mine.difference(*(has[other] for other in alive)):
                assert not to[message] & {ids[other] for other in founders}, message
        self._check_views(alive)
        report, violations = audit(open_source(self.trace))
        assert violations.to_pylist() == []
        assert report.verdict is Verdict.VALID, report.runs[0].incomplete

    def _check_views(self, alive: list[int]) -> None:
        """Everybody delivers a message in the same view."""
        where: dict[str, int] = {}
        for index in alive:
            view = 0
            for event in self.members[index].events():
                if event["kind"] == "view":
                    view = event["number"]
                elif event["kind"] == "delivered":
                    assert where.setdefault(event["message"], view) == view, event


def rest(*members: Process) -> None:
    """Let these stop writing, wait until all is delivered, and let them leave."""
    for member in members:
        member.say("stop")
    until(lambda: all(member.events("settled") for member in members))
    time.sleep(0.5)
    for member in members:
        member.say("quit")
    for member in members:
        assert member.popen.wait(30) == 0


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


@contextmanager
def view_cluster(zookeeper: str, name: str, folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(zookeeper, name, folder)
    try:
        yield cluster
    finally:
        for process in (*cluster.members, *cluster.relays):
            process.end()


def busy(member: Process, more: int = 100) -> None:
    """Wait until a member has delivered so many more."""
    goal = len(member.delivered()) + more
    until(lambda: len(member.delivered()) >= goal)


@asynccontextmanager
async def views(group: str) -> AsyncIterator[str]:
    """A ZooKeeper and a relay of this group; yields the ensemble's address."""
    with managed_zookeeper(settings=QUICK) as server:
        relay = await ChannelRelay.open(("127.0.0.1", 0))
        relay.reuses_ids = True
        where = join_address(*relay.address)
        place = RelayPlace(server.address, group, where, renewed=relay.renew)
        try:
            await place.enter()
            yield server.address
        finally:
            await place.close()
            await relay.close()
