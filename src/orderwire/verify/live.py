"""The audit of a run that still goes on: its state is bounded by Δ, not by the run's length.

Events come in any portions, each process's in its own order.  What lies below the horizon, the
least time up to which every process is known, is closed: audited as a slice, and forgotten but for
one window, which the next slice must see.  When all members have ended, the run is settled.

In a run of members that find each other only those who appear are waited for; the horizon keeps
`AuditOptions.newcomer_ns` behind the first, for a newcomer's first words.  Discovery is judged by
`live_discovery`: previewed in reports, found for good when the run is finished.

A run that promises a total order is judged for that too, a window behind (`live_total`).

A member of which nothing comes while the others' time goes on is waited for up to
`AuditOptions.silence_ns`.  Then the others are audited on without it, and its own trace counts as
incomplete until its END.  If it speaks again, what it did above the horizon is audited like
everything else; what lies below is late: its timeline is judged, but no copy to or from it is
counted as a violation, and the run is never VALID.  When only silent members are left nothing tells
how long ago the others ended: `conclude` says that no more is waited for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.kernel import members_of
from orderwire.trace.events import NO_ORDER, RunSettings
from orderwire.trace.schema import arrow_schema
from orderwire.verify.audit import AuditOptions, contradictions
from orderwire.verify.kernels.columns import (
    DISCARD,
    END,
    NEEDED,
    TIME_MAX,
    TIME_MIN,
    Columns,
    columns_of,
)
from orderwire.verify.kernels.copies import DROP_OF, MISSING, STRAY, TALLIES
from orderwire.verify.kernels.lives import (
    Lives,
    lined_up,
    lives_from,
    opens_life,
)
from orderwire.verify.kernels.slices import (
    COUNTS,
    EDGES,
    TALLY,
    Slice,
    audit_columns,
)
from orderwire.verify.kernels.violations import merge, no_violations
from orderwire.verify.kernels.wellformed import Head, drop_repeats, timelines
from orderwire.verify.live_discovery import LiveDiscovery, ViewsState
from orderwire.verify.live_heads import move_heads, stretches_of
from orderwire.verify.live_parts import Closing, pack, unpack
from orderwire.verify.live_total import LiveTotal, TotalState
from orderwire.verify.report import (
    EXAMPLES_MAX,
    TOTAL_ORDER_CHECKS,
    Found,
    RunReport,
    conclude,
    example_rows,
    promised,
)
from orderwire.verify.settle import Settled, restarts, settle
from orderwire.verify.source import settings_of

WINDOW_NS = 10_000_000_000
"""Window of a run whose messages live for ever: slower deliveries are not judged for order."""
HELD_EVENTS_MAX = 2_000_000
"""With more events waiting for a silent process, the run is closed without it at once."""
EXCUSED_MAX = 20_000
"""Copies remembered as reported lost, the newest: one may still turn up, late."""
OPEN_MAX = 20_000
"""Copies to silent members, and from them, that are remembered, the newest."""
STEP_WINDOWS = 2
"""A slice is at least so many windows long while the run goes on: events are read 1.5 times."""
_NAMES = (*NEEDED, "incarnation", "channel_number")
_HELD = pa.schema([arrow_schema().field(name) for name in _NAMES])
_NOTHING = arrow_schema().empty_table()
_STARTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("process", pa.int32()),
        ("position", pa.int64()),
        ("time_ns", pa.int64()),
        ("detail", pa.string()),
    ]
)
_Copy = tuple[int, int, int]
"""(source, number, destination)."""
_ACCUMULATED = {
    "tallies": TALLY,
    "missing": MISSING,
    "excused": MISSING,
    "stray": STRAY,
    "edges": EDGES,
    "counts": COUNTS,
}


class LiveState(msgspec.Struct, kw_only=True):
    """What is remembered of a run between two portions of its events, besides tables."""

    settings: RunSettings | None = None
    first_ns: int = TIME_MIN
    """Of the first event, from which on a member that has not started yet is waited for."""
    closed_ns: int = TIME_MIN
    begun: list[tuple[int, int]] = []
    """(process, time) of STARTs at position 0."""
    seen: list[int] = []
    """Of an open run: who has appeared."""
    heads: dict[int, Head] = {}
    past: dict[str, Head] = {}
    """Of lives before the present ones, by "process,life"."""
    spent: dict[str, int] = {}
    """Reported losses that stand for copies already forgotten, by "source,process"."""
    counts: dict[str, int] = {}
    """Violations so far, by check."""
    examples: dict[str, list[dict[str, Any]]] = {}
    contradicted: list[int] = []
    open: list[int] = []
    """Members that have not ended."""
    silent: list[int] = []
    """Those of them that the last portion found too far behind the others."""
    late: dict[int, int] = {}
    """Events that came when their time was closed already, by process."""
    forgotten: int = 0
    """Copies to silent members that are not remembered any more."""
    uncertain: bool = False
    finished: bool = False


class LiveRun:
    """Audits one run while its events come."""

    def __init__(self, run_id: str, options: AuditOptions | None = None) -> None:
        self.run_id = run_id
        self.state = LiveState()
        self._options = options or AuditOptions()
        self._held = _HELD.empty_table()
        self._views = LiveDiscovery(run_id)
        self._total = LiveTotal()
        self._parts = {name: schema.empty_table() for name, schema in _ACCUMULATED.items()}

    @property
    def held(self) -> int:
        """Events kept, in number."""
        return int(self._held.num_rows) + self._total.held + self._views.held

    @property
    def finished(self) -> bool:
        """All members have ended and everything is judged."""
        return self.state.finished

    @property
    def left_behind(self) -> bool:
        """Only silent members have not ended: it takes `conclude` to finish."""
        return not self.finished and bool(self.state.open) and self.state.open == self.state.silent

    @property
    def certain(self) -> bool:
        """So far everything could be judged: nothing was slower than the window, or disordered."""
        settings = self.state.settings
        return not self.state.uncertain and (
            settings is None or self._settle(settings).slices_suffice
        )

    def feed(self, table: pa.Table) -> pa.Table:
        """Take more events of the run, close what can be closed, return its violations.

        Events that were closed before, as delivery at least once may repeat them, are ignored.
        """
        found = self._learn(table)
        settings = self.state.settings
        if not self._discovers:
            self._views = LiveDiscovery(self.run_id)  # forgets what came before this was known
        elif not self.finished:
            wrong = self._views.feed(table, settings)
            self._count(wrong)
            found = merge([found, wrong])
        if self._alone:
            return merge([found, self._feed_alone(table)])
        fresh = table.select(list(_NAMES)).cast(_HELD)
        self._held = pa.concat_tables([self._held, fresh]).combine_chunks()
        if self.finished:
            columns = columns_of(lined_up(fresh, self._lives))
            self._note_late(columns.take(np.isin(columns.process, self.state.silent)))
            self._held = _HELD.empty_table()
            return no_violations()
        if settings is None:
            return found
        columns, _ = drop_repeats(self.run_id, columns_of(lined_up(self._held, self._lives)))
        if self.state.closed_ns == TIME_MIN:
            self.state.first_ns = _first(columns)
        started = max(self.state.closed_ns, self.state.first_ns)
        horizon = self._horizon(columns, settings)
        ended = horizon == TIME_MAX
        high = TIME_MAX if ended else horizon - settings.epsilon_ns
        if self.held - self._total.held > HELD_EVENTS_MAX and not ended:
            high = int(columns.time_ns.max())
            self.state.uncertain = True
        if not ended and high - started < STEP_WINDOWS * self.window_ns:
            return found
        closed = self._finish(settings) if ended else self._close(high, settings)
        self._count(closed)
        return merge([found, closed])

    def conclude(self) -> pa.Table:
        """Wait for nobody any more: finish the run, return the violations of what was left."""
        settings = self.state.settings
        if settings is None or self.finished:
            return no_violations()
        closed = self._finish(settings)
        self._count(closed)
        return closed

    @property
    def _discovers(self) -> bool:
        """Whether the run may have a discovery to judge."""
        settings = self.state.settings
        return settings is None or self._alone or settings.discovery is not msgspec.UNSET

    @property
    def _alone(self) -> bool:
        """Whether the run is about discovery only."""
        settings = self.state.settings
        return settings is not None and settings.algorithm == NO_ORDER

    @property
    def _lives(self) -> Lives:
        return lives_from(self.state.begun)

    def _feed_alone(self, table: pa.Table) -> pa.Table:
        """Note who is still to come in a run without an order; finish it when nobody is."""
        settings = self.state.settings
        assert settings is not None
        self._held = _HELD.empty_table()
        if self.finished:
            self._note_late(columns_of(lined_up(table.select(list(NEEDED)), self._lives)))
            return no_violations()
        reached = self._views.waited_for(settings)
        self._note_open(reached, self._views.state.until_ns, settings)
        if reached or not self._views.state.heads:
            return no_violations()
        closed = self._finish(settings)
        self._count(closed)
        return closed

    def _note_open(self, reached: Mapping[int, int], lead: int, settings: RunSettings) -> int:
        """Note who has not ended, and who of them is silent; return how far behind is too far."""
        least = lead - self._options.silence_ns - self.window_ns - settings.epsilon_ns
        self.state.open = list(reached)
        self.state.silent = [process for process, time_ns in reached.items() if time_ns < least]
        return least

    def _finish(self, settings: RunSettings) -> pa.Table:
        tables = []
        if self._discovers:
            nothing = self._views.feed(_NOTHING, settings, last=True)
            tables += [nothing, self._views.judged(settings, TIME_MAX).violations]
        if self._alone:
            self.state.heads = self._views.state.heads
            self.state.closed_ns = TIME_MAX
        else:
            tables += [self._close(TIME_MAX, settings), self._settle(settings).violations]
        self.state.finished = True
        return merge(tables)

    def report(self) -> RunReport:
        """Conclude from what is closed; changes nothing.

        What lies beyond the horizon is not judged: the sends of its deliveries may be to come.
        """
        settings = self.state.settings
        found = {
            check: Found(count, self.state.examples[check])
            for check, count in self.state.counts.items()
        }
        base = None if self._alone else self._order_report(settings, found)
        if settings is None or not self._discovers or not self._views.state.heads:
            return base if base is not None else self._order_report(settings, found)
        horizon = TIME_MAX
        if not self.finished:
            reached = self._views.waited_for(settings)
            going = [ns for process, ns in reached.items() if process not in self.state.silent]
            horizon = min(going, default=self._views.state.until_ns + 1)
        judged = self._views.judged(settings, horizon)
        sure = self.finished and not self.state.uncertain
        return self._views.report(
            judged, found, self._options.expect, base, finished=self.finished, sure=sure
        )

    def _order_report(self, settings: RunSettings | None, found: dict[str, Found]) -> RunReport:
        settled = self._settle(settings or RunSettings(algorithm="", members=1))
        if not self.finished:
            own = settled.violations
            for check in pc.unique(own.column("check")).to_pylist():
                rows = own.filter(pc.equal(own.column("check"), check))
                seen = found.get(check, Found(0, []))
                shown = [*seen.examples, *example_rows(rows.slice(0, EXAMPLES_MAX))]
                found[check] = Found(seen.count + rows.num_rows, shown[:EXAMPLES_MAX])
        return conclude(
            self.run_id,
            settings,
            settled,
            found,
            expect=self._options.expect,
            uncertain=self.state.uncertain or not settled.slices_suffice or not self.finished,
            extra_checked=self._total.checked(
                settled.deliveries, promised="T1" in self._promised_total
            ),
            departed=self._total.departed(settings.members, self._lives) if settings else (),
        )

    @property
    def _promised_total(self) -> frozenset[str]:
        """The checks of a total order that the run is held to."""
        promises = promised(self.state.settings, self._options.expect)
        return promises & frozenset(TOTAL_ORDER_CHECKS)

    @property
    def window_ns(self) -> int:
        """W: a delivery in time took no longer, stamps ahead of the clock by a quarter of Δ."""
        settings = self.state.settings
        if self._alone:
            return 0
        if settings is None or settings.lifetime_ns is None:
            return WINDOW_NS
        lead = settings.lifetime_ns // 4 + settings.epsilon_ns
        return settings.lifetime_ns + settings.timer_slack_ns + lead

    def dump(self) -> bytes:
        """Return the whole state as bytes: the same for the same events, whatever the machine."""
        tables = {"held": self._held, **self._parts, **self._views.tables()}
        packed = {name: pack(table) for name, table in (tables | self._total.tables()).items()}
        return msgspec.msgpack.encode((self.state, self._views.state, self._total.state, packed))

    @classmethod
    def load(cls, run_id: str, data: bytes, options: AuditOptions | None = None) -> "LiveRun":
        """Undo `dump`."""
        run = cls(run_id, options)
        run.state, views, total, packed = msgspec.msgpack.decode(
            data, type=tuple[LiveState, ViewsState, TotalState, dict[str, bytes]], strict=False
        )
        tables = {name: unpack(content) for name, content in packed.items()}
        run._views.restore(views, tables)
        run._held = tables.pop("held")
        run._total.restore(total, tables)
        run._parts = tables
        return run

    def _learn(self, table: pa.Table) -> pa.Table:
        """Read the settings in new START events; report those that contradict them."""
        starts = table.filter(pc.equal(table.column("kind"), "start")).select(_STARTS.names)
        if starts.num_rows == 0 or self.finished:
            return no_violations()
        state = self.state
        told = starts.cast(_STARTS)
        first = told.filter(pc.field("position") == 0)
        pairs = zip(
            *(first.column(name).to_pylist() for name in ("process", "time_ns")), strict=True
        )
        state.begun = sorted({*state.begun, *pairs})
        if state.settings is not None:
            known = msgspec.json.encode(state.settings).decode()
            first = pa.table([[self.run_id], [-1], [-1], [TIME_MIN], [known]], schema=_STARTS)
            told = pa.concat_tables([first, told])
        settings, odd = settings_of(told, self.run_id)
        state.settings = settings
        fresh = [p not in state.contradicted for p in odd.column("process").to_pylist()]
        odd = odd.filter(pa.array(fresh, pa.bool_()))
        state.contradicted = sorted({*state.contradicted, *odd.column("process").to_pylist()})
        found = contradictions(self.run_id, odd)
        self._count(found)
        return found

    def _horizon(self, columns: Columns, settings: RunSettings) -> int:
        """Return the least time up to which every member's events have come, or it is silent.

        Notes who has not ended, and who of them is further behind the first than it may be.
        """
        reached: dict[int, int] = {}
        lead = self.state.first_ns
        bounds = np.searchsorted(columns.process, np.arange(settings.members + 1))
        for process in self._expected(columns, settings):
            head = self.state.heads.get(process, Head())
            rows = slice(int(bounds[process]), int(bounds[process + 1]))
            position = columns.position[rows]
            start = int(np.searchsorted(position, head.position))
            ahead = position[start:]
            expected = np.append(head.position, ahead[:-1] + 1)[: len(ahead)]
            holes = np.flatnonzero((ahead != expected) & ~opens_life(ahead))
            whole = int(holes[0]) if len(holes) else len(ahead)
            last = rows.start + start + whole - 1
            time_ns = int(columns.time_ns[last]) if whole else head.time_ns
            lead = max(lead, time_ns)
            if not (columns.kind[last] == END if whole else head.ended):
                reached[process] = max(time_ns, self.state.first_ns)
        least = self._note_open(reached, lead, settings)
        if not reached:
            return TIME_MAX
        horizon = max(least, min(reached.values()))
        return min(horizon, lead - self._options.newcomer_ns) if settings.is_open else horizon

    def _expected(self, columns: Columns, settings: RunSettings) -> Sequence[int]:
        """Return whose events are waited for."""
        if not settings.is_open:
            return range(settings.members)
        seen = {*self.state.seen, *np.unique(columns.process).tolist()}
        seen.update(np.unique(columns.source[columns.source >= 0]).tolist())
        for mask in pc.unique(columns.destinations).to_pylist():
            seen.update(members_of(int.from_bytes(mask, "little")))
        self.state.seen = sorted(each for each in seen if 0 <= each < settings.members)
        return self.state.seen

    def _close(self, high: int, settings: RunSettings) -> pa.Table:
        """Audit what lies below `high`, add it to the accounts, forget what is not needed."""
        state = self.state
        piece = Slice(
            run_id=self.run_id,
            low=state.closed_ns,
            high=high,
            window_ns=self.window_ns,
            epsilon_ns=settings.epsilon_ns,
        )
        columns = columns_of(lined_up(self._held, self._lives))
        found = audit_columns(columns, piece, settings)
        columns, _ = drop_repeats(self.run_id, columns)
        position = self._next_positions(columns)
        new = columns.take((columns.position >= position) & (columns.time_ns < high))
        self._note_late(new)
        wrong = [] if piece.whole else [timelines(self.run_id, new, settings.members, state.heads)]
        if self._promised_total:
            wrong.append(self._total.close(self._held, self._closing(high, settings)))
            state.uncertain |= self._total.uncertain
        move_heads(state.heads, state.past, new)
        parts = found.parts()
        self._parts = {
            name: pa.concat_tables([kept, parts[name]]) if name in parts else kept
            for name, kept in self._parts.items()
        }
        self._compact()
        keep_from = self._past(high, settings)
        self._held = self._held.filter(pc.field("time_ns") >= keep_from).combine_chunks()
        state.closed_ns = high
        return merge([found.violations, *wrong])

    def _past(self, high: int, settings: RunSettings) -> int:
        """Return before which stamp nothing is under way when the run is closed up to `high`."""
        return TIME_MAX if high == TIME_MAX else high - self.window_ns - settings.epsilon_ns

    def _closing(self, high: int, settings: RunSettings) -> Closing:
        return Closing(
            run_id=self.run_id,
            low=self.state.closed_ns,
            high=high,
            window_ns=self.window_ns,
            settled_ns=self._past(high, settings),
            members=settings.members,
            lives=self._lives,
            late=frozenset(self.state.late),
        )

    def _note_late(self, columns: Columns) -> None:
        """Note the events that come when what they tell of is closed."""
        fresh = columns.position >= self._next_positions(columns)
        tardy = columns.process[fresh & (columns.time_ns < self.state.closed_ns)]
        processes, counts = np.unique(tardy, return_counts=True)
        for process, count in zip(processes.tolist(), counts.tolist(), strict=True):
            self.state.late[process] = self.state.late.get(process, 0) + count
            self.state.uncertain = True

    def _next_positions(self, columns: Columns) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Return for each row the next position that its process's head expects."""
        processes, of = np.unique(columns.process, return_inverse=True)
        heads = [self.state.heads.get(p, Head()).position for p in processes.tolist()]
        return np.array(heads, np.int64)[of] if len(heads) else np.zeros(0, np.int64)

    def _compact(self) -> None:
        """Add up the tallies, and forget the copies that are accounted for."""
        parts, spent = self._parts, self.state.spent
        missing, excused = _by_copy(parts["missing"]), _by_copy(parts["excused"])
        kept = []
        moved = []
        for stray in parts["stray"].to_pylist():
            copy = (stray["source"], stray["number"], stray["process"])
            if stray["kind"] != DISCARD:
                kept.append(stray)
            elif stray["reason"] in DROP_OF and (copy in missing or copy in excused):
                if missing.pop(copy, None) is None:
                    del excused[copy]  # it was not this copy that was reported lost
                    spent[_pair(copy)] -= 1
                name = DROP_OF[stray["reason"]]
                moved.append({"source": copy[0], "process": copy[2], name: 1, "missing": -1})
        tallies = _add_up(pa.concat_tables([parts["tallies"], _tally_rows(moved)]))
        reports = {
            f"{row['source']},{row['process']}": row["reported_lost"]
            for row in tallies.select(["source", "process", "reported_lost"]).to_pylist()
            if row["reported_lost"]
        }
        again = restarts(parts["edges"])
        for copy, row in sorted(missing.items()):
            pair = _pair(copy)
            if row["time_ns"] < again.get(copy[2], TIME_MIN):
                continue  # its destination crashed: no report stands for it
            if row["received_ns"] < 0 and reports.get(pair, 0) > spent.get(pair, 0):
                spent[pair] = spent.get(pair, 0) + 1
                excused[copy] = missing.pop(copy)
        kept = self._bound_open(missing, kept)
        recent = sorted(excused.values(), key=lambda row: row["time_ns"])[-EXCUSED_MAX:]
        counts = parts["counts"]
        totals = [[int(np.sum(counts.column(name).to_numpy()))] for name in COUNTS.names]
        self._parts = {
            "tallies": tallies,
            "missing": pa.Table.from_pylist(list(missing.values()), MISSING),
            "excused": pa.Table.from_pylist(recent, MISSING),
            "stray": pa.Table.from_pylist(kept, STRAY),
            "edges": parts["edges"],
            "counts": pa.table(totals, schema=COUNTS),
        }

    def _bound_open(
        self, missing: dict[_Copy, dict[str, int]], stray: list[dict[str, int]]
    ) -> list[dict[str, int]]:
        """Forget the oldest copies to silent members; return the strays without theirs."""
        silent = frozenset(self.state.silent)
        to_them = [copy for copy in missing if copy[2] in silent]
        for copy in sorted(to_them, key=lambda copy: missing[copy]["time_ns"])[:-OPEN_MAX]:
            del missing[copy]
            self.state.forgotten += 1
        from_them = sorted(row["time_ns"] for row in stray if row["source"] in silent)
        if len(from_them) <= OPEN_MAX:
            return stray
        self.state.uncertain = True
        oldest = from_them[-OPEN_MAX]
        return [row for row in stray if row["source"] not in silent or row["time_ns"] >= oldest]

    def _settle(self, settings: RunSettings) -> Settled:
        stretches = stretches_of(self.state.heads, self.state.past)
        spent = {
            (int(source), int(process)): count
            for pair, count in self.state.spent.items()
            for source, process in [pair.split(",")]
        }
        missing, stray = self._parts["missing"], self._parts["stray"]
        late = pa.array(sorted(self.state.late), pa.int32())
        judged = missing.filter(pc.invert(pc.is_in(missing.column("process"), late)))
        seen = stray.filter(pc.invert(pc.is_in(stray.column("source"), late)))
        parts = {**self._parts, "missing": judged, "stray": seen, "timelines": stretches}
        settled = settle(self.run_id, settings, parts, whole=False, spent=spent)
        open_copies = self.state.forgotten + missing.num_rows - judged.num_rows
        accounting = dict(settled.accounting)
        accounting["unfinished"] += open_copies
        return replace(settled, accounting=accounting)

    def _count(self, found: pa.Table) -> None:
        counts, examples = self.state.counts, self.state.examples
        for entry in pc.value_counts(found.column("check")).to_pylist() if found.num_rows else []:
            check = entry["values"]
            counts[check] = counts.get(check, 0) + entry["counts"]
            shown = examples.setdefault(check, [])
            rows = found.filter(pc.equal(found.column("check"), check))
            shown += example_rows(rows.slice(0, EXAMPLES_MAX - len(shown)))


def _by_copy(table: pa.Table) -> dict[_Copy, dict[str, int]]:
    return {(row["source"], row["number"], row["process"]): row for row in table.to_pylist()}


def _pair(copy: _Copy) -> str:
    return f"{copy[0]},{copy[2]}"


def _first(columns: Columns) -> int:
    return int(columns.time_ns.min()) if len(columns) else 0


def _tally_rows(rows: list[dict[str, int]]) -> pa.Table:
    whole = [{name: row.get(name, 0) for name in TALLY.names} for row in rows]
    return pa.Table.from_pylist(whole, TALLY)


def _add_up(tallies: pa.Table) -> pa.Table:
    sums = tallies.group_by(["source", "process"]).aggregate([(name, "sum") for name in TALLIES])
    renamed = sums.select(["source", "process", *(f"{name}_sum" for name in TALLIES)])
    added: pa.Table = renamed.rename_columns(TALLY.names).cast(TALLY)
    return added.sort_by([("source", "ascending"), ("process", "ascending")])
