"""Laws of simulated runs, whatever the seed draws."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orderwire.ordering.pdu import Delivered, Sent
from orderwire.sim.clocks import BoundedClock
from orderwire.sim.run import Run, simulate
from orderwire.sim.scenario import Liveness
from orderwire.sim.scenarios import SCENARIOS
from orderwire.trace.events import EventKind
from orderwire.verify.causal import vector_clock
from orderwire.verify.history import rebuild

ALGORITHM = st.sampled_from(["unordered", "fifo", "jang-delta"])
SEED = st.integers(0, 1 << 32)


def steady(seed: int, algorithm: str) -> Run:
    return simulate(replace(SCENARIOS["swarm-steady"], algorithm=algorithm), seed)


@settings(max_examples=25)
@given(seed=SEED, algorithm=ALGORITHM)
def test_recorded_vector_clocks_are_the_causal_past(seed: int, algorithm: str) -> None:
    run = steady(seed, algorithm)
    history = rebuild(run.events)
    for event in run.events:
        if event.kind is EventKind.SEND:
            message = history.by_key[event.source, event.number]
            assert event.vector_clock == vector_clock(history, message)


@settings(max_examples=25)
@given(seed=SEED, algorithm=ALGORITHM)
def test_trace_is_dense_and_tells_what_was_indicated(seed: int, algorithm: str) -> None:
    run = simulate(replace(SCENARIOS["swarm"], algorithm=algorithm), seed)
    positions: dict[int, int] = {}
    clocks: dict[int, int] = {}
    for event in run.events:
        assert event.position == positions.get(event.process, -1) + 1
        assert event.clock_ns >= clocks.get(event.process, 0)
        positions[event.process] = event.position
        clocks[event.process] = event.clock_ns
    kinds = [event.kind for event in run.events]
    told = [type(indication) for _, _, indication in run.indications]
    assert kinds.count(EventKind.DELIVER) == told.count(Delivered)
    assert kinds.count(EventKind.SEND) == told.count(Sent)


@settings(max_examples=25)
@given(seed=SEED)
def test_order_costs_waiting_and_nothing_else(seed: int) -> None:
    """Open loop: every algorithm delivers the same messages at the same places; order may wait."""
    scenario = SCENARIOS["s000-small"]
    open_loop = replace(
        scenario,
        workload=replace(scenario.workload, answer_ratio=0.0),
        liveness=Liveness(rounds=0),
    )
    delivered = {}
    for algorithm in ("unordered", "jang-delta"):
        run = simulate(replace(open_loop, algorithm=algorithm), seed)
        delivered[algorithm] = {
            (event.process, event.source, event.number): event.time_ns
            for event in run.events
            if event.kind is EventKind.DELIVER
        }
    assert delivered["unordered"].keys() == delivered["jang-delta"].keys()
    for key, at_ns in delivered["unordered"].items():
        assert delivered["jang-delta"][key] >= at_ns


@given(
    spread_ns=st.integers(1, 10**7),
    rate_ppm=st.integers(-100_000, 100_000),
    phase_ns=st.integers(0, 10**8),
    local_ns=st.integers(10**8, 10**12),
)
def test_a_clock_is_inverted_to_the_nanosecond(
    spread_ns: int, rate_ppm: int, phase_ns: int, local_ns: int
) -> None:
    clock = BoundedClock(spread_ns, rate_ppm, phase_ns)
    true_ns = clock.when(local_ns)
    assert clock.read(true_ns - 1) < local_ns <= clock.read(true_ns)
    assert 0 <= clock.read(true_ns) - true_ns <= spread_ns
