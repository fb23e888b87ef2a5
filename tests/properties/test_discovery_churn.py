"""P2: under churn, loss, partitions and server loss every view ends exact. [FDP/1 4.2, 4.3]

16 participants start, 12 join, 5 crash, 3 crash silently, 4 restart at their address, 4 leave and
25 change within 20 s; 2 % of the messages vanish; the server is down for a while in 60 % of the
runs and half of the participants are cut off from the others for up to 12 s in 50 %.
Then it is quiet, and every view must come to equal the truth.
A run is replayed with `churn(seed, SETTINGS)`.
"""

from statistics import median

import msgspec
import pytest
from discovery_runs import off

from orderwire.discovery.settings import LITERAL
from orderwire.sim.discovery_churn import ChurnResult, ChurnSettings, churn

SERVER = ChurnSettings()
GOSSIP = ChurnSettings(gossip_heartbeats=True)
SEEDS = ChurnSettings(seeds=3, id_space=1 << 64)
DENSE_SEEDS = ChurnSettings(seeds=3, id_space=128)
MORTAL_SEEDS = ChurnSettings(seeds=3, mortal_seeds=2, id_space=1 << 64)
"""One of them stays: else nobody would know those who start when all are away. [P2]"""
MORTAL_GOSSIP = msgspec.structs.replace(MORTAL_SEEDS, gossip_heartbeats=True)
KINDS = {
    "server": SERVER,
    "gossip": GOSSIP,
    "seeds": SEEDS,
    "dense-seeds": DENSE_SEEDS,
    "mortal-seeds": MORTAL_SEEDS,
    "mortal-seeds-gossip": MORTAL_GOSSIP,
}
ALL, PARTS = 500, 10


def runs(settings: ChurnSettings, seeds: range) -> dict[int, ChurnResult]:
    return {seed: churn(seed, settings) for seed in seeds}


def violations(results: dict[int, ChurnResult]) -> dict[int, tuple[str, ...]]:
    """What was wrong in the runs that never became exact, by seed."""
    return {seed: each.wrong[:3] for seed, each in results.items() if each.wrong}


def times(results: dict[int, ChurnResult]) -> list[float]:
    return sorted(each.exact_after_s for each in results.values() if each.exact_after_s is not None)


def without(*names: str) -> ChurnSettings:
    return msgspec.structs.replace(SERVER, mechanisms=off(*names))


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("server", 6),
        ("gossip", 2),
        ("seeds", 2),
        ("dense-seeds", 2),
        ("mortal-seeds", 2),
        ("mortal-seeds-gossip", 2),
    ],
)
def test_views_end_exact(kind: str, count: int) -> None:
    assert violations(runs(KINDS[kind], range(count))) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_five_hundred_runs_end_exact(part: int) -> None:
    """The time it takes is that of the failure detection, 6 s, and what anti-entropy needs."""
    results = runs(SERVER, range(part * ALL // PARTS, (part + 1) * ALL // PARTS))
    assert violations(results) == {}
    found = times(results)
    assert median(found) <= 8.0
    assert found[int(0.95 * len(found))] <= 12.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"server"}))
def test_sixty_runs_of_each_other_kind_end_exact(kind: str) -> None:
    results = runs(KINDS[kind], range(1_000, 1_060))
    assert violations(results) == {}
    assert median(times(results)) <= (13.0 if "gossip" in kind else 8.0)


@pytest.mark.slow
def test_the_printed_protocol_never_ends_exact() -> None:
    """It misses participants, keeps dead ones and has stale MAPs, for ever."""
    literal = msgspec.structs.replace(SERVER, mechanisms=LITERAL)
    results = runs(literal, range(8))
    assert sorted(violations(results)) == list(range(8))
    wrong = " ".join(each for result in results.values() for each in result.wrong)
    for kind in ("misses", "which is not there", "it is"):
        assert kind in wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "seeds", "failing"),
    [
        (("detect",), range(3), 3),
        (("ae", "pull"), range(4), 3),
        (("ae", "pull", "server_sync"), range(3), 3),
        (("versions",), range(8), 1),
        (("server_sync", "probe"), range(12), 1),
    ],
    ids=lambda each: "+".join(each) if isinstance(each, tuple) else None,
)
def test_without_a_mechanism_runs_end_wrong(
    missing: tuple[str, ...], seeds: range, failing: int
) -> None:
    assert len(violations(runs(without(*missing), seeds))) >= failing


@pytest.mark.slow
@pytest.mark.parametrize(
    "missing", ["ae", "pull", "probe", "members", "early", "arq", "reroute", "ages", "server_sync"]
)
def test_what_the_others_repair_makes_runs_slower_at_most(missing: str) -> None:
    """Each of these has a case of its own where it matters (`test_discovery_mechanisms`)."""
    assert violations(runs(without(missing), range(4))) == {}
