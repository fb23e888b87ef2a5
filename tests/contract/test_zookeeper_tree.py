"""The simulator's model of ZooKeeper's tree answers as a server does, command for command."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orderwire.aio.zookeeper_client import ClientSettings, Session, ZookeeperClient
from orderwire.aio.zookeeper_errors import MultiRefused, ZnodeFailure
from orderwire.aio.zookeeper_server import managed_zookeeper
from orderwire.broker.coordination.commands import (
    Check,
    Children,
    Command,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailure,
    Set,
    Znode,
)
from orderwire.kernel import NS_PER_S
from orderwire.sim.zookeeper_tree import Hint, ZookeeperTree

pytestmark = [pytest.mark.network, pytest.mark.timeout(240)]

SESSIONS = 2
_ROOTS = count()

paths = st.sampled_from(["/a", "/a", "/b", "/a/a", "/a/b", "/a/a/a"])
versions = st.sampled_from([-1, 0, 1, 2])
small = st.sampled_from([b"", b"x", b"yy"])
creates = st.builds(Create, paths, small, st.booleans(), st.booleans())
changes = creates | st.builds(Set, paths, small, versions)
changes |= st.builds(Delete, paths, versions)
multis = st.lists(changes | st.builds(Check, paths, versions), min_size=1, max_size=4)
reads = (
    st.builds(Get, paths, st.booleans())
    | st.builds(Exists, paths, st.booleans())
    | st.builds(Children, paths, st.booleans())
)
commands = changes | reads | st.builds(Multi, multis.map(tuple))
END = "end of the session"
Step: TypeAlias = tuple[int, Command | str]
steps = st.lists(
    st.tuples(st.integers(0, SESSIONS - 1), commands | commands | commands | st.just(END)),
    min_size=40,
    max_size=80,
)


def below(root: str, command: Any) -> Any:
    if isinstance(command, Multi):
        return Multi(tuple(below(root, operation) for operation in command.operations))
    return msgspec.structs.replace(command, path=root + command.path)


class Real:
    """Sessions at a server, asked in one loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.runner = asyncio.Runner()
        patient = ClientSettings(session_ns=60 * NS_PER_S, reply_ns=30 * NS_PER_S)
        self.clients = [ZookeeperClient(address, patient) for _ in range(SESSIONS)]
        self.hints: list[list[Hint]] = [[] for _ in range(SESSIONS)]
        self.watches: dict[tuple[int, Hint], Any] = {}
        for client in self.clients:
            self.runner.run(client.open())
            self.runner.run(client.exists("/"))

    def begin(self, root: str) -> None:
        self.watches.clear()
        self.runner.run(self.clients[0].ensure(root))

    def watch(self, index: int, hint: Hint) -> Any:
        """The same callback for the same: what a client does not count twice."""
        return self.watches.setdefault((index, hint), partial(self.hints[index].append, hint))

    def ask(self, index: int, command: Command) -> Any:
        return self.runner.run(self._ask(index, command))

    async def _ask(self, index: int, command: Command) -> Any:
        client = self.clients[index]
        try:
            match command:
                case Create(path, data, ephemeral, sequence):
                    return await client.create(path, data, ephemeral=ephemeral, sequence=sequence)
                case Set(path, data, version):
                    return await client.set(path, data, version)
                case Delete(path, version):
                    return await client.delete(path, version)
                case Multi(operations):
                    return tuple(await client.multi(*operations))
                case Get(path, watch):
                    return await client.get(path, self._watch(index, path, False, watch))
                case Exists(path, watch):
                    return await client.exists(path, self._watch(index, path, False, watch))
                case Children(path, watch):
                    told = self._watch(index, path, True, watch)
                    return tuple(sorted(await client.children(path, told)))
        except ZnodeFailure as failed:
            return failed.failure
        except MultiRefused as refused:
            return MultiFailure(refused.index, refused.failure)
        raise AssertionError(command)

    def _watch(self, index: int, path: str, children: bool, watch: bool) -> Any:
        return self.watch(index, Hint(path, children)) if watch else None

    def numbers(self) -> dict[int, int]:
        keys = [client.session_key for client in self.clients]
        return {key[0]: -at - 1 for at, key in enumerate(keys) if key is not None}

    def end(self, index: int) -> None:
        self.runner.run(self._end(index))

    async def _end(self, index: int) -> None:
        client = self.clients[index]
        mark = await client.create("/mark-", ephemeral=True, sequence=True)
        client._give_up("the test ends it")
        while await client.exists(mark) or client.session is not Session.CONNECTED:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)  # What kazoo tells of the old one's watches.
        self.hints[index].clear()

    def told(self, expected: list[list[Hint]]) -> list[list[Hint]]:
        """Wait for so many hints, and return those that are there."""
        return self.runner.run(self._told([len(hints) for hints in expected]))

    async def _told(self, counts: list[int]) -> list[list[Hint]]:
        for client in self.clients:
            await client.exists("/")  # A session hears of a change before a later answer.
        end = time.monotonic() + 5
        while [len(hints) for hints in self.hints] < counts and time.monotonic() < end:
            await asyncio.sleep(0.001)
        found = [sorted(hints) for hints in self.hints]
        for hints in self.hints:
            hints.clear()
        return found

    def close(self) -> None:
        for client in self.clients:
            self.runner.run(client.close())
        self.runner.close()


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    with managed_zookeeper() as server:
        sessions = Real(server.address)
        yield sessions
        sessions.close()


def alike(answer: Any, owners: dict[int, int]) -> Any:
    """What both can say of a znode: not when it was made."""
    if isinstance(answer, Znode):
        return answer.data, answer.version, owners.get(answer.owner, answer.owner)
    return answer


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(steps)
def test_model_answers_as_a_server(real: Real, drawn: list[Step]) -> None:
    root = f"/run-{next(_ROOTS)}"
    real.begin(root)
    tree = ZookeeperTree()
    sessions = [tree.begin_session() for _ in range(SESSIONS)]
    tree.ask(sessions[0], Create(root))
    for index, step in drawn:
        if isinstance(step, str):
            tree.end_session(sessions[index])
            sessions[index] = tree.begin_session()
            real.end(index)
        else:
            command = below(root, step)
            numbers = {session: -at - 1 for at, session in enumerate(sessions)}
            expected = alike(tree.ask(sessions[index], command), numbers)
            assert alike(real.ask(index, command), real.numbers()) == expected, command
        hints = [sorted(tree.hints(session)) for session in sessions]
        assert real.told(hints) == hints, step
