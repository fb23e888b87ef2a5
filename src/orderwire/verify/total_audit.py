"""The audit of a group with a total order: its three parts, which can be judged apart.

`order` is T1 and T2 and looks at deliveries only, `views` is T3 and T4, `channel` is T5.  Each
needs its kinds of events of the whole run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from orderwire.trace.events import EventKind, RunSettings
from orderwire.verify.kernels.channel_order import channel_order
from orderwire.verify.kernels.columns import INSTALL
from orderwire.verify.kernels.lives import Lives, lined_up
from orderwire.verify.kernels.stays import views_of
from orderwire.verify.kernels.total_columns import (
    GROUP_NEEDED,
    GroupColumns,
    group_columns_of,
)
from orderwire.verify.kernels.total_order import total_order
from orderwire.verify.kernels.total_views import atomicity, view_agreement
from orderwire.verify.kernels.violations import merge
from orderwire.verify.report import promised
from orderwire.verify.source import TraceSource

_LIFE = (EventKind.START, EventKind.INSTALL, EventKind.END)
GROUP_PARTS: Mapping[str, tuple[str, ...]] = {
    "order": (EventKind.DELIVER.value,),
    "views": tuple(kind.value for kind in (*_LIFE, EventKind.SEND, EventKind.DELIVER)),
    "channel": (EventKind.RECEIVE.value,),
}
"""Parts of the audit, and the kinds of events that each needs."""


@dataclass(frozen=True, slots=True)
class GroupFindings:
    """What a part found."""

    violations: pa.Table
    checked: dict[str, int]
    """How much each check had to check."""
    departed: list[int]
    """Members that the views of others have left behind."""


def has_total_order(settings: RunSettings | None, views: int, expect: str | None) -> bool:
    """Whether a run is to be judged so: it installs views, or promises a total order."""
    return views > 0 or "T1" in promised(settings, expect)


def read_part(source: TraceSource, part: str, run_id: str) -> pa.Table:
    """Read what a part needs of a run."""
    return source.of_kinds(GROUP_PARTS[part], GROUP_NEEDED, run_id)


def audit_part(
    run_id: str, part: str, table: pa.Table, settings: RunSettings, lives: Lives
) -> GroupFindings:
    """Judge one part of a run, whose events of its kinds `table` holds, in any order."""
    columns = group_columns_of(lined_up(table, lives), settings.members)
    if part == "order":
        count = len(columns.deliveries[0])
        return GroupFindings(merge([total_order(run_id, columns)]), {"T1": count, "T2": count}, [])
    if part == "channel":
        count = int(columns.received.sum())
        checked = {"T5": count} if count else {}
        return GroupFindings(merge([channel_order(run_id, columns)]), checked, [])
    return _audit_views(run_id, columns)


def _audit_views(run_id: str, columns: GroupColumns) -> GroupFindings:
    views = views_of(columns)
    found = [atomicity(run_id, columns, views), view_agreement(run_id, columns, views)]
    deliveries = len(columns.deliveries[0]) if views.stays else 0
    checked = {"T3": deliveries, "T4": len(columns.rows(INSTALL))}
    return GroupFindings(merge(found), checked, views.departed)


def audit_group(
    source: TraceSource, run_id: str, settings: RunSettings, lives: Lives
) -> GroupFindings:
    """Judge all parts, one after the other."""
    parts = [
        audit_part(run_id, part, read_part(source, part, run_id), settings, lives)
        for part in GROUP_PARTS
    ]
    return join_parts(parts)


def join_parts(parts: list[GroupFindings]) -> GroupFindings:
    """Put together what the parts found, in the order of `GROUP_PARTS`."""
    checked = {check: count for part in parts for check, count in part.checked.items()}
    departed = [process for part in parts for process in part.departed]
    return GroupFindings(merge([part.violations for part in parts]), checked, departed)
