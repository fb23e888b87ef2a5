"""Lives whose end nobody tells: a process was killed, or its trace is cut off.

It may have ended just after its last event, or as late as its process begins another one.
"""

from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa

from orderwire.verify.kernels.columns import END, GONE, I64, KINDS, START, TIME_MAX, TIME_MIN
from orderwire.verify.kernels.discovery_columns import discovery_columns_of
from orderwire.verify.kernels.discovery_facts import TRUTH_KINDS

TOLD_KINDS = (*TRUTH_KINDS, KINDS[START], KINDS[END])
"""Events by which participants tell of themselves, and where their timelines begin and end."""


def cuts_of(told: pa.Table, times_of: Callable[[int], I64]) -> tuple[tuple[int, int], ...]:
    """Return (process, time of its last event) of each life without an end.

    `told` holds one run's events of the kinds `TOLD_KINDS`, lined up.  A life lasts from a START to
    the next one.  It has an end when it has END, or when anybody says within that time that it is
    gone.
    """
    columns = discovery_columns_of(told)
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for process, kind, time_ns, source in zip(
        columns.process.tolist(),
        columns.kind.tolist(),
        columns.time_ns.tolist(),
        columns.source.tolist(),
        strict=True,
    ):
        starts.setdefault(process, [])
        if kind == START:
            starts[process].append(time_ns)
        elif kind == END:
            ends.setdefault(process, []).append(time_ns)
        elif kind == GONE:
            ends.setdefault(source, []).append(time_ns)
    cuts = []
    for process, mine in sorted(starts.items()):
        edges = [TIME_MIN, *sorted(mine)[1:], TIME_MAX]
        for low, high in pairwise(edges):
            if not any(low <= time_ns < high for time_ns in ends.get(process, ())):
                times = times_of(process)
                inside = times[(times >= low) & (times < high)]
                if len(inside):
                    cuts.append((process, int(inside.max())))
    return tuple(cuts)
