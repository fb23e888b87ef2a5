"""A participant: one member of a group, with its writers and readers."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from orderwire.aio.clock import GroupClock, shared_origin_ns
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.endpoint import Endpoint, EndpointSettings
from orderwire.aio.impairment import Fates, Impairment
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.discovery.maps import EndpointData, EndpointKind
from orderwire.kernel import NS_PER_S, LocalProtocolError, ProcessId, RemoteProtocolError
from orderwire.participant.backbone import Backbone, checked
from orderwire.participant.discovering import Discovering
from orderwire.participant.domain_settings import JOIN_S, DomainSettings
from orderwire.participant.domains import Domains, Surroundings
from orderwire.participant.drops import Dropped, DropWatch
from orderwire.participant.finding import Finding
from orderwire.participant.inputs import InputRecorder
from orderwire.participant.matching import Matching
from orderwire.participant.members import Members, listed
from orderwire.participant.peers import Peer
from orderwire.participant.qos import Order
from orderwire.participant.quiet import Quiet
from orderwire.participant.reader import (
    QUEUE_SAMPLES_MAX,
    Callback,
    ErrorHandler,
    Overflow,
    Reader,
)
from orderwire.participant.reading import asked_for, check_options
from orderwire.participant.samples import Counters, add_counters
from orderwire.participant.topics import Decode, Topic
from orderwire.participant.tracing import Trace
from orderwire.participant.writer import Writer

if TYPE_CHECKING:
    from orderwire.trace.sinks import Sink

_LOG = logging.getLogger(__name__)

LINGER_S = 2.0
"""How long leaving `async with` waits for what was written to arrive, at most."""


class Participant(Finding):
    """One member of a group.  Use it as `async with Participant(…) as participant:`.

    Either the members find each other: `me` is any name, `domain` the domain's, and `bootstrap` the
    `host:port` of its server (`orderwire bootstrap`), or `seeds` those of members that are always
    there, or `zookeeper` an ensemble's `host:port,…`, with `zookeeper_access` for TLS and a user of
    it; `listen` is where discovery listens;
    `advertise` is the host, with or without a port, that others call instead, where `listen` is
    `0.0.0.0` or a container's address; `data_port` is the data sockets', else any free one; `wish`
    is the id that it would like.  Or `members` lists every member's `host:port`, and `me` is the
    name of this one in it.
    Listens only on loopback addresses unless `insecure=True`: data are not encrypted yet.
    `credentials` protect discovery by mutual TLS.

    With `gateway=Backbone(…)`, or several, this member is ready to stand for its domain there, so
    that domains learn of each other: `peers()` lists whom.  With `interest_only`, the same at all
    members, endpoints are told to those alone who match one; it pays for thousands of members.

    `on_member(name, reachable)` is called when a member can be reached, and when it no longer can:
    it left, or has been silent for `EndpointSettings.silence_s`.  `on_drop(dropped)` is called soon
    after something was dropped, with the reason and the count: every drop is told, once.  `record`
    names a folder for what the ordering cores are fed, one file a domain: `orderwire sim replay
    --inputs FILE` feeds a new core with it.  `restarted` says whether this member ran before,
    within the last Δ + ε: left out, the others tell, and until they all have it sees no readers in
    Δ-causal domains, for Δ + ε at most.
    """

    def __init__(
        self,
        me: str | int,
        *,
        members: Mapping[str, str] | Mapping[int, str] | None = None,
        domain: str | None = None,
        bootstrap: str | None = None,
        seeds: Sequence[str] = (),
        zookeeper: str | None = None,
        zookeeper_access: ZookeeperAccess | None = None,
        listen: str = "127.0.0.1:0",
        advertise: str | None = None,
        data_port: int = 0,
        wish: int | None = None,
        gateway: Backbone | Sequence[Backbone] | None = None,
        interest_only: bool = False,
        credentials: Credentials | None = None,
        join_s: float = JOIN_S,
        trace: Trace | None = None,
        record: Path | str | None = None,
        insecure: bool = False,
        restarted: bool | None = None,
        on_member: Callable[[str, bool], None] | None = None,
        on_drop: Callable[[Dropped], None] | None = None,
        impairment: Impairment | Fates | None = None,
        clock: GroupClock | None = None,
        settings: EndpointSettings | None = None,
    ) -> None:
        self._members: Members | Discovering
        self._discovery: DomainSettings | None = None
        if (members is None) == (domain is None):
            raise LocalProtocolError(
                f"participant {me!r} needs members={{'name': 'host:port', …}}, or domain='…' with"
                " bootstrap='host:port', seeds=[…] or zookeeper='host:port', one of the two"
            )
        self.id: ProcessId
        """Its number in the group; in a domain from the opening on."""
        if members is not None:
            self._members = listed(members, me, insecure=insecure)
            self.id = self._members.id_of(me)
            self.name = self._members.names[self.id]
        else:
            assert domain is not None
            self.name = str(me)
            self._discovery = DomainSettings(
                domain=domain,
                bootstrap=bootstrap,
                seeds=tuple(seeds),
                zookeeper=zookeeper,
                zookeeper_access=zookeeper_access,
                listen=listen,
                advertise=advertise,
                data_port=data_port,
                wish=wish,
                gateway=checked(gateway, domain),
                interest_only=interest_only,
                credentials=credentials,
                insecure=insecure,
                join_s=join_s,
            )
        self._trace = trace
        self._impairment = impairment
        self._clock = clock
        self._settings = settings
        self._endpoint: Endpoint | None = None
        self._matching: Matching | None = None
        self._quiet: Quiet | None = None
        self._restarted = restarted
        self._on_member = on_member
        self._on_drop = on_drop
        self._drops: DropWatch | None = None
        self._record = record
        self._inputs: InputRecorder | None = None
        self._domains: Domains | None = None
        self._zookeeper = zookeeper
        self._zookeeper_access = zookeeper_access
        self._insecure = insecure
        self._writers: list[Writer] = []
        self._readers: list[Reader] = []
        self._closed = False
        self._lost_id = ""
        self._losing: list[asyncio.Future[None]] = []
        self._reached: dict[ProcessId, str] = {}
        """What those are called that can be reached."""
        self._sink: Sink | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self.malformed = 0
        """Control messages that were the fault of a peer."""

    # Life.

    async def __aenter__(self) -> Self:
        if self._endpoint is not None or self._closed:
            raise LocalProtocolError(
                f"participant {self.name!r} has been opened before: make a new one"
            )
        if self._trace is not None:
            self._trace.load()  # before the others know us
        discovering = None
        if self._discovery is not None:
            discovering = self._members = Discovering(
                self.name,
                self._discovery,
                found=self._found,
                lost=self._lost,
                failed=self._failed,
                traced=self._trace is not None,
            )
            await discovering.open()
            assert discovering.id is not None
            self.id = discovering.id
        # Peers are added once callbacks are set, so that no message of theirs is missed.
        origin_ns = shared_origin_ns() if self._members.on_one_machine else None
        try:
            endpoint = await Endpoint.open(
                self.id,
                {self.id: self._members.address_of(self.id)},
                clock=self._clock or GroupClock(origin_ns=origin_ns),
                settings=self._settings,
                impairment=self._impairment,
            )
        except BaseException:
            if discovering is not None:
                await discovering.close()
            raise
        try:
            # Control messages of the first peers come while the others are being added.
            matching = Matching(
                self.id, self._members.names, self._members.group, endpoint.send_control
            )
            self._matching = matching
            self._quiet = Quiet(endpoint, matching, self._restarted)
            endpoint.on_connected(self._connected)
            endpoint.on_disconnected(self._disconnected)
            endpoint.on_control(self._control)
            if isinstance(self._members, Members):
                for peer, address in sorted(self._members.addresses.items()):
                    if peer != self.id:
                        await endpoint.add_peer(peer, address)
            if self._record is not None:
                self._inputs = InputRecorder(self._record, self.name)
            if self._trace is not None:
                self._sink = self._trace.open(self.name)
                if discovering is not None:
                    slack_ns = self._trace.timer_slack_ns
                    discovering.trace(
                        self._trace.run, self._sink, endpoint.clock, timer_slack_ns=slack_ns
                    )
        except BaseException:
            await endpoint.close()
            if discovering is not None:
                await discovering.close()
            raise
        self._endpoint = endpoint
        self._domains = domains = Domains(
            Surroundings(
                me=self.id,
                name=self.name,
                members=self._members,
                endpoint=endpoint,
                matching=matching,
                quiet=self._quiet,
                inputs=self._inputs,
                trace=self._trace,
                sink=self._sink,
                zookeeper=self._zookeeper,
                access=self._zookeeper_access,
                insecure=self._insecure,
                out=self._tell_lost,
            )
        )
        if discovering is not None:
            matching.on_offers = self._offer
            discovering.tell_address(endpoint.address)
        if self._trace is not None:
            self._arm_flush()
        if self._on_drop is not None:
            self._drops = DropWatch(self._on_drop, domains.__iter__, self._readers)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(linger_s=LINGER_S if error is None else 0.0)

    async def close(self, *, linger_s: float = LINGER_S) -> None:
        """Close writers and readers, wait for what is under way, and leave.

        Waits at most `linger_s` seconds for written messages to arrive and for callbacks to get
        what was delivered.  Raises TraceError when the trace is incomplete, OSError when the
        recorded inputs are.
        """
        endpoint = self._endpoint
        if endpoint is None or self._closed:
            return
        self._closed = True
        async with contextlib.AsyncExitStack() as last:
            # Each step happens even if one before it fails; these run from the last to the first.
            if self._sink is not None and self._trace is not None and self._trace.sink is None:
                last.push_async_callback(asyncio.to_thread, self._sink.close)
            if self._inputs is not None:
                last.callback(self._inputs.close)
            if self._drops is not None:
                last.callback(self._drops.close)
            last.push_async_callback(endpoint.close)
            if isinstance(self._members, Discovering):
                last.push_async_callback(self._members.close)
            if self._quiet is not None:
                last.callback(self._quiet.close)
            if self._domains is not None:
                last.push_async_callback(self._domains.close, linger_s)
            if self._flush_timer is not None:
                last.callback(self._flush_timer.cancel)
            for reader in self._readers:
                last.callback(reader.abandon)
            await self._linger(linger_s)

    async def _linger(self, linger_s: float) -> None:
        """Let what is under way arrive and be handed over, for so long at most."""
        try:
            async with asyncio.timeout(linger_s):
                if self._domains is not None:
                    await self._domains.settle()
        except TimeoutError:
            _LOG.warning(
                "%s leaves %g s after the last write, and not all that it wrote has been confirmed:"
                " await flush() before",
                self.name,
                linger_s,
            )
        for writer in self._writers:
            writer.close()
        for reader in self._readers:
            reader.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(linger_s):
                for reader in self._readers:
                    await reader.stopped()

    # Topics.

    def writer(self, topic: Topic) -> Writer:
        """Return a new writer of this topic.  Raises LocalProtocolError."""
        if not isinstance(topic, Topic):
            raise LocalProtocolError(
                f"writer({topic!r}): a writer needs a Topic('name', order=…), which says the order"
            )
        writer = Writer(self._opened_domains().of(topic.order), topic)
        self._writers = [each for each in self._writers if not each.closed] + [writer]
        return writer

    def reader(
        self,
        pattern: Topic | str,
        *,
        order: Order | None = None,
        decode: Decode | None = None,
        callback: Callback | None = None,
        on_error: ErrorHandler | None = None,
        in_thread: bool = False,
        own: bool = True,
        queue_samples_max: int = QUEUE_SAMPLES_MAX,
        overflow: Overflow | None = None,
    ) -> Reader:
        """Return a new reader of a topic, or of all topics of one order that match a pattern.

        A pattern such as `chat/*` (one level) or `chat/**` (any) needs `order`.  With `callback`, a
        function or a coroutine function, samples go there, one after the other: in the loop, or in
        a thread of its own with `in_thread`, for functions that block.  What it raises goes to
        `on_error(error, sample)`, or to the log.  `own=False` leaves out what this participant
        writes.  At most `queue_samples_max` samples wait; `overflow` says which one is dropped
        then: the oldest, and none with `SelectiveTotal`, where writers wait instead.
        Raises LocalProtocolError.
        """
        asked = asked_for(pattern, order, decode)
        overflow = check_options(callback, on_error, asked, overflow, queue_samples_max, in_thread)
        domain = self._opened_domains().of(asked.order)
        reader = Reader(
            domain,
            asked.pattern,
            decode=asked.decode,
            callback=callback,
            on_error=on_error,
            in_thread=in_thread,
            own=own,
            queue_samples_max=queue_samples_max,
            overflow=overflow,
        )
        self._forget_finished()
        self._readers.append(reader)
        domain.add_reader(reader)
        return reader

    def _forget_finished(self) -> None:
        """Let go of closed readers that have nothing left to hand over."""
        if any(reader.finished for reader in self._readers):
            if self._drops is not None:
                self._drops.look()
            self._readers[:] = [reader for reader in self._readers if not reader.finished]

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every copy written so far has come to its member, or can no longer.

        Raises TimeoutError, and LocalProtocolError outside of `async with`.
        """
        domains = self._opened_domains()
        async with asyncio.timeout(timeout_s):
            await domains.sent()

    async def drain(self, timeout_s: float | None = None) -> None:
        """`flush`, then wait until all readers have handed over what was delivered.

        What was dropped until then has been told to `on_drop`.
        Raises TimeoutError, for instance when nobody iterates over a reader.
        """
        async with asyncio.timeout(timeout_s):
            await self.flush()
            for reader in list(self._readers):
                await reader.drain()
        if self._drops is not None:
            self._drops.look()

    def trace_gone(self, member: ProcessId) -> None:
        """Write into the trace that the member with this id was killed, which it cannot say itself.

        Whoever knows should: an audit counts the trace of a member that is gone as whole, as far as
        it goes.  Raises LocalProtocolError without a trace, and in a listed group.
        """
        self._opened()
        if self._trace is None:
            raise LocalProtocolError(f"{self.name!r} has no trace to write in: give it trace=…")
        self._domain_of_others().trace_gone(member)
        for domain in self._opened_domains():
            domain.trace_gone(member)

    async def lost(self) -> None:
        """Wait for as long as this member has its place in the domain, and in its groups.

        Raises LocalProtocolError when another has taken its id: it neither sends nor receives any
        more, and a new participant must be made.  Decision 0018.  And when it did not get into a
        group of `SelectiveTotal` or was excluded from it: new writers and readers enter it again.
        """
        for domain in self._opened_domains():
            if domain.lost:
                raise LocalProtocolError(domain.lost)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._losing.append(waiter)
        try:
            await waiter
        finally:
            self._losing.remove(waiter)

    # What is known.

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all members that are there, in the order of their ids."""
        self._opened()
        return tuple(self._members.present.values())

    def is_connected(self, peer: ProcessId) -> bool:
        """Whether data can be exchanged with this member now."""
        return self._opened().is_connected(peer)

    @property
    def connected(self) -> tuple[str, ...]:
        """Names of the members that can be reached now."""
        endpoint = self._opened()
        return tuple(
            name
            for at, name in self._members.present.items()
            if at != self.id and endpoint.is_connected(at)
        )

    @property
    def counters(self) -> Counters:
        """What was counted in all ordering domains together."""
        total = Counters()
        for domain in self._domains or ():
            add_counters(total, domain.counters)
        total.malformed += self.malformed
        return total

    def counters_of(self, order: Order) -> Counters:
        """Return what was counted in one ordering domain."""
        domain = None if self._domains is None else self._domains.get(order.key)
        return Counters() if domain is None else domain.counters

    @property
    def control_bytes(self) -> int:
        """Encoded control information of all that was written, in bytes."""
        return self.counters.control_bytes

    # Inside.

    def _opened(self) -> Endpoint:
        if self._endpoint is None:
            raise LocalProtocolError(
                f"participant {self.name!r} is not open: use it inside of"
                " `async with Participant(…) as participant:`"
            )
        if self._closed:
            raise LocalProtocolError(f"participant {self.name!r} is closed: make a new one")
        if self._lost_id:
            raise LocalProtocolError(self._lost_id)
        return self._endpoint

    def _opened_domains(self) -> Domains:
        self._opened()
        assert self._domains is not None
        return self._domains

    def _found(self, peer: Peer) -> None:
        if self._endpoint is not None and not self._closed and not self._lost_id:
            assert peer.address is not None
            self._endpoint.add_peer_at(peer.id, peer.address)

    def _lost(self, peer: ProcessId) -> None:
        if self._endpoint is not None and not self._closed:
            assert self._matching is not None
            self._matching.forget(peer)
            self._endpoint.remove_peer(peer)

    def _failed(self, why: str) -> None:
        """Fall silent at once: what we said now under our number would be another's word."""
        self._lost_id = why
        _LOG.error("%s", why)
        if self._endpoint is not None and not self._closed:
            for peer in self._endpoint.peers:
                self._lost(peer)
        for writer in self._writers:
            writer.lose(why)
        for reader in list(self._readers):
            reader.lose(why)
        self._tell_lost(why)

    def _tell_lost(self, why: str) -> None:
        for waiter in self._losing:
            if not waiter.done():
                waiter.set_exception(LocalProtocolError(why))

    def _offer(self) -> None:
        if not self._closed and not self._lost_id:
            assert self._matching is not None
            self._domain_of_others().offer(
                [
                    EndpointData(
                        key,
                        EndpointKind.READER if reads else EndpointKind.WRITER,
                        name,
                        qos=(("order", order),),
                    )
                    for key, reads, name, order in self._matching.offers()
                ]
            )

    def _connected(self, peer: ProcessId) -> None:
        assert self._matching is not None
        assert self._quiet is not None
        self._matching.connected(peer)
        self._quiet.met()
        self._tell_member(peer, True)

    def _disconnected(self, peer: ProcessId) -> None:
        assert self._matching is not None
        self._matching.disconnected(peer)
        self._tell_member(peer, False)

    def _tell_member(self, peer: ProcessId, reachable: bool) -> None:
        name = self._members.names[peer]
        if reachable:
            self._reached[peer] = name
        else:  # Its id may be another's by now.
            name = self._reached.pop(peer, name)
        if self._on_member is not None:
            try:
                self._on_member(name, reachable)
            except Exception:
                _LOG.exception("on_member(%r, %s) failed", name, reachable)

    def _control(self, peer: ProcessId, data: memoryview) -> None:
        assert self._matching is not None
        try:
            self._matching.control(peer, data)
        except RemoteProtocolError as error:
            self.malformed += 1
            _LOG.error("control message of %s: %s", self._members.names[peer], error)

    def _arm_flush(self) -> None:
        assert self._trace is not None
        self._flush_timer = asyncio.get_running_loop().call_later(
            self._trace.flush_interval_ns / NS_PER_S, self._flush_traces
        )

    def _flush_traces(self) -> None:
        if self._domains is not None:
            self._domains.flush_traces()
        self._arm_flush()
