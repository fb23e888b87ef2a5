"""What the demo found: the audit, the measures, the text, and the shape that programs rely on."""

from pathlib import Path
from typing import Any

import msgspec

from orderwire.cli.demo.floor import FoundFloor, floor_holds
from orderwire.cli.demo.replicas import FoundReplicas, replicas_hold
from orderwire.cli.demo.settings import CONTROL, DISCOVERY, ORDERED
from orderwire.kernel import NS_PER_MS
from orderwire.pipeline.excerpts import DelayBucket
from orderwire.pipeline.metrics_model import RunMetrics
from orderwire.pipeline.text import TextResult
from orderwire.pipeline.text_count import TextCounts
from orderwire.report.discovery_cost import hops_of
from orderwire.report.discovery_figure import Known
from orderwire.report.space_time import Inversion
from orderwire.trace.events import Event
from orderwire.verify.report import Report, RunReport
from orderwire.verify.verdict import Verdict

CONTINUATION_MASK, CONTINUATION_BITS = 0xC0, 0x80


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader tells the analyst in the end."""

    replicas: FoundReplicas
    floor: FoundFloor


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the report shows."""

    audit: Report
    metrics: dict[str, RunMetrics]
    """By group: ordered, control."""
    delays: dict[str, list[DelayBucket]]
    text: TextResult
    file: TextCounts
    """What the text's own file holds, counted without Spark."""
    live_violations: dict[str, int]
    """Violations that the streaming audit saw, by run: of order, or of discovery."""
    known: Known | None
    """Who knew whom, and when."""
    records: int
    """Records of the topics of deliveries and text, in the lake."""
    inversion: Inversion | None
    """The control group's first violation."""
    around: list[Event]
    """What happened around it."""
    replicas: dict[str, Any]
    """What `replicas_told` tells."""
    floor: FoundFloor
    """What the traders told."""
    book: dict[str, Any]
    """What `floor_told` tells."""

    def run(self, group: str) -> RunReport:
        """Return the audit of one group."""
        return next(run for run in self.audit.runs if run.run_id.endswith(f"/{group}"))


def discovery_of(found: Findings) -> dict[str, Any]:
    """Return what the audit says of the discovery."""
    run = found.run(DISCOVERY)
    seen = run.discovery
    assert seen is not None, "the run of discovery tells of none"
    lasting = {
        name: None if ns is None else round(ns / NS_PER_MS, 1)
        for name, ns in (("p50_ms", seen.from_both.p50_ns), ("max_ms", seen.from_both.max_ns))
    }
    return {
        "verdict": run.verdict.value,
        "checks": {check.id: check.verdict.value for check in run.checks},
        "violations": sum(check.violations for check in run.checks),
        "violations_seen_live": found.live_violations[DISCOVERY],
        "lives": seen.lives,
        "pairs_missing_at_the_end": seen.series[-1].missing,
        "known_after_both_were_there": lasting,
        "messages": sum(message.posted for message in seen.messages),
        "bytes": sum(message.posted_bytes for message in seen.messages),
        "hops_max": max(hops_of(seen), default=0),
    }


def count_file(text: bytes) -> TextCounts:
    """Count a text's bytes, characters and words in plain Python."""
    characters = sum(byte & CONTINUATION_MASK != CONTINUATION_BITS for byte in text)
    return TextCounts(bytes=len(text), characters=characters, words=len(text.split()))


def order_violations(run: RunReport) -> int:
    """Return how many deliveries broke causal order."""
    return next(check.violations for check in run.checks if check.id == "O1")


def control_bytes(found: Findings) -> dict[str, float]:
    """Return the mean control bytes of a copy: ours, measured, and what fixed tags would take.

    Ours is everything but the payload as it was on the wire, stamp and destination set included;
    the others count their tag alone, 4 bytes an integer.
    """
    metrics = found.metrics[ORDERED]
    members = len(metrics.members)
    return {
        "ours": round(metrics.total.control_bytes_per_copy or 0.0, 2),
        "unordered": round(found.metrics[CONTROL].total.control_bytes_per_copy or 0.0, 2),
        "vector_clock": 4.0 * members,
        "rst_matrix": 4.0 * members * members,
    }


def summary(found: Findings, report: Path) -> dict[str, Any]:
    """Return the JSON object of `orderwire demo --json`, without the seconds."""
    groups: dict[str, Any] = {}
    sound = True
    for name in (ORDERED, CONTROL):
        run = found.run(name)
        books = run.accounting
        groups[name] = {
            "written": books["written"],
            "delivered": books["delivered"],
            "late": books["late"],
            "lost": books["lost"],
            "violations": order_violations(run),
            "violations_seen_live": found.live_violations[name],
        }
        accounted = books["delivered"] + books["late"] + books["lost"] == books["written"]
        sound &= run.verdict is Verdict.VALID and accounted
    sound &= groups[ORDERED]["violations"] == 0
    sound &= groups[CONTROL]["violations"] > 0
    sound &= found.run(DISCOVERY).verdict is Verdict.VALID
    sound &= replicas_hold(found.replicas)
    sound &= floor_holds(found.book)
    counted = found.text.total
    matches = counted == found.file and not found.text.missing
    return {
        "verdict": (Verdict.VALID if sound and matches else Verdict.INVALID).value,
        **groups,
        "discovery": discovery_of(found),
        "text": {**msgspec.structs.asdict(counted), "matches_file": matches},
        "control_bytes": control_bytes(found),
        "records": found.records,
        "replicas": found.replicas,
        "book": found.book,
        "report": str(report),
    }
