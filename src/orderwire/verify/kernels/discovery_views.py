"""What participants listed, and when: views of a domain as spans of time, judged against the facts.

A listing lasts from a LEARN to the next event of the same life about the same id that changes it:
another LEARN, or an EXPIRE of the incarnation listed.  Everything is linear in the events, but for
one look at each pair of participants.  All spans are half-open, in nanoseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orderwire.trace.events import RunSettings
from orderwire.verify.kernels.columns import EXPIRE, I64, LEARN, TIME_MAX, TIME_MIN, Bools
from orderwire.verify.kernels.discovery_columns import U64, DiscoveryColumns
from orderwire.verify.kernels.discovery_facts import Facts, discovery_of
from orderwire.verify.kernels.violations import merge, violation_rows

LEFT = "left"
"""Reason of an EXPIRE that is final."""


@dataclass(frozen=True, slots=True)
class Listings:
    """What lives listed of others: one row a LEARN, in the order of lives, then of ids."""

    rows: I64
    """Of the columns."""
    life: I64
    process: I64
    position: I64
    peer: U64
    incarnation: U64
    which: I64
    """Index of the incarnation among the facts', −1 for one that nobody had."""
    version: I64
    evidence_ns: I64
    """Age of the evidence."""
    from_ns: I64
    to_ns: I64
    after_left: Bools
    """The same life had been told that this incarnation had left."""
    older: Bools
    """The same life had learnt of a newer incarnation, or listed a newer version just before."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Spans:
    """When something was so in the view of a life."""

    life: I64
    what: I64
    """Index of the incarnation, or of the listing."""
    from_ns: I64
    to_ns: I64


def listings_of(columns: DiscoveryColumns, facts: Facts) -> Listings:
    """Return what the participants in these columns listed.

    In an open run without the incarnations that nobody had: see `untraced`.
    """
    rows = columns.rows(LEARN, EXPIRE)
    life = facts.life_of(columns.process[rows], columns.position[rows], columns.time_ns[rows])
    which = facts.incarnations.find(columns.peer[rows], columns.incarnation[rows])
    own = np.zeros(len(rows), np.bool_)
    own[which >= 0] = facts.incarnations.life[which[which >= 0]] == life[which >= 0]
    told = (life >= 0) & ~own & columns.has_peer[rows] & columns.has_incarnation[rows]
    rows, life, which = rows[told], life[told], which[told]
    _, peer = np.unique(columns.peer[rows], return_inverse=True)
    _, number = np.unique(columns.incarnation[rows], return_inverse=True)
    entry = life * (int(peer.max(initial=0)) + 1) + peer
    order = np.argsort(entry, kind="stable")
    rows, life, which, entry, number = (
        values[order] for values in (rows, life, which, entry, number)
    )
    learns = columns.kind[rows] == LEARN
    after_left = _after_left(entry, number, learns, columns, rows)
    listed = _listed_before(entry, learns)
    idle = ~learns & ((listed < 0) | (number[listed] != number))
    outdone = _outdone(entry, number, learns)
    rows, life, which, entry, number, learns, after_left, outdone = (
        values[~idle] for values in (rows, life, which, entry, number, learns, after_left, outdone)
    )
    follows = np.zeros(len(rows), np.bool_)
    follows[1:] = entry[1:] == entry[:-1]
    time_ns, version = columns.time_ns[rows], np.maximum(columns.number[rows], 0)
    to_ns = facts.lives.end_ns[life] if len(rows) else time_ns
    to_ns[:-1] = np.where(follows[1:], np.minimum(time_ns[1:], to_ns[:-1]), to_ns[:-1])
    older = outdone.copy()
    older[1:] |= (
        (follows & learns)[1:]
        & learns[:-1]
        & (number[1:] == number[:-1])
        & (version[1:] < version[:-1])
    )
    if facts.open:  # What nobody had may be a participant's without a trace: nothing can be said.
        learns = learns & (which >= 0)
    rows = rows[learns]
    return Listings(
        rows=rows,
        life=life[learns],
        process=columns.process[rows],
        position=columns.position[rows],
        peer=columns.peer[rows],
        incarnation=columns.incarnation[rows],
        which=which[learns],
        version=version[learns],
        evidence_ns=columns.clock_ns[rows] - columns.arrived_ns[rows],
        from_ns=time_ns[learns],
        to_ns=to_ns[learns],
        after_left=after_left[learns],
        older=older[learns],
    )


def untraced(columns: DiscoveryColumns, facts: Facts) -> I64:
    """Return the ids of incarnations that were listed in an open run, and that nobody had."""
    if not facts.open:
        return np.zeros(0, np.int64)
    rows = columns.rows(LEARN)
    rows = rows[columns.has_peer[rows] & columns.has_incarnation[rows]]
    which = facts.incarnations.find(columns.peer[rows], columns.incarnation[rows])
    return np.unique(columns.peer[rows][which < 0]).astype(np.int64)


def right_spans(listings: Listings, facts: Facts) -> Spans:
    """Return when lives listed an incarnation, with a MAP of any version, while there was one.

    Sorted by life, by the life that is listed, and by time.
    """
    known = (listings.which >= 0) & (listings.version > 0)
    which = listings.which[known]
    from_ns = np.maximum(listings.from_ns[known], facts.incarnations.from_ns[which])
    to_ns = np.minimum(listings.to_ns[known], facts.incarnations.to_ns[which])
    spans = _spans(listings.life[known], which, from_ns, to_ns)
    order = np.lexsort((spans.from_ns, facts.incarnations.life[spans.what], spans.life))
    return Spans(spans.life[order], spans.what[order], spans.from_ns[order], spans.to_ns[order])


def wrong_versions(listings: Listings, facts: Facts) -> tuple[Spans, Spans]:
    """Return when listings had an older MAP than was told, and when a newer one.

    `what` is the listing.
    """
    known = np.flatnonzero((listings.which >= 0) & (listings.version > 0))
    which, version = listings.which[known], listings.version[known]
    low = np.maximum(listings.from_ns[known], facts.incarnations.from_ns[which])
    high = np.minimum(listings.to_ns[known], facts.incarnations.to_ns[which])
    outdated = np.maximum(low, facts.versions.reached(which, version + 1))
    published = np.minimum(high, facts.versions.reached(which, version))
    return (
        _spans(listings.life[known], known, outdated, high),
        _spans(listings.life[known], known, low, published),
    )


def ghost_spans(listings: Listings, facts: Facts) -> Spans:
    """Return when listings were of somebody who is not there; `what` is the listing."""
    every = np.arange(len(listings))
    ended = np.full(len(listings), TIME_MIN)
    known = listings.which >= 0
    ended[known] = facts.incarnations.over_ns[listings.which[known]]
    low = np.maximum(listings.from_ns, ended)
    return _spans(listings.life, every, low, listings.to_ns)


def judge_views(listings: Listings, right: Spans, facts: Facts, lives: I64) -> tuple[pa.Table, int]:
    """D1: whenever all is quiet, views equal the truth.  Judges the views of these lives.

    Returns violations and how many pairs there were to check.  Kinds: `missing`, `outdated` and
    `ahead` (a version of the MAP that is not the newest), `ghost`.
    """
    tables = [
        _listed_wrongly("ghost", ghost_spans(listings, facts), listings, facts),
        *(
            _listed_wrongly(kind, spans, listings, facts)
            for kind, spans in zip(
                ("outdated", "ahead"), wrong_versions(listings, facts), strict=True
            )
        ),
    ]
    missing, pairs = _missing(right, facts, lives)
    return merge([*tables, missing]), pairs


def judge_evidence(listings: Listings, facts: Facts, settings: RunSettings) -> pa.Table:
    """D3: nobody comes back to life; evidence is young, and of what there was.

    Kinds: `stale` (evidence much older than T_fail), `resurrected` (learnt later after its end than
    evidence of it lives), `too-fresh` (the evidence is said to be newer than its end),
    `after-left` (it had said goodbye), `invented` (that MAP had not been told by then).
    """
    promise = discovery_of(settings)
    margin = promise.margin_ns + 2 * settings.epsilon_ns
    known = listings.which >= 0
    ended = np.full(len(listings), TIME_MAX // 2)
    ended[known] = facts.incarnations.over_ns[listings.which[known]]
    ended[ended >= facts.end_ns] = TIME_MAX // 2
    published = np.full(len(listings), TIME_MAX)
    published[known] = facts.versions.reached(listings.which[known], listings.version[known])
    published[listings.version == 0] = TIME_MIN
    evidence = listings.from_ns - listings.evidence_ns
    found = {
        "stale": listings.evidence_ns > promise.fail_ns + promise.margin_ns,
        "resurrected": listings.from_ns > ended + promise.fail_ns + margin,
        "too-fresh": evidence > ended + margin,
        "after-left": listings.after_left,
        "invented": published > listings.from_ns + settings.epsilon_ns,
    }
    return merge(
        [_at("D3", kind, listings, np.flatnonzero(wrong), facts) for kind, wrong in found.items()]
    )


def judge_growth(listings: Listings, facts: Facts) -> pa.Table:
    """D4, as views show it: nobody learns an older incarnation or version after a newer one."""
    return _at("D4", "backwards", listings, np.flatnonzero(listings.older), facts)


def _after_left(
    entry: I64, number: I64, learns: Bools, columns: DiscoveryColumns, rows: I64
) -> Bools:
    """Tell which rows come after one that says that this incarnation has left."""
    found = np.zeros(len(rows), np.bool_)
    if LEFT not in columns.reasons:
        return found
    final = ~learns & (columns.reason[rows] == columns.reasons.index(LEFT))
    group = entry * (int(number.max(initial=0)) + 1) + number
    order = np.argsort(group, kind="stable")
    opens = np.ones(len(rows), np.bool_)
    opens[1:] = group[order][1:] != group[order][:-1]
    before = np.cumsum(final[order]) - final[order]
    found[order] = before > before[np.flatnonzero(opens)][np.cumsum(opens) - 1]
    return found


def _listed_before(entry: I64, learns: Bools) -> I64:
    """Return for each row the last LEARN before it of the same entry, −1 without one."""
    at = np.where(learns, np.arange(len(entry)), -1)
    last = np.maximum.accumulate(at) if len(at) else at
    before = np.append(-1, last[:-1])[: len(at)]
    found: I64 = np.where((before >= 0) & (entry[before] == entry), before, -1)
    return found


def _outdone(entry: I64, number: I64, learns: Bools) -> Bools:
    """Tell which LEARNs come after one of a larger incarnation of the same entry."""
    if not len(entry):
        return np.zeros(0, np.bool_)
    opens = np.ones(len(entry), np.bool_)
    opens[1:] = entry[1:] != entry[:-1]
    base = np.cumsum(opens) * (int(number.max()) + 2)
    value = base + np.where(learns, number + 1, 0)
    highest = np.maximum.accumulate(value)
    before = np.append(0, highest[:-1])
    return learns & (before > value)


def _spans(life: I64, what: I64, from_ns: I64, to_ns: I64) -> Spans:
    some = from_ns < to_ns
    return Spans(life[some], what[some], from_ns[some], to_ns[some])


def _listed_wrongly(kind: str, spans: Spans, listings: Listings, facts: Facts) -> pa.Table:
    instant = facts.stretches.first_in(spans.from_ns, spans.to_ns)
    seen = np.flatnonzero(instant < TIME_MAX)
    rows = spans.what[seen]
    return _at("D1", kind, listings, rows, facts, instant[seen])


def _at(
    check: str,
    kind: str,
    listings: Listings,
    rows: I64,
    facts: Facts,
    time_ns: I64 | None = None,
) -> pa.Table:
    """Return a violation for each of these listings; `time_ns` is when, else when it was learnt."""
    when = listings.from_ns[rows] if time_ns is None else time_ns
    which = listings.which[rows]
    told = np.zeros(len(rows), np.int64)
    told[which >= 0] = facts.versions.at(which[which >= 0], when[which >= 0])
    details = [
        {
            "peer_id": str(peer),
            "incarnation": str(incarnation),
            "newest_version": newest,
            "age_ns": age,
        }
        for peer, incarnation, newest, age in zip(
            listings.peer[rows].tolist(),
            listings.incarnation[rows].tolist(),
            told.tolist(),
            listings.evidence_ns[rows].tolist(),
            strict=True,
        )
    ]
    return discovery_violations(
        facts,
        check,
        kind,
        process=listings.process[rows],
        position=listings.position[rows],
        time_ns=when,
        of=_holder(which, facts),
        version=listings.version[rows],
        details=details,
    )


def _holder(which: I64, facts: Facts) -> I64:
    holder = np.full(len(which), -1, np.int64)
    known = which >= 0
    holder[known] = facts.lives.process[facts.incarnations.life[which[known]]]
    return holder


def discovery_violations(
    facts: Facts,
    check: str,
    kind: str,
    *,
    process: I64,
    time_ns: I64,
    of: I64,
    position: I64 | None = None,
    version: I64 | None = None,
    details: Sequence[Mapping[str, object]] | None = None,
) -> pa.Table:
    """Return violations: at `process`, `of` is the participant concerned, `version` of its MAP.

    Ids and incarnations are in the details, as decimal strings: JSON has no integers of 64 bits.
    """
    return violation_rows(
        facts.run_id,
        check,
        kind,
        process=process,
        position=position,
        time_ns=time_ns,
        source=of,
        number=np.full(len(process), -1, np.int64) if version is None else version,
        details=details,
    )


def _missing(right: Spans, facts: Facts, lives: I64) -> tuple[pa.Table, int]:
    """Find pairs of members of which one does not list the other although all is quiet."""
    every = facts.lives
    joined, ended = every.adopted_ns, every.end_ns
    listed = facts.incarnations.life[right.what]
    pair = right.life * max(1, len(every)) + listed
    bounds = np.searchsorted(right.life, lives), np.searchsorted(right.life, lives, side="right")
    nothing = np.zeros(0, np.int64)
    found: list[tuple[I64, I64, I64, I64]] = [(nothing, nothing, nothing, nothing)]
    pairs = 0
    for life, first, last in zip(lives.tolist(), *(b.tolist() for b in bounds), strict=True):
        low, high = np.maximum(joined, joined[life]), np.minimum(ended, ended[life])
        together = facts.stretches.first_in(low, high) < TIME_MAX
        together[life] = False
        pairs += int(np.count_nonzero(together))
        together[listed[first:last]] = False
        others = np.flatnonzero(together)
        found.append((np.full(len(others), life), others, low[others], high[others]))
    opens, closes = np.ones(len(pair), np.bool_), np.ones(len(pair), np.bool_)
    opens[1:] = closes[:-1] = pair[1:] != pair[:-1]
    if len(pair):
        low = np.maximum(joined[right.life], joined[listed])
        high = np.minimum(ended[right.life], ended[listed])
        covered = _covered_before(opens, right.to_ns, low)
        until = np.maximum(covered, right.to_ns)[closes]
        found.append((right.life, listed, covered, np.minimum(right.from_ns, high)))
        found.append((right.life[closes], listed[closes], until, high[closes]))
    gaps = _spans(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    instant = facts.stretches.first_in(gaps.from_ns, gaps.to_ns)
    seen = np.flatnonzero(instant < TIME_MAX)
    life, other = gaps.life[seen], gaps.what[seen]
    tenure = facts.tenures.held(other, instant[seen])
    table = discovery_violations(
        facts,
        "D1",
        "missing",
        process=every.process[life],
        time_ns=instant[seen],
        of=every.process[other],
        details=[
            {"peer_id": str(peer), "incarnation": str(incarnation), "since_ns": since}
            for peer, incarnation, since in zip(
                facts.tenures.id[tenure].tolist(),
                facts.tenures.incarnation[tenure].tolist(),
                gaps.from_ns[seen].tolist(),
                strict=True,
            )
        ],
    )
    return table, pairs


def _covered_before(opens: Bools, to_ns: I64, low: I64) -> I64:
    """Return until when each pair's earlier spans reach, `low` before the first of a pair."""
    covered = low.copy()
    if len(opens) < 2:
        return covered
    # Ends grow within a pair but where one incarnation was had twice; a running maximum each.
    order = np.argsort(to_ns, kind="stable")
    rank = np.empty(len(to_ns), np.int64)
    rank[order] = np.arange(len(to_ns))
    highest = np.maximum.accumulate(np.cumsum(opens) * len(to_ns) + rank)
    reach = to_ns[order[highest % len(to_ns)]]
    later = ~opens[1:]
    covered[1:][later] = np.maximum(low[1:], reach[:-1])[later]
    return covered
