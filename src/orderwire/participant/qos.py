"""Order as a quality of service: what a topic's readers are promised.

Topics whose order is equal form one ordering domain and share its causality: an answer on one topic
never overtakes the question on another.  Give `domain` a name to keep two domains apart that are
equal otherwise.
"""

from typing import Any, ClassVar, Self

import msgspec

from orderwire.aio.addresses import split_address
from orderwire.aio.zookeeper_access import SESSION_MS_MIN
from orderwire.kernel import NS_PER_MS, LocalProtocolError, ProcessId, exact_ns
from orderwire.ordering.catalog import algorithm
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.total.settings import Delivery
from orderwire.participant.lifetimes import TICK_NS, delivered_within_ns

LIFETIME_MS_MAX = 86_400_000
"""A day.  Longer is no lifetime: leave it out where that is possible."""

DOMAIN_NAME_MAX = 64

DEFAULT_GROUP = "group"
"""What a group with one order is called, here and at its relay, unless it is named."""

SELECTIVE_TOTAL = "tachikawa-st"
"""Name in the catalog of total orders."""

SEATED = "selective-total"
"""What the keys of domains begin with whose members have seats in a group with one order."""


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """What all orders have.  Use one of its subclasses."""

    domain: str = ""
    """Name that keeps this domain apart from an equal one; part of the trace's run_id."""

    _algorithm: ClassVar[str] = ""

    @property
    def algorithm(self) -> str:
        """Name in the catalog of ordering algorithms."""
        return self._algorithm

    @property
    def lifetime_ns(self) -> int | None:
        """Δ in nanoseconds, or None when messages live for ever."""
        raise NotImplementedError

    @property
    def delivery_ns(self) -> int | None:
        """Δ of the ordering algorithm: until then a message comes and is delivered to a reader."""
        return self.lifetime_ns

    @property
    def epsilon_ns(self) -> int:
        """ε in nanoseconds."""
        return 0

    @property
    def quiet_ns(self) -> int:
        """How long after its start a restarted member must not write, in nanoseconds."""
        return 0

    @property
    def label(self) -> str:
        """The domain's name, or one that tells its order and lifetime."""
        if self.domain:
            return self.domain
        lifetime_ns = self.lifetime_ns
        if lifetime_ns is None:
            return self.algorithm
        return f"{self.algorithm}-{lifetime_ns / NS_PER_MS:g}ms"

    def own_lifetime_ns(self, lifetime_ms: float) -> int | None:
        """Return a single message's lifetime, in nanoseconds; None when it is the domain's.

        Raises LocalProtocolError when the order has one for all, and when it is out of bounds.
        """
        longest_ns = self.lifetime_ns
        if longest_ns is None or not algorithm(self.algorithm).own_lifetimes:
            raise LocalProtocolError(
                f"lifetime_ms={lifetime_ms!r} has no effect: all messages of {self.algorithm} live"
                " as long, as the order says. Published(algorithm='rodrigues-deadline',"
                " lifetime_ms=…) gives messages lifetimes of their own"
            )
        lifetime_ns = whole_ticks("lifetime_ms", lifetime_ms)
        if lifetime_ns > longest_ns:
            raise LocalProtocolError(
                f"lifetime_ms={lifetime_ms!r} of a message must be at most"
                f" {longest_ns / NS_PER_MS:g}, its order's lifetime_ms"
            )
        return None if lifetime_ns == longest_ns else lifetime_ns

    @property
    def key(self) -> str:
        """What two members must agree on to be in the same domain."""
        agreed = {"lifetime_ns": self.lifetime_ns, "epsilon_ns": self.epsilon_ns, **self._bounds}
        name = f"/{self.domain}" if self.domain else ""
        return f"{self.algorithm}({','.join(f'{k}={v}' for k, v in agreed.items())}){name}"

    @property
    def _bounds(self) -> dict[str, Any]:
        """Settings of the algorithm that were chosen."""
        return {}

    def settings(self, members: int) -> OrderingSettings:
        """Return the ordering algorithm's settings for a group of this size."""
        return OrderingSettings(
            members=members,
            lifetime_ns=self.delivery_ns,
            epsilon_ns=self.epsilon_ns,
            tick_ns=TICK_NS,
            **self._bounds,
        )

    def __post_init__(self) -> None:
        if type(self) is Order:
            raise LocalProtocolError(
                "Order is no quality of service: use Unordered, Fifo, DeltaCausal, Published or"
                " SelectiveTotal"
            )
        if not isinstance(self.domain, str):
            raise LocalProtocolError(f"domain={self.domain!r} must be a name, as text")
        if len(self.domain) > DOMAIN_NAME_MAX or not self.domain.isprintable():
            raise LocalProtocolError(
                f"domain {self.domain!r} must be at most {DOMAIN_NAME_MAX} printable characters"
            )


class _Aging(Order, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order whose messages may have a lifetime."""

    lifetime_ms: float | None = None
    """Δ: how long after it was written a message may still be handed over; None = for ever."""

    @property
    def lifetime_ns(self) -> int | None:
        """Δ in nanoseconds, or None when messages live for ever."""
        return None if self.lifetime_ms is None else whole_ticks("lifetime_ms", self.lifetime_ms)

    def __post_init__(self) -> None:
        Order.__post_init__(self)
        _ = self.lifetime_ns


class Unordered(_Aging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every message as soon as it comes, once.  Costs nothing; promises no order at all."""

    _algorithm: ClassVar[str] = "unordered"


class Fifo(_Aging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The messages of one writer's participant in the order they were written.

    Nothing is promised between two participants.  With a lifetime a lost message holds up those
    behind it for at most as long as it could still come.
    """

    _algorithm: ClassVar[str] = "fifo"


class DeltaCausal(Order, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Causal order among what comes in time; what comes later than `lifetime_ms` is dropped.

    If writing m could have been influenced by m′ (its participant had written or been handed m′
    before), no reader of both is handed m before m′, on whatever topics of the domain.  [S000]
    """

    lifetime_ms: float
    """Δ: how long after it was written a message may still be handed over, in milliseconds.

    Both sides must name the same value; it is part of the domain.  A whole number of microseconds.
    """
    clock_error_ms: float = 1.0
    """ε: bound on the difference of any two members' clocks, in milliseconds."""
    tag_bytes_max: int | None = None
    """Longest control information of a message, in bytes behind the head; None: no bound.

    What does not fit is stood for by a moment before which everything is waited for: the order is
    kept, and some messages wait longer.
    """

    _algorithm: ClassVar[str] = "bounded-jang"

    @property
    def lifetime_ns(self) -> int:
        """Δ in nanoseconds."""
        return whole_ticks("lifetime_ms", self.lifetime_ms)

    @property
    def epsilon_ns(self) -> int:
        """ε in nanoseconds."""
        return _exact_ns("clock_error_ms", self.clock_error_ms)

    @property
    def quiet_ns(self) -> int:
        """Δ + ε: then every trace of its past has expired everywhere."""
        return self.lifetime_ns + self.epsilon_ns

    @property
    def _bounds(self) -> dict[str, Any]:
        return {} if self.tag_bytes_max is None else {"tag_bytes_max": self.tag_bytes_max}

    def __post_init__(self) -> None:
        Order.__post_init__(self)
        _refuse_clock_error(self.clock_error_ms, self.lifetime_ms)
        _refuse_settings(self)

    @classmethod
    def conference(cls, **more: Any) -> Self:
        """A video conference: 250 ms.  [S000:sec.2.2]"""
        return cls(lifetime_ms=250, **more)

    @classmethod
    def videophone(cls, **more: Any) -> Self:
        """A video telephone: 350 ms.  [S000:sec.2.2]"""
        return cls(lifetime_ms=350, **more)

    @classmethod
    def playback(cls, **more: Any) -> Self:
        """Playing back what was recorded: one second.  [S000:sec.2.2]"""
        return cls(lifetime_ms=1_000, **more)

    @classmethod
    def catalogue(cls, **more: Any) -> Self:
        """Browsing a catalogue: two seconds.  [S000:sec.2.2]"""
        return cls(lifetime_ms=2_000, **more)


class Published(Order, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Causal order by an algorithm of the catalog, to compare them or where another one fits.

    All keep the order of `DeltaCausal`.  They differ in bytes, processor time and waiting: see
    `docs/choosing.md`, and a page each in `docs/protocols/`.  Without a lifetime nothing is given
    up: a copy that died with its author holds up what depends on it for ever.
    Raises LocalProtocolError, also when the algorithm needs a lifetime and is given none.
    """

    algorithm: str
    """Name in the catalog."""
    lifetime_ms: float | None = None
    """Δ: how long after it was written a message may still be handed over; None = for ever."""
    clock_error_ms: float = 1.0
    """ε: bound on the difference of any two members' clocks, in milliseconds."""
    max_cb: int | None = None
    """MAX_CB: messages named per destination.  Algorithms of S001 only.  [S001:sec.3]"""

    @property
    def lifetime_ns(self) -> int | None:
        """Δ in nanoseconds, or None when messages live for ever."""
        return None if self.lifetime_ms is None else whole_ticks("lifetime_ms", self.lifetime_ms)

    @property
    def delivery_ns(self) -> int | None:
        """Δ, less what an algorithm that delivers at the deadline leaves for handing over."""
        lifetime_ns = self.lifetime_ns
        if lifetime_ns is None or not algorithm(self.algorithm).delivers_at_deadline:
            return lifetime_ns
        return delivered_within_ns(lifetime_ns)

    @property
    def epsilon_ns(self) -> int:
        """ε in nanoseconds."""
        return _exact_ns("clock_error_ms", self.clock_error_ms)

    @property
    def quiet_ns(self) -> int:
        """Δ + ε: then every trace of its past has expired everywhere.  Without Δ it never has."""
        return 0 if self.lifetime_ns is None else self.lifetime_ns + self.epsilon_ns

    @property
    def _bounds(self) -> dict[str, Any]:
        return {} if self.max_cb is None else {"max_cb": self.max_cb}

    def __post_init__(self) -> None:
        Order.__post_init__(self)
        usual = {"unordered": "Unordered()", "fifo": "Fifo()"}
        if self.algorithm in usual:
            raise LocalProtocolError(f"algorithm={self.algorithm!r} is {usual[self.algorithm]}")
        if not isinstance(self.algorithm, str):
            raise LocalProtocolError(f"algorithm={self.algorithm!r} must be a name of the catalog")
        entry = algorithm(self.algorithm)
        if entry.needs_lifetime and self.lifetime_ms is None:
            raise LocalProtocolError(
                f"{self.algorithm} needs a lifetime: it waits for messages that were meant for"
                " other members until they have expired"
            )
        if self.max_cb is not None and not entry.max_cb:
            raise LocalProtocolError(f"max_cb={self.max_cb!r} has no effect on {self.algorithm}")
        _refuse_clock_error(self.clock_error_ms, self.lifetime_ms)
        _refuse_settings(self)


class SelectiveTotal(Order, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selective total order: who have two messages in common have them in the same order.  [S003]

    Over all topics of the group and all writers, in whatever process; each message goes to the
    participants that read its topic, to nobody else, and is handed over when they all hold it.  The
    order respects causality.  Nothing is given up: a member that is silent holds the writers up
    until a view is without it.

    A participant that writes or reads such a topic enters the group: through ZooKeeper, where a
    relay of the group must stand (`orderwire channel --zookeeper HOST:PORT --group NAME`), or, with
    `relay`, all participants of an address list, and then for good.  Raises LocalProtocolError.
    """

    group: str = DEFAULT_GROUP
    """The group's name; the relay's `--group`.  It takes the place of `domain`."""
    delivery: Delivery = Delivery.PREACK
    """PREACK: every destination has the message; ACK: they all know that of each other, too."""
    relay: str | None = None
    """`host:port` of the relay of a fixed group; None: ZooKeeper knows relays and members."""
    zookeeper: str | None = None
    """`host:port,…` of the views' ensemble; None: the one by which participants find each other."""
    least: int = 1
    """So many participants must be there before the first view."""
    session_ms: float = 4_000
    """A participant or relay that ZooKeeper has not heard for so long is out."""
    enter_ms: float = 60_000
    """How long entering the group may take."""

    _algorithm: ClassVar[str] = SELECTIVE_TOTAL

    @property
    def lifetime_ns(self) -> int | None:
        """None: messages live for ever."""
        return None

    @property
    def label(self) -> str:
        """Its group's name, where that is not the usual one."""
        return self.group if self.group != DEFAULT_GROUP else "selective-total"

    @property
    def key(self) -> str:
        """What two members must agree on to be in the same group."""
        return f"{SEATED}(delivery={self.delivery.value})/{self.group}"

    def __post_init__(self) -> None:
        Order.__post_init__(self)
        if self.domain:
            raise LocalProtocolError(
                f"domain={self.domain!r} has no effect on SelectiveTotal: group= names its group"
            )
        if not isinstance(self.group, str) or not (
            0 < len(self.group) <= DOMAIN_NAME_MAX and self.group.isprintable()
        ):
            raise LocalProtocolError(
                f"group={self.group!r} must be 1 to {DOMAIN_NAME_MAX} printable characters"
            )
        if not isinstance(self.delivery, Delivery):
            raise LocalProtocolError(
                f"delivery={self.delivery!r} must be Delivery.PREACK or Delivery.ACK"
            )
        for name, where in (("relay", self.relay), ("zookeeper", self.zookeeper)):
            if where is not None and not (isinstance(where, str) and where):
                raise LocalProtocolError(f"{name}={where!r} must be 'host:port' or None")
        if self.relay is not None:
            split_address(self.relay)
            if self.zookeeper is not None:
                raise LocalProtocolError(
                    "relay= is that of a fixed group, zookeeper= knows the relays: give one"
                )
        if isinstance(self.least, bool) or not isinstance(self.least, int) or self.least < 1:
            raise LocalProtocolError(f"least={self.least!r} must be at least 1")
        for name, value_ms in (("session_ms", self.session_ms), ("enter_ms", self.enter_ms)):
            whole_ticks(name, value_ms)
        if self.session_ms < SESSION_MS_MIN:
            raise LocalProtocolError(
                f"session_ms={self.session_ms!r} must be at least {SESSION_MS_MIN}: a shorter"
                " session ends whenever somebody is busy"
            )


def _refuse_clock_error(clock_error_ms: float, lifetime_ms: float | None) -> None:
    _refuse_no_number("clock_error_ms", clock_error_ms)
    if not clock_error_ms >= 0:
        raise LocalProtocolError(
            f"clock_error_ms={clock_error_ms!r} must not be negative: it is the largest"
            " difference of two members' clocks"
        )
    epsilon_ns = _exact_ns("clock_error_ms", clock_error_ms)
    if lifetime_ms is not None and epsilon_ns >= whole_ticks("lifetime_ms", lifetime_ms):
        raise LocalProtocolError(
            f"clock_error_ms={clock_error_ms!r} must be below lifetime_ms={lifetime_ms!r}: clocks"
            " that differ by more cannot judge that lifetime"
        )


def _refuse_settings(order: Order) -> None:
    """Refuse what the algorithm itself does not accept, before any member is there."""
    for name, value in order._bounds.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise LocalProtocolError(f"{name}={value!r} must be a whole number")
    try:
        algorithm(order.algorithm).create(ProcessId(0), order.settings(1))
    except ValueError as error:
        raise LocalProtocolError(f"{order.algorithm}: {error}") from None


def whole_ticks(name: str, value_ms: float) -> int:
    """Convert milliseconds to nanoseconds; refuse what is no positive number of microseconds."""
    _refuse_no_number(name, value_ms)
    if not 0 < value_ms <= LIFETIME_MS_MAX:
        raise LocalProtocolError(
            f"{name}={value_ms!r} must be above 0 and at most {LIFETIME_MS_MAX} milliseconds"
        )
    value_ns = _exact_ns(name, value_ms)
    if value_ns % TICK_NS:
        raise LocalProtocolError(f"{name}={value_ms!r} must be a whole number of microseconds")
    return value_ns


def _refuse_no_number(name: str, value_ms: float) -> None:
    if isinstance(value_ms, bool) or not isinstance(value_ms, int | float):
        raise LocalProtocolError(f"{name}={value_ms!r} must be a number of milliseconds")


def _exact_ns(name: str, value_ms: float) -> int:
    try:
        return exact_ns(value_ms, NS_PER_MS, name)
    except (ValueError, OverflowError):
        raise LocalProtocolError(f"{name}={value_ms!r} is no whole number of nanoseconds") from None
