"""T1 of a run that still goes on: two members have what both have in the same order.

Deliveries are kept for two windows.  Where each comes within a window of its send, two members that
disagree do so within these: that a delivery is slower, `live` finds out by itself.  Linear, as the
kernel is, in deliveries; each is looked at three or four times.
"""

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import EventKind
from orderwire.trace.schema import arrow_schema
from orderwire.verify.kernels.lives import Lives, lined_up
from orderwire.verify.kernels.total_columns import GROUP_NEEDED, group_columns_of
from orderwire.verify.kernels.total_order import total_order
from orderwire.verify.kernels.violations import no_violations

WINDOWS = 2
_KEPT = pa.schema([arrow_schema().field(name) for name in GROUP_NEEDED])


class LiveTotal:
    """Compares the logs of one run's members, window by window."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.disagreeing: set[tuple[int, int]] = set()
        """Pairs of members that were reported."""
        self.kept = _KEPT.empty_table()

    def close(
        self, held: pa.Table, low: int, high: int, window_ns: int, members: int, lives: Lives
    ) -> pa.Table:
        """Judge the deliveries from `low` to `high` too; return a row for every two members that
        disagree and did not so far.
        """
        new = held.filter(
            (pc.field("kind") == EventKind.DELIVER.value)
            & (pc.field("time_ns") >= low)
            & (pc.field("time_ns") < high)
        )
        for name in ("incarnation", "channel_number"):
            new = new.append_column(_KEPT.field(name), pa.nulls(new.num_rows, pa.int64()))
        deliveries = pa.concat_tables([self.kept, new.select(_KEPT.names).cast(_KEPT)])
        found = total_order(self._run_id, group_columns_of(lined_up(deliveries, lives), members))
        kept = pc.field("time_ns") >= high - WINDOWS * window_ns
        self.kept = deliveries.filter(kept).combine_chunks()
        return self._news(found.filter(pc.field("check") == "T1"))

    def _news(self, found: pa.Table) -> pa.Table:
        """Return those of whom nothing was said; a pair is told once."""
        rows = []
        details = found.column("detail").to_pylist()
        for row, (process, detail) in enumerate(
            zip(found.column("process").to_pylist(), details, strict=True)
        ):
            pair = process, msgspec.json.decode(detail)["other"]
            if pair not in self.disagreeing:
                self.disagreeing.add(pair)
                rows.append(row)
        return found.take(pa.array(rows, pa.int64())) if rows else no_violations()
