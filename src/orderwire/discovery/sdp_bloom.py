"""SDPBloom: participants announce a Bloom filter of what they offer, and peers ask for the rest.

Source: [S002:sec.2], after Sánchez-Monedero et al., as their abstract and the paper sum it up.
A participant looks its own interests up in the filter of each peer and requests only the keys
that are in it; the peer sends these endpoints, and repairs them as SDP does.  What the summary
leaves open is ours.  [S002:dec.7]
"""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from random import Random

import msgspec

from orderwire.discovery.omg_sdp import OmgSdp, Peer, SdpEffects
from orderwire.discovery.sdp_messages import Announcement, Heartbeat, Request
from orderwire.discovery.sdp_settings import SdpSettings
from orderwire.kernel import ProcessId, Send

BITS_PER_KEY = 10
HASHES = 7
"""ln 2 · bits per key: about 0.8 % false positives."""
FILTER_BYTES_MIN = 8


class BloomFilter(msgspec.Struct, frozen=True):
    """A set of keys that may also claim to hold a few others."""

    bits: int
    size_bytes: int

    @classmethod
    def of(cls, keys: Sequence[int]) -> "BloomFilter":
        """Return the filter of these keys, ten bits for each."""
        size_bytes = max(FILTER_BYTES_MIN, -(-len(set(keys)) * BITS_PER_KEY // 8))
        bits = 0
        for key in keys:
            bits |= _mask(key, 8 * size_bytes)
        return cls(bits, size_bytes)

    def has(self, key: int) -> bool:
        """Whether the key may be in the set."""
        mask = _mask(key, 8 * self.size_bytes)
        return self.bits & mask == mask


@cache
def _mask(key: int, size_bits: int) -> int:
    """The bits of one key, by double hashing."""
    digest = blake2b(key.to_bytes(8, "big"), digest_size=16).digest()
    first, step = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big") | 1
    mask = 0
    for i in range(HASHES):
        mask |= 1 << ((first + i * step) % size_bits)
    return mask


class SdpBloom(OmgSdp):
    """One participant: SPDP with a filter, SEDP for what was asked for.  [S002:sec.2]"""

    def __init__(
        self,
        me: ProcessId,
        *,
        offers: Sequence[int],
        wants: Sequence[int],
        settings: SdpSettings,
        chance: Random,
    ) -> None:
        """`offers` are the keys of its endpoints, `wants` those that match them."""
        super().__init__(me, endpoints=len(offers), settings=settings, chance=chance)
        self._offers = tuple(offers)
        self._wants = tuple(sorted(set(wants)))
        self._filter = BloomFilter.of(offers)
        self._requests: dict[ProcessId, Request] = {}
        """What each peer was asked for."""

    def _announcement(self) -> Announcement:
        return Announcement(self._filter.bits, self._filter.size_bytes)

    def _begin(self, source: ProcessId, peer: Peer, announcement: Announcement) -> SdpEffects:
        """Ask a new peer for what its filter has of our interests."""
        theirs = BloomFilter(announcement.filter_bits, announcement.filter_bytes)
        keys = tuple(key for key in self._wants if theirs.has(key)) if theirs.size_bytes else ()
        if not keys:
            return []
        self._requests[source] = request = Request(keys)
        return [Send(source, request)]

    def _hear(self, source: ProcessId, peer: Peer) -> SdpEffects:
        """An answer alone starts nothing: data goes to who asked for it."""
        peer.heard = True
        return []

    def _take_request(self, source: ProcessId, peer: Peer, request: Request) -> SdpEffects:
        if peer.started:
            return [Send(source, Heartbeat(peer.sent))]
        peer.started = True
        asked = set(request.keys)
        endpoints = sum(key in asked for key in self._offers)
        data = -(-endpoints // self._settings.endpoints_per_datagram)
        return self._send_new(source, peer, data) or [Send(source, Heartbeat(0))]

    def _remind(self, who: ProcessId, peer: Peer) -> SdpEffects:
        """Ask a peer that lacks data, and repeat a request that nobody has answered."""
        effects: SdpEffects = []
        if peer.unacknowledged:
            effects.append(Send(who, Heartbeat(peer.sent)))
        request = self._requests.get(who)
        if request is not None and not peer.got and not peer.announced:
            effects.append(Send(who, request))
        return effects
