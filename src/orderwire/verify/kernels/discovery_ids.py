"""D4 and what else the facts alone decide: ids and incarnations, participants without an id."""

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import I64, TIME_MAX, TIME_MIN
from orderwire.verify.kernels.discovery_facts import Facts, Tenures
from orderwire.verify.kernels.discovery_views import discovery_violations
from orderwire.verify.kernels.violations import merge


def judge_ids(facts: Facts) -> pa.Table:
    """Judge what participants tell of themselves.

    D1 `no-id`: all is quiet and somebody who began has no id.  D4 `not-newer`: an id is had again
    without a larger incarnation; `shared`: two have one id while all is quiet; `version`: a
    participant's own MAP gets a version that is not above the one before.
    """
    return merge([_without_id(facts), _not_newer(facts), _shared(facts), _regressions(facts)])


def conflicts(facts: Facts) -> int:
    """Count the tenures that begin while another participant has the same id."""
    rows, reach, _ = _earlier(facts.tenures)
    return int(np.count_nonzero(reach > facts.tenures.from_ns[rows]))


def _without_id(facts: Facts) -> pa.Table:
    lives = facts.lives
    until = np.minimum(lives.adopted_ns, lives.end_ns)
    instant = facts.stretches.first_in(lives.boot_ns, until)
    rows = np.flatnonzero(instant < TIME_MAX)
    process = lives.process[rows]
    return discovery_violations(
        facts,
        "D1",
        "no-id",
        process=process,
        position=lives.position[rows],
        time_ns=instant[rows],
        of=process,
    )


def _not_newer(facts: Facts) -> pa.Table:
    """Find tenures whose incarnation is not above all that had the id and ended before."""
    tenures = facts.tenures
    _, id_code = np.unique(tenures.id, return_inverse=True)
    numbers, number = np.unique(tenures.incarnation, return_inverse=True)
    width = len(numbers) + 1
    # Ends and starts in one order, an end first: the largest incarnation among ends before.
    count = len(tenures)
    time_ns = np.concatenate([tenures.to_ns, tenures.from_ns])
    starts = np.repeat([0, 1], count)
    order = np.lexsort((starts, time_ns, np.concatenate([id_code, id_code])))
    ended = np.concatenate([number + 1, np.zeros(count, np.int64)])
    value = (np.concatenate([id_code, id_code]) * width + ended)[order]
    highest = np.maximum.accumulate(value) if count else value
    largest = np.zeros(2 * count, np.int64)
    largest[order] = highest - np.concatenate([id_code, id_code])[order] * width - 1
    before = largest[count:]
    rows = np.flatnonzero(before >= number)
    return _at_tenures(facts, "not-newer", rows, numbers[before[rows]].tolist())


def _shared(facts: Facts) -> pa.Table:
    tenures = facts.tenures
    rows, reach, _ = _earlier(tenures)
    low, high = tenures.from_ns[rows], np.minimum(tenures.to_ns[rows], reach)
    instant = facts.stretches.first_in(low, np.maximum(low, high))
    wrong = np.flatnonzero((instant < TIME_MAX) & (low < high))
    order = np.argsort(rows[wrong], kind="stable")
    wrong = wrong[order]
    return _at_tenures(facts, "shared", rows[wrong], None, instant[wrong])


def _earlier(tenures: Tenures) -> tuple[I64, I64, I64]:
    """Return tenures by id and start, until when an earlier one of the id reaches, and the id."""
    _, code = np.unique(tenures.id, return_inverse=True)
    rows = np.lexsort((tenures.position, tenures.process, tenures.from_ns, code))
    reach = np.full(len(rows), TIME_MIN)
    if len(rows) < 2:
        return rows, reach, code[rows]
    ends, rank = np.unique(tenures.to_ns[rows], return_inverse=True)
    highest = np.maximum.accumulate(code[rows] * len(ends) + rank)
    same = code[rows][1:] == code[rows][:-1]
    reach[1:][same] = ends[highest[:-1][same] % len(ends)]
    return rows, reach, code[rows]


def _regressions(facts: Facts) -> pa.Table:
    process, position, time_ns, version, before = facts.regressions
    return discovery_violations(
        facts,
        "D4",
        "version",
        process=process,
        position=position,
        time_ns=time_ns,
        of=process,
        version=version,
        details=[{"before": number} for number in before.tolist()],
    )


def _at_tenures(
    facts: Facts,
    kind: str,
    rows: I64,
    before: list[int] | None,
    time_ns: I64 | None = None,
) -> pa.Table:
    tenures = facts.tenures
    details: list[dict[str, object]] = [
        {"peer_id": str(peer), "incarnation": str(incarnation)}
        for peer, incarnation in zip(
            tenures.id[rows].tolist(), tenures.incarnation[rows].tolist(), strict=True
        )
    ]
    for detail, incarnation in zip(details, before or (), strict=False):
        detail["before"] = str(incarnation)
    return discovery_violations(
        facts,
        "D4",
        kind,
        process=tenures.process[rows],
        position=tenures.position[rows],
        time_ns=tenures.from_ns[rows] if time_ns is None else time_ns,
        of=tenures.process[rows],
        details=details,
    )
