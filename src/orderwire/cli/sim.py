"""`orderwire sim`: run and replay simulated scenarios."""

from collections import Counter
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from orderwire.cli.output import EXIT_FAILED, emit, emit_json, progress
from orderwire.kernel import Input, InputsHeader, ProcessId, write_input
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.sim.artifacts import Outcome, diagram, outcome, write_run
from orderwire.sim.replay import FAMILY, replay_inputs
from orderwire.sim.run import Run, simulate
from orderwire.sim.scenario import Scenario
from orderwire.sim.scenarios import SCENARIOS, find_scenario
from orderwire.sim.swarm import drawn
from orderwire.verify.verdict import Verdict

SHOWN_VIOLATIONS_MAX = 5
_NOTHING: tuple[Any, ...] = (None, [], ())


@click.group()
def command() -> None:
    """Run ordering algorithms in simulated time, with faults drawn from a seed.

    \b
    Example: orderwire sim run s000-small --seed 17
             orderwire sim run swarm --seeds 200 --algorithm fifo
    """


def _scenario(name: str, algorithm: str | None) -> Scenario:
    try:
        scenario = find_scenario(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return replace(scenario, algorithm=algorithm) if algorithm else scenario


_algorithm = click.option(
    "--algorithm",
    type=click.Choice(list(ALGORITHMS)),
    help="Run this algorithm instead of the scenario's.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_out = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave settings, trace, verdict and diagram in DIR/SCENARIO/SEED.",
)


@command.command("list")
@_json
def list_scenarios(as_json: bool) -> None:
    """List the named scenarios.  Example: orderwire sim list"""
    if as_json:
        emit_json({name: scenario.about for name, scenario in SCENARIOS.items()})
        return
    for name, scenario in SCENARIOS.items():
        emit(f"{name:<18}{scenario.about}")


@command.command("run")
@click.argument("name")
@click.option("--seed", type=int, help="The one seed to run (default 1).")
@click.option("--seeds", type=click.IntRange(min=1), help="Run seeds 1 … N.")
@_algorithm
@_out
@_json
def run_scenario(
    name: str,
    seed: int | None,
    seeds: int | None,
    algorithm: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run scenario NAME, or the one in the file NAME.toml or NAME.json.

    Exit status 1 when a promise was broken.  Example: orderwire sim run lossy --seeds 20
    """
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed and --seeds exclude each other")
    scenario = _scenario(name, algorithm)
    if seeds is None:
        run = _simulate(scenario, name, 1 if seed is None else seed, announce=not as_json)
        _report_one(run, out, as_json, with_diagram=run.verdict is Verdict.INVALID)
        return
    _report_many(scenario, name, seeds, out, as_json)


@command.command("replay")
@click.argument("name", required=False)
@click.option("--seed", type=int, help="The seed to repeat.")
@click.option(
    "--inputs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Feed the recorded inputs of one process to a new core, instead.",
)
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    help="Record every process's inputs in DIR, one file each, for --inputs.",
)
@_algorithm
@_out
@_json
def replay(
    name: str | None,
    seed: int | None,
    inputs: Path | None,
    record: Path | None,
    algorithm: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Repeat a run of scenario NAME and draw it, or feed recorded inputs to a core.

    \b
    Example: orderwire sim replay s000-small --seed 17
             orderwire sim replay --inputs inputs/2.jsonl
    """
    if (name is None) == (inputs is None):
        raise click.UsageError("give either NAME and --seed, or --inputs FILE")
    if inputs is not None:
        _replay_file(inputs, as_json)
        return
    if seed is None:
        raise click.UsageError("--seed says which run to repeat")
    assert name is not None
    recorder = _Recorder()
    run = _simulate(
        _scenario(name, algorithm),
        name,
        seed,
        recorder if record is not None else None,
        announce=not as_json,
    )
    if record is not None:
        recorder.write(run, record)
        progress(f"inputs of {len(recorder.lines)} processes in {record}")
    _report_one(run, out, as_json, with_diagram=True)


class _Recorder:
    """Collects what the cores are fed.  A restarted process's file goes on with its new core's."""

    def __init__(self) -> None:
        self.lines: dict[ProcessId, list[bytes]] = {}

    def __call__(self, me: ProcessId, record: Input) -> None:
        self.lines.setdefault(me, []).append(write_input(record))

    def write(self, run: Run, folder: Path) -> None:
        """Write one file per process."""
        if run.scenario.faults.crashes:
            raise click.UsageError(
                "the inputs of a process that restarts belong to several cores; "
                "record a scenario without crashes"
            )
        folder.mkdir(parents=True, exist_ok=True)
        settings = msgspec.Raw(msgspec.json.encode(run.scenario.settings))
        for me, lines in self.lines.items():
            header = InputsHeader(
                family=FAMILY, protocol=run.scenario.algorithm, me=me, settings=settings
            )
            (folder / f"{me}.jsonl").write_bytes(write_input(header) + b"".join(lines))


def _simulate(
    scenario: Scenario,
    called: str,
    seed: int,
    recorder: _Recorder | None = None,
    *,
    announce: bool = False,
) -> Run:
    """Run; first say what the seed has drawn, so that it is known even if the run breaks off."""
    if announce:
        emit(_settings_text(drawn(scenario, seed)))
    try:
        return simulate(scenario, seed, record=recorder, called=called)
    except ValueError as error:
        raise click.UsageError(f"scenario {scenario.name!r}: {error}") from None


def _report_one(run: Run, out: Path | None, as_json: bool, *, with_diagram: bool) -> None:
    short = outcome(run)
    if out is not None:
        progress(f"left in {write_run(run, out)}")
    if as_json:
        emit_json(short)
    else:
        if with_diagram:
            emit("\n" + diagram(run))
        for line in _verdict_lines(run, short):
            emit(line)
        if run.verdict is Verdict.INVALID:
            emit(short.replay)
    if run.verdict is Verdict.INVALID:
        raise SystemExit(EXIT_FAILED)


def _settings_text(scenario: Scenario) -> str:
    """Everything the run was made of, the seed's draws included; empty parts left out."""
    plain = msgspec.to_builtins(scenario)
    head = f"{scenario.name}: {scenario.about}" if scenario.about else scenario.name
    lines = [head, f"  algorithm {scenario.algorithm}"]
    for part in ("settings", "workload", "network", "clocks", "faults", "computation"):
        values = plain[part] or {}
        shown = [
            f"{key}={_plain(value)}" for key, value in values.items() if value not in (None, [])
        ]
        if shown:
            lines.append(f"  {part}: {' '.join(shown)}")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + " ".join(f"{key}={_plain(each)}" for key, each in value.items()) + ")"
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(_plain, value)) + "]"
    return str(value)


def _verdict_lines(run: Run, short: Outcome) -> list[str]:
    lines = [
        f"{short.verdict.value}: {short.messages} messages, {short.copies} copies, "
        f"{short.lost + short.cut} lost, {short.events} trace events, "
        f"{short.end_ns / 1e6:.1f} ms, digest {short.digest}"
    ]
    for check in run.judgement.checks:
        lines.append(f"  {check.verdict.value:<8}{check.id} ({check.examined} examined)")
        lines += [
            f"           {violation.why}" for violation in check.violations[:SHOWN_VIOLATIONS_MAX]
        ]
    for check in run.judgement.control:
        lines.append(f"  not promised: {check.id}, {len(check.violations)} violations")
    return lines


def _report_many(
    scenario: Scenario, called: str, seeds: int, out: Path | None, as_json: bool
) -> None:
    verdicts: Counter[str] = Counter()
    probes: Counter[str] = Counter()
    failed: list[Outcome] = []
    events = 0
    for seed in range(1, seeds + 1):
        run = _simulate(scenario, called, seed)
        verdicts[run.verdict.value] += 1
        probes += run.probes
        events += run.world_events
        if run.verdict is Verdict.INVALID:
            failed.append(outcome(run))
            progress(f"seed {seed}: {run.judgement.why()}")
            if out is not None:
                progress(f"left in {write_run(run, out)}")
        elif out is not None:
            write_run(run, out)
        if seed % 100 == 0:
            progress(f"{seed} of {seeds} seeds, {len(failed)} failed")
    if as_json:
        emit_json(
            {
                "scenario": scenario.name,
                "algorithm": scenario.algorithm,
                "seeds": seeds,
                "verdicts": dict(verdicts),
                "world_events": events,
                "probes": dict(sorted(probes.items())),
                "failed": failed,
            }
        )
    else:
        shown = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        emit(f"{scenario.name}, {scenario.algorithm}: {seeds} seeds, {shown}")
        for name, count in sorted(probes.items()):
            emit(f"  {count:>9} × {name}")
        if failed:
            emit(failed[0].replay)
    if failed:
        raise SystemExit(EXIT_FAILED)


def _replay_file(path: Path, as_json: bool) -> None:
    try:
        with path.open("rb") as lines:
            replayed = replay_inputs(lines)
    except ValueError as error:
        raise click.UsageError(f"{path.name}: {error}") from None
    if as_json:
        emit_json(replayed)
        return
    emit(
        f"process {replayed.me}, {replayed.protocol}: {replayed.inputs} inputs, "
        f"{replayed.sends} sends, {replayed.malformed} malformed, {replayed.refused} refused"
    )
    for kind, count in sorted(replayed.counts().items()):
        emit(f"  {count:>9} {kind}")
