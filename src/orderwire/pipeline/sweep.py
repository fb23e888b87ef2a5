"""Many independent pieces of work on Spark: each a row in, each a row out, whatever happens to it.

Every row is a task of its own, and in it a process of its own, forked from Spark's worker: an
exception, a time-out and a crash of the interpreter all become rows, on any master, and none needs
a task to be tried again.  Heavy rows go first, each a job; light ones share a job; there is one
job more at once than Spark has cores, and the next begins when one is done.  What a job found is
kept in Parquet at once; the next call leaves it out by an anti-join on the keys.
[specs/pipeline.md:7]
"""

import atexit
import os
import re
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

JOB_SECONDS = 5.0
"""Light rows share a job of about so long: a job costs Spark some tenths of a second."""
ROWS_PER_JOB_MAX = 64
SHIPPED = "orderwire-source.zip"
_IN_PROCESS = re.compile(r"local(\[|$)")
ORPHAN_SECONDS = 1.0
"""How soon a row's process ends after the worker that it belongs to."""
PROGRESS_SECONDS = 2.0
"""Least time between two tellings."""
RESULT_BYTES_MAX = 1 << 24
ERROR_CHARACTERS_MAX = 2_000

WORK = pa.schema([("key", pa.string()), ("spec", pa.string()), ("task", pa.int32())])
RESULTS = pa.schema(
    [
        ("key", pa.string()),
        ("spec", pa.string()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("seconds", pa.float64()),
        ("result", pa.string()),
        ("replay", pa.string()),
    ]
)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One row of work."""

    key: str
    """Fingerprint of everything the result depends on."""
    spec: str
    """What is to be done, as the function that does it understands it."""
    cost: float = 1.0
    """Estimated, in any unit."""
    replay: str = ""
    """The command that does this row again."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one row of work."""

    key: str
    spec: str
    status: str
    """`ok`, `failed` (an exception), `timeout` or `crashed`."""
    error: str
    seconds: float
    result: str
    """What the function returned; empty unless `ok`."""
    replay: str


def sweep(
    spark: SparkSession,
    work: Sequence[Work],
    run: Callable[[str], str],
    folder: Path,
    *,
    limit_s: float,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Do all work that `folder` has no good result of; return all results, in `work`'s order.

    `run` gets a row's `spec`; it must be importable, or picklable, in Spark's workers: this package
    is shipped to other machines, what it needs must be there.  `folder` is the driver's alone.  A
    row that takes longer than `limit_s` seconds is ended.  `tell` is told how far it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _ship(spark)
    replays = {each.key: each.replay for each in work}
    cores = max(1, spark.sparkContext.defaultParallelism)
    left = _left(spark, work, folder)
    if len(left) < len(work):
        tell(f"{len(work) - len(left)} of {len(work)} rows are done already")
    progress = _Progress(left, len(work), tell)
    tag = f"orderwire-sweep-{os.getpid()}-{time.monotonic_ns()}"

    def act(job: Sequence[Work]) -> list[Result]:
        spark.sparkContext.addJobTag(tag)
        return _job(spark, job, run, limit_s)

    running: dict[Future[list[Result]], list[Work]] = {}
    with ThreadPoolExecutor(cores + 1) as pool:  # One waits, so that no core does.
        try:
            while left or running:
                while left and len(running) <= cores:
                    job = progress.next_job(left)
                    running[pool.submit(act, job)] = job
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    found = done.result()
                    _append(folder, [_with_replay(each, replays) for each in found])
                    progress.done(running.pop(done), found)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            spark.sparkContext.cancelJobsWithTag(tag)
            raise
    kept = {each.key: each for each in results(folder)}
    return [kept[each.key] for each in work]


def _ship(spark: SparkSession) -> None:
    """Let executors elsewhere run this very code, whatever version they have, or none."""
    context = spark.sparkContext
    if _IN_PROCESS.match(context.master or "") or any(
        SHIPPED in name for name in context.listFiles
    ):
        return
    root = Path(__file__).parent.parent  # This package.
    scratch = tempfile.mkdtemp(prefix="orderwire-source-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)  # The driver serves it from there.
    path = Path(scratch) / SHIPPED
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for source in sorted(root.rglob("*.py")):
            archive.write(source, source.relative_to(root.parent))
    context.addPyFile(str(path))


def results(folder: Path) -> list[Result]:
    """Return the newest result of every key in this folder; a good one is never replaced."""
    found: dict[str, Result] = {}
    for path in sorted(folder.glob("part-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            each = msgspec.convert(row, Result)
            if each.key not in found or found[each.key].status != "ok":
                found[each.key] = each
    return list(found.values())


class _Progress:
    """Learns from the rows that are done how long the others take, if they cost as estimated."""

    def __init__(self, left: Sequence[Work], total: int, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._total = total
        self._finished = total - len(left)
        self._cost = sum(each.cost for each in left)
        self._spent = self._seconds = 0.0
        self._began = self._told = time.monotonic()

    def next_job(self, left: list[Work]) -> list[Work]:
        """Take rows of about `JOB_SECONDS`, at least one; nothing is known before the first."""
        seconds = 0.0
        count = 0
        while count < min(len(left), ROWS_PER_JOB_MAX) and (not count or seconds < JOB_SECONDS):
            rate = self._seconds / self._spent if self._spent else JOB_SECONDS
            seconds += left[count].cost * rate
            count += 1
        job = left[:count]
        del left[:count]
        return job

    def done(self, job: Sequence[Work], found: Sequence[Result]) -> None:
        """Count what is done, and tell it now and then."""
        self._finished += len(job)
        self._spent += sum(each.cost for each in job)
        self._seconds += sum(each.seconds for each in found)
        now = time.monotonic()
        if now - self._told < PROGRESS_SECONDS and self._finished < self._total:
            return
        self._told = now
        text = f"{self._finished} of {self._total} rows"
        if self._finished < self._total:
            left_s = (now - self._began) * (self._cost / self._spent - 1)
            text += f", about {_duration(left_s)} left"
        self._tell(text)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _with_replay(each: Result, replays: dict[str, str]) -> Result:
    return msgspec.structs.replace(each, replay=replays[each.key])


def _left(spark: SparkSession, work: Sequence[Work], folder: Path) -> list[Work]:
    """Return what has no good result yet, heavy rows first."""
    keys = {each.key for each in work}
    done = [each.key for each in results(folder) if each.status == "ok"]
    if done:
        wanted = spark.createDataFrame(pa.table({"key": [each.key for each in work]}))
        had = spark.createDataFrame(pa.table({"key": done}))
        keys = set(wanted.join(had, "key", "left_anti").toArrow()["key"].to_pylist())
    left = [each for each in work if each.key in keys]
    return sorted(left, key=lambda each: (-each.cost, each.key))


def _job(
    spark: SparkSession, job: Sequence[Work], run: Callable[[str], str], limit_s: float
) -> list[Result]:
    """Run these rows, a task each."""
    table = pa.table(
        [
            [each.key for each in job],
            [each.spec for each in job],
            pa.array(range(len(job)), pa.int32()),
        ],
        schema=WORK,
    )
    frame = spark.createDataFrame(table).repartitionById(len(job), "task")

    def each_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                found = run_apart(run, row["key"], row["spec"], limit_s)
                yield pa.RecordBatch.from_pylist([msgspec.to_builtins(found)], RESULTS)

    schema = ", ".join(f"{name} {_SQL[kind]}" for name, kind in zip(*_columns(), strict=True))
    rows = frame.mapInArrow(each_batch, schema).toArrow().to_pylist()
    return [msgspec.convert(row, Result) for row in rows]


_SQL = {pa.string(): "string", pa.float64(): "double"}


def _columns() -> tuple[list[str], list[pa.DataType]]:
    return RESULTS.names, RESULTS.types


def _append(folder: Path, found: Sequence[Result]) -> None:
    """Add a file that appears whole or not at all, and that no other sweep writes."""
    number = len(list(folder.glob("part-*.parquet")))
    path = folder / f"part-{number:06}-{os.getpid()}.parquet"
    table = pa.Table.from_pylist([msgspec.to_builtins(each) for each in found], RESULTS)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished)
    unfinished.replace(path)


def run_apart(run: Callable[[str], str], key: str, spec: str, limit_s: float) -> Result:
    """Run one row in a forked process and say what came of it."""
    began = time.monotonic()
    reads, writes = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        _child(run, spec, parent, reads, writes)
    os.close(writes)
    data = _read(reads, began + limit_s)
    os.close(reads)
    if data is None:
        os.kill(child, signal.SIGKILL)
    _, how = os.waitpid(child, 0)
    if data is None:
        status, text = "timeout", f"took longer than {limit_s:g} s"
    elif not data or how:
        code = os.waitstatus_to_exitcode(how)
        why = f"signal {-code}" if code < 0 else f"exit status {code}"
        status, text = "crashed", f"the process ended by {why}"
    else:
        status, text = ("ok" if data[:1] == b"+" else "failed"), data[1:].decode()
    good = status == "ok"
    return Result(
        key=key,
        spec=spec,
        status=status,
        error="" if good else text[:ERROR_CHARACTERS_MAX],
        seconds=time.monotonic() - began,
        result=text if good else "",
        replay="",
    )


def _child(run: Callable[[str], str], spec: str, parent: int, reads: int, writes: int) -> None:
    """Do the work, write the result into the pipe, and end without touching anything else."""
    os.close(reads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        answer = b"+" + run(spec).encode()
    except BaseException as error:
        answer = b"-" + f"{type(error).__name__}: {error}".encode()
    view = memoryview(answer)
    while view:
        view = view[os.write(writes, view) :]
    os._exit(0)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended: Spark kills workers, not what they forked."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def _read(pipe: int, until: float) -> bytes | None:
    """Read to the end of the pipe; None when the time is up."""
    parts: list[bytes] = []
    size = 0
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None
        part = os.read(pipe, 1 << 16)
        if not part:
            return b"".join(parts)
        size += len(part)
        assert size <= RESULT_BYTES_MAX, f"a result of more than {RESULT_BYTES_MAX} bytes"
        parts.append(part)
