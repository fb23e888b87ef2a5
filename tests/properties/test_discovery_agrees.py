"""The linear kernels of discovery find what its definitions say, on traces of any kind."""

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_domains import nonsense

from orderwire.trace.events import Event, EventKind, RunSettings
from orderwire.trace.schema import events_from_table, table_from_events
from orderwire.verify.discovery import Domain, Finding
from orderwire.verify.kernels.discovery_cuts import TOLD_KINDS, cuts_of
from orderwire.verify.kernels.discovery_facts import Facts, facts_of
from orderwire.verify.kernels.discovery_ids import judge_ids
from orderwire.verify.kernels.discovery_measures import Histogram, instants_of, lives_at
from orderwire.verify.kernels.discovery_share import (
    GHOSTS,
    OUTDATED,
    RIGHT,
    audit_share,
    join_shares,
    pairs_of_share,
    plan_shares,
)
from orderwire.verify.kernels.lives import lined_up, lives_of
from orderwire.verify.kernels.violations import merge


def facts_from(table: pa.Table, run: RunSettings) -> Facts:
    times = table.column("time_ns").to_pylist()
    told = table.filter(pa.compute.is_in(table.column("kind"), pa.array(TOLD_KINDS)))
    process, when = table.column("process").to_numpy(), table.column("time_ns").to_numpy()
    cuts = cuts_of(told, lambda one: when[process == one])
    return facts_of("run", told, run, min(times, default=0), max(times, default=0), cuts)


def one_by_one(events: list[Event]) -> list[Event]:
    """Put the lives of each process behind each other."""
    table = table_from_events(events)
    starts = table.filter(pa.compute.equal(table.column("kind"), "start"))
    return events_from_table(lined_up(table, lives_of(starts, "run")))


def judged(
    events: list[Event], run: RunSettings, share_events: int
) -> tuple[Facts, list[Finding], dict[str, pa.Table], pa.Table]:
    table = table_from_events(events)
    facts = facts_from(table, run)
    parts, pairs, found = [], [], [judge_ids(facts)]
    for share in plan_shares("run", len(events), run.members, share_events):
        process = table.column("process").to_numpy()
        mine = table.filter(pa.array((process >= share.low) & (process < share.high)))
        parts.append(audit_share(mine, share, facts, run))
        found.append(parts[-1]["violations"])
        pairs.append(pairs_of_share(mine, facts))
    findings = [
        Finding(
            *(row["check"], row["kind"], row["process"], row["position"], row["time_ns"]),
            *(row["source"], row["number"]),
        )
        for row in merge(found).to_pylist()
        if row["check"] != "W1"
    ]
    return facts, sorted(findings), join_shares(parts), pa.concat_tables(pairs)


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from([1, 7, 1_000]))
def test_kernels_agree_with_the_definitions(seed: int, share_events: int) -> None:
    events, run = nonsense(Random(seed))
    agree(events, run, share_events)


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from([1, 7, 1_000]))
def test_kernels_agree_where_timelines_stop_and_begin_again(seed: int, share_events: int) -> None:
    events, run = nonsense(Random(seed), torn=True)
    agree(one_by_one(events), run, share_events)


def agree(events: list[Event], run: RunSettings, share_events: int) -> Counter[str]:
    domain = Domain(events, run)
    facts, found, measured, pairs = judged(events, run, share_events)
    for event in events:
        note(str(event))
    assert found == domain.findings()
    assert [
        tuple(row[name] for name in ("process", "boot_ns", "of", "of_boot_ns", "learnt_ns"))
        for row in pairs.sort_by(
            [(name, "ascending") for name in ("process", "boot_ns", "of", "of_boot_ns")]
        ).to_pylist()
    ] == domain.pairs()
    sums = dict(zip(*measured["sums"].to_pydict().values(), strict=True))
    assert sums["pairs_together"] == domain.pairs_together()
    assert sums["pairs_learnt"] == len(domain.pairs())
    check_series(domain, facts, measured["series"])
    check_traffic(domain, measured["traffic"])
    exact = sorted(pair.from_both_ns for pair in domain.pairs())
    counted = Histogram.of(measured["durations"], "from_both")
    assert counted.total == len(exact)
    assert counted.quantile(1.0) == max(exact, default=None)
    return Counter(finding.kind for finding in found)


def check_series(domain: Domain, facts: Facts, series: pa.Table) -> None:
    instants = instants_of(facts.first_ns, facts.end_ns).tolist()
    count = {(row["measure"], instants[row["at"]]): row["count"] for row in series.to_pylist()}
    lives = lives_at(facts)
    for at, time_ns in enumerate(instants):
        missing = int(lives[at] * (lives[at] - 1)) - count[RIGHT, time_ns]
        assert missing == domain.pairs_missing(time_ns)
        assert count[OUTDATED, time_ns] == domain.listed_as("outdated", time_ns)
        assert count[GHOSTS, time_ns] == domain.listed_as("ghost", time_ns)


def check_traffic(domain: Domain, traffic: pa.Table) -> None:
    counts: Counter[tuple[str, int, EventKind, str]] = Counter()
    for row in traffic.to_pylist():
        for kind, name in ((EventKind.POST, "posted"), (EventKind.HEAR, "heard")):
            counts[row["message"], row["hop"], kind, "messages"] += row[name]
            counts[row["message"], row["hop"], kind, "bytes"] += row[f"{name}_bytes"]
    assert +counts == domain.traffic()


def test_random_traces_hold_every_kind_of_fault() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(120):
        events, run = nonsense(Random(seed))
        _, found, _, _ = judged(events, run, 7)
        kinds.update(finding.kind for finding in found)
    assert set(kinds) == {
        *("missing", "outdated", "ahead", "ghost", "no-id", "not-newer", "shared", "version"),
        *("stale", "resurrected", "too-fresh", "after-left", "invented", "backwards"),
    }


@given(st.lists(st.integers(0, 2**53 - 1), min_size=1), st.floats(0, 1))
def test_quantiles_are_the_nearest_rank_to_a_thousandth(values: list[int], ratio: float) -> None:
    from orderwire.verify.kernels.discovery_measures import counted

    found = Histogram.of(counted("x", np.array(values)), "x").quantile(ratio)
    exact = sorted(values)[max(1, int(np.ceil(ratio * len(values)))) - 1]
    assert found is not None
    assert exact <= found <= exact * (1 + 2**-10)
