"""The picture of one order: its lines cross where two readers disagree, and nowhere else."""

from itertools import combinations
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from orderwire.report.order_figure import Handed, columns_of, order_figure
from orderwire.report.style import save


@given(
    chance=st.randoms(use_true_random=False), count=st.integers(0, 12), readers=st.integers(1, 4)
)
def test_lines_of_two_messages_cross_where_two_logs_disagree(
    chance: Random, count: int, readers: int
) -> None:
    logs = []
    for _ in range(readers):
        log = [message for message in range(count) if chance.random() < 0.7]
        if chance.random() < 0.5:
            chance.shuffle(log)
        logs.append(log)
    placed = [
        dict(zip(log, columns, strict=True))
        for log, columns in zip(logs, columns_of(logs), strict=True)
    ]
    for (one, here), (other, there) in combinations(zip(logs, placed, strict=True), 2):
        for x, y in combinations([message for message in one if message in other], 2):
            agree = other.index(x) < other.index(y)
            assert here[x] < here[y]
            assert (there[x] < there[y]) == agree


def test_who_agrees_stands_in_the_same_columns() -> None:
    assert columns_of([["b", "c"], ["a", "b", "c", "d"], [], ["a", "d"]]) == [
        [1, 2],
        [0, 1, 2, 3],
        [],
        [0, 3],
    ]


def _logs(swapped: bool) -> dict[str, list[Handed]]:
    every = [Handed(at + 9 * (at >= 4), ("a", at), ("x", "y")[at % 2]) for at in range(8)]
    half = every[::2]
    if swapped:
        half[1], half[2] = half[2], half[1]
    return {"ana": every, "ben": list(every), "carl": half, "nobody": []}


def _slanted(figure: Figure) -> int:
    """How many of the lines that join two readers are not upright."""
    lines = [list(line.get_xdata()) for line in figure.axes[1].lines]
    return sum(len(xs) == 2 and xs[0] != xs[1] for xs in lines)


def test_figure_has_a_row_for_each_and_marks_the_kill_and_the_pause(tmp_path: Path) -> None:
    figure = order_figure(_logs(swapped=False), 3.5, "killed")
    for axes in figure.axes:
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == ["ana", "ben", "carl", "nobody"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["killed"]
    assert [3.5, 3.5] in [list(line.get_xdata()) for line in figure.axes[0].lines]
    assert [3.5, 3.5] in [list(line.get_xdata()) for line in figure.axes[1].lines]
    assert _slanted(figure) == 0
    svg, png = save(figure, tmp_path, "order")
    assert png.read_bytes()[:4] == b"\x89PNG"
    again = order_figure(_logs(swapped=False), 3.5, "killed")
    assert save(again, tmp_path / "again", "order")[0].read_bytes() == svg.read_bytes()


def test_figure_shows_two_that_disagree() -> None:
    assert _slanted(order_figure(_logs(swapped=True))) == 2


def test_figure_of_nothing_is_drawn() -> None:
    assert len(order_figure({"ana": [], "ben": []}, 1.0, "killed").axes) == 2
