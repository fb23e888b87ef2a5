"""The report: same bytes in every run, the right arrows, nothing unescaped."""

from pathlib import Path

import numpy as np
import pytest

from orderwire.report.figures import (
    Histogram,
    control_bytes_figure,
    delay_figure,
    member_share_figure,
)
from orderwire.report.html import Section, Table, Verdict, write_report
from orderwire.report.space_time import Inversion, MessageKey, causal_chain, space_time_figure
from orderwire.report.style import save
from orderwire.trace.events import Event, EventKind

MS = 1_000_000


def event(process: int, kind: EventKind, at_ms: int, source: int, number: int) -> Event:
    return Event(
        run_id="r",
        process=process,
        position=at_ms,
        kind=kind,
        time_ns=at_ms * MS,
        clock_ns=at_ms * MS,
        source=source,
        number=number,
    )


QUESTION, ANSWER = MessageKey(0, 0), MessageKey(1, 0)
EVENTS = [
    event(0, EventKind.SEND, 0, 0, 0),
    event(1, EventKind.DELIVER, 10, 0, 0),
    event(1, EventKind.SEND, 12, 1, 0),
    event(2, EventKind.DELIVER, 20, 1, 0),
    event(2, EventKind.DELIVER, 40, 0, 0),
]


def test_chain_goes_from_the_overtaken_message_to_its_witness() -> None:
    assert causal_chain(EVENTS, QUESTION, ANSWER) == [QUESTION, ANSWER]
    assert causal_chain(EVENTS, ANSWER, QUESTION) == []


def test_chain_follows_several_hops_and_the_sender_itself() -> None:
    events = [
        event(0, EventKind.SEND, 0, 0, 0),
        event(0, EventKind.SEND, 1, 0, 1),
        event(1, EventKind.DELIVER, 5, 0, 1),
        event(1, EventKind.SEND, 6, 1, 0),
    ]
    chain = [MessageKey(0, 0), MessageKey(0, 1), MessageKey(1, 0)]
    assert causal_chain(events, chain[0], chain[-1]) == chain


def test_diagram_names_the_process_and_both_messages(tmp_path: Path) -> None:
    figure = space_time_figure(EVENTS, Inversion(2, QUESTION, ANSWER), ["anna", "ben", "carl"])
    assert figure.axes[0].get_title(loc="left").startswith("carl was told m1.0 before m0.0")
    svg, png = save(figure, tmp_path, "diagram")
    assert png.read_bytes()[:4] == b"\x89PNG"
    again = space_time_figure(EVENTS, Inversion(2, QUESTION, ANSWER), ["anna", "ben", "carl"])
    assert save(again, tmp_path / "again", "diagram")[0].read_bytes() == svg.read_bytes()


def test_diagram_refuses_a_message_that_was_never_sent() -> None:
    with pytest.raises(ValueError, match=r"no send of m7\.7"):
        space_time_figure(EVENTS, Inversion(2, MessageKey(7, 7), ANSWER), ["a", "b", "c"])


def test_report_is_one_file_with_every_part(tmp_path: Path) -> None:
    delays = delay_figure(
        {
            "ordered": Histogram(np.array([1.0, 2.0, 90.0]), np.array([3, 5, 1])),
            "none": Histogram(np.array([]), np.array([], dtype=np.int64)),
        },
        250,
    )
    control = control_bytes_figure(np.array([0.0, 1.0]), np.array([9.0, 11.0]), {"matrix": 144})
    share = member_share_figure(
        ["a", "b"], {"delivered": [9, 8], "late": [0, 1], "lost": [1, 0]}, "x"
    )
    paths = [
        save(figure, tmp_path, f"figure{at}")[0]
        for at, figure in enumerate((delays, control, share))
    ]
    page = write_report(
        tmp_path / "report.html",
        title="A <run>",
        subtitle="s",
        verdicts=[Verdict(label="violations", value="0", good=True)],
        sections=[
            *(Section(title=str(at), svg=path) for at, path in enumerate(paths)),
            Section(title="table", table=Table(["who", "n"], [["<a>", 1200], ["b", 3]])),
        ],
        footer="f",
    ).read_text()
    assert page.count("<svg") == 3
    assert "A &lt;run&gt;" in page
    assert "&lt;a&gt;" in page
    assert '<td class="number">1,200</td>' in page
    assert "http" not in page.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "")
