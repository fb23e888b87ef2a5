"""`orderwire audit`: check that a trace kept every promise of order and of discovery."""

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from orderwire.cli.client_config import CLIENT_CONFIG, named
from orderwire.cli.output import EXIT_FAILED, emit_json, progress
from orderwire.kernel import NS_PER_MS, NS_PER_S, OrderwireError
from orderwire.trace.errors import TraceError
from orderwire.trace.events import NO_ORDER
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.report import DiscoveryReport, Instant, Report, RunReport
from orderwire.verify.verdict import Verdict

if TYPE_CHECKING:
    from orderwire.pipeline.named_source import Named

MISSING_STEPS = 8
"""Parts of a run of which is told how many pairs were missing."""
_STYLES = {Verdict.VALID: "green", Verdict.INVALID: "red", Verdict.UNKNOWN: "yellow"}


@click.command()
@click.argument("source", metavar="SOURCE")
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="One process without a JVM, or Spark.",
)
@click.option("--master", default="local[2]", show_default=True, help="Spark's master.")
@click.option("--waiting", is_flag=True, help="Also measure needless waiting (O3).")
@click.option("--clocks", is_flag=True, help="Also check the recorded vector clocks (S1).")
@click.option(
    "--expect",
    metavar="ALGORITHM",
    help="Hold every run to the promises of this algorithm, or of this protocol of discovery,"
    " instead of its own.",
)
@click.option(
    "--violations",
    "violations_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every violation as a row of this Parquet file.",
)
@click.option(
    "--clients",
    metavar="SOURCE",
    help="Of replicated partitions: join the brokers' history with that of their clients.",
)
@CLIENT_CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: str,
    engine: str,
    master: str,
    waiting: bool,
    clocks: bool,
    expect: str | None,
    violations_file: Path | None,
    clients: str | None,
    client_config: dict[str, str],
    as_json: bool,
) -> None:
    """Check a trace: order, copies, lifetimes; discovery, where it has some.

    Or histories of replicated partitions, as `orderwire chaos` writes them, or brokers with
    --history-topic: I1 … I10.

    SOURCE is a trace file (.arrow, .parquet) or a folder of them, a lake or its table `events`, or
    TOPIC@HOST:PORT.  Exit status: 0 valid, 1 a promise was broken or cannot be judged, 2 used
    wrongly.

    \b
    Example: orderwire audit runs/demo/lake --json
             orderwire audit trace@localhost:9092 --engine spark
             orderwire audit __orderwire_history@localhost:9092 --clients clients.parquet
    """
    try:
        found = named(source, client_config)
        if _holds_histories(found):
            told = None if clients is None else named(clients, client_config)
            _audit_histories(found, engine, master, violations_file, told, as_json=as_json)
            return
        if clients is not None:
            raise TraceError(f"{source} holds no histories of replication: --clients is for those")
    except (OrderwireError, OSError) as error:
        raise click.UsageError(str(error)) from error
    options = AuditOptions(waiting=waiting, clocks=clocks, expect=expect)
    try:
        if engine == "spark":
            report = _on_spark(found, master, options, violations_file)
        else:
            report = _in_one_process(found, options, violations_file)
    except (OrderwireError, OSError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        emit_json(report)
    else:
        _print(report)
    if report.verdict is not Verdict.VALID:
        sys.exit(EXIT_FAILED)


def _holds_histories(source: "Named") -> bool:
    from orderwire.pipeline.replication_source import is_history_source

    return is_history_source(source)


def _audit_histories(
    source: "Named",
    engine: str,
    master: str,
    violations_file: Path | None,
    clients: "Named | None",
    *,
    as_json: bool,
) -> None:
    from orderwire.cli.audit_replication import audit_history, print_history

    found = audit_history(source, engine, master, violations_file, clients)
    if as_json:
        emit_json(found)
    else:
        print_history(found)
    if found.verdict is not Verdict.VALID:
        sys.exit(EXIT_FAILED)


def _in_one_process(source: "Named", options: AuditOptions, violations_file: Path | None) -> Report:
    from orderwire.pipeline.audit_source import find_source

    report, violations = audit(find_source(source), options)
    if violations_file is not None:
        pq.write_table(violations, violations_file)
    return report


def _on_spark(
    source: "Named", master: str, options: AuditOptions, violations_file: Path | None
) -> Report:
    from orderwire.pipeline.audit_jobs import audit_source
    from orderwire.pipeline.session import SessionSettings, spark_session

    settings = SessionSettings(name="orderwire-audit", master=master)
    progress("starting Spark …")
    with spark_session(settings) as spark, audit_source(spark, source, options) as found:
        if violations_file is not None:
            pq.write_table(found.violations.toArrow(), violations_file)
        return found.report


def _print(report: Report) -> None:
    console = Console(highlight=False)
    for run in report.runs:
        console.print(_run_table(run))
        if run.accounting.get("written"):
            counts = ", ".join(f"{count} {name}" for name, count in run.accounting.items())
            console.print(f"copies: {counts.replace('_', ' ')}")
        if run.discovery is not None:
            console.print(_in_short(run.discovery))
            if run.discovery.messages:
                console.print(_messages_table(run.discovery))
        if run.incomplete:
            shown = ", ".join(map(str, run.incomplete[:10]))
            console.print(f"no complete trace of process {shown}", style="yellow")
        for check in run.checks:
            for example in check.examples[:2]:
                console.print(f"  {check.id}: {example}", style="dim", markup=False)
    style = _STYLES[report.verdict]
    console.print(f"[{style}]{report.verdict.value}[/{style}]: {len(report.runs)} run(s)")


def _in_short(found: DiscoveryReport) -> str:
    """Say what a discovery took and cost, in a few lines."""
    last = found.series[-1]
    both = found.from_both
    lines = [
        f"discovery: {found.protocol}, {found.participants} participants, {found.lives} lives;"
        f" {found.learnt} of {found.pairs} pairs learnt, {last.missing} missing at the end"
    ]
    if both.max_ns is not None and both.p50_ns is not None and both.p99_ns is not None:
        times = " · ".join(
            f"{ns / NS_PER_MS:.1f}" for ns in (both.p50_ns, both.p99_ns, both.max_ns)
        )
        lines.append(f"since both were there: {times} ms (half · 99 % · all)")
    age = found.evidence
    if age.p50_ns is not None and age.p99_ns is not None and age.max_ns is not None:
        ages = " · ".join(f"{ns / NS_PER_MS:.1f}" for ns in (age.p50_ns, age.p99_ns, age.max_ns))
        lines.append(f"age of evidence: {ages} ms (half · 99 % · all)")
    lines.append(f"pairs missing over time: {_missing_over_time(found)}")
    posted = sum(message.posted for message in found.messages)
    if posted:
        size = sum(message.posted_bytes for message in found.messages)
        lines.append(f"{posted} messages, {size} bytes")
    hops: Counter[int] = Counter()
    for message in found.messages:
        hops.update(message.hops)
    if hops:
        histogram = ", ".join(f"{hop}: {count}" for hop, count in sorted(hops.items()))
        lines.append(f"broadcasts heard after hops: {histogram}")
    return "\n".join(lines)


def _missing_over_time(found: DiscoveryReport) -> str:
    """Say when how many pairs were missing, of how many: the largest of each part of the run."""
    series = found.series
    first_ns, last_ns = series[0].time_ns, series[-1].time_ns
    step_ns = max(1, -(-(last_ns - first_ns + 1) // MISSING_STEPS))
    worst: dict[int, Instant] = {}
    for instant in series:
        at = (instant.time_ns - first_ns) // step_ns
        if at not in worst or instant.missing > worst[at].missing:
            worst[at] = instant
    told = [
        f"{(instant.time_ns - first_ns) / NS_PER_S:.1f} s {instant.missing}/{instant.pairs}"
        for instant in worst.values()
    ]
    return ", ".join(told)


def _messages_table(found: DiscoveryReport) -> Table:
    table = Table(title="messages of discovery", title_justify="left")
    names = ("message", "posted", "bytes", "heard", "bytes heard")
    for name in names:
        table.add_column(name, justify="left" if name == "message" else "right")
    for each in sorted(found.messages, key=lambda each: -each.posted_bytes):
        amounts = (each.posted, each.posted_bytes, each.heard, each.heard_bytes)
        table.add_row(each.message, *(f"{amount:,}" for amount in amounts))
    return table


def _run_table(run: RunReport) -> Table:
    algorithm = run.settings.algorithm if run.settings else "unknown algorithm"
    what = "discovery" if algorithm == NO_ORDER else algorithm
    table = Table(title=f"{run.run_id}: {what}, {run.events} events", title_justify="left")
    for name in ("check", "verdict", "violations", "what"):
        table.add_column(name, justify="right" if name == "violations" else "left")
    for check in run.checks:
        title = check.title if check.promised else f"{check.title} (not promised)"
        style = _STYLES[check.verdict] if check.promised else "dim"
        verdict = f"[{style}]{check.verdict.value}[/{style}]"
        table.add_row(check.id, verdict, str(check.violations), title)
    return table
