"""What total order costs, beside the specification's model: one PDU a slot, half a slot of lag.

Where ours differ: ST sends 1 + d PDUs for a lone message where the specification's prototype, which
polls once more, sent 7.5; a source that is a destination itself answers itself without a PDU, half
of the time at d = n / 2, so that two phases cost 6.5 and not 7; our Totem holds nothing back.
"""

import pytest

from orderwire.ordering.total.catalog import algorithm
from orderwire.ordering.total.settings import Delivery
from orderwire.sim.total_order_costs import Load, Row, measure, table

LIGHT = Load(messages=40, gap_slots=200, ack_slots=2)
BUSY = Load(messages=60, gap_slots=4, ack_slots=10)


def row(name: str, load: Load) -> Row:
    return measure(algorithm(name), load)


@pytest.mark.parametrize(
    ("name", "transmissions", "latency"),
    [
        ("tachikawa-st", 7.5, 9.8),
        ("sequencer-pb", 1.9, 2.8),
        ("sequencer-bb", 2.0, 3.0),
        ("skeen", 7.0, 8.5),
        ("xamp", 7.0, 8.5),
    ],
)
def test_a_lone_message_costs_what_is_specified(
    name: str, transmissions: float, latency: float
) -> None:
    found = row(name, LIGHT)
    assert found.transmissions == pytest.approx(transmissions, rel=0.25)
    assert found.latency_slots == pytest.approx(latency, rel=0.25)


def test_acknowledgement_costs_a_second_round() -> None:
    load = Load(messages=40, gap_slots=200, ack_slots=2, delivery=Delivery.ACK)
    found = row("tachikawa-st", load)
    assert found.transmissions == pytest.approx(1 + 2 * 5, rel=0.1)
    assert found.latency_slots == pytest.approx(16.4, rel=0.25)


@pytest.mark.parametrize(
    ("name", "transmissions", "latency"),
    [
        ("tachikawa-st", 2.7, 17),
        ("sequencer-pb", 1.9, 3.9),
        ("sequencer-bb", 2.0, 4.4),
        ("totem-agreed", 2.9, 12),
    ],
)
def test_a_busy_channel_costs_what_is_specified(
    name: str, transmissions: float, latency: float
) -> None:
    found = row(name, BUSY)
    assert found.transmissions == pytest.approx(transmissions, rel=0.3)
    assert found.latency_slots == pytest.approx(latency, rel=0.35)


@pytest.mark.parametrize("name", ["skeen", "xamp"])
def test_two_phases_saturate_at_a_message_every_four_slots(name: str) -> None:
    rows = [row(name, Load(messages=m, gap_slots=4, ack_slots=10)) for m in (30, 60, 120)]
    delays = [found.latency_slots for found in rows]
    assert delays[0] * 1.3 < delays[1]
    assert delays[1] * 1.3 < delays[2]


SATURATING = {
    (5, 0.0): (0.0, 1.16),
    (5, 0.01): (0.045, 1.63),
    (5, 0.05): (0.220, 1.93),
    (10, 0.01): (0.083, 1.71),
}


@pytest.mark.parametrize(("d", "f"), SATURATING)
def test_saturating_load_costs_what_is_specified(d: int, f: float) -> None:
    repeated, transmissions = SATURATING[d, f]
    found = row("tachikawa-st", Load(messages=300, destinations=d, loss=f))
    assert found.repeated == pytest.approx(repeated, abs=0.04)
    assert found.repeated == pytest.approx(1 - (1 - f) ** d, abs=0.05)
    assert found.transmissions == pytest.approx(transmissions, rel=0.2)
    assert (found.recoveries > 0) == (f > 0)


@pytest.mark.parametrize("name", ["xamp", "skeen"])
@pytest.mark.parametrize("seed", [1, 3])
def test_who_asks_again_too_soon_does_not_fill_the_channel_for_ever(name: str, seed: int) -> None:
    """xAMP's attempts and reminders overtook all replies, and nothing was delivered any more."""
    load = Load(gap_slots=32, loss=0.05, spares_control=False, control_slots=20, seed=seed)
    assert row(name, load).transmissions < 50


def test_what_selecting_saves() -> None:
    load = Load(messages=200, loss=0.01)
    selective, go_back = row("tachikawa-st", load), row("st-go-back", load)
    to_all = row("total-to", load)
    assert selective.transmissions < 0.7 * go_back.transmissions
    assert selective.repeated < to_all.repeated


def test_a_table_has_a_row_for_every_protocol_and_load() -> None:
    entries = {name: algorithm(name) for name in ("sequencer-pb", "skeen")}
    loads = (Load(messages=5, gap_slots=50), Load(messages=5, gap_slots=100))
    assert [(r.protocol, r.load.gap_slots) for r in table(entries, loads)] == [
        ("sequencer-pb", 50),
        ("sequencer-pb", 100),
        ("skeen", 50),
        ("skeen", 100),
    ]
