"""Runs of SDP and SDPBloom on the simulated LAN: how long discovery takes, and what it sends.

Every datagram is on the LAN one by one; what a host's own queue drops costs no event.  A run ends
when everybody has everything it should have, or at its limit.
"""

from array import array
from collections import Counter, deque
from statistics import fmean, median_low
from typing import Any, TypeAlias, assert_never

import msgspec

from orderwire.discovery.omg_sdp import Learned, OmgSdp, SdpEffects, SendData, Start
from orderwire.discovery.sdp_bloom import SdpBloom
from orderwire.discovery.sdp_messages import Endpoint, SdpPdu, control_bytes, endpoint_data
from orderwire.discovery.sdp_settings import PAPER, SdpSettings
from orderwire.kernel import NS_PER_S, Broadcast, Indicate, ProcessId, Send, ms, stream
from orderwire.sim.lan import Lan, LanSettings
from orderwire.sim.population import Population, TopicSettings, draw_topics, matching
from orderwire.sim.world import COMMAND, TIMER, World

SLICE_NS = ms(20)
"""How often a run looks whether it is done."""

_Work: TypeAlias = tuple[int | None, SdpPdu | int]
"""To whom (None is all) and a PDU, or the numbers of data as bits."""


class SdpScenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of the baseline."""

    population: Population
    sdp: SdpSettings = PAPER
    lan: LanSettings = LanSettings()
    topics: TopicSettings | None = None
    """With topics SDPBloom runs; without them SDP."""
    start_window_ns: int = 0
    """Starts are spread over this, uniformly."""
    until_ns: int = 300 * NS_PER_S
    """A run that is not done by then ends with pairs missing."""


class SdpParticipantRow(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took until everybody knew one participant's endpoints, in seconds."""

    participant: int
    level: int
    endpoints: int
    start_s: float
    from_start_s: float
    """The largest over all peers, from the participant's own start."""
    from_both_up_s: float
    """The largest over all peers, from the later one of the two starts."""
    pairs_missing: int
    """Peers that have not learned all of it."""


class SdpResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one run measured."""

    rows: tuple[SdpParticipantRow, ...]
    p50_s: float
    """Median, over endpoints and those who learn them, from the owner's start."""
    sent: int
    """Messages sent, a multicast as one to each receiver, what queues dropped included."""
    received: int
    payload_bytes: int
    """Of all messages sent."""
    wire_bytes: int
    kinds: dict[str, int]
    """Messages sent, by their kind; a multicast counts once."""
    events: int
    ended_s: float

    @property
    def max_s(self) -> float:
        """The longest latency of a participant, from its own start."""
        return max(row.from_start_s for row in self.rows)

    @property
    def max_both_up_s(self) -> float:
        """The longest latency of a participant, from when both were up."""
        return max(row.from_both_up_s for row in self.rows)

    @property
    def pairs_missing(self) -> int:
        """Pairs (receiver, source) of which the receiver has not learned all it should."""
        return sum(row.pairs_missing for row in self.rows)

    @property
    def reception_ratio(self) -> float:
        """Received messages to sent ones: the paper's measure, which knows nothing of the rest."""
        return self.received / self.sent

    def level_mean_s(self, level: int) -> float:
        """Mean, over the participants of this level, of their longest latencies."""
        return fmean(row.from_start_s for row in self.rows if row.level == level)


def run_sdp(scenario: SdpScenario, seed: int) -> SdpResult:
    """Run one scenario; the same seed gives the same run."""
    return _Run(scenario, seed).result()


class _Run:
    """The cores, the LAN, and what was learned when."""

    def __init__(self, scenario: SdpScenario, seed: int) -> None:
        self._scenario = scenario
        self._sdp = scenario.sdp
        self._endpoints = scenario.population.endpoints
        self._n = n = scenario.population.participants
        self._world = World()
        self._lan = Lan(self._world, n, scenario.lan, self._deliver, seed=seed)
        self._armed: list[int | None] = [None] * n
        self._backlogs: list[deque[_Work]] = [deque() for _ in range(n)]
        self._pumping = [False] * n
        self._kinds: Counter[type[SdpPdu]] = Counter()
        self._multicasts = 0
        self._latencies = array("q")
        self._known_ns = [[0] * n for _ in range(n)]
        """By source and receiver: when the last piece was learned."""
        self._cores, self._missing = self._make(seed)
        """By source and receiver: endpoints that are still to be learned."""
        self._pairs_left = sum(count > 0 for row in self._missing for count in row)
        chance = stream(seed, "sdp/starts")
        window_ns = scenario.start_window_ns
        self._starts_ns = [chance.randrange(window_ns) if window_ns else 0 for _ in range(n)]
        for host, at_ns in enumerate(self._starts_ns):
            self._world.at(at_ns, COMMAND, self._start, host)

    def _make(self, seed: int) -> tuple[list[OmgSdp], list[list[int]]]:
        n, settings = self._n, self._sdp
        chances = [stream(seed, f"sdp/{host}") for host in range(n)]
        if self._scenario.topics is None:
            cores = [
                OmgSdp(
                    ProcessId(host),
                    endpoints=self._endpoints[host],
                    settings=settings,
                    chance=chances[host],
                )
                for host in range(n)
            ]
            missing = [
                [0 if to == source else self._endpoints[source] for to in range(n)]
                for source in range(n)
            ]
            return cores, missing
        drawn = draw_topics(self._scenario.population, self._scenario.topics, seed)
        counts = matching(drawn)
        blooms: list[OmgSdp] = [
            SdpBloom(
                ProcessId(host),
                offers=[2 * topic + writes for topic, writes in drawn[host]],
                wants=[2 * topic + (not writes) for topic, writes in drawn[host]],
                settings=settings,
                chance=chances[host],
            )
            for host in range(n)
        ]
        return blooms, [[counts.get((to, source), 0) for to in range(n)] for source in range(n)]

    def result(self) -> SdpResult:
        """Run to the end and sum up."""
        until_ns = self._scenario.until_ns
        while self._pairs_left and self._world.now_ns < until_ns:
            self._world.run(min(self._world.now_ns + SLICE_NS, until_ns))
        counts = self._lan.counts
        more = self._multicasts * (self._n - 2)
        return SdpResult(
            rows=tuple(self._row(source) for source in range(self._n)),
            p50_s=median_low(self._latencies) / NS_PER_S if self._latencies else 0.0,
            sent=sum(count.frames for count in counts) + more,
            received=sum(count.received for count in counts),
            payload_bytes=sum(count.payload_bytes for count in counts),
            wire_bytes=sum(count.wire_bytes for count in counts),
            kinds={kind.__name__: count for kind, count in self._kinds.items()},
            events=self._world.events,
            ended_s=self._world.now_ns / NS_PER_S,
        )

    def _row(self, source: int) -> SdpParticipantRow:
        starts = self._starts_ns
        known = [
            (at_ns, max(starts[source], starts[to]))
            for to, at_ns in enumerate(self._known_ns[source])
            if at_ns
        ]
        return SdpParticipantRow(
            participant=source,
            level=self._scenario.population.levels[source],
            endpoints=self._endpoints[source],
            start_s=starts[source] / NS_PER_S,
            from_start_s=max((at for at, _ in known), default=starts[source]) / NS_PER_S
            - starts[source] / NS_PER_S,
            from_both_up_s=max((at - up for at, up in known), default=0) / NS_PER_S,
            pairs_missing=sum(count > 0 for count in self._missing[source]),
        )

    def _start(self, host: int, _none: Any) -> None:
        self._apply(host, self._cores[host].submit(Start(), self._world.now_ns))
        self._arm(host)

    def _deliver(self, to: int, source: int, pdu: SdpPdu) -> None:
        core = self._cores[to]
        effects = core.receive(ProcessId(source), pdu, self._world.now_ns)
        if effects:
            self._apply(to, effects)
        due = core.next_deadline()
        armed = self._armed[to]
        if due is not None and (armed is None or due < armed):
            self._arm(to)

    def _arm(self, host: int) -> None:
        due = self._cores[host].next_deadline()
        armed = self._armed[host]
        if due is not None and (armed is None or due < armed):
            self._armed[host] = due
            self._world.at(due, TIMER, self._wake, host, due)

    def _wake(self, host: int, due: int) -> None:
        if self._armed[host] != due:
            return
        self._armed[host] = None
        self._apply(host, self._cores[host].wake(self._world.now_ns))
        self._arm(host)

    def _apply(self, host: int, effects: SdpEffects) -> None:
        blocking = self._sdp.blocking
        for effect in effects:
            match effect:
                case Indicate():
                    if type(effect.indication) is Learned:
                        self._learn(host, effect.indication)
                case Send():
                    if blocking:
                        self._backlogs[host].append((effect.to, effect.pdu))
                    else:
                        self._send(host, effect.to, effect.pdu)
                case SendData():
                    if blocking:
                        self._backlogs[host].append((effect.to, effect.numbers))
                    else:
                        self._send_data(host, effect.to, effect.numbers)
                case Broadcast():
                    if blocking:
                        self._backlogs[host].append((None, effect.pdu))
                    else:
                        self._send(host, None, effect.pdu)
                case _:
                    assert_never(effect)
        if blocking and not self._pumping[host]:
            self._pump(host, None)

    def _send(self, host: int, to: int | None, pdu: SdpPdu) -> None:
        self._kinds[type(pdu)] += 1
        size = control_bytes(pdu, self._sdp.participant_bytes, self._sdp.heartbeat_bytes)
        if to is None:
            self._multicasts += 1
            self._lan.multicast(host, size, pdu)
        else:
            self._lan.send_datagram(host, to, size, pdu)

    def _send_data(self, host: int, to: int, numbers: int) -> int:
        """Offer data to the host's queue; return what has found room there, as bits."""
        size = self._sdp.endpoint_bytes * self._sdp.endpoints_per_datagram
        offered = numbers.bit_count()
        room = self._lan.room(host, size)
        left = offered if room is None else min(room, offered)
        items = []
        rest = numbers
        while left:
            lowest = rest & -rest
            items.append(endpoint_data(lowest.bit_length() - 1))
            rest ^= lowest
            left -= 1
        if self._sdp.blocking:
            offered = len(items)
        self._kinds[Endpoint] += offered
        self._lan.send_datagrams(host, to, size, items, offered)
        return numbers ^ rest

    def _pump(self, host: int, _none: Any) -> None:
        """Send what waits, in order, as far as there is room; then come back for the rest."""
        backlog = self._backlogs[host]
        self._pumping[host] = False
        while backlog:
            to, what = backlog[0]
            if isinstance(what, int):
                assert to is not None
                rest = what ^ self._send_data(host, to, what)
                if rest:
                    backlog[0] = (to, rest)
                    break
            else:
                size = control_bytes(what, self._sdp.participant_bytes, self._sdp.heartbeat_bytes)
                room = self._lan.room(host, size)
                if room == 0:
                    break
                self._send(host, to, what)
            backlog.popleft()
        if backlog:
            self._pumping[host] = True
            free_ns = self._lan.uplink_free_ns[host]
            half_ns = (free_ns - self._world.now_ns) // 2
            self._world.at(self._world.now_ns + half_ns, TIMER, self._pump, host)

    def _learn(self, host: int, learned: Learned) -> None:
        source = learned.participant
        now_ns = self._world.now_ns
        per_datagram = self._sdp.endpoints_per_datagram
        missing = self._missing[source]
        count = min(per_datagram, missing[host])
        latency_ns = now_ns - self._starts_ns[source]
        if count == 1:
            self._latencies.append(latency_ns)
        else:
            self._latencies.extend([latency_ns] * count)
        missing[host] -= count
        self._known_ns[source][host] = now_ns
        if not missing[host]:
            self._pairs_left -= 1
