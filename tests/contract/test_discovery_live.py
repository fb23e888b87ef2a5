"""Discovery on real sockets: started at once, killed, restarted, among black holes and strangers.

Bounds tell a time-out from none, or one from ten, not a fast machine from a slow one: what must not
be waited for takes a minute here.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import discovery_member
import pytest
from discovery_member import DOMAIN, Member
from loopback import free_members

from orderwire import Participant, Topic, Unordered
from orderwire.aio.addresses import split_address
from orderwire.aio.discovery_frames import VERSION, FrameKind, Hello, frame
from orderwire.aio.discovery_host import DiscoveryHost, monotonic_now
from orderwire.aio.discovery_settings import TransportSettings
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.messages import RequestId
from orderwire.discovery.settings import BootstrapSettings, DiscoverySettings
from orderwire.kernel import NS_PER_S

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

MAIN = "from orderwire.cli.main import main; main()"


# -- processes ------------------------------------------------------------------------------


class Process:
    """A child that prints JSON lines; the last one is kept."""

    def __init__(self, *order: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *order], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(json.loads(line))

    def until(self, holds: Callable[[dict[str, Any]], bool], seconds: float = 120.0) -> Any:
        """Return the newest line when this holds for it."""
        end = time.monotonic() + seconds
        while True:
            if self.lines and holds(self.lines[-1]):
                return self.lines[-1]
            assert self.popen.poll() is None, self.popen.communicate()[1]
            assert time.monotonic() < end, f"the last line was {self.lines[-1:]}"
            time.sleep(0.01)

    def stop(self) -> tuple[int, str]:
        """End it well; return its status and what it told people."""
        self.popen.send_signal(signal.SIGTERM)
        self._reader.join(30)
        assert self.popen.stderr is not None
        told = self.popen.stderr.read()
        return self.popen.wait(30), told

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self._reader.join(30)
        for pipe in (self.popen.stdout, self.popen.stderr):
            assert pipe is not None
            pipe.close()


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python program; whatever still runs after the test is killed."""
    with ExitStack() as stack:

        def run(*order: str) -> Process:
            process = Process(*order)
            stack.callback(process.kill)
            return process

        yield run


def start_bootstrap(start: Start, *options: str) -> tuple[Process, str]:
    process = start("-c", MAIN, "bootstrap", "--json", "--domain", DOMAIN, *options)
    line = process.until(lambda line: "listen" in line)
    return process, line["listen"]


def start_member(start: Start, server: str, name: str, address: str = "127.0.0.1:0") -> Process:
    return start(discovery_member.__file__, server, address, name)


def knows(names: list[str]) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line.get("known") == sorted(names)


def test_sixteen_processes_that_start_at_once_and_one_that_is_killed_and_restarted(
    start: Start,
) -> None:
    bootstrap, server = start_bootstrap(start, "--listen", "127.0.0.1:0")
    addresses = free_members(*(f"m{number:02}" for number in range(16)))
    members = {
        name: start_member(start, server, name, address) for name, address in addresses.items()
    }
    for name, member in members.items():
        member.until(knows([each for each in addresses if each != name]))

    victim, *others = addresses
    members[victim].kill()
    again = start_member(start, server, f"{victim}-again", addresses[victim])
    again.until(lambda _: True)
    listens_ns = time.monotonic_ns()
    expected = [*others, f"{victim}-again"]
    for name in others:
        members[name].until(knows([each for each in expected if each != name]))
    again.until(knows(others))
    last_ns = max(members[name].lines[-1]["at_ns"] for name in others)
    assert (last_ns - listens_ns) / NS_PER_S < 30, "it waited for a time-out"

    stopped = {name: members[name].stop() for name in others[:2]}
    assert [status for status, _ in stopped.values()] == [0, 0], stopped
    left = [each for each in expected if each not in stopped]
    for name in others[2:]:
        members[name].until(knows([each for each in left if each != name]))
    status, told = bootstrap.stop()
    assert status == 0
    assert "17 requests" in told
    assert (bootstrap.lines[-1]["requests"], bootstrap.lines[-1]["refused"]) == (17, {})


def test_bootstrap_keeps_its_epoch_and_learns_who_is_there(start: Start, tmp_path: Path) -> None:
    state = str(tmp_path / "state.json")
    options = ("--listen", next(iter(free_members("server").values())), "--state", state)
    short = ("--lease", "1.5")
    first, server = start_bootstrap(start, *options, *short)
    member = start_member(start, server, "ana")
    member.until(knows([]))
    first.kill()
    second, again = start_bootstrap(start, *options, *short)
    assert again == server
    assert second.lines[0]["epoch"] > first.lines[0]["epoch"]
    late = start_member(start, server, "ben")
    late.until(knows(["ana"]))
    member.until(knows(["ben"]))
    assert second.stop()[0] == 0
    assert json.loads(Path(state).read_text())["epoch"] >= second.lines[0]["epoch"]


def test_bootstrap_used_wrongly(start: Start, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    for options, why in (
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--state", str(bad)], "no state of a server"),
        (["--tls-cert", str(bad)], "belong together"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "bootstrap", *options],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2, done
        assert why in done.stderr


def test_a_server_that_is_killed_and_started_again_gives_no_id_that_is_held(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody names a state file, and a newcomer asks before the others have renewed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    lease = ("--lease", "4")  # They renew every 3 s.
    first, server = start_bootstrap(start, "--listen", "127.0.0.1:0", *lease)
    assert not first.lines[0]["recovering"]

    async def work() -> None:
        async with (
            Participant("ana", domain=DOMAIN, bootstrap=server) as ana,
            Participant("ben", domain=DOMAIN, bootstrap=server) as ben,
        ):
            first.kill()
            second, _ = start_bootstrap(start, "--listen", server, *lease)
            assert second.lines[0]["recovering"]
            async with Participant("carl", domain=DOMAIN, bootstrap=server) as carl:
                assert len({ana.id, ben.id, carl.id}) == 3
                await asyncio.sleep(4)
                for each in (ana, ben, carl):
                    each.writer(Topic("t", order=Unordered()))  # It raises when the id is lost.
        status, told = second.stop()
        assert status == 0
        assert "another server was here" in told
        third, _ = start_bootstrap(start, "--listen", server)
        assert not third.lines[0]["recovering"]  # All have left.

    asyncio.run(work())


# -- in this process ------------------------------------------------------------------------


class Domain:
    """A bootstrap server and members in one loop."""

    def __init__(self, server: BootstrapServer, host: "DiscoveryHost[Any, Any]") -> None:
        self.server = server
        self.host = host
        self.members: list[Member] = []

    async def member(self, name: str, **options: Any) -> Member:
        member = await Member.open(name, self.host.address, **options)
        self.members.append(member)
        return member

    def reserve(self, address: str, wish: int) -> None:
        """Give an id to a participant that is not there."""
        self.server.receive(address, RequestId(f"hole {wish}", address, wish=wish), monotonic_now())


@asynccontextmanager
async def domain(**settings: Any) -> Any:
    transport = await DiscoveryTransport.open("127.0.0.1:0", domain=DOMAIN)
    server = BootstrapServer(BootstrapSettings(**settings), monotonic_now(), epoch=int(time.time()))
    made = Domain(server, DiscoveryHost(server, transport, lambda _: None))
    try:
        yield made
    finally:
        await asyncio.gather(*(each.crash() for each in made.members), made.host.close())


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


@pytest.mark.parametrize("with_server", [False, True])
def test_all_start_orders_of_a_pair_take_the_same_time(with_server: bool) -> None:
    """eclipse-zenoh/zenoh #1890: when only the greater id connects, some orders take 8 s."""

    async def work() -> None:
        times = []
        for order in ("ab", "ba", "together"):
            for first_id in (0, 1):
                async with domain(id_space=16) as made:
                    a, b = [
                        await made.member(name, wish=wish) if with_server else Member
                        for name, wish in (("a", first_id), ("b", 1 - first_id))
                    ]
                    if not with_server:
                        seed = next(iter(free_members("a").values()))
                        a = await Member.open("a", address=seed, seeds=(seed,))
                        b = await Member.open("b", seeds=(seed,))
                        made.members += [a, b]
                    pair = (a, b) if order != "ba" else (b, a)
                    pair[0].start()
                    if order != "together":
                        await pair[0].knows(pair[0].name)
                        if pair[0].core.id is None and with_server:
                            await asyncio.sleep(0.2)
                    pair[1].start()
                    begun = pair[1].started
                    await asyncio.gather(a.knows("a", "b"), b.knows("a", "b"))
                    times.append(asyncio.get_running_loop().time() - begun)
        assert max(times) < 8, times

    run(work)


def black_hole(stack: ExitStack) -> str:
    """Return an address whose kernel does not answer: its backlog is full."""
    listening = stack.enter_context(socket.socket())
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    for _ in range(3):
        filler = stack.enter_context(socket.socket())
        filler.setblocking(False)
        filler.connect_ex(listening.getsockname())
    host, port = listening.getsockname()
    return f"{host}:{port}"


@pytest.mark.parametrize("holes", [1, 8])
def test_black_holes_as_first_successors_cost_one_time_out_together(holes: int) -> None:
    """eclipse-zenoh/zenoh #2090: unreachable locators were tried one after the other, 10 s each."""

    async def work() -> None:
        limits = TransportSettings(connect_ns=4 * NS_PER_S)
        with ExitStack() as stack:
            async with domain(id_space=32) as made:
                names = [f"m{number}" for number in range(4)]
                for number, name in enumerate(names):
                    (await made.member(name, wish=20 + number)).start()
                await asyncio.gather(*(each.knows(*names) for each in made.members))
                for identity in range(1, 1 + holes):
                    made.reserve(black_hole(stack), identity)
                joiner = await made.member("joiner", wish=0, limits=limits)
                joiner.start()
                took = await joiner.knows(*names, "joiner")
                assert took < 16, f"{holes} black holes of 4 s each took {took} s"
                await asyncio.gather(*(each.knows(*names, "joiner") for each in made.members))

    run(work)


def test_a_process_killed_and_back_at_its_address_is_known_without_a_time_out() -> None:
    async def work() -> None:
        async with domain() as made:
            names = [f"m{number}" for number in range(8)]
            for name in names:
                (await made.member(name)).start()
            await asyncio.gather(*(each.knows(*names) for each in made.members))
            victim = made.members.pop(3)
            await victim.crash()
            again = await made.member("again", address=victim.address)
            again.start()
            names[3] = "again"
            await asyncio.gather(*(each.knows(*names) for each in made.members))
            took = asyncio.get_running_loop().time() - again.started
            assert took < 30, f"{took} s, where fail_ns is 60 s"

    run(work)


def hello(member: Member, **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "version": VERSION,
        "domain": DOMAIN,
        "address": "127.0.0.1:1",
        "to": member.address,
        "nonce": 1,
        "turn": 1,
    }
    return frame(FrameKind.HELLO, Hello(**values | changes).encode())


def test_strangers_of_all_kinds_do_not_disturb_and_are_counted() -> None:
    async def work() -> None:
        chance = Random(7)
        async with domain() as made:
            names = ["a", "b", "c"]
            for name in names:
                limits = TransportSettings(hello_ns=2 * NS_PER_S, unknown_max=64)
                (await made.member(name, limits=limits)).start()
            await asyncio.gather(*(each.knows(*names) for each in made.members))
            target = made.members[0]
            where = split_address(target.address)
            kinds = [
                chance.randbytes(5_000),
                hello(target)[:9],
                b"\xff\xff\xe1" + bytes(100),
                hello(target, domain="another"),
                hello(target) + frame(FrameKind.CHOSEN) + frame(FrameKind.MESSAGE, b"\xc1" * 99),
                b"",
            ]
            calls = []
            for data in kinds:
                calls.append(await asyncio.open_connection(*where))
                calls[-1][1].write(data)
            async with asyncio.timeout(30):
                while target.host.transport.refusals.total() < 3 or not target.host.malformed:
                    await asyncio.sleep(0.01)
            calls += [await asyncio.open_connection(*where) for _ in range(200)]
            # It goes on: newcomers are met, changes come through.
            (await made.member("d")).start()
            target.change("a2")
            names = ["a2", "b", "c", "d"]
            await asyncio.gather(*(each.knows(*names) for each in made.members[1:]))
            async with asyncio.timeout(30):
                while target.host.transport.open_sockets > len(made.members) + 2:
                    await asyncio.sleep(0.05)
            # All but the one that said a right hello, whose message is counted instead.
            assert target.host.transport.refusals == {"127.0.0.1": len(calls) - 1}
            assert target.host.malformed == {"127.0.0.1:1": 1}
            for _, writer in calls:
                writer.transport.abort()

    run(work)


def test_many_at_once_hear_of_each_other_before_they_have_ids() -> None:
    """ros2/rmw_zenoh #318, #408: dozens at once gave errors about unknown entities."""

    async def work() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        async with domain() as made:
            names = [f"m{number:02}" for number in range(20)]
            for name in names:
                await made.member(name)
            for member in made.members:
                member.start()
            await asyncio.gather(*(each.knows(*names, seconds=100) for each in made.members))
            assert [each.host.malformed.total() for each in made.members] == [0] * 20
            assert [each.host.transport.refusals.total() for each in made.members] == [0] * 20
        assert not failures

    run(work)


def test_a_domain_of_another_name_is_not_met() -> None:
    async def work() -> None:
        async with domain() as made:
            (await made.member("a")).start()
            stranger = await made.member("x", domain="another")
            stranger.start()
            (await made.member("b")).start()
            a, _, b = made.members
            await asyncio.gather(a.knows("a", "b"), b.knows("a", "b"))
            assert stranger.known() == []
            assert made.host.transport.refusals.total() >= 1

    run(work)


def test_all_may_leave_at_once_and_none_waits_for_who_has_gone() -> None:
    async def work() -> None:
        settings = DiscoverySettings(leave_ns=60 * NS_PER_S, ack_ns=60 * NS_PER_S)
        async with domain() as made:
            names = [f"m{number:02}" for number in range(16)]
            for name in names:
                (await made.member(name, settings=settings)).start()
            await asyncio.gather(*(each.knows(*names) for each in made.members))
            leaving, made.members = made.members, []
            async with asyncio.timeout(30):
                await asyncio.gather(*(each.leave() for each in leaving))

    run(work)


def test_the_server_may_be_named() -> None:
    async def work() -> None:
        async with domain() as made:
            _, port = split_address(made.host.address)
            where = f"localhost:{port}"
            async with Participant("ana", domain=DOMAIN, bootstrap=where) as participant:
                assert participant.id is not None
            assert made.server.requests == 1

    run(work)


def test_members_that_leave_are_gone_at_once() -> None:
    async def work() -> None:
        async with domain() as made:
            names = [f"m{number}" for number in range(6)]
            for name in names:
                (await made.member(name)).start()
            await asyncio.gather(*(each.knows(*names) for each in made.members))
            for _ in range(3):
                await made.members.pop().leave()
            left = names[:3]
            begun = asyncio.get_running_loop().time()
            await asyncio.gather(*(each.knows(*left) for each in made.members))
            assert asyncio.get_running_loop().time() - begun < 30

    run(work)
