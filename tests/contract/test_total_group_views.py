"""Members and relays that die under load; views in a real ZooKeeper.  [S003:dec.1]"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from view_cluster import QUICK, busy, rest, until, view_cluster

from orderwire.aio.zookeeper_server import managed_zookeeper

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[str]:
    with managed_zookeeper(settings=QUICK) as server:
        yield server.address


def test_a_member_dies_under_load_and_the_others_go_on(zookeeper: str, tmp_path: Path) -> None:
    with view_cluster(zookeeper, "member", tmp_path) as cluster:
        cluster.add_relay("--loss", "0.01")
        one, other, victim = (cluster.add_member(3) for _ in range(3))
        busy(one)
        victim.kill()
        gone = victim.events("entered")[0]["me"]
        until(lambda: all(gone not in m.events("view")[-1]["members"] for m in (one, other)))
        busy(other)
        rest(one, other)
        assert one.events("view")[-1]["members"] == other.events("view")[-1]["members"]
        assert len(one.events("view")[-1]["members"]) == 2
        cluster.judge(dead=(victim,))


def test_a_relay_dies_under_load_and_the_next_takes_over(zookeeper: str, tmp_path: Path) -> None:
    with view_cluster(zookeeper, "relay", tmp_path) as cluster:
        first = cluster.add_relay()
        cluster.add_relay()
        members = [cluster.add_member(3) for _ in range(3)]
        busy(members[0])
        before = max(member.events("view")[-1]["number"] for member in members)
        first.kill()
        until(lambda: all(member.events("view")[-1]["number"] > before for member in members))
        busy(members[0])
        rest(*members)
        cluster.judge()


def test_members_come_and_go(zookeeper: str, tmp_path: Path) -> None:
    with view_cluster(zookeeper, "join", tmp_path) as cluster:
        cluster.add_relay()
        one, other = cluster.add_member(2), cluster.add_member(2)
        busy(one)
        new = cluster.add_member()
        until(lambda: len(new.events("view")) > 0)
        busy(new)
        other.say("quit")
        until(lambda: len(one.events("view")) == len(new.events("view")) + 1 == 3)
        again = cluster.add_member()
        until(lambda: len(again.events("view")) > 0)
        # The id of who left goes to the newcomer, once nobody knows the old one any more.
        assert again.events("entered")[0]["me"] == other.events("entered")[0]["me"]
        busy(again)
        rest(one, new, again)
        cluster.judge(dead=(other,))


def test_a_member_that_hangs_is_excluded_and_stops(zookeeper: str, tmp_path: Path) -> None:
    with view_cluster(zookeeper, "hang", tmp_path) as cluster:
        cluster.add_relay()
        one, other, hung = (cluster.add_member(3) for _ in range(3))
        busy(one)
        hung.popen.send_signal(signal.SIGSTOP)
        until(lambda: len(one.events("view")) == len(other.events("view")) == 2)
        hung.popen.send_signal(signal.SIGCONT)
        busy(one)
        hung.say("quit")
        hung.popen.wait(30)
        rest(one, other)
        cluster.judge(dead=(hung,))
