"""Made traces of totally ordered groups, of any length, right but for planted faults.

Every message is on the channel once, comes to all members, and is handed over by its destinations
in the channel's order; every so many messages a new view of the same members is installed.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orderwire.kernel.chance import stream
from orderwire.trace.events import RunSettings
from orderwire.trace.schema import arrow_schema
from orderwire.verify.kernels.columns import (
    DELIVER,
    END,
    I64,
    INSTALL,
    KINDS,
    RECEIVE,
    SEND,
    START,
    U8,
)

SLOT_NS = 100_000
CHUNK_EVENTS = 131_072


class GroupTraceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to make.  Raises ValueError."""

    messages: int
    members: int = 8
    destinations: int = 4
    """Of each message."""
    view_every: int = 50_000
    """Messages of one view."""
    swapped: int = 0
    """Deliveries at one process that change places with the process's next one."""
    dropped: int = 0
    """Deliveries that are left out."""
    seed: int = 1
    run_id: str = "group"

    def __post_init__(self) -> None:
        if not 1 <= self.destinations <= self.members <= 64:
            raise ValueError(
                f"destinations={self.destinations} of members={self.members}: expected 1 ≤"
                " destinations ≤ members ≤ 64"
            )

    def run_settings(self) -> RunSettings:
        """Return what the START events say."""
        return RunSettings(algorithm="tachikawa-st", members=self.members)


def synthetic_group(settings: GroupTraceSettings) -> pa.Table:
    """Return the whole trace, sorted by time."""
    return pa.Table.from_batches(list(synthetic_group_batches(settings)), arrow_schema())


def synthetic_group_batches(settings: GroupTraceSettings) -> Iterator[pa.RecordBatch]:
    """Yield the trace in the order of time, `CHUNK_EVENTS` a batch."""
    rows = _rows(settings)
    detail = msgspec.json.encode(settings.run_settings()).decode()
    kinds = pa.array(KINDS, pa.string())
    width = (settings.members + 7) // 8
    schema = arrow_schema()
    for start in range(0, len(rows["time"]), CHUNK_EVENTS):
        part = {name: values[start : start + CHUNK_EVENTS] for name, values in rows.items()}
        count = len(part["time"])
        kind = part["kind"]
        received = kind == RECEIVE
        empty = pa.array(np.zeros(count, np.int8))
        columns = {
            "run_id": pa.array([settings.run_id], pa.string()).take(empty),
            "process": part["process"].astype(np.int32),
            "position": part["position"],
            "kind": kinds.take(pa.array(kind)),
            "time_ns": part["time"],
            "clock_ns": part["time"],
            "source": part["source"].astype(np.int32),
            "number": part["number"],
            "stamp_ns": part["stamp"],
            "arrived_ns": np.where(kind == DELIVER, part["time"], -1),
            "destinations": _masks(part["mask"].astype(np.uint64), width),
            "reason": pa.array([""], pa.string()).take(empty),
            "control_bytes": np.zeros(count, np.int32),
            "payload_bytes": np.zeros(count, np.int32),
            "detail": pa.array(["", detail], pa.string()).take(pa.array((kind == START) * 1)),
            "vector_clock": pa.nulls(count, pa.list_(pa.int64())),
            "lifetime_ns": pa.nulls(count, pa.int64()),
            "peer_id": pa.nulls(count, pa.int64()),
            "incarnation": pa.array(np.zeros(count, np.int64), mask=~received),
            "channel_number": pa.array(part["place"], mask=~received),
        }
        yield pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _rows(settings: GroupTraceSettings) -> dict[str, I64]:
    chance = np.random.default_rng(stream(settings.seed, "group trace").getrandbits(64))
    members, count = settings.members, settings.messages
    source = chance.integers(members, size=count)
    rank = np.argsort(chance.random((count, members)), axis=1)
    bits = np.zeros((count, members), np.bool_)
    np.put_along_axis(bits, rank[:, : settings.destinations], values=True, axis=1)
    mask = bits.astype(np.int64) @ (1 << np.arange(members))
    number = np.empty(count, np.int64)
    for member in range(members):
        mine = source == member
        number[mine] = np.arange(np.count_nonzero(mine))
    place = np.arange(count)
    sent = (place + 1) * SLOT_NS
    message, process = np.nonzero(bits)
    everywhere = np.repeat(place, members)
    all_members = np.tile(np.arange(members), count)
    views = np.arange(0, max(1, count), settings.view_every)
    view = np.repeat(np.arange(len(views)), members)
    who = np.tile(np.arange(members), len(views))
    every = np.arange(members)
    nobody, nothing = np.full(members, -1), np.zeros(members, np.int64)
    full = (1 << members) - 1

    def rows(kind: int, time: I64, order: int, process: I64, **more: I64) -> dict[str, I64]:
        size = len(time)
        blank = {"source": -1, "number": -1, "stamp": -1, "mask": 0, "place": 0}
        filled = {name: more.get(name, np.full(size, value)) for name, value in blank.items()}
        ranks = {"kind": np.full(size, kind), "order": np.full(size, order)}
        return {"time": time, "process": process, **ranks, **filled}

    handed = {"source": source[message], "number": number[message], "stamp": sent[message]}
    parts = [
        rows(START, nothing, 0, every),
        rows(INSTALL, views[view] * SLOT_NS, 1, who, number=view, mask=np.full(len(view), full)),
        rows(SEND, sent, 2, source, source=source, number=number, stamp=sent, mask=mask),
        rows(
            RECEIVE,
            sent[everywhere] + SLOT_NS // 4,
            3,
            all_members,
            source=source[everywhere],
            number=number[everywhere],
            place=everywhere,
        ),
        rows(DELIVER, sent[message] + SLOT_NS // 2, 4, process, mask=mask[message], **handed),
        rows(END, np.full(members, (count + 2) * SLOT_NS), 5, every, source=nobody),
    ]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined = _faulty(joined, settings, chance)
    ordered = np.lexsort((joined["order"], joined["time"], joined["process"]))
    joined = {name: values[ordered] for name, values in joined.items()}
    sizes = np.bincount(joined["process"], minlength=members)
    first = np.cumsum(sizes) - sizes
    joined["position"] = np.arange(len(ordered)) - first[joined["process"]]
    by_time = np.argsort(joined["time"], kind="stable")
    return {name: values[by_time] for name, values in joined.items()}


def _faulty(
    rows: dict[str, I64], settings: GroupTraceSettings, chance: np.random.Generator
) -> dict[str, I64]:
    """Plant the faults that are asked for, at different deliveries."""
    handed = np.flatnonzero(rows["kind"] == DELIVER)
    handed = handed[np.lexsort((rows["time"][handed], rows["process"][handed]))]
    wanted = settings.swapped + settings.dropped
    picked = np.sort(chance.choice(len(handed) // 2, size=wanted, replace=False)) * 2
    chance.shuffle(picked)
    first, second = handed[picked], handed[picked + 1]
    same = rows["process"][first] == rows["process"][second]
    swapped = np.flatnonzero(same)[: settings.swapped]
    for name in ("source", "number", "stamp", "mask"):
        values = rows[name]
        one, other = values[first[swapped]], values[second[swapped]]
        values[first[swapped]], values[second[swapped]] = other, one
    left = np.setdiff1d(np.arange(wanted), swapped)[: settings.dropped]
    kept = np.ones(len(rows["kind"]), np.bool_)
    kept[first[left]] = False
    return {name: values[kept] for name, values in rows.items()}


def _masks(masks: npt.NDArray[np.uint64], width: int) -> pa.Array:
    """Return the masks as binary, without the zeros at their ends."""
    data: U8 = masks.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    used = data != 0
    sizes = np.where(used.any(axis=1), width - np.argmax(used[:, ::-1], axis=1), 0)
    keep = np.arange(width) < sizes[:, None]
    offsets = np.zeros(len(masks) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    content = pa.py_buffer(data[keep].tobytes())
    return pa.Array.from_buffers(pa.binary(), len(masks), [None, pa.py_buffer(offsets), content])
