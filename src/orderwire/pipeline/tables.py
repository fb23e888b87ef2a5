"""The lake's tables: their columns, named once and checked at both ends.

Times are whole nanoseconds; Spark's own timestamps stop at microseconds.
"""

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from orderwire.trace.schema import arrow_schema
from orderwire.verify.kernels.violations import VIOLATIONS


class TableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the lake."""

    schema: pa.Schema
    sorted_by: tuple[str, ...]
    """Order of rows inside a file: what readers skip row groups by."""
    statistics: tuple[str, ...]
    """Columns whose least and greatest value of every file the table's log keeps."""


def _plain(schema: pa.Schema) -> pa.Schema:
    """Every column nullable and no metadata, as a Delta table says it."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


TABLES: Mapping[str, TableSettings] = {
    "raw_messages": TableSettings(
        schema=pa.schema(
            [
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp_ms", pa.int64()),
                ("timestamp_type", pa.int32()),
                ("key", pa.binary()),
                ("value", pa.binary()),
            ]
        ),
        sorted_by=("topic", "partition", "offset"),
        statistics=("topic", "partition", "offset", "timestamp_ms"),
    ),
    "events": TableSettings(
        schema=_plain(arrow_schema()),
        sorted_by=("run_id", "time_ns", "process", "position"),
        statistics=("run_id", "time_ns", "process", "position"),
    ),
    "dests": TableSettings(
        schema=pa.schema(
            [
                ("run_id", pa.string()),
                ("source", pa.int32()),
                ("number", pa.int64()),
                ("destination", pa.int32()),
            ]
        ),
        sorted_by=("run_id", "source", "number", "destination"),
        statistics=("run_id", "source", "number"),
    ),
    "violations": TableSettings(
        schema=_plain(VIOLATIONS),
        sorted_by=("run_id", "time_ns", "process", "position"),
        statistics=("run_id", "time_ns", "process"),
    ),
    "metrics": TableSettings(
        schema=pa.schema(
            [
                ("run_id", pa.string()),
                ("member", pa.int32()),  # null: the whole run
                ("window_start_ns", pa.int64()),  # null: the whole time
                ("window_ns", pa.int64()),
                ("metric", pa.string()),
                ("unit", pa.string()),
                ("value", pa.float64()),
                ("samples", pa.int64()),
                ("sketch", pa.binary()),  # KLL sketch, where windows are to be merged
            ]
        ),
        sorted_by=("run_id", "metric", "member", "window_start_ns"),
        statistics=("run_id", "metric"),
    ),
    "runs": TableSettings(
        schema=pa.schema(
            [
                ("key", pa.string()),
                ("config", pa.string()),
                ("seed", pa.int64()),
                ("status", pa.string()),
                ("error", pa.string()),
                ("seconds", pa.float64()),
                ("attempt", pa.int32()),
                ("metrics", pa.string()),
            ]
        ),
        sorted_by=("key",),
        statistics=("key",),
    ),
    "copies_summary": TableSettings(
        schema=pa.schema(
            [
                ("run_id", pa.string()),
                ("source", pa.int32()),
                ("destination", pa.int32()),
                ("intended", pa.int64()),
                ("delivered", pa.int64()),
                ("discarded", pa.int64()),
                ("duplicates", pa.int64()),
                ("missing", pa.int64()),
            ]
        ),
        sorted_by=("run_id", "source", "destination"),
        statistics=("run_id",),
    ),
}
