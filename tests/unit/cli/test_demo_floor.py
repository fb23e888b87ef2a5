"""The demo's part on its order book: the JSON without logs, the page with their figure."""

from pathlib import Path

import msgspec
import pytest
from report_tables import tables_of

from orderwire.cli.demo.floor import (
    FoundFloor,
    FoundTrader,
    floor_holds,
    floor_sections,
    floor_told,
)
from orderwire.cli.demo.settings import INSTRUMENTS, Update
from orderwire.kernel import ms
from orderwire.report.html import write_report
from orderwire.verify.audit import audit
from orderwire.verify.group_synthetic import GroupTraceSettings, synthetic_group
from orderwire.verify.report import RunReport
from orderwire.verify.source import TableSource


def found() -> FoundFloor:
    log = [Update(ms(20 * at), INSTRUMENTS[at % 2], "Mill", at) for at in range(100)]
    logs = {"Mill": log, "Say": log[::2]}
    digests = {"Mill": dict.fromkeys(INSTRUMENTS[:2], "d1"), "Say": {INSTRUMENTS[0]: "d1"}}
    reads = {"Mill": "book/eu/*", "Say": "book/eu/gold"}
    return FoundFloor(
        traders=[
            FoundTrader(
                name=name,
                reads=reads[name],
                written=100,
                updates=len(log),
                longest_pause_ms=20.0,
                stands={},
                digests=digests[name],
            )
            for name, log in logs.items()
        ],
        trace="trace",
        logs=logs,
        killed_ns=ms(1_000),
    )


def audited(swapped: int) -> RunReport:
    settings = GroupTraceSettings(messages=200, members=3, destinations=2, swapped=swapped, seed=3)
    report, _ = audit(TableSource(synthetic_group(settings)))
    return report.runs[0]


@pytest.mark.parametrize(("swapped", "verdict"), [(0, "VALID"), (40, "INVALID")])
def test_the_page_has_the_books_figure_and_spark_s_verdicts(
    tmp_path: Path, swapped: int, verdict: str
) -> None:
    floor = found()
    told = floor_told(floor, audited(swapped))
    assert not {"logs", "killed_ns"} & told.keys()
    assert len(msgspec.json.encode(told)) < 5_000
    assert told["equal"] is False, "nobody has the instruments of the other half"
    assert not floor_holds(told)
    assert floor_holds({**told, "equal": True, "complete": True}) == (not swapped)
    page = write_report(
        tmp_path / "page.html",
        title="t",
        subtitle="",
        verdicts=[],
        sections=floor_sections(told, floor, tmp_path / "figures"),
        footer="",
    ).read_text()
    assert page.count("<svg") == 1
    assert (tmp_path / "figures" / "book.png").read_bytes()[:4] == b"\x89PNG"
    assert f"T1 {verdict}, T2 {verdict}, T3 VALID" in page
    rows = tables_of(page)["One order book"]
    assert [(row["trader"], row["updates read"]) for row in rows] == [
        ("Mill", "100"),
        ("Say", "50"),
    ]
