"""Many independent pieces of work on Spark: each a row in, each a row out, whatever happens to it.

Every row runs in a process of its own, forked from Spark's worker: an exception, a time-out and a
crash of the interpreter all become rows, on any master, and none needs a task to be tried again.
Finished rows are kept in Parquet, a file a wave; the next call leaves them out by an anti-join on
their keys, so at most one wave is lost.  Heavy rows go first, dealt out evenly.
[specs/pipeline.md:7]
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

TASKS_PER_CORE = 16
"""Most tasks of a wave for each core: enough that uneven rows even out."""
PROGRESS_SECONDS = 2.0
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

    `run` gets a row's `spec`; it must be importable, or picklable, in Spark's workers.  A row that
    takes longer than `limit_s` seconds is ended.  `tell` is told how far it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replays = {each.key: each.replay for each in work}
    cores = max(1, spark.sparkContext.defaultParallelism)
    left = _left(spark, work, folder)
    if len(left) < len(work):
        tell(f"{len(work) - len(left)} of {len(work)} rows are done already")
    tasks_max = cores * TASKS_PER_CORE
    done = len(work) - len(left)
    for at in range(0, len(left), tasks_max):
        wave = left[at : at + tasks_max]
        found = _wave(spark, wave, run, limit_s, _teller(tell, done, len(work)))
        _append(folder, [_with_replay(each, replays) for each in found])
        done += len(wave)
        _teller(tell, done, len(work))(0)
    kept = {each.key: each for each in results(folder)}
    return [kept[each.key] for each in work]


def results(folder: Path) -> list[Result]:
    """Return the newest result of every key in this folder; a good one is never replaced."""
    found: dict[str, Result] = {}
    for path in sorted(folder.glob("wave-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            each = msgspec.convert(row, Result)
            if each.key not in found or found[each.key].status != "ok":
                found[each.key] = each
    return list(found.values())


def _teller(tell: Callable[[str], None], before: int, total: int) -> Callable[[int], None]:
    return lambda done: tell(f"{before + done} of {total} rows")


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


def _wave(
    spark: SparkSession,
    wave: Sequence[Work],
    run: Callable[[str], str],
    limit_s: float,
    tell: Callable[[int], None],
) -> list[Result]:
    """Run these rows, a task each, in this order."""
    table = pa.table(
        [
            [each.key for each in wave],
            [each.spec for each in wave],
            pa.array(range(len(wave)), pa.int32()),
        ],
        schema=WORK,
    )
    frame = spark.createDataFrame(table).repartitionById(len(wave), "task")

    def each_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                found = run_apart(run, row["key"], row["spec"], limit_s)
                yield pa.RecordBatch.from_pylist([msgspec.to_builtins(found)], RESULTS)

    schema = ", ".join(f"{name} {_SQL[kind]}" for name, kind in zip(*_columns(), strict=True))
    group = f"orderwire-sweep-{wave[0].key}"
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, group, over, tell), daemon=True)
    spark.sparkContext.setJobGroup(group, "sweep")
    watcher.start()
    try:
        rows = frame.mapInArrow(each_batch, schema).toArrow().to_pylist()
    finally:
        over.set()
        watcher.join()
    return [msgspec.convert(row, Result) for row in rows]


_SQL = {pa.string(): "string", pa.float64(): "double"}


def _columns() -> tuple[list[str], list[pa.DataType]]:
    return RESULTS.names, RESULTS.types


def _watch(
    spark: SparkSession, group: str, over: threading.Event, tell: Callable[[int], None]
) -> None:
    """Tell how many tasks of this job group are done, when it changes."""
    tracker = spark.sparkContext.statusTracker()
    told = 0
    while not over.wait(PROGRESS_SECONDS):
        done = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            stages = () if info is None else info.stageIds
            last = tracker.getStageInfo(max(stages)) if stages else None
            done += 0 if last is None else last.numCompletedTasks
        if done > told:
            told = done
            tell(done)


def _append(folder: Path, found: Sequence[Result]) -> None:
    """Add a file that appears whole or not at all."""
    number = len(list(folder.glob("wave-*.parquet")))
    path = folder / f"wave-{number:06}.parquet"
    table = pa.Table.from_pylist([msgspec.to_builtins(each) for each in found], RESULTS)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished)
    unfinished.replace(path)


def run_apart(run: Callable[[str], str], key: str, spec: str, limit_s: float) -> Result:
    """Run one row in a forked process and say what came of it."""
    began = time.monotonic()
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        _child(run, spec, reads, writes)
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


def _child(run: Callable[[str], str], spec: str, reads: int, writes: int) -> None:
    """Do the work, write the result into the pipe, and end without touching anything else."""
    os.close(reads)
    try:
        answer = b"+" + run(spec).encode()
    except BaseException as error:
        answer = b"-" + f"{type(error).__name__}: {error}".encode()
    view = memoryview(answer)
    while view:
        view = view[os.write(writes, view) :]
    os._exit(0)


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
