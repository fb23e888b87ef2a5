"""The audit of total order: CPU an event of T1 … T5, from 10⁵ to 10⁶ deliveries and more.

Made traces of a group with eight members, whose messages go to four: one send, eight receipts from
the channel and four deliveries each.  `order` is T1 and T2, `views` T3 and T4, `channel` T5; each
is told by the events that it reads.  `causal` is what the checks of causal order take in the same
run for the same trace, `one_process` is all of it with reading, `spark` the same on Spark.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from audit import make_trace, measured, on_spark, one_process
from harness import arguments, report

from orderwire.pipeline.session import SessionSettings, spark_session
from orderwire.verify.audit import plan_run
from orderwire.verify.group_synthetic import GroupTraceSettings
from orderwire.verify.kernels.lives import NO_LIVES
from orderwire.verify.kernels.slices import audit_slice
from orderwire.verify.kernels.survey import SURVEYED, survey
from orderwire.verify.source import ParquetSource
from orderwire.verify.total_audit import GROUP_PARTS, audit_part, read_part

MESSAGES = (25_000, 250_000)
QUICK_MESSAGES = (2_000, 20_000)
SWAPPED, DROPPED = 20, 10
TARGETS = {"cpu_of_ten_times_the_deliveries_max": 12.0}


def group_cpu_s(path: Path, settings: GroupTraceSettings) -> dict[str, tuple[int, float]]:
    """Events and CPU of each part, read before its time is taken; and of the causal checks."""
    source = ParquetSource([str(path)])
    run = settings.run_settings()
    costs: dict[str, tuple[int, float]] = {}
    for part in GROUP_PARTS:
        table = read_part(source, part, settings.run_id)
        before = time.process_time()
        audit_part(settings.run_id, part, table, run, NO_LIVES)
        costs[part] = (table.num_rows, time.process_time() - before)
    (surveyed,) = survey(source.batches(SURVEYED, None)).values()
    total = 0.0
    for piece in plan_run(surveyed, run):
        table = source.read(piece.run_id, piece.view_low, piece.view_high)
        before = time.process_time()
        audit_slice(table, piece, run)
        total += time.process_time() - before
    costs["causal"] = (surveyed.events, total)
    return costs


def main() -> int:
    """Run the benchmark."""
    options = arguments(__doc__, repeats=3).parse_args()
    sizes = QUICK_MESSAGES if options.quick else MESSAGES
    rows: dict[str, Any] = {}
    medians: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        warm = Path(name) / "warm.parquet"
        make_trace(warm, GroupTraceSettings(messages=100))
        one_process(warm)  # imports what is imported when it is needed
        for messages in sizes:
            path = Path(name) / f"{messages}.parquet"
            settings = GroupTraceSettings(messages=messages, swapped=SWAPPED, dropped=DROPPED)
            make_trace(path, settings)
            runs = [group_cpu_s(path, settings) for _ in range(options.repeats)]
            whole, found = measured(lambda at=path: one_process(at))  # type: ignore[misc]
            medians[messages] = {
                part: statistics.median(run[part][1] for run in runs) for part in runs[0]
            }
            rows[str(messages)] = {
                "events": pq.read_metadata(path).num_rows,
                "deliveries": settings.destinations * messages - DROPPED,
                "violations": {check.id: check.violations for check in found.checks},
                "us_per_event": {
                    part: round(1e6 * medians[messages][part] / runs[0][part][0], 3)
                    for part in runs[0]
                },
                "one_process": {"cpu_s": round(whole.cpu_s, 2), "wall_s": round(whole.wall_s, 2)},
            }
        with spark_session(SessionSettings(name="orderwire-benchmark")) as spark:
            on_spark(spark, Path(name) / f"{sizes[0]}.parquet")
            again, told = measured(lambda: on_spark(spark, Path(name) / f"{sizes[-1]}.parquet"))
        assert told == found, "Spark found something else"
        largest = rows[str(sizes[-1])]
        largest["spark"] = {"cpu_s": round(again.cpu_s, 2), "wall_s": round(again.wall_s, 2)}
    ratios = {
        f"{part}_cpu_of_ten_times_the_deliveries": round(
            medians[sizes[1]][part] / medians[sizes[0]][part], 2
        )
        for part in medians[sizes[0]]
    }
    parts = sum(medians[sizes[1]][part] for part in GROUP_PARTS)
    ratios["total_over_causal_cpu"] = round(parts / medians[sizes[1]]["causal"], 3)
    ratios["spark_over_one_process_cpu"] = round(again.cpu_s / whole.cpu_s, 3)
    report(
        "group_audit",
        ours={"by_messages": rows, "targets": TARGETS},
        rivals={},
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
