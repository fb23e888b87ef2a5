"""The demo's Spark process: audits the trace while it comes, then closes the books and reports."""

import io
import os
import queue
import shutil
import sys
import threading
from pathlib import Path

import msgspec

from orderwire.cli.demo.children import Leader
from orderwire.cli.demo.findings import Findings, Told, count_file, order_violations, summary
from orderwire.cli.demo.floor import floor_told
from orderwire.cli.demo.page import write_page
from orderwire.cli.demo.replicas import replicas_told
from orderwire.cli.demo.script import read_text
from orderwire.cli.demo.settings import (
    BOOK,
    CONTROL,
    DELIVERY_TOPIC,
    DISCOVERY,
    GUEST,
    LIFETIME_MS,
    ORDERED,
    TEXT_TOPIC,
    TRACE_TOPIC,
    AnalystSettings,
)
from orderwire.kernel import ms
from orderwire.pipeline.audit_jobs import SparkAudit, audit_files, audit_source
from orderwire.pipeline.audited_ingest import start_audited_ingest
from orderwire.pipeline.excerpts import delay_histogram, excerpt, news_of_discovery
from orderwire.pipeline.ingest import TopicSource, ingest
from orderwire.pipeline.lake import Lake
from orderwire.pipeline.live_audit import LiveAudit
from orderwire.pipeline.metrics import run_metrics
from orderwire.pipeline.metrics_model import metric_rows
from orderwire.pipeline.replication_audit import findings_of, history_frame, report_of
from orderwire.pipeline.session import SessionSettings, spark_session
from orderwire.pipeline.text import count_topic
from orderwire.report.discovery_figure import known_of
from orderwire.report.space_time import Inversion, MessageKey

APPLICATION = "demo"
LIVE_INTERVAL = "2 seconds"
LIVE_SECONDS_MAX = 300
REPLICAS_SECONDS_MAX = 120
"""How long the leader may take to say what became of the replicas, once they are read."""
GROUPS = (ORDERED, CONTROL)
RUNS = (*GROUPS, DISCOVERY)
SESSION_MEMORY_MIB = 640


def main() -> None:
    """Audit as the leader says; end at once when the leader is gone."""
    # Unbuffered: a thread that reads as this process ends would hold the buffer's lock.
    told = io.FileIO(sys.stdin.fileno(), closefd=False)
    settings = msgspec.json.decode(told.readline(), type=AnalystSettings)
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_follow_leader, args=(told, orders), daemon=True).start()
    found = analyse(settings, orders)
    page = write_page(Path(settings.folder), settings, found)
    Leader.say("found", found=summary(found, page))


def analyse(settings: AnalystSettings, orders: queue.SimpleQueue[bytes]) -> Findings:
    """Audit live until every member has left, then read everything back and judge it.

    `orders` has what became of the replicas, as JSON, once the leader has heard `ingested`.
    """
    folder = Path(settings.folder)
    source = TopicSource(bootstrap=settings.brokers)
    lake = Lake(folder / "lake")
    scratch = folder / "spark"
    session = SessionSettings(
        name="orderwire demo", memory_mib=SESSION_MEMORY_MIB, scratch=str(scratch)
    )
    with spark_session(session) as spark:
        live = LiveAudit(folder / "live", runs_expected=len(RUNS))
        records = source.stream(spark, TRACE_TOPIC)
        running = start_audited_ingest(records, live, lake, every=LIVE_INTERVAL)
        running.wait_until_reading(LIVE_SECONDS_MAX)
        Leader.say("listening")
        seen_live = running.finish(LIVE_SECONDS_MAX)
        _stage(f"live audit closed: {seen_live.verdict.value}")
        ingested = ingest(spark, source, lake, topics=[DELIVERY_TOPIC, TEXT_TOPIC])
        Leader.say("ingested")
        messages = lake.read(spark, "raw_messages")
        _stage(f"{ingested.raw_messages:,} records and {lake.rows('events'):,} events in the lake")
        with audit_files(spark, lake.files("events"), versioned=False) as audited:
            report = audited.report
            lake.append_batch("violations", audited.violations, APPLICATION, 0)
            inversion, span = _first_inversion(audited, f"{settings.run}/{CONTROL}")
        _stage(f"audited: {report.verdict.value}")
        events = lake.read(spark, "events")
        runs = run_metrics(events.where(events.run_id != f"{settings.run}/{DISCOVERY}"))
        lake.append_table("metrics", metric_rows(runs), APPLICATION, 0)
        metrics = {_group(run.run_id): run for run in runs}
        delays = {_group(run): buckets for run, buckets in delay_histogram(events).items()}
        around = [] if inversion is None else excerpt(events, f"{settings.run}/{CONTROL}", *span)
        discovery = f"{settings.run}/{DISCOVERY}"
        names = dict(enumerate([*settings.members, GUEST]))
        known = known_of(news_of_discovery(events, discovery), discovery, names)
        line = orders.get(timeout=REPLICAS_SECONDS_MAX)
        told = msgspec.json.decode(line, type=Told)
        with history_frame(spark, told.replicas.history) as history:
            replicas = replicas_told(told.replicas, report_of(findings_of(history)))
        _stage(f"replicas audited: {replicas['audit']['verdict']}")
        with audit_source(spark, told.floor.trace) as audited:
            run = next(run for run in audited.report.runs if _group(run.run_id) == BOOK)
            book = floor_told(told.floor, run)
        _stage(f"order book audited: {run.verdict.value}; counting the text")
        text = count_topic(messages.where(messages.topic == TEXT_TOPIC))
    shutil.rmtree(scratch, ignore_errors=True)
    original = read_text(None if settings.text_path is None else Path(settings.text_path))
    return Findings(
        audit=report,
        metrics=metrics,
        delays={group: delays.get(group, []) for group in GROUPS},
        text=text,
        file=count_file(original),
        live_violations={
            group: sum(check.violations for check in run.checks)
            if group == DISCOVERY
            else order_violations(run)
            for run in seen_live.runs
            for group in [_group(run.run_id)]
        },
        known=known,
        records=ingested.raw_messages,
        inversion=inversion,
        around=around,
        replicas=replicas,
        floor=told.floor,
        book=book,
    )


def _first_inversion(audited: SparkAudit, run_id: str) -> tuple[Inversion | None, tuple[int, int]]:
    """Return the run's first order violation, and from when to when its messages were under way."""
    rows = (
        audited.violations.where(f"run_id = '{run_id}' AND check = 'O1'")
        .orderBy("time_ns", "process", "position")
        .limit(1)
        .collect()
    )
    if not rows:
        return None, (0, 0)
    row = rows[0]
    inversion = Inversion(
        row.process,
        MessageKey(row.source, row.number),
        MessageKey(row.witness_source, row.witness_number),
    )
    return inversion, (row.time_ns - ms(2 * LIFETIME_MS), row.time_ns)


def _group(run_id: str) -> str:
    return run_id.rpartition("/")[2]


def _stage(text: str) -> None:
    Leader.say("stage", text=text)


def _follow_leader(told: io.RawIOBase, orders: queue.SimpleQueue[bytes]) -> None:
    """Take the leader's orders; end with it."""
    while line := told.readline():
        orders.put(line)
    os._exit(1)


if __name__ == "__main__":
    main()
