"""What the metrics job says about a run: values with their units in their names.  No Spark."""

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from orderwire.pipeline.tables import TABLES

_NS_PER_MS = 1_000_000


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a time is distributed, in milliseconds, exact to a microsecond."""

    samples: int
    min: float
    p50: float
    p90: float
    p99: float
    max: float
    mean: float


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent and what became of it.

    As a sender: messages, copies, control_bytes_sent, payload_bytes_sent.  As a receiver: the rest.
    """

    messages: int
    """Messages sent."""
    copies: int
    """Copies sent: one for each destination of each message."""
    written: int
    """Copies that were meant for this member, or for any member of the run."""
    delivered: int
    """Copies delivered, each once."""
    delivered_again: int
    """Deliveries beyond the first of a copy: none in a correct run."""
    late: int
    """Copies discarded, and never delivered, because they came after the run's lifetime."""
    expired: int
    """The same, for a lifetime of their own, which was shorter."""
    overtaken: int
    """The same, because a message that they should have preceded could not wait any longer."""
    lost: int
    """Written and none of these: never came, or dropped for another reason.

    A delivery to somebody the message was not for hides one; the audit finds it.
    """
    lost_reported: int
    """What the link itself gave up and said so."""
    duplicates: int
    """Copies that came again and were discarded: no loss."""
    future: int
    """Copies discarded because their stamp was too far ahead of the clock."""
    full: int
    """Copies discarded because too many waited."""
    control_bytes_sent: int
    """Encoded control information of all copies, in bytes."""
    payload_bytes_sent: int
    """Payload of all copies, in bytes."""
    payload_bytes: int
    """Payload of all messages, each once, in bytes."""
    control_bytes_received: int
    """Control information of the copies that came, in bytes."""
    payload_bytes_received: int
    """Payload of the copies that were delivered, in bytes."""
    held: int
    """Deliveries of others' messages that waited a microsecond or more."""
    delay_ms: Spread | None
    """From stamp to delivery by the receiver's clock, messages of others only.

    Where clocks differ, a single delay is wrong by at most ε.
    """
    hold_ms: Spread | None
    """From arrival to delivery, likewise."""

    @property
    def held_share(self) -> float | None:
        """Share of deliveries that waited; None when there were none."""
        return None if self.hold_ms is None else self.held / self.hold_ms.samples

    @property
    def control_bytes_per_copy(self) -> float | None:
        """Mean control information of a copy, in bytes."""
        return self.control_bytes_sent / self.copies if self.copies else None

    @property
    def control_bytes_per_message(self) -> float | None:
        """Mean control information of all copies of a message together, in bytes."""
        return self.control_bytes_sent / self.messages if self.messages else None

    @property
    def payload_bytes_per_message(self) -> float | None:
        """Mean payload of a message, in bytes."""
        return self.payload_bytes / self.messages if self.messages else None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the waiting causal order needed, in milliseconds."""

    deliveries: int
    forced_mean_ms: float
    forced_max_ms: float
    avoidable_mean_ms: float
    avoidable_max_ms: float
    premature: int
    """Deliveries before a message of their past was delivered or had expired."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A run during one window of time."""

    start_ns: int
    messages: int
    copies: int
    control_bytes: int
    payload_bytes: int
    """Of all copies sent, as are control_bytes."""
    delivered: int
    late: int
    """Discards, as are expired and overtaken: a copy that comes again counts again."""
    expired: int
    overtaken: int
    delay_p50_ms: float | None
    delay_p99_ms: float | None
    """Estimated by a sketch, within about 1.3 % of the rank."""
    sketch: bytes | None
    """KLL sketch of the delays in microseconds: sketches of windows merge."""


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    run_id: str
    algorithm: str
    """Empty when the trace has no START event."""
    lifetime_ms: float | None
    first_ns: int
    last_ns: int
    total: Counts
    members: dict[int, Counts]
    window_ns: int
    windows: list[Window]
    waiting: Waiting | None = None
    """Only when asked for."""


def as_json(runs: Sequence[RunMetrics]) -> dict[str, object]:
    """The result as one JSON object; sketches are left out."""
    return {"runs": [_run(run) for run in runs]}


def metric_rows(runs: Sequence[RunMetrics]) -> pa.Table:
    """The result as rows of the lake's table `metrics`, one value a row."""
    rows: list[dict[str, object]] = []
    for run in runs:
        whole = {"run_id": run.run_id, "member": None, "window_start_ns": None, "window_ns": None}
        for metric, unit, value, samples in _values(run.total):
            rows.append({**whole, **_value(metric, unit, value, samples)})
        for member, counts in run.members.items():
            for metric, unit, value, samples in _values(counts):
                rows.append({**whole, "member": member, **_value(metric, unit, value, samples)})
        for window in run.windows:
            at = {**whole, "window_start_ns": window.start_ns, "window_ns": run.window_ns}
            for metric, unit, value in (
                ("messages", "1", window.messages),
                ("copies", "1", window.copies),
                ("control_bytes", "B", window.control_bytes),
                ("payload_bytes", "B", window.payload_bytes),
                ("late", "1", window.late),
                ("expired", "1", window.expired),
                ("overtaken", "1", window.overtaken),
            ):
                rows.append({**at, **_value(metric, unit, value, window.messages)})
            delay = {**at, **_value("delay_p50", "ms", window.delay_p50_ms, window.delivered)}
            rows.append({**delay, "sketch": window.sketch})
            rows.append({**at, **_value("delay_p99", "ms", window.delay_p99_ms, window.delivered)})
    return pa.Table.from_pylist(
        [row for row in rows if row["value"] is not None], schema=TABLES["metrics"].schema
    )


def nice_window_ns(duration_ns: int, windows: int = 60) -> int:
    """A window of 1, 2 or 5 times a power of ten, so that about so many cover the duration."""
    least = max(1, duration_ns // windows)
    step = _NS_PER_MS
    while True:
        for factor in (1, 2, 5):
            if step * factor >= least:
                return step * factor
        step *= 10


def _run(run: RunMetrics) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "algorithm": run.algorithm,
        "lifetime_ms": run.lifetime_ms,
        "seconds": (run.last_ns - run.first_ns) / 1e9,
        **_counts(run.total),
        "waiting": run.waiting,
        "members": [{"member": member, **_counts(c)} for member, c in sorted(run.members.items())],
        "window_ms": run.window_ns / _NS_PER_MS,
        "windows": [
            {
                "start_ms": (window.start_ns - run.first_ns) / _NS_PER_MS,
                **{
                    name: value
                    for name, value in msgspec.structs.asdict(window).items()
                    if name not in ("start_ns", "sketch")
                },
            }
            for window in run.windows
        ],
    }


def _counts(counts: Counts) -> dict[str, object]:
    return {
        **msgspec.structs.asdict(counts),
        "held_share": counts.held_share,
        "control_bytes_per_copy": counts.control_bytes_per_copy,
        "control_bytes_per_message": counts.control_bytes_per_message,
        "payload_bytes_per_message": counts.payload_bytes_per_message,
    }


def _values(counts: Counts) -> Iterator[tuple[str, str, float | None, int]]:
    for name in (
        "messages", "copies", "written", "delivered", "delivered_again", "late", "expired",
        "overtaken", "lost", "lost_reported", "duplicates", "future", "full",
    ):  # fmt: skip
        yield name, "1", getattr(counts, name), getattr(counts, name)
    for name in ("control_bytes_sent", "payload_bytes_sent", "payload_bytes"):
        yield name, "B", getattr(counts, name), counts.messages
    for name in ("control_bytes_received", "payload_bytes_received"):
        yield name, "B", getattr(counts, name), counts.delivered
    yield "held_share", "1", counts.held_share, counts.delivered
    yield "control_bytes_per_copy", "B", counts.control_bytes_per_copy, counts.copies
    for name, spread in (("delay", counts.delay_ms), ("hold", counts.hold_ms)):
        if spread is not None:
            for part in ("min", "p50", "p90", "p99", "max", "mean"):
                yield f"{name}_{part}", "ms", getattr(spread, part), spread.samples


def _value(metric: str, unit: str, value: float | None, samples: int) -> dict[str, object]:
    number = None if value is None else float(value)
    return {"metric": metric, "unit": unit, "value": number, "samples": samples}
