"""Runs of the baseline: what is measured, and that a run is a function of its seed."""

import msgspec
import pytest

from orderwire.discovery.sdp_settings import MODERN, PAPER, VENDORS
from orderwire.kernel import ms
from orderwire.sim.lan import LanSettings
from orderwire.sim.population import TopicSettings, uniform
from orderwire.sim.sdp_run import SdpScenario, run_sdp

S = ms(1_000)
ROOMY = LanSettings(host_queue_bytes=None, switch_queue_bytes=None)


def test_the_same_seed_is_the_same_run() -> None:
    scenario = SdpScenario(population=uniform(4, 280))
    first, second = run_sdp(scenario, 3), run_sdp(scenario, 3)
    assert first == second
    assert first != run_sdp(scenario, 4)


def test_without_loss_each_datum_goes_once_to_each_peer() -> None:
    result = run_sdp(SdpScenario(population=uniform(5, 20), lan=ROOMY), 1)
    assert result.pairs_missing == 0
    assert result.kinds["Endpoint"] == result.kinds["EndpointAck"] == 20 * 5 * 4
    assert result.max_s < 0.02
    assert [row.endpoints for row in result.rows] == [20] * 5


def test_a_full_queue_loses_data_and_each_repair_brings_a_queue_more() -> None:
    """3 · 600 data a sender at 765 a queue: one or two repairs, the first after one to two P."""
    result = run_sdp(SdpScenario(population=uniform(4, 600)), 1)
    assert result.pairs_missing == 0
    assert 1.0 < result.max_s < 3.1
    assert result.reception_ratio < 0.9


def test_latency_is_from_the_own_start_and_from_both_up() -> None:
    """Whoever starts last is the one that all others wait for."""
    scenario = SdpScenario(population=uniform(6, 10), lan=ROOMY, start_window_ns=2 * S)
    result = run_sdp(scenario, 1)
    assert result.pairs_missing == 0
    last = max(row.start_s for row in result.rows)
    for row in result.rows:
        assert row.from_start_s >= last - row.start_s
        assert row.from_both_up_s <= 0.5
    assert result.max_s > 1.0


def test_a_run_that_ends_early_says_what_is_missing() -> None:
    result = run_sdp(SdpScenario(population=uniform(4, 600), until_ns=ms(500)), 1)
    assert result.ended_s == 0.5
    assert 0 < result.pairs_missing <= 12
    assert result.pairs_missing == sum(row.pairs_missing for row in result.rows)


def test_a_sender_that_waits_loses_nothing_in_its_own_queue() -> None:
    """At 100 Mbit/s a receiver keeps up as well: no repair, only what a port would drop."""
    lan = LanSettings(
        host_queue_bytes=20_000, switch_queue_bytes=None, service_ns=20_000, receive_buffer=277
    )
    result = run_sdp(SdpScenario(population=uniform(4, 200), sdp=MODERN, lan=lan), 1)
    assert result.pairs_missing == 0
    assert result.max_s < 0.1
    assert result.kinds["Endpoint"] == 200 * 4 * 3


@pytest.mark.parametrize("name", VENDORS)
def test_named_settings_run(name: str) -> None:
    result = run_sdp(SdpScenario(population=uniform(4, 30), sdp=VENDORS[name]), 1)
    assert result.pairs_missing == 0


@pytest.mark.parametrize("per_datagram", [1, 8])
def test_every_endpoint_is_counted_however_many_share_a_datagram(per_datagram: int) -> None:
    sdp = msgspec.structs.replace(PAPER, endpoints_per_datagram=per_datagram)
    result = run_sdp(SdpScenario(population=uniform(4, 30), sdp=sdp, lan=ROOMY), 1)
    assert result.pairs_missing == 0
    assert result.kinds["Endpoint"] == -(-30 // per_datagram) * 4 * 3


def test_bloom_brings_what_matches_and_nothing_else() -> None:
    population = uniform(8, 40)
    some, everything = (
        run_sdp(
            SdpScenario(population=population, lan=ROOMY, topics=TopicSettings(topics=topics)), 1
        )
        for topics in (400, 1)
    )
    assert some.pairs_missing == everything.pairs_missing == 0
    assert everything.kinds["Endpoint"] == 40 * 8 * 7
    assert 0 < some.kinds["Endpoint"] < 0.1 * everything.kinds["Endpoint"]


def test_loss_is_repaired() -> None:
    lan = msgspec.structs.replace(ROOMY, loss_ratio=0.05)
    result = run_sdp(SdpScenario(population=uniform(6, 50), lan=lan), 1)
    assert result.pairs_missing == 0
    assert 1.0 < result.max_s < 8.0
