"""Interest-only delivery: FDP carries summaries, and details go to those who match something.

An option for systems of a few thousand participants; below that complete compact MAPs take less.
[S002 spec 5]  An `InterestNode` is used as an `FdpNode` is: it is told one's own MAP, and tells of
others those endpoints that one's own match.
"""

from collections.abc import Callable
from random import Random

import msgspec

from orderwire.discovery.asking import Asking
from orderwire.discovery.commands import Change, Command, Ended, Joined, Learnt, MapForm, Start
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.map_codec import decode_map, encode_map
from orderwire.discovery.maps import Map, ParticipantData
from orderwire.discovery.messages import Ask, Detail, Details, MapRecord, Message
from orderwire.discovery.settings import DiscoverySettings
from orderwire.discovery.summaries import (
    CompactSummaries,
    Interests,
    Matches,
    Offer,
    Summary,
    Wanted,
    decode_summary,
    encode_summary,
    same_topic,
    summary_of,
    unpack_hashes,
)
from orderwire.kernel import Indicate, Instant, RemoteProtocolError


class Listed(msgspec.Struct, frozen=True):
    """A participant is there: what its summary tells.  Its endpoints follow as `Learnt`."""

    id: int
    inc: int
    addr: Address
    summary: Summary


class _Peer:
    """Another participant, its summary and what has been told of it."""

    def __init__(self, learnt: Learnt, summary: Summary) -> None:
        self.id = learnt.id
        self.inc = learnt.inc
        self.addr = learnt.addr
        self.summary = summary
        self.told: bytes | None = None
        """The MAP that was told, unless nothing matches."""
        self.ver = 0
        """The version it was told with."""


class InterestNode:
    """A participant whose MAP is a summary to all, and is told to those who match something."""

    def __init__(
        self,
        address: Address,
        entrance: Entrance,
        settings: DiscoverySettings,
        chance: Random,
        *,
        matches: Matches = same_topic,
        node: Callable[[Address, Entrance, DiscoverySettings, Random, MapForm], FdpNode] = FdpNode,
    ) -> None:
        self.fdp = node(address, entrance, settings, chance, CompactSummaries())
        self._matches = matches
        self._asking: Asking[int] = Asking(settings.ask_ns)
        self._peers: dict[int, _Peer] = {}
        self._summary = Summary(0, 0, b"")
        self._participant = ParticipantData("")
        self._inc = 0
        self._interests = Interests(())
        self._offer = Offer(())
        self.malformed = 0
        """Summaries and details that were the fault of a peer."""

    # -- the core's contract ----------------------------------------------------------------

    def submit(self, command: Command, now: Instant) -> DiscoveryEffects:
        """Take a command, as `FdpNode` does.  Raises LocalProtocolError."""
        if not isinstance(command, Start | Change):
            return self._passed_on(self.fdp.submit(command, now), now)
        self._take_own(decode_map(command.map))
        data = encode_summary(self._summary)
        effects = self.fdp.submit(msgspec.structs.replace(command, map=data), now)
        effects = self._passed_on(effects, now)
        for peer in self._peers.values():
            effects += self._consider(peer, now)
        return effects

    def receive(self, source: Address, message: Message, now: Instant) -> DiscoveryEffects:
        """Take a message.  Raises RemoteProtocolError when no correct process sends it."""
        if isinstance(message, Ask):
            return self._on_ask(source, message)
        if isinstance(message, Details):
            return self._on_details(source, message, now)
        return self._passed_on(self.fdp.receive(source, message, now), now)

    def wake(self, now: Instant) -> DiscoveryEffects:
        """Act on every deadline at or before `now`."""
        effects = self._passed_on(self.fdp.wake(now), now)
        if self.fdp.id is not None:
            effects += self._asking.wake(self.fdp.id, now)
        return effects

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        fdp = self.fdp.next_deadline()
        asking = None if self.fdp.id is None else self._asking.next_deadline()
        if fdp is None or asking is None:
            return asking if fdp is None else fdp
        return min(fdp, asking)

    # -- what the application reads ---------------------------------------------------------

    def details(self) -> dict[int, Map]:
        """Return, by id, the participants that match something, with the endpoints that do."""
        return {
            peer.id: decode_map(peer.told) for peer in self._peers.values() if peer.told is not None
        }

    # -- one's own --------------------------------------------------------------------------

    def _take_own(self, whole: Map) -> None:
        self._participant = whole.participant
        self._summary = summary_of(
            self._summary.ver + 1, whole.endpoints, participant=whole.participant
        )
        self._interests = Interests(whole.endpoints, self._matches)
        self._offer = Offer(whole.endpoints, self._matches)

    def _on_ask(self, source: Address, message: Ask) -> DiscoveryEffects:
        me = self.fdp.id
        if me is None or (message.to, message.inc) != (me, self._inc):
            return []  # Whoever asks will learn that this is another life.
        wanted = Wanted(frozenset(unpack_hashes(message.hashes)), message.patterns)
        data = encode_map(Map(self._participant, tuple(self._offer.matching(wanted))))
        ver = self._summary.ver
        detail = Detail(me, self._inc, ver, 0, data)
        return [Post(source, Details(message.frm, me, self._inc, message.number, ver, (detail,)))]

    # -- the others -------------------------------------------------------------------------

    def _passed_on(self, effects: DiscoveryEffects, now: Instant) -> DiscoveryEffects:
        """Put details in the place of summaries."""
        passed: DiscoveryEffects = []
        for effect in effects:
            told = effect.indication if isinstance(effect, Indicate) else None
            if isinstance(told, Learnt):
                passed += self._on_learnt(told, now)
                continue
            if isinstance(told, Ended) and told.id in self._peers:
                if self._peers[told.id].inc == told.inc:
                    self._forget(told.id)
            elif isinstance(told, Joined):
                self._inc = told.inc
                passed.append(effect)
                for peer in self._peers.values():
                    passed += self._consider(peer, now)
                continue
            passed.append(effect)
        return passed

    def _forget(self, identity: int) -> None:
        del self._peers[identity]
        self._asking.forget(identity)

    def _on_learnt(self, learnt: Learnt, now: Instant) -> DiscoveryEffects:
        try:
            summary = decode_summary(learnt.map)
            unpack_hashes(summary.hashes)
        except RemoteProtocolError:
            self.malformed += 1
            return []
        peer = self._peers.get(learnt.id)
        if peer is None or peer.inc != learnt.inc:
            peer = self._peers[learnt.id] = _Peer(learnt, summary)
        peer.addr, peer.summary = learnt.addr, summary
        listed = Listed(learnt.id, learnt.inc, learnt.addr, summary)
        return [Indicate(listed), *self._consider(peer, now)]

    def _consider(self, peer: _Peer, now: Instant) -> DiscoveryEffects:
        """Ask for what is lacking of this participant, and tell what is there."""
        me = self.fdp.id
        if me is None:
            return []
        wanted = self._interests.wanted(peer.summary)
        to = peer.id, peer.inc, peer.addr, peer.summary.ver
        effects: DiscoveryEffects = []
        effects += self._asking.want(peer.id, me, to, wanted, now)
        return effects + self._tell(peer, wanted)

    def _on_details(self, source: Address, message: Details, now: Instant) -> DiscoveryEffects:
        peer = self._peers.get(message.frm)
        if peer is None or peer.addr != source or self.fdp.id is None:
            return []
        if [entry.id for entry in message.entries] != [peer.id]:
            raise RemoteProtocolError(f"{peer.id} answers with details of others")
        if not self._asking.answered(peer.id, message, now):
            return []
        return self._consider(peer, now)

    def _tell(self, peer: _Peer, wanted: Wanted) -> DiscoveryEffects:
        """Tell the endpoints that match, if they are not those told before."""
        held = self._asking.held(peer.id)
        data = self._matching(held.entries[0].map) if held is not None and wanted else None
        if data == peer.told:
            return []
        peer.told = data
        if data is None:
            data = encode_map(Map(peer.summary.participant or ParticipantData("")))
        peer.ver = max(peer.ver, peer.summary.ver if held is None else held.ver)
        record = MapRecord(peer.ver, data)
        return [Indicate(Learnt(peer.id, peer.inc, peer.ver, peer.addr, record, 0))]

    def _matching(self, data: bytes) -> bytes | None:
        """Return the MAP with only the endpoints that match, or None if none does."""
        try:
            whole = decode_map(data)
        except RemoteProtocolError:
            self.malformed += 1
            return None
        matching = tuple(
            each for each in whole.endpoints if self._interests.is_match(each.kind, each.topic)
        )
        if len(matching) == len(whole.endpoints) and matching:
            return data
        return encode_map(Map(whole.participant, matching)) if matching else None
