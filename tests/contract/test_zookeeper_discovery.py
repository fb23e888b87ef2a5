"""Participants that come by their ids through a real ZooKeeper: exact at once, in spite of all."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from discovery_member import DOMAIN, Member
from kazoo.client import KazooClient

from orderwire.aio.discovery_host import DiscoveryHost
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.aio.discovery_zookeeper import BootstrapTimes, ZookeeperBootstrap
from orderwire.aio.zookeeper_client import ClientSettings, Session, ZookeeperClient
from orderwire.aio.zookeeper_entries import Entry, domain_path, spread
from orderwire.aio.zookeeper_errors import NoZnode, ZookeeperUnavailable
from orderwire.aio.zookeeper_server import ZookeeperServerSettings, managed_zookeeper
from orderwire.discovery.commands import Granted, IdWanted, Meet, Unreachable
from orderwire.discovery.entrance import OutsideEntrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.settings import ID_SPACE_MAX, DiscoverySettings, Mechanisms
from orderwire.kernel import NS_PER_MS

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

QUICK = ZookeeperServerSettings(tick_ms=100, session_ms_min=200)
TIMES = BootstrapTimes(refresh_ns=500 * NS_PER_MS)
CLIENT = ClientSettings(session_ns=8_000 * NS_PER_MS, reply_ns=1_000 * NS_PER_MS)
NO_REPAIR = DiscoverySettings(
    mechanisms=Mechanisms(ae=False, probe=False, heartbeats=False, detect=False, server_sync=False)
)


class Through(Member):
    """A member whose id comes from ZooKeeper."""

    bootstrap: ZookeeperBootstrap
    granted: list[Granted]
    met: int

    @classmethod
    async def through(
        cls,
        ensemble: str,
        name: str,
        *,
        domain: str = DOMAIN,
        settings: DiscoverySettings | None = None,
        **options: Any,
    ) -> "Through":
        transport = await DiscoveryTransport.open("127.0.0.1:0", domain=domain)
        core = FdpNode(
            transport.address, OutsideEntrance(), settings or DiscoverySettings(), Random(name)
        )
        member: list[Through] = []
        host: DiscoveryHost[Any, Any] = DiscoveryHost(
            core,
            transport,
            lambda indication: member[0].tell(indication),
            unreachable=lambda address: Unreachable(address=address),
        )
        member.append(cls(host, core, name))
        member[0].granted = []
        member[0].met = 0
        member[0].bootstrap = ZookeeperBootstrap(
            ensemble,
            domain,
            transport.address,
            member[0].take,
            **{"times": TIMES, "client": CLIENT, **options},
        )
        await member[0].bootstrap.open()
        return member[0]

    def take(self, command: Granted | Meet) -> None:
        if isinstance(command, Granted):
            self.granted.append(command)
        else:
            self.met += 1
        self.host.submit(command)

    def tell(self, indication: Any) -> None:
        if isinstance(indication, IdWanted):
            self.bootstrap.wanted(indication)
        super().tell(indication)

    async def leave(self) -> None:
        await self.bootstrap.close()
        await super().leave()

    async def crash(self) -> None:
        await self.bootstrap.close()
        await super().crash()


async def until(holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what) from None


async def all_know(members: list[Through]) -> None:
    names = [member.name for member in members]
    await asyncio.gather(*(member.knows(*names) for member in members))


@pytest.fixture(scope="module")
def ensemble() -> Iterator[str]:
    with managed_zookeeper(settings=QUICK) as server:
        yield f"{server.address}/tests"


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(limited())


def test_eight_that_start_at_once_know_each_other_with_all_repair_off(ensemble: str) -> None:
    """[FDP/1 P1] Each is told all that came before it, and that is enough."""

    async def work() -> None:
        members = [
            await Through.through(ensemble, f"m{number}", settings=NO_REPAIR) for number in range(8)
        ]
        for member in members:
            member.start()
        await all_know(members)
        order = sorted(members, key=lambda member: member.granted[0].inc)
        for count, member in enumerate(order):
            (granted,) = member.granted
            before = [(each.core.id, each.address, each.granted[0].inc) for each in order[:count]]
            assert [(each.id, each.addr, each.inc) for each in granted.members] == before
            assert granted.id == spread(granted.inc) == member.core.id
            assert granted.id_space == ID_SPACE_MAX
            assert member.bootstrap.entered == 1
        incs = [member.granted[0].inc for member in order]
        assert incs == list(range(incs[0], incs[0] + 8)), "numbers follow each other"
        await asyncio.gather(*(member.leave() for member in members))

        late = await Through.through(ensemble, "late")
        late.start()
        await until(lambda: late.core.id is not None, "it got no id")
        assert late.granted[0].members == (), "those that left were told of"
        assert late.granted[0].inc == incs[-1] + 1, "an id is never given twice"
        await late.leave()

    run(work)


def test_the_domain_goes_on_when_zookeeper_is_killed_and_newcomers_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with managed_zookeeper(tmp_path / "data", QUICK) as server:
            ana = await Through.through(server.address, "ana")
            ben = await Through.through(server.address, "ben")
            for member in (ana, ben):
                member.start()
            await all_know([ana, ben])

            await asyncio.to_thread(server.kill)
            new = await Through.through(server.address, "new")
            new.start()
            ana.change("ana's second")
            await ben.knows("ana's second")
            await until(lambda: new.bootstrap.trouble is not None, "it does not tell why it waits")
            assert server.address in (new.bootstrap.trouble or "")
            assert new.core.id is None

            await asyncio.to_thread(server.start)
            await new.knows("ana's second", "ben")
            await ben.knows("ana's second", "new")
            assert new.bootstrap.trouble is None
            incs = [each.granted[0].inc for each in (ana, ben, new)]
            assert incs[2] == max(incs), "the order was lost"
            counts = [(len(each.granted), each.bootstrap.entered) for each in (ana, ben, new)]
            assert counts == [(1, 1)] * 3, "a session that outlived the server was not kept"

            await asyncio.gather(*(each.leave() for each in (ana, ben, new)))

            hasty = msgspec.structs.replace(CLIENT, give_up_ns=500 * NS_PER_MS)
            old = await Through.through(server.address, "old", client=hasty)
            old.start()
            await until(lambda: old.core.id is not None, "it got no id")
            await asyncio.to_thread(server.kill)
            shutil.rmtree(server.data / "version-2")
            await asyncio.to_thread(server.start)
            await until(
                lambda: old.bootstrap.entered == 2, "it does not enter a server that lost all"
            )
            late = await Through.through(server.address, "late")
            late.start()
            await all_know([old, late])
            assert late.granted[0].inc > old.granted[0].inc > max(incs)
            assert len(old.granted) == 1, "an id was given up"
            assert old.bootstrap._known == late.bootstrap._known, "they count from other seconds"
            await asyncio.gather(old.leave(), late.leave())

    run(work)


async def expire(member: Through) -> None:
    """End the member's session, as the server does when it hears nothing for too long."""
    kazoo = member.bootstrap.client._kazoo
    lost = member.bootstrap.client.sessions_lost

    def take_over() -> None:
        other = KazooClient(hosts=kazoo.hosts[0][0] + f":{kazoo.hosts[0][1]}",
                            client_id=kazoo.client_id)  # fmt: skip
        other.start()
        other.stop()
        other.close()

    await asyncio.to_thread(take_over)
    await until(lambda: member.bootstrap.client.sessions_lost > lost, "the session did not end")


@pytest.mark.parametrize("id_space", [ID_SPACE_MAX, 16], ids=["never used twice", "drawn"])
def test_whoever_loses_the_session_keeps_the_id_and_enters_again(
    ensemble: str, id_space: int
) -> None:
    async def work() -> None:
        options: dict[str, Any] = {"domain": f"expiry {id_space}", "id_space": id_space}
        ana = await Through.through(ensemble, "ana", **options)
        ben = await Through.through(ensemble, "ben", **options)
        for member in (ana, ben):
            member.start()
        await all_know([ana, ben])
        before = ana.core.id, ana.core.roster.inc
        await expire(ana)
        await until(lambda: ana.bootstrap.entered == 2, "it is not entered again")
        assert (ana.core.id, ana.core.roster.inc) == before
        assert len(ana.granted) == 1
        late = await Through.through(ensemble, "late", **options)
        late.start()
        await all_know([ana, ben, late])
        told = {(each.id, each.inc) for each in late.granted[0].members}
        assert told == {(each.core.id, each.core.roster.inc) for each in (ana, ben)}
        await asyncio.gather(*(each.leave() for each in (ana, ben, late)))

    run(work)


def test_an_id_that_another_drew_meanwhile_is_given_up(ensemble: str) -> None:
    """[FDP/1 R11.1] The larger incarnation keeps it; the other enters with a new one."""

    async def work() -> None:
        options: dict[str, Any] = {"domain": "taken", "id_space": 16, "wish": 3}
        ana = await Through.through(ensemble, "ana", **options)
        ana.start()
        await until(lambda: ana.core.id == 3, "it did not get what it wished")
        first = ana.granted[0].inc
        # What another would do while ana is cut off: end of the session, id, entry.
        async with ZookeeperClient(ensemble) as client:
            path = domain_path("taken")
            inc = first + 100
            thief = Entry("127.0.0.1:9", "other", 3, inc, 0)
            (name,) = await client.children(f"{path}/participants")
            await client.delete(f"{path}/ids/3")
            await client.create(f"{path}/ids/3", b"other", ephemeral=True)
            await client.create(
                f"{path}/participants/{thief.prefix()}", ephemeral=True, sequence=True
            )
            await client.delete(f"{path}/participants/{name}")
            await until(lambda: len(ana.granted) == 2, "it still has the other's id")
            assert ana.core.id != 3
            names = await client.children(f"{path}/participants")
            mine = [entry for entry in map(Entry.parse, names) if entry and entry.nonce != "other"]
            assert [each.id for each in mine] == [ana.core.id]
        await ana.leave()

    run(work)


def test_a_small_domain_is_full_until_somebody_leaves(ensemble: str) -> None:
    async def work() -> None:
        options: dict[str, Any] = {"domain": "small/../ü", "id_space": 4}
        members = [await Through.through(ensemble, f"m{number}", **options) for number in range(4)]
        for member in members:
            member.start()
        await all_know(members)
        assert sorted(member.core.id or 0 for member in members) == [0, 1, 2, 3]
        fifth = await Through.through(ensemble, "fifth", **options)
        fifth.start()
        await until(lambda: fifth.bootstrap.trouble is not None, "five share four ids")
        assert fifth.bootstrap.trouble == "all 4 ids of domain 'small/../ü' are taken"
        left = members.pop()
        freed = left.core.id
        await left.leave()
        await all_know([*members, fifth])
        assert fifth.core.id == freed
        larger = await Through.through(ensemble, "larger", domain="small/../ü", id_space=2)
        larger.start()
        await until(lambda: larger.bootstrap.trouble is not None, "two sizes in one domain")
        assert "4 ids; expected 1 to 2" in (larger.bootstrap.trouble or "")
        await larger.crash()
        await asyncio.gather(*(each.leave() for each in (*members, fifth)))

    run(work)


def test_hostile_znodes_are_dropped_and_counted(ensemble: str) -> None:
    async def work() -> None:
        async with ZookeeperClient(ensemble) as client:
            path = f"{domain_path('hostile')}/participants"
            await client.ensure(path, b'{"id_space": 18446744073709551616}')
            bad = ["x", "nowhere,,,,", "127.0.0.1:1,n,g,,", "127.0.0.1:99999,n,,,", "," * 4]
            bad += [f"127.0.0.1:1,n,{ID_SPACE_MAX:x},,", "127.0.0.1:1,n,-1,,", "a,b,c,d,e,"]
            bad += ["127.0.0.1:1," + "n" * 400 + ",,,", "[::1:1,n,,,", "127.0.0.1:1,n,,-1,"]
            for name in bad:
                await client.create(f"{path}/{name}", b"\xff" * 100_000, sequence=True)
            member = await Through.through(ensemble, "m", domain="hostile")
            # What another process at its address left behind, and one that is not there.
            for address in (member.address, "127.0.0.1:9"):
                await client.create(f"{path}/{address},old,,,", sequence=True)
            member.start()
            await until(lambda: member.core.id is not None, "it got no id")
            assert [each.addr for each in member.granted[0].members] == ["127.0.0.1:9"]
            assert member.bootstrap.malformed == len(bad)
            assert member.bootstrap.trouble is None
            await member.leave()

            for data in (b"", b"[]", b'{"id_space": 0}', b'{"id_space": 1e99}', b"\xff" * 1_000):
                domain = f"bad data {data[:20]!r}"
                await client.ensure(f"{domain_path(domain)}/participants", data)
                member = await Through.through(ensemble, "m", domain=domain)
                member.start()
                await until(lambda m=member: m.bootstrap.trouble, "it told nothing")  # type: ignore[misc]
                assert "participants" in (member.bootstrap.trouble or "")
                assert member.granted == []
                await member.crash()

    run(work)


def test_whoever_entered_unnoticed_is_met_at_the_next_look(ensemble: str) -> None:
    """[FDP/1 R16] As after a partition: one that joined meanwhile knew nobody."""

    async def work() -> None:
        rare = {"domain": "met", "settings": NO_REPAIR, "times": BootstrapTimes()}
        ana = await Through.through(ensemble, "ana", **rare)
        ana.start()
        await until(lambda: ana.core.id is not None, "it got no id")
        async with ZookeeperClient(ensemble) as client:
            path = f"{domain_path('met')}/participants"
            (name,) = await client.children(path)
            await client.delete(f"{path}/{name}")
        ben = await Through.through(ensemble, "ben", **rare)
        ben.start()
        await until(lambda: ben.core.id is not None, "it got no id")
        assert ben.granted[0].members == ()
        ana.bootstrap._changed.set()  # What the time of the next look does.
        await all_know([ana, ben])
        assert (ana.bootstrap.entered, ana.met) == (2, 1)
        await asyncio.gather(ana.leave(), ben.leave())

    run(work)


@pytest.mark.parametrize("id_space", [ID_SPACE_MAX, 16], ids=["never used twice", "drawn"])
@pytest.mark.parametrize("trouble", ["answer lost", "session ends"])
def test_what_may_have_happened_is_found_out(ensemble: str, id_space: int, trouble: str) -> None:
    """However far an attempt came, the participant ends with one entry and one id."""

    async def work() -> None:
        domain = f"{trouble} {id_space}"
        member = await Through.through(ensemble, "m", domain=domain, id_space=id_space)
        create, left = member.bootstrap.client.create, 2 if id_space == 16 else 1

        async def troubled(path: str, data: bytes = b"", **how: bool) -> str:
            nonlocal left
            made = await create(path, data, **how)
            if how and left:
                left -= 1
                if trouble == "answer lost":
                    raise ZookeeperUnavailable("the answer is lost")
                await expire(member)
            return made

        member.bootstrap.client.create = troubled  # type: ignore[method-assign]
        member.start()
        async with ZookeeperClient(ensemble) as client:
            path = domain_path(domain)
            names: list[str] = []
            ids: list[str] = []
            async with asyncio.timeout(20):
                while left or len(names) != 1 or (id_space == 16 and len(ids) != 1):
                    await asyncio.sleep(0.05)
                    with contextlib.suppress(NoZnode):
                        names = await client.children(f"{path}/participants")
                        ids = await client.children(f"{path}/ids")
            await until(lambda: member.core.id is not None, "it got no id")
            entry = Entry.parse(names[0])
            assert entry is not None
            assert entry.nonce == member.bootstrap._nonce
            if id_space == 16:
                assert [int(each, 16) for each in ids] == [entry.id] == [member.core.id]
            await member.leave()
            for each in ("participants", "ids") if id_space == 16 else ("participants",):
                assert await client.children(f"{path}/{each}") == []

    run(work)


@pytest.mark.parametrize("is_silent", [False, True], ids=["refuses", "says nothing"])
def test_without_a_server_it_says_so_and_closing_is_quick(is_silent: bool) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1] if is_silent else 9
            member = await Through.through(f"127.0.0.1:{port},[::1]:9/folder", "m")
            member.start()
            await until(lambda: member.bootstrap.trouble is not None, "it told nothing")
            assert f"127.0.0.1:{port}" in (member.bootstrap.trouble or "")
            assert member.bootstrap.client.session is Session.LOST
            async with asyncio.timeout(2):
                await member.crash()

    run(work)
