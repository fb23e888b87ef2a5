"""What happened: one typed event stream for simulator, runtime, oracles, pipeline and figures."""

from enum import Enum

import msgspec


class EventKind(Enum):
    """What a process did."""

    START = "start"
    """First event of a process; `detail` is the JSON of RunSettings."""
    SEND = "send"
    RECEIVE = "receive"
    """A copy arrived.  Optional: deliver and discard carry `arrived_ns`."""
    DELIVER = "deliver"
    DISCARD = "discard"
    """A copy that arrived was dropped; `reason` says why."""
    LOST = "lost"
    """The link gave up on copies; `number` is how many, `source` whose."""
    END = "end"
    """Last event of a process: its trace is complete."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the audit must know of a run; the same at every process."""

    algorithm: str
    """Catalog name of the ordering algorithm."""
    members: int
    """Number of processes, ids 0 … members-1."""
    lifetime_ns: int | None = None
    """Δ, or None when messages live for ever.  Where messages have lifetimes, the longest."""
    epsilon_ns: int = 0
    """Bound on the difference of any two clocks."""
    clock: str = "shared"
    """`shared`: all `time_ns` are readings of one clock (simulator, one host); else `local`."""
    timer_slack_ns: int = 0
    """How late this runtime's timers may fire: a delivery that much overdue is no violation."""


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One step of one process.  `(run_id, process, position)` is the key."""

    run_id: str
    """One ordering group of one execution."""
    process: int
    position: int
    """0, 1, 2 … in the process's own timeline, without holes, over all kinds."""
    kind: EventKind
    time_ns: int
    """The run's common time where there is one (`RunSettings.clock`), else the local clock."""
    clock_ns: int
    """The process's own clock, by which it judges lifetimes."""
    source: int = -1
    number: int = -1
    """The message: its sender and the sender's own send number from 0."""
    stamp_ns: int = -1
    """The message's stamp (hybrid clock); its deadline is stamp_ns + its own or the run's lifetime.
    """
    arrived_ns: int = -1
    """Deliver, discard: local clock at the copy's arrival."""
    destinations: bytes = b""
    """Send: the destination set as a little-endian bit mask, shortest form (bit p = process p)."""
    reason: str = ""
    control_bytes: int = 0
    """Send: of all copies together.  Deliver, discard: of this copy."""
    payload_bytes: int = 0
    detail: str = ""
    vector_clock: list[int] | None = None
    """Optional evidence outside the wire budget: number of sends of each process in the past."""
    lifetime_ns: int | None = None
    """Send: the message's own lifetime, where that is not the run's."""
