"""What users of other systems met does not happen here: discovery in simulated time.

Sources: the issues named at each test.  Those about sockets are in `contract/`.
"""

from collections import Counter
from functools import partial
from itertools import permutations
from typing import Any

import msgspec
import pytest
from discovery_runs import (
    MS,
    S,
    by_id,
    domain,
    drawn_delay,
    exact_within,
    fixed_delay,
    sent,
    server_of,
    start_all,
)

from orderwire.discovery import entrance
from orderwire.discovery.commands import Joined, Refused
from orderwire.discovery.messages import (
    Heartbeat,
    Join,
    JoinAck,
    MapRecord,
    Pull,
    Row,
    Sync,
    nominal_bytes,
)
from orderwire.discovery.ring import UP
from orderwire.discovery.settings import FEW_MESSAGES
from orderwire.kernel import RemoteProtocolError
from orderwire.sim.discovery_world import SERVER, DiscoveryWorld

LAN = (MS // 5, 2 * MS)


def settled(count: int, *, id_space: int = 64, wait_s: int = 5, **options: Any) -> DiscoveryWorld:
    world = domain(id_space=id_space, delay=drawn_delay(count, *LAN), **options)
    start_all(world, count)
    world.run(wait_s * S)
    assert world.faults_of_views() == []
    return world


@pytest.mark.slow
def test_a_hundred_and_twenty_eight_start_at_once() -> None:
    """eProsima/Fast-DDS #5767: the server was overloaded, nothing matched beyond 75 to 100.

    Here it answers one request each and then renewals; all know all within a fraction of a second.
    """
    world = domain(id_space=128, delay=drawn_delay(1, *LAN))
    start_all(world, 128)
    found = exact_within(world, 2 * S)
    assert found is not None
    assert found <= 500 * MS
    server = server_of(world)
    assert (server.requests, server.renewals) == (128, 0)
    world.run(7 * S)
    assert server.requests == 128
    assert server.renewals == 256


@pytest.mark.slow
def test_a_full_id_space_refuses_one_more_and_serves_the_others() -> None:
    """eProsima/Fast-DDS #6359, #6383: only the first 100 worked, and nobody said so."""
    world = domain(id_space=32, delay=drawn_delay(2, *LAN))
    heard: list[tuple[str, Any]] = []
    world.listeners.append(lambda _now, who, what: heard.append((who, what)))
    start_all(world, 32)
    assert exact_within(world, 2 * S) is not None
    assert sorted(by_id(world)) == list(range(32))
    world.start("surplus", b"surplus")
    world.run(world.world.now_ns + 5 * S)
    refusals = [what for who, what in heard if who == "surplus"]
    assert refusals
    assert all(isinstance(each, Refused) and not each.recovering for each in refusals)
    del world.processes["surplus"]
    assert world.faults_of_views() == []


def test_the_surplus_comes_in_when_another_leaves() -> None:
    world = settled(4, id_space=4)
    world.start("surplus", b"surplus")
    world.run(world.world.now_ns + S)
    world.leave("p1")
    found = exact_within(world, 12 * S, 100 * MS)
    assert found is not None
    assert sorted(by_id(world)) == [0, 1, 2, 3]
    assert "surplus" in by_id(world).values()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("recovery_ns", [None, 0])
def test_a_server_loses_its_table_while_some_join_and_change(
    seed: int, recovery_ns: int | None
) -> None:
    """eProsima/Fast-DDS #2534: endpoints were not discovered after the server's restart."""
    world = domain(seed=seed, id_space=64, delay=drawn_delay(seed, *LAN))
    start_all(world, 10)
    for number in range(10):
        at_ns = 5 * S + number * 100 * MS
        world.at(at_ns, lambda n=number: world.start(f"n{n}", b"n%d" % n))  # type: ignore[misc]
        world.at(at_ns, lambda n=number: world.change(f"p{n}", b"new %d" % n))  # type: ignore[misc]
    world.at(5 * S + 350 * MS, world.server_down)
    world.at(5 * S + 650 * MS, lambda: world.server_up(lost=True, recovery_ns=recovery_ns))
    world.run(6 * S)
    assert exact_within(world, 25 * S, 250 * MS) is not None
    assert len(by_id(world)) == 20
    assert {node.own.told.full for node in world.nodes().values()} >= {b"new 9", b"n9"}


def steady(count: int) -> float:
    """Messages a second and participant when nothing happens, those of its server included."""
    world = settled(count, id_space=128, wait_s=12, **msgspec.structs.asdict(FEW_MESSAGES))
    begin_ns = world.world.now_ns
    world.run(begin_ns + 20 * S)
    assert world.faults_of_views() == []
    found = sent(world, after_ns=begin_ns + 1)
    assert found["RENEW_OK"] == found["RENEW"]
    return sum(found.values()) / count / 20


@pytest.mark.slow
def test_idle_traffic_does_not_grow_with_the_number() -> None:
    """eProsima/Fast-DDS #5519, StarlingUAS/ProjectStarling #164: idle discovery loaded the CPU and
    killed the local network.

    At most 3 messages per second and participant, whether they are 8, 32 or 128, leases and their
    answers included.
    """
    rates = {count: steady(count) for count in (8, 32, 128)}
    assert all(1.0 <= rate <= 3.0 for rate in rates.values()), rates
    assert max(rates.values()) <= 1.2 * min(rates.values())


@pytest.mark.slow
def test_ids_come_back() -> None:
    """eclipse-cyclonedds/cyclonedds #1475, ros2/rclpy #1212: no free participant index.

    A thousand processes in turn, in an id space of 16; every tenth crashes instead of leaving.
    """
    world = domain(id_space=16, delay=fixed_delay(MS // 10))
    heard: Counter[str] = Counter()
    world.listeners.append(lambda _now, _who, what: heard.update((type(what).__name__,)))
    world.start("stays", b"stays")
    for number in range(1_000):
        at_ns = S + number * 100 * MS
        name = f"p{number}"
        world.at(at_ns, lambda n=name: world.start(n, n.encode()))  # type: ignore[misc]
        end = world.crash if number % 10 == 0 else world.leave
        world.at(at_ns + 300 * MS, lambda n=name, end=end: end(n))  # type: ignore[misc]
    world.run(S + 1_000 * 100 * MS + S)
    assert heard["Joined"] == 1_001
    assert heard["Refused"] == 0
    world.run(world.world.now_ns + 10 * S)
    assert world.faults_of_views() == []
    assert list(by_id(world).values()) == ["stays"]
    core = world.nodes()["stays"]
    assert len(core.roster.entries) <= 15
    assert core.roster.ring == []


@pytest.mark.slow
@pytest.mark.parametrize("count", [16, 64])
def test_bytes_per_link_at_boot_are_those_of_the_maps(count: int) -> None:
    """eclipse-cyclonedds/cyclonedds #2306: 50 to 100 MB/s a process when some 500 start.

    What comes in at a participant is at most twice what all MAPs together take.
    """
    each = 4_000
    world = domain(id_space=128, delay=drawn_delay(3, *LAN))
    start_all(world, count, map_bytes=each)
    assert exact_within(world, 2 * S) is not None
    into: Counter[str] = Counter()
    for posted in world.posted:
        into[posted.to] += nominal_bytes(posted.message)
    del into[SERVER]
    assert max(into.values()) <= 2 * each * count


@pytest.mark.parametrize("holes", [1, 3, 5, 9])
def test_unreachable_successors_cost_one_time_out_not_one_each(holes: int) -> None:
    """eclipse-zenoh/zenoh #2090: unreachable addresses were tried in turn, 10 s each."""
    world = settled(16, id_space=16 * 16)
    ids = {address: identity for identity, address in by_id(world).items()}
    at = 16 * 16 // 3
    behind = sorted(ids, key=lambda address: (ids[address] - at) % 256)
    for address in behind[:holes]:
        world.crash(address, silent=True)
    begin_ns = world.world.now_ns
    node = world.start("new", b"new", wish=at)
    living = 16 - holes
    while len(node.live()) < living and world.world.now_ns < begin_ns + 60 * S:
        world.run(world.world.now_ns + 10 * MS)
    knows_all_ns = world.world.now_ns - begin_ns
    assert knows_all_ns <= world.settings.ack_ns + 200 * MS


@pytest.mark.parametrize("names", list(permutations(("p0", "p1"))))
@pytest.mark.parametrize("apart_ns", [0, MS // 2, 3 * MS, 50 * MS, 900 * MS])
def test_a_pair_meets_as_fast_in_every_order(names: tuple[str, str], apart_ns: int) -> None:
    """eclipse-zenoh/zenoh #1890: only the greater id connected, which took up to 8 s."""
    world = domain(delay=fixed_delay(MS))
    world.at(0, lambda: world.start(names[0], b"first"))
    world.at(apart_ns, lambda: world.start(names[1], b"second"))
    world.run(apart_ns)
    found = exact_within(world, S, MS // 2)
    assert found is not None
    assert found <= 4 * MS


def test_messages_for_who_has_no_id_yet_and_of_strangers_do_no_harm() -> None:
    """ros2/rmw_zenoh #318, #408: errors about unknown entities when dozens start at once."""
    world = domain(id_space=64, delay=fixed_delay(MS))
    node = world.start("p0", b"map")
    stranger = Row(9, 1 << 32, 1, 1, 0, "stranger", has_map=True)
    beat = Heartbeat(0, 9, stranger, 1, 1, 0, UP)
    process = world.processes["p0"]
    world.deliver("stranger", process, beat)
    world.run(50 * MS)
    assert node.id == 0
    entry = node.roster.entries[9]
    assert entry.lacks_map
    assert [each.message for each in world.posted if isinstance(each.message, Pull)]
    world.deliver("stranger", process, Pull(0, 9, ()))
    world.deliver("stranger", process, JoinAck(0, 9, 0, node.roster.inc, 99, UP, ()))
    with pytest.raises(RemoteProtocolError):
        world.deliver("stranger", process, Heartbeat(0, 64, stranger, 1, 1, 0, UP))
    world.start("p1", b"other")
    world.run(20 * S)
    assert world.faults_of_views() == []


@pytest.mark.slow
def test_the_dead_stay_dead() -> None:
    """andydunstall/piko #314: peers resurrected dead nodes for ever.

    A chain of newcomers, each told of the dead one by the last, ends with the fail time.
    """
    world = settled(6, bootstrap={"lease_ns": 100 * S})
    victim = world.nodes()["p2"]
    identity, inc = victim.id, victim.roster.inc
    assert identity is not None
    world.crash("p2", silent=True)
    crash_ns = world.world.now_ns
    for number in range(8):
        world.at(crash_ns + number * S, lambda n=number: world.start(f"n{n}", b""))  # type: ignore[misc]
    world.run(crash_ns + 7_600 * MS)
    late = Sync(None, 9, (Row(identity, inc, 1, 1, 100, "p2"),))
    for address in ("p0", "n7"):
        world.deliver("n3", world.processes[address], late)
    for _ in range(40):
        world.run(world.world.now_ns + 250 * MS)
        for node in world.nodes().values():
            entry = node.roster.entries.get(identity)
            assert entry is None or not entry.is_live


@pytest.mark.slow
@pytest.mark.parametrize("forgetful", [False, True])
def test_all_restart_while_old_records_go_around(forgetful: bool) -> None:
    """hashicorp/memberlist #311: incarnations began at 1 again and the living were held dead."""
    world = settled(12)
    old = {node.id: node.roster.inc for node in world.nodes().values()}
    if forgetful:
        world.server_up(lost=True, recovery_ns=0)
    for number in range(12):
        world.at(
            world.world.now_ns + number * 40 * MS,
            lambda n=number: (world.crash(f"p{n}"), world.start(f"p{n}", b"again %d" % n)),  # type: ignore[misc]
        )
    world.run(world.world.now_ns + 500 * MS)
    assert exact_within(world, 15 * S, 250 * MS) is not None
    newer = {node.id: node.roster.inc for node in world.nodes().values()}
    assert min(newer.values()) > max(old.values())


def test_a_restart_at_the_same_address_leaves_one_entry() -> None:
    """scalecube/scalecube-cluster #132, hashicorp/serf #116: two entries were kept."""
    world = settled(8)
    old_inc = world.nodes()["p3"].roster.inc
    world.crash("p3", silent=True)
    world.start("p3", b"again", wish=61)
    found = exact_within(world, 2 * S)
    assert found is not None
    assert found <= S
    for address, node in world.nodes().items():
        if address != "p3":
            (entry,) = [e for e in node.roster.entries.values() if e.addr == "p3" and e.is_live]
            assert entry.inc > old_inc
            assert entry.map == MapRecord(1, b"again")


@pytest.mark.slow
def test_boots_have_no_outliers() -> None:
    """eProsima/Fast-DDS #359: milliseconds in the middle, 2 s and 40 s now and then.

    100 boots of 16 with delays up to 2 ms: the slowest is bounded, not the mean.
    """
    found = []
    for seed in range(100):
        world = domain(seed=seed, id_space=64, delay=drawn_delay(seed, *LAN))
        start_all(world, 16)
        found.append(exact_within(world, 10 * S, 5 * MS))
    assert None not in found
    assert max(each for each in found if each is not None) <= 300 * MS


def test_the_first_join_is_the_only_one() -> None:
    """A participant that starts alone joins nobody, and the next one joins it."""
    world = domain(delay=fixed_delay(MS))
    heard: list[Any] = []
    world.listeners.append(lambda _now, _who, what: heard.append(what))
    world.start("p0", b"0")
    world.run(S)
    assert [type(each) for each in heard] == [Joined]
    assert not [each for each in world.posted if isinstance(each.message, Join)]


def test_who_loses_an_id_while_it_joins_takes_another_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All draw the same ids in turn, and two seeds hear of different ones first."""
    monkeypatch.setattr(entrance, "drawn_id", lambda guid, attempt, id_space: attempt % id_space)
    heard: Counter[tuple[int, str]] = Counter()
    for seed in range(3):
        world = domain(id_space=64, delay=drawn_delay(seed, MS, 100 * MS))
        world.seeds = ("s0", "s1")

        def listen(_now: int, who: str, what: Any, seed: int = seed) -> None:
            heard[seed, who] += isinstance(what, Joined)

        world.listeners.append(listen)
        for number in range(12):
            address = f"s{number}" if number < 2 else f"p{number}"
            start = partial(world.start, address, address.encode())
            world.at(number * MS, start)
        world.run(15 * S)
        assert world.faults_of_views() == []
    assert max(heard.values()) > 1, "nobody lost an id"
