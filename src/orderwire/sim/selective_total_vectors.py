"""Worked scenarios of ST: logs, lines, sorting, scripts, formulas.

The formats are those of `tests/vectors/selective-total/README.md`.  Entities count from 1 there and
from 0 here.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from orderwire.kernel import (
    Broadcast,
    Destinations,
    Effects,
    Indicate,
    Instant,
    ProcessId,
    destinations,
    ms,
)
from orderwire.ordering.pdu import Delivered, Multicast
from orderwire.ordering.total.pdu import (
    ChangeView,
    Data,
    Known,
    Member,
    Nak,
    Pdu,
    Record,
    Rst,
    RstAck,
    RstPak,
    Rtx,
)
from orderwire.ordering.total.receipt import Place, Receipt
from orderwire.ordering.total.recovery import Collection
from orderwire.ordering.total.settings import Delivery, Stability, TotalSettings
from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.sim.selective_total_formulas import repeated_share, sorted_share
from orderwire.sim.vector_format import VectorError, check_keys, read, without_remarks
from orderwire.verify.selective_total import Logs

Checks: TypeAlias = Iterator[str | None]
"""One per check: None, or why it failed."""

KINDS = ("logs", "line", "sort", "script", "formula")
ENTITIES_MAX = 64
STEPS_MAX = 100_000
_UNBOUNDED = 1 << 30
_EMPTY = "?"
_CONTROL: Mapping[str, type] = {"RST": Rst, "PAK": RstPak, "RACK": RstAck, "RTX": Rtx, "NAK": Nak}


class _Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of a scenario."""


def equal(what: str, found: Any, expected: Any) -> str | None:
    """Return the outcome of one check."""
    return None if found == expected else f"{what} is {found}, expected {expected}"


def is_selective_total(raw: Mapping[str, Any]) -> bool:
    """Whether this scenario is one of these formats."""
    kind = raw.get("kind")
    return isinstance(kind, str) and kind in KINDS and (kind != "script" or "steps" in raw)


def check_selective_total(raw: Mapping[str, Any]) -> list[str | None]:
    """Check a scenario; one entry per check, None or why it failed.  Raises VectorError."""
    check_keys(raw, frozenset(_FORMATS) | _FIELDS)
    plain = without_remarks({key: value for key, value in raw.items() if key in _FIELDS})
    kind = plain.pop("kind")
    return list(_FORMATS[kind](plain))


# ---------------------------------------------------------------------- logs


class _LogsScenario(_Form, frozen=True, kw_only=True):
    n: int
    sl: list[list[str]]
    dst: dict[str, list[int]]
    rl: list[list[str]]
    expect: dict[str, Any]


def _check_logs(raw: Mapping[str, Any]) -> Checks:
    given = read(raw, _LogsScenario, "scenario of logs")
    everybody = range(1, given.n + 1)
    messages = [message for log in given.sl for message in log]
    destined = {message: set(given.dst.get(message) or everybody) for message in messages}
    if len(given.sl) != given.n or len(given.rl) != given.n:
        raise VectorError(f"n is {given.n}, with {len(given.sl)} sl and {len(given.rl)} rl")
    logs = Logs(
        sent=dict(enumerate(given.sl, start=1)),
        received=dict(enumerate(given.rl, start=1)),
        destinations=destined,
    )
    found: dict[str, Callable[[], Any]] = {
        "order_preserving": lambda: [logs.is_order_preserving(k) for k in everybody],
        "information_preserving": lambda: [logs.is_information_preserving(k) for k in everybody],
        "selectively_information_preserving": lambda: [
            logs.is_selectively_information_preserving(k) for k in everybody
        ],
        "selectively_correct": lambda: [logs.is_selectively_correct(k) for k in everybody],
        "correct": lambda: [logs.is_correct(k) for k in everybody],
        "order_equivalent_pairs": lambda: _pairs(given.n, logs.are_order_equivalent),
        "information_equivalent_pairs": lambda: _pairs(given.n, logs.are_information_equivalent),
        "acyclic": logs.is_acyclic,
        "service": logs.service,
    }
    yield from _compare(found, given.expect)


def _pairs(n: int, holds: Callable[[int, int], bool]) -> list[list[int]]:
    return [[i, j] for i in range(1, n + 1) for j in range(i + 1, n + 1) if holds(i, j)]


def _compare(found: Mapping[str, Callable[[], Any]], expect: Mapping[str, Any]) -> Checks:
    for key, expected in expect.items():
        if key not in found:
            raise VectorError(f"expect has the unknown key {key!r}")
        yield equal(key, found[key](), expected)


# ---------------------------------------------------------------------- line


class _Sent(_Form, frozen=True, kw_only=True):
    id: str
    src: int
    dst: list[int]


class _LostAt(_Form, frozen=True, kw_only=True):
    id: str
    at: int


class _LineScenario(_Form, frozen=True, kw_only=True):
    n: int
    channel: list[_Sent]
    lost: list[_LostAt]
    rank_order: list[int]
    expect: dict[str, Any]
    iss: int = 0


def _check_line(raw: Mapping[str, Any]) -> Checks:
    """Let every entity receive the frozen channel, then recover."""
    given = read(raw, _LineScenario, "scenario of a line")
    n = _entities(given.n)
    if sorted(given.rank_order) != list(range(1, n + 1)):
        raise VectorError(f"rank_order {given.rank_order} does not name every entity once")
    _known_entities(n, [at.at for at in given.lost], *([s.src, *s.dst] for s in given.channel))
    missed = {(at.id, at.at - 1) for at in given.lost}
    tseq, pseq = [0] * n, [[0] * n for _ in range(n)]
    receipts = [Receipt(k, n) for k in range(n)]
    sent: list[dict[int, Data]] = [{} for _ in range(n)]
    name: dict[tuple[int, int], str] = {}
    for message in given.channel:
        source = message.src - 1
        data = Data(
            (0, 0),
            tseq[source],
            destinations(k - 1 for k in message.dst),
            tuple(pseq[source]),
            (0,) * n,
            0,
        )
        name[source, data.tseq] = message.id
        sent[source][data.tseq] = data
        tseq[source] += 1
        for k in message.dst:
            pseq[source][k - 1] += 1
        for k, receipt in enumerate(receipts):
            if (message.id, k) not in missed:
                receipt.accept(source, data)
    collections = [Collection(ProcessId(k), (0, 1), (1 << n) - 1, frozenset()) for k in range(n)]
    known = [
        Known(tuple(receipt.has(j) for j in range(n)), tuple(pseq[k]), tseq[k], receipt.levels())
        for k, receipt in enumerate(receipts)
    ]
    ranks = [ProcessId(k - 1) for k in given.rank_order]
    for collection in collections:
        for k in ranks:
            collection.store(k, RstPak((0, 1), Destinations(0), known[k]))
    lines = [
        collection.line(sent[k].values(), tuple(pseq[k]), tseq[k])
        for k, collection in enumerate(collections)
    ]
    for collection in collections:
        for k in ranks:
            ack = RstAck((0, 1), Destinations(0), known[k], lines[k], tuple(collection.order))
            collection.store(k, ack)
    records = [collection.record() for collection in collections]
    before = [
        [
            name[ProcessId(place.source), place.message.tseq]
            for place in receipt.cut(records[k])
            if place.message is not None
        ]
        for k, receipt in enumerate(receipts)
    ]
    for source, collection in enumerate(collections):
        for data in collection.to_repeat(sent[source].values(), tuple(pseq[source])):
            for k, receipt in enumerate(receipts):
                if data.destinations >> k & 1:
                    receipt.fill(source, _again(data))
    final = [
        before[k] + [_name(name, place) for place in receipt.accepted]
        for k, receipt in enumerate(receipts)
    ]
    found: dict[str, Callable[[], Any]] = {
        "line": lambda: [dict(records[0].lines)[ProcessId(k)] + given.iss for k in range(n)],
        "before": lambda: before,
        "final": lambda: final,
    }
    yield from _compare(
        found, {k: v for k, v in given.expect.items() if k != "consistent_cut_before"}
    )


def _again(data: Data) -> Rtx:
    return Rtx((0, 1), data.tseq, data.destinations, data.pseq, 0, Instant(0), b"")


def _name(names: Mapping[tuple[int, int], str], place: Place) -> str:
    return _EMPTY if place.message is None else names[place.source, place.message.tseq]


def _entities(n: int) -> int:
    if not 1 <= n <= ENTITIES_MAX:
        raise VectorError(f"n is {n}, expected 1 to {ENTITIES_MAX}")
    return n


def _known_entities(n: int, *groups: Sequence[int]) -> None:
    odd = sorted({k for group in groups for k in group if not 1 <= k <= n})
    if odd:
        raise VectorError(f"entities {odd} are not within 1 … {n}")


# ---------------------------------------------------------------------- sort


class _Unsorted(_Form, frozen=True, kw_only=True):
    id: str
    src: int
    pseq: int


class _SortScenario(_Form, frozen=True, kw_only=True):
    n: int
    rank_order: list[int]
    unsorted: list[list[_Unsorted]]
    expect: dict[str, Any]


def _check_sort(raw: Mapping[str, Any]) -> Checks:
    given = read(raw, _SortScenario, "scenario of sorting")
    n = _entities(given.n)
    _known_entities(n, given.rank_order, *([m.src for m in log] for log in given.unsorted))
    order = tuple([ProcessId(k - 1) for k in given.rank_order])
    result = []
    for k, log in enumerate(given.unsorted):
        receipt = Receipt(k, n)
        names = {(m.src - 1, m.pseq): m.id for m in log}
        receipt.accepted.extend(Place(m.src - 1, m.pseq, None, 0) for m in log)
        receipt.cut(Record((0, 1), (), (), (), order))
        result.append([names[place.source, place.pseq] for place in receipt.accepted])
    yield from _compare({"sorted": lambda: result}, given.expect)


# ---------------------------------------------------------------------- formula


class _Shares(_Form, frozen=True, kw_only=True):
    U_over_L: float
    R_over_L: float


class _Row(_Form, frozen=True, kw_only=True):
    d: int
    f: float
    printed: _Shares | None = None
    corrected: _Shares | None = None


class _FormulaScenario(_Form, frozen=True, kw_only=True):
    n: int
    L: int
    expect: list[_Row]


def _check_formula(raw: Mapping[str, Any]) -> Checks:
    given = read(raw, _FormulaScenario, "scenario of a formula")
    for row in given.expect:
        for corrected, shares in ((False, row.printed), (True, row.corrected)):
            if shares is None:
                continue
            where = f"d={row.d}, f={row.f}, {'corrected' if corrected else 'printed'}"
            for key, formula, expected in (
                ("U/L", sorted_share, shares.U_over_L),
                ("R/L", repeated_share, shares.R_over_L),
            ):
                found = formula(given.n, row.d, row.f, window=given.L, corrected=corrected)
                close = abs(found - expected) <= 1e-5 * max(abs(expected), 1e-12)
                yield None if close else f"{key} at {where} is {found}, expected {expected}"


# ---------------------------------------------------------------------- script


class ScriptConfig(_Form, frozen=True, kw_only=True):
    """What a script says of its group."""

    W: int = _UNBOUNDED
    B: int = _UNBOUNDED
    H: int = 1
    deliver: Delivery = Delivery.ACK
    stability: Stability = Stability.DST


class ScriptStep(_Form, frozen=True, kw_only=True):
    """One step; which fields count depends on `op`."""

    op: str
    src: int = 0
    dst: list[int] = []
    id: str = ""
    lost: list[int] = []
    rounds: int = 1
    kind: str = ""
    copy: int = 1
    view: int = 0
    members: list[int] = []
    settle: bool = True


class _ScriptScenario(_Form, frozen=True, kw_only=True):
    n: int
    steps: list[ScriptStep]
    expect: dict[str, Any]
    iss: int = 0
    config: ScriptConfig = ScriptConfig()


class Script:
    """Entities on a channel that hands over each PDU at once."""

    def __init__(self, n: int, config: ScriptConfig, make: type[TachikawaST] = TachikawaST) -> None:
        settings = TotalSettings(
            members=n,
            delivery=config.deliver,
            stability=config.stability,
            window=config.W,
            buffers=config.B,
            headroom=config.H,
        )
        self.n = n
        self.cores = [make(ProcessId(k), settings) for k in range(n)]
        self.queues: list[deque[Pdu]] = [deque() for _ in range(n)]
        self.crashed: set[int] = set()
        self.excluded: set[int] = set()
        self.delivered: list[list[str]] = [[] for _ in range(n)]
        self.control = 0
        self.losses: dict[tuple[str, int, int], set[int]] = {}
        """(kind, source, copy) → at whom it is lost."""
        self.copies: Counter[tuple[str, int]] = Counter()
        self.now = Instant(0)

    def run(self, step: ScriptStep) -> None:
        """Carry out one step, then put what control PDUs it has caused."""
        operation = self._OPERATIONS.get(step.op)
        if operation is None:
            raise VectorError(f"unknown step {step.op!r}")
        _known_entities(self.n, step.dst, step.lost, step.members, [step.src] if step.src else [])
        self.now = Instant(self.now + ms(1_000))
        operation(self, step)
        if step.settle:
            self._settle()

    def _compose(self, step: ScriptStep) -> None:
        core = self.cores[step.src - 1]
        mask = destinations(k - 1 for k in step.dst)
        self._apply(step.src - 1, core.submit(Multicast(step.id.encode(), mask), self.now))

    def _put_step(self, step: ScriptStep) -> None:
        if self.queues[step.src - 1]:
            self._put(step.src - 1, step.lost)

    def _send(self, step: ScriptStep) -> None:
        self._compose(step)
        self._drain(step.src - 1, step.lost)

    def _null(self, step: ScriptStep) -> None:
        source = step.src - 1
        self._apply(source, self.cores[source].null(self.now))
        self._drain(source, step.lost)

    def _drain(self, source: int, lost: Sequence[int]) -> None:
        """Put everything in that queue; `lost` applies to the last PDU."""
        for left in range(len(self.queues[source]), 0, -1):
            self._put(source, lost if left == 1 else ())

    def _nulls(self, step: ScriptStep) -> None:
        for _ in range(step.rounds):
            for source in range(self.n):
                if source not in self.crashed | self.excluded:
                    self._apply(source, self.cores[source].null(self.now))
                    self._drain(source, ())
                    if step.settle:
                        self._settle()

    def _lose(self, step: ScriptStep) -> None:
        if step.kind not in _CONTROL:
            raise VectorError(f"cannot lose a {step.kind!r}, expected {', '.join(_CONTROL)}")
        self.losses[step.kind, step.src - 1, step.copy] = set(step.lost)

    def _repeat(self, step: ScriptStep) -> None:
        self._apply(step.src - 1, self.cores[step.src - 1].repeat_control(self.now))

    def _nak(self, step: ScriptStep) -> None:
        self._apply(step.src - 1, self.cores[step.src - 1].nak())

    def _crash(self, step: ScriptStep) -> None:
        self.crashed.add(step.src - 1)
        self.queues[step.src - 1].clear()

    def _view(self, step: ScriptStep) -> None:
        members = tuple([Member(ProcessId(k - 1)) for k in step.members])
        view = ChangeView(step.view, members)
        self.excluded |= set(range(self.n)) - {member.process for member in members}
        for k in range(self.n):
            if k not in self.crashed:
                self._apply(k, self.cores[k].submit(view, self.now))

    _OPERATIONS: Mapping[str, Callable[["Script", ScriptStep], None]] = {
        "compose": _compose,
        "put": _put_step,
        "send": _send,
        "null": _null,
        "nulls": _nulls,
        "lose": _lose,
        "repeat": _repeat,
        "nak": _nak,
        "crash": _crash,
        "view": _view,
    }

    def _settle(self) -> None:
        """Let control PDUs out, the lowest-numbered entity's first, with what is before them."""
        while True:
            source = next(
                (k for k, queue in enumerate(self.queues) if any(map(_is_control, queue))), None
            )
            if source is None:
                return
            self._put(source, ())

    def _put(self, source: int, lost: Sequence[int]) -> None:
        pdu = self.queues[source].popleft()
        missed = {k - 1 for k in lost}
        kind = next((name for name, form in _CONTROL.items() if type(pdu) is form), None)
        if kind is not None:
            self.control += 1
            self.copies[kind, source] += 1
            missed |= {
                k - 1 for k in self.losses.get((kind, source, self.copies[kind, source]), ())
            }
        for k, core in enumerate(self.cores):
            if k not in missed and k not in self.crashed:
                self._apply(k, core.receive(ProcessId(source), pdu, self.now))

    def _apply(self, entity: int, effects: Effects) -> None:
        if entity in self.crashed:
            return
        for effect in effects:
            if isinstance(effect, Broadcast):
                self.queues[entity].append(effect.pdu)
            elif isinstance(effect, Indicate) and isinstance(effect.indication, Delivered):
                self.delivered[entity].append(effect.indication.payload.decode())

    def log(self, entity: int) -> list[str]:
        """Return what is delivered and what is queued."""
        return self.delivered[entity] + [
            _EMPTY if place.message is None else place.message.payload.decode()
            for place in self.cores[entity].queued()
        ]


def _is_control(pdu: Pdu) -> bool:
    return not isinstance(pdu, Data)


def _check_script(raw: Mapping[str, Any]) -> Checks:
    given = read(raw, _ScriptScenario, "script")
    if len(given.steps) > STEPS_MAX:
        raise VectorError(f"{len(given.steps)} steps, at most {STEPS_MAX}")
    script = Script(_entities(given.n), given.config)
    for step in given.steps:
        script.run(step)
    gone = script.crashed | script.excluded
    for key, expected in given.expect.items():
        if key == "control":
            yield equal(key, script.control, expected)
            continue
        if key == "line":
            yield from (_check_lines(script, given, gone, expected),)
            continue
        found = _PER_ENTITY.get(key)
        if found is None:
            raise VectorError(f"expect has the unknown key {key!r}")
        if not isinstance(expected, list) or len(expected) != given.n:
            raise VectorError(f"expect.{key} is {expected!r}, expected one entry per entity")
        for k in range(given.n):
            if key != "delivered" and k in gone:
                continue
            yield equal(f"{key} of E{k + 1}", found(script, k), expected[k])


def _check_lines(
    script: Script, given: _ScriptScenario, gone: set[int], expected: list[int]
) -> str | None:
    """Compare the lines of the last completed recovery, which must be the same at all."""
    for k in range(given.n):
        record = script.cores[k].record
        if k not in gone and record is not None:
            lines = dict(record.departed) | dict(record.lines)
            found = [
                lines[ProcessId(j)] + given.iss if ProcessId(j) in lines else expected[j]
                for j in range(given.n)
            ]
            if found != expected:
                return equal(f"line at E{k + 1}", found, expected)
    return None


_PER_ENTITY: Mapping[str, Callable[[Script, int], Any]] = {
    "delivered": lambda script, k: script.delivered[k],
    "log": lambda script, k: script.log(k),
    "epoch": lambda script, k: list(script.cores[k].epoch),
    "suspects": lambda script, k: [
        j + 1 for j in range(script.n) if script.cores[k].suspected >> j & 1
    ],
    "recovering": lambda script, k: script.cores[k].is_recovering,
}

_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], Checks]] = {
    "logs": _check_logs,
    "line": _check_line,
    "sort": _check_sort,
    "script": _check_script,
    "formula": _check_formula,
}
_FIELDS = frozenset(
    field
    for form in (_LogsScenario, _LineScenario, _SortScenario, _ScriptScenario, _FormulaScenario)
    for field in form.__struct_encode_fields__
) | {"kind"}
