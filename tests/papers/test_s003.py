"""S003: what its formulas say, and what of that windows and protocols show."""

from dataclasses import replace
from typing import ClassVar

import pytest

from orderwire.lab.experiment import experiments, find_experiment
from orderwire.lab.total_order_config import TotalOrderConfig
from orderwire.ordering.total.catalog import algorithm
from orderwire.ordering.total.pdu import Record
from orderwire.ordering.total.receipt import Place, Receipt
from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.sim.selective_total_formulas import repeated_share, sorted_share
from orderwire.sim.selective_total_window import WindowShares, measure_windows
from orderwire.sim.total_order_costs import Load, measure

FIGURE_8 = {
    # d/n, f: U/L as printed, corrected, of windows by the cut and by a line for each source
    (0.1, 0.01): (0.0002, 0.0017, 0.0014, 0.0014),
    (0.2, 0.05): (0.0090, 0.0452, 0.0543, 0.0270),
    (0.3, 0.01): (0.0091, 0.0305, 0.0411, 0.0128),
    (0.5, 0.01): (0.0493, 0.0987, 0.1153, 0.0348),
    (0.5, 0.05): (0.1488, 0.2976, 0.3420, 0.1501),
    (0.8, 0.05): (0.5002, 0.6253, 0.6448, 0.3427),
    (1.0, 0.01): (0.4004, 0.4004, 0.3963, 0.1331),
    (1.0, 0.05): (0.8517, 0.8517, 0.8514, 0.4972),
}
BROADCAST_5 = {0.005: 0.126, 0.01: 0.231, 0.05: 0.684}
"""Go-back's PDUs broadcast again, of a window: d = 5 of n = 10, by f."""


def windows(share: float, loss: float, count: int = 8_000) -> WindowShares:
    return measure_windows(
        1, members=10, destinations=round(10 * share), loss=loss, pdus=10, windows=count
    )


@pytest.mark.paper("S003:fig.8")
@pytest.mark.paper("S003:eq.3")
@pytest.mark.parametrize(("share", "loss"), FIGURE_8)
def test_figure_8_by_formula_and_by_experiment(share: float, loss: float) -> None:
    printed, corrected, cut, line = FIGURE_8[share, loss]
    d = round(10 * share)
    assert sorted_share(10, d, loss, window=10, corrected=False) == pytest.approx(printed, abs=1e-4)
    assert sorted_share(10, d, loss, window=10, corrected=True) == pytest.approx(
        corrected, abs=1e-4
    )
    found = windows(share, loss)
    assert found.behind_cut == pytest.approx(cut, rel=0.1, abs=4e-4)
    assert found.behind_line == pytest.approx(line, rel=0.1, abs=4e-4)


@pytest.mark.paper("S003:fig.9")
@pytest.mark.paper("S003:eq.5")
@pytest.mark.parametrize(("loss", "broadcast"), BROADCAST_5.items())
def test_figure_9_in_pdus_broadcast(loss: float, broadcast: float) -> None:
    found = windows(0.5, loss)
    assert found.resent_cut == pytest.approx(broadcast, rel=0.1)
    assert found.lost == pytest.approx(
        repeated_share(10, 5, loss, window=10, corrected=True), rel=0.1
    )


@pytest.mark.paper("S003:fig.9")
def test_a_tenth_holds_with_the_corrected_formula_only() -> None:
    to_go_back = sorted_share(10, 10, 0.003, window=10, corrected=True)
    corrected = repeated_share(10, 5, 0.003, window=10, corrected=True)
    printed = repeated_share(10, 5, 0.003, window=10, corrected=False)
    assert corrected / to_go_back == pytest.approx(1 / 10, rel=0.01)
    assert printed / to_go_back == pytest.approx(1 / 20, rel=0.01)


@pytest.mark.paper("S003:fig.9")
@pytest.mark.parametrize(("loss", "ratio"), [(0.01, 1 / 2.01), (0.087, 1.0)])
def test_a_half_compares_pdus_of_the_group_with_those_of_one_member(
    loss: float, ratio: float
) -> None:
    selective = repeated_share(10, 5, loss, window=10, corrected=True)
    go_back = sorted_share(10, 5, loss, window=10, corrected=True)
    assert selective / go_back == pytest.approx(ratio, rel=0.01)


@pytest.mark.paper("S003:sec.4.1")
def test_a_recovery_takes_two_control_pdus_of_each_member_and_one() -> None:
    config = TotalOrderConfig(algorithm="tachikawa-st", loss=0.01, messages=300)
    found = config.measure(1)
    assert found["recoveries"] > 1
    assert 21 <= found["control"] <= 26
    assert found["pause_slots"] >= found["control"] - 1
    assert config.measure(1) == found


@pytest.mark.parametrize("protocol", ["tachikawa-st", "st-go-back"])
def test_what_is_sent_again_is_what_was_lost_or_all_behind_it(protocol: str) -> None:
    config = TotalOrderConfig(algorithm=protocol, loss=0.02, messages=300)
    lost = TotalOrderConfig(algorithm="tachikawa-st", phase="windows", loss=0.02)
    again = config.measure(2)["broadcast"]
    least = lost.measure(2)["broadcast"]
    assert again == pytest.approx(least, rel=0.5) if protocol == "tachikawa-st" else again > least


class Counted(Receipt):
    """Notes what is behind a line when the member itself sorts it."""

    behind: ClassVar[set[tuple[int, int, int]]] = set()

    def cut(self, record: Record) -> list[Place]:
        before = super().cut(record)
        self.behind.update((self._me, place.source, place.pseq) for place in self.accepted)
        return before


class CountedST(TachikawaST):
    RECEIPT = Counted


@pytest.mark.paper("S003:fig.8")
@pytest.mark.parametrize(("window", "loss"), [(1, 0.05), (8, 0.05), (8, 0.1)])
def test_what_the_channel_shows_behind_the_lines_is_what_members_sort(
    window: int, loss: float
) -> None:
    Counted.behind.clear()
    entry = replace(algorithm("tachikawa-st"), create=CountedST)
    found = measure(entry, Load(messages=100, loss=loss, window=window))
    assert found.recoveries > 1
    assert found.behind > 0
    assert len(Counted.behind) == round(found.behind * 100 * 10)


@pytest.mark.paper("S003:fig.9")
def test_each_unit_of_what_is_sent_again_is_told() -> None:
    for phase in ("formulas", "windows", "run"):
        st = TotalOrderConfig(algorithm="tachikawa-st", phase=phase, loss=0.05, messages=100)
        found = st.measure(1)
        assert found["resent"] == found["broadcast"]
        assert found["entity"] == pytest.approx(found["broadcast"] / 2)
        go_back = TotalOrderConfig(
            algorithm="st-go-back", phase=phase, loss=0.05, messages=100, window=1
        )
        found = go_back.measure(1)
        assert found["resent"] == found["entity"]
        assert found["entity"] == pytest.approx(found["broadcast"] / 2)


FIGURES = [name for name in experiments() if name.startswith("s003-")]


@pytest.mark.parametrize("name", FIGURES)
def test_every_point_of_a_figure_makes_sense(name: str) -> None:
    figure = find_experiment(name)
    assert figure.family == "total-order"
    points = list(figure.points(quick=False))
    assert len(points) > 20
    assert {type(config) for _, _, config in points} == {TotalOrderConfig}
    for series, _, config in points[:: max(1, len(points) // 5)]:
        if isinstance(config, TotalOrderConfig) and config.phase != "run":
            assert config.measure(1), series.label


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"algorithm": "totem"}, "protocol 'totem'; there are tachikawa-st"),
        ({"phase": "dream"}, "phase 'dream'; there are formulas"),
        ({"line": "point"}, "line 'point'; there are source, cut"),
        ({"delivery": "soon"}, "delivery 'soon'"),
        ({"members": 1}, "1 members; expected 2 … 100"),
        ({"share": 0.0}, r"share 0\.0"),
        ({"loss": 1.0}, r"loss 1\.0"),
        ({"control_slots": 0}, "control_slots 0; expected at least 1"),
        ({"gap_slots": -1.0}, r"a gap of -1\.0"),
    ],
)
def test_bad_points_are_refused(parameters: dict[str, object], says: str) -> None:
    given: dict[str, object] = {"algorithm": "tachikawa-st", **parameters}
    with pytest.raises(ValueError, match=says):
        TotalOrderConfig(**given).check()  # type: ignore[arg-type]
