"""A share of a run's discovery: the participants of a range, judged against the facts.

Whatever shares a run is cut into, their findings add up to the same.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from orderwire.trace.events import NO_ORDER, RunSettings
from orderwire.verify.kernels.columns import BOOT, END, HEAR, I64, KINDS, NEEDED, START, columns_of
from orderwire.verify.kernels.discovery_columns import (
    DISCOVERY_NEEDED,
    DiscoveryColumns,
    discovery_columns_of,
)
from orderwire.verify.kernels.discovery_facts import Facts
from orderwire.verify.kernels.discovery_measures import (
    AGE,
    DURATIONS,
    FROM_BOTH,
    FROM_START,
    SERIES,
    TRAFFIC,
    counted,
    pairs_of,
    pairs_together,
    series_of,
    traffic_of,
)
from orderwire.verify.kernels.discovery_views import (
    ghost_spans,
    judge_evidence,
    judge_growth,
    judge_views,
    listings_of,
    right_spans,
    untraced,
    wrong_versions,
)
from orderwire.verify.kernels.violations import merge
from orderwire.verify.kernels.wellformed import drop_repeats, timelines

SHARE_EVENTS = 500_000
"""Events of a share, about."""
ALL_NEEDED = tuple(dict.fromkeys((*NEEDED, *DISCOVERY_NEEDED)))
_OF_DISCOVERY = tuple(KINDS[code] for code in (START, END, *range(BOOT, HEAR + 1)))
RIGHT, OUTDATED, GHOSTS = "right", "outdated", "ghosts"

SUMS = pa.schema([("name", pa.string()), ("count", pa.int64())])
LONGEST = pa.schema([("measure", pa.string()), ("longest", pa.int64())])
MEMBERS = pa.schema([("process", pa.int64()), ("started", pa.bool_()), ("ended", pa.bool_())])
DISCOVERY_PARTS: Mapping[str, pa.Schema] = {
    "traffic": TRAFFIC,
    "durations": DURATIONS,
    "longest": LONGEST,
    "series": SERIES,
    "sums": SUMS,
    "members": MEMBERS,
}
"""What a share finds beside violations."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The processes low ≤ process < high of a run."""

    run_id: str
    low: int
    high: int


def plan_shares(run_id: str, events: int, processes: int, target: int = 0) -> list[Share]:
    """Cut a run into ranges of processes of about `target` events each; 0 chooses."""
    count = max(1, min(processes, -(-events // (target or SHARE_EVENTS))))
    edges = [processes * at // count for at in range(count)]
    return [
        Share(run_id=run_id, low=low, high=high)
        for low, high in zip(edges, [*edges[1:], max(1, processes)], strict=True)
    ]


def share_columns(settings: RunSettings) -> tuple[str, ...]:
    """Return the columns that a share of such a run must have."""
    return ALL_NEEDED if settings.algorithm == NO_ORDER else DISCOVERY_NEEDED


def share_kinds(settings: RunSettings) -> tuple[str, ...]:
    """Return the kinds of events that a share of such a run must have."""
    return KINDS if settings.algorithm == NO_ORDER else _OF_DISCOVERY


def audit_share(
    table: pa.Table, share: Share, facts: Facts, settings: RunSettings
) -> dict[str, pa.Table]:
    """Judge what the participants of a share saw.

    `table` holds the events of these processes, of `share_kinds` with `share_columns`.  Returns
    `violations` and the tables of `DISCOVERY_PARTS`.  Where the run has no order to judge, W1 is
    judged here.
    """
    columns = discovery_columns_of(table)
    listings = listings_of(columns, facts)
    right = right_spans(listings, facts)
    outdated, _ = wrong_versions(listings, facts)
    every = facts.lives.process
    lives = np.flatnonzero((every >= share.low) & (every < share.high))
    judged, pairs = judge_views(listings, right, facts, lives)
    found = [
        judged,
        judge_evidence(listings, facts, settings),
        judge_growth(listings, facts),
    ]
    if settings.algorithm == NO_ORDER:
        plain, conflicts = drop_repeats(share.run_id, columns_of(table.select(list(NEEDED))))
        found += [conflicts, timelines(share.run_id, plain, settings.members)]
    first = pairs_of(right, facts)
    durations = {
        FROM_START: first.column("from_start_ns").to_numpy(),
        FROM_BOTH: first.column("from_both_ns").to_numpy(),
        AGE: listings.evidence_ns,
    }
    some = {name: values for name, values in durations.items() if len(values)}
    sums = {
        "events": len(columns),
        "listings": len(listings),
        "pairs_judged": pairs,
        "pairs_together": pairs_together(facts, lives),
        "pairs_learnt": first.num_rows,
    }
    spans = {RIGHT: right, OUTDATED: outdated, GHOSTS: ghost_spans(listings, facts)}
    strangers = untraced(columns, facts)
    process = np.concatenate([np.unique(columns.process), strangers])
    started = np.isin(process, columns.process[columns.rows(START)])
    ended = np.isin(process, _ended(columns))
    started[len(process) - len(strangers) :] = False
    return {
        "violations": merge(found),
        "traffic": traffic_of(columns),
        "durations": pa.concat_tables(
            [DURATIONS.empty_table(), *(counted(name, some[name]) for name in some)]
        ),
        "longest": pa.table(
            [list(some), [int(values.max()) for values in some.values()]], schema=LONGEST
        ),
        "series": series_of(facts, spans),
        "sums": pa.table([list(sums), list(sums.values())], schema=SUMS),
        "members": pa.table([process, started, ended], schema=MEMBERS),
    }


def _ended(columns: DiscoveryColumns) -> I64:
    """Return the processes whose last life has an END."""
    ends = columns.rows(START, END)
    last = np.ones(len(ends), np.bool_)
    last[:-1] = columns.process[ends][1:] != columns.process[ends][:-1]
    final = ends[last]
    whole: I64 = columns.process[final[columns.kind[final] == END]]
    return whole


def pairs_of_share(table: pa.Table, facts: Facts) -> pa.Table:
    """Return when the participants of a share first listed each other one: rows of `PAIRS`."""
    return pairs_of(right_spans(listings_of(discovery_columns_of(table), facts), facts), facts)


def join_shares(parts: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """Add up what shares found beside violations."""
    joined = {
        name: pa.concat_tables([schema.empty_table(), *(part[name] for part in parts)])
        for name, schema in DISCOVERY_PARTS.items()
    }
    for name, keys, amounts, how in (
        ("traffic", ["message", "hop"], TRAFFIC.names[2:], "sum"),
        ("durations", ["measure", "bucket"], ["count"], "sum"),
        ("series", ["measure", "at"], ["count"], "sum"),
        ("sums", ["name"], ["count"], "sum"),
        ("longest", ["measure"], ["longest"], "max"),
    ):
        schema = DISCOVERY_PARTS[name]
        summed = joined[name].group_by(keys).aggregate([(amount, how) for amount in amounts])
        renamed = summed.rename_columns(
            [column.removesuffix(f"_{how}") for column in summed.schema.names]
        )
        joined[name] = (
            renamed.select(schema.names).cast(schema).sort_by([(key, "ascending") for key in keys])
        )
    return joined
