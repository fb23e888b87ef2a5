"""The Simple Discovery Protocol of DDS: SPDP and SEDP.

Source: [S002:sec.2], RTPS 2.x section 8.5.  Symbols: e → endpoints, n − 1 → peers, P → repair_ns.
Every participant announces itself by multicast (SPDP).  Two that have met tell each other all
their endpoints, each in a datagram of its own (SEDP): e · (n − 1) of them.  A HEARTBEAT every P
asks peers that lack some; their ACKNACK names what is sent again.
"""

from heapq import heappop, heappush
from random import Random
from typing import TypeAlias, assert_never

import msgspec

from orderwire.discovery.sdp_messages import (
    ENDPOINTS_MAX,
    AckNack,
    Announcement,
    Endpoint,
    EndpointAck,
    Goodbye,
    Heartbeat,
    Request,
    SdpPdu,
    endpoint_ack,
)
from orderwire.discovery.sdp_settings import SdpSettings
from orderwire.kernel import (
    Broadcast,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    Send,
)


class SendData(msgspec.Struct, frozen=True, gc=False):
    """Send endpoint data to one peer, in ascending order, each in a datagram of its own."""

    to: ProcessId
    numbers: int
    """Bit i stands for data i."""


class Joined(msgspec.Struct, frozen=True, gc=False):
    """A participant was met."""

    participant: ProcessId


class Learned(msgspec.Struct, frozen=True, gc=False):
    """Data of a participant's endpoints arrived for the first time."""

    participant: ProcessId
    number: int


class Gone(msgspec.Struct, frozen=True, gc=False):
    """A participant left, or its lease ran out."""

    participant: ProcessId


SdpIndication: TypeAlias = Joined | Learned | Gone
SdpEffect: TypeAlias = Send[SdpPdu] | Broadcast[SdpPdu] | Indicate[SdpIndication] | SendData
SdpEffects: TypeAlias = list[SdpEffect]
"""Applied in order; `SendData` stands for many sends, so that millions of them are cheap."""


class Start(msgspec.Struct, frozen=True):
    """Begin to announce."""


class Leave(msgspec.Struct, frozen=True):
    """Say goodbye and stop."""


class Offer(msgspec.Struct, frozen=True):
    """Have this many endpoints more, and tell the peers."""

    endpoints: int


SdpCommand: TypeAlias = Start | Leave | Offer


class Peer:
    """What a participant knows of another one, and what it has sent it."""

    __slots__ = (
        "announced",
        "asked",
        "count",
        "got",
        "heard",
        "known",
        "seen_at",
        "sent",
        "started",
        "unacknowledged",
    )

    def __init__(self) -> None:
        self.known = False
        """Its participant data has arrived."""
        self.heard = False
        """It has answered: a HEARTBEAT or an acknowledgement has arrived."""
        self.started = False
        """Endpoint data is on its way to it."""
        self.seen_at = Instant(0)
        self.sent = 0
        """Data numbers that exist for it: 0 … sent − 1."""
        self.unacknowledged = 0
        """Those of them that it may lack, as bits."""
        self.asked = 0
        """What its last ACKNACK named."""
        self.announced = False
        """It has said, by a HEARTBEAT, how much there is."""
        self.got = 0
        """Data that has arrived from it, as bits."""
        self.count = 0
        """How many it has announced."""


_RESPOND = 0
_REPAIR = 1


class OmgSdp:
    """One participant: SPDP towards all, SEDP with each peer.  [S002:sec.2]"""

    def __init__(
        self, me: ProcessId, *, endpoints: int, settings: SdpSettings, chance: Random
    ) -> None:
        """`chance` draws when in a period the repair falls, and how long answers wait."""
        assert endpoints >= 0, f"{endpoints} endpoints"
        self._me = me
        self._endpoints = endpoints
        self._settings = settings
        self._chance = chance
        self._peers: dict[ProcessId, Peer] = {}
        self._running = False
        self._announced = 0
        self._announce_at: Instant | None = None
        self._reply_at: Instant | None = None
        self._replies_left = 0
        self._repair_at: Instant | None = None
        self._delayed: list[tuple[int, int, ProcessId]] = []
        """Answers and repairs that wait: when, which, and for whom."""
        self._next: Instant | None = None

    @property
    def data(self) -> int:
        """How many data numbers hold this participant's endpoints."""
        return -(-self._endpoints // self._settings.endpoints_per_datagram)

    def view(self) -> list[ProcessId]:
        """Return the participants that are known, in ascending order."""
        return sorted(peer for peer, state in self._peers.items() if state.known)

    def submit(self, command: SdpCommand, now: Instant) -> SdpEffects:
        """Start, leave or offer more.  Raises LocalProtocolError."""
        match command:
            case Start():
                if self._running:
                    raise LocalProtocolError(f"participant {self._me} runs already")
                self._running = True
                settings = self._settings
                jitter_ns = self._chance.randrange(settings.announcement_jitter_ns + 1)
                self._announce_at = Instant(now + jitter_ns)
                phase_ns = self._chance.randrange(settings.repair_ns) + 1
                self._repair_at = Instant(now + settings.repair_ns + phase_ns)
                return self.wake(now)
            case Leave():
                if not self._running:
                    raise LocalProtocolError(f"participant {self._me} does not run")
                self._running = False
                self._peers.clear()
                self._delayed.clear()
                self._announce_at = self._reply_at = self._repair_at = self._next = None
                return [Broadcast(Goodbye())]
            case Offer(endpoints):
                return self._offer(endpoints)
            case _:
                assert_never(command)

    def receive(self, source: ProcessId, pdu: SdpPdu, now: Instant) -> SdpEffects:
        """Take a PDU; one that comes before the start or after the end is not for this life."""
        if not self._running:
            return []
        if type(pdu) is Endpoint:
            return self._take_data(source, pdu.number)
        peer = self._peers.get(source)
        if peer is None:
            peer = self._peers[source] = Peer()
        match pdu:
            case EndpointAck():
                peer.unacknowledged &= ~(1 << pdu.number)
                return [] if peer.started else self._hear(source, peer)
            case Announcement():
                return self._meet(source, peer, pdu, now)
            case Heartbeat(count):
                if count > ENDPOINTS_MAX:
                    raise RemoteProtocolError(f"{count} data, expected at most {ENDPOINTS_MAX}")
                peer.count = max(peer.count, count)
                peer.announced = True
                effects = self._hear(source, peer)
                wait_ns = self._settings.heartbeat_response_ns
                if wait_ns:
                    self._delay(_RESPOND, source, now + wait_ns)
                else:
                    effects.append(Send(source, self._answer(peer)))
                return effects
            case AckNack():
                if not peer.started:
                    return self._hear(source, peer)
                return self._take_answer(source, peer, pdu, now)
            case Request():
                return self._take_request(source, peer, pdu)
            case Goodbye():
                del self._peers[source]
                return [Indicate(Gone(source))] if peer.known else []
            case Endpoint():
                raise AssertionError("taken above")
            case _:
                assert_never(pdu)

    def wake(self, now: Instant) -> SdpEffects:
        """Announce, answer and repair what is due."""
        effects: SdpEffects = []
        if self._announce_at is not None and self._announce_at <= now:
            effects += self._announce(now)
        if self._reply_at is not None and self._reply_at <= now:
            self._replies_left -= 1
            self._reply_at = self._after_jitter(now) if self._replies_left else None
            effects.append(Broadcast(self._announcement()))
        while self._delayed and self._delayed[0][0] <= now:
            _, what, who = heappop(self._delayed)
            peer = self._peers.get(who)
            if peer is None:
                continue
            if what == _RESPOND:
                effects.append(Send(who, self._answer(peer)))
            else:
                effects += self._send_again(who, peer)
        if self._repair_at is not None and self._repair_at <= now:
            effects += self._repair(now)
        self._plan()
        return effects

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return self._next

    def _plan(self) -> None:
        instants = [
            at for at in (self._announce_at, self._reply_at, self._repair_at) if at is not None
        ]
        if self._delayed:
            instants.append(Instant(self._delayed[0][0]))
        self._next = min(instants, default=None)

    def _delay(self, what: int, who: ProcessId, at: int) -> None:
        """Answer or repair later; what is planned for this peer already serves both."""
        if any(entry[1:] == (what, who) for entry in self._delayed):
            return
        heappush(self._delayed, (at, what, who))
        self._plan()

    # SPDP

    def _announcement(self) -> Announcement:
        return Announcement()

    def _announce(self, now: Instant) -> SdpEffects:
        settings = self._settings
        self._announced += 1
        early = self._announced < settings.announcements
        period_ns = settings.announcement_spacing_ns if early else settings.announcement_period_ns
        self._announce_at = Instant(now + period_ns)
        effects: SdpEffects = [Broadcast(self._announcement())]
        oldest = now - settings.lease_ns
        for who, peer in sorted(self._peers.items()):
            if peer.known and peer.seen_at < oldest:
                del self._peers[who]
                effects.append(Indicate(Gone(who)))
        return effects

    def _after_jitter(self, now: Instant) -> Instant:
        return Instant(now + self._chance.randrange(self._settings.reply_jitter_ns) + 1)

    def _meet(
        self, source: ProcessId, peer: Peer, announcement: Announcement, now: Instant
    ) -> SdpEffects:
        peer.seen_at = now
        if peer.known:
            return []
        peer.known = True
        effects: SdpEffects = [Indicate(Joined(source))]
        settings = self._settings
        if settings.reply == "at once":
            effects.append(Broadcast(self._announcement()))
        elif settings.reply == "jittered":
            self._replies_left = settings.replies
            if self._reply_at is None:
                self._reply_at = self._after_jitter(now)
                self._plan()
        return effects + self._begin(source, peer, announcement)

    def _begin(self, source: ProcessId, peer: Peer, _announcement: Announcement) -> SdpEffects:
        """Shake hands with a new peer; data follows when it has answered."""
        effects: SdpEffects = [Send(source, Heartbeat(0))]
        return effects + self._start_data(source, peer) if peer.heard else effects

    # SEDP, as a writer

    def _take_request(self, source: ProcessId, _peer: Peer, _request: Request) -> SdpEffects:
        """Answer a peer that asks for some keys only: SDPBloom's, not ours."""
        raise RemoteProtocolError(f"participant {source} sent a request; SDP knows none")

    def _hear(self, source: ProcessId, peer: Peer) -> SdpEffects:
        """Start to send data to a known peer that has answered for the first time."""
        peer.heard = True
        return self._start_data(source, peer) if peer.known and not peer.started else []

    def _start_data(self, source: ProcessId, peer: Peer) -> SdpEffects:
        peer.started = True
        return self._send_new(source, peer, self.data)

    def _send_new(self, source: ProcessId, peer: Peer, count: int) -> SdpEffects:
        """Have `count` data for this peer, and send what is new of it."""
        new = ((1 << count) - 1) & ~((1 << peer.sent) - 1)
        peer.sent = count
        peer.unacknowledged |= new
        return self._send_data(source, peer, new)

    def _send_data(self, source: ProcessId, peer: Peer, numbers: int) -> SdpEffects:
        if not numbers:
            return []
        effects: SdpEffects = [SendData(source, numbers)]
        if self._settings.follow_up:
            effects.append(Send(source, Heartbeat(peer.sent)))
        return effects

    def _take_answer(
        self, source: ProcessId, peer: Peer, answer: AckNack, now: Instant
    ) -> SdpEffects:
        spoken_of = (1 << answer.end) - 1
        peer.unacknowledged = (peer.unacknowledged & ~spoken_of) | (
            answer.missing & ((1 << peer.sent) - 1)
        )
        if not answer.missing:
            return []
        peer.asked = answer.missing
        wait_ns = self._settings.nack_response_ns
        if wait_ns:
            self._delay(_REPAIR, source, now + wait_ns)
            return []
        return self._send_again(source, peer)

    def _send_again(self, source: ProcessId, peer: Peer) -> SdpEffects:
        """Repair what the last ACKNACK named and nothing has acknowledged since."""
        return self._send_data(source, peer, peer.asked & peer.unacknowledged)

    def _repair(self, now: Instant) -> SdpEffects:
        self._repair_at = Instant(now + self._settings.repair_ns)
        effects: SdpEffects = []
        for who, peer in self._peers.items():
            if peer.known:
                effects += self._remind(who, peer)
        return effects

    def _remind(self, who: ProcessId, peer: Peer) -> SdpEffects:
        """Ask a peer that lacks data, or that has not answered yet."""
        if peer.unacknowledged or not peer.started:
            return [Send(who, Heartbeat(peer.sent))]
        return []

    def _offer(self, endpoints: int) -> SdpEffects:
        if endpoints <= 0:
            raise LocalProtocolError(f"{endpoints} endpoints more, expected at least 1")
        self._endpoints += endpoints
        effects: SdpEffects = []
        for who, peer in self._peers.items():
            if peer.started:
                effects += self._send_new(who, peer, self.data)
        return effects

    # SEDP, as a reader

    def _take_data(self, source: ProcessId, number: int) -> SdpEffects:
        peer = self._peers.get(source)
        if peer is None:
            peer = self._peers[source] = Peer()
        if number >= ENDPOINTS_MAX:
            raise RemoteProtocolError(f"data {number}, expected less than {ENDPOINTS_MAX}")
        bit = 1 << number
        effects: SdpEffects = []
        if not peer.got & bit:
            peer.got |= bit
            effects.append(Indicate(Learned(source, number)))
        if self._settings.acknowledge_each:
            effects.append(Send(source, endpoint_ack(number)))
        return effects

    def _answer(self, peer: Peer) -> AckNack:
        """Say what is missing, as far as one ACKNACK can."""
        missing = ((1 << peer.count) - 1) & ~peer.got
        base = (missing & -missing).bit_length() - 1 if missing else peer.count
        limit = self._settings.nack_numbers_max
        end = peer.count if limit is None else min(peer.count, base + limit)
        return AckNack(base, end, missing & ((1 << end) - 1))
