"""Events of discovery as numpy columns: what the kernels of discovery read."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.verify.kernels.columns import (
    I8,
    I64,
    KINDS,
    Bools,
    codes_of,
    integers,
    order_of,
    whole,
)

U64 = npt.NDArray[np.uint64]

DISCOVERY_NEEDED = (
    *("run_id", "process", "position", "kind", "time_ns", "clock_ns", "source", "number"),
    *("arrived_ns", "reason", "payload_bytes", "peer_id", "incarnation"),
)
"""Columns of the trace that the kernels of discovery read."""


@dataclass(frozen=True, slots=True)
class DiscoveryColumns:
    """One run's events, sorted by process and position, each once.  Times in nanoseconds."""

    process: I64
    position: I64
    kind: I8
    time_ns: I64
    clock_ns: I64
    source: I64
    number: I64
    arrived_ns: I64
    payload_bytes: I64
    reason: I64
    """Index into `reasons`."""
    reasons: tuple[str, ...]
    peer: U64
    """0 where `has_peer` is false."""
    incarnation: U64
    has_peer: Bools
    has_incarnation: Bools

    def __len__(self) -> int:
        return len(self.process)

    def rows(self, *kinds: int) -> I64:
        """Return the rows of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kind, kinds))


def discovery_columns_of(table: pa.Table) -> DiscoveryColumns:
    """Read one run's events out of a trace table, in any order of rows, repeated or not."""
    table = table.combine_chunks()
    process, position = integers(table, "process"), integers(table, "position")
    order = order_of(process, position)
    if order is None:
        order = np.arange(len(process))
    process, position = process[order], position[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = (process[1:] == process[:-1]) & (position[1:] == position[:-1])
    order = order[~again]
    reason = whole(table, "reason").dictionary_encode()
    peer, has_peer = _words(table, "peer_id")
    incarnation, has_incarnation = _words(table, "incarnation")
    return DiscoveryColumns(
        process=process[~again],
        position=position[~again],
        kind=codes_of(table, "kind", KINDS)[order],
        time_ns=integers(table, "time_ns")[order],
        clock_ns=integers(table, "clock_ns")[order],
        source=integers(table, "source")[order],
        number=integers(table, "number")[order],
        arrived_ns=integers(table, "arrived_ns")[order],
        payload_bytes=integers(table, "payload_bytes")[order],
        reason=reason.indices.to_numpy(zero_copy_only=False).astype(np.int64)[order],
        reasons=tuple(reason.dictionary.to_pylist()),
        peer=peer[order],
        incarnation=incarnation[order],
        has_peer=has_peer[order],
        has_incarnation=has_incarnation[order],
    )


def _words(table: pa.Table, name: str) -> tuple[U64, Bools]:
    column = whole(table, name)
    known: Bools = pc.is_valid(column).to_numpy(zero_copy_only=False)
    values: I64 = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values).view(np.uint64), known
