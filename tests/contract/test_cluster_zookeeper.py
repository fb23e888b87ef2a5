"""Brokers' coordination over a real ZooKeeper: elections, topics, ends of sessions."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
from cluster_member import joined, topic_of, until

from orderwire.aio.cluster_zookeeper import BrokerIdTaken, ClusterTimes
from orderwire.aio.cluster_zookeeper_topics import TopicRefused
from orderwire.aio.zookeeper_client import ZookeeperClient
from orderwire.aio.zookeeper_errors import BadVersion, NoZnode, ZnodeExists
from orderwire.aio.zookeeper_server import (
    ManagedZookeeper,
    ZookeeperServerSettings,
    managed_zookeeper,
)
from orderwire.broker.coordination.layout import PartitionPaths
from orderwire.broker.replication.effects import ChangeIsr, Elect, Lock, Resign, SetSync, Unlock
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.kernel import NS_PER_MS, LocalProtocolError

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
QUICK = ZookeeperServerSettings(tick_ms=100, session_ms_min=300)
_CHROOTS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[ManagedZookeeper]:
    with managed_zookeeper(settings=QUICK) as running:
        yield running


@pytest.fixture
def place(server: ManagedZookeeper) -> str:
    """A cluster's own folder of the server."""
    return f"{server.address}/cluster-{next(_CHROOTS)}"


def test_brokers_find_each_other_and_topics(place: str) -> None:
    async def work() -> None:
        (one, told), (two, told_2) = joined(place, 1), joined(place, 2)
        async with one:
            assert list(one.brokers) == [1]
            assert one.is_sure()
            topic = topic_of("orders", 2, (1, 2))
            await one.topics.create(topic)
            assert told.topics == {topic.topic_id: topic}
            async with two:
                assert two.cluster_id == one.cluster_id != ""
                assert two.brokers[ONE] == one.broker
                assert told_2.topics == {topic.topic_id: topic}
                await until(lambda: list(one.brokers) == [1, 2])
                await until(lambda: len(told_2.views) == 2)
                assert set(told_2.views.values()) == {
                    PartitionView(-1, None, (ONE, TWO), 0, (ONE, TWO), ONE)
                }

                with pytest.raises(TopicRefused, match="is there"):
                    await two.topics.create(topic_of("orders", 1, (1,), mark=9))
                await two.topics.create(topic)  # The same again: an answer that was lost.
                grown = topic_of("orders", 3, (1, 2))
                await two.topics.change(grown)
                await until(lambda: (topic.topic_id, 2) in told.views, "the new partition")
                assert told.topics == told_2.topics == {topic.topic_id: grown}
                with pytest.raises(LocalProtocolError, match="only added"):
                    await two.topics.change(topic)

                with pytest.raises(LocalProtocolError, match="only added"):
                    await two.topics.change(topic_of("orders", 3, (2, 3)))
                wider = topic_of("orders", 3, (2, 1, 3))
                await two.topics.change(wider)
                for views in (told.views, told_2.views):
                    await until(lambda views=views: views[topic.topic_id, 2].replicas == (1, 2, 3))
                    assert {view.preferred for view in views.values()} == {TWO}
                    assert {view.isr for view in views.values()} == {(ONE, TWO)}

                again = topic_of("orders", 1, (2,), mark=2)
                await two.topics.delete(grown)
                await two.topics.create(again)
                await until(
                    lambda: told.gone == [topic.topic_id] and (again.topic_id, 0) in told.views
                )
                assert told.topics == {again.topic_id: again}
                await one.topics.delete(grown)  # Of another id.
                assert one.topics.get("orders") == again
            assert await until(lambda: list(one.brokers) == [1]) < 2_000

    asyncio.run(work())


def test_who_is_preferred_is_a_new_partitions_first_original(place: str) -> None:
    async def work() -> None:
        (one, told), (two, told_2) = joined(place, 1), joined(place, 2)
        async with one, two:
            topic = topic_of("t", 6, (1, 2))
            lists = tuple((1, 2) if index % 2 else (2, 1) for index in range(6))
            topic = msgspec.structs.replace(topic, replicas=lists)
            keys = [(topic.topic_id, index) for index in range(6)]
            await one.topics.create(topic)
            await until(lambda: all(key in told.views and key in told_2.views for key in keys))
            for cluster in (one, two):
                for index in range(6):
                    cluster.carry_out(topic, index, Elect(-1))
            await until(lambda: all(told.views[key].original is not None for key in keys))
            assert [told.views[key].original for key in keys] == [TWO, ONE] * 3

            late = topic_of("late", 1, (3, 1), mark=2)
            late = msgspec.structs.replace(late, replicas=((3, 1),))
            await one.topics.create(late)
            await until(lambda: (late.topic_id, 0) in told.views)
            one.carry_out(late, 0, Elect(-1))  # Who is preferred is not there.
            await until(lambda: told.views[late.topic_id, 0].original == ONE)

    asyncio.run(work())


def test_one_of_two_that_contend_is_original_and_rules_the_in_sync_set(place: str) -> None:
    async def work() -> None:
        (one, told), (two, told_2) = joined(place, 1), joined(place, 2)
        async with one, two:
            topic = topic_of("t", 1, (1, 2, 3))
            key = (topic.topic_id, 0)
            await one.topics.create(topic)
            await until(lambda: key in told.views and key in told_2.views)
            start = time.perf_counter()
            for cluster in (one, two):
                cluster.carry_out(topic, 0, Elect(-1))
            await until(lambda: told.views[key].epoch == told_2.views[key].epoch == 0)
            print(f"election {(time.perf_counter() - start) * 1_000:.1f} ms")
            assert told.views[key] == told_2.views[key]
            original = told.views[key].original
            assert original in (ONE, TWO)
            winner, loser = (one, two) if original == ONE else (two, one)
            won, lost = (told, told_2) if original == ONE else (told_2, told)

            losers = len(lost.all_views)
            loser.carry_out(topic, 0, Elect(0))  # There is an original.
            loser.carry_out(topic, 0, ChangeIsr((ONE, TWO), 0, 0))  # Which it is not.
            winner.carry_out(topic, 0, ChangeIsr((ONE, TWO), 7, 0))  # A version that never was.
            await until(lambda: len(lost.all_views) >= losers + 2, "each attempt is answered")
            await until(lambda: loser.partitions[topic.topic_id][0].refused >= 2)
            start = time.perf_counter()
            winner.carry_out(topic, 0, ChangeIsr((ONE, TWO), 0, 0))
            await until(lambda: won.views[key].isr == (ONE, TWO))
            print(f"compare-and-set {(time.perf_counter() - start) * 1_000:.1f} ms")
            await until(lambda: lost.views[key] == won.views[key])
            views = len(won.all_views)
            winner.carry_out(topic, 0, ChangeIsr((winner.me,), 0, 0))  # Stale.
            await until(lambda: len(won.all_views) > views)
            assert won.views[key] == PartitionView(
                0, original, (ONE, TWO), 1, (ONE, TWO, THREE), ONE
            )

            loser.carry_out(topic, 0, Resign(0))  # Not its own.
            winner.carry_out(topic, 0, Resign(0))
            await until(lambda: lost.views[key].original is None)
            loser.carry_out(topic, 0, Elect(0))
            await until(lambda: won.views[key].epoch == 1)
            assert won.views[key].original == loser.me
            # What the first original wants to write comes too late.
            winner.carry_out(topic, 0, SetSync(5, 9, 0, 3))
            loser.carry_out(topic, 0, SetSync(6, 8, 1, 1))
            paths = PartitionPaths("t", 0)

            async def written(path: str, data: bytes) -> None:
                for _ in range(1_000):
                    if (await one.client.get(path)).data == data:
                        return
                    await asyncio.sleep(0.01)
                raise AssertionError((await one.client.get(path)).data)

            await written(paths.sync_end, b"8,1,1")
            assert (await one.client.get(paths.sync_start)).data == b"6,1,1"
            # Nor does another original take it back, which knows less.  [I6]
            loser.carry_out(topic, 0, Resign(1))
            await until(lambda: won.views[key].original is None)
            winner.carry_out(topic, 0, Elect(1))
            await until(lambda: lost.views[key].epoch == 2)
            winner.carry_out(topic, 0, SetSync(4, 4, 2, 1))
            winner.carry_out(topic, 0, SetSync(None, 9, 2, 2))
            await written(paths.sync_end, b"9,2,2")
            assert (await one.client.get(paths.sync_start)).data == b"6,1,1"
            winner.carry_out(topic, 0, SetSync(7, None, 2, 2))
            await written(paths.sync_start, b"7,2,2")

    asyncio.run(work())


def test_lazy_marks_are_written_once_with_what_came_last(place: str) -> None:
    async def work() -> None:
        one, told = joined(place, 1, times=ClusterTimes(lazy_ns=100 * NS_PER_MS))
        async with one:
            topic = topic_of("t", 1, (1,))
            await one.topics.create(topic)
            await until(lambda: told.views)
            one.carry_out(topic, 0, Elect(-1))
            await until(lambda: told.views[topic.topic_id, 0].epoch == 0)
            for offset in range(50):
                one.carry_out(topic, 0, SetSync(offset, None, 0, offset), lazily=True)
            one.carry_out(topic, 0, SetSync(None, 60, 0, 51), lazily=True)
            paths = PartitionPaths("t", 0)
            while (znode := await one.client.get(paths.sync_start)).version == 0:
                await asyncio.sleep(0.01)
            assert (znode.data, znode.version) == (b"49,0,49", 1)
            while (znode := await one.client.get(paths.sync_end)).version == 0:
                await asyncio.sleep(0.01)
            assert znode.data == b"60,0,51"

    asyncio.run(work())


def test_the_marks_of_many_partitions_go_together_and_only_of_whose_epoch_lasts(place: str) -> None:
    async def work() -> None:
        one, told = joined(place, 1, times=ClusterTimes(lazy_ns=100_000 * NS_PER_MS))
        async with one:
            topic = topic_of("t", 100, (1,))
            await one.topics.create(topic)
            await until(lambda: len(told.views) == 100)
            for index in range(100):
                one.carry_out(topic, index, Elect(-1))
            await until(lambda: all(view.epoch == 0 for view in told.views.values()))

            async def flushed() -> int:
                before = one.marks.written
                one.marks.flush()
                await until(lambda: not one.marks.pending())
                while one.marks._task is not None:
                    await asyncio.sleep(0.01)
                return one.marks.written - before

            for offset in range(30):
                for index in range(100):
                    one.carry_out(topic, index, SetSync(offset, offset, 0, offset), lazily=True)
            assert await flushed() == 2, "64 and 36"
            assert await flushed() == 0
            for index in range(100):
                paths = PartitionPaths("t", index)
                for path in (paths.sync_start, paths.sync_end):
                    znode = await one.client.get(path)
                    assert (znode.data, znode.version) == (b"29,0,29", 1)

            # One that is ours no longer, before we have heard: the others' are written.
            lost = PartitionPaths("t", 7)
            await one.client.delete(lost.original)
            one.partitions[topic.topic_id][7]._view_due = False
            for index in range(10):
                one.carry_out(topic, index, SetSync(40, None, 0, 31), lazily=True)
                one.carry_out(topic, index, SetSync(10 + index, 50, 0, 32), lazily=True)
            assert await flushed() <= 2
            for index in range(10):
                paths = PartitionPaths("t", index)
                start, end = [
                    (await one.client.get(p)).data for p in (paths.sync_start, paths.sync_end)
                ]
                assert start == b"29,0,29", "it never goes back"
                assert end == (b"29,0,29" if index == 7 else b"50,0,32")

    asyncio.run(work())


def test_a_round_by_znodes_as_the_paper_does(place: str) -> None:
    """lock/<id> → the original sees it and sets syncEnd → members see that → it unlocks."""

    async def work() -> None:
        (one, told) = joined(place, 1, by_zookeeper=True)
        (two, told_2) = joined(place, 2, by_zookeeper=True)
        async with one, two:
            topic = topic_of("t", 1, (1, 2))
            key = (topic.topic_id, 0)
            await one.topics.create(topic)
            await until(lambda: key in told.views and key in told_2.views)
            one.carry_out(topic, 0, Elect(-1))
            await until(lambda: told_2.views[key].original == ONE)
            times = []
            for number in range(1, 11):
                start = time.perf_counter()
                two.carry_out(topic, 0, Lock())
                await until(lambda n=number: told.locks == [key] * n, "the original sees the lock")
                two.carry_out(topic, 0, Lock())  # Merged: it is there.
                one.carry_out(topic, 0, SetSync(None, number, 0, number))
                mark = (number, 0, number)
                await until(lambda m=mark: told_2.sync_ends[-1:] == [m], "members see syncEnd")
                one.carry_out(topic, 0, SetSync(number, None, 0, number))
                one.carry_out(topic, 0, Unlock())
                await until(lambda: not one.partitions[topic.topic_id][0].pending())
                times.append((time.perf_counter() - start) * 1_000)
                while await one.client.children(PartitionPaths("t", 0).lock):
                    await asyncio.sleep(0.001)
            print(f"round by znodes {sorted(times)[5]:.1f} ms")
            assert (await two.client.get(PartitionPaths("t", 0).sync_start)).data == b"10,0,10"
            # A lock goes with its session.
            two.carry_out(topic, 0, Lock())
            await until(lambda: len(told.locks) == 11)
        async with ZookeeperClient(place) as client:
            assert await client.children(PartitionPaths("t", 0).lock) == []

    asyncio.run(work())


def test_a_session_that_ends_makes_way_and_its_broker_returns_as_plain_member(place: str) -> None:
    async def work() -> None:
        (one, told), (two, told_2) = joined(place, 1), joined(place, 2)
        async with one, two:
            topic = topic_of("t", 1, (1, 2))
            key = (topic.topic_id, 0)
            await one.topics.create(topic)
            await until(lambda: key in told.views and key in told_2.views)
            one.carry_out(topic, 0, Elect(-1))
            await until(lambda: told_2.views[key].original == ONE)
            start = time.perf_counter()
            async with ZookeeperClient(place, key=one.client.session_key) as other:
                await other.exists("/")  # It goes on with the session, and closes it.
            await until(lambda: told_2.views[key].original is None)
            two.carry_out(topic, 0, Elect(0))
            await until(lambda: told_2.views[key].original == TWO)
            print(f"failover {(time.perf_counter() - start) * 1_000:.1f} ms")
            await until(lambda: told.lost == 1)
            assert not one.is_sure() or one.sessions == 2
            await until(
                lambda: told.views[key] == PartitionView(1, TWO, (ONE, TWO), 0, (ONE, TWO), ONE)
            )
            assert one.is_sure()
            await until(lambda: list(two.brokers) == [1, 2])

    asyncio.run(work())


def test_by_our_own_clock_a_silent_zookeeper_leaves_us_in_doubt_and_nothing_is_given_up() -> None:
    """The server is stopped: nothing breaks, nothing answers; then it goes on."""

    async def work() -> None:
        async with managed_zookeeper(settings=QUICK) as server:
            one, told = joined(server.address, 1, session_ms=2_000)
            async with one:
                topic = topic_of("t", 1, (1,))
                key = (topic.topic_id, 0)
                await one.topics.create(topic)
                await until(lambda: key in told.views)
                one.carry_out(topic, 0, Elect(-1))
                await until(lambda: told.views[key].original == ONE)
                assert one.client.session_ns == 2_000 * NS_PER_MS
                await asyncio.sleep(0.5)
                session = one.client.session_key
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    silence_ms = await until(lambda: told.doubts == [True])
                    assert not one.is_sure()
                    assert 1_200 < silence_ms < 2_000, silence_ms
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                await until(lambda: told.doubts == [True, False], "sure again", 20)
                if told.lost == 0:  # the server has not ended it meanwhile
                    assert one.is_sure()
                    assert one.client.session_key == session
                    assert told.views[key] == PartitionView(0, ONE, (ONE,), 0, (ONE,), ONE)

    asyncio.run(work())


def test_what_we_are_survives_a_restart_of_the_server_within_the_session() -> None:
    async def work() -> None:
        async with managed_zookeeper(settings=QUICK) as server:
            one, told = joined(server.address, 1, session_ms=20_000)
            async with one:
                topic = topic_of("t", 1, (1, 2))
                key = (topic.topic_id, 0)
                await one.topics.create(topic)
                await until(lambda: key in told.views)
                one.carry_out(topic, 0, Elect(-1))
                await until(lambda: told.views[key].original == ONE)
                await asyncio.to_thread(server.kill)
                views = len(told.all_views)
                one.carry_out(topic, 0, ChangeIsr((ONE,), 0, 0))  # Its answer comes as a view.
                await asyncio.to_thread(server.start)  # The view may be there before this returns.
                await until(lambda: len(told.all_views) > views)
                if told.views[key].isr != (ONE,):
                    one.carry_out(topic, 0, ChangeIsr((ONE,), 0, 0))
                await until(
                    lambda: told.views[key] == PartitionView(0, ONE, (ONE,), 1, (ONE, TWO), ONE)
                )
                assert (told.lost, one.sessions) == (0, 1)
                other = topic_of("u", 1, (1,), mark=2)
                await one.topics.create(other)
                await until(lambda: (other.topic_id, 0) in told.views)

    asyncio.run(work())


def test_hundreds_of_partitions_are_read_and_elected_together(place: str) -> None:
    async def work() -> None:
        (one, told), (two, told_2) = joined(place, 1), joined(place, 2)
        partitions = 200
        topic = topic_of("many", partitions, (1, 2))
        async with one:
            start = time.perf_counter()
            await one.topics.create(topic)
            made_s = time.perf_counter() - start
            await until(lambda: len(told.views) == partitions)
            start = time.perf_counter()
            for index in range(partitions):
                one.carry_out(topic, index, Elect(-1))
            await until(lambda: all(view.original == ONE for view in told.views.values()))
            elected_s = time.perf_counter() - start
            start = time.perf_counter()
            async with two:
                await until(lambda: len(told_2.views) == partitions)
                read_s = time.perf_counter() - start
                assert all(view.epoch == 0 for view in told_2.views.values())
            print(
                f"200 partitions: made {made_s:.2f} s, elected {elected_s:.2f}, read {read_s:.2f}"
            )
            with pytest.raises(LocalProtocolError, match="in steps"):
                await one.topics.create(topic_of("x" * 200, 2_000, (1, 2), mark=3))
            await one.topics.delete(topic)
            assert told.gone == [topic.topic_id]

    asyncio.run(work())


def test_a_broker_whose_id_lives_is_refused_and_one_after_a_crash_waits(place: str) -> None:
    async def work() -> None:
        one, _ = joined(place, 1, session_ms=2_000)
        await one.open()
        same, _ = joined(
            place, 1, incarnation="second", times=ClusterTimes(predecessor_ns=300 * NS_PER_MS)
        )
        with pytest.raises(BrokerIdTaken, match=r"a broker 1 lives at 127\.0\.0\.1:9001"):
            await same.open()
        patient, told = joined(place, 1, incarnation="third")
        opening = asyncio.ensure_future(patient.open())
        await asyncio.sleep(0.3)
        assert not opening.done()
        await one.close()
        await opening
        assert patient.brokers[ONE].incarnation == "third"
        assert told.brokers >= 1
        await patient.close()

    asyncio.run(work())


def test_a_broker_that_was_killed_is_back_at_once_by_its_last_session_key(place: str) -> None:
    async def work() -> None:
        (two, told), topic = joined(place, 2), topic_of("t", 1, (1, 2))
        async with two:
            await two.topics.create(topic)
            program = str(Path(__file__).parents[1] / "support" / "cluster_member.py")
            with subprocess.Popen(
                [sys.executable, program, place], stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                said = await asyncio.to_thread(process.stdout.readline)
                process.kill()
            number, password = said.split()
            await until(lambda: told.views[topic.topic_id, 0].original == ONE)
            start = time.perf_counter()
            predecessor = int(number), bytes.fromhex(password)
            again, told_1 = joined(place, 1, incarnation="second", predecessor=predecessor)
            async with again:
                back_ms = (time.perf_counter() - start) * 1_000
                print(f"back after a kill in {back_ms:.0f} ms, of a session of 20 s")
                assert back_ms < 10_000
                await until(lambda: told.views[topic.topic_id, 0].original is None)
                await until(lambda: told_1.views)
                assert told_1.views[topic.topic_id, 0].original is None
                assert two.brokers[ONE].incarnation == "second"

    asyncio.run(work())


def test_malformed_znodes_are_counted_and_told_and_stop_nobody(place: str) -> None:
    async def work() -> None:
        one, told = joined(place, 1)
        async with one, ZookeeperClient(place) as client:
            topic = topic_of("t", 2, (1,))
            await one.topics.create(topic)
            await until(lambda: len(told.views) == 2)
            paths = PartitionPaths("t", 0)
            await client.create("/orderwire/brokers/me", b"{}", ephemeral=True)
            await client.create("/orderwire/brokers/4", b"nonsense", ephemeral=True)
            await client.create("/orderwire/topics/empty")
            await client.create("/orderwire/topics/deep", b"[" * 10_000)
            await client.set("/orderwire/topics/t", b'{"topic_id": 4}')
            for wrong in (b"x", b"-2", b"9" * 30, b""):
                await client.set(paths.epoch, wrong)
                await client.set(paths.isr, b"")
            await until(lambda: one.scope.malformed >= 7)
            one.carry_out(topic, 0, Elect(-1))
            one.carry_out(topic, 1, Elect(-1))
            await until(lambda: told.views[topic.topic_id, 1].original == ONE, "the other goes on")
            assert told.topics == {topic.topic_id: topic}
            assert list(one.brokers) == [1]
            # What is mended is read again.
            await client.set(paths.epoch, b"-1")
            await client.set(paths.isr, b'{"epoch":-1,"isr":[1]}')
            one.partitions[topic.topic_id][0].again()
            one.carry_out(topic, 0, Elect(-1))
            await until(lambda: told.views[topic.topic_id, 0].original == ONE)

    asyncio.run(work())


def test_producer_ids_are_handed_out_once_and_small_things_are_kept(place: str) -> None:
    async def work() -> None:
        (one, _), (two, _) = joined(place, 1), joined(place, 2)
        async with one, two:
            taken = await asyncio.gather(
                *(cluster.take_producer_ids(100) for cluster in (one, two) * 5)
            )
            assert sorted(taken) == list(range(0, 1_000, 100))

            heard: list[set[str]] = []
            two.users.listeners.append(heard.append)
            await one.users.put("ana", b"secret")
            await one.config.put("acls", b"[]")
            await until(lambda: two.users.znodes.get("ana") and "acls" in two.config.znodes)
            first = two.users.znodes["ana"]
            await two.users.put("ana", b"other", first.version)
            with pytest.raises(BadVersion):
                await one.users.put("ana", b"late", first.version)
            with pytest.raises(ZnodeExists):
                await one.users.put("ana", b"new", None)
            await until(lambda: one.users.znodes["ana"].data == b"other")
            await one.users.remove("ana")
            with pytest.raises(NoZnode):
                await one.users.remove("ana")
            await until(lambda: "ana" not in two.users.znodes)
            assert heard[0] == heard[-1] == {"ana"}
            with pytest.raises(LocalProtocolError, match="no name"):
                await one.users.put("a/b", b"")

    asyncio.run(work())
