"""Tracing as a setting of a participant."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orderwire.kernel import NS_PER_MS, LocalProtocolError

if TYPE_CHECKING:
    from orderwire.trace.sinks import Sink


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a participant records what it sent, delivered and discarded.

    Exactly one of `path`, `brokers` and `sink` is given.  All participants of a run name the same
    `run`; each ordering domain becomes a run of its own, `run/domain`.  Members that find each
    other record their discovery too, as `run/discovery`.
    """

    run: str
    path: Path | str | None = None
    """A file that ends in .arrow or .parquet, or a folder: then `<participant>.arrow` in it, or
    `<participant>-2.arrow` and so on where there is one: who is started again keeps its past."""
    brokers: str | None = None
    """Kafka-protocol servers, `host:port,…`: batches are published to `topic`."""
    topic: str = "orderwire.trace"
    sink: "Sink | None" = None
    """A sink of your own; it stays open."""
    flush_interval_ms: int = 200
    """How long an event waits for its batch to fill, at most."""
    timer_slack_ms: int = 100
    """How late the machine may run this process without the audit calling a delivery overdue.

    Readers hand over nothing that is older than its lifetime, however late the process was run.
    """

    def __post_init__(self) -> None:
        if not self.run:
            raise LocalProtocolError("a trace needs a run: name it, e.g. Trace(run='test-1', …)")
        given = [name for name in ("path", "brokers", "sink") if getattr(self, name) is not None]
        if len(given) != 1:
            raise LocalProtocolError(
                "a trace needs exactly one of path=, brokers= and sink=, got"
                f" {' and '.join(given) or 'none'}"
            )
        if self.topic != "orderwire.trace" and self.brokers is None:
            raise LocalProtocolError(f"topic={self.topic!r} has no effect without brokers=")
        if self.timer_slack_ms < 0:
            raise LocalProtocolError(f"timer_slack_ms={self.timer_slack_ms} must not be negative")
        if self.flush_interval_ms < 1:
            raise LocalProtocolError(f"flush_interval_ms={self.flush_interval_ms} must be positive")

    @property
    def timer_slack_ns(self) -> int:
        """How late this process's timers may be, in nanoseconds."""
        return self.timer_slack_ms * NS_PER_MS

    @property
    def flush_interval_ns(self) -> int:
        """How long an event waits at most, in nanoseconds."""
        return self.flush_interval_ms * NS_PER_MS

    def load(self) -> None:
        """Load what tracing needs, which takes a while: nobody shall wait for us meanwhile."""
        from orderwire.trace import writer  # noqa: F401  imports Arrow

        if self.brokers is not None:
            from orderwire.trace import publish  # noqa: F401  imports a client library

    def open(self, participant: str) -> "Sink":
        """Return where this participant's batches go.  Raises OSError and TraceError."""
        if self.sink is not None:
            return self.sink
        from orderwire.trace import BackgroundSink, open_sink  # imports Arrow
        from orderwire.trace.reader import TRACE_SUFFIXES

        if self.brokers is not None:
            from orderwire.trace.publish import TopicSink  # imports a client library

            return BackgroundSink(TopicSink(self.brokers, self.topic))
        assert self.path is not None
        path = Path(self.path)
        if path.suffix not in TRACE_SUFFIXES:
            path.mkdir(parents=True, exist_ok=True)
            path = _free(path, participant)
        return BackgroundSink(open_sink(path))


def _free(folder: Path, participant: str) -> Path:
    """Take the first name in the folder that is free: others may look for one, too."""
    path, life = folder / f"{participant}.arrow", 1
    while True:
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            life += 1
            path = folder / f"{participant}-{life}.arrow"
        else:
            return path
