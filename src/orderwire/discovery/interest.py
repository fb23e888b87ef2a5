"""Interest-only delivery: FDP carries summaries, and details go to those who match something.

An option for systems of a few thousand participants; below that complete compact MAPs take less.
[S002 spec 5]  An `InterestNode` is used as an `FdpNode` is: it is told one's own MAP, and tells of
others those endpoints that one's own match.
"""

from collections.abc import Callable
from random import Random

import msgspec

from orderwire.discovery.asking import Asking, Source
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
    encode_summary,
    same_topic,
    summary_of,
    unpack_hashes,
)
from orderwire.discovery.timers import soonest
from orderwire.kernel import Indicate, Instant, RemoteProtocolError


class Listed(msgspec.Struct, frozen=True):
    """A participant is there: what its summary tells.  Its endpoints follow as `Learnt`."""

    id: int
    inc: int
    ver: int
    """Of the MAP that the summary is."""
    addr: Address
    summary: Summary


class Unreadable(msgspec.Struct, frozen=True):
    """A participant's MAP is no summary: maybe a complete one, where its domain was meant to be."""

    id: int
    inc: int
    map: MapRecord


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
        self._asking = Asking(settings.ask_ns)
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
        return effects + self._consider_all(now)

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
        asking = None if self.fdp.id is None else self._asking.next_deadline()
        return soonest(self.fdp.next_deadline(), asking)

    # -- what the application reads ---------------------------------------------------------

    def details(self) -> dict[int, Map]:
        """Return, by id, the participants that match something, with the endpoints that do."""
        return {
            each.id: decode_map(each.told)
            for each in self._asking.sources.values()
            if each.told is not None
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
            passed.append(effect)
            if isinstance(told, Ended):
                self._asking.forget(told)
            elif isinstance(told, Joined):
                self._inc = told.inc
                passed += self._consider_all(now)
        return passed

    def _on_learnt(self, learnt: Learnt, now: Instant) -> DiscoveryEffects:
        try:
            source = self._asking.learn(learnt)
        except RemoteProtocolError:
            self.malformed += 1
            return [Indicate(Unreadable(learnt.id, learnt.inc, learnt.map))]
        listed = Listed(source.id, source.inc, learnt.ver, source.addr, source.summary)
        return [Indicate(listed), *self._consider(source, now)]

    def _consider_all(self, now: Instant) -> DiscoveryEffects:
        sources = self._asking.sources.values()
        return [effect for source in sources for effect in self._consider(source, now)]

    def _consider(self, source: Source, now: Instant) -> DiscoveryEffects:
        """Ask for what is lacking of this participant, and tell what is there."""
        me = self.fdp.id
        if me is None:
            return []
        wanted = self._interests.wanted(source.summary)
        posts = self._asking.want(source, me, wanted, now)
        return [*posts, *self._tell(source, wanted)]

    def _on_details(self, addr: Address, message: Details, now: Instant) -> DiscoveryEffects:
        if message.frm not in self._asking.sources or self.fdp.id is None:
            return []
        if [entry.id for entry in message.entries] != [message.frm]:
            raise RemoteProtocolError(f"{message.frm} answers with details of others")
        source = self._asking.answered(addr, message, now)
        return [] if source is None else self._consider(source, now)

    def _tell(self, source: Source, wanted: Wanted) -> DiscoveryEffects:
        """Tell the endpoints that match, if they are not those told before."""
        held = source.held
        data = self._matching(source) if held is not None and wanted else None
        if data == source.told:
            return []
        source.told = data
        if data is None:
            data = encode_map(Map(source.summary.participant or ParticipantData("")))
        source.told_ver = max(source.told_ver, source.summary.ver if held is None else held.ver)
        record = MapRecord(source.told_ver, data)
        return [Indicate(Learnt(source.id, source.inc, source.told_ver, source.addr, record, 0))]

    def _matching(self, source: Source) -> bytes | None:
        """Return the MAP with only the endpoints that match, or None if none does.

        What it tells of itself is the summary's, which may be newer than the details.
        """
        assert source.held is not None
        data = source.held.entries[0].map
        try:
            whole = decode_map(data)
        except RemoteProtocolError:
            self.malformed += 1
            return None
        participant = source.summary.participant or whole.participant
        matching = tuple(
            each for each in whole.endpoints if self._interests.is_match(each.kind, each.topic)
        )
        if not matching:
            return None
        if len(matching) == len(whole.endpoints) and participant == whole.participant:
            return data
        return encode_map(Map(participant, matching))
