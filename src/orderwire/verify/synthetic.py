"""Traces made up in bulk, for those who audit the auditor: millions of events in a second.

Every copy is delivered exactly `latency_ns` after its send, which is causal order; then some are
delivered later, twice, not at all or to strangers, as `Faults` says.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orderwire.trace.events import RunSettings
from orderwire.trace.schema import arrow_schema
from orderwire.verify.kernels.columns import (
    DELIVER,
    DISCARD,
    END,
    EXPIRED,
    I64,
    KINDS,
    LATE,
    LOST,
    OVERTAKEN,
    REASONS,
    SEND,
    START,
)

CHUNK_EVENTS = 131_072


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many copies are treated otherwise, as ratios of all copies."""

    delayed: float = 0.0
    """Delivered up to twice as late as the others: most are overtaken."""
    lost: float = 0.0
    """Never come; the link reports them."""
    vanished: float = 0.0
    """Never come, and nobody says so."""
    late: float = 0.0
    """Discarded as late."""
    doubled: float = 0.0
    """Delivered twice."""
    expired: float = 0.0
    """Discarded as expired."""
    overtaken: float = 0.0
    """Discarded as overtaken, up to twice as late as others are delivered: mostly with reason."""


class SyntheticSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What trace to make up."""

    events: int
    """About so many events in all."""
    members: int = 20
    fan_out: int = 4
    """Destinations of each message, all of them others than the sender."""
    interval_ns: int = 100_000
    """Mean time between two sends of the whole group."""
    latency_ns: int = 20_000_000
    seed: int = 1
    run_id: str = "synthetic"
    algorithm: str = "jang-delta"
    short_every: int = 0
    """Every so manieth message has a lifetime of its own, two thirds of the others'; 0: none."""
    faults: Faults = Faults()

    def run_settings(self) -> RunSettings:
        """Return the settings that every process's START event tells."""
        return RunSettings(
            algorithm=self.algorithm, members=self.members, lifetime_ns=3 * self.latency_ns
        )


def synthetic_table(settings: SyntheticSettings) -> pa.Table:
    """Return the whole trace, sorted by time."""
    return pa.Table.from_batches(list(synthetic_batches(settings)), arrow_schema())


def synthetic_batches(settings: SyntheticSettings) -> Iterator[pa.RecordBatch]:
    """Yield the trace in the order of time, `CHUNK_EVENTS` a batch."""
    events = _events(settings)
    detail = msgspec.json.encode(settings.run_settings()).decode()
    count = len(events["time_ns"])
    kinds, reasons = pa.array(KINDS, pa.string()), pa.array([*REASONS, ""], pa.string())
    for start in range(0, count, CHUNK_EVENTS):
        part = {name: values[start : start + CHUNK_EVENTS] for name, values in events.items()}
        rows = len(part["time_ns"])
        is_start = part["kind"] == START
        columns = {
            "run_id": pa.array([settings.run_id], pa.string()).take(_zeros(rows)),
            "process": part["process"].astype(np.int32),
            "position": part["position"],
            "kind": kinds.take(pa.array(part["kind"])),
            "time_ns": part["time_ns"],
            "clock_ns": part["time_ns"],
            "source": part["source"].astype(np.int32),
            "number": part["number"],
            "stamp_ns": part["stamp_ns"],
            "arrived_ns": part["arrived_ns"],
            "destinations": _masks(part["mask"].astype(np.uint8), settings.members),
            "reason": reasons.take(pa.array(part["reason"])),
            "control_bytes": np.full(rows, 24, np.int32),
            "payload_bytes": np.full(rows, 100, np.int32),
            "detail": pa.array(["", detail], pa.string()).take(pa.array(is_start.astype(np.int64))),
            "vector_clock": pa.nulls(rows, pa.list_(pa.int64())),
            "lifetime_ns": _own_lifetimes(part, settings),
            "peer_id": pa.nulls(rows, pa.int64()),
            "incarnation": pa.nulls(rows, pa.int64()),
            "channel_number": pa.nulls(rows, pa.int64()),
        }
        schema = arrow_schema()
        yield pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _own_lifetimes(
    events: dict[str, npt.NDArray[np.generic]], settings: SyntheticSettings
) -> pa.Array:
    every = settings.short_every
    if not every:
        return pa.nulls(len(events["number"]), pa.int64())
    short = (events["kind"] == SEND) & (events["number"].astype(np.int64) % every == 0)
    lives = np.full(len(short), 2 * settings.latency_ns)
    return pa.array(lives, mask=~short)


def _events(settings: SyntheticSettings) -> dict[str, npt.NDArray[np.generic]]:
    """Return the columns of all events, sorted by time; equal times by process and position."""
    chance = np.random.default_rng(settings.seed)
    members, fan_out, latency = settings.members, settings.fan_out, settings.latency_ns
    assert 0 < fan_out < members <= 4096, (fan_out, members)
    sends = max(1, settings.events // (1 + fan_out))
    gaps = chance.integers(1, 2 * settings.interval_ns, sends)
    sent = 1_000 + np.cumsum(gaps)
    source = chance.integers(0, members, sends)
    number = _counts(source)
    # Others than the sender: offsets from it, distinct because they are a stretch of the circle.
    base = chance.integers(1, members, sends)
    offset = (base[:, None] - 1 + np.arange(fan_out)) % (members - 1) + 1
    destination = ((source[:, None] + offset) % members).reshape(-1)
    message = np.repeat(np.arange(sends), fan_out)
    copies = len(message)
    fate = chance.random(copies)
    faults = settings.faults
    ratios = [faults.delayed, faults.lost, faults.vanished, faults.late, faults.doubled]
    bounds = np.cumsum([*ratios, faults.expired, faults.overtaken])
    assert bounds[-1] <= 1, f"ratios of faults sum up to {bounds[-1]}, expected at most 1"
    what = np.searchsorted(bounds, fate, side="right")
    arrives = sent[message] + latency
    delayed = (what == 0) | (what == 6)
    arrives[delayed] += chance.integers(1, latency, int(delayed.sum()))
    arrives[what == 3] = sent[message[what == 3]] + 3 * latency + 1
    arrives[what == 5] = sent[message[what == 5]] + 2 * latency + 1
    kind = np.full(copies, DELIVER, np.int8)
    reason = np.full(copies, len(REASONS), np.int8)
    kind[what == 1] = LOST
    for dropped, why in ((3, LATE), (5, EXPIRED), (6, OVERTAKEN)):
        kind[what == dropped], reason[what == dropped] = DISCARD, why
    kept = what != 2
    twice = np.flatnonzero(what == 4)
    rows = np.concatenate([np.flatnonzero(kept), twice])
    extra = np.zeros(len(rows), np.int64)
    extra[len(rows) - len(twice) :] = 1 + np.arange(len(twice)) % 1_000
    copy_of, copy_kind = message[rows], kind[rows]
    is_lost = copy_kind == LOST
    last = int(sent[-1]) + 4 * latency
    everyone = np.arange(members)
    edge = np.full(members, -1, np.int64)
    no_reason = np.full(members, len(REASONS), np.int8)
    columns = {
        "process": [everyone, source, destination[rows], everyone],
        "kind": [_kind(members, START), _kind(sends, SEND), copy_kind, _kind(members, END)],
        "time_ns": [0 * everyone, sent, arrives[rows] + extra, 0 * everyone + last],
        "source": [edge, source, source[copy_of], edge],
        "number": [edge, number, np.where(is_lost, 1, number[copy_of]), edge],
        "stamp_ns": [edge, sent, np.where(is_lost, -1, sent[copy_of]), edge],
        "arrived_ns": [edge, 0 * sent - 1, np.where(is_lost, -1, arrives[rows]), edge],
        "reason": [no_reason, np.full(sends, len(REASONS), np.int8), reason[rows], no_reason],
        "mask": [edge, np.arange(sends), np.full(len(rows), -1), edge],
    }
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.argsort(joined["time_ns"], kind="stable")
    events: dict[str, npt.NDArray[np.generic]] = {k: v[order] for k, v in joined.items()}
    events["position"] = _counts(joined["process"][order])
    events["mask"] = _bits(joined["mask"][order], destination.reshape(sends, fan_out), members)
    return events


def _counts(group: I64) -> I64:
    """Return for each row how many rows of its group came before it."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    opens = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    sizes = np.diff(np.append(opens, len(ordered)))
    counts = np.empty(len(group), np.int64)
    counts[order] = np.arange(len(group)) - np.repeat(opens, sizes)
    return counts


def _bits(message: I64, destination: I64, members: int) -> npt.NDArray[np.uint8]:
    """Return a row of mask bytes for each event; of zeros where `message` is −1."""
    masks = np.zeros((len(message), (members + 7) // 8), np.uint8)
    rows = np.flatnonzero(message >= 0)
    for of_copy in destination[message[rows]].T:
        masks[rows, of_copy >> 3] |= (1 << (of_copy & 7)).astype(np.uint8)
    return masks


def _masks(rows: npt.NDArray[np.uint8], members: int) -> pa.Array:
    """Return the masks as binaries in their shortest form, empty for none."""
    width = (members + 7) // 8
    used = (rows != 0) * np.arange(1, width + 1)
    sizes = used.max(axis=1)
    keep = np.arange(width) < sizes[:, None]
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    data = np.ascontiguousarray(rows[keep])
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _kind(count: int, kind: int) -> npt.NDArray[np.int8]:
    return np.full(count, kind, np.int8)


def _zeros(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int8))
