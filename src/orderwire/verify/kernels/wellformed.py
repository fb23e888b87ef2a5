"""W1: the trace itself is sound.  Everything here is judged process by process, but `early`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import (
    END,
    I64,
    SEND,
    START,
    TIME_MIN,
    Bools,
    Columns,
)
from orderwire.verify.kernels.lives import LIFE_BITS, life_in, opens_life
from orderwire.verify.kernels.matching import Matches
from orderwire.verify.kernels.violations import Witness, no_violations, violations


def drop_repeats(run_id: str, columns: Columns) -> tuple[Columns, pa.Table]:
    """Drop rows that repeat an event, as delivery at least once may; report those that differ."""
    same = np.zeros(len(columns), np.bool_)
    same[1:] = (columns.process[1:] == columns.process[:-1]) & (
        columns.position[1:] == columns.position[:-1]
    )
    if not same.any():
        return columns, no_violations()
    again = np.flatnonzero(same)
    differs = np.zeros(len(again), np.bool_)
    for name in ("kind", "time_ns", "clock_ns", "source", "number", "stamp_ns", "reason"):
        values = getattr(columns, name)
        differs |= values[again] != values[again - 1]
    if columns.lifetime_ns is not None:
        differs |= columns.lifetime_ns[again] != columns.lifetime_ns[again - 1]
    conflicts = violations(run_id, "W1", "conflict", columns, again[differs])
    return columns.take(~same), conflicts


@dataclass(frozen=True, slots=True)
class Head:
    """How far a process's timeline has been audited."""

    position: int = 0
    """Expected of its next event."""
    number: int = 0
    """Expected of its next send."""
    time_ns: int = TIME_MIN
    """Of its last event."""
    ended: bool = False


def timelines(
    run_id: str, columns: Columns, members: int, heads: Mapping[int, Head] | None = None
) -> pa.Table:
    """Return what is wrong with any process's own timeline, from its `heads` on.

    Kinds: `hole` (events are missing before this one), `no-start`, `after-end`, `backwards` (its
    time is before the previous event's), `numbering` (a send is not its sender's next), `stranger`
    (no member of the run).
    """
    count = len(columns)
    if count == 0:
        return no_violations()
    process, position, kind = columns.process, columns.position, columns.kind
    opens = np.ones(count, np.bool_)
    opens[1:] = process[1:] != process[:-1]
    tables = []

    def report(name: str, rows: I64, **evidence: I64) -> None:
        details = None
        if evidence:
            listed = {key: value.tolist() for key, value in evidence.items()}
            details = [
                {key: values[at] for key, values in listed.items()} for at in range(len(rows))
            ]
        tables.append(violations(run_id, "W1", name, columns, rows, details=details))

    heads = heads or {}
    begun = [heads.get(p, Head()) for p in process[opens].tolist()]
    again = opens_life(position)
    expected = np.zeros(count, np.int64)
    expected[1:] = position[:-1] + 1
    expected[opens] = [head.position for head in begun]
    # Who was killed has not told all: whatever is missing there, its next life begins a timeline.
    expected[again] = position[again]
    holes = np.flatnonzero(position != expected)
    report("hole", holes, expected_position=expected[holes])
    report("no-start", np.flatnonzero(((opens & (position == 0)) | again) & (kind != START)))
    previous = np.zeros(count, np.int64)
    previous[1:] = columns.time_ns[:-1]
    previous[opens] = [head.time_ns for head in begun]
    back = np.flatnonzero(columns.time_ns < previous)
    report("backwards", back, previous_ns=previous[back])
    after = np.zeros(count, np.bool_)
    after[1:] = kind[:-1] == END
    after[opens] = [head.ended for head in begun]
    report("after-end", np.flatnonzero(after & ~again))
    new = np.zeros(count, np.bool_)
    new[opens] = [head.position == 0 for head in begun]
    report("stranger", np.flatnonzero(new & ((process < 0) | (process >= members))))
    sends = np.flatnonzero(kind == SEND)
    if len(sends):
        first = np.ones(len(sends), np.bool_)
        first[1:] = process[sends][1:] != process[sends][:-1]
        number = columns.number[sends]
        following = np.zeros(len(sends), np.int64)
        following[1:] = number[:-1] + 1
        following[first] = [heads.get(p, Head()).number for p in process[sends[first]].tolist()]
        life = life_in(position[sends])
        following = np.where(life_in(following) < life, life << LIFE_BITS, following)
        wrong = (number != following) | (columns.source[sends] != process[sends])
        report("numbering", sends[wrong], expected_number=following[wrong])
    return pa.concat_tables(tables)


def early_effects(
    run_id: str, columns: Columns, matches: Matches, core: Bools, epsilon_ns: int
) -> pa.Table:
    """Return deliveries and other effects that come before their send by more than ε.

    Only for a run with a shared clock.  The slice that holds the send tells: it sees both.
    """
    known = matches.send >= 0
    rows = matches.rows[known]
    sends = matches.send_rows[matches.send[known]]
    rows, sends = rows[core[sends]], sends[core[sends]]
    ahead = columns.time_ns[sends] - columns.time_ns[rows]
    wrong = np.flatnonzero(ahead > epsilon_ns)
    if len(wrong) == 0:
        return no_violations()
    witness = sends[wrong]
    return violations(
        run_id,
        "W1",
        "early",
        columns,
        rows[wrong],
        witness=Witness(
            columns.source[witness], columns.number[witness], columns.position[witness]
        ),
        details=[{"before_send_ns": by} for by in ahead[wrong].tolist()],
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """What part of each life's timeline a slice holds: enough to join slices to a whole."""

    process: I64
    first: I64
    """Smallest position."""
    last: I64
    first_number: I64
    """Number of the first send, −1 without one."""
    last_number: I64
    ends: Bools
    """The last event is END."""
    sound: Bools
    """Within the slice nothing is wrong with this process's timeline."""


def stretches(columns: Columns, members: int) -> Stretch:
    """Summarise each life's events.  The columns are those of the slice's own time only."""
    process, position, kind = columns.process, columns.position, columns.kind
    count = len(columns)
    life = life_in(position)
    opens = np.ones(count, np.bool_)
    opens[1:] = (process[1:] != process[:-1]) | (life[1:] != life[:-1])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], count)[: len(first)] - 1
    bad = np.zeros(count, np.bool_)
    bad[1:] = ~opens[1:] & (
        (position[1:] != position[:-1] + 1)
        | (columns.time_ns[1:] < columns.time_ns[:-1])
        | (kind[:-1] == END)
    )
    bad |= (
        (process < 0)
        | (process >= members)
        | (((position == 0) | opens_life(position)) & (kind != START))
    )
    sends = np.flatnonzero(kind == SEND)
    group = np.cumsum(opens) - 1
    first_number = np.full(len(first), -1, np.int64)
    last_number = np.full(len(first), -1, np.int64)
    if len(sends):
        number, of = columns.number[sends], group[sends]
        bad[sends] |= columns.source[sends] != process[sends]
        wrong = (of[1:] == of[:-1]) & (number[1:] != number[:-1] + 1)
        bad[sends[1:][wrong]] = True
        last_number[of] = number
        first_number[of[::-1]] = number[::-1]
    sound = np.ones(len(first), np.bool_)
    sound[group[bad]] = False
    return Stretch(
        process[first],
        position[first],
        position[last],
        first_number,
        last_number,
        kind[last] == END,
        sound,
    )
