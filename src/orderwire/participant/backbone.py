"""What a participant needs to be a gateway: its backbones, each with a transport of its own."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any, Self

import msgspec

from orderwire.aio.addresses import resolved
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.aio.gateway_host import GatewayHost
from orderwire.discovery.commands import Refused
from orderwire.discovery.effects import Address
from orderwire.discovery.entrance import Entrance, SeedEntrance, ServerEntrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.gateway import Gateway, GatewaySettings, OnBackbone, RoleChanged
from orderwire.discovery.settings import DiscoverySettings
from orderwire.discovery.summaries import CompactSummaries, Matches
from orderwire.kernel import NS_PER_MS, LocalProtocolError

_LOG = logging.getLogger(__name__)

STEP_IN_NS = 2_500 * NS_PER_MS
"""How long a new gateway may take from its domain's wish to the first answer it gets and gives."""
JOIN_WARN_S = 10.0
"""A gateway that has no id on a backbone after so long says so."""


class Backbone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A domain of gateways, and how this one enters it.  Raises LocalProtocolError.

    Every domain that has gateways on it learns of what it may match in the others.
    """

    domain: str
    """The backbone's name: another one than those of the domains that it joins."""
    bootstrap: str | None = None
    """`host:port` of its bootstrap server."""
    seeds: tuple[str, ...] = ()
    """In place of a server, `listen` of all that may be gateways, of some domains at least."""
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    """`host:port` where others reach it, if it is not `listen`."""
    credentials: Credentials | None = None
    """The backbone's, which need not be the home domain's."""
    insecure: bool = False

    def __post_init__(self) -> None:
        if bool(self.bootstrap) == bool(self.seeds):
            raise LocalProtocolError(
                f"backbone {self.domain!r} needs bootstrap='host:port' or seeds=['host:port', …],"
                " one of the two"
            )


def checked(gateway: Backbone | Sequence[Backbone] | None, home: str) -> tuple[Backbone, ...]:
    """Return the backbones of a participant of this domain.  Raises LocalProtocolError."""
    if gateway is None:
        return ()
    backbones = (gateway,) if isinstance(gateway, Backbone) else tuple(gateway)
    names = [home]
    for each in backbones:
        if not isinstance(each, Backbone):
            raise LocalProtocolError(
                f"gateway={each!r} must be Backbone(domain='…', bootstrap='host:port')"
            )
        if each.domain in names:
            raise LocalProtocolError(
                f"backbone {each.domain!r} of a gateway of domain {home!r} is there already: a"
                " backbone is a domain of its own, and each is joined once"
            )
        names.append(each.domain)
    return backbones


class GatewayState(msgspec.Struct, frozen=True):
    """How far a participant that is willing to be a gateway has come."""

    acting: bool
    """Whether it is one now: of the willing that are there, those with the lowest ids are."""
    listens: dict[str, Address]
    """Where others reach it, by backbone."""
    ids: dict[str, int | None]
    """Its id on each backbone while it is a gateway; None where it has none yet."""
    domains: tuple[str, ...]
    """Other domains that have a gateway on one of them."""


class Backbones:
    """The transports of a gateway's backbones, open, and what it becomes there."""

    def __init__(
        self,
        settings: DiscoverySettings,
        transports: dict[str, DiscoveryTransport],
        entrances: "dict[str, Callable[[str], Entrance]]",
    ) -> None:
        self._settings = settings
        self._transports = transports
        self._entrances = entrances
        self._gateway: Gateway | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, backbones: Sequence[Backbone], settings: DiscoverySettings) -> Self:
        """Bind an address for each.  Raises LocalProtocolError, OSError."""
        transports: dict[str, DiscoveryTransport] = {}
        entrances: dict[str, Callable[[str], Entrance]] = {}
        async with AsyncExitStack() as opened:
            for each in backbones:
                server = None if each.bootstrap is None else await resolved(each.bootstrap)
                seeds = tuple([await resolved(seed) for seed in each.seeds])
                transport = await DiscoveryTransport.open(
                    each.listen,
                    domain=each.domain,
                    credentials=each.credentials,
                    advertise=each.advertise,
                    insecure=each.insecure,
                )
                opened.push_async_callback(transport.close)
                transports[each.domain] = transport
                entrances[each.domain] = _entrance_of(transport.address, server, seeds, settings)
            opened.pop_all()
        return cls(settings, transports, entrances)

    def gateway(self, domain: str, entrance: str, home: FdpNode, matches: Matches) -> Gateway:
        """Make a gateway of this member of its home domain, which is entered so."""
        # Evidence is lost twice, abroad and here, each time noticed a quarter of `fail_ns` late.
        fail_ns = self._settings.fail_ns
        settings = GatewaySettings(expire_ns=2 * (fail_ns + fail_ns // 4) + STEP_IN_NS)
        names = tuple(self._transports)
        self._gateway = Gateway(
            domain,
            home,
            names,
            self._node,
            settings=settings,
            matches=matches,
            entrance=entrance,
        )
        return self._gateway

    @property
    def state(self) -> GatewayState:
        """How it stands now."""
        gateway = self._gateway
        assert gateway is not None, "no gateway has been made"
        listens = {name: each.address for name, each in self._transports.items()}
        return GatewayState(gateway.is_gateway, listens, gateway.ids, gateway.domains)

    @property
    def malformed(self) -> int:
        """MAPs, summaries and details that gateways elsewhere should not have sent."""
        return 0 if self._gateway is None else self._gateway.malformed

    def note(self, indication: object) -> None:
        """Log what a user must know of the way to the backbones."""
        if isinstance(indication, OnBackbone) and isinstance(indication.told, Refused):
            _LOG.warning("backbone %s gives no id now: it is full", indication.backbone)
        elif isinstance(indication, RoleChanged) and indication.is_gateway:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(JOIN_WARN_S, self._look)

    def _look(self) -> None:
        for name, identity in self.state.ids.items():
            if identity is None:
                _LOG.warning("no way onto backbone %s for %g s", name, JOIN_WARN_S)

    def host(
        self, gateway: Gateway, home: DiscoveryTransport, tell: Callable[[Any], None]
    ) -> GatewayHost:
        """Run the gateway, and close the transports when that is closed."""
        return GatewayHost(gateway, home, self._transports, tell)

    async def close(self) -> None:
        """Close the transports; a host that was made has done so."""
        if self._timer is not None:
            self._timer.cancel()
        for transport in self._transports.values():
            await transport.close()

    def _node(self, backbone: str, guid: str) -> FdpNode:
        return FdpNode(
            self._transports[backbone].address,
            self._entrances[backbone](guid),
            self._settings,
            Random(uuid.uuid4().hex),
            CompactSummaries(),
        )


def _entrance_of(
    address: Address,
    server: Address | None,
    seeds: tuple[Address, ...],
    settings: DiscoverySettings,
) -> "Callable[[str], Entrance]":
    def make(guid: str) -> Entrance:
        if server is not None:
            # A server takes a guid that comes again for the same life, whose counters go on.
            return ServerEntrance(f"{guid}/{uuid.uuid4().hex}", address, server, settings)
        now_ms = time.time_ns() // NS_PER_MS
        return SeedEntrance(
            guid, address, seeds, settings, Random(uuid.uuid4().hex), started_ms=now_ms
        )

    return make
