"""What callers of a partition's log say and hear."""

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.kernel.errors import LocalProtocolError

DAMAGED = "damaged"
"""A file that says what was found wrong with the log."""
_DAY_MS = 24 * 3600 * 1000


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one partition's log is kept.  Refuses values that would have no effect."""

    segment_bytes: int = 1 << 30
    """A segment that would grow beyond this is closed first."""
    segment_ms: int = 7 * _DAY_MS
    """A segment is closed this long after its first append."""
    retention_ms: int = 7 * _DAY_MS
    """Segments whose newest record is older go; −1: never."""
    retention_bytes: int = -1
    """The oldest segments go while the log stays at least this long; −1: never."""
    max_message_bytes: int = 1_048_588
    """The largest batch, header included."""
    batches_per_append_max: int = 1_024
    index_interval_bytes: int = 4_096
    """At most this much is scanned to find an offset, plus one batch."""
    recovery_bytes: int = 128 << 20
    """After so many bytes the next sync also notes where a recovery may begin."""
    delete_delay_ms: int = 60_000
    """How long a deleted segment's file stays for readers that still have its name."""
    producer_expiration_ms: int = _DAY_MS
    """A producer that is silent for longer is forgotten; its next sequence is accepted."""
    producers_max: int = 100_000
    """The longest silent producers are forgotten beyond this."""
    cleanup_policy: str = "delete"
    """Only `delete`: compaction is refused."""

    def __post_init__(self) -> None:
        if self.cleanup_policy != "delete":
            raise LocalProtocolError(
                f"cleanup.policy is {self.cleanup_policy!r}; only 'delete' is supported"
            )
        for name in ("segment_bytes", "segment_ms", "max_message_bytes", "index_interval_bytes"):
            if getattr(self, name) < 1:
                raise LocalProtocolError(f"{name} is {getattr(self, name)}; it must be at least 1")


class Appended(msgspec.Struct, frozen=True, gc=False, tag="appended"):
    """The records are in the log (not yet synced), or were there before."""

    base_offset: int
    last_offset: int
    duplicate: bool = False
    """Whether a retry was recognised: nothing was written, the offsets are the first time's."""


class Refused(msgspec.Struct, frozen=True, gc=False, tag="refused"):
    """Nothing was done; Kafka's code and a sentence for the client."""

    error: ErrorCode
    message: str


class TimedOffset(msgspec.Struct, frozen=True, gc=False):
    """A record's time, in milliseconds since 1970, and its offset."""

    timestamp: int
    offset: int


class Recovery(msgspec.Struct, frozen=True):
    """What opening a log found."""

    clean: bool
    """Whether the log had been closed properly, so that nothing was scanned."""
    scanned_bytes: int
    cut_bytes: int
    """Bytes behind the last good batch; they are gone."""
    reason: str | None
    """Why the scan stopped early."""
    damaged: bool = False
    """Whether a good batch came behind the bad one: that was no torn tail."""
