"""The streaming audit: each micro-batch is audited as far as every process has come.

Memory and disk are bounded by Δ.

No streaming state: a batch turns the state files of the batch before into its own, in the tasks,
and one small file on the driver says which batch was the last.  A replayed batch finds either the
files it started from or its number in that file, and changes nothing twice.
[specs/pipeline.md:5.9]
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from orderwire.kernel import NS_PER_S
from orderwire.pipeline.audit_tasks import pack, unpack
from orderwire.pipeline.errors import PipelineError
from orderwire.trace.reader import read_record
from orderwire.verify.audit import AuditOptions
from orderwire.verify.kernels.violations import merge
from orderwire.verify.live import LiveRun
from orderwire.verify.report import Report, combine

_POLL_SECONDS = 0.2
_WAITS = "Waiting for "
"""How Spark's word for a query begins that has nothing to do."""
_STEP_DDL = (
    "run_id string, state string, finished boolean, left_behind boolean, silent array<int>,"
    " late bigint, held bigint, violations binary"
)
_STEP = pa.schema(
    [
        ("run_id", pa.string()),
        ("state", pa.string()),
        ("finished", pa.bool_()),
        ("left_behind", pa.bool_()),
        ("silent", pa.list_(pa.int32())),
        ("late", pa.int64()),
        ("held", pa.int64()),
        ("violations", pa.binary()),
    ]
)


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the audit of one run is."""

    state: str
    """File of its state, relative to the audit's folder."""
    finished: bool
    left_behind: bool
    """Only silent members have not ended."""
    silent: list[int]
    """Members without END of which nothing comes while the others go on."""
    late: int
    """Events that came when what they tell of was closed: the run is never VALID."""
    held: int
    """Events kept until the next batch."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What the last batch left."""

    batch: int = -1
    runs: dict[str, RunProgress] = {}


class LiveAudit:
    """The state of a streaming audit in a folder that driver and workers share.

    `take` is for `foreachBatch`, alone or beside what else is done with a batch of trace records.
    """

    def __init__(
        self, folder: Path | str, options: AuditOptions | None = None, *, runs_expected: int = 1
    ) -> None:
        options = options or AuditOptions()
        if options.waiting or options.clocks:
            raise ValueError("waiting and clocks need a whole trace: audit it when it has ended")
        self.folder = Path(folder).absolute()
        self._options = options
        self._runs_expected = runs_expected
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def ended(self) -> bool:
        """All runs that were expected have ended and are judged."""
        return self._all_ended(self.progress())

    @property
    def silence_ns(self) -> int:
        """How long a member may be silent."""
        return self._options.silence_ns

    def left_behind(self, progress: Progress) -> bool:
        """Tell whether all expected runs are finished, but for members that are silent."""
        runs = progress.runs.values()
        all_there = len(runs) >= self._runs_expected
        return (
            all_there
            and all(about.finished or about.left_behind for about in runs)
            and any(about.left_behind for about in runs)
        )

    def progress(self) -> Progress:
        """Read how far the audit is."""
        try:
            return msgspec.json.decode((self.folder / "progress.json").read_bytes(), type=Progress)
        except FileNotFoundError:
            return Progress()

    def take(self, messages: DataFrame, batch: int) -> None:
        """Audit a micro-batch of a trace topic: its columns `key` and `value`."""
        before = self.progress()
        if batch <= before.batch or self._all_ended(before):
            return
        states = {run: about.state for run, about in before.runs.items()}
        work = partial(
            audit_records,
            folder=str(self.folder),
            batch=batch,
            states=states,
            options=self._options,
        )
        # The key is RUN/PROCESS: records of one run go to one task, in whatever order.
        run = F.expr("substring_index(cast(key as string), '/', 1)")
        steps = messages.select("key", "value").repartition(run).mapInArrow(work, _STEP_DDL)
        done = steps.toArrow()
        found = [unpack(payload) for payload in done.column("violations").to_pylist()]
        self._write_violations(batch, found)
        after = Progress(batch=batch, runs=before.runs | _progress_of(done))
        _replace(self.folder / "progress.json", msgspec.json.encode(after))
        self._forget(after)

    def report(self) -> Report:
        """Conclude from what has come so far; runs that have not ended are never VALID."""
        reports = []
        for run_id, about in sorted(self.progress().runs.items()):
            live = LiveRun.load(run_id, (self.folder / about.state).read_bytes(), self._options)
            reports.append(live.report())
        return combine(reports)

    def conclude(self) -> None:
        """Finish the runs of which only silent members are left; no query may be running.

        What they say afterwards is late.
        """
        before = self.progress()
        runs, found = dict(before.runs), []
        for run_id, about in before.runs.items():
            if about.left_behind:
                live = LiveRun.load(run_id, (self.folder / about.state).read_bytes(), self._options)
                found.append(live.conclude())
                state = Path(about.state).with_suffix(".concluded")
                _replace(self.folder / state, live.dump())
                runs[run_id] = RunProgress(state=str(state), **_about(live))
        if found:
            earlier = self.folder / "violations" / f"{before.batch}.parquet"
            if earlier.exists():
                found.append(pq.read_table(earlier, partitioning=None))
            self._write_violations(before.batch, found)
        after = Progress(batch=before.batch, runs=runs)
        _replace(self.folder / "progress.json", msgspec.json.encode(after))

    def violations(self) -> pa.Table:
        """Return every violation found so far, as rows."""
        last = self.progress().batch
        files = [path for path in self._violation_files() if int(path.stem) <= last]
        return merge([pq.read_table(path, partitioning=None) for path in files])

    def _write_violations(self, batch: int, found: list[pa.Table]) -> None:
        rows = merge(found)
        path = self.folder / "violations" / f"{batch}.parquet"
        if rows.num_rows:
            path.parent.mkdir(exist_ok=True)
            sink = pa.BufferOutputStream()
            pq.write_table(rows, sink)
            _replace(path, sink.getvalue().to_pybytes())
        else:
            path.unlink(missing_ok=True)

    def _violation_files(self) -> list[Path]:
        files = (self.folder / "violations").glob("*.parquet")
        return sorted(files, key=lambda path: int(path.stem))

    def _forget(self, progress: Progress) -> None:
        """Remove the states that no run refers to any more."""
        used = {Path(about.state).parts[1] for about in progress.runs.values()}
        for folder in (self.folder / "states").glob("*"):  # none before the first event
            if folder.name not in used:
                shutil.rmtree(folder, ignore_errors=True)

    def _all_ended(self, progress: Progress) -> bool:
        finished = [about.finished for about in progress.runs.values()]
        return len(finished) >= self._runs_expected and all(finished)


class Patience:
    """Tells when runs that have only silent members left have been waited for long enough."""

    def __init__(self, audit: LiveAudit) -> None:
        self._audit = audit
        self._seen: Progress | None = None
        self._since_s = 0.0

    def over(self, now_s: float) -> bool:
        """Look again: has nothing come for the time that a member may be silent?"""
        progress = self._audit.progress()
        if self._seen is None or progress.runs != self._seen.runs:
            self._seen, self._since_s = progress, now_s
        waited_ns = (now_s - self._since_s) * NS_PER_S
        return self._audit.left_behind(progress) and waited_ns >= self._audit.silence_ns


class RunningAudit:
    """A streaming audit and its query."""

    def __init__(self, audit: LiveAudit, query: StreamingQuery) -> None:
        self.audit = audit
        self.query = query

    def wait_until_reading(self, seconds: float) -> None:
        """Return when the source's worker runs, and what was there is read.

        Spark grants a worker ten seconds to start, too little where much else starts at that time.
        Raises PipelineError when the time is over, and what the query failed with.
        """
        deadline = time.monotonic() + seconds
        while not self.query.status["message"].startswith(_WAITS):
            if not self.query.isActive:
                self.query.awaitTermination()  # raises what it failed with
            if time.monotonic() > deadline:
                raise PipelineError(f"the audit does not read after {seconds} s")
            time.sleep(_POLL_SECONDS)

    def finish(self, seconds: float) -> Report:
        """Wait for the end of all expected runs, or of the query, then stop it and conclude.

        A member that has been silent behind the others (`AuditOptions.silence_ns`) when they ended
        is waited for as long again, by this machine's clock, after the last batch.  Raises
        PipelineError when the time is over, and what the query failed with.
        """
        deadline = time.monotonic() + seconds
        patience = Patience(self.audit)
        try:
            while not self.audit.ended:
                time.sleep(_POLL_SECONDS)
                if patience.over(time.monotonic()):
                    break
                if not self.query.isActive:
                    self.query.awaitTermination()  # raises what it failed with
                    break
                if time.monotonic() > deadline:
                    progress = self.audit.progress()
                    left = [run for run, about in progress.runs.items() if not about.finished]
                    raise PipelineError(
                        f"the audit has not ended within {seconds} s: "
                        f"{len(progress.runs)} runs seen, not ended: {left[:5]}"
                    )
        finally:
            self.query.stop()
        if patience.over(time.monotonic()):
            self.audit.conclude()
        return self.audit.report()


def start_live_audit(
    messages: DataFrame, audit: LiveAudit, *, every: str | None = None
) -> RunningAudit:
    """Start the audit of a stream of trace records.

    `every` is the interval between micro-batches (`"1 second"`); None ends the query when it has
    read what was there at its start.  Started again on the same folder it goes on.
    """
    checkpoint = audit.folder / "checkpoint"
    writer = messages.writeStream.queryName("live audit").foreachBatch(audit.take)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=every)
    return RunningAudit(audit, writer.start())


def audit_records(
    batches: Iterable[pa.RecordBatch],
    folder: str,
    batch: int,
    states: Mapping[str, str],
    options: AuditOptions,
) -> Iterator[pa.RecordBatch]:
    """Feed the records of a task to their runs; write each run's new state, say what was found."""
    values = (value for part in batches for value in part.column("value"))
    tables = [read_record(value.as_buffer()) for value in values if value.is_valid]
    if not tables:
        return
    events = pa.concat_tables(tables)
    for run_id in sorted(pc.unique(events.column("run_id")).to_pylist()):
        if run_id in states:
            content = (Path(folder) / states[run_id]).read_bytes()
            live = LiveRun.load(run_id, content, options)
        else:
            live = LiveRun(run_id, options)
        found = live.feed(events.filter(pc.equal(events.column("run_id"), run_id)))
        name = hashlib.sha256(run_id.encode()).hexdigest()[:16]
        state = Path("states") / str(batch) / f"{name}.state"
        (Path(folder) / state).parent.mkdir(parents=True, exist_ok=True)
        _replace(Path(folder) / state, live.dump())
        row = {"run_id": run_id, "state": str(state), "violations": pack(found), **_about(live)}
        yield pa.RecordBatch.from_pylist([row], schema=_STEP)


def _about(live: LiveRun) -> dict[str, Any]:
    return {
        "finished": live.finished,
        "left_behind": live.left_behind,
        "silent": live.state.silent,
        "late": sum(live.state.late.values()),
        "held": live.held,
    }


def _progress_of(done: pa.Table) -> dict[str, RunProgress]:
    rows = done.drop_columns("violations").to_pylist()
    return {row.pop("run_id"): RunProgress(**row) for row in rows}


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that it is there wholly or not at all."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    scratch.write_bytes(content)
    scratch.replace(path)
