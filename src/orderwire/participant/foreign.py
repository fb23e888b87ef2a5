"""Participants of other domains, as the gateways of our own tell of them.

They have no number in our group: ids are those of a domain, and samples go between members of one.
What is told is who they are, which of their topics somebody here may match, where their data
sockets are, and whether these can be called from here.  Decision 0021.
"""

import asyncio
import logging
from collections.abc import Hashable

from orderwire.aio.endpoint import Address
from orderwire.discovery.domains import merged
from orderwire.discovery.map_codec import decode_map
from orderwire.discovery.maps import ForeignData
from orderwire.kernel import LocalProtocolError, ProcessId, RemoteProtocolError
from orderwire.participant.peers import ForeignPeer, Offers, address_of

_LOG = logging.getLogger(__name__)

LOOK_S = 10.0
"""How often the addresses of those that share a topic with us are called."""
CALL_S = 1.0
"""One that has not answered by then is not reachable."""
CALLS_MAX = 16
"""Addresses called at a time."""
CALLED_MAX = 1_024
"""Addresses called, at most."""


class Foreigners:
    """What the gateways of our domain tell, merged."""

    def __init__(self) -> None:
        self.peers: dict[tuple[str, int], ForeignPeer] = {}
        """By domain and id."""
        self.malformed = 0
        """Entries that could not be read, each time they were told."""
        self._local: Address | None = None
        self._told: dict[Hashable, tuple[ForeignData, ...]] = {}
        self._entries: dict[tuple[str, int], ForeignData] = {}
        self._offers = Offers(())
        self._calling: asyncio.Task[None] | None = None
        self._again = asyncio.Event()

    def call_from(self, host: str) -> None:
        """Our data sockets are on this host, and so call from it."""
        self._local = None if host == "0.0.0.0" else (host, 0)

    def tell(self, gateway: Hashable, entries: tuple[ForeignData, ...]) -> None:
        """Take what this gateway tells now; nothing when it has gone."""
        if self._told.get(gateway, ()) == entries:
            return
        if entries:
            self._told[gateway] = entries
        else:
            del self._told[gateway]
        every = merged(each for told in self._told.values() for each in told)
        now = {each.origin: each for each in every}
        for origin in self._entries.keys() - now.keys():
            self.peers.pop(origin, None)
        for origin, entry in now.items():
            if self._entries.get(origin) != entry:
                self._take(entry)
        self._entries = now
        self._look()

    def offer(self, offers: Offers) -> None:
        """Take what we write and read ourselves."""
        self._offers = offers
        self._look()

    def close(self) -> None:
        """Call nobody any more."""
        if self._calling is not None:
            self._calling.cancel()

    def _take(self, entry: ForeignData) -> None:
        before = self.peers.pop(entry.origin, None)
        try:
            whole = decode_map(entry.map)
            address, offers = address_of(whole), Offers(whole.endpoints)
        except (RemoteProtocolError, LocalProtocolError) as error:
            self.malformed += 1
            _LOG.warning("%d of domain %s: %s", entry.id, entry.domain, error)
            return
        peer = ForeignPeer(ProcessId(entry.id), entry.inc, whole, "", address, offers, entry.domain)
        if before is not None and (before.inc, before.address) == (entry.inc, address):
            peer.reachable = before.reachable
        self.peers[entry.origin] = peer

    def _concerning(self) -> list[ForeignPeer]:
        """Return those whose address matters to us."""
        found = []
        for _, peer in sorted(self.peers.items()):
            if peer.address is not None and peer.offers.meets(self._offers):
                found.append(peer)
            else:
                peer.reachable = None
        return found[:CALLED_MAX]

    def _look(self) -> None:
        if not self._concerning():
            return
        self._again.set()
        if self._calling is None:
            self._calling = asyncio.get_running_loop().create_task(self._call_all())

    async def _call_all(self) -> None:
        """Call all addresses that matter, now and then; those not called yet at once."""
        room = asyncio.Semaphore(CALLS_MAX)

        async def call(peer: ForeignPeer) -> None:
            assert peer.address is not None
            async with room:
                peer.reachable = await self._answers(peer.address)

        while peers := self._concerning():
            self._again.clear()
            fresh = [each for each in peers if each.reachable is None]
            await asyncio.gather(*(call(each) for each in fresh or peers))
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._again.wait()
            except TimeoutError:
                pass
        self._calling = None

    async def _answers(self, address: Address) -> bool:
        """Whether a connection can be made; nothing is said on it."""
        try:
            async with asyncio.timeout(CALL_S):
                _, writer = await asyncio.open_connection(*address, local_addr=self._local)
        except (OSError, TimeoutError):
            return False
        writer.transport.abort()
        return True
