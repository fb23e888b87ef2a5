"""The host of a gateway: one core on the transports of its home domain and of its backbones."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from orderwire.aio.discovery_host import DiscoveryHost
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.discovery.commands import Command, Unreachable
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.gateway import Gateway, GatewayEffects, PostOn
from orderwire.kernel import Instant

HOME = ""
"""What the gateway calls the side of its home domain."""

Route = Callable[[str, GatewayEffects], DiscoveryEffects]


class _Side:
    """The gateway, as the host of one of its transports runs it."""

    def __init__(self, gateway: Gateway, name: str, route: Route) -> None:
        self._gateway = gateway
        self._name = name
        self._route = route

    def submit(self, command: Command, now: Instant) -> DiscoveryEffects:
        return self._route(self._name, self._gateway.submit(command, now, self._name))

    def receive(self, source: Address, message: Any, now: Instant) -> DiscoveryEffects:
        effects = self._gateway.receive(source, message, now, self._name)
        return self._route(self._name, effects)

    def wake(self, now: Instant) -> DiscoveryEffects:
        return self._route(self._name, self._gateway.wake(now))

    def next_deadline(self) -> Instant | None:
        """The home side has the timer for all."""
        return self._gateway.next_deadline() if self._name == HOME else None


class _SideHost(DiscoveryHost[Command, Any]):
    def apply(self, effects: DiscoveryEffects) -> None:
        """Carry out what the core returned to another side's host, and re-arm."""
        self._apply(effects)
        self._rearm()


class GatewayHost(_SideHost):
    """Runs a gateway; to its user it is the host of the home domain.

    A backbone's transport listens from the start.  What comes there while this participant is no
    gateway is dropped, as the core has it.
    """

    def __init__(
        self,
        gateway: Gateway,
        home: DiscoveryTransport,
        backbones: Mapping[str, DiscoveryTransport],
        tell: Callable[[Any], None],
    ) -> None:
        """`backbones` are the gateway's, by their names."""
        self.sides: dict[str, _SideHost] = {}
        super().__init__(_Side(gateway, HOME, self._routed), home, tell, unreachable=_unreachable)
        for name, transport in backbones.items():
            self.sides[name] = _SideHost(
                _Side(gateway, name, self._routed), transport, tell, unreachable=_unreachable
            )

    @property
    def hosts(self) -> tuple[DiscoveryHost[Command, Any], ...]:
        """This one and those of the backbones."""
        return (self, *self.sides.values())

    async def close(self) -> None:
        """Feed the core no more, write what it posted, and close all transports."""
        await asyncio.gather(*(side.close() for side in self.sides.values()))
        await super().close()

    def _routed(self, at: str, effects: GatewayEffects) -> DiscoveryEffects:
        """Return what that side is to carry out, and have the others carry out the rest."""
        shares: dict[str, DiscoveryEffects] = {at: [], HOME: []}
        for effect in effects:
            if isinstance(effect, PostOn):
                shares.setdefault(effect.backbone, []).append(Post(effect.to, effect.message))
            else:
                shares[HOME].append(effect)
        mine = shares.pop(at)
        for name, share in shares.items():  # Home in any case: its timer is for all.
            (self if name == HOME else self.sides[name]).apply(share)
        return mine


def _unreachable(address: Address) -> Command:
    return Unreachable(address=address)
