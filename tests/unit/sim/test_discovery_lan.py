"""FDP, BiFDP and the mesh on the simulated LAN: exact, repeatable, at the expected times."""

import pytest
from msgspec.structs import replace

from orderwire.discovery.messages import CONTACT_BYTES, HEAD_BYTES, ROW_BYTES
from orderwire.kernel import ms
from orderwire.sim.discovery_lan import (
    DiscoveryResult,
    DiscoveryScenario,
    Ids,
    Variant,
    run_discovery,
)
from orderwire.sim.discovery_upkeep import UpkeepPlan, run_upkeep
from orderwire.sim.lan import LanSettings
from orderwire.sim.population import case, mixed, uniform

EXACT = [each for each in Variant if not each.literal]


def run(name: str, variant: Variant, seed: int = 1, window_ms: int = 550) -> DiscoveryResult:
    scenario = DiscoveryScenario(
        population=case(name), variant=variant, start_window_ns=ms(window_ms)
    )
    return run_discovery(scenario, seed)


@pytest.mark.parametrize("variant", EXACT)
@pytest.mark.parametrize("streams", ["fluid", "segments"])
def test_everybody_learns_everything(variant: Variant, streams: str) -> None:
    lan = LanSettings(host_queue_bytes=None, switch_queue_bytes=None, streams=streams)
    scenario = DiscoveryScenario(population=case("1-1"), variant=variant, lan=lan)
    result = run_discovery(scenario, 3)
    assert result.pairs_missing == 0
    assert result == run_discovery(scenario, 3)
    assert 0 < result.max_both_up_s < result.max_s < 0.6
    assert sum(result.kinds.values()) - result.kinds.get("Heartbeat", 0) == result.sent


def test_sizes_are_those_of_the_formula() -> None:
    """[S002:eq.1] Two participants: a JOIN with one MAP, a JOIN_ACK with the other."""
    scenario = DiscoveryScenario(population=uniform(2, 79), ids=Ids.ASCENDING)
    result = run_discovery(scenario, 1)
    map_bytes = 200 + 80 * 79
    assert result.kind_bytes["Join"] == HEAD_BYTES + ROW_BYTES + map_bytes
    assert result.kind_bytes["JoinAck"] == HEAD_BYTES + ROW_BYTES + map_bytes
    assert result.kind_bytes["IdReply"] == 2 * HEAD_BYTES + CONTACT_BYTES
    compact = run_discovery(replace(scenario, endpoint_bytes=9), 1)
    assert result.kind_bytes["Join"] - compact.kind_bytes["Join"] == 71 * 79


@pytest.mark.paper("S002:fig.17")
def test_both_ways_halves_the_largest_answer_and_takes_a_hop_away() -> None:
    def boot(variant: Variant) -> DiscoveryResult:
        apart = DiscoveryScenario(
            population=uniform(16, 10), variant=variant, start_window_ns=ms(3_000)
        )
        return run_discovery(apart, 5)

    once, both = boot(Variant.FDP), boot(Variant.BIFDP)
    assert (max(once.hops), max(both.hops)) == (4, 3)
    assert sum(once.hops.values()) == sum(both.hops.values()) == 16 * 15 // 2
    assert both.join_ack_maps_max <= once.join_ack_maps_max // 2 + 1


def test_the_mesh_connects_every_pair_and_the_server() -> None:
    assert run("1-2", Variant.MESH).connections == 16 * 15 // 2 + 16
    assert run("1-2", Variant.FDP).connections < 16 * 15 // 2


def test_the_literal_protocol_misses_pairs_when_joins_overlap() -> None:
    assert run("1-2", Variant.FDP_LITERAL, window_ms=20_000).pairs_missing == 0
    assert run("1-2", Variant.FDP_LITERAL, window_ms=5).pairs_missing > 10


def test_both_ways_as_printed_misses_fewer_pairs() -> None:
    once, both = (
        run("1-3", variant, window_ms=100).pairs_missing
        for variant in (Variant.FDP_LITERAL, Variant.BIFDP_LITERAL)
    )
    assert 0 < both < once / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant", "expected_s"),
    [
        ("1-4", Variant.FDP_LITERAL, 0.61),
        ("1-4", Variant.FDP, 0.61),
        ("1-4", Variant.BIFDP, 0.64),
        ("2-1", Variant.FDP, 0.61),
        ("2-3", Variant.FDP, 0.61),
        ("2-5", Variant.FDP, 0.60),
        ("2-5", Variant.BIFDP, 0.60),
    ],
)
def test_times_are_those_of_the_specification(
    name: str, variant: Variant, expected_s: float
) -> None:
    result = run(name, variant)
    assert result.max_s == pytest.approx(expected_s, rel=0.1)
    assert result.pairs_missing == 0 or variant.literal


def test_upkeep_is_measured_piece_by_piece() -> None:
    scenario = DiscoveryScenario(population=mixed(8), spare=1)
    found = run_upkeep(scenario, UpkeepPlan(updates=2), 1)
    assert found.pairs_missing == 0
    assert found.update_messages == 7
    assert 0 < found.update_mean_s <= found.update_max_s < 0.01
    assert 5 < found.idle_messages_per_s < 10
    assert found.join_messages >= 2 + 2 * 8
    assert found.join_s < 0.2
    assert found.leave_messages == 2 * 8 + 1
    assert 4.5 < found.crash_first_s <= found.crash_mean_s <= found.crash_last_s < 8


def test_updates_go_to_the_widest_range_first_unless_told_otherwise() -> None:
    def update_s(near_first: bool) -> float:
        scenario = DiscoveryScenario(population=uniform(32, 1), near_first=near_first)
        return run_upkeep(scenario, UpkeepPlan(idle_ns=0), 1).update_max_s

    assert update_s(True) > 1.1 * update_s(False)
