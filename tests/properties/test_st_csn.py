"""ST over a channel that tells its numbers: what nobody hears, what a loss costs."""

import pytest

from orderwire.kernel import Destinations, ProcessId
from orderwire.ordering.total.catalog import algorithm
from orderwire.ordering.total.settings import TotalSettings
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
def test_numbers_spare_the_stop_and_what_it_takes() -> None:
    load = Load(messages=200, gap_slots=4, loss=0.01)
    told, silent = (measure(algorithm(name), load) for name in ("st-csn", "tachikawa-st"))
    assert told.recoveries == 0 < silent.recoveries
    assert told.mending < silent.mending / 3
    assert told.latency_slots < silent.latency_slots
