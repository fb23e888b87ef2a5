"""`orderwire audit` of histories of replication."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from orderwire.cli.output import progress
from orderwire.verify.replication_audit import HistoryReport, audit_table, judge_partition
from orderwire.verify.replication_history import histories_from
from orderwire.verify.verdict import Verdict

if TYPE_CHECKING:
    from orderwire.pipeline.named_source import Named

MISSING_SHOWN = 4
"""Of what a partition's history lacks."""
_STYLES = {Verdict.VALID: "green", Verdict.INVALID: "red", Verdict.UNKNOWN: "yellow"}


def audit_history(
    source: "Named",
    engine: str,
    master: str,
    violations_file: Path | None,
    clients: "Named | None" = None,
) -> HistoryReport:
    """Judge a source that `is_history_source`, joined with what clients and files tell.

    Raises TraceError, PipelineError.
    """
    if engine == "spark":
        return _on_spark(source, master, violations_file, clients)
    from orderwire.pipeline.replication_source import read_histories

    table = read_histories(source, clients)
    if violations_file is not None:
        rows = [
            {
                "run_id": found.run_id,
                "topic": found.topic,
                "partition": found.partition,
                "invariant": found.invariant,
                "sentence": sentence,
            }
            for key, events in histories_from(table).items()
            for found in judge_partition(key, events)
            for sentence in found.sentences
        ]
        pq.write_table(pa.Table.from_pylist(rows, _VIOLATIONS), violations_file)
    return audit_table(table)


_VIOLATIONS = pa.schema(
    [
        ("run_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("invariant", pa.string()),
        ("sentence", pa.string()),
    ]
)


def _on_spark(
    source: "Named", master: str, violations_file: Path | None, clients: "Named | None"
) -> HistoryReport:
    from orderwire.pipeline.replication_audit import (
        findings_of,
        history_frame,
        report_of,
        violations_of,
    )
    from orderwire.pipeline.session import SessionSettings, spark_session

    settings = SessionSettings(name="orderwire-audit", master=master)
    progress("starting Spark …")
    with spark_session(settings) as spark, history_frame(spark, source, clients) as frame:
        findings = findings_of(frame).cache()
        if violations_file is not None:
            pq.write_table(violations_of(findings).toArrow(), violations_file)
        return report_of(findings)


def print_history(report: HistoryReport) -> None:
    """Print the verdict table for a person."""
    console = Console(highlight=False)
    table = Table(title=f"replication, {len(report.partitions)} partition(s)", title_justify="left")
    for name in ("check", "verdict", "violations", "examined", "what"):
        table.add_column(name, justify="right" if name in ("violations", "examined") else "left")
    for check in report.checks:
        style = _STYLES[check.verdict] if check.promised else "dim"
        title = check.title if check.promised else f"{check.title} (not promised)"
        table.add_row(
            check.id,
            f"[{style}]{check.verdict.value}[/{style}]",
            f"{check.violations:,}",
            f"{check.examined:,}",
            title,
        )
    console.print(table)
    for check in report.checks:
        for example in check.examples[:2]:
            console.print(f"  {check.id}: {example}", style="dim", markup=False)
    for part in report.partitions:
        for what in part.missing[:MISSING_SHOWN]:
            place = f"{part.topic}-{part.partition}"
            console.print(f"  {place} lacks {what}", style="yellow", markup=False)
    style = _STYLES[report.verdict]
    console.print(f"[{style}]{report.verdict.value}[/{style}]")
