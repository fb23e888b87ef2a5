"""ST over a channel that tells its numbers: what nobody hears, what a loss costs."""

import pytest
from selective_total_mutants import CountsPutAgain

from orderwire.kernel import Destinations, ProcessId
from orderwire.ordering.total.catalog import algorithm
from orderwire.ordering.total.settings import Delivery, TotalSettings
from orderwire.ordering.total.st_csn import StCsn
from orderwire.sim.selective_total_run import SLOT_NS, Outcome, Plan, run
from orderwire.sim.serial_channel import ChannelSettings, Outage
from orderwire.sim.total_order_costs import Load, measure

ALL = Destinations(0b111)


def deaf_at_first(messages: tuple[tuple[int, ProcessId, Destinations], ...]) -> Outcome:
    """Run three members, none of whom hears what is put in the first slot."""
    outages = tuple(Outage(ProcessId(k), 0, SLOT_NS + 1) for k in range(3))
    plan = Plan(
        settings=TotalSettings(members=3),
        channel=ChannelSettings(slot_ns=SLOT_NS, outages=outages),
        messages=messages,
    )
    return run(plan, 1, StCsn)


@pytest.mark.paper("S003:sec.4.1")
def test_a_number_that_nobody_has_heard_is_nobodys_and_its_message_is_put_again() -> None:
    outcome = deaf_at_first(((0, ProcessId(0), ALL),))
    assert outcome.violations == ()
    assert (outcome.delivered, outcome.again, outcome.recoveries) == (3, 1, 0)


@pytest.mark.paper("S003:sec.4.1")
def test_what_nobody_has_heard_stands_before_the_next_message_of_its_source() -> None:
    outcome = deaf_at_first(
        (
            (0, ProcessId(0), ALL),
            (2 * SLOT_NS, ProcessId(1), ALL),
            (4 * SLOT_NS, ProcessId(0), ALL),
        )
    )
    assert outcome.violations == ()
    assert outcome.delivered == 9
    assert outcome.repeated == 1, "filled by its source, and not put again"
    assert outcome.again == 1


@pytest.mark.paper("S003:sec.4.1")
@pytest.mark.parametrize("seed", [3, 4, 5, 6])
def test_new_gaps_do_not_put_off_what_is_asked_for_again(seed: int) -> None:
    """Each new gap set the timer anew: an answer that failed kept all waiting for 800 slots."""
    load = Load(messages=300, gap_slots=4, loss=0.03, seed=seed)
    told, silent = (measure(algorithm(name), load) for name in ("st-csn", "tachikawa-st"))
    assert told.latency_slots < silent.latency_slots


@pytest.mark.paper("S003:sec.4.1")
@pytest.mark.parametrize("seed", [2, 7, 9])
def test_what_is_asked_and_answered_does_not_go_stale_where_the_channel_is_full(seed: int) -> None:
    """Asks and answers waited for the channel, came late, and were sent again: 317 slots."""
    load = Load(messages=300, gap_slots=4, loss=0.1, seed=seed)
    told, silent = (measure(algorithm(name), load) for name in ("st-csn", "tachikawa-st"))
    assert told.latency_slots < silent.latency_slots


@pytest.mark.paper("S003:sec.4.1")
@pytest.mark.parametrize("make", [StCsn, CountsPutAgain])
def test_what_is_put_again_tells_nothing_of_what_was_before_it(make: type[StCsn]) -> None:
    """E0 puts `a` again, behind `b`, with the numbers of before `b`; E1 misses `b`, told or not.

    Then E2's `c` and E1's own `d` come.  Taken as word of E0, `a` says that no gap holds anything
    for E1, which so gives `b` a place behind `c`.
    """
    everybody_misses_a = [Outage(ProcessId(k), 0, SLOT_NS + 1) for k in range(3)]
    e1_misses_b_twice = [
        Outage(ProcessId(1), slot * SLOT_NS, slot * SLOT_NS + 1) for slot in (12, 16)
    ]
    plan = Plan(
        settings=TotalSettings(
            members=3,
            delivery=Delivery.PREACK,
            heartbeat_ns=10 * SLOT_NS,
            heartbeat_max_ns=100 * SLOT_NS,
        ),
        channel=ChannelSettings(slot_ns=SLOT_NS, outages=(*everybody_misses_a, *e1_misses_b_twice)),
        messages=(
            (0, ProcessId(0), Destinations(0b100)),
            (10 * SLOT_NS + SLOT_NS // 2, ProcessId(0), Destinations(0b110)),
            (20 * SLOT_NS, ProcessId(2), Destinations(0b110)),
            (20 * SLOT_NS, ProcessId(1), Destinations(0b001)),
            (60 * SLOT_NS, ProcessId(0), Destinations(0b010)),
        ),
    )
    outcome = run(plan, 1, make)
    assert outcome.delivered == 7
    assert bool(outcome.violations) is (make is CountsPutAgain)


@pytest.mark.paper("S003:sec.4.1")
@pytest.mark.parametrize("limit", [1, 16])
def test_who_falls_behind_by_more_than_is_kept_holds_the_others_until_it_is_told(
    limit: int,
) -> None:
    """The others forgot what it had missed, and told it no more until the view changed."""
    few = Destinations(0b011)
    plan = Plan(
        settings=TotalSettings(members=3, future_max=limit),
        channel=ChannelSettings(
            slot_ns=SLOT_NS, outages=(Outage(ProcessId(2), 0, 1_000 * SLOT_NS),)
        ),
        messages=(
            *((k * 4 * SLOT_NS, ProcessId(k % 2), few) for k in range(60)),
            (400 * SLOT_NS, ProcessId(0), ALL),
        ),
    )
    outcome = run(plan, 1, StCsn)
    assert outcome.violations == ()
    assert outcome.delivered == 123


@pytest.mark.paper("S003:sec.4.1")
def test_numbers_spare_the_stop_and_what_it_takes() -> None:
    load = Load(messages=200, gap_slots=4, loss=0.01)
    told, silent = (measure(algorithm(name), load) for name in ("st-csn", "tachikawa-st"))
    assert told.recoveries == 0 < silent.recoveries
    assert told.mending < silent.mending / 3
    assert told.latency_slots < silent.latency_slots
