"""The demo's part on replicas: counts over lives, and a page that says what the JSON does."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from replication_histories import broken, history
from report_tables import assert_replicas_as_told, tables_of

from orderwire.cli.demo.replicas import (
    FoundReplicas,
    found_partitions,
    replica_sections,
    replicas_hold,
    replicas_told,
)
from orderwire.report.html import write_report
from orderwire.verify.replication_audit import HistoryReport, audit_table
from orderwire.verify.replication_history import table_of


def said(epoch: int, original: int | None, taken: int, sent: int) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "original": original,
        "isr": [2, 0, 1],
        "taken_bytes": taken,
        "sent_bytes": sent,
    }


def found(*, equal: bool = True) -> FoundReplicas:
    places = {
        ("text", 0): {0: said(3, 2, 0, 100), 1: said(3, 2, 700, 0), 2: said(2, 0, 5, 11)},
        ("trace", 1): {broker: said(1, broker, 0, 0) for broker in range(3)},
    }
    before = {("text", 0): {0: (1_300, 23)}}
    return FoundReplicas(
        mode="active-active",
        replicas=3,
        killed=0,
        took_over_s=0.437,
        in_sync_s=1.25,
        partitions=2,
        equal=equal,
        places=found_partitions(places, before, {("text", 0): 0.4249}, 3),
        history="history.parquet",
    )


def audit(invariant: str | None = None) -> HistoryReport:
    events = history(Random(1))
    if invariant is not None:
        events = broken(invariant, events, Random(1))
    return audit_table(table_of({("demo", "text", 0): events}))


def test_what_the_killed_broker_carried_before_counts() -> None:
    text, trace = found().places
    assert (text.original, text.epoch, text.isr) == (2, 3, [0, 1, 2])
    assert (text.taken_bytes, text.sent_bytes) == ([1_300, 700, 5], [123, 0, 11])
    assert (text.took_over_s, trace.took_over_s) == (0.4249, None)


@pytest.mark.parametrize("invariant", [None, "I2"])
def test_the_page_says_what_the_json_says(tmp_path: Path, invariant: str | None) -> None:
    told = replicas_told(found(), audit(invariant))
    path = write_report(
        tmp_path / "page.html",
        title="t",
        subtitle="",
        verdicts=[],
        sections=replica_sections(told),
        footer="",
    )
    page = path.read_text()
    assert_replicas_as_told(page, told)
    rows = tables_of(page)["What the replicas did"]
    assert [rows[0][f"written at {broker}"] for broker in range(3)] == ["65%", "35%", "0%"]
    assert rows[0]["gap s"] == "0.42"
    verdicts = {
        row["check"]: row["verdict"] for row in tables_of(page)["What the replicas' audit checked"]
    }
    assert verdicts["I2"] == ("VALID" if invariant is None else "INVALID")
    assert replicas_hold(told) is (invariant is None)
    assert not replicas_hold(replicas_told(found(equal=False), audit()))
