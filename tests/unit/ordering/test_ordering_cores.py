"""What every ordering algorithm of the catalog does alike, and the edges of jang-delta."""

from typing import Any

import msgspec
import pytest

from orderwire.kernel import (
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    Send,
    destinations,
    ms,
    probes,
    us,
)
from orderwire.ordering.catalog import ALGORITHMS, Algorithm, OrderingSettings, algorithm
from orderwire.ordering.jang_delta import JangDelta
from orderwire.ordering.jang_delta_codec import JangDeltaPdu
from orderwire.ordering.pdu import Delivered, Discarded, DiscardReason, Lost, Multicast, Sent

SETTINGS = OrderingSettings(members=3, lifetime_ns=ms(100), epsilon_ns=ms(1))
ENTRIES = pytest.mark.parametrize("entry", ALGORITHMS.values(), ids=lambda entry: entry.name)


def pair(entry: Algorithm, settings: OrderingSettings = SETTINGS) -> tuple[Any, Any]:
    return entry.create(ProcessId(0), settings), entry.create(ProcessId(1), settings)


def first_pdu(effects: Effects) -> Any:
    assert isinstance(effects[0], Send)
    return effects[0].pdu


def indications(effects: Effects) -> list[Any]:
    return [effect.indication for effect in effects if isinstance(effect, Indicate)]


def received(receiver: Any, pdu: Any, now: int) -> list[Any]:
    """Receive a copy from process 0; let it wait as long as its algorithm holds it anyway."""
    told = indications(receiver.receive(ProcessId(0), pdu, Instant(now)))
    return told or indications(receiver.wake(receiver.next_deadline()))


@ENTRIES
def test_a_multicast_becomes_sends_then_sent_then_local_delivery(entry: Algorithm) -> None:
    sender, receiver = pair(entry)
    codec = entry.codec(ProcessId(1), SETTINGS)
    now = Instant(ms(5) + 123)
    effects = sender.submit(Multicast(b"text", destinations([0, 1, 2])), now)
    assert [effect.to for effect in effects if isinstance(effect, Send)] == [1, 2]
    data = codec.encode(first_pdu(effects))
    control_bytes = len(data) - len(b"text")
    assert indications(effects) == [
        Sent(0, Instant(ms(5)), destinations([0, 1, 2]), 2 * control_bytes),
        Delivered(ProcessId(0), 0, Instant(ms(5)), now, b"text", destinations([0, 1, 2]), 0),
    ]
    arrived = Instant(ms(7))
    assert received(receiver, codec.decode(data), arrived) == [
        Delivered(
            ProcessId(0),
            0,
            Instant(ms(5)),
            arrived,
            b"text",
            destinations([0, 1, 2]),
            control_bytes,
        )
    ]


@ENTRIES
@pytest.mark.parametrize(
    ("arrived", "reason"),
    [
        (ms(100), None),
        (ms(100) + 1, DiscardReason.LATE),
        (ms(100) + us(1), DiscardReason.LATE),
    ],
)
def test_lateness_is_judged_to_the_nanosecond(
    entry: Algorithm, arrived: int, reason: DiscardReason | None
) -> None:
    sender, receiver = pair(entry)
    pdu = first_pdu(sender.submit(Multicast(b"m", destinations([1])), Instant(0)))
    (indication,) = indications(receiver.receive(ProcessId(0), pdu, Instant(arrived)))
    if reason is None:
        assert isinstance(indication, Delivered)
    else:
        assert isinstance(indication, Discarded)
        assert indication.reason is reason
        assert indication.arrived == arrived
        assert indication.payload_bytes == 1


@ENTRIES
def test_a_copy_from_the_future_is_refused_and_drags_no_stamp_along(entry: Algorithm) -> None:
    sender, receiver = pair(entry)
    guard = SETTINGS.epsilon_ns + SETTINGS.future_guard_ns
    pdu = first_pdu(sender.submit(Multicast(b"m", destinations([1])), Instant(guard + us(1))))
    (refused,) = indications(receiver.receive(ProcessId(0), pdu, Instant(0)))
    assert refused.reason is DiscardReason.FUTURE
    effects = receiver.submit(Multicast(b"m", destinations([0])), Instant(us(1)))
    assert indications(effects)[0].stamp == us(1)
    (accepted,) = received(receiver, pdu, us(1))
    assert isinstance(accepted, Delivered)


@ENTRIES
def test_a_clock_that_steps_back_stands_still(entry: Algorithm) -> None:
    sender, receiver = pair(entry)
    pdu = first_pdu(sender.submit(Multicast(b"m", destinations([1])), Instant(ms(50))))
    receiver.wake(Instant(ms(60)))
    (delivered,) = received(receiver, pdu, ms(40))
    assert delivered.arrived == ms(60)
    effects = sender.submit(Multicast(b"m", destinations([1])), Instant(ms(10)))
    assert indications(effects)[0].stamp == ms(50) + us(1)


@ENTRIES
def test_a_duplicate_is_counted(entry: Algorithm) -> None:
    sender, receiver = pair(entry)
    pdu = first_pdu(sender.submit(Multicast(b"m", destinations([1])), Instant(0)))
    receiver.receive(ProcessId(0), pdu, Instant(ms(1)))
    (again,) = indications(receiver.receive(ProcessId(0), pdu, Instant(ms(2))))
    assert again.reason is DiscardReason.DUPLICATE


@ENTRIES
def test_wrong_commands_are_the_callers_fault(entry: Algorithm) -> None:
    core = entry.create(ProcessId(0), SETTINGS)
    for mask, why in ((0, "at least one destination"), (8, "outside 0 … 2")):
        with pytest.raises(LocalProtocolError, match=why):
            core.submit(Multicast(b"", mask), Instant(0))  # type: ignore[arg-type]
    quiet = msgspec.structs.replace(SETTINGS, quiet_until_ns=ms(10), first_number=7)
    core = entry.create(ProcessId(0), quiet)
    with pytest.raises(LocalProtocolError, match="must not multicast before"):
        core.submit(Multicast(b"", destinations([1])), Instant(ms(10) - 1))
    effects = core.submit(Multicast(b"", destinations([1])), Instant(ms(10)))
    assert indications(effects)[0].number == 7


@ENTRIES
def test_a_lifetime_of_its_own_is_given_or_refused(entry: Algorithm) -> None:
    core = entry.create(ProcessId(0), SETTINGS)
    to = destinations([1])
    assert core.submit(Multicast(b"", to, SETTINGS.lifetime_ns), Instant(0))
    if entry.name == "rodrigues-deadline":
        assert core.submit(Multicast(b"", to, ms(50)), Instant(0))
    else:
        with pytest.raises(LocalProtocolError, match="lifetime_ns=100000000, got 50000000"):
            core.submit(Multicast(b"", to, ms(50)), Instant(0))


@pytest.mark.parametrize(
    "name", ["unordered", "fifo", "jang-delta", "yoshimoto-maxcb", "rodrigues-deadline"]
)
def test_wrong_sources_are_the_peers_fault(name: str) -> None:
    sender, receiver = pair(ALGORITHMS[name])
    pdu = first_pdu(sender.submit(Multicast(b"m", destinations([1])), Instant(0)))
    for source in (1, 3, -1):
        with pytest.raises(RemoteProtocolError, match="no peer"):
            receiver.receive(ProcessId(source), pdu, Instant(0))
    with pytest.raises(RemoteProtocolError, match="I am 2"):
        ALGORITHMS[name].create(ProcessId(2), SETTINGS).receive(ProcessId(0), pdu, Instant(0))


@pytest.mark.parametrize("name", ["unordered", "jang-delta", "jang-delta-reference"])
def test_a_loss_report_changes_nothing_where_the_deadline_decides(name: str) -> None:
    core = ALGORITHMS[name].create(ProcessId(0), SETTINGS)
    assert core.submit(Lost(ProcessId(1), 0, 5), Instant(0)) == []
    assert core.next_deadline() is None


def test_unordered_remembers_a_bounded_number_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orderwire.ordering.unordered.STAMPS_REMEMBERED", 4)
    sender, receiver = pair(ALGORITHMS["unordered"])
    pdus = [
        first_pdu(sender.submit(Multicast(b"m", destinations([1])), Instant(index)))
        for index in range(30)
    ]
    for pdu in pdus:
        (told,) = indications(receiver.receive(ProcessId(0), pdu, Instant(ms(1))))
        assert isinstance(told, Delivered)
    for pdu in (pdus[0], pdus[29]):
        (told,) = indications(receiver.receive(ProcessId(0), pdu, Instant(ms(1))))
        assert told.reason is DiscardReason.DUPLICATE


def test_the_catalog_names_what_there_is() -> None:
    assert algorithm("fifo").name == "fifo"
    with pytest.raises(LocalProtocolError, match=r"'total'; there are unordered, fifo"):
        algorithm("total")
    twins = {name for name, entry in ALGORITHMS.items() if entry.twin}
    assert twins == {"jang-delta-reference", "kshemkalyani-singhal-flat"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"members": 0}, "members=0"),
        ({"members": 4_097}, "members=4097"),
        ({"tick_ns": 0}, "tick_ns=0"),
        ({"lifetime_ns": 0}, "lifetime_ns=0"),
        ({"lifetime_ns": 1_500}, "no positive multiple"),
        ({"epsilon_ns": -1}, "epsilon_ns=-1"),
        ({"waiting_messages_max": 0}, "waiting_messages_max=0"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        OrderingSettings(**({"members": 3} | change))  # type: ignore[arg-type]


# Edges of jang-delta


def chain(settings: OrderingSettings = SETTINGS) -> tuple[JangDeltaPdu, JangDeltaPdu]:
    """Question of 0 to 1 and 2, and 1's answer to 2, which depends on it."""
    asking, answering = pair(ALGORITHMS["jang-delta"], settings)
    effects = asking.submit(Multicast(b"question", destinations([1, 2])), Instant(0))
    answering.receive(ProcessId(0), first_pdu(effects), Instant(ms(1)))
    assert isinstance(effects[1], Send)
    answer = answering.submit(Multicast(b"answer", destinations([2])), Instant(ms(2)))
    return effects[1].pdu, first_pdu(answer)


def test_waiting_messages_are_bounded() -> None:
    settings = msgspec.structs.replace(SETTINGS, waiting_messages_max=1)
    _, answer = chain(settings)
    core = JangDelta(ProcessId(2), settings)
    assert core.receive(ProcessId(1), answer, Instant(ms(3))) == []
    more = msgspec.structs.replace(answer, stamp=answer.stamp + 1, number=1)
    (dropped,) = indications(core.receive(ProcessId(1), more, Instant(ms(3))))
    assert dropped.reason is DiscardReason.FULL
    (again,) = indications(core.receive(ProcessId(1), answer, Instant(ms(3))))
    assert again.reason is DiscardReason.DUPLICATE


def test_a_late_wake_delivers_what_waited_in_time() -> None:
    question, answer = chain()
    core = JangDelta(ProcessId(2), SETTINGS)
    core.receive(ProcessId(1), answer, Instant(ms(3)))
    assert core.next_deadline() == ms(100) + 1
    (late,) = indications(core.wake(Instant(ms(500))))
    assert late.payload == b"answer"
    (discarded,) = indications(core.receive(ProcessId(0), question, Instant(ms(500))))
    assert discarded.reason is DiscardReason.LATE


def test_a_copy_that_comes_with_the_late_timer_is_delivered_behind_what_was_due() -> None:
    """Due at once: the answer that waited, then the newer message that has just arrived."""
    _, answer = chain()
    answering = JangDelta(ProcessId(1), SETTINGS)
    newer = first_pdu(answering.submit(Multicast(b"newer", destinations([2])), Instant(ms(150))))
    core = JangDelta(ProcessId(2), SETTINGS)
    core.receive(ProcessId(1), answer, Instant(ms(3)))
    told = indications(core.receive(ProcessId(1), newer, Instant(ms(200))))
    assert [delivered.payload for delivered in told] == [b"answer", b"newer"]


def test_without_lifetime_a_message_waits_without_deadline() -> None:
    settings = msgspec.structs.replace(SETTINGS, lifetime_ns=None)
    question, answer = chain(settings)
    core = JangDelta(ProcessId(2), settings)
    assert core.receive(ProcessId(1), answer, Instant(ms(3))) == []
    assert core.next_deadline() is None
    assert core.wake(Instant(ms(3_600_000))) == []
    told = indications(core.receive(ProcessId(0), question, Instant(ms(3_600_001))))
    assert [delivered.payload for delivered in told] == [b"question", b"answer"]


def test_a_peer_that_forgets_its_own_predecessor_does_no_harm() -> None:
    """Its later message overtakes the earlier one; the watermark never goes back."""
    _, answer = chain()
    core = JangDelta(ProcessId(2), SETTINGS)
    core.receive(ProcessId(1), answer, Instant(ms(3)))
    forgetful = msgspec.structs.replace(answer, stamp=answer.stamp + 5, number=1, waits=())
    hits = probes.hits["causal: overtaken by a later message of its sender"]
    assert len(indications(core.receive(ProcessId(1), forgetful, Instant(ms(4))))) == 1
    (overtaken,) = indications(core.wake(Instant(ms(101))))
    assert overtaken.payload == b"answer"
    assert probes.hits["causal: overtaken by a later message of its sender"] == hits + 1
    again = msgspec.structs.replace(answer, stamp=answer.stamp + 3, number=2, waits=())
    (told,) = indications(core.receive(ProcessId(1), again, Instant(ms(101))))
    assert told.reason is DiscardReason.DUPLICATE


def test_copies_with_equal_dependencies_share_one_pdu() -> None:
    core = JangDelta(ProcessId(0), SETTINGS)
    core.submit(Multicast(b"", destinations([1, 2])), Instant(0))
    effects = core.submit(Multicast(b"", destinations([1, 2])), Instant(ms(1)))
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert sends[0].pdu is sends[1].pdu
