"""Topics of a group with one order: `SelectiveTotal`.  [S003]

The participant is a member of the group.  Who reads what it learns as for all orders, from control
messages; a message goes to those of them that have a seat, and comes back from the group in the
order of all.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from orderwire.aio.clock import GroupClock
from orderwire.aio.total_member import TotalMessage
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.kernel import (
    NS_PER_MS,
    Destinations,
    Instant,
    LocalProtocolError,
    OrderwireError,
    ProcessId,
    RemoteProtocolError,
)
from orderwire.ordering.total.pdu import Member
from orderwire.participant.batches import cut, pack
from orderwire.participant.matching import Matching, Outlet
from orderwire.participant.qos import SelectiveTotal
from orderwire.participant.reader import TURN_S, Reader
from orderwire.participant.samples import MemberChange, Sample, Written
from orderwire.participant.topic_domain import TopicDomain
from orderwire.participant.total_group import TotalGroup
from orderwire.participant.total_payload import (
    Greeting,
    decode,
    digest,
    encode_greeting,
    encode_stamp,
    head,
    require_size,
)
from orderwire.participant.total_seats import Seats
from orderwire.participant.total_settings import TotalGroupSettings
from orderwire.participant.tracing import Trace
from orderwire.trace.errors import TraceError

if TYPE_CHECKING:
    from orderwire.trace.sinks import Sink

_LOG = logging.getLogger(__name__)

HOLD_PAUSE_S = 0.002
"""How often it is looked whether a full reader has room again."""
BATCH_BYTES = 4_096
"""Several data travel in messages of this size at most."""
ROUTES_MAX = 4_096
"""Topics whose readers are remembered."""


class TotalPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where and as whom a participant enters its group."""

    name: str
    participants: str
    """What the participants have in common: their list, or the domain they found each other in."""
    host: str
    """Of this participant's sockets."""
    zookeeper: str | None
    access: ZookeeperAccess | None
    insecure: bool
    listed: bool
    """Whether the participants are those of a list, all of them."""


class TotalDomain(TopicDomain):
    """The topics of one order in one group."""

    tells_changes = True
    order: SelectiveTotal

    def __init__(
        self,
        order: SelectiveTotal,
        me: ProcessId,
        members: Sequence[str],
        clock: GroupClock,
        matching: Matching,
        place: TotalPlace,
        out: Callable[[str], None],
    ) -> None:
        """Enter the group in the background; `out(why)` is called when we are out of it.

        Raises LocalProtocolError when there is no way in.
        """
        if order.relay is not None and not place.listed:
            raise LocalProtocolError(
                f"relay={order.relay!r} makes a fixed group of all participants of a list, and"
                " these find each other: let ZooKeeper keep the views, with zookeeper=…"
            )
        if order.relay is None and order.zookeeper is None and place.zookeeper is None:
            raise LocalProtocolError(
                f"{place.name!r} does not know who keeps the views of group {order.group!r}: give"
                " SelectiveTotal(zookeeper='host:port'), or relay='host:port' of a fixed group"
            )
        super().__init__(order, me, members, clock, matching)
        self._place = place
        self._out = out
        self._digest = digest(self.key, place.participants)
        self._group: TotalGroup | None = None
        self._trace: Trace | None = None
        self._seats = Seats()
        self._routes: dict[tuple[str, bool], tuple[Reader, ...]] = {}
        self._strangers: set[ProcessId] = set()
        """Members that were named as no participants of ours."""
        self._greeting: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._loop = asyncio.get_running_loop()
        matching.seat(self.key, frozenset())
        self._running = self._loop.create_task(self._run())

    # ------------------------------------------------------------------ being in the group

    async def _run(self) -> None:
        """Enter, and hand on what comes until this member is out."""
        try:
            group = await self._enter()
        except (TimeoutError, OSError, OrderwireError) as error:
            self._fail(f"{self._place.name!r} did not get into group {self.order.group!r}: {error}")
            return
        self._group = group
        try:
            await self._read(group)
            if not self._leaving:
                self._fail(
                    f"{self._place.name!r} is out of group {self.order.group!r}: {group.excluded}."
                    " New writers and readers enter it again, without what is written meanwhile"
                )
        finally:
            try:
                await group.close(wait_s=0.0)
            except TraceError as error:
                _LOG.error("%s", error)

    async def _enter(self) -> TotalGroup:
        order, place = self.order, self._place
        if self._trace is not None:
            self._trace.load()
        settings = TotalGroupSettings(
            delivery=order.delivery, insecure=place.insecure, multicast_interface=place.host
        )
        wait_s = order.enter_ms / 1_000
        if order.relay is not None:
            return await TotalGroup.join(
                order.relay,
                me=self._me,
                members=len(self.members),
                bind=place.host,
                settings=settings,
                trace=self._trace,
                wait_s=wait_s,
            )
        zookeeper = order.zookeeper or place.zookeeper
        assert zookeeper is not None
        return await TotalGroup.enter(
            zookeeper,
            order.group,
            least=order.least,
            bind=place.host,
            settings=settings,
            access=place.access,
            session_ns=round(order.session_ms * NS_PER_MS),
            trace=self._trace,
            wait_s=wait_s,
        )

    async def _read(self, group: TotalGroup) -> None:
        if self.order.relay is not None:  # A fixed group has one view, which nobody tells.
            self._install(group, group.view.members)
        turn_ends = self._loop.time() + TURN_S
        async for event in group.events():
            if isinstance(event, TotalMessage):
                self._take(group, event)
            else:
                self._install(group, event.members)
            while any(reader.holds for reader in self.readers):
                await asyncio.sleep(HOLD_PAUSE_S)
            if self._loop.time() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._loop.time() + TURN_S

    def _fail(self, why: str) -> None:
        """Let nobody write or wait any more."""
        _LOG.error("%s", why)
        self.lost = why
        self._seats = Seats()
        self.matching.seat(self.key, frozenset())
        for writer in list(self.writers):
            writer.lose(why)
            writer.close()
        for reader in list(self.readers):
            reader.lose(why)
        self._out(why)

    def _install(self, group: TotalGroup, members: tuple[Member, ...]) -> None:
        for seat in self._seats.install(members):
            self._tell(MemberChange(seat.name, False))
        self._strangers &= {member.process for member in members}
        self._seated()
        strangers = self._seats.strangers
        if strangers:
            task = self._loop.create_task(self._greet(group, strangers))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, group: TotalGroup, members: list[Member]) -> None:
        """Say to these who we are; only then they are written to."""
        greeting = encode_greeting(Greeting(self._me, self._place.name, self._digest))
        try:
            await group.write(greeting, [member.process for member in members])
        except LocalProtocolError:
            return  # We are out.
        self._seats.greeted(members)
        self._seated()

    def _seated(self) -> None:
        self.matching.seat(self.key, self._seats.participants)

    def _tell(self, change: MemberChange) -> None:
        for reader in self.readers:
            reader.tell_change(change)

    # ------------------------------------------------------------------ writing

    @property
    def hint(self) -> str:
        """Why a topic may have no readers."""
        if self._group is None:
            return f"this participant is not in group {self.order.group!r} yet"
        return (
            f"do they ask for the same order, {self.key}? In its group are"
            f" {', '.join(self._seats.names) or 'none'}"
        )

    def write(self, outlet: Outlet, data: bytes, lifetime_ns: int | None = None) -> Written | None:
        """Multicast to the readers of this outlet.  Raises LocalProtocolError."""
        require_size(len(data))
        to = self._to(outlet)
        if to is None:
            return None
        group, mask = to
        self._require_room(group, outlet, 1)
        return self._write(group, mask, head(outlet.name, several=False), data, len(data))

    def write_many(
        self,
        outlet: Outlet,
        data: Sequence[bytes],
        lengths: Sequence[int],
        lifetime_ns: int | None = None,
    ) -> list[Written]:
        """Multicast data of these lengths in as few messages as hold them, as `write` does."""
        require_size(max(lengths))
        to = self._to(outlet)
        if to is None:
            return []
        group, mask = to
        runs = list(cut(lengths, BATCH_BYTES))
        self._require_room(group, outlet, len(runs))
        prefix = head(outlet.name, several=True)
        return [
            self._write(group, mask, prefix, pack(b"", data[run], lengths[run]), sum(lengths[run]))
            for run in runs
        ]

    def _to(self, outlet: Outlet) -> tuple[TotalGroup, int] | None:
        """Return the members that read this now; None: nobody does, which is counted."""
        group = self._group
        if group is not None and outlet.destinations:
            view = group.view
            mask = self._seats.mask(outlet.destinations, view.number, view.members)
            if mask:
                return group, mask
        self._counters.unread += 1
        return None

    def _require_room(self, group: TotalGroup, outlet: Outlet, messages: int) -> None:
        if group.room < messages:
            raise LocalProtocolError(
                f"too much waits to be sent on {outlet.name!r}: `await writer.drain()` after"
                " writing, so that slow members can follow"
            )

    def _write(
        self, group: TotalGroup, mask: int, prefix: bytes, data: bytes, data_bytes: int
    ) -> Written:
        stamp = Instant(self.clock.now())
        number = group.write_now(prefix + encode_stamp(stamp) + data, Destinations(mask))
        copies = mask.bit_count()
        counters = self._counters
        counters.written += 1
        counters.copies += copies
        counters.payload_bytes += data_bytes
        return Written(number, stamp, copies)

    async def drain(self) -> None:
        """Wait until there is room to write more.  Raises LocalProtocolError once we are out."""
        if self.lost:
            raise LocalProtocolError(self.lost)
        if self._group is not None:
            await self._group.wait_room()

    async def sent(self) -> None:
        """Wait until all that was written has come.  Raises LocalProtocolError once we are out."""
        if self.lost:
            raise LocalProtocolError(self.lost)
        if self._group is not None:
            await self._group.sent()

    # ------------------------------------------------------------------ reading

    def add_reader(self, reader: Reader) -> None:
        """Let this reader take part."""
        self._routes.clear()
        super().add_reader(reader)

    def forget_reader(self, reader: Reader) -> None:
        """This reader was closed."""
        self._routes.clear()
        super().forget_reader(reader)

    def _take(self, group: TotalGroup, message: TotalMessage) -> None:
        source = message.source
        try:
            said = decode(message.payload)
        except RemoteProtocolError:
            self._counters.malformed += 1
            return
        if isinstance(said, Greeting):
            self._greeted_by(source, said)
            return
        seat = self._seats.at(source)
        readers = () if seat is None else self._readers_of(said.topic, source == group.me)
        self._counters.delivered += 1
        if seat is None or not readers:
            self._counters.unclaimed += 1
            return
        now = Instant(self.clock.now())
        samples = [
            Sample(said.topic, each, seat.name, message.number, said.stamp, now, now, 0, place)
            for place, each in enumerate(said.data)
        ]
        for reader in readers:
            reader.put(samples)

    def _greeted_by(self, source: ProcessId, greeting: Greeting) -> None:
        if greeting.group != self._digest:
            if source not in self._strangers:
                self._strangers.add(source)
                _LOG.error(
                    "%r is in group %r, and is no participant of ours or has another order: it"
                    " gets nothing from us. Give the groups of other participants other names",
                    greeting.name,
                    self.order.group,
                )
            return
        seat = self._seats.greet(source, greeting)
        if seat is not None:
            self._seated()
            self._tell(MemberChange(seat.name, True))

    def _readers_of(self, topic: str, own: bool) -> tuple[Reader, ...]:
        readers = self._routes.get((topic, own))
        if readers is None:
            readers = tuple(each for each in self.readers if each.wants(topic, own=own))
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic, own] = readers
        return readers

    # ------------------------------------------------------------------ the end

    def trace(
        self, run: str, sink: "Sink", *, one_clock: bool, timer_slack_ns: int, found: bool
    ) -> None:
        """Record what this member does, as the run `run/domain`; it is not in the group yet."""
        self._trace = Trace(run=f"{run}/{self.order.label}", sink=sink)

    def trace_gone(self, member: ProcessId) -> None:
        """Views tell who is gone."""

    def flush_trace(self) -> None:
        """The group does, by itself."""

    async def close(self, linger_s: float) -> None:
        """Leave the group when all that was written has come, after so long at most."""
        self._leaving = True
        if self._group is not None and not self.lost:
            await self._group.close(wait_s=linger_s)
        for task in (self._running, *self._greeting):
            task.cancel()
        await asyncio.gather(self._running, *self._greeting, return_exceptions=True)
