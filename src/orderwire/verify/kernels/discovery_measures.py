"""What a domain's discovery cost and how long it took: sums that add up over parts of a run.

Durations are counted in buckets that are at most 1/1024 wide, relatively; a quantile is the upper
end of its bucket, so at most 0.1 % above the exact one, and whoever counted what does not show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import HEAR, I64, POST
from orderwire.verify.kernels.discovery_columns import DiscoveryColumns
from orderwire.verify.kernels.discovery_facts import Facts
from orderwire.verify.kernels.discovery_views import Spans

MANTISSA_BITS = 10
DURATION_MAX = 2**53 - 1
"""Longer durations count as this: 104 days."""
INSTANTS_MAX = 1_024
"""Of a series, beside its first."""

TRAFFIC = pa.schema(
    [
        ("message", pa.string()),
        ("hop", pa.int64()),
        ("posted", pa.int64()),
        ("posted_bytes", pa.int64()),
        ("heard", pa.int64()),
        ("heard_bytes", pa.int64()),
    ]
)
"""Messages by type and hop count."""
DURATIONS = pa.schema([("measure", pa.string()), ("bucket", pa.int64()), ("count", pa.int64())])
SERIES = pa.schema([("measure", pa.string()), ("at", pa.int64()), ("count", pa.int64())])
PAIRS = pa.schema(
    [
        ("run_id", pa.string()),
        ("process", pa.int32()),
        ("boot_ns", pa.int64()),
        ("of", pa.int32()),
        ("of_boot_ns", pa.int64()),
        ("peer_id", pa.string()),
        ("incarnation", pa.string()),
        ("learnt_ns", pa.int64()),
        ("from_start_ns", pa.int64()),
        ("from_both_ns", pa.int64()),
    ]
)
"""When `process`, begun at `boot_ns`, first listed `of` with its MAP: in the run's time, since
`of` began, and since both were there.  Ids are decimal strings, for Spark has no unsigned ones."""

FROM_START, FROM_BOTH, AGE = "from_start", "from_both", "age"


def buckets_of(durations: I64) -> I64:
    """Return the bucket of each duration; negative ones count as 0."""
    value = np.clip(durations, 0, DURATION_MAX)
    _, bits = np.frexp(value.astype(np.float64))
    shift = np.maximum(bits.astype(np.int64) - MANTISSA_BITS - 1, 0)
    buckets: I64 = (shift << MANTISSA_BITS) + (value >> shift)
    return buckets


def upper_of(buckets: I64) -> I64:
    """Return the longest duration that falls into each bucket."""
    shift = np.maximum((buckets >> MANTISSA_BITS) - 1, 0)
    lead = buckets - (shift << MANTISSA_BITS)
    longest: I64 = ((lead + 1) << shift) - 1
    return longest


def counted(measure: str, durations: I64) -> pa.Table:
    """Return how many durations fall into each bucket, as rows of `DURATIONS`."""
    bucket, count = np.unique(buckets_of(durations), return_counts=True)
    return pa.table([[measure] * len(bucket), bucket, count], schema=DURATIONS)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations that were counted."""

    buckets: I64
    counts: I64

    @classmethod
    def of(cls, durations: pa.Table, measure: str) -> "Histogram":
        """Read one measure out of rows of `DURATIONS`, which may repeat a bucket."""
        mine = durations.filter(pa.compute.equal(durations.column("measure"), measure))
        buckets, at = np.unique(mine.column("bucket").to_numpy(), return_inverse=True)
        counts = np.zeros(len(buckets), np.int64)
        np.add.at(counts, at, mine.column("count").to_numpy())
        return cls(buckets, counts)

    @property
    def total(self) -> int:
        """How many durations there are."""
        return int(self.counts.sum())

    def quantile(self, ratio: float) -> int | None:
        """Return the nearest-rank quantile, at most 0.1 % too long; None without durations."""
        if not self.total:
            return None
        rank = max(1, int(np.ceil(ratio * self.total)))
        at = int(np.searchsorted(np.cumsum(self.counts), rank))
        return int(upper_of(self.buckets[at : at + 1])[0])


def traffic_of(columns: DiscoveryColumns) -> pa.Table:
    """Count messages and bytes by type and hop count."""
    rows = columns.rows(POST, HEAR)
    hop, reason = columns.number[rows], columns.reason[rows]
    hops, at_hop = np.unique(hop, return_inverse=True)
    group, at = np.unique(reason * max(1, len(hops)) + at_hop, return_inverse=True)
    heard = columns.kind[rows] == HEAR
    sums = []
    for mine in (~heard, heard):
        for amount in (np.ones(len(rows), np.int64), columns.payload_bytes[rows]):
            total = np.zeros(len(group), np.int64)
            np.add.at(total, at, np.where(mine, amount, 0))
            sums.append(total)
    names = [columns.reasons[code] for code in (group // max(1, len(hops))).tolist()]
    return pa.table([names, hops[group % max(1, len(hops))], *sums], schema=TRAFFIC)


def instants_of(first_ns: int, end_ns: int) -> I64:
    """Return the instants at which a run's series are taken: equally spaced, the last one too."""
    steps = max(1, min(INSTANTS_MAX, end_ns - 1 - first_ns))
    return first_ns + np.arange(steps + 1) * (end_ns - 1 - first_ns) // steps


def level(instants: I64, from_ns: I64, to_ns: I64) -> I64:
    """Return how many of these half-open spans hold each instant."""
    steps = np.zeros(len(instants) + 1, np.int64)
    np.add.at(steps, np.searchsorted(instants, from_ns), 1)
    np.add.at(steps, np.searchsorted(instants, to_ns), -1)
    return np.cumsum(steps)[:-1]


def series_of(facts: Facts, spans: Mapping[str, Spans]) -> pa.Table:
    """Return how many of each kind of spans hold each of the run's instants."""
    instants = instants_of(facts.first_ns, facts.end_ns)
    tables = [SERIES.empty_table()]
    for name, some in spans.items():
        count = level(instants, some.from_ns, some.to_ns)
        columns = [[name] * len(count), np.arange(len(count)), count]
        tables.append(pa.table(columns, schema=SERIES))
    return pa.concat_tables(tables)


def lives_at(facts: Facts) -> I64:
    """Return how many participants live at each of the run's instants."""
    instants = instants_of(facts.first_ns, facts.end_ns)
    return level(instants, facts.lives.boot_ns, facts.lives.end_ns)


def pairs_together(facts: Facts, lives: I64) -> int:
    """Count the pairs of one of these lives and another one that lived at the same time."""
    every = facts.lives
    before = np.searchsorted(np.sort(every.end_ns), every.boot_ns[lives], side="right")
    behind = len(every) - np.searchsorted(np.sort(every.boot_ns), every.end_ns[lives])
    return int(np.sum(len(every) - 1 - before - behind))


def pairs_of(right: Spans, facts: Facts) -> pa.Table:
    """Return when each life first listed each other one rightly: rows of `PAIRS`."""
    incarnations, lives = facts.incarnations, facts.lives
    listed = incarnations.life[right.what]
    first = np.ones(len(right.life), np.bool_)
    first[1:] = (right.life[1:] != right.life[:-1]) | (listed[1:] != listed[:-1])
    life, other, learnt = right.life[first], listed[first], right.from_ns[first]
    boot, of_boot = lives.boot_ns[life], lives.boot_ns[other]
    pair = incarnations.pair[right.what[first]]
    peer = incarnations.ids[pair // max(1, len(incarnations.numbers))]
    number = incarnations.numbers[pair % max(1, len(incarnations.numbers))]
    columns: Sequence[object] = [
        pa.array([facts.run_id] * len(life), pa.string()),
        lives.process[life].astype(np.int32),
        boot,
        lives.process[other].astype(np.int32),
        of_boot,
        pa.array(map(str, peer.tolist()), pa.string()),
        pa.array(map(str, number.tolist()), pa.string()),
        learnt,
        learnt - of_boot,
        learnt - np.maximum(boot, of_boot),
    ]
    return pa.table(columns, schema=PAIRS)
