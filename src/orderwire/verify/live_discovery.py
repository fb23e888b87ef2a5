"""The discovery of a run that still goes on: kept as news, judged as far as all have come.

What participants learn and tell is kept, for a view may stand on the first word of a run; messages,
the bulk of it, are counted and forgotten.  So memory grows with what is new, not with time.

Every finding about an instant rests on what happened by then, so what lies below the horizon is
judged as in a whole trace.  One who was not heard of until now may still change that: a report
before the end is a preview, and the findings are handed over when the run is finished.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import NO_ORDER, EventKind, RunSettings
from orderwire.trace.schema import arrow_schema
from orderwire.verify.discovery_audit import Domain, conclude_discovery
from orderwire.verify.kernels.columns import (
    END,
    EXPIRE,
    I64,
    KINDS,
    LEARN,
    TIME_MAX,
    TIME_MIN,
    Bools,
    columns_of,
    integers,
)
from orderwire.verify.kernels.discovery_columns import DISCOVERY_NEEDED, discovery_columns_of
from orderwire.verify.kernels.discovery_cuts import TOLD_KINDS, cuts_of
from orderwire.verify.kernels.discovery_ids import judge_ids
from orderwire.verify.kernels.discovery_measures import TRAFFIC, traffic_of
from orderwire.verify.kernels.discovery_share import (
    ALL_NEEDED,
    DISCOVERY_PARTS,
    Share,
    audit_share,
    join_shares,
)
from orderwire.verify.kernels.lives import Lives, life_in, lined_up, lives_from, opens_life
from orderwire.verify.kernels.survey import OF_DISCOVERY
from orderwire.verify.kernels.violations import merge, no_violations
from orderwire.verify.kernels.wellformed import Head, drop_repeats, timelines
from orderwire.verify.report import CheckReport, Found, RunReport, judge, tally_found, worst

NEWS_MAX = 1_000_000
"""Events kept of one run; with more, nothing is VALID."""
_NEWS_KINDS = (*TOLD_KINDS, KINDS[LEARN], KINDS[EXPIRE])
_HELD = pa.schema([arrow_schema().field(name) for name in ALL_NEEDED])
_NEWS = pa.schema([arrow_schema().field(name) for name in DISCOVERY_NEEDED])


class ViewsState(msgspec.Struct, kw_only=True):
    """What is remembered between two portions, besides tables."""

    heads: dict[int, Head] = {}
    begun: list[tuple[int, int]] = []
    """(process, time) of STARTs at position 0, each once."""
    last_ns: dict[str, int] = {}
    """Time of the last event of each life, by "process,life"."""
    seen: list[int] = []
    """Ids that were adopted or listed."""
    first_ns: int = TIME_MAX
    until_ns: int = TIME_MIN
    """Of the last event."""
    events: int = 0
    discovery: int = 0
    overfull: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A run's discovery, judged up to some instant."""

    domain: Domain
    joined: Mapping[str, pa.Table]
    violations: pa.Table


class LiveDiscovery:
    """Takes the events of one run while they come, in any portions, each process's in order."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.state = ViewsState()
        self._held = _HELD.empty_table()
        """What cannot be taken yet, as it came."""
        self._news = _NEWS.empty_table()
        self._traffic = TRAFFIC.empty_table()

    @property
    def held(self) -> int:
        """Events that wait for others before them."""
        return int(self._held.num_rows)

    @property
    def lives(self) -> Lives:
        """When the lives of processes began that have several."""
        return lives_from(self.state.begun)

    def tables(self) -> dict[str, pa.Table]:
        """Return what is remembered besides the state."""
        return {"views": self._held, "news": self._news, "traffic": self._traffic}

    def restore(self, state: ViewsState, tables: dict[str, pa.Table]) -> None:
        """Undo `tables`, which are taken out of these."""
        self.state = state
        self._held, self._news = tables.pop("views"), tables.pop("news")
        self._traffic = tables.pop("traffic")

    def feed(
        self, table: pa.Table, settings: RunSettings | None, *, last: bool = False
    ) -> pa.Table:
        """Take what follows what was taken, or all that is left with `last`; keep the rest.

        Returns what is wrong with the timelines, where the run has no order to judge.
        """
        self._held = pa.concat_tables(
            [self._held, table.select(list(ALL_NEEDED)).cast(_HELD)]
        ).combine_chunks()
        if settings is None:
            return no_violations()
        self._note_starts()
        lined = lined_up(self._held, self.lives)
        process, position = integers(lined, "process"), integers(lined, "position")
        follows, passed = self._following(process, position, last=last)
        self._held = self._held.filter(pa.array(~(follows | passed)))
        taken = lined.filter(pa.array(follows))
        if not taken.num_rows:
            return no_violations()
        return self._take(taken, settings)

    def waited_for(self, settings: RunSettings) -> dict[int, int]:
        """Return who has not ended, and up to which time each is known."""
        state = self.state
        expected: set[int] = set(state.heads)
        expected.update(state.seen if settings.is_open else range(settings.members))
        first_ns = state.first_ns if state.heads else 0
        return {
            process: max(head.time_ns, first_ns)
            for process in sorted(expected)
            for head in [state.heads.get(process, Head())]
            if not head.ended
        }

    def judged(self, settings: RunSettings, horizon: int) -> Judged:
        """Judge what happened before `horizon`; TIME_MAX says that the run is over."""
        state, lives = self.state, self.lives
        news, until_ns = self._news, state.until_ns
        if horizon < TIME_MAX:
            news = news.filter(pc.field("time_ns") < horizon)
            until_ns = min(until_ns, horizon - 1)
        kinds = pa.array(TOLD_KINDS, pa.string())
        told = news.filter(pc.is_in(news.column("kind"), value_set=kinds))
        cuts = cuts_of(told, self._times_of)
        if horizon < TIME_MAX:  # Who goes on has not been cut off.
            begun = lives.starts_ns
            cuts = tuple(cut for cut in cuts if cut[1] < begun.get(cut[0], (TIME_MIN,))[-1])
        domain = Domain(
            run_id=self.run_id,
            settings=settings,
            assumed=settings,
            truth=told,
            first_ns=min(state.first_ns, until_ns),
            last_ns=until_ns,
            events=state.events,
            discovery=state.discovery,
            participant=max(state.heads, default=0),
            lives=lives,
            cuts=cuts,
        )
        everyone = Share(run_id=self.run_id, low=0, high=domain.participant + 1)
        # Timelines were judged as they came, and messages are counted already.
        beside = msgspec.structs.replace(settings, algorithm="")
        part = audit_share(news, everyone, domain.facts, beside)
        joined = join_shares([{**part, "traffic": self._traffic}])
        joined["sums"] = _with_events(joined["sums"], state.events)
        return Judged(domain, joined, merge([judge_ids(domain.facts), part["violations"]]))

    def report(
        self,
        judged: Judged,
        found: Mapping[str, Found],
        expect: str | None,
        base: RunReport | None,
        *,
        finished: bool,
        sure: bool,
    ) -> RunReport:
        """Conclude; before the end of the run, and with too much of it, nothing is VALID."""
        told = dict(found)
        if not finished:
            told |= tally_found(judged.violations)
        report = conclude_discovery(judged.domain, judged.joined, told, expect, base)
        if sure and not self.state.overfull:
            return report
        checks = [_unsure(check) for check in report.checks]
        verdict = worst([check.verdict for check in checks if check.promised])
        return msgspec.structs.replace(report, checks=checks, verdict=verdict)

    # -- taking ------------------------------------------------------------------------------

    def _note_starts(self) -> None:
        kind, position = self._held.column("kind"), self._held.column("position")
        first = self._held.filter(
            pc.and_(pc.equal(kind, EventKind.START.value), pc.equal(position, 0))
        )
        pairs = zip(
            *(first.column(name).to_pylist() for name in ("process", "time_ns")), strict=True
        )
        self.state.begun = sorted({*self.state.begun, *pairs})

    def _following(self, process: I64, position: I64, *, last: bool) -> tuple[Bools, Bools]:
        """Tell which rows are next in their timelines, and which were taken before."""
        order = np.lexsort((position, process))
        process, position = process[order], position[order]
        opens = np.ones(len(order), np.bool_)
        opens[1:] = process[1:] != process[:-1]
        heads = self.state.heads
        expected = np.array([heads.get(p, Head()).position for p in process.tolist()], np.int64)
        passed = position < expected
        before = np.zeros(len(order), np.int64)
        before[1:] = position[:-1]
        again = ~opens & (position == before)
        sound = passed | again | opens_life(position) | (position == expected)
        sound |= ~opens & (position == before + 1)
        if last:
            sound[:] = True
        wrong = np.cumsum(~sound)
        start = np.maximum.accumulate(np.where(opens, np.arange(len(order)), 0))
        base = (wrong - ~sound)[start] if len(order) else wrong
        follows = np.zeros(len(order), np.bool_)
        follows[order] = (wrong == base) & ~passed
        gone = np.zeros(len(order), np.bool_)
        gone[order] = passed
        return follows, gone

    def _take(self, taken: pa.Table, settings: RunSettings) -> pa.Table:
        state = self.state
        columns, conflicts = drop_repeats(self.run_id, columns_of(taken))
        found = no_violations()
        if settings.algorithm == NO_ORDER:
            found = merge(
                [conflicts, timelines(self.run_id, columns, settings.members, state.heads)]
            )
        for process, rows in _by_process(columns.process):
            final = rows.stop - 1
            life = life_in(columns.position[rows])
            for one in np.unique(life).tolist():
                at = rows.start + int(np.flatnonzero(life == one)[-1])
                state.last_ns[f"{process},{one}"] = int(columns.time_ns[at])
            state.heads[process] = Head(
                position=int(columns.position[final]) + 1,
                time_ns=int(columns.time_ns[final]),
                ended=bool(columns.kind[final] == END),
            )
        state.first_ns = min(state.first_ns, int(columns.time_ns.min()))
        state.until_ns = max(state.until_ns, int(columns.time_ns.max()))
        state.events += len(columns)
        of_discovery = discovery_columns_of(taken.select(list(DISCOVERY_NEEDED)))
        codes = [KINDS.index(kind) for kind in OF_DISCOVERY]
        state.discovery += int(np.count_nonzero(np.isin(of_discovery.kind, codes)))
        self._traffic = _added(self._traffic, traffic_of(of_discovery))
        self._keep(taken)
        return found

    def _keep(self, taken: pa.Table) -> None:
        kinds = pa.array(_NEWS_KINDS, pa.string())
        news = taken.filter(pc.is_in(taken.column("kind"), value_set=kinds))
        ids = pc.unique(pc.drop_null(news.column("peer_id"))).to_pylist()
        self.state.seen = sorted({*self.state.seen, *(each for each in ids if each >= 0)})
        room = NEWS_MAX - self._news.num_rows
        if news.num_rows > room:
            self.state.overfull = True
            news = news.slice(0, max(0, room))
        self._news = pa.concat_tables([self._news, news.select(_NEWS.names)]).combine_chunks()

    def _times_of(self, process: int) -> I64:
        mine = f"{process},"
        times = [ns for life, ns in self.state.last_ns.items() if life.startswith(mine)]
        return np.array(times, np.int64)


def _by_process(process: I64) -> Iterator[tuple[int, slice]]:
    """Yield each process and where its rows are."""
    processes, start = np.unique(process, return_index=True)
    stops = np.append(start[1:], len(process))
    for one, first, stop in zip(processes.tolist(), start.tolist(), stops.tolist(), strict=True):
        yield one, slice(first, stop)


def _added(*traffic: pa.Table) -> pa.Table:
    nothing = {name: schema.empty_table() for name, schema in DISCOVERY_PARTS.items()}
    return join_shares([nothing | {"traffic": table} for table in traffic])["traffic"]


def _with_events(sums: pa.Table, events: int) -> pa.Table:
    told = dict(zip(*sums.to_pydict().values(), strict=True)) | {"events": events}
    return pa.table([list(told), list(told.values())], schema=sums.schema)


def _unsure(check: CheckReport) -> CheckReport:
    return msgspec.structs.replace(check, verdict=judge(check.violations, unsure=True))
