"""SPDP and SEDP as a core: announcements, handshake, repair, windows, leases, who says what."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from orderwire.discovery.omg_sdp import (
    Gone,
    Joined,
    Learned,
    Leave,
    Offer,
    OmgSdp,
    SdpEffects,
    SendData,
    Start,
)
from orderwire.discovery.sdp_messages import (
    ACKNACK_BYTES,
    ENDPOINTS_MAX,
    HEARTBEAT_BYTES,
    AckNack,
    Announcement,
    Endpoint,
    EndpointAck,
    Goodbye,
    Heartbeat,
    Request,
    control_bytes,
    endpoint_ack,
    endpoint_data,
)
from orderwire.discovery.sdp_settings import MODERN, PAPER, VENDORS, SdpSettings
from orderwire.kernel import (
    Broadcast,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    Send,
    ms,
)

S = ms(1_000)
ME, YOU = ProcessId(0), ProcessId(1)


def participant(me: int = 0, endpoints: int = 3, **changes: Any) -> OmgSdp:
    settings = SdpSettings(**({"announcement_jitter_ns": 0, "reply": "none"} | changes))
    return OmgSdp(ProcessId(me), endpoints=endpoints, settings=settings, chance=Random(me))


def started(**options: Any) -> OmgSdp:
    core = participant(**options)
    assert core.submit(Start(), Instant(0)) == [Broadcast(Announcement())]
    return core


def met(**options: Any) -> OmgSdp:
    """A participant that has met YOU and sends it its data."""
    core = started(**options)
    core.receive(YOU, Announcement(), Instant(1))
    core.receive(YOU, Heartbeat(0), Instant(2))
    return core


def wake_until(core: OmgSdp, until_ns: int) -> list[tuple[int, SdpEffects]]:
    """What the core does on its own, and when."""
    done = []
    while (due := core.next_deadline()) is not None and due <= until_ns:
        assert core.wake(Instant(due - 1)) == []
        done.append((due, core.wake(due)))
    return done


class Wire:
    """Some cores whose messages arrive a millisecond later, unless they are dropped."""

    def __init__(self, cores: list[OmgSdp], drop: Callable[[int, int, Any], bool]) -> None:
        self.cores = cores
        self.drop = drop
        self.log: list[tuple[int, int, int | None, Any]] = []
        self.told: list[tuple[int, int, Any]] = []
        self.queue: list[tuple[int, int, int, int, Any]] = []
        self.now = 0
        for core in range(len(cores)):
            self.apply(core, cores[core].submit(Start(), Instant(0)))

    def apply(self, me: int, effects: SdpEffects) -> None:
        others = [to for to in range(len(self.cores)) if to != me]
        for effect in effects:
            match effect:
                case Indicate(indication):
                    self.told.append((self.now, me, indication))
                case Send(to, pdu):
                    self.send(me, [to], pdu)
                case Broadcast(pdu):
                    self.send(me, others, pdu)
                case SendData(to, numbers):
                    for number in range(numbers.bit_length()):
                        if numbers >> number & 1:
                            self.send(me, [to], endpoint_data(number))

    def send(self, me: int, targets: list[int], pdu: Any) -> None:
        for to in targets:
            self.log.append((self.now, me, to, pdu))
            if not self.drop(me, to, pdu):
                self.queue.append((self.now + ms(1), len(self.log), me, to, pdu))

    def run(self, until_ns: int) -> None:
        while True:
            self.queue.sort()
            due = [at for core in self.cores if (at := core.next_deadline()) is not None]
            at = min([*due, *(entry[0] for entry in self.queue[:1])], default=None)
            if at is None or at > until_ns:
                self.now = until_ns
                return
            self.now = at
            if self.queue and self.queue[0][0] == at:
                _, _, source, to, pdu = self.queue.pop(0)
                effects = self.cores[to].receive(ProcessId(source), pdu, Instant(at))
                self.apply(to, effects)
                continue
            for me, core in enumerate(self.cores):
                if core.next_deadline() == at:
                    self.apply(me, core.wake(Instant(at)))

    def sent(self, kind: type) -> int:
        return sum(type(pdu) is kind for *_, pdu in self.log)

    def learned(self, me: int) -> set[tuple[int, int]]:
        return {
            (what.participant, what.number)
            for _, who, what in self.told
            if who == me and isinstance(what, Learned)
        }


def never(*_: Any) -> bool:
    return False


def test_a_participant_announces_itself_six_times_and_then_each_period() -> None:
    core = started()
    announced = [at for at, what in wake_until(core, 65 * S) if Broadcast(Announcement()) in what]
    first = [ms(100) * i for i in range(1, 6)]
    assert announced == [*first, first[-1] + 30 * S, first[-1] + 60 * S]


def test_the_first_announcement_waits_for_a_random_part_of_the_jitter() -> None:
    waits = set()
    for me in range(20):
        core = participant(me, announcement_jitter_ns=1_000)
        at = 0 if core.submit(Start(), Instant(0)) else core.next_deadline()
        assert at is not None
        assert 0 <= at <= 1_000
        waits.add(at)
    assert len(waits) > 15


def test_data_starts_when_the_peer_is_known_and_has_answered() -> None:
    core = started(endpoints=3)
    assert core.receive(YOU, Announcement(), Instant(1)) == [
        Indicate(Joined(YOU)),
        Send(YOU, Heartbeat(0)),
    ]
    assert core.receive(YOU, AckNack(0, 0, 0), Instant(2)) == [SendData(YOU, 0b111)]
    other = started(endpoints=3)
    assert other.receive(YOU, Heartbeat(0), Instant(1)) == [Send(YOU, AckNack(0, 0, 0))]
    assert other.receive(YOU, Announcement(), Instant(2)) == [
        Indicate(Joined(YOU)),
        Send(YOU, Heartbeat(0)),
        SendData(YOU, 0b111),
    ]
    assert core.view() == other.view() == [YOU]


def test_every_datum_is_acknowledged_and_learned_once() -> None:
    core = met()
    assert core.receive(YOU, endpoint_data(5), Instant(3)) == [
        Indicate(Learned(YOU, 5)),
        Send(YOU, endpoint_ack(5)),
    ]
    assert core.receive(YOU, endpoint_data(5), Instant(4)) == [Send(YOU, endpoint_ack(5))]
    modern = met(acknowledge_each=False)
    assert modern.receive(YOU, endpoint_data(5), Instant(3)) == [Indicate(Learned(YOU, 5))]


def test_a_peer_that_lacks_data_is_asked_each_period_and_gets_what_it_names() -> None:
    core = met(endpoints=4)
    for number in (0, 3):
        core.receive(YOU, endpoint_ack(number), Instant(3))
    asked = [at for at, what in wake_until(core, 4 * S) if Send(YOU, Heartbeat(4)) in what]
    assert S < asked[0] <= 2 * S
    assert asked == [asked[0] + S * i for i in range(len(asked))]
    assert core.receive(YOU, AckNack(1, 4, 0b0110), Instant(4 * S)) == [SendData(YOU, 0b0110)]
    assert core.receive(YOU, AckNack(4, 4, 0), Instant(4 * S)) == []
    assert all(Send(YOU, Heartbeat(4)) not in what for _, what in wake_until(core, 8 * S))


def test_a_peer_that_has_not_answered_is_asked_again() -> None:
    core = started()
    core.receive(YOU, Announcement(), Instant(1))
    asked = [at for at, what in wake_until(core, 3 * S) if Send(YOU, Heartbeat(0)) in what]
    assert len(asked) >= 1


def test_an_acknack_names_at_most_its_window_and_the_writer_waits_for_the_rest() -> None:
    reader = met(nack_numbers_max=256)
    for number in (0, 1, 2, 10):
        reader.receive(YOU, endpoint_data(number), Instant(3))
    window = ((1 << 259) - 1) & ~0b111 & ~(1 << 10)
    assert reader.receive(YOU, Heartbeat(600), Instant(4)) == [Send(YOU, AckNack(3, 259, window))]
    writer = met(endpoints=600, nack_numbers_max=256, follow_up=True)
    assert writer.receive(YOU, AckNack(3, 259, window), Instant(4)) == [
        SendData(YOU, window),
        Send(YOU, Heartbeat(600)),
    ]
    assert writer.receive(YOU, AckNack(259, 515, 1 << 300), Instant(5)) == [
        SendData(YOU, 1 << 300),
        Send(YOU, Heartbeat(600)),
    ]
    # 515 … 599 have not been spoken of: the peer is still asked.
    assert any(Send(YOU, Heartbeat(600)) in what for _, what in wake_until(writer, 2 * S))
    assert writer.receive(YOU, AckNack(600, 600, 0), Instant(2 * S)) == []
    assert all(Send(YOU, Heartbeat(600)) not in what for _, what in wake_until(writer, 6 * S))


def test_answers_and_repairs_wait_for_their_delays() -> None:
    """RTPS: 500 ms before a HEARTBEAT is answered, 200 ms before a NACK is served."""
    core = met(endpoints=3, heartbeat_response_ns=ms(500), nack_response_ns=ms(200))
    assert core.receive(YOU, Heartbeat(2), Instant(ms(10))) == []
    assert core.receive(YOU, Heartbeat(2), Instant(ms(20))) == []
    assert core.receive(YOU, AckNack(0, 3, 0b101), Instant(ms(30))) == []
    waits = [
        (at, effect)
        for at, what in wake_until(core, S)
        for effect in what
        if effect != Broadcast(Announcement())
    ]
    assert waits == [
        (ms(230), SendData(YOU, 0b101)),
        (ms(500) + 2, Send(YOU, AckNack(0, 2, 0b11))),
    ]


@pytest.mark.parametrize("settings", [PAPER, MODERN, *VENDORS.values()])
def test_all_settings_end_with_everybody_knowing_everything(settings: SdpSettings) -> None:
    cores = [
        OmgSdp(ProcessId(i), endpoints=e, settings=settings, chance=Random(i))
        for i, e in enumerate((0, 5, 300, 17))
    ]
    chance = Random(4)
    wire = Wire(cores, lambda *_: chance.random() < 0.3)
    wire.run(120 * S)
    for me, core in enumerate(cores):
        assert core.view() == [other for other in range(4) if other != me]
        assert wire.learned(me) == {
            (other, number)
            for other, count in enumerate((0, 5, 300, 17))
            if other != me
            for number in range(count)
        }


def test_without_loss_every_datum_is_sent_once_per_peer() -> None:
    wire = Wire([participant(i, endpoints=10) for i in range(5)], never)
    wire.run(20 * S)
    assert wire.sent(Endpoint) == wire.sent(EndpointAck) == 10 * 5 * 4
    assert wire.sent(Heartbeat) == 5 * 4


@pytest.mark.parametrize("lost", range(0, 60, 7))
def test_any_lost_message_is_repaired(lost: int) -> None:
    """Also a lost announcement: it is repeated."""
    count = iter(range(1_000_000))
    wire = Wire([participant(i, endpoints=4) for i in range(3)], lambda *_: next(count) == lost)
    wire.run(5 * S)
    for me in range(3):
        assert len(wire.learned(me)) == 8


def test_a_lease_that_runs_out_and_a_goodbye_end_a_participant() -> None:
    core = met(announcements=1, announcement_period_ns=S, lease_ns=3 * S)
    gone = [at for at, what in wake_until(core, 9 * S) if Indicate(Gone(YOU)) in what]
    assert gone == [4 * S]
    assert core.view() == []
    core.receive(YOU, Announcement(), Instant(9 * S))
    assert core.view() == [YOU]
    assert core.receive(YOU, Goodbye(), Instant(9 * S)) == [Indicate(Gone(YOU))]
    assert core.receive(YOU, Goodbye(), Instant(9 * S)) == []
    assert core.view() == []


def test_an_announcement_keeps_a_lease() -> None:
    core = met(announcements=1, announcement_period_ns=S, lease_ns=3 * S)
    for second in range(1, 20):
        assert all(Indicate(Gone(YOU)) not in what for _, what in wake_until(core, second * S))
        core.receive(YOU, Announcement(), Instant(second * S))


def test_new_endpoints_go_to_every_peer_that_has_the_others() -> None:
    core = met(endpoints=3)
    assert core.submit(Offer(2), Instant(5)) == [SendData(YOU, 0b11000)]
    assert core.data == 5


def test_several_endpoints_share_a_datagram() -> None:
    core = participant(endpoints=630, endpoints_per_datagram=8)
    assert core.data == 79


def test_a_participant_that_has_left_is_silent() -> None:
    core = met()
    assert core.submit(Leave(), Instant(5)) == [Broadcast(Goodbye())]
    assert core.next_deadline() is None
    assert core.receive(YOU, Announcement(), Instant(6)) == []
    assert participant().receive(YOU, Announcement(), Instant(6)) == []


def test_what_the_caller_may_not_do() -> None:
    core = started()
    with pytest.raises(LocalProtocolError, match="participant 0 runs already"):
        core.submit(Start(), Instant(1))
    with pytest.raises(LocalProtocolError, match="0 endpoints more, expected at least 1"):
        core.submit(Offer(0), Instant(1))
    with pytest.raises(LocalProtocolError, match="participant 0 does not run"):
        participant().submit(Leave(), Instant(1))


def test_what_a_peer_may_not_send() -> None:
    core = met()
    with pytest.raises(RemoteProtocolError, match="data 65536, expected less than 65536"):
        core.receive(YOU, Endpoint(ENDPOINTS_MAX), Instant(3))
    with pytest.raises(RemoteProtocolError, match="65537 data, expected at most 65536"):
        core.receive(YOU, Heartbeat(ENDPOINTS_MAX + 1), Instant(3))
    with pytest.raises(RemoteProtocolError, match="sent a request; SDP knows none"):
        core.receive(YOU, Request((1,)), Instant(3))
    assert core.receive(YOU, EndpointAck(99), Instant(3)) == []


@pytest.mark.parametrize("n", [4, 12])
def test_answering_at_once_announces_n_squared_times_and_jitter_does_not(n: int) -> None:
    """OpenDDS: 300 participants that answer every new one at once send 300² announcements."""

    def announcements(reply: str, replies: int = 1) -> int:
        settings = {"announcements": 1, "reply": reply, "replies": replies}
        cores = [participant(i, endpoints=0, **settings) for i in range(n)]
        wire = Wire(cores, never)
        wire.run(10 * S)
        for me, core in enumerate(cores):
            assert core.view() == [other for other in range(n) if other != me]
        return wire.sent(Announcement) // (n - 1)

    assert announcements("none") == n
    assert announcements("at once") == n + n * (n - 1)
    assert announcements("jittered") == 2 * n
    assert announcements("jittered", replies=3) == 4 * n


def test_a_newcomer_learns_of_those_who_announced_themselves_before_it() -> None:
    """Of three answers all but one may be lost."""
    core = started(announcements=1, reply="jittered")
    core.receive(YOU, Announcement(), Instant(10 * S))
    answers = [at for at, what in wake_until(core, 20 * S) if Broadcast(Announcement()) in what]
    assert len(answers) == 3
    assert 10 * S < answers[0] <= answers[1] <= answers[2] <= 10 * S + ms(300)
    assert core.receive(YOU, Announcement(), Instant(20 * S)) == []


def test_sizes() -> None:
    """A set of n missing numbers takes n bits, in words of four bytes."""

    def size(pdu: Any) -> int:
        return control_bytes(pdu, 200, HEARTBEAT_BYTES)

    assert size(Announcement()) == size(Goodbye()) == 200
    assert size(Announcement(5, 788)) == 988
    assert size(Heartbeat(9)) == HEARTBEAT_BYTES
    assert size(EndpointAck(9)) == size(AckNack(9, 9, 0))
    assert size(AckNack(10, 42, 1 << 41)) == ACKNACK_BYTES + 4
    assert size(AckNack(10, 43, 1 << 42)) == ACKNACK_BYTES + 8
    assert size(Request((1, 2))) == 68
    with pytest.raises(AssertionError, match="as large as its settings say"):
        size(Endpoint(1))
