"""Which send a delivery belongs to: one table look-up per event.

A message is (source, number); numbers of one source are dense, so the send's row is found by
subtraction.  Where they are not (a damaged trace), by bisection.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import (
    DELIVER,
    DISCARD,
    I64,
    RECEIVE,
    SEND,
    Bools,
    Columns,
    bits_of,
)


@dataclass(frozen=True, slots=True)
class Matches:
    """The sends in view, sorted by (source, number), and every other event's send among them."""

    members: int
    send_rows: I64
    """Row of each send."""
    intended: Bools
    """(sends × members): who the message is for."""
    strange: Bools
    """Sends that name a destination beyond the members."""
    rows: I64
    """Rows of deliveries, discards and receipts, ascending."""
    send: I64
    """For each of those rows its send's index, −1 when that is not in view."""


def match(columns: Columns, members: int) -> Matches:
    """Find the send of every delivery, discard and receipt.

    Of two sends with the same name the first counts; `wellformed` reports the other.
    """
    sends = np.flatnonzero(
        (columns.kind == SEND)
        & (columns.source == columns.process)
        & (columns.source >= 0)
        & (columns.source < members)
    )
    source, number = columns.source[sends], columns.number[sends]
    if np.any((source[1:] == source[:-1]) & (number[1:] < number[:-1])):
        order = np.lexsort((number, source))
        sends, source, number = sends[order], source[order], number[order]
    again = np.zeros(len(sends), np.bool_)
    again[1:] = (source[1:] == source[:-1]) & (number[1:] == number[:-1])
    if again.any():
        sends, source, number = sends[~again], source[~again], number[~again]
    intended, strange = bits_of(columns.destinations.take(pa.array(sends)), members)
    kind = columns.kind
    rows = np.flatnonzero(
        ((kind == DELIVER) | (kind == DISCARD) | (kind == RECEIVE))
        & (columns.process >= 0)
        & (columns.process < members)
    )
    found = _find(source, number, columns.source[rows], columns.number[rows], members)
    return Matches(members, sends, intended, strange, rows, found)


def _find(source: I64, number: I64, wanted_source: I64, wanted_number: I64, members: int) -> I64:
    """Return for each wanted message its index in the sorted messages, or −1."""
    if len(source) == 0:
        return np.full(len(wanted_source), -1, np.int64)
    first = np.searchsorted(source, np.arange(members + 1))
    inside = (wanted_source >= 0) & (wanted_source < members)
    safe = np.where(inside, wanted_source, 0)
    start, stop = first[safe], first[safe + 1]
    last_index = len(number) - 1
    lowest = number[np.minimum(start, last_index)]
    at = start + (wanted_number - lowest)
    inside &= (at >= start) & (at < stop)
    at = np.where(inside, at, 0)
    hit = inside & (number[at] == wanted_number) & (source[at] == wanted_source)
    found = np.where(hit, at, -1)
    if not _dense(source, number):
        missed = np.flatnonzero(found < 0)
        found[missed] = _bisect(source, number, wanted_source[missed], wanted_number[missed])
    return found


def _dense(source: I64, number: I64) -> bool:
    return bool(np.all((source[1:] != source[:-1]) | (number[1:] == number[:-1] + 1)))


def _bisect(source: I64, number: I64, wanted_source: I64, wanted_number: I64) -> I64:
    names = np.empty(len(source) + len(wanted_source), [("source", np.int64), ("number", np.int64)])
    names["source"] = np.concatenate([source, wanted_source])
    names["number"] = np.concatenate([number, wanted_number])
    _, codes = np.unique(names, return_inverse=True)
    known, wanted = codes[: len(source)], codes[len(source) :]
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, at, -1)


def first_of(send: I64, process: I64, members: int) -> Bools:
    """Tell of each (send, process) pair whether it is the first such pair; −1 sends never are."""
    key = send * members + process
    known = send >= 0
    first = np.zeros(len(send), np.bool_)
    where = np.flatnonzero(known)
    if len(where) == 0:
        return first
    lowest = int(key[where].min())
    seen = np.zeros(int(key[where].max()) - lowest + 1, np.bool_)
    seen[key[where] - lowest] = True
    if np.count_nonzero(seen) == len(where):
        first[where] = True
        return first
    _, at = np.unique(key[where], return_index=True)
    first[where[at]] = True
    return first
