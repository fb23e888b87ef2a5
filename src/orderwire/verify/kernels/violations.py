"""Violations as rows: what was wrong, where, and the evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import I64

VIOLATIONS = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("check", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("process", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("source", pa.int32(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("witness_source", pa.int32(), nullable=False),
        pa.field("witness_number", pa.int64(), nullable=False),
        pa.field("witness_position", pa.int64(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)
"""One row a violation.  −1 where a column says nothing; `detail` is one JSON object or empty."""

SORT = ("run_id", "check", "process", "position", "source", "number", "kind")
"""Rows in this order are the same whatever engine and slices found them."""


@dataclass(frozen=True, slots=True)
class Witness:
    """For each violation the delivery that proves it, at the same process."""

    source: I64
    number: I64
    position: I64


class Placed(Protocol):
    """Events in columns: where each stands, and which message it is about."""

    @property
    def process(self) -> I64:
        """Who noted it."""
        ...

    @property
    def position(self) -> I64:
        """Its place there."""
        ...

    @property
    def time_ns(self) -> I64:
        """When."""
        ...

    @property
    def source(self) -> I64:
        """Who sent the message."""
        ...

    @property
    def number(self) -> I64:
        """Which of its source's messages it is."""
        ...


def violations(
    run_id: str,
    check: str,
    kind: str,
    columns: Placed,
    rows: I64,
    *,
    witness: Witness | None = None,
    details: Sequence[Mapping[str, object]] | None = None,
) -> pa.Table:
    """Return a violation for each of these rows of the trace."""
    return violation_rows(
        run_id,
        check,
        kind,
        process=columns.process[rows],
        position=columns.position[rows],
        time_ns=columns.time_ns[rows],
        source=columns.source[rows],
        number=columns.number[rows],
        witness=witness,
        details=details,
    )


def violation_rows(
    run_id: str,
    check: str,
    kind: str,
    *,
    process: I64,
    source: I64,
    number: I64,
    position: I64 | None = None,
    time_ns: I64 | None = None,
    witness: Witness | None = None,
    details: Sequence[Mapping[str, object]] | None = None,
) -> pa.Table:
    """Return violations that need not stand at an event of the trace, such as a missing copy."""
    count = len(process)
    nothing = np.full(count, -1, np.int64)
    values = {
        "run_id": pa.array([run_id] * count, pa.string()),
        "check": pa.array([check] * count, pa.string()),
        "kind": pa.array([kind] * count, pa.string()),
        "process": process,
        "position": nothing if position is None else position,
        "time_ns": nothing if time_ns is None else time_ns,
        "source": source,
        "number": number,
        "witness_source": nothing if witness is None else witness.source,
        "witness_number": nothing if witness is None else witness.number,
        "witness_position": nothing if witness is None else witness.position,
        "detail": pa.array(
            [""] * count
            if details is None
            else [msgspec.json.encode(detail).decode() for detail in details],
            pa.string(),
        ),
    }
    columns = [
        value if isinstance(value, pa.Array) else pa.array(value).cast(field.type)
        for value, field in zip(values.values(), VIOLATIONS, strict=True)
    ]
    return pa.table(columns, schema=VIOLATIONS)


def no_violations() -> pa.Table:
    """Return a table of violations with no row."""
    return VIOLATIONS.empty_table()


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """Return all rows of these tables in the order `SORT`."""
    table = pa.concat_tables([no_violations(), *tables]).combine_chunks()
    return table.sort_by([(name, "ascending") for name in SORT])
