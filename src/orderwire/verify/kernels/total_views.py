"""T3 and T4: all or none of a message's destinations hand it over, in one view.  [S003:sec.2]

Who stays in a view owes what others hand over in it, if it is for it: it went on to another view,
or was a member to the end.  All is looked up in tables by view and process, a block of messages at
a time; what is found wrong is rare, and sorted out one by one.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import I64, Bools, bits_of
from orderwire.verify.kernels.stays import NO_VIEW, Views, wrong_views
from orderwire.verify.kernels.total_columns import GroupColumns
from orderwire.verify.kernels.violations import Witness, no_violations, violation_rows, violations

CELLS = 8_000_000
"""Messages are looked at in blocks of so many (message, member) pairs."""


def atomicity(run_id: str, columns: GroupColumns, views: Views) -> pa.Table:
    """Return the violations of T3, and of T4 those that are about missing messages.

    T3, `missing`: the process stays in the view in which another one handed the message over, and
    never hands it over.  `undelivered`: nobody does, though sender and destination stay to the end.
    T4, `messages`: two processes went from one view to the same other one, and what the one handed
    over in the first the other never does.
    """
    if not views.stays:
        return no_violations()
    rows, message = columns.deliveries
    mark = views.mark_of(rows, columns)
    view = np.where(mark >= 0, views.view[mark], NO_VIEW)
    passage = np.where(mark >= 0, views.passage[mark], -1)
    order = np.argsort(message, kind="stable")
    told = _told_by(columns, rows, message)
    owed: dict[str, dict[tuple[int, int], int]] = {"missing": {}, "messages": {}}
    """(message, process) → the delivery that says so, of the lowest process."""
    for block in _blocks(message[order], columns.members):
        mine = order[block]
        some = (rows[mine], message[mine], view[mine], passage[mine])
        for kind, *found in _owed(columns, views, *some, told):
            known = owed[kind]
            for name, who, row in zip(*(values.tolist() for values in found), strict=True):
                known[name, who] = min(row, known.get((name, who), row))
    tables = [
        _owed_table(run_id, check, kind, columns, views, owed[kind])
        for check, kind in (("T3", "missing"), ("T4", "messages"))
    ]
    return pa.concat_tables([*tables, _undelivered(run_id, columns, views)])


def _told_by(columns: GroupColumns, rows: I64, message: I64) -> I64:
    """Return the row that tells whom each message was for; −1 when none does."""
    told = np.full(columns.names.count, -1, np.int64)
    sent, sent_message = columns.sends
    told[sent_message] = sent
    lengths = pa.compute.binary_length(columns.destinations).to_numpy(zero_copy_only=False)
    telling = np.flatnonzero(lengths[rows] > 0)[::-1]
    told[message[telling]] = rows[telling]
    return told


def lacking(columns: GroupColumns, among: Bools) -> Bools:
    """Return which of the messages `among` some destination has not handed over."""
    rows, message = columns.deliveries
    told = _told_by(columns, rows, message)
    names = np.flatnonzero(among & (told >= 0))
    at = np.full(columns.names.count, -1, np.int64)
    at[names] = np.arange(len(names))
    asked = _bits(columns, told[names])
    here = at[message] >= 0
    asked[at[message[here]], columns.process[rows[here]]] = False
    found = np.zeros(columns.names.count, np.bool_)
    found[names[np.any(asked, axis=1)]] = True
    return found


def _blocks(message: I64, members: int) -> Iterator[slice]:
    """Cut sorted messages into blocks that do not cut one message."""
    start, size = 0, max(1, CELLS // max(1, members))
    while start < len(message):
        stop = min(start + size, len(message))
        stop = int(np.searchsorted(message, message[stop - 1], side="right"))
        yield slice(start, stop)
        start = stop


def _owed(
    columns: GroupColumns,
    views: Views,
    rows: I64,
    message: I64,
    view: I64,
    passage: I64,
    told: I64,
) -> Iterator[tuple[str, I64, I64, I64]]:
    """Yield kind, messages, processes and proving deliveries of a block, sorted by message."""
    opens = np.ones(len(message), np.bool_)
    opens[1:] = message[1:] != message[:-1]
    names, at = message[opens], np.cumsum(opens) - 1
    known = told[names] >= 0
    asked = np.zeros((len(names), columns.members), np.bool_)
    asked[known] = _bits(columns, told[names[known]])
    asked[at, columns.process[rows]] = False  # What has been handed over is owed no more.
    lacking = np.flatnonzero(np.any(asked, axis=1))
    open_ = np.flatnonzero(np.isin(at, lacking) & (view != NO_VIEW))
    if len(open_) == 0:
        return
    for kind, table, key in (
        ("missing", views.obliged, view[open_]),
        ("messages", views.passed, passage[open_]),
    ):
        if len(table) == 0:
            continue
        owes = asked[at[open_]] & table[key] & (key >= 0)[:, None]
        which, process = np.nonzero(owes)
        yield kind, message[open_[which]], process, rows[open_[which]]


def _bits(columns: GroupColumns, rows: I64) -> Bools:
    bits, _ = bits_of(columns.destinations.take(pa.array(rows)), columns.members)
    return bits


def _owed_table(
    run_id: str,
    check: str,
    kind: str,
    columns: GroupColumns,
    views: Views,
    owed: Mapping[tuple[int, int], int],
) -> pa.Table:
    if not owed:
        return no_violations()
    proof = np.array(list(owed.values()), np.int64)
    source, number = columns.source[proof], columns.number[proof]
    mark = views.mark_of(proof, columns)
    details: list[dict[str, object]] = []
    for process, view, passage in zip(
        columns.process[proof].tolist(),
        views.numbers[views.view[mark]].tolist(),
        views.passage[mark].tolist(),
        strict=True,
    ):
        detail: dict[str, object] = {"at": process, "view": view}
        if kind == "messages":
            detail["next"] = views.passages[passage][1]
        details.append(detail)
    return violation_rows(
        run_id,
        check,
        kind,
        process=np.array([process for _, process in owed], np.int64),
        source=source,
        number=number,
        witness=Witness(source, number, columns.position[proof]),
        details=details,
    )


def _undelivered(run_id: str, columns: GroupColumns, views: Views) -> pa.Table:
    """Return what nobody handed over, though its sender and this destination are still there."""
    sent, message = columns.sends
    handed = np.zeros(columns.names.count, np.bool_)
    handed[columns.deliveries[1]] = True
    sent = sent[~handed[message]]
    mark = views.mark_of(sent, columns)
    # Sent before a view: it counts in the one that follows.
    early = (mark < 0) | (views.view[mark] == NO_VIEW)
    following = np.searchsorted(views.marks, sent)
    safe = np.minimum(following, len(views.marks) - 1)
    there = (following == safe) & (columns.process[views.marks[safe]] == columns.process[sent])
    mark = np.where(early, np.where(there, safe, -1), mark)
    sent, mark = sent[mark >= 0], mark[mark >= 0]
    inside = views.view[mark] != NO_VIEW
    sent, view = sent[inside], views.view[mark[inside]]
    final = views.settled[view, columns.process[sent]]
    sent, view, final = sent[final >= 0], view[final >= 0], final[final >= 0]
    if len(sent) == 0:
        return no_violations()
    owes = _bits(columns, sent) & (views.settled[view] == final[:, None])
    which, process = np.nonzero(owes)
    details = [{"view": number} for number in views.numbers[view[which]].tolist()]
    return violation_rows(
        run_id,
        "T3",
        "undelivered",
        process=process,
        source=columns.source[sent[which]],
        number=columns.number[sent[which]],
        details=details,
    )


def view_agreement(run_id: str, columns: GroupColumns, views: Views) -> pa.Table:
    """Return the other violations of T4.

    Of views: `members` (another process knows this view by other members), `backwards` (its number
    does not grow), `skipped` (another process had a view between this one and the one before, and
    was in both).  Of deliveries: `outside` (in no view), `view` (elsewhere it was in another one).
    """
    if not views.stays:
        return no_violations()
    tables = []
    for kind, row, proof, detail in wrong_views(views):
        at = int(columns.process[proof])
        tables.append(
            violation_rows(
                run_id,
                "T4",
                kind,
                process=columns.process[row : row + 1],
                position=columns.position[row : row + 1],
                time_ns=columns.time_ns[row : row + 1],
                source=np.array([-1]),
                number=columns.number[row : row + 1],
                witness=Witness(
                    np.array([-1]), np.array([-1]), columns.position[proof : proof + 1]
                ),
                details=[{"at": at, **detail}],
            )
        )
    rows, message = columns.deliveries
    mark = views.mark_of(rows, columns)
    view = np.where(mark >= 0, views.view[mark], NO_VIEW)
    outside = view == NO_VIEW
    tables.append(violations(run_id, "T4", "outside", columns, rows[outside]))
    rows, message, view = rows[~outside], message[~outside], view[~outside]
    first = np.full(columns.names.count, -1, np.int64)
    first[message[::-1]] = np.arange(len(rows))[::-1]
    other = np.flatnonzero(view != view[first[message]])
    proof = first[message[other]]
    details: list[dict[str, object]] = [
        {"view": here, "at": at, "view_there": there}
        for here, at, there in zip(
            views.numbers[view[other]].tolist(),
            columns.process[rows[proof]].tolist(),
            views.numbers[view[proof]].tolist(),
            strict=True,
        )
    ]
    witness = Witness(
        columns.source[rows[proof]], columns.number[rows[proof]], columns.position[rows[proof]]
    )
    tables.append(
        violations(run_id, "T4", "view", columns, rows[other], witness=witness, details=details)
    )
    return pa.concat_tables(tables)
