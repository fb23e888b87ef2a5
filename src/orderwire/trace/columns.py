"""A bounded, columnar buffer of events: one packed row each, turned into Arrow in bulk.

Appending an event packs its integers into preallocated memory (about 0.25 µs); everything else
happens once a batch, on whole columns.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orderwire.trace.events import Event, EventKind
from orderwire.trace.schema import arrow_schema, signed

# `n`, a machine word, packs in two thirds of the time of `q`.
_ROW: Final = struct.Struct("nnnniiiiBB")
_DELIVERED: Final = struct.Struct("nnnniii")
_DTYPE: Final = np.dtype(
    [
        ("time_ns", "i8"),
        ("number", "i8"),
        ("stamp_ns", "i8"),
        ("arrived_ns", "i8"),
        ("source", "i4"),
        ("control_bytes", "i4"),
        ("payload_bytes", "i4"),
        ("destinations", "i4"),
        ("kind", "u1"),
        ("reason", "u1"),
    ]
)
assert _DTYPE.itemsize == _ROW.size, "traces need a machine of 64 bits"
assert _DTYPE.fields is not None
assert _DTYPE.fields["destinations"][1] == _DELIVERED.size

_pack = _ROW.pack_into
_pack_delivered = _DELIVERED.pack_into
_ROW_BYTES: Final = _ROW.size
_LAST: Final = ("destinations", "kind", "reason")
"""The columns that a delivery leaves at 0: the most frequent event packs the least."""
_KINDS_BY_CODE: Final = sorted(EventKind, key=lambda kind: kind is not EventKind.DELIVER)
_KIND_CODES: Final = {kind: code for code, kind in enumerate(_KINDS_BY_CODE)}
_SEND: Final = _KIND_CODES[EventKind.SEND]
_RECEIVE: Final = _KIND_CODES[EventKind.RECEIVE]
assert _KIND_CODES[EventKind.DELIVER] == 0
_PLAIN: Final = (
    *("time_ns", "number", "stamp_ns", "arrived_ns"),
    *("source", "control_bytes", "payload_bytes"),
)
_VECTOR: Final = pa.list_(pa.int64())
_REASONS_MAX: Final = 256
"""Reasons are a short, closed list; more than this is a programming error."""


def _numbers(values: npt.NDArray[Any]) -> pa.Array:
    """Return contiguous numbers as an Arrow array on the same memory.

    `pa.array` would do, but imports pandas, which costs a participant a second and 60 MiB.
    """
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _texts(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Return strings or byte strings as an Arrow array."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    content = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(offsets), content])


_KINDS: Final = _texts([kind.value.encode() for kind in _KINDS_BY_CODE], pa.string())


def mask_bytes(mask: int) -> bytes:
    """Return a destination set as a little-endian bit mask in its shortest form."""
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


class EventColumns:
    """Room for `rows` events of one process, refilled after each batch.

    The frequent kinds have a method each, since a call with eleven arguments that forwards to
    another one would double the price.
    """

    def __init__(self, run_id: str, process: int, rows: int) -> None:
        assert rows > 0
        self.process = process
        self._end = rows * _ROW_BYTES
        self._buffer = bytearray(self._end)
        self._view = np.frombuffer(self._buffer, _DTYPE)
        self._at = 0
        self._mask_codes: dict[int, int] = {0: 0}
        self._reason_codes: dict[str, int] = {"": 0}
        self._details: dict[int, str] = {}
        self._vector_clocks: dict[int, list[int]] = {}
        self._clocks: dict[int, int] = {}
        """Own clock of the events whose time is another one."""
        self._lifetimes: dict[int, int] = {}
        self._peer_ids: dict[int, int] = {}
        self._incarnations: dict[int, int] = {}
        self._channel_numbers: dict[int, int] = {}
        # Columns that mostly hold one value are made once.
        self._run_ids = _texts([run_id.encode()], pa.string()).take(
            _numbers(np.zeros(rows, np.int8))
        )
        self._processes = _numbers(np.full(rows, process, np.int32))
        self._no_sets = _texts([b""], pa.binary()).take(_numbers(np.zeros(rows, np.int8)))
        self._no_texts = self._no_sets.view(pa.string())
        self._no_vectors = pa.nulls(rows, _VECTOR)
        self._no_numbers = pa.nulls(rows, pa.int64())

    @property
    def waiting(self) -> int:
        """How many events wait in memory."""
        return self._at // _ROW_BYTES

    def send(
        self,
        now: int,
        number: int,
        stamp_ns: int,
        destinations: int,
        control_bytes: int,
        payload_bytes: int,
        lifetime_ns: int | None = None,
    ) -> None:
        """This process sent its message `number` to the set `destinations` (a bit mask).

        `lifetime_ns` is the message's own lifetime, where that is not the run's.
        """
        at = self._at
        mask = self._mask_codes.get(destinations)
        if mask is None:
            mask = self._mask_codes[destinations] = len(self._mask_codes)
        _pack(
            self._buffer,
            at,
            now,
            number,
            stamp_ns,
            -1,
            self.process,
            control_bytes,
            payload_bytes,
            mask,
            _SEND,
            0,
        )
        if lifetime_ns is not None:
            self._lifetimes[at // _ROW_BYTES] = lifetime_ns
        self._at = at = at + _ROW_BYTES
        if at == self._end:
            self.flush()

    def deliver(
        self,
        now: int,
        source: int,
        number: int,
        stamp_ns: int,
        arrived_ns: int,
        control_bytes: int,
        payload_bytes: int,
        destinations: int = 0,
    ) -> None:
        """This process delivered message `number` of `source`, whose copy came at `arrived_ns`.

        `destinations` (a bit mask) where whoever reads this may have no trace of the sender.
        """
        at = self._at
        _pack_delivered(
            self._buffer,
            at,
            now,
            number,
            stamp_ns,
            arrived_ns,
            source,
            control_bytes,
            payload_bytes,
        )
        if destinations:
            row = self._view[at // _ROW_BYTES]
            row["destinations"] = self._mask_codes.setdefault(destinations, len(self._mask_codes))
        self._at = at = at + _ROW_BYTES
        if at == self._end:
            self.flush()

    def receive(
        self, now: int, source: int, number: int, reason: str, incarnation: int, channel_number: int
    ) -> None:
        """A PDU of `source` came by the channel, as its incarnation's `channel_number`.

        `number` is the message's; −1 of what is no message, and `reason` its kind.
        """
        reasons = self._reason_codes
        code = reasons.setdefault(reason, len(reasons))
        assert code < _REASONS_MAX, f"too many distinct reasons, the last is {reason!r}"
        _pack(self._buffer, self._at, now, number, -1, -1, source, 0, 0, 0, _RECEIVE, code)
        row = self.waiting
        self._incarnations[row] = signed(incarnation)
        self._channel_numbers[row] = channel_number
        self._at += _ROW_BYTES
        if self._at == self._end:
            self.flush()

    def append(self, event: Event) -> None:
        """Add a whole event, with its text and evidence."""
        mask = int.from_bytes(event.destinations, "little")
        reasons = self._reason_codes
        reason = reasons.setdefault(event.reason, len(reasons))
        assert reason < _REASONS_MAX, f"too many distinct reasons, the last is {event.reason!r}"
        _pack(
            self._buffer,
            self._at,
            event.time_ns,
            event.number,
            event.stamp_ns,
            event.arrived_ns,
            event.source,
            event.control_bytes,
            event.payload_bytes,
            self._mask_codes.setdefault(mask, len(self._mask_codes)),
            _KIND_CODES[event.kind],
            reason,
        )
        row = self.waiting  # Noted once it is packed: the next event may get an unpacked one's row.
        if event.detail:
            self._details[row] = event.detail
        if event.vector_clock is not None:
            self._vector_clocks[row] = event.vector_clock
        if event.clock_ns != event.time_ns:
            self._clocks[row] = event.clock_ns
        if event.lifetime_ns is not None:
            self._lifetimes[row] = event.lifetime_ns
        if event.peer_id is not None:
            self._peer_ids[row] = signed(event.peer_id)
        if event.incarnation is not None:
            self._incarnations[row] = signed(event.incarnation)
        if event.channel_number is not None:
            self._channel_numbers[row] = event.channel_number
        self._at += _ROW_BYTES
        if self._at == self._end:
            self.flush()

    def flush(self) -> None:
        """Hand what waits to where it belongs."""
        raise NotImplementedError

    def take(self, first_position: int) -> pa.RecordBatch:
        """Return all events as one batch of the trace's schema, and start anew.

        Starts anew even when they make no batch: then they are lost, and what this raises says why.
        """
        rows = self._view[: self.waiting]
        try:
            return self._batch(rows, first_position)
        finally:
            for name in _LAST:
                rows[name] = 0
            self._at = 0
            self._mask_codes = {0: 0}
            self._details = {}
            self._vector_clocks = {}
            self._clocks = {}
            self._lifetimes = {}
            self._peer_ids = {}
            self._incarnations = {}
            self._channel_numbers = {}

    def _batch(self, rows: npt.NDArray[np.void], first_position: int) -> pa.RecordBatch:
        count = len(rows)
        columns: dict[str, pa.Array] = {name: _numbers(rows[name].copy()) for name in _PLAIN}
        columns["run_id"] = self._run_ids.slice(0, count)
        columns["process"] = self._processes.slice(0, count)
        columns["position"] = _numbers(np.arange(first_position, first_position + count))
        columns["kind"] = _KINDS.take(_numbers(rows["kind"].astype(np.int8)))
        columns["clock_ns"] = self._clock_column(columns["time_ns"])
        columns["destinations"] = self._set_column(rows)
        columns["reason"] = self._reason_column(rows)
        columns["detail"] = self._detail_column(count)
        columns["vector_clock"] = self._vector_column(count)
        columns["lifetime_ns"] = self._number_column(self._lifetimes, count)
        columns["peer_id"] = self._number_column(self._peer_ids, count)
        columns["incarnation"] = self._number_column(self._incarnations, count)
        columns["channel_number"] = self._number_column(self._channel_numbers, count)
        schema = arrow_schema()
        return pa.record_batch([columns[name] for name in schema.names], schema=schema)

    def _clock_column(self, times: pa.Array) -> pa.Array:
        if not self._clocks:
            return times
        clocks = times.to_numpy(zero_copy_only=False).copy()
        clocks[list(self._clocks)] = list(self._clocks.values())
        return _numbers(clocks)

    def _set_column(self, rows: npt.NDArray[np.void]) -> pa.Array:
        if len(self._mask_codes) == 1:
            return self._no_sets.slice(0, len(rows))
        sets = _texts([mask_bytes(mask) for mask in self._mask_codes], pa.binary())
        return sets.take(_numbers(rows["destinations"].copy()))

    def _reason_column(self, rows: npt.NDArray[np.void]) -> pa.Array:
        if len(self._reason_codes) == 1:
            return self._no_texts.slice(0, len(rows))
        reasons = _texts([reason.encode() for reason in self._reason_codes], pa.string())
        return reasons.take(_numbers(rows["reason"].astype(np.int16)))

    def _detail_column(self, count: int) -> pa.Array:
        if not self._details:
            return self._no_texts.slice(0, count)
        return _texts([self._details.get(row, "").encode() for row in range(count)], pa.string())

    def _vector_column(self, count: int) -> pa.Array:
        if not self._vector_clocks:
            return self._no_vectors.slice(0, count)
        return pa.array([self._vector_clocks.get(row) for row in range(count)], _VECTOR)

    def _number_column(self, told: dict[int, int], count: int) -> pa.Array:
        """Return the numbers told of some rows, null in the others."""
        if not told:
            return self._no_numbers.slice(0, count)
        rows = list(told)
        values, known = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        values[rows], known[rows] = list(told.values()), True
        valid = pa.py_buffer(np.packbits(known, bitorder="little"))
        return pa.Array.from_buffers(pa.int64(), count, [valid, pa.py_buffer(values)])
