"""The ordering domains of one participant, each of them opened by its first writer or reader."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from orderwire.aio.clock import warn_about_clock
from orderwire.aio.endpoint import Endpoint
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.kernel import LocalProtocolError, ProcessId
from orderwire.participant.discovering import Discovering
from orderwire.participant.discovery_trace import DISCOVERY_RUN
from orderwire.participant.domain import Domain, channel_number
from orderwire.participant.inputs import InputRecorder
from orderwire.participant.matching import Matching
from orderwire.participant.members import Members
from orderwire.participant.qos import Order, SelectiveTotal
from orderwire.participant.quiet import Quiet
from orderwire.participant.topic_domain import TopicDomain
from orderwire.participant.total_domain import TotalDomain, TotalPlace
from orderwire.participant.tracing import Trace
from orderwire.trace.errors import TraceError

if TYPE_CHECKING:
    from orderwire.trace.sinks import Sink

_LOG = logging.getLogger(__name__)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the domains of a participant share."""

    me: ProcessId
    name: str
    members: Members | Discovering
    endpoint: Endpoint
    matching: Matching
    quiet: Quiet
    inputs: InputRecorder | None
    trace: Trace | None
    sink: "Sink | None"
    zookeeper: str | None
    access: ZookeeperAccess | None
    insecure: bool
    out: Callable[[str], None]
    """Called when this participant is out of a group with one order, with the reason."""


class Domains:
    """Domains by key."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._domains: dict[str, TopicDomain] = {}
        self._lost: list[TopicDomain] = []
        """Groups we are out of, and which were entered again."""

    def __getitem__(self, key: str) -> TopicDomain:
        return self._domains[key]

    def get(self, key: str) -> TopicDomain | None:
        """Return the domain with this key, if it was opened."""
        return self._domains.get(key)

    def __iter__(self) -> Iterator[TopicDomain]:
        return iter([*self._domains.values(), *self._lost])

    def of(self, order: Order) -> TopicDomain:
        """Return the domain of this order, opened if need be.  Raises LocalProtocolError."""
        domain = self._domains.get(order.key)
        if domain is not None and isinstance(order, SelectiveTotal) and domain.order != order:
            raise LocalProtocolError(
                f"this participant takes part in group {order.group!r} as {domain.order!r}"
                f" already, and not as {order!r}"
            )
        if domain is not None and domain.lost:
            self._lost.append(self._domains.pop(order.key))
            domain = None
        if domain is None:
            domain = self._open(order)
            self._domains[order.key] = domain
            self._trace(domain)
        return domain

    def _open(self, order: Order) -> TopicDomain:
        around = self._around
        if order.label == DISCOVERY_RUN and isinstance(around.members, Discovering):
            raise LocalProtocolError(
                f"domain={DISCOVERY_RUN!r} is what the trace calls the run of discovery: give"
                " the ordering domain another name"
            )
        if isinstance(order, SelectiveTotal):
            return self._open_total(order)
        for other in self._domains:
            if channel_number(other) == channel_number(order.key):
                raise LocalProtocolError(
                    f"{order.key} and {other} happen to fall on the same channel: give one of"
                    " them another domain='…'"
                )
        if order.quiet_ns:
            around.quiet.begin(order.key, order.quiet_ns)
        domain = Domain(
            order,
            around.me,
            around.members.names,
            around.endpoint,
            around.matching,
            around.inputs,
        )
        if order.lifetime_ns is not None and not around.members.on_one_machine:
            warn_about_clock(order.epsilon_ns)
        return domain

    def _open_total(self, order: SelectiveTotal) -> TotalDomain:
        around = self._around
        for other in self._domains.values():
            if isinstance(other, TotalDomain) and other.order.group == order.group:
                raise LocalProtocolError(
                    f"this participant takes part in group {order.group!r} with another delivery"
                    " already: give one of the two another group='…'"
                )
        if around.inputs is not None:
            raise LocalProtocolError(
                "record= keeps what the cores of the data channel are fed, and SelectiveTotal has"
                " none there: leave one of the two out"
            )
        place = TotalPlace(
            name=around.name,
            participants=around.members.group,
            host=around.endpoint.address[0],
            zookeeper=around.zookeeper,
            access=around.access,
            insecure=around.insecure,
            listed=isinstance(around.members, Members),
        )
        return TotalDomain(
            order,
            around.me,
            around.members.names,
            around.endpoint.clock,
            around.matching,
            place,
            around.out,
        )

    def _trace(self, domain: TopicDomain) -> None:
        around = self._around
        if around.trace is not None and around.sink is not None:
            domain.trace(
                around.trace.run,
                around.sink,
                one_clock=around.members.on_one_machine,
                timer_slack_ns=around.trace.timer_slack_ns,
                found=isinstance(around.members, Discovering),
            )

    async def sent(self) -> None:
        """Wait until nothing written is under way.  Raises LocalProtocolError of a lost group."""
        for domain in list(self._domains.values()):
            await domain.sent()

    async def settle(self) -> None:
        """`sent`, of those that can."""
        for domain in list(self._domains.values()):
            if not domain.lost:
                try:
                    await domain.sent()
                except LocalProtocolError as error:
                    _LOG.warning("%s", error)

    async def close(self, linger_s: float) -> None:
        """Take part in none any more, after so long at most."""
        failed = await asyncio.gather(
            *(domain.close(linger_s) for domain in self), return_exceptions=True
        )
        for error in failed:
            if isinstance(error, BaseException):
                raise error

    def flush_traces(self) -> None:
        """Hand the events that wait to the sink."""
        try:
            for domain in self:
                domain.flush_trace()
            if isinstance(self._around.members, Discovering):
                self._around.members.flush_trace()
        except (TraceError, OSError) as error:
            _LOG.error("%s", error)  # and again, as an exception, when the participant is closed
