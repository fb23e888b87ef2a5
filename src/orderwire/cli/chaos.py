"""`orderwire chaos`: real brokers under drawn faults, with clients, audited by Spark."""

import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec

from orderwire.broker.replication.settings import Mode
from orderwire.chaos.faults import FAULTS
from orderwire.chaos.run import TOPIC, ChaosResult, ChaosRun, ChaosSettings
from orderwire.cli.audit_replication import audit_history, print_history
from orderwire.cli.output import EXIT_FAILED, emit, emit_json, progress
from orderwire.kernel import OrderwireError
from orderwire.verify.replication import Event
from orderwire.verify.replication_audit import HistoryReport, audit_table
from orderwire.verify.replication_history import Key, table_of, write_history
from orderwire.verify.verdict import Verdict

HISTORY = "history.parquet"


@click.command(epilog="Example:  orderwire chaos --mode active-active --rounds 20 --seed 7")
@click.option(
    "--mode",
    default=Mode.ACTIVE_ACTIVE.value,
    show_default=True,
    type=click.Choice([mode.value for mode in Mode]),
)
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=1, show_default=True, help="Draws faults and messages.")
@click.option("--partitions", default=3, show_default=True, type=click.IntRange(1, 64))
@click.option("--session-ms", default=1_500, show_default=True, type=click.IntRange(1_000))
@click.option("--fault", multiple=True, type=click.Choice(list(FAULTS)), help="Only these.")
@click.option("--seconds", default=3_600.0, show_default=True, help="No round begins later.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keeps the brokers' files, their logs and the history.",
)
@click.option(
    "--history",
    is_flag=True,
    help="Brokers write their history into a topic of the cluster: that is audited, and has to say"
    " the same as their files.",
)
@click.option("--engine", type=click.Choice(["local", "spark"]), default="spark", show_default=True)
@click.option("--master", default="local[2]", show_default=True, help="Spark's master.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    mode: str,
    rounds: int,
    seed: int,
    partitions: int,
    session_ms: int,
    fault: tuple[str, ...],
    seconds: float,
    data: Path | None,
    history: bool,
    engine: str,
    master: str,
    as_json: bool,
) -> None:
    """Start three brokers and a ZooKeeper, and do to them what the seed says.

    Producers (idempotent and not, acks=1 and all) and consumers write down what they hear; in the
    end the brokers' files are read, and all of it is audited: I1 … I10.  Where strace is missing,
    no disk is slow.  Exit status: 0 valid, 1 not.
    """
    settings = ChaosSettings(
        mode=Mode(mode),
        rounds=rounds,
        seed=seed,
        partitions=partitions,
        session_ms=session_ms,
        faults=fault or tuple(FAULTS),
        seconds_max=seconds,
        history=history,
    )
    with ExitStack() as stack:
        folder = data
        if folder is None:
            scratch = tempfile.TemporaryDirectory(prefix="orderwire-chaos-")
            folder = Path(stack.enter_context(scratch))
        elif folder.exists() and any(folder.iterdir()):
            raise click.UsageError(f"--data {folder} is not empty")
        began = time.monotonic()
        try:
            result = ChaosRun(settings, folder, progress).run()
        except (OrderwireError, OSError) as error:
            raise click.ClickException(str(error)) from error
        lasted_s = time.monotonic() - began
        run_id = f"chaos/{mode}/{seed}"
        path = folder / HISTORY
        told_of = result.histories if result.written is None else result.written
        write_history(path, _keyed(run_id, told_of))
        report = audit_history(path, engine, master, None)
        odd = list(result.odd)
        if result.written is not None:
            files = audit_table(table_of(_keyed(run_id, result.histories)))
            odd += differing(report, files)
        told = summary(msgspec.structs.replace(result, odd=odd), report, lasted_s)
    if as_json:
        emit_json(told)
    else:
        print_history(report)
        for line in lines(told):
            emit(line)
    if told["verdict"] is not Verdict.VALID:
        sys.exit(EXIT_FAILED)


def _keyed(run_id: str, histories: Mapping[int, list[Event]]) -> dict[Key, list[Event]]:
    return {(run_id, TOPIC, each): events for each, events in histories.items()}


def differing(topic: HistoryReport, files: HistoryReport) -> list[str]:
    """Where what brokers wrote into their topic gives another verdict than their files."""
    return [
        f"{one.id} is {one.verdict.value} by the brokers' topic, {other.verdict.value} by their"
        " files"
        for one, other in zip(topic.checks, files.checks, strict=True)
        if one.verdict is not other.verdict
    ]


def summary(result: ChaosResult, report: HistoryReport, lasted_s: float) -> dict[str, Any]:
    """What the command prints as JSON."""
    gaps = [gap for each in result.rounds for gap in each.gaps_s]
    waits = [wait for each in result.rounds for wait in each.waits_s]
    verdict = report.verdict
    if result.odd and verdict is Verdict.VALID:
        verdict = Verdict.UNKNOWN
    return {
        "verdict": verdict,
        "checks": report.checks,
        "partitions": report.partitions,
        "rounds": len(result.rounds),
        "faults": dict(Counter(each.fault for each in result.rounds)),
        "seconds": round(lasted_s, 1),
        "sent": result.sent,
        "acknowledged": result.acknowledged,
        "consumed": result.consumed,
        "failover_s": _of(gaps),
        "failover_with_session_s": _of(waits),
        "whole_again_s": _of([each.healed_s for each in result.rounds]),
        "odd": result.odd,
    }


def _of(values: list[float]) -> dict[str, Any]:
    if not values:
        return {"count": 0}
    return {
        "count": len(values),
        "median": round(statistics.median(values), 3),
        "max": round(max(values), 3),
    }


def lines(told: dict[str, Any]) -> list[str]:
    """The rest of what a person is told."""
    faults = ", ".join(f"{count} {name}" for name, count in sorted(told["faults"].items()))
    found = [
        f"{told['rounds']} rounds in {told['seconds']} s: {faults}",
        f"{told['sent']} messages sent, {told['acknowledged']} acknowledged,"
        f" {told['consumed']} consumed",
    ]
    for name, what in (
        ("failover_s", "without an acknowledgement after a failover, sessions' ends aside"),
        ("failover_with_session_s", "the same with the wait for the session's end"),
        ("whole_again_s", "from a fault's end until everybody is in sync"),
    ):
        of = told[name]
        if of["count"]:
            found.append(f"{what}: median {of['median']} s, longest {of['max']} s ({of['count']})")
    found += [f"odd: {each}" for each in told["odd"]]
    return found
