"""What each of FDP/1's mechanisms is for: one case where it matters, with it and without it."""

from collections.abc import Iterator

import pytest
from discovery_runs import (
    MS,
    S,
    by_id,
    domain,
    drawn_delay,
    exact_within,
    fixed_delay,
    off,
    sent,
    start_all,
)

from orderwire.discovery.messages import Heartbeat, Update
from orderwire.discovery.settings import (
    FEW_MESSAGES,
    BootstrapSettings,
    DiscoverySettings,
    Mechanisms,
)
from orderwire.sim.discovery_world import DiscoveryWorld

ALL = Mechanisms()
LAN = (MS // 5, 2 * MS)


def settled(
    count: int, mechanisms: Mechanisms, *, seed: int = 0, **settings: object
) -> DiscoveryWorld:
    """A domain whose participants have known one another for a while."""
    world = domain(
        seed=seed, id_space=64, delay=drawn_delay(seed, *LAN), mechanisms=mechanisms, **settings
    )
    start_all(world, count)
    world.run(5 * S)
    assert world.faults_of_views() == []
    return world


def holders(world: DiscoveryWorld, identity: int, inc: int) -> list[str]:
    """Who lists this incarnation."""
    return [
        address
        for address, node in world.nodes().items()
        if (entry := node.roster.entries.get(identity)) is not None
        and entry.is_live
        and entry.inc == inc
    ]


def listed_for_s(mechanisms: Mechanisms, seed: int) -> float:
    """How long a dead participant is listed anywhere, while newcomers arrive every 2 s."""
    world = settled(12, mechanisms, seed=seed, bootstrap={"lease_ns": 100 * S})
    victim = world.nodes()["p3"]
    assert victim.id is not None
    identity, inc = victim.id, victim.roster.inc
    world.crash("p3", silent=True)
    crash_ns = world.world.now_ns
    for number in range(10):
        world.at(crash_ns + number * 2 * S, lambda number=number: world.start(f"n{number}", b""))  # type: ignore[misc]
    last_ns = crash_ns
    while world.world.now_ns < crash_ns + 20 * S:
        world.run(world.world.now_ns + 100 * MS)
        if holders(world, identity, inc):
            last_ns = world.world.now_ns
    return (last_ns - crash_ns) / S


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ages_keep_newcomers_from_reviving_the_dead(seed: int) -> None:
    """[D11] With ages 6 to 7 s, which is the failure detection; without, as long as some come."""
    assert 5.9 <= listed_for_s(ALL, seed) <= 7.6
    assert listed_for_s(off("ages"), seed) >= 19


def update_latency_ms(mechanisms: Mechanisms, seed: int) -> float:
    """How long a change takes to reach all when the relay with the widest range dies meanwhile."""
    world = domain(
        seed=seed, id_space=64, delay=fixed_delay(MS), mechanisms=mechanisms, both_ways_bytes_max=0
    )
    start_all(world, 32)
    world.run(5 * S)
    begin_ns = world.world.now_ns
    world.change("p0", b"new")
    copies = [each for each in world.posted if each.time_ns == begin_ns and each.source == "p0"]
    assert isinstance(copies[0].message, Update)
    world.crash(copies[0].to)
    me = world.nodes()["p0"]
    while world.world.now_ns < begin_ns + 10 * S:
        versions = {
            address: entry.map.ver
            for address, node in world.nodes().items()
            if (entry := node.live().get(me.id or 0)) is not None and entry.map is not None
        }
        if list(versions.values()).count(2) == 30:
            break
        world.run(world.world.now_ns + MS)
    return (world.world.now_ns - begin_ns) / MS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_rerouting_serves_the_range_of_a_relay_that_died(seed: int) -> None:
    """[D4, D5] Half of the participants were behind it: 10 ms instead of an anti-entropy round."""
    assert update_latency_ms(ALL, seed) <= 10
    assert update_latency_ms(off("reroute"), seed) >= 100


BARE = ("ae", "pull", "server_sync", "heartbeats", "detect", "probe", "reroute")


def incomplete_boots(*missing: str) -> Iterator[int]:
    """Which single lost messages of a boot leave it incomplete, with nothing else to repair it."""

    def boot(lost: int | None) -> DiscoveryWorld:
        dropped = () if lost is None else (lost,)
        world = domain(
            seed=1,
            id_space=16,
            delay=drawn_delay(1, *LAN),
            mechanisms=off(*missing),
            dropped=dropped,
        )
        for at in range(6):
            world.at(at * 50 * MS, lambda at=at: world.start(f"p{at}", b"%d" % at))  # type: ignore[misc]
        world.run(20 * S)
        return world

    for lost in range(boot(None).sent):
        if boot(lost).faults_of_views():
            yield lost


@pytest.mark.slow
def test_sending_again_repairs_the_loss_of_any_message_of_a_boot() -> None:
    assert list(incomplete_boots(*BARE)) == []
    assert len(list(incomplete_boots(*BARE, "arq"))) > 10


def test_pulling_fetches_the_change_that_a_heartbeat_tells_of() -> None:
    """[R12] Every copy of an UPDATE is lost: the next heartbeat shows its version.

    It is asked for where the heartbeat came from, and a second later of its owner.
    """

    def exact_after(*missing: str) -> int | None:
        world = settled(6, off("ae", "server_sync", *missing))
        world.partition({"p2"})
        world.change("p2", b"new")
        world.run(world.world.now_ns + 10 * MS)
        world.heal()
        return exact_within(world, 4 * S, 50 * MS)

    found = exact_after()
    assert found is not None
    assert found <= 2_600 * MS
    assert exact_after("pull") is None


def test_anti_entropy_repairs_what_no_broadcast_repeats() -> None:
    """[R15] Without it, and without what a heartbeat makes one pull, a lost change stays lost."""

    def exact_after(*missing: str) -> int | None:
        world = settled(6, off("pull", "server_sync", *missing))
        world.partition({"p2"})
        world.change("p2", b"new")
        world.run(world.world.now_ns + 10 * MS)
        world.heal()
        return exact_within(world, 6 * S, 50 * MS)

    assert exact_after() is not None
    assert exact_after("ae") is None


def test_failure_detection_ends_the_silent() -> None:
    """[D6] Within 1.25 times the fail time; without it, never."""

    def exact_after(*missing: str) -> int | None:
        world = settled(6, off(*missing))
        world.crash("p2", silent=True)
        return exact_within(world, 15 * S, 100 * MS)

    found = exact_after()
    assert found is not None
    assert 4.5 * S <= found <= 7.6 * S
    assert exact_after("detect") is None


def test_heartbeats_keep_the_living_listed() -> None:
    world = settled(6, off("heartbeats"))
    world.run(world.world.now_ns + 10 * S)
    assert world.faults_of_views() != []


@pytest.mark.parametrize(
    ("missing", "whole"),
    [((), True), (("probe",), True), (("server_sync",), True), (("probe", "server_sync"), False)],
)
def test_a_long_partition_heals_by_probes_or_by_the_servers_list(
    missing: tuple[str, ...], whole: bool
) -> None:
    """[R15, R16] Longer than the fail time: both sides have ended all of the other."""
    world = settled(8, off(*missing))
    world.partition({"p0", "p1", "p2", "p3"})
    world.run(world.world.now_ns + 10 * S)
    assert world.faults_of_views() != []
    world.heal()
    found = exact_within(world, 30 * S, 250 * MS)
    assert (found is not None) is whole


@pytest.mark.parametrize("missing", [(), ("server_sync",)])
def test_the_servers_list_finds_a_newcomer_that_was_told_of_nobody(
    missing: tuple[str, ...],
) -> None:
    """[R16] A server that lost its table and does not wait gives an empty list: the ring splits."""
    world = settled(6, off(*missing))
    world.server_down()
    world.server_up(lost=True, recovery_ns=0)
    world.start("new", b"new", wish=63)
    found = exact_within(world, 20 * S, 250 * MS)
    assert (found is None) is bool(missing)


def test_versions_keep_an_old_update_from_replacing_a_newer_map() -> None:
    """[D7] The first change is slow on its way to one participant, the second is not."""

    def last_map(*missing: str) -> bytes:
        world = domain(
            id_space=16,
            mechanisms=off("ae", "pull", "heartbeats", "detect", "server_sync", *missing),
        )
        start_all(world, 2)
        world.run(S)
        world.change("p0", b"first")
        world.change("p0", b"second")
        copies = [each.message for each in world.posted if isinstance(each.message, Update)]
        world.run(2 * S)
        core = world.processes["p1"].core
        core.receive("p0", copies[0], world.world.now_ns)
        (entry,) = world.nodes()["p1"].live().values()
        assert entry.map is not None
        return world.nodes()["p1"].own.form.shortened(entry.map).full

    assert last_map() == b"second"
    assert last_map("versions") == b"first"


def test_a_process_that_restarted_says_that_it_is_another() -> None:
    """[D8] Its address had another id: it relays nothing for it, and is asked no more for it."""
    world = settled(8, ALL)
    old = by_id(world)
    world.crash("p3")
    world.start("p3", b"again", wish=62)
    begin_ns = world.world.now_ns
    found = exact_within(world, 5 * S, 10 * MS)
    assert found is not None
    assert found <= S
    new_id = world.nodes()["p3"].id
    old_id = next(each for each, address in old.items() if address == "p3")
    assert new_id != old_id
    world.run(begin_ns + 10 * S)
    late = sent(world, after_ns=begin_ns + 5 * S)
    assert late["NOT_ME"] == 0
    assert not any(
        each.to == "p3" and getattr(each.message, "to", None) == old_id
        for each in world.posted
        if each.time_ns > begin_ns + S and isinstance(each.message, Heartbeat | Update)
    )


@pytest.mark.parametrize("gossip", [False, True])
@pytest.mark.parametrize("die_ms", [140, 260, 380, 620])
def test_a_seed_that_dies_soon_leaves_a_domain_whose_members_talk(
    *, gossip: bool, die_ms: int
) -> None:
    """[spec 5] Six joined through it; the other seed never comes up. They wait for neither."""
    world = DiscoveryWorld(
        FEW_MESSAGES if gossip else DiscoverySettings(),
        BootstrapSettings(id_space=1 << 64),
        die_ms,
        fixed_delay(20 * MS),
    )
    world.seeds = ("s0", "s1")
    world.start("s0", b"seed")
    for at in range(6):
        world.at(S, lambda at=at: world.start(f"p{at}", b"%d" % at))  # type: ignore[misc]
    world.at(S + die_ms * MS, lambda: world.crash("s0"))
    world.run(20 * S)
    assert world.faults_of_views() == []
