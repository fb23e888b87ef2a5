"""S002's baseline: the published times of SDP, and what they hang on.

The figures are those of the specification's own runs of the same model (its section 6.4 and 6.5),
which are themselves within 16 % of the printed ones.  One run hangs on when in its period each
participant repairs, so small cases are means over seeds.
"""

from statistics import fmean
from typing import Any

import msgspec
import pytest

from orderwire.discovery.sdp_settings import MODERN, PAPER, SdpSettings
from orderwire.kernel import ms
from orderwire.sim.lan import LanSettings
from orderwire.sim.population import TopicSettings, case, uniform
from orderwire.sim.sdp_run import SdpResult, SdpScenario, run_sdp

S = ms(1_000)


def changed(settings: SdpSettings = PAPER, **changes: Any) -> SdpSettings:
    return msgspec.structs.replace(settings, **changes)


def run(name: str, seed: int = 1, **options: Any) -> SdpResult:
    result = run_sdp(SdpScenario(population=case(name), **options), seed)
    assert result.pairs_missing == 0
    return result


TABLE = [
    # case, seeds, max, mean of Level 2, reception ratio, messages sent
    pytest.param("1-1", 4, 4.3, 4.3, 0.715, 24e3),
    pytest.param("1-2", 6, 10.4, 10.3, 0.497, 147e3, marks=pytest.mark.slow),
    pytest.param("1-3", 2, 26.0, 23.8, 0.249, 1.22e6, marks=pytest.mark.slow),
    pytest.param("1-4", 1, 50.8, 50.0, 0.131, 9.65e6, marks=pytest.mark.slow),
    pytest.param("2-1", 1, 49.7, 48.7, 0.091, 13.9e6, marks=pytest.mark.slow),
    pytest.param("2-2", 1, 49.7, 48.1, 0.113, 11.2e6, marks=pytest.mark.slow),
    pytest.param("2-3", 1, 47.8, 46.9, 0.144, 8.8e6, marks=pytest.mark.slow),
    pytest.param("2-4", 1, 45.8, 44.8, 0.187, 6.8e6, marks=pytest.mark.slow),
    pytest.param("2-5", 1, 38.1, 37.2, 0.250, 5.0e6, marks=pytest.mark.slow),
]
LEVEL_1 = {
    "1-2": 1.4,
    "1-3": 2.5,
    "1-4": 6.4,
    "2-1": 1.5,
    "2-2": 4.0,
    "2-3": 6.5,
    "2-4": 9.1,
    "2-5": 11.2,
}
"""Mean over the participants of Level 1 of their longest latencies.  Not in Case 1-1: there one
of seven lost something in the specification's run (0.3 s), and none does in most of ours."""


@pytest.mark.paper("S002:tab.3")
@pytest.mark.paper("S002:tab.4")
@pytest.mark.parametrize(("name", "seeds", "longest_s", "level_2_s", "ratio", "sent"), TABLE)
def test_sdp_takes_as_long_as_published(
    name: str, seeds: int, longest_s: float, level_2_s: float, ratio: float, sent: float
) -> None:
    """A queue of 150,000 bytes, P = 1 s and packets of 196 bytes: each figure within 10 %.

    Level 1 is within 20 %: it is done after a few periods, and where in its period each of them
    repairs is drawn.
    """
    results = [run(name, seed) for seed in range(1, seeds + 1)]
    assert fmean(r.max_s for r in results) == pytest.approx(longest_s, rel=0.1)
    assert fmean(r.level_mean_s(2) for r in results) == pytest.approx(level_2_s, rel=0.1)
    assert fmean(r.reception_ratio for r in results) == pytest.approx(ratio, rel=0.1)
    assert fmean(r.sent for r in results) == pytest.approx(sent, rel=0.1)
    if name in LEVEL_1:
        level_1_s = fmean(r.level_mean_s(1) for r in results)
        assert level_1_s == pytest.approx(LEVEL_1[name], rel=0.2)


@pytest.mark.paper("S002:tab.2")
@pytest.mark.paper("S002:dec.2")
def test_150_megabytes_of_queue_would_lose_nothing() -> None:
    """[S002:tab.2] With the queue that Table 2 prints SDP is done at once, so it is not meant."""
    lan = LanSettings(host_queue_bytes=150_000_000, switch_queue_bytes=150_000_000)
    result = run("1-1", lan=lan)
    assert result.reception_ratio == 1.0
    assert result.max_s < 0.15


@pytest.mark.paper("S002:sec.2")
def test_latency_is_proportional_to_the_repair_period() -> None:
    """Connext's 3 s HEARTBEATs make its start slow: the same run, three times as long."""
    base = run("1-1", 2)
    for factor in (0.5, 3):
        result = run("1-1", 2, sdp=changed(repair_ns=int(factor * S)))
        assert result.max_s == pytest.approx(factor * base.max_s, rel=0.05)


@pytest.mark.paper("S002:tab.2")
def test_half_the_queue_takes_twice_as_long() -> None:
    lan = LanSettings(host_queue_bytes=75_000, switch_queue_bytes=75_000)
    smaller = run("1-1", lan=lan).max_s
    base = run("1-1").max_s
    assert 1.5 * base < smaller < 2.5 * base


SENSITIVITY = [
    ("P = 0.5 s", 13.0, {"sdp": changed(repair_ns=ms(500))}),
    ("P = 3 s", 77.9, {"sdp": changed(repair_ns=ms(3_000))}),
    (
        "Q = 75 kB",
        49.0,
        {"lan": LanSettings(host_queue_bytes=75_000, switch_queue_bytes=75_000)},
    ),
    (
        "Q = 300 kB",
        13.0,
        {"lan": LanSettings(host_queue_bytes=300_000, switch_queue_bytes=300_000)},
    ),
    ("payload 260", 41.0, {"sdp": changed(endpoint_bytes=260)}),
    ("no ACK a message", 25.0, {"sdp": changed(acknowledge_each=False)}),
    ("8 endpoints a datagram", 18.0, {"sdp": changed(endpoints_per_datagram=8)}),
    ("host queue not limiting", 2.0, {"lan": LanSettings(host_queue_bytes=None)}),
    ("starts spread over 2 s", 20.7, {"start_window_ns": 2 * S}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected_s", "options"), [row[1:] for row in SENSITIVITY], ids=[row[0] for row in SENSITIVITY]
)
def test_what_the_tens_of_seconds_hang_on(expected_s: float, options: dict[str, Any]) -> None:
    """Case 1-3: linear in P, S and 1/Q.  The fewer periods, the more the draw of one counts."""
    seeds = 3 if expected_s < 15 else 1
    longest_s = fmean(run("1-3", seed, **options).max_s for seed in range(1, seeds + 1))
    assert longest_s == pytest.approx(expected_s, rel=0.15)


@pytest.mark.paper("S002:dec.5")
@pytest.mark.slow
def test_nacks_of_256_numbers_take_about_half_as_long() -> None:
    """The specification has 13.0 s; ours hangs on whether the HEARTBEAT behind the data finds room.

    As large as data it is lost with it, and we are within 20 %; one of RTPS's size fits into gaps
    that data does not fit into, so that every peer is asked for more at once.
    """
    windows = changed(nack_numbers_max=256, follow_up=True)
    longest_s = fmean(run("1-3", seed, sdp=windows).max_s for seed in (1, 2, 3))
    assert longest_s == pytest.approx(13.0, rel=0.2)
    assert run("1-3", sdp=changed(windows, heartbeat_bytes=68)).max_s < 0.8 * longest_s


@pytest.mark.paper("S002:dec.3")
@pytest.mark.slow
def test_lock_step_takes_longer_than_expected() -> None:
    """All at the same nanosecond: 16 participants need 12.4 to 13.3 s, where 10.4 are expected."""
    in_step = changed(announcement_jitter_ns=0)
    assert fmean(run("1-2", seed, sdp=in_step).max_s for seed in (1, 2, 3)) > 1.15 * 10.4


@pytest.mark.slow
@pytest.mark.parametrize("bits_per_s", [10_000_000, 1_000_000_000, 10_000_000_000])
def test_bandwidth_hardly_matters(bits_per_s: int) -> None:
    """Each round brings one queue, however fast it is sent: 46.3 to 48.3 s in Case 1-4."""
    result = run("1-4", lan=LanSettings(bits_per_s=bits_per_s))
    assert result.max_s == pytest.approx(47.5, rel=0.1)


MODERN_LAN = LanSettings(bits_per_s=1_000_000_000, service_ns=20_000, receive_buffer=277)


@pytest.mark.paper("S002:dec.6")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("repair_s", "service_us", "buffer", "limits_s", "expected_s"),
    [
        (1, 20, 277, (2.0, 4.0), 3.3),
        (3, 20, 277, (6.0, 12.0), 7.2),
        (1, 100, 277, (2.5, 6.0), 9.9),
        (1, 100, 2_770, (1.5, 3.0), 5.9),
    ],
)
def test_a_modern_sdp_needs_a_few_repair_periods(
    repair_s: int, service_us: int, buffer: int, limits_s: tuple[float, float], expected_s: float
) -> None:
    """1 Gbit/s, a sender that waits, 20 µs and 277 datagrams a receiver: a few P, 63 %.

    The limits are ours: with slower receivers the specification's run, of whose rules these four
    times are all we know, takes two to three times as long.
    """
    lan = msgspec.structs.replace(MODERN_LAN, service_ns=service_us * 1_000, receive_buffer=buffer)
    result = run("1-4", sdp=changed(MODERN, repair_ns=repair_s * S), lan=lan)
    assert limits_s[0] < result.max_s < limits_s[1]
    assert 1 / 3 < result.max_s / expected_s < 4 / 3
    if service_us == 20:
        assert result.reception_ratio == pytest.approx(0.63, rel=0.1)


@pytest.mark.slow
def test_a_modern_sdp_at_100_mbit_is_done_in_a_second() -> None:
    """Its receivers keep up with the links."""
    lan = msgspec.structs.replace(MODERN_LAN, bits_per_s=100_000_000, switch_queue_bytes=None)
    assert run("1-4", sdp=MODERN, lan=lan).max_s == pytest.approx(1.0, rel=0.25)


@pytest.mark.paper("S002:dec.7")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("topics", "exponent", "expected_s"),
    [(2_000, 0.0, 2.8), (2_000, 0.8, 10.8), (200, 0.0, 13.8), (1, 0.0, 50.6)],
)
def test_bloom_takes_as_long_as_what_matches(
    topics: int, exponent: float, expected_s: float
) -> None:
    """Case 1-4 in the paper's network: 3.4, 18.7, 25 and 100 % of all endpoints match.

    Within 20 %: its rules are known from a summary only, and in our drawing participants with
    many endpoints want more than those with few.
    """
    settings = TopicSettings(topics=topics, zipf_exponent=exponent)
    result = run("1-4", topics=settings)
    assert result.max_s == pytest.approx(expected_s, abs=max(1.0, 0.2 * expected_s))


@pytest.mark.slow
def test_jittered_answers_are_few_however_many_start_at_once() -> None:
    """300 that start at once announce themselves four times each, not 300² times."""
    sdp = changed(announcements=1)
    lan = LanSettings(host_queue_bytes=None, switch_queue_bytes=None)
    result = run_sdp(SdpScenario(population=uniform(300, 1), sdp=sdp, lan=lan), 1)
    assert result.pairs_missing == 0
    assert result.kinds["Announcement"] <= 4 * 300
    at_once = run_sdp(
        SdpScenario(
            population=uniform(40, 1),
            sdp=changed(sdp, reply="at once"),
            lan=lan,
        ),
        1,
    )
    assert at_once.kinds["Announcement"] == 40 + 40 * 39
