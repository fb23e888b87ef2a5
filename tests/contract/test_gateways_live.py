"""Gateways between domains on real sockets, and as processes that are killed."""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from click.testing import CliRunner
from discovered import domain, first, in_a_loop, until

from orderwire import (
    Backbone,
    DeltaCausal,
    ForeignPeer,
    LocalProtocolError,
    Participant,
    Topic,
    Trace,
)
from orderwire.cli.main import main
from orderwire.participant.discovering import Discovering

pytestmark = [pytest.mark.network, pytest.mark.timeout(240)]

CHAT = Topic("chat/a", DeltaCausal(lifetime_ms=2_000))
NEWS = Topic("news", CHAT.order)
STEADY = {"Heartbeat", "Sync", "SyncReply", "Renew"}
QUIET_S = 20
"""An audit judges views when nothing has happened for as long as a death takes to be noticed."""
MAIN = "from orderwire.cli.main import main; main()"


def foreign(at: Participant) -> list[ForeignPeer]:
    return [each for each in at.peers() if isinstance(each, ForeignPeer)]


def names(at: Participant) -> set[str]:
    """Domain and name of whom it knows beyond its own domain."""
    return {f"{each.domain}/{each.name}" for each in foreign(at)}


@in_a_loop
async def test_domains_learn_of_each_other_what_they_may_match() -> None:
    async with AsyncExitStack() as stack:
        east, west, bone = [
            await stack.enter_async_context(domain(name)) for name in ("east", "west", "bone")
        ]
        gateway = Backbone(domain="bone", bootstrap=bone)
        ana = Participant("ana", domain="east", bootstrap=east, gateway=gateway)
        ben = Participant("ben", domain="west", bootstrap=west, gateway=gateway)
        carl = Participant("carl", domain="west", bootstrap=west)
        for each in (ana, ben, carl):
            await stack.enter_async_context(each)
        writer = ana.writer(CHAT)
        ana.writer(NEWS)
        reader = carl.reader("chat/*", order=CHAT.order)
        await until(lambda: names(ana) == {"west/carl"})
        await until(lambda: names(ben) == names(carl) == {"east/ana"})

        (there,) = foreign(ana)
        assert (there.id, there.listens) == (carl.id, "")
        assert there.address == carl._opened().address
        assert [each.topic for each in there.map.endpoints] == ["chat/*"]
        assert ana.shared_topics(there) == ["chat/a"]
        await until(lambda: foreign(ana)[0].reachable is True)
        # ben reads nothing of ana: nobody calls her for it.
        assert (ben.shared_topics(foreign(ben)[0]), foreign(ben)[0].reachable) == ([], None)
        # Nobody of another domain is a member, and no samples go there.
        assert ana.members == ("ana",)
        assert writer.matched == 0

        for each, other in ((ana, "west"), (ben, "east")):
            state = each.gateway
            assert state is not None
            assert (state.acting, state.domains, list(state.ids)) == (True, (other,), ["bone"])
        assert carl.gateway is None

        # Who wants the samples becomes a member there, too; the entry says how.
        (writes,) = foreign(carl)
        assert writes.entrance == {"domain": "east", "bootstrap": east}
        async with Participant("carl@west", **writes.entrance) as guest:  # type: ignore[arg-type]
            samples = guest.reader("chat/*", order=CHAT.order)
            await writer.wait_matched(1, timeout_s=60)
            writer.write(b"hello")
            assert await first(samples) == b"hello"

        reader.close()
        await until(lambda: names(ana) == names(ben) == names(carl) == set())


def test_a_backbone_has_seeds_and_credentials_of_its_own(tmp_path: Path) -> None:
    bone, other = Authority(tmp_path, "bone"), Authority(tmp_path, "other")

    @in_a_loop
    async def work() -> None:
        async with AsyncExitStack() as stack:
            at = {
                name: await stack.enter_async_context(domain(name))
                for name in ("east", "west", "free")
            }
            seed = await _free_address()
            parts = {}
            for home, authority, listen in (
                ("free", other, "127.0.0.1:0"),
                ("east", bone, seed),
                ("west", bone, "127.0.0.1:0"),
            ):
                gateway = Backbone(
                    domain="bone",
                    seeds=(seed,),
                    listen=listen,
                    credentials=authority.credentials(home),
                )
                part = parts[home] = Participant(
                    f"of {home}", domain=home, bootstrap=at[home], gateway=gateway
                )
                await stack.enter_async_context(part)
                part.reader(CHAT)
                part.writer(CHAT)
            await until(lambda: names(parts["east"]) == {"west/of west"})
            await until(lambda: names(parts["west"]) == {"east/of east"})
            assert names(parts["free"]) == set()

    work()


async def _free_address() -> str:
    async with domain("free") as at:
        return at


class Cycle:
    """Three domains in a cycle, a gateway and a member each."""

    def __init__(self, parts: list[Participant]) -> None:
        self.parts = parts

    def posted(self) -> "Counter[str]":
        """Messages sent so far on all rings, by kind."""
        sent: Counter[str] = Counter()
        for each in self.parts:
            assert isinstance(each._members, Discovering)
            assert each._members._host is not None
            for host in each._members._host.hosts:
                sent += host.posted
        assert sent.total() == sum(each.discovery_counters.sent for each in self.parts)
        return sent


@in_a_loop
async def test_gateways_in_a_cycle_fall_silent() -> None:
    """eProsima/DDS-Router #548: a cycle of three routers fed itself with discovery, endlessly."""
    async with AsyncExitStack() as stack:
        at = {
            name: await stack.enter_async_context(domain(name))
            for name in ("a", "b", "c", "ab", "bc", "ca")
        }
        cycle = Cycle([])
        for home, two in (("a", ("ab", "ca")), ("b", ("ab", "bc")), ("c", ("bc", "ca"))):
            gateway = [Backbone(domain=each, bootstrap=at[each]) for each in two]
            options: dict[str, Any] = {"domain": home, "bootstrap": at[home]}
            for part in (
                Participant(f"{home}0", **options, gateway=gateway),
                Participant(f"{home}1", **options),
            ):
                await stack.enter_async_context(part)
                part.reader("chat/**", order=CHAT.order)
                part.writer(Topic(f"chat/{part.name}", CHAT.order))
                cycle.parts.append(part)

        def complete() -> bool:
            every = {f"{each.name[0]}/{each.name}" for each in cycle.parts}
            return all(
                names(each) == {other for other in every if other[0] != each.name[0]}
                for each in cycle.parts
            )

        await until(complete)
        await asyncio.sleep(10)
        before = cycle.posted()
        assert before["Ask"] > 0
        seconds = 5
        await asyncio.sleep(seconds)
        since = cycle.posted() - before
        assert set(since) <= STEADY, since
        memberships = len(cycle.parts) + 2 * 3  # at home, and of each gateway on two backbones
        assert since.total() <= 3 * seconds * memberships, since
        assert complete()


def test_traces_of_such_domains_are_valid(tmp_path: Path) -> None:
    """Foreign entries are versions of a gateway's MAP, and summaries are those of a member's."""

    async def gateways() -> None:
        async with AsyncExitStack() as stack:
            at = {
                name: await stack.enter_async_context(domain(name))
                for name in ("east", "west", "bone")
            }
            gateway = Backbone(domain="bone", bootstrap=at["bone"])
            parts = []
            for name, home in (("ana", "east"), ("ben", "east"), ("carl", "west")):
                trace = Trace(run="r", path=tmp_path / home)
                part = Participant(
                    name, domain=home, bootstrap=at[home], gateway=gateway, trace=trace
                )
                parts.append(await stack.enter_async_context(part))
            parts[0].writer(CHAT)
            parts[2].reader(CHAT)
            await until(lambda: names(parts[1]) == {"west/carl"})
            await asyncio.sleep(QUIET_S)

    async def interest_only() -> None:
        async with AsyncExitStack() as stack:
            at = await stack.enter_async_context(domain("test"))
            parts = []
            for name in ("ana", "ben", "carl"):
                trace = Trace(run="r", path=tmp_path / "interest")
                part = Participant(
                    name, domain="test", bootstrap=at, interest_only=True, trace=trace
                )
                parts.append(await stack.enter_async_context(part))
            writer = parts[0].writer(CHAT)
            parts[1].reader(CHAT)
            await writer.wait_matched(1, timeout_s=60)
            await asyncio.sleep(QUIET_S)

    @in_a_loop
    async def work() -> None:
        await asyncio.gather(gateways(), interest_only())

    work()
    for folder in ("east", "interest"):
        result = CliRunner().invoke(main, ["audit", str(tmp_path / folder), "--json"])
        checks = {each["id"]: each["verdict"] for each in json.loads(result.stdout)["checks"]}
        assert {checks[each] for each in ("D1", "D3", "D4")} == {"VALID"}, result.stdout


# -- processes ----------------------------------------------------------------------------------

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `orderwire participant OPTIONS…`; whatever still runs after the test is killed."""
    with ExitStack() as stack:

        def run(*options: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, "-c", MAIN, "participant", *options, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


async def line(process: "subprocess.Popen[str]", holds: Callable[[Any], bool]) -> Any:
    """The next line of which this holds."""
    assert process.stdout is not None
    while True:
        told = json.loads(await asyncio.to_thread(process.stdout.readline))
        if holds(told):
            return told


def test_gateways_are_killed_and_others_go_on(start: Start) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            east, west, bone = [
                await stack.enter_async_context(domain(name)) for name in ("east", "west", "bone")
            ]
            listen = [await _free_address() for _ in range(2)]
            ana = await stack.enter_async_context(
                Participant(
                    "ana",
                    domain="east",
                    bootstrap=east,
                    gateway=Backbone(domain="bone", bootstrap=bone),
                )
            )
            ana.writer(CHAT)
            member = ("--bootstrap", west, "--discovery-domain", "west", "--lifetime-ms", "2000")
            reads = ("--read", "chat/*", "--watch")

            def willing(number: int) -> "subprocess.Popen[str]":
                bones = (f"--gateway=bone={bone}", f"--gateway-listen=bone={listen[number]}")
                return start("--me", f"w{number}", *member, *reads, *bones)

            other = start("--me", "other", *member, *reads)
            two = [willing(0), willing(1)]
            for number, each in enumerate(two):
                told = await line(
                    each,
                    lambda told: (
                        told["gateway"]["ids"].get("bone") is not None
                        and [p["name"] for p in told["participants"] if p["domain"] == "east"]
                        == ["ana"]
                    ),
                )
                assert told["gateway"]["acting"]
                assert told["gateway"]["listens"] == {"bone": listen[number]}
            told = await line(other, lambda told: any(p["reachable"] for p in told["participants"]))
            (seen,) = [each for each in told["participants"] if each["domain"] == "east"]
            assert (seen["name"], seen["writes"], seen["shared"]) == ("ana", ["chat/a"], ["chat/a"])
            assert not seen["connected"]
            assert seen["entrance"] == {"domain": "east", "bootstrap": east}
            assert "gateway" not in told
            await until(lambda: names(ana) == {"west/w0", "west/w1", "west/other"})
            (before,) = [each for each in foreign(ana) if each.name == "w0"]

            two[0].send_signal(signal.SIGKILL)  # the second goes on
            async with asyncio.timeout(60):
                while "west/w0" in names(ana):  # until its own domain has missed it
                    assert {"west/w1", "west/other"} <= names(ana)
                    await asyncio.sleep(0.05)
            again = willing(0)  # at the same address
            await until(lambda: "west/w0" in names(ana))
            (after,) = [each for each in foreign(ana) if each.name == "w0"]
            assert after.inc > before.inc
            await line(again, lambda told: told["gateway"]["ids"].get("bone") is not None)

            for each in (two[1], again):  # nobody stands for them now: forgotten by age
                each.send_signal(signal.SIGKILL)
            await until(lambda: names(ana) == set(), seconds=60)
            assert other.poll() is None
            last = willing(1)
            await until(lambda: "west/other" in names(ana))
            last.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(last.wait, 60) == 0

    in_a_loop(work)()


# -- what contradicts itself --------------------------------------------------------------------


def test_backbones_that_are_none_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="one of the two"):
        Backbone(domain="bone")
    with pytest.raises(LocalProtocolError, match="one of the two"):
        Backbone(domain="bone", bootstrap="127.0.0.1:1", seeds=("127.0.0.1:2",))
    bone = Backbone(domain="bone", bootstrap="127.0.0.1:1")
    for home, gateway in (("bone", bone), ("east", [bone, bone])):
        with pytest.raises(LocalProtocolError, match="is there already"):
            Participant("ana", domain=home, bootstrap="127.0.0.1:1", gateway=gateway)
    with pytest.raises(LocalProtocolError, match="must be Backbone"):
        Participant("ana", domain="a", bootstrap="127.0.0.1:1", gateway=["bone"])  # type: ignore[list-item]
