"""Gateways: several domains, each with its own ring, learn of each other what they may match.

A willing participant runs a `Gateway` in the place of its `FdpNode`.  The two willing ones with
the lowest ids are their domain's gateways; no vote is needed, the view decides.  They also join the
backbone, another FDP ring, whose MAPs are summaries of domains.  Where a summary holds what
somebody at home may match, its sender is asked for the details, and they become `foreign` entries
of the gateway's own MAP at home.  [S002 spec 5]

Nothing goes round in circles: only what participants of the home domain tell of themselves is
exported (split horizon), and versions of exported entries do not count foreign ones.
"""

from typing import Any, Protocol, TypeAlias

import msgspec

from orderwire.discovery.asking import Asking, Source
from orderwire.discovery.commands import (
    Change,
    Command,
    End,
    Ended,
    Gone,
    Joined,
    Learnt,
    Refused,
    Start,
)
from orderwire.discovery.domains import (
    GATEWAYS,
    backbone_guid,
    gateways,
    is_willing,
    own_version,
    with_entrance,
)
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.foreign import Holdings
from orderwire.discovery.map_codec import decode, decode_map, encode_map
from orderwire.discovery.maps import EndpointData, ForeignData, Map, ParticipantData
from orderwire.discovery.messages import Ask, Detail, Details, MapRecord, Message
from orderwire.discovery.summaries import (
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
from orderwire.discovery.timers import Timers, soonest
from orderwire.kernel import NS_PER_MS, NS_PER_S, Indicate, Instant, RemoteProtocolError

COLLECT = "collect"
ROLE = "role"
EXPIRE = "expire"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same in all gateways of a domain."""

    count: int = GATEWAYS
    """k: how many gateways the domain has."""
    settle_ns: int = NS_PER_S
    """One takes up or gives up the role when the view has asked for it for so long."""
    collect_ns: int = 100 * NS_PER_MS
    """Changes at home and from abroad are told together after this time."""
    ask_ns: int = NS_PER_S
    """An unanswered ASK is sent again after this time."""
    expire_ns: int = 15 * NS_PER_S
    """A foreign entry without newer evidence is forgotten after this time.

    Two rings' `fail_ns` and some more, so that new gateways can step in for those that died.
    """

    def __post_init__(self) -> None:
        for name in ("count", "settle_ns", "collect_ns", "ask_ns", "expire_ns"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")


class PostOn(msgspec.Struct, frozen=True):
    """Send this message from one's address on that backbone."""

    backbone: str
    to: Address
    message: Message


class RoleChanged(msgspec.Struct, frozen=True):
    """This participant is a gateway of its domain from now on, or is none any more."""

    is_gateway: bool


class OnBackbone(msgspec.Struct, frozen=True):
    """One has an id on this backbone now, or was refused one for the time being."""

    backbone: str
    told: Joined | Refused


class ForeignChanged(msgspec.Struct, frozen=True):
    """What this gateway tells of other domains."""

    entries: tuple[ForeignData, ...]


GatewayEffects: TypeAlias = list[Post | PostOn | Indicate[Any]]


class MakeNode(Protocol):
    """Makes a participant of a backbone."""

    def __call__(self, backbone: str, guid: str) -> FdpNode:
        """Return one that has not started, with the form of summaries."""
        ...


class _Member:
    """A participant at home."""

    def __init__(self, inc: int, ver: int, whole: Map, matches: Matches) -> None:
        self.inc = inc
        self.ver = ver
        """Of what it tells of itself."""
        self.participant = whole.participant
        self.endpoints = whole.endpoints
        self.willing = is_willing(whole)
        self._matches = matches
        self._offer: Offer | None = None

    def matching(self, wanted: Wanted) -> list[EndpointData]:
        if self._offer is None:
            self._offer = Offer(self.endpoints, self._matches)
        return self._offer.matching(wanted)


class _Backbone:
    """One's part in one backbone."""

    def __init__(self, name: str, node: FdpNode, ask_ns: int) -> None:
        self.name = name
        self.node = node
        self.asking = Asking(ask_ns)
        """The gateways there, of one's own domain, too."""
        self.inc = 0

    @property
    def can_ask(self) -> bool:
        return self.node.id is not None and not self.node.leaving


class Gateway:
    """A participant of its home domain that is ready to be one of its gateways."""

    def __init__(
        self,
        domain: str,
        home: FdpNode,
        backbones: tuple[str, ...],
        make_node: MakeNode,
        *,
        settings: GatewaySettings | None = None,
        matches: Matches = same_topic,
        entrance: str = "",
    ) -> None:
        """`entrance` says to other domains how one enters this one; at most 512 characters."""
        self.domain = domain
        self.home = home
        self.settings = settings if settings is not None else GatewaySettings()
        self._names = backbones
        self._make_node = make_node
        self._matches = matches
        self._entrance = entrance
        self._timers = Timers()
        self._own = Map(ParticipantData(""))
        self._own_ver = 0
        self._inc = 0
        self._members: dict[int, _Member] = {}
        self._me: _Member | None = None
        self._interests = Interests(())
        self._summary = Summary(0, 0, b"", domain=domain)
        self._contents: frozenset[tuple[int, int, int]] = frozenset()
        """Who is in the summary, in which version."""
        self._backbones: dict[str, _Backbone] = {}
        self._holdings = Holdings(self.settings.expire_ns, home.settings.fail_ns)
        self._foreign: tuple[ForeignData, ...] = ()
        self._ending = False
        self.malformed = 0
        """MAPs, summaries and details that were the fault of a peer."""

    # -- the core's contract, with a backbone's name where it is not the home domain -----------

    def submit(self, command: Command, now: Instant, backbone: str = "") -> GatewayEffects:
        """Take a command, as `FdpNode` does.  Raises LocalProtocolError."""
        if backbone:
            ring = self._backbones.get(backbone)
            return [] if ring is None else self._on_ring(ring, ring.node.submit(command, now), now)
        if isinstance(command, Start | Change):
            self._own = decode_map(command.map)
            self._own_ver += 1
            self._me = None
            self._collect(now)
            command = msgspec.structs.replace(command, map=self._own_bytes())
        effects = self._at_home(self.home.submit(command, now), now)
        if isinstance(command, End):
            self._ending = True
            self._timers.clear()
            for ring in list(self._backbones.values()):
                effects += self._end(ring, now)
        return effects

    def receive(
        self, source: Address, message: Message, now: Instant, backbone: str = ""
    ) -> GatewayEffects:
        """Take a message.  Raises RemoteProtocolError when no correct process sends it."""
        if not backbone:
            return self._at_home(self.home.receive(source, message, now), now)
        ring = self._backbones.get(backbone)
        if ring is None:
            return []
        if isinstance(message, Ask):
            return self._on_ask(ring, source, message, now)
        if isinstance(message, Details):
            return self._on_details(ring, source, message, now)
        return self._on_ring(ring, ring.node.receive(source, message, now), now)

    def wake(self, now: Instant) -> GatewayEffects:
        """Act on every deadline at or before `now`."""
        effects = self._at_home(self.home.wake(now), now)
        for ring in list(self._backbones.values()):
            effects += self._on_ring(ring, ring.node.wake(now), now)
            if ring.node.id is not None and ring.can_ask:
                effects += _on(ring, ring.asking.wake(ring.node.id, now))
        for name in self._timers.pop_due(now):
            if name == ROLE:
                effects += self._take_role(now)
            elif name == COLLECT:
                effects += self._tell(now)
            else:
                assert name == EXPIRE, name
                effects += self._announce(now)
        return effects

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due = soonest(self.home.next_deadline(), self._timers.next())
        for ring in self._backbones.values():
            due = soonest(due, ring.node.next_deadline())
            if ring.can_ask:
                due = soonest(due, ring.asking.next_deadline())
        return due

    # -- what the application reads -----------------------------------------------------------

    @property
    def is_gateway(self) -> bool:
        """Whether it is one now."""
        return bool(self._backbones)

    @property
    def foreign(self) -> tuple[ForeignData, ...]:
        """What it tells of other domains."""
        return self._foreign

    @property
    def ids(self) -> dict[str, int | None]:
        """Its id on each backbone that it has joined, or is joining."""
        return {name: ring.node.id for name, ring in self._backbones.items()}

    @property
    def domains(self) -> tuple[str, ...]:
        """The other domains that have gateways on its backbones."""
        heard = {
            far.summary.domain
            for ring in self._backbones.values()
            for far in ring.asking.sources.values()
        }
        return tuple(sorted(heard - {self.domain}))

    # -- home -----------------------------------------------------------------------------------

    def _at_home(self, effects: DiscoveryEffects, now: Instant) -> GatewayEffects:
        """Take note of what the home ring tells, which goes to the application as it is."""
        passed: GatewayEffects = []
        for effect in effects:
            told = effect.indication if isinstance(effect, Indicate) else None
            if isinstance(told, Gone) and self._backbones:
                continue  # Told when the last backbone is left, too.
            if isinstance(told, Joined):
                self._inc = told.inc
                self._me = None
                self._collect(now)
            elif isinstance(told, Learnt):
                self._members[told.id] = self._member(told.inc, told.map)
                self._collect(now)
            elif isinstance(told, Ended):
                member = self._members.get(told.id)
                if member is not None and member.inc == told.inc:
                    del self._members[told.id]
                    self._collect(now)
            passed.append(effect)
        return passed

    def _member(self, inc: int, record: MapRecord) -> _Member:
        try:
            whole = decode(record)
        except RemoteProtocolError:
            self.malformed += 1
            whole = Map(ParticipantData(""))
        return _Member(inc, own_version(whole, record), whole, self._matches)

    def _everyone(self) -> dict[int, _Member]:
        """The participants at home, oneself included."""
        me = self.home.id
        if me is None:
            return self._members
        if self._me is None:
            self._me = _Member(self._inc, self._own_ver, self._own, self._matches)
        return {**self._members, me: self._me}

    def _collect(self, now: Instant) -> None:
        if not self._ending and not self._timers.is_set(COLLECT):
            self._timers.set(COLLECT, Instant(now + self.settings.collect_ns))

    def _own_bytes(self) -> bytes:
        return encode_map(
            msgspec.structs.replace(self._own, foreign=self._foreign, own_ver=self._own_ver)
        )

    # -- the role -------------------------------------------------------------------------------

    @property
    def _is_called(self) -> bool:
        me = self.home.id
        willing = [each for each, member in self._everyone().items() if member.willing]
        return me is not None and me in gateways(willing, self.settings.count)

    def _watch_role(self, now: Instant) -> None:
        if self._is_called == self.is_gateway:
            self._timers.cancel(ROLE)
        elif not self._timers.is_set(ROLE):
            self._timers.set(ROLE, Instant(now + self.settings.settle_ns))

    def _take_role(self, now: Instant) -> GatewayEffects:
        effects: GatewayEffects = []
        if self._is_called == self.is_gateway:
            return effects
        if self.is_gateway:
            for ring in list(self._backbones.values()):
                effects += self._end(ring, now)
            return effects
        assert self.home.id is not None
        guid = backbone_guid(self.domain, self.home.id)
        self._summarise()
        start = Start(map=encode_summary(self._summary))
        for name in self._names:
            ring = _Backbone(name, self._make_node(name, guid), self.settings.ask_ns)
            self._backbones[name] = ring
            effects += self._on_ring(ring, ring.node.submit(start, now), now)
        return [*effects, Indicate(RoleChanged(is_gateway=True))]

    def _end(self, ring: _Backbone, now: Instant) -> GatewayEffects:
        if ring.node.leaving:
            return []
        return self._on_ring(ring, ring.node.submit(End(), now), now)

    # -- telling ------------------------------------------------------------------------------

    def _tell(self, now: Instant) -> GatewayEffects:
        """Tell other domains what changed at home, ask them what is wanted now, and tell home."""
        self._watch_role(now)
        effects: GatewayEffects = []
        if self.is_gateway and self._summarise():
            change = Change(map=encode_summary(self._summary))
            for ring in list(self._backbones.values()):
                if not ring.node.leaving:
                    effects += self._on_ring(ring, ring.node.submit(change, now), now)
                    effects += self._ask_all(ring, now)
        return effects + self._announce(now)

    def _summarise(self) -> bool:
        """Look at all that is told at home; whether it is other than before."""
        everyone = self._everyone()
        contents = frozenset((each, member.inc, member.ver) for each, member in everyone.items())
        if contents == self._contents:
            return False
        self._contents = contents
        endpoints = [each for member in everyone.values() for each in member.endpoints]
        self._interests = Interests(endpoints, self._matches)
        self._summary = summary_of(self._summary.ver + 1, endpoints, domain=self.domain)
        return True

    def _announce(self, now: Instant) -> GatewayEffects:
        """Tell home what is known of other domains, if it has changed."""
        foreign, due = self._holdings.report(self._interests, now)
        if due is None:
            self._timers.cancel(EXPIRE)
        else:
            self._timers.set(EXPIRE, due)
        if foreign == self._foreign or self._ending:
            return []
        self._foreign = foreign
        change = Change(map=self._own_bytes())
        effects = self._at_home(self.home.submit(change, now), now)
        return [*effects, Indicate(ForeignChanged(foreign))]

    # -- the backbone ---------------------------------------------------------------------------

    def _on_ring(self, ring: _Backbone, effects: DiscoveryEffects, now: Instant) -> GatewayEffects:
        passed: GatewayEffects = []
        for effect in effects:
            if isinstance(effect, Post):
                passed.append(PostOn(ring.name, effect.to, effect.message))
            elif isinstance(effect.indication, Joined):
                ring.inc = effect.indication.inc
                passed += [Indicate(OnBackbone(ring.name, effect.indication))]
                passed += self._ask_all(ring, now)
            elif isinstance(effect.indication, Refused):
                passed += [Indicate(OnBackbone(ring.name, effect.indication))]
            elif isinstance(effect.indication, Learnt):
                passed += self._on_far(ring, effect.indication, now)
            elif isinstance(effect.indication, Ended):
                self._on_far_ended(ring, effect.indication, now)
            elif isinstance(effect.indication, Gone):
                passed += self._on_gone(ring, now)
        return passed

    def _on_gone(self, ring: _Backbone, now: Instant) -> GatewayEffects:
        del self._backbones[ring.name]
        self._holdings.drop(ring.name)
        if self._backbones:
            return []
        if self._ending:
            return [Indicate(Gone())] if self.home.gone else []
        self._watch_role(now)
        self._collect(now)
        return [Indicate(RoleChanged(is_gateway=False))]

    def _on_far(self, ring: _Backbone, learnt: Learnt, now: Instant) -> GatewayEffects:
        try:
            far = ring.asking.learn(learnt)
        except RemoteProtocolError:
            self.malformed += 1
            return []
        return self._ask(ring, far, now)

    def _on_far_ended(self, ring: _Backbone, ended: Ended, now: Instant) -> None:
        far = ring.asking.forget(ended)
        if far is None:
            return
        # One that did not say goodbye has been silent for as long as it takes to notice.
        silent_ns = 0 if ended.left else ring.node.settings.fail_ns
        self._holdings.end((ring.name, far.id, far.inc), Instant(now - silent_ns))
        self._collect(now)

    def _ask_all(self, ring: _Backbone, now: Instant) -> GatewayEffects:
        effects: GatewayEffects = []
        for far in ring.asking.sources.values():
            effects += self._ask(ring, far, now)
        return effects

    def _ask(self, ring: _Backbone, far: Source, now: Instant) -> GatewayEffects:
        """Ask another domain's gateway for what somebody here may match."""
        me = ring.node.id
        if me is None or not ring.can_ask or far.summary.domain == self.domain:
            return []
        wanted = self._interests.wanted(far.summary)
        posts = ring.asking.want(far, me, wanted, now)
        key = ring.name, far.id, far.inc
        if not wanted:  # What it told before matches nothing, or is there no more.
            self._holdings.remove(key)
        elif far.satisfied:
            self._holdings.stand(key)
        else:
            self._holdings.doubt(key, now)
        self._collect(now)
        return _on(ring, posts)

    def _on_ask(
        self, ring: _Backbone, source: Address, message: Ask, now: Instant
    ) -> GatewayEffects:
        """Answer with what participants of this domain tell of themselves: no foreign entries."""
        if (message.to, message.inc) != (ring.node.id, ring.inc):
            return []
        wanted = Wanted(frozenset(unpack_hashes(message.hashes)), message.patterns)
        live = self.home.live()
        entries = []
        for identity, member in sorted(self._everyone().items()):
            matching = member.matching(wanted)
            if not matching:
                continue
            entry = live.get(identity)
            age_ms = 0 if entry is None else -((entry.fresh - now) // NS_PER_MS)
            told = with_entrance(member.participant, self._entrance)
            data = encode_map(Map(told, tuple(matching)))
            entries.append(Detail(identity, member.inc, member.ver, max(0, age_ms), data))
        assert ring.node.id is not None
        answer = Details(
            message.frm, ring.node.id, ring.inc, message.number, self._summary.ver, tuple(entries)
        )
        return [PostOn(ring.name, source, answer)]

    def _on_details(
        self, ring: _Backbone, source: Address, message: Details, now: Instant
    ) -> GatewayEffects:
        far = ring.asking.answered(source, message, now)
        if far is None:
            return []
        assert far.held is not None
        key = ring.name, far.id, far.inc
        self._holdings.remove(key)
        self._holdings.put(key, far.summary.domain, far.held)
        return self._ask(ring, far, now)


def _on(ring: _Backbone, posts: list[Post]) -> GatewayEffects:
    return [PostOn(ring.name, post.to, post.message) for post in posts]
