"""What a run leaves on disk: `runs/<scenario>/<seed>/`."""

from pathlib import Path

import msgspec

from orderwire.sim.diagram import explain, space_time
from orderwire.sim.run import Run
from orderwire.trace import Event, EventKind, write_trace
from orderwire.verify.verdict import Verdict, Violation

DIAGRAM_EVENTS = 120
"""How much of a run without violation is drawn."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run in short, for machines."""

    scenario: str
    seed: int
    algorithm: str
    verdict: Verdict
    why: str
    digest: str
    events: int
    """Of the trace."""
    world_events: int
    end_ns: int
    members: int
    messages: int
    """Multicasts."""
    copies: int
    """Copies that left."""
    lost: int
    cut: int
    duplicated: int
    violations: dict[str, int]
    """Per promised check."""
    control: dict[str, int]
    """Per order that was not promised."""
    probes: dict[str, int]
    replay: str


def outcome(run: Run) -> Outcome:
    """Return the run in short."""
    counts = run.counts
    sends = [event for event in run.events if event.kind is EventKind.SEND]
    return Outcome(
        scenario=run.scenario.name,
        seed=run.seed,
        algorithm=run.scenario.algorithm,
        verdict=run.verdict,
        why=run.judgement.why(),
        digest=run.digest,
        events=len(run.events),
        world_events=run.world_events,
        end_ns=run.end_ns,
        members=run.scenario.settings.members,
        messages=len(sends),
        copies=sum(_copies(event) for event in sends),
        lost=counts.lost,
        cut=counts.cut,
        duplicated=counts.duplicated,
        violations={check.id: len(check.violations) for check in run.judgement.checks},
        control={check.id: len(check.violations) for check in run.judgement.control},
        probes=dict(sorted(run.probes.items())),
        replay=run.replay_line,
    )


def _copies(send: Event) -> int:
    """Return how many copies this multicast sent over links."""
    mask = int.from_bytes(send.destinations, "little")
    return (mask & ~(1 << send.process)).bit_count()


def diagram(run: Run) -> str:
    """Draw the first violation of an order, promised or not; else the beginning of the run."""
    violation = first_ordered_pair(run)
    if violation is None:
        window = run.events[:DIAGRAM_EVENTS]
        return space_time(run.events, last_ns=window[-1].time_ns if window else 0)
    first = (violation.source, violation.number)
    second = (violation.other_source, violation.other_number)
    return f"{violation.check}: {violation.why}\n\n{explain(run.events, first, second)}"


def first_ordered_pair(run: Run) -> Violation | None:
    """Return the first violation that concerns two messages, of two senders if there is one."""
    pairs = [
        violation
        for check in (*run.judgement.checks, *run.judgement.control)
        for violation in check.violations
        if violation.other_source >= 0
    ]
    for violation in pairs:
        if violation.source != violation.other_source:
            return violation
    return pairs[0] if pairs else None


def write_run(run: Run, root: Path) -> Path:
    """Write settings, trace, verdict, digest and diagram; return the folder."""
    folder = root / run.scenario.name / str(run.seed)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "settings.json", run.scenario)
    write_trace(folder / "trace.arrow", run.events)
    _write_json(folder / "verdict.json", run.judgement)
    _write_json(folder / "outcome.json", outcome(run))
    (folder / "digest").write_text(f"{run.digest}\n")
    (folder / "diagram.txt").write_text(diagram(run), encoding="utf-8")
    (folder / "replay").write_text(f"{run.replay_line}\n")
    return folder


def _write_json(path: Path, value: msgspec.Struct) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
