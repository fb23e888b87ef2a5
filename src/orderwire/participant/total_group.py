"""A group whose members broadcast to any of each other, all in one order.  [S003]

async with await TotalGroup.join("127.0.0.1:7500", me=0, members=3) as group:
    await group.write(b"to all")
    await group.write(b"to two", [0, 2])
    async for message in group:
        ...

The group is fixed, or ZooKeeper knows who is in it: then members come, go and die (`enter`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from orderwire.aio.addresses import is_loopback, looked_up_ipv4, split_address
from orderwire.aio.clock import GroupClock, shared_origin_ns
from orderwire.aio.datagram import Address
from orderwire.aio.total_member import (
    EVERYBODY,
    PackLimits,
    Told,
    TotalMember,
    TotalMessage,
    unpack,
)
from orderwire.aio.total_port import ChannelPort, PortSettings
from orderwire.aio.total_relay import new_incarnation
from orderwire.aio.zookeeper_access import SESSION_MS_MIN, ZookeeperAccess
from orderwire.kernel import (
    GROUP_SIZE_MAX,
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    Destinations,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    members_of,
)
from orderwire.ordering.pdu import Delivered
from orderwire.ordering.total.pdu import ChangeView, Installed, Member, Suspected
from orderwire.ordering.total.settings import TotalSettings
from orderwire.ordering.total.st_codec import TachikawaSTCodec
from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.ordering.total.view_rules import StoredView
from orderwire.participant.total_settings import HEARTBEAT_MAX_NS, TotalGroupSettings
from orderwire.participant.tracing import Trace
from orderwire.trace.errors import TraceError

if TYPE_CHECKING:
    from orderwire.aio.total_views import GroupViews
    from orderwire.participant.total_tracing import GroupTracing


class TotalGroup:
    """One member.  `async for` hands out its messages, in the one order of all."""

    def __init__(
        self,
        member: TotalMember,
        port: ChannelPort,
        me: ProcessId,
        settings: TotalGroupSettings,
    ) -> None:
        """Use `join`."""
        self.me = me
        self._member = member
        self._port = port
        self._settings = settings
        self._inbox: deque[Told] = deque()
        self._inbox_packs = 0
        self._ready: deque[TotalMessage] = deque()
        self._arrived = asyncio.Event()
        self._told = asyncio.Event()
        self._closed = False
        self._excluded: str | None = None
        """Why this member is in its group no more."""
        self._views: GroupViews | None = None
        self._seen = 0
        """Who was ever a member, as a mask."""
        self._view_number = 0
        """The last view that the core was told."""
        self._own: Member | None = None
        self._was_in = False
        self._heard_ns = 0
        self._tracing: GroupTracing | None = None
        self.malformed_packs = 0

    @classmethod
    async def join(
        cls,
        relay: str,
        *,
        me: int,
        members: int,
        bind: str | None = None,
        settings: TotalGroupSettings | None = None,
        trace: Trace | None = None,
        wait_s: float = 30.0,
    ) -> Self:
        """Take part as process `me` of a fixed group; return when the relay has seen all of it.

        The group has no views: a member that dies stops it, and when its relay is started anew all
        are out.  `trace` records what this member does, as the run that it names.
        Raises LocalProtocolError when the relay refuses, TimeoutError when not all are there in
        time, TraceError and OSError.
        """
        settings = settings or TotalGroupSettings()
        if trace is not None:
            trace.load()  # before the others know us
        if type(members) is not int or not 1 <= members <= GROUP_SIZE_MAX:
            raise LocalProtocolError(f"members={members!r} is not within 1 … {GROUP_SIZE_MAX}")
        if type(me) is not int or not 0 <= me < members:
            raise LocalProtocolError(f"me={me!r} is not within 0 … {members - 1}")
        address = await looked_up_ipv4(relay)
        group = cls._open(ProcessId(me), new_incarnation(), members, bind, address, settings)
        try:
            if trace is not None:
                group._record(trace, members)
            group._port.use(address)
            try:
                async with asyncio.timeout(wait_s):
                    await group._all_present((1 << members) - 1)
            except TimeoutError:
                raise TimeoutError(f"{group._absent(relay, members)} after {wait_s:g} s") from None
        except BaseException:
            await group._abandon()
            raise
        group._seen = (1 << members) - 1
        return group

    @classmethod
    async def enter(
        cls,
        zookeeper: str,
        name: str,
        *,
        least: int = 1,
        bind: str | None = None,
        settings: TotalGroupSettings | None = None,
        access: ZookeeperAccess | None = None,
        session_ns: int = 4 * NS_PER_S,
        trace: Trace | None = None,
        wait_s: float = 60.0,
    ) -> Self:
        """Enter a group whose views ZooKeeper keeps; return when this member is in one.

        `least` processes and a relay of the group must be there before the first view.  A process
        whose session ends is excluded, and so is one that dies; a majority goes on without it.
        `trace` records what this member does, as the run that it names.
        Raises LocalProtocolError, TimeoutError, ZookeeperUnavailable, ZookeeperRefused, and with
        `trace` TraceError and OSError.
        """
        # Who needs no ZooKeeper does not load its client.
        from orderwire.aio.total_views import GroupViews
        from orderwire.aio.zookeeper_client import ClientSettings

        settings = settings or TotalGroupSettings()
        if type(least) is not int or least < 1:
            raise LocalProtocolError(f"least={least!r} must be a whole number, at least 1")
        if session_ns < SESSION_MS_MIN * NS_PER_MS:
            raise LocalProtocolError(
                f"session_ns={session_ns} must be at least {SESSION_MS_MIN * NS_PER_MS}: a shorter"
                " session ends whenever somebody is busy"
            )
        if trace is not None:
            trace.load()  # before the others know us
        group: Self | None = None

        def told(view: StoredView) -> None:
            if group is not None:
                group._follow(view)

        def lost() -> None:
            if group is not None:
                group._exclude("its ZooKeeper session has ended")

        views = GroupViews(
            zookeeper,
            name,
            told=told,
            lost=lost,
            least=least,
            client=ClientSettings(session_ns=session_ns),
            access=access,
        )
        try:
            async with asyncio.timeout(wait_s):
                own = await views.enter()
                host = bind or "127.0.0.1"
                group = cls._open(
                    own.process, own.incarnation, 1, host, (host, 0), settings, joining=True
                )
                group._views, group._own = views, own
                if trace is not None:
                    group._record(trace, None, hung_ns=session_ns)
                while not group.members:
                    if group._excluded is not None:
                        raise LocalProtocolError(f"not a member: {group._excluded}")
                    group._told.clear()
                    await group._told.wait()
        except BaseException as error:
            refused = None if group is None else group._port.refused
            if group is not None:
                await group._abandon()
            lacking = refused or views.lacking()
            await views.close()
            if type(error) is TimeoutError:
                raise TimeoutError(f"{lacking} after {wait_s:g} s") from None
            raise
        return group

    @classmethod
    def _open(
        cls,
        me: ProcessId,
        incarnation: int,
        members: int,
        bind: str | None,
        relay: Address,
        settings: TotalGroupSettings,
        *,
        joining: bool = False,
    ) -> Self:
        host = bind or ("127.0.0.1" if is_loopback(relay[0]) else "0.0.0.0")
        if not settings.insecure and not (is_loopback(host) and is_loopback(relay[0])):
            raise LocalProtocolError(
                f"a channel between {host} and {relay[0]} leaves this machine, and nothing encrypts"
                " or authenticates it: use 127.0.0.1, or say insecure=True"
            )
        core = TachikawaST(
            me,
            TotalSettings(
                members=members,
                delivery=settings.delivery,
                window=settings.window,
                buffers=max(settings.buffers, members),
                ack_delay_ns=100 * NS_PER_US,
                heartbeat_ns=5 * NS_PER_MS,
                heartbeat_max_ns=HEARTBEAT_MAX_NS,
                control_ns=4 * NS_PER_MS,
                nak_ns=4 * NS_PER_MS,
                guard_ns=2 * NS_PER_MS,
                fail_ns=settings.fail_ns,
            ),
            joining=joining,
        )
        limits = PackLimits(
            pack_bytes=settings.pack_bytes, queue_messages_max=settings.queue_messages_max
        )
        clock = GroupClock(origin_ns=shared_origin_ns())
        member = TotalMember(
            core, TachikawaSTCodec(), clock, limits, lambda told: group._take(told)
        )
        port = ChannelPort.open(
            (host, 0),
            me,
            incarnation,
            PortSettings(
                datagram_bytes_max=settings.datagram_bytes_max,
                multicast_interface=settings.multicast_interface,
                repeats=settings.repeats,
                receive_bytes=settings.receive_bytes,
                outages=settings.outages,
            ),
            received=member.on_pdu,
            drained=lambda: group._drained(),
            told=lambda: group._heed(),
            now=clock.now,
        )
        member.attach(port)
        group = cls(member, port, me, settings)
        return group

    def _record(self, trace: Trace, members: int | None, *, hung_ns: int | None = None) -> None:
        """Record what happens from now on; `members` of a fixed group."""
        from orderwire.participant.total_tracing import GroupTracing  # imports Arrow

        self._tracing = GroupTracing(
            trace,
            self.me,
            self._member.clock,
            members=members,
            one_clock=is_loopback(self.address[0]),
            hung_ns=hung_ns,
        )
        self._member.trace = self._tracing.trace

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ writing

    @property
    def members(self) -> tuple[ProcessId, ...]:
        """Who is in the group now."""
        return tuple(member.process for member in self._member.core.view.members)

    @property
    def view(self) -> ChangeView:
        """The view that is installed now: messages of the one before may still wait to be read."""
        return self._member.core.view

    @property
    def excluded(self) -> str | None:
        """Why this member is in its group no more; None as long as it is."""
        return self._excluded

    @property
    def address(self) -> Address:
        """Where this member receives."""
        return self._port.address

    @property
    def waiting(self) -> int:
        """How many messages wait to be sent."""
        return self._member.waiting

    @property
    def room(self) -> int:
        """How many messages `write_now` takes at least, unless they are large."""
        limits = self._member.limits
        return 0 if self._member.is_full else limits.queue_messages_max - self.waiting

    async def write(
        self, payload: bytes, destinations: Iterable[int] | Destinations | None = None
    ) -> int:
        """Send to these members, or to all, and return the message's number at this member.

        `destinations`: their ids, as in `[0, 2]`, or a mask like `message.destinations`.  Who was a
        member and has departed is passed over.

        Waits while too many wait already.  Raises LocalProtocolError for what cannot be sent, and
        once this member has left or was excluded.
        """
        await self.wait_room()
        return self.write_now(payload, destinations)

    def write_now(
        self, payload: bytes, destinations: Iterable[int] | Destinations | None = None
    ) -> int:
        """`write`, and refuse with a LocalProtocolError while too many wait: see `wait_room`."""
        self._check()
        if type(payload) is not bytes:
            if not isinstance(payload, bytes | bytearray | memoryview):
                raise LocalProtocolError(
                    f"a message is bytes, got {type(payload).__name__}: encode it"
                )
            payload = bytes(payload)
        return self._member.write(payload, self._mask(destinations))

    async def wait_room(self) -> None:
        """Wait until fewer messages wait to be sent.  Raises LocalProtocolError as `write` does."""
        self._check()
        while self._member.is_full:
            await self._member.room()
            self._check()

    def _check(self) -> None:
        if self._closed or self._excluded is not None:
            why = "" if self._excluded is None else f": {self._excluded}"
            raise LocalProtocolError(f"this member has left its group{why}")

    def _mask(self, destinations: Iterable[int] | int | None) -> int:
        if destinations is None:
            return EVERYBODY
        present = sum(1 << process for process in self.members)
        known = self._seen | present  # Who has just joined may not have been told here yet.
        mask = 0
        if isinstance(destinations, int):
            mask = destinations
            if not 0 <= mask < 1 << GROUP_SIZE_MAX:
                raise LocalProtocolError(
                    f"destinations={mask} is no mask of members: give ids, as in [0, 2]"
                )
        else:
            for process in destinations:
                if not isinstance(process, int) or not 0 <= process < GROUP_SIZE_MAX:
                    raise LocalProtocolError(
                        f"destination {process!r} is no id of a member: 0 … {GROUP_SIZE_MAX - 1}"
                    )
                mask |= 1 << process
        if not mask:
            raise LocalProtocolError("a message needs at least one destination, got none")
        if mask & ~known:
            absent = [int(process) for process in members_of(mask & ~known)]
            raise LocalProtocolError(f"{absent} are no members: {[*map(int, self.members)]} are")
        return mask & present

    async def sent(self) -> None:
        """Wait until all that was written has come to all its destinations that live.

        Raises LocalProtocolError once this member has left or was excluded.
        """
        while self._member.waiting or not self._member.core.has_sent_all:
            self._check()
            await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Wait until all that was written has come, and all that came is handed out here.

        What the application has not read yet does not count.
        """
        while not (self._member.core.is_at_rest and not self._member.waiting):
            self._check()
            await asyncio.sleep(0.002)

    # ------------------------------------------------------------------ reading

    def __aiter__(self) -> AsyncIterator[TotalMessage]:
        """Hand out the messages to this member until it leaves."""
        return self._messages()

    async def _messages(self) -> AsyncIterator[TotalMessage]:
        async for event in self.events():
            if isinstance(event, TotalMessage):
                yield event

    async def events(self) -> AsyncIterator[TotalMessage | Installed]:
        """Hand out the messages, and each view at its place among them."""
        while True:
            ready = self._ready
            while ready:
                yield ready.popleft()
            if not self._inbox:
                if self._closed or self._excluded is not None:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                continue
            told = self._inbox.popleft()
            if isinstance(told, Installed):
                yield told
            elif isinstance(told, Delivered):
                self._inbox_packs -= 1
                self._member.unread(self._inbox_packs)
                try:
                    self._ready.extend(unpack(told))
                except RemoteProtocolError:
                    self.malformed_packs += 1

    def _take(self, told: Told) -> None:
        if isinstance(told, Delivered):
            self._inbox.append(told)
            self._inbox_packs += 1
            self._member.core.unread = self._inbox_packs
        elif isinstance(told, Installed):
            self._inbox.append(told)
            for member in told.members:
                self._seen |= 1 << member.process
            if self._views is not None:
                self._views.installed(told.number)
            self._told.set()
        elif isinstance(told, Suspected):
            if self._views is not None:
                self._views.look_again()
        else:
            self._exclude(f"view {told.number} is without it")
        self._arrived.set()

    # ------------------------------------------------------------------ views

    def _follow(self, stored: StoredView) -> None:
        """Tell the core the views that are new, and turn to their relay."""
        relay = stored.relay
        for view in stored.since():
            if view.number <= self._view_number or self._excluded is not None:
                continue
            self._view_number = view.number
            if self._own in view.members:
                self._was_in = True
                if relay is not None:
                    address = split_address(relay.address)
                    if not self._settings.insecure and not is_loopback(address[0]):
                        self._exclude(f"its relay {relay.address} is beyond this machine")
                        return
                    self._port.use(address, relay.incarnation)
            elif self._was_in:
                others = tuple(m for m in view.members if m.process != self.me)
                view = ChangeView(view.number, others)
            else:
                continue
            try:
                self._member.change_view(view)
            except LocalProtocolError as error:
                self._exclude(str(error))

    def _exclude(self, why: str) -> None:
        """Stop: this process is no member any more."""
        if self._excluded is None:
            self._excluded = why
            self._member.close()
            self._told.set()
            self._arrived.set()

    def _drained(self) -> None:
        self._heard_ns = self._member.now()
        self._member.on_drained()

    # ------------------------------------------------------------------ coming and going

    async def _all_present(self, wanted: int) -> None:
        while self._port.present & wanted != wanted:
            if self._port.refused is not None:
                raise LocalProtocolError(self._port.refused)
            self._told.clear()
            await self._told.wait()

    def _absent(self, relay: str, members: int) -> str:
        """Say who is not there."""
        if self._port.relay is None:
            return f"the relay {relay} has not answered"
        absent = ((1 << members) - 1) & ~self._port.present
        return f"processes {[*map(int, members_of(absent))]} have not come to the relay {relay}"

    def _heed(self) -> None:
        """Act on what the relay has said."""
        self._told.set()
        if self._port.replaced is not None:
            self._exclude(self._port.replaced)

    async def close(self, *, wait_s: float = 5.0) -> None:
        """Leave, when what was written has come everywhere; at most after this time.

        Who leaves a fixed group waits as well until the others need no answers any more.
        Raises TraceError when the trace is incomplete.
        """
        if self._closed:
            return
        linger_ns = self._settings.linger_ns
        rested = False
        try:
            async with asyncio.timeout(wait_s):
                await self.settled()
                while (
                    self._views is None
                    and (left_ns := self._heard_ns + linger_ns - self._member.now()) > 0
                ):
                    await asyncio.sleep(left_ns / NS_PER_S)
            rested = self._member.core.is_at_rest
        except (TimeoutError, LocalProtocolError):
            pass
        self._end(rested=rested)
        if self._views is not None:
            await self._views.close()
        if self._tracing is not None:
            await self._tracing.close()

    async def _abandon(self) -> None:
        """Leave before the group has begun for us."""
        self._end()
        if self._tracing is not None:
            with contextlib.suppress(TraceError, OSError):
                await self._tracing.close()

    def _end(self, *, rested: bool = False) -> None:
        """Take no part any more; `rested`: nothing of this member or for it is under way."""
        self._closed = True
        self._member.close()
        self._port.close()
        self._arrived.set()
        if self._tracing is not None:
            self._tracing.finish(whole=rested)

    def counters(self) -> dict[str, int]:
        """Return what has happened at this member, by name."""
        member = self._member
        return {
            **self._port.counters,
            **member.counters,
            "packs": member.packs,
            "malformed PDUs": member.malformed.total(),
            "epoch": member.core.epoch[1],
        }
