"""One ordering domain of one participant: a core on a channel, between writers and readers."""

import logging
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

import msgspec

from orderwire.aio.channel import Channel
from orderwire.aio.endpoint import Endpoint
from orderwire.aio.host import Host
from orderwire.kernel import (
    NS_PER_S,
    Destinations,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    read_varint,
)
from orderwire.ordering.catalog import algorithm
from orderwire.ordering.pdu import (
    Delivered,
    Discarded,
    DiscardReason,
    Lost,
    Multicast,
    OrderingCommand,
    OrderingIndication,
    Restarted,
    Sent,
)
from orderwire.participant.batches import cut, pack, unpack
from orderwire.participant.inputs import InputRecorder
from orderwire.participant.lifetimes import handed_over_within_ns
from orderwire.participant.matching import Matching, Outlet, Routes
from orderwire.participant.qos import Order
from orderwire.participant.samples import Counters, Sample, Written
from orderwire.participant.topic_domain import TopicDomain
from orderwire.participant.writer import DATA_BYTES_MAX
from orderwire.trace.discovery_events import DiscoveryTimeline
from orderwire.trace.events import RunSettings

if TYPE_CHECKING:
    from orderwire.trace.sinks import Sink
    from orderwire.trace.writer import Tracer

_LOG = logging.getLogger(__name__)

CHANNELS = 65_521
"""Channel numbers are drawn from a domain's key: largest prime that fits sixteen bits."""

CONTROL_BYTES = 512
"""Of a datagram with several data, what is kept for control information; an eighth if it is small.

A message whose control information takes more goes over the stream.
"""


def channel_number(key: str) -> int:
    """Return the channel of the domain with this key: the same number at every member."""
    return zlib.crc32(key.encode()) % CHANNELS


class Domain(TopicDomain):
    """The part of a participant that one order's topics share: a core on the data channel."""

    def __init__(
        self,
        order: Order,
        me: ProcessId,
        members: Sequence[str],
        endpoint: Endpoint,
        matching: Matching,
        inputs: InputRecorder | None = None,
    ) -> None:
        super().__init__(order, me, members, endpoint.clock, matching)
        self._sent: Sent | None = None
        self._writing_bytes = 0
        self._writing_lifetime_ns: int | None = None
        self._routes: Routes = matching.routes.setdefault(self.key, {})
        self._tracer: Tracer | None = None
        entry = algorithm(order.algorithm)
        settings = order.settings(len(members))
        self.channel: Channel = endpoint.channel(channel_number(self.key), order.delivery_ns)
        self._host: Host[OrderingCommand, object, OrderingIndication] = Host(
            entry.create(me, settings),
            entry.codec(me, settings),
            self.channel,
            endpoint.clock,
            self._tell,
            lost=self._lost,
            restarted=Restarted,
            record=None
            if inputs is None
            else inputs.open(order.label, order.algorithm, me, settings),
        )
        self._traced_at: int = self._host.now
        self._warned: set[ProcessId] = set()
        """Members whose clocks are far ahead of ours."""

    def trace(
        self, run: str, sink: "Sink", *, one_clock: bool, timer_slack_ns: int, found: bool
    ) -> None:
        """Record what happens from now on, as the run `run/domain`.

        `found`: members find each other, so that not every id is somebody's.
        """
        from orderwire.trace.writer import Tracer  # imports Arrow

        settings = RunSettings(
            algorithm=self.order.algorithm,
            members=len(self.members),
            lifetime_ns=self.order.delivery_ns,
            epsilon_ns=self.order.epsilon_ns,
            clock="shared" if one_clock else "local",
            timer_slack_ns=timer_slack_ns,
            open=True if found else msgspec.UNSET,
        )
        self._tracer = Tracer(
            f"{run}/{self.order.label}", self._me, sink, settings, self.clock.now()
        )

    @property
    def counters(self) -> Counters:
        """What was counted so far, the link's part included."""
        counters = self._counters
        links = [self.channel.counters(peer) for peer in self.channel.peers]
        counters.lost = sum(link.lost for link in links)
        counters.unsent = sum(link.dropped for link in links)
        counters.unconfirmed = sum(link.unconfirmed for link in links)
        counters.retransmitted = sum(link.retransmitted for link in links)
        pdus = sum(self._host.malformed.values())
        return msgspec.structs.replace(counters, malformed=counters.malformed + pdus)

    def write(self, outlet: Outlet, data: bytes, lifetime_ns: int | None = None) -> Written | None:
        """Multicast to the readers of this outlet.  Raises LocalProtocolError.

        `lifetime_ns`: for so long the order may deliver it, where that is not as usual.
        """
        destinations = outlet.destinations
        if not destinations:
            self._counters.unread += 1
            return None
        self._require_room(outlet)
        return self._submit(outlet.prefix + data, destinations, len(data), lifetime_ns)

    def write_many(
        self,
        outlet: Outlet,
        data: Sequence[bytes],
        lengths: Sequence[int],
        lifetime_ns: int | None = None,
    ) -> list[Written]:
        """Multicast data of these lengths in as few messages as hold them, as `write` does."""
        destinations = outlet.destinations
        if not destinations:
            self._counters.unread += 1
            return []
        self._require_room(outlet)
        fit = self.channel.fit or DATA_BYTES_MAX  # without peers no datagram limits it
        room = fit - min(CONTROL_BYTES, fit // 8)
        written = []
        for run in cut(lengths, room):
            payload = pack(outlet.batch_prefix, data[run], lengths[run])
            data_bytes = sum(lengths[run])
            sent = self._submit(payload, destinations, data_bytes, lifetime_ns, begun=True)
            written.append(sent)
        return written

    def _require_room(self, outlet: Outlet) -> None:
        if self.channel.full and self.order.lifetime_ns is None:
            raise LocalProtocolError(
                f"too much waits to be sent on {outlet.name!r}: `await writer.drain()` after"
                " writing, so that slow members can follow"
            )

    def _submit(
        self,
        payload: bytes,
        destinations: Destinations,
        data_bytes: int,
        lifetime_ns: int | None,
        *,
        begun: bool = False,
    ) -> Written:
        counters = self._counters
        self._writing_bytes = len(payload)
        self._writing_lifetime_ns = lifetime_ns
        command = Multicast(payload, destinations, lifetime_ns)
        self._host.submit(command, begun=begun, lifetime_ns=lifetime_ns)
        sent = self._sent
        assert sent is not None, "the core did not say what it sent"
        self._sent = None
        copies = destinations.bit_count()
        counters.written += 1
        counters.copies += copies
        counters.control_bytes += sent.control_bytes
        counters.payload_bytes += data_bytes
        return Written(sent.number, sent.stamp, copies)

    async def drain(self) -> None:
        """Wait until there is room to write more."""
        await self.channel.drain()

    async def sent(self) -> None:
        """Wait until nothing written is under way."""
        await self.channel.drain(empty=True)

    def trace_gone(self, member: ProcessId) -> None:
        """Record that this member was killed: it cannot say so itself."""
        if self._tracer is not None:
            self._traced_at = max(self._traced_at, self.clock.now())
            DiscoveryTimeline.on(self._tracer).gone(self._traced_at, process=member)

    def flush_trace(self) -> None:
        """Hand the events that wait to the sink."""
        if self._tracer is not None:
            self._tracer.flush()

    async def close(self, linger_s: float) -> None:
        """Feed the core no more and end the trace."""
        self._host.close()
        if self._tracer is not None:
            self._tracer.close(max(self._traced_at, self.clock.now()))

    # What the core says.

    def _tell(self, indication: OrderingIndication) -> None:
        # A traced timeline never goes back, whatever the loop's readings of the clock did.
        now: int = self._host.now
        if now < self._traced_at:
            now = self._traced_at
        else:
            self._traced_at = now
        match indication:
            case Delivered():
                if self._tracer is not None:
                    self._tracer.deliver(
                        now,
                        indication.source,
                        indication.number,
                        indication.stamp,
                        indication.arrived,
                        indication.control_bytes,
                        len(indication.payload),
                    )
                self._hand_on(indication, Instant(now))
            case Sent():
                self._sent = indication
                if self._tracer is not None:
                    self._tracer.send(
                        now,
                        indication.number,
                        indication.stamp,
                        indication.destinations,
                        indication.control_bytes,
                        self._writing_bytes,
                        self._writing_lifetime_ns,
                    )
            case Discarded():
                self._discarded(indication, now)
            case _:
                assert_never(indication)

    def _hand_on(self, delivered: Delivered, now: Instant) -> None:
        self._counters.delivered += 1
        source, payload = delivered.source, delivered.payload
        try:
            # One byte as a rule, read here: every message passes.
            head, at = (payload[0], 1) if payload and payload[0] < 0x80 else read_varint(payload, 0)
            routes = self._routes.get(source)
            route = None if routes is None else routes.get(head >> 1)
            if route is None:
                self._counters.unclaimed += 1
                return
            data = unpack(payload, at) if head & 1 else (payload[at:],)
        except RemoteProtocolError:
            self._counters.malformed += 1
            return
        topic, readers = route
        name, number, stamp = self.members[source], delivered.number, delivered.stamp
        arrived, own = delivered.arrived, delivered.lifetime_ns
        if own is not None:
            own = handed_over_within_ns(own)
        if len(data) == 1:
            samples = [Sample(topic, data[0], name, number, stamp, arrived, now, 0, 0, own)]
        else:
            samples = [
                Sample(topic, each, name, number, stamp, arrived, now, 0, place, own)
                for place, each in enumerate(data)
            ]
        for reader in readers:
            reader.put(samples)

    def _discarded(self, discarded: Discarded, now: int) -> None:
        counters = self._counters
        match discarded.reason:
            case DiscardReason.LATE | DiscardReason.EXPIRED:
                counters.late += 1
            case DiscardReason.DUPLICATE:
                counters.duplicate += 1
            case DiscardReason.FULL | DiscardReason.OVERTAKEN:
                counters.refused += 1
            case DiscardReason.FUTURE:
                counters.refused += 1
                self._warn_of_clock(discarded.source, discarded.stamp - now)
            case _:
                assert_never(discarded.reason)
        if self._tracer is not None:
            self._tracer.discard(
                now,
                discarded.source,
                discarded.number,
                discarded.stamp,
                discarded.arrived,
                discarded.reason.value,
                discarded.control_bytes,
                discarded.payload_bytes,
            )

    def _warn_of_clock(self, source: ProcessId, ahead_ns: int) -> None:
        """Say once of each member that its clock and ours cannot both be right."""
        if source not in self._warned:
            self._warned.add(source)
            _LOG.error(
                "the clock of %s is %.3f s ahead of ours: its messages are refused, and ours come"
                " too late for it. Was a clock set between the starts of the two? Set both right,"
                " then start the later one again",
                self.members[source],
                ahead_ns / NS_PER_S,
            )

    def _lost(self, source: ProcessId, first: int, last: int) -> OrderingCommand:
        if self._tracer is not None:
            self._traced_at = max(self._traced_at, self.clock.now())
            self._tracer.lost(self._traced_at, source, last - first + 1)
        return Lost(source, first, last)
