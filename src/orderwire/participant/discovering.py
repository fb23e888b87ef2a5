"""A group whose members find each other: ids, addresses and endpoints come from discovery.

A member's id in the group is its id in the discovery domain, so the group is as large as the
domain's id space.  Its MAP names the address of its data sockets and lists its writers and readers;
two members connect when one of them reads what the other writes.  Which topic has which number is
agreed on the data streams, as in a group by address list.  Decision 0018.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from orderwire.aio.addresses import is_loopback, split_address
from orderwire.aio.clock import GroupClock
from orderwire.aio.discovery_faults import Fault
from orderwire.aio.discovery_host import DiscoveryHost, monotonic_now
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.aio.endpoint import Address
from orderwire.discovery.commands import (
    Change,
    Command,
    End,
    Ended,
    Gone,
    Granted,
    IdWanted,
    Joined,
    Learnt,
    Meet,
    Refused,
    Start,
    Unreachable,
)
from orderwire.discovery.domains import GATEWAY_PROPERTY
from orderwire.discovery.entrance import Entrance, OutsideEntrance, SeedEntrance, ServerEntrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.gateway import ForeignChanged
from orderwire.discovery.interest import InterestNode, Listed, Unreadable
from orderwire.discovery.map_codec import CompactMaps, encode_map
from orderwire.discovery.maps import EndpointData, Map, ParticipantData
from orderwire.discovery.messages import MapRecord
from orderwire.kernel import (
    GROUP_SIZE_MAX,
    NS_PER_S,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
)
from orderwire.participant.backbone import Backbones
from orderwire.participant.discovery_trace import (
    DiscoveryJournal,
    DiscoveryRecorder,
    run_settings,
)
from orderwire.participant.domain_settings import DomainSettings, called
from orderwire.participant.foreign import Foreigners
from orderwire.participant.kinds import Kinds
from orderwire.participant.peers import (
    DATA,
    Concern,
    Offers,
    Peer,
    entrance_text,
    means,
    read_peer,
    read_summary,
)
from orderwire.participant.samples import DiscoveryCounters
from orderwire.participant.settling import settle_id

if TYPE_CHECKING:
    from orderwire.aio.discovery_zookeeper import ZookeeperBootstrap
    from orderwire.trace.sinks import Sink

_LOG = logging.getLogger(__name__)

LOOK_PAUSES = 4
"""Looking at MAPs again for our own changes takes no more than a fifth of the time."""
CHANGE_PAUSE_S = 0.005
"""Changes of our endpoints within this time are told as one."""


class Discovering:
    """One member's part in its domain.

    `found(peer)` is called when a member is there whose data we share, or has moved; `lost(id)`
    when it has gone or shares nothing with us any more; `failed(why)` when our id was taken, or the
    domain is another kind than ours.
    """

    def __init__(
        self,
        name: str,
        settings: DomainSettings,
        *,
        found: Callable[[Peer], None],
        lost: Callable[[ProcessId], None],
        failed: Callable[[str], None],
        traced: bool = False,
    ) -> None:
        """`traced` keeps what happens until `trace` says where it is recorded."""
        self._name = name
        self._settings = settings
        self._found = found
        self._lost = lost
        self._failed = failed
        self._traced = traced
        self._recorder: DiscoveryRecorder | None = None
        self._journal: DiscoveryJournal | None = None
        self._guid = uuid.uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._host: DiscoveryHost[Command, Any] | None = None
        self._core: FdpNode | None = None
        self._zookeeper: ZookeeperBootstrap | None = None
        self.backbones: Backbones | None = None
        """If we are ready to be a gateway."""
        self.foreign = Foreigners()
        self._joined: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._fell_out = False
        """Our id is another's, and we have left."""
        self._leaving: asyncio.Task[None] | None = None
        self._refused = ""
        self.id: ProcessId | None = None
        self.inc = 0
        self.names: list[str] = []
        """By id; those that are not there have a number."""
        self.peers: dict[ProcessId, Peer] = {}
        self._shared: set[ProcessId] = set()
        """Members that we were told to share data with."""
        self._endpoints: tuple[EndpointData, ...] = ()
        self.offers = Offers(())
        """What we write and read."""
        self._concern = Concern(self.offers)
        self._looking: asyncio.TimerHandle | None = None
        self._look_pause_s = CHANGE_PAUSE_S
        self._address: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.malformed = 0
        """MAPs that could not be read."""
        self._kinds = Kinds(
            f"in domain {settings.domain!r} {name!r}",
            interest_only=settings.interest_only,
            incarnations=self._incarnations,
            wrong=self._fall_out,
        )

    # -- life -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Join the domain; `id` is set then.  Raises TimeoutError, LocalProtocolError, OSError."""
        settings = self._settings
        bootstrap = None if settings.bootstrap is None else await called(settings.bootstrap)
        seeds = tuple([await called(each) for each in settings.seeds])
        transport = await DiscoveryTransport.open(
            settings.listen,
            domain=settings.domain,
            credentials=settings.credentials,
            advertise=settings.advertise,
            insecure=settings.insecure,
        )
        try:
            if ":" in split_address(transport.address)[0]:
                raise LocalProtocolError(
                    f"advertise={settings.advertise!r} is {transport.address}: data go over IPv4"
                    " alone"
                )
            if settings.gateway:
                self.backbones = await Backbones.open(settings.gateway, settings.discovery)
            host = self._begin(transport, bootstrap, seeds)
        except BaseException:
            if self.backbones is not None:
                await self.backbones.close()
            await transport.close()
            raise
        try:
            if self._zookeeper is not None:
                await self._zookeeper.open()
            host.submit(Start(map=self._own_map()))
            async with asyncio.timeout(settings.join_s):
                await self._joined
                if settings.seeds:
                    assert self._core is not None
                    await settle_id(self._core)
        except TimeoutError:
            await self._abandon()
            where = settings.bootstrap or settings.zookeeper or ", ".join(settings.seeds)
            if self._zookeeper is not None and self._zookeeper.trouble is not None:
                self._refused = self._zookeeper.trouble
            why = self._refused or "there was no answer"
            if not self._refused and transport.last_failure:
                why += f", {transport.last_failure}"
            if not self._refused and settings.advertise is not None:
                why += f"; others must see what we send come from {transport.address}'s host"
            raise TimeoutError(
                f"{self._name!r} has not joined domain {settings.domain!r} through {where} within"
                f" {settings.join_s} s: {why}"
            ) from None
        except BaseException:
            await self._abandon()
            raise
        core = self._core
        assert core is not None
        assert core.id is not None
        self.id = ProcessId(core.id)
        self.inc = core.roster.inc

    def _begin(
        self, transport: DiscoveryTransport, bootstrap: str | None, seeds: tuple[str, ...]
    ) -> DiscoveryHost[Command, Any]:
        """Put a core on this transport.  Raises LocalProtocolError."""
        settings = self._settings
        chance = Random(self._guid)
        entrance = self._entrance(transport.address, bootstrap, seeds, chance)
        member = transport.address, entrance, settings.discovery, chance
        node: FdpNode | InterestNode
        if settings.interest_only:
            node = InterestNode(*member, matches=means)
            core = self._core = node.fdp
        else:
            node = core = self._core = FdpNode(*member, CompactMaps())
        self.foreign.call_from(transport.source)
        if settings.zookeeper is not None:
            from orderwire.aio.discovery_zookeeper import ZookeeperBootstrap  # kazoo takes a while

            self._zookeeper = ZookeeperBootstrap(
                settings.zookeeper,
                settings.domain,
                transport.address,
                self._submit,
                id_space=settings.group_size,
                wish=settings.wish,
                access=settings.zookeeper_access,
            )
        host: DiscoveryHost[Command, Any]
        if self.backbones is not None:
            way = entrance_text(bootstrap, seeds, settings.zookeeper)
            gateway = self.backbones.gateway(settings.domain, way, core, means)
            host = self.backbones.host(gateway, transport, self._tell)
        else:
            host = DiscoveryHost(
                node,
                transport,
                self._tell,
                unreachable=lambda address: Unreachable(address=address),
            )
        self._host = host
        if self._traced:
            host.record = self._recorder = DiscoveryRecorder(core, host.now)
        return host

    def _entrance(
        self, address: str, bootstrap: str | None, seeds: tuple[str, ...], chance: Random
    ) -> Entrance:
        settings = self._settings
        if bootstrap is not None:
            return ServerEntrance(
                self._guid, address, bootstrap, settings.discovery, wish=settings.wish
            )
        if settings.zookeeper is not None:
            return OutsideEntrance()
        return SeedEntrance(
            self._guid,
            address,
            seeds,
            settings.discovery,
            chance,
            started_ms=time.time_ns() // 1_000_000,
            id_space=settings.group_size,
        )

    def _be_still(self) -> None:
        """Do nothing more of our own accord."""
        self.foreign.close()
        self._kinds.close()
        for timer in (self._looking, self._timer):
            if timer is not None:
                timer.cancel()

    async def _abandon(self) -> None:
        """Close without a goodbye."""
        self._be_still()
        if self._zookeeper is not None:
            await self._zookeeper.close()
        assert self._host is not None
        await self._host.close()

    async def close(self) -> None:
        """Say goodbye and close."""
        self._be_still()
        host = self._host
        if host is None:
            return
        if self._zookeeper is not None:
            await self._zookeeper.close()  # first, so that newcomers do not hear of us
        if self._recorder is not None:
            self._recorder.leaving(host.now)
        try:
            host.submit(End())
            async with asyncio.timeout(self._settings.discovery.leave_ns / NS_PER_S + 1):
                await self._gone.wait()
        except (TimeoutError, LocalProtocolError):
            _LOG.debug("%s left without an answer", self._name)
        await host.close()
        if self._journal is not None:
            self._journal.close(host.now)

    def trace(self, run: str, sink: "Sink", clock: GroupClock, *, timer_slack_ns: int) -> None:
        """Record in this sink what has happened and will happen, as the run `RUN/discovery`."""
        host, core, recorder = self._host, self._core, self._recorder
        assert host is not None
        assert core is not None
        assert recorder is not None
        assert self.id is not None
        settings = run_settings(
            self._settings.discovery,
            members=core.roster.id_space,
            one_machine=self.on_one_machine,
            timer_slack_ns=timer_slack_ns,
        )
        ahead_ns = clock.now() - monotonic_now()
        self._journal = DiscoveryJournal(run, sink, settings, ahead_ns, recorder)
        self._journal.begin(self.id, recorder.began)
        self._journal.flush()

    def trace_gone(self, member: ProcessId) -> None:
        """Record that this member was killed: it cannot say so itself."""
        if self._journal is not None:
            assert self._host is not None
            self._journal.gone(self._host.now, member)

    def flush_trace(self) -> None:
        """Hand the events that wait to the sink."""
        if self._journal is not None:
            self._journal.flush()

    @property
    def listens(self) -> str:
        """Where others reach this member's discovery."""
        assert self._host is not None
        return self._host.address

    def counters(self, data_strangers: int) -> DiscoveryCounters:
        """Return what was counted so far."""
        assert self._host is not None
        hosts = self._host.hosts
        faults, refusals = Counter[Fault](), Counter[str]()
        for each in hosts:
            faults.update(each.transport.faults)
            refusals.update(each.transport.refusals)
        malformed = self.malformed + self.foreign.malformed
        malformed += 0 if self._zookeeper is None else self._zookeeper.malformed
        malformed += 0 if self.backbones is None else self.backbones.malformed
        return DiscoveryCounters(
            sent=sum(each.posted.total() for each in hosts),
            received=sum(each.received.total() for each in hosts),
            unsent=sum(each.transport.dropped.total() for each in hosts),
            malformed=sum(each.malformed.total() for each in hosts) + malformed,
            refused={str(fault): count for fault, count in faults.items()},
            refused_hosts=dict(refusals),
            dropped={} if self._core is None else self._core.dropped,
            data_strangers=data_strangers,
        )

    @property
    def on_one_machine(self) -> bool:
        """Whether only members of this machine can be reached."""
        return is_loopback(split_address(self.listens)[0])

    @property
    def endpoints(self) -> tuple[EndpointData, ...]:
        """What we write and read."""
        return self._endpoints

    @property
    def present(self) -> dict[ProcessId, str]:
        """Names of the members that are there, by id."""
        assert self.id is not None
        there = {self.id: self._name} | {at: peer.name for at, peer in self.peers.items()}
        return dict(sorted(there.items()))

    @property
    def group(self) -> str:
        """What must be the same at all members."""
        return self._settings.domain

    def address_of(self, member: ProcessId) -> Address:
        """Return where our data sockets are to be: on the host that discovery calls from."""
        assert member == self.id, f"{member} is another member"
        assert self._host is not None
        return self._host.transport.source, self._settings.data_port

    # -- what we offer ----------------------------------------------------------------------

    def tell_address(self, address: Address) -> None:
        """Say at which port our data sockets are: the others may connect from now on."""
        self._address = f"{split_address(self.listens)[0]}:{address[1]}"
        self._change()

    def offer(self, endpoints: Sequence[EndpointData]) -> None:
        """Say what we write and read, all of it."""
        self._endpoints = tuple(endpoints)
        self.offers = Offers(endpoints)
        self._concern = Concern(self.offers)
        self.foreign.offer(self.offers)
        for peer in list(self.peers.values()):
            self._consider(peer)
        if self._looking is None:
            self._looking = self._loop.call_later(self._look_pause_s, self._look_again)
        if self._timer is None:
            self._timer = self._loop.call_later(CHANGE_PAUSE_S, self._change)

    def _own_map(self) -> bytes:
        addresses = () if self._address is None else ((DATA, self._address),)
        properties = ((GATEWAY_PROPERTY, "willing"),) if self._settings.gateway else ()
        data = ParticipantData(self._guid, self._name, addresses, properties)
        return encode_map(Map.of(data, self._endpoints))

    def _change(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._host is not None and not (self._gone.is_set() or self._fell_out):
            self._host.submit(Change(map=self._own_map()))
            if self._recorder is not None:
                self._recorder.changed(self._host.now)

    # -- what the others offer --------------------------------------------------------------

    def _tell(self, indication: object) -> None:
        if self._recorder is not None:
            assert self._host is not None
            self._record(self._recorder, indication, self._host.now)
        if isinstance(indication, Joined):
            self._adopted(indication)
        elif isinstance(indication, Learnt):
            self._learn(indication.id, indication.inc, indication.addr, indication.map)
        elif isinstance(indication, Listed):
            self._list(indication)
        elif isinstance(indication, Unreadable):
            self._unreadable(indication.id, indication.inc, indication.map)
        elif isinstance(indication, Ended):
            self._forget(ProcessId(indication.id), indication.inc)
        elif isinstance(indication, IdWanted):
            assert self._zookeeper is not None
            self._zookeeper.wanted(indication)
        elif isinstance(indication, Refused):
            self._was_refused(indication)
        elif isinstance(indication, Gone):
            self._gone.set()
        elif isinstance(indication, ForeignChanged):
            self.foreign.tell(None, indication.entries)
        elif self.backbones is not None:
            self.backbones.note(indication)

    def _record(self, recorder: DiscoveryRecorder, indication: object, now: int) -> None:
        if isinstance(indication, Joined) and self._journal is not None:
            self._journal.begin(indication.id, now)  # it has lost its id: another participant
        if isinstance(indication, ForeignChanged):
            recorder.changed(now)  # they are a part of our MAP
        elif isinstance(indication, Listed):
            recorder.learnt(now, indication.id, indication.inc, indication.ver)
        elif not (self._settings.interest_only and isinstance(indication, Learnt)):
            recorder.told(now, indication)  # details are no MAP's version

    def _was_refused(self, refused: Refused) -> None:
        """Keep why, and say it when joining takes long for that."""
        before = self._refused
        self._refused = (
            "its server has been started again and learns who is there"
            if refused.recovering
            else f"it is full: all {refused.limit} ids are held"
        )
        if self._refused != before:
            _LOG.warning(
                "%s waits for an id in domain %r: %s; the next attempt is in %.1f s",
                self._name,
                self._settings.domain,
                self._refused,
                refused.retry_ms / 1_000,
            )

    def _submit(self, command: Granted | Meet) -> None:
        assert self._host is not None
        self._host.submit(command)

    def _adopted(self, joined: Joined) -> None:
        assert self._core is not None
        if self.id is not None:  # our data streams are known by an id that is another's
            self._fall_out(
                f"another participant has taken the id {self.id} of {self._name!r} in domain"
                f" {self._settings.domain!r}: make a new one"
            )
            return
        size = self._core.roster.id_space
        if size > GROUP_SIZE_MAX:
            if not self._joined.done():
                self._joined.set_exception(
                    LocalProtocolError(
                        f"domain {self._settings.domain!r} has {size} ids; groups have at most"
                        f" {GROUP_SIZE_MAX} members: start its server with --id-space"
                    )
                )
            return
        self.names = [f"#{each}" for each in range(size)]
        for identity, peer in self.peers.items():  # Known before we lost an id that was drawn.
            self.names[identity] = peer.name
        self.names[joined.id] = self._name
        if not self._joined.done():
            self._joined.set_result(None)

    def _fall_out(self, why: str) -> None:
        """Leave, since we cannot take part any more."""
        if self._fell_out:
            return
        self._fell_out = True
        self._failed(why)
        assert self._host is not None
        self._host.submit(End())
        if self._zookeeper is not None:
            self._leaving = self._loop.create_task(self._zookeeper.close())

    def _learn(self, identity: int, inc: int, listens: str, record: MapRecord) -> None:
        try:
            self._take(
                read_peer(
                    ProcessId(identity), inc, record, listens, self._settings.domain, self._concern
                )
            )
        except (RemoteProtocolError, LocalProtocolError) as error:
            _LOG.debug("MAP of %s at %s: %s", identity, listens, error)
            self._unreadable(identity, inc, record)

    def _list(self, listed: Listed) -> None:
        """Take a summary: its endpoints are told when some match."""
        before = self.peers.get(ProcessId(listed.id))
        known = before.map.endpoints if before is not None and before.inc == listed.inc else ()
        try:
            self._take(read_summary(listed, known, self._settings.domain))
        except RemoteProtocolError as error:
            self.malformed += 1
            _LOG.warning("summary of %s at %s: %s", listed.id, listed.addr, error)

    def _take(self, peer: Peer) -> None:
        """Know this member."""
        before = self.peers.get(peer.id)
        if before is not None and (before.inc, before.address) != (peer.inc, peer.address):
            self._part(peer.id)
        self.peers[peer.id] = peer
        self.names[peer.id] = peer.name
        self.foreign.tell(peer.id, peer.known.foreign)
        self._consider(peer)

    def _look_again(self) -> None:
        """Read of all MAPs what matters to our endpoints as they are now."""
        self._looking = None
        began = self._loop.time()
        for peer in list(self.peers.values()):
            if peer.record is not None:
                self._learn(peer.id, peer.inc, peer.listens, peer.record)
        self._look_pause_s = max(CHANGE_PAUSE_S, LOOK_PAUSES * (self._loop.time() - began))

    def _unreadable(self, identity: int, inc: int, record: MapRecord) -> None:
        """Count a MAP that could not be read."""
        self.malformed += 1
        if not self._kinds.met(identity, inc, record):
            _LOG.warning("the MAP of %s is malformed", identity)

    def _incarnations(self) -> list[int]:
        """Return ours and those of the members that we can read."""
        assert self._core is not None
        return [self._core.roster.inc, *(peer.inc for peer in self.peers.values())]

    def _consider(self, peer: Peer) -> None:
        """Share data with this member, or no longer."""
        shares = peer.address is not None and peer.offers.meets(self.offers)
        if shares and peer.id not in self._shared:
            self._shared.add(peer.id)
            self._found(peer)
        elif not shares:
            self._part(peer.id)

    def _forget(self, identity: ProcessId, inc: int) -> None:
        self._kinds.gone(identity, inc)
        peer = self.peers.get(identity)
        if peer is not None and peer.inc == inc:
            del self.peers[identity]
            self.foreign.tell(identity, ())
            self._part(identity)

    def _part(self, identity: ProcessId) -> None:
        if identity in self._shared:
            self._shared.discard(identity)
            self._lost(identity)
