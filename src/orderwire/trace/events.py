"""What happened: one typed event stream for simulator, runtime, oracles, pipeline and figures.

A run is an ordering group, or the discovery of a domain, or both; `process` numbers who takes part.
Events of discovery are written by `discovery_events.DiscoveryTimeline`.
"""

from enum import Enum

import msgspec


class EventKind(Enum):
    """What a process did."""

    START = "start"
    """First event of a process; `detail` is the JSON of RunSettings."""
    SEND = "send"
    RECEIVE = "receive"
    """A copy arrived.  Optional: deliver and discard carry `arrived_ns`.

    Of a group with a channel: a PDU came by it, whomever it is for, with `channel_number` and
    `incarnation`.  One that is no message has number −1 and its kind as `reason`.
    """
    DELIVER = "deliver"
    DISCARD = "discard"
    """A copy that arrived was dropped; `reason` says why."""
    LOST = "lost"
    """The link gave up on copies; `number` is how many, `source` whose."""
    END = "end"
    """Last event of a process: its trace is complete."""

    BOOT = "boot"
    """Discovery: this participant begins anew; it has no id and knows nobody."""
    ADOPT = "adopt"
    """It holds id `peer_id` in incarnation `incarnation`; its MAP is version `number`."""
    UPDATE = "update"
    """Its own MAP is version `number` from here on."""
    LEAVE = "leave"
    """It begins to leave: it is no member of the domain from here on."""
    GONE = "gone"
    """Process `source` runs no longer, says whoever knows: itself, or who killed it."""
    LEARN = "learn"
    """Its view lists the peer with version `number` of its MAP; 0: the MAP is not there yet."""
    EXPIRE = "expire"
    """Its view does not list the peer any more; `reason` says why."""
    POST = "post"
    """It sends a message of discovery; `reason` is its type, `number` its hop count."""
    HEAR = "hear"
    """A message of discovery arrived; as POST."""

    INSTALL = "install"
    """A totally ordered group: from here on the view `number` holds, of the members `destinations`.

    The first of a process is the view that it begins in; one without this process tells that it
    has stopped.  If it is a member again later, that is another stay.
    """


DISCOVERY_KINDS = (
    *(EventKind.BOOT, EventKind.ADOPT, EventKind.UPDATE, EventKind.LEAVE, EventKind.GONE),
    *(EventKind.LEARN, EventKind.EXPIRE, EventKind.POST, EventKind.HEAR),
)

NO_ORDER = "none"
"""Name of the ordering algorithm of a run without any: it is about discovery only."""


class DiscoveryRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the audit must know of a run's discovery; the same at every participant."""

    protocol: str = "fdp"
    fail_ns: int = 6_000_000_000
    """T_fail: evidence of a peer that is older lists nobody."""
    settle_ns: int = 10_000_000_000
    """Views are right when this long nobody has begun, left, died or changed its MAP."""
    margin_ns: int = 2_000_000_000
    """How long a message may travel over all hops, for its evidence looks younger by as much; and
    how long an entry may stay when its evidence has become too old."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the audit must know of a run; the same at every process."""

    algorithm: str
    """Catalog name of the ordering algorithm, or NO_ORDER."""
    members: int
    """Number of processes, ids 0 … members-1; of a domain, its ids."""
    lifetime_ns: int | None = None
    """Δ, or None when messages live for ever.  Where messages have lifetimes, the longest."""
    epsilon_ns: int = 0
    """Bound on the difference of any two clocks."""
    clock: str = "shared"
    """`shared`: all `time_ns` are readings of one clock (simulator, one host); else `local`."""
    timer_slack_ns: int = 0
    """How late this runtime's timers may fire: a delivery that much overdue is no violation."""
    discovery: DiscoveryRun | msgspec.UnsetType = msgspec.UNSET
    """What its discovery promises, where the trace has one."""
    open: bool | msgspec.UnsetType = msgspec.UNSET
    """Members find each other: ids that never appear in the trace are nobody's.  One that appears,
    as a sender, in a destination set or in a view, is a member whose trace is expected."""

    @property
    def is_open(self) -> bool:
        """Whether ids that never appear are nobody's."""
        return self.open is True


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One step of one process.  `(run_id, process, position)` is the key."""

    run_id: str
    """One ordering group, or one domain, of one execution."""
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
    """The message: its sender and the sender's own send number from 0.

    Of discovery: see the kinds.
    """
    stamp_ns: int = -1
    """The message's stamp (hybrid clock); its deadline is stamp_ns + its own or the run's lifetime.
    """
    arrived_ns: int = -1
    """Deliver, discard: local clock at the copy's arrival.

    Learn, expire: local clock when the newest evidence of the peer was new, by the age it carried.
    """
    destinations: bytes = b""
    """Send: the destination set as a little-endian bit mask, shortest form (bit p = process p).

    Install: the members.  Deliver, optionally: those of its send that were members when it left.
    """
    reason: str = ""
    control_bytes: int = 0
    """Send: of all copies together.  Deliver, discard: of this copy."""
    payload_bytes: int = 0
    """Post, hear: of the whole message."""
    detail: str = ""
    vector_clock: list[int] | None = None
    """Optional evidence outside the wire budget: number of sends of each process in the past."""
    lifetime_ns: int | None = None
    """Send: the message's own lifetime, where that is not the run's."""
    peer_id: int | None = None
    """Discovery: the id adopted or spoken of, the receiver's of a post, the sender's of a hear.

    From 0 to 2⁶⁴−1.  Tables hold its 64 bits as a signed integer, for Spark has no other: see
    `schema.unsigned`.
    """
    incarnation: int | None = None
    """Discovery: the incarnation of that id.  Receive: of the channel.  As `peer_id`."""
    channel_number: int | None = None
    """Receive: the PDU's place among all that this incarnation of the channel has carried."""
