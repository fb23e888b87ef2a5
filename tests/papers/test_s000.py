"""S000: one test per statement of the paper, and per decision where we corrected it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from broken_twins import IgnoresEpsilon, PrintedLiteral, Twin
from judging import broken

from orderwire.kernel import Instant, ProcessId, Send, destinations
from orderwire.ordering.catalog import ALGORITHMS, Algorithm, OrderingSettings
from orderwire.ordering.jang_delta import JangDelta
from orderwire.ordering.jang_delta_codec import JangDeltaCodec, JangDeltaPdu
from orderwire.ordering.pdu import Delivered, Multicast
from orderwire.sim.schedule import Replayed, Schedule, ScheduledSend, replay
from orderwire.sim.vectors import check_paths
from orderwire.verify.history import rebuild

JANG = ALGORITHMS["jang-delta"]
VECTORS = Path(__file__).parents[1] / "vectors" / "causal"


def send(
    name: str, at: int, sender: int, arrive: Mapping[int, int | None], **more: bool
) -> ScheduledSend:
    """One message to the processes of `arrive`."""
    to = tuple(sorted(arrive))
    return ScheduledSend(id=name, at=at, sender=sender, to=to, arrive=arrive, **more)


def run(
    *sends: ScheduledSend,
    processes: int = 4,
    lifetime: int | None = 100,
    algorithm: Algorithm = JANG,
    empties: bool = False,
    epsilon: int = 0,
    offsets: tuple[int, ...] = (),
    granularity: int = 1,
) -> tuple[Schedule, Replayed]:
    schedule = Schedule(
        processes=processes,
        lifetime=lifetime,
        sends=sends,
        epsilon=epsilon,
        clock_offsets=offsets,
        timer_granularity=granularity,
    )
    return schedule, replay(schedule, algorithm, send_empty_entries=empties)


def entries_of(replayed: Replayed, name: str) -> dict[str, set[int]]:
    """CI of a message: name of the entry's message → destinations left."""
    pdu = next(iter(replayed.messages[name].pdus.values()))
    at_stamp = {(m.sender, m.stamp): m.id for m in replayed.messages.values()}
    return {
        at_stamp[sender, stamp]: {p for p in range(8) if mask >> p & 1}
        for sender, group in pdu.entries.items()
        for stamp, mask in group
    }


def waits_of(replayed: Replayed, name: str, process: int) -> set[str]:
    """DC of a copy."""
    at_stamp = {(m.sender, m.stamp): m.id for m in replayed.messages.values()}
    return {at_stamp[wait] for wait in replayed.messages[name].pdus[process].waits}


@pytest.mark.paper("S000:def.1")
def test_happened_before_is_over_sends_and_deliveries() -> None:
    """[S000:def.1] Same sender, or delivered before sending, or a chain; a discard is no link."""
    _, replayed = run(
        send("a", 0, 0, {1: 5, 2: None}),
        send("b", 10, 1, {2: 12}),
        send("late", 0, 3, {2: 101}),
        send("c", 102, 2, {0: 103}),
    )
    history = rebuild(replayed.events)
    pasts = {
        replayed.ids[message.key]: {replayed.ids[past.key] for past in history.past_of(message)}
        for message in history.messages
    }
    assert pasts == {"a": set(), "b": {"a"}, "late": set(), "c": {"a", "b"}}


@pytest.mark.paper("S000:def.2")
@pytest.mark.parametrize(("arrives", "delivered"), [(99, True), (100, True), (101, False)])
def test_in_time_is_delivered_and_late_is_discarded(arrives: int, delivered: bool) -> None:
    """[S000:def.2] (i) By stamp + Δ a message is delivered, one tick later it is discarded."""
    _, replayed = run(send("m", 0, 0, {1: arrives}))
    assert replayed.delivered[1] == ([("m", arrives)] if delivered else [])
    assert replayed.discarded[1] == ([] if delivered else [("m", arrives)])


@pytest.mark.paper("S000:def.2")
def test_a_delivered_predecessor_is_delivered_first() -> None:
    """[S000:def.2] (ii) The answer waits for the question that is still in flight."""
    _, replayed = run(send("question", 0, 0, {1: 5, 2: 50}), send("answer", 6, 1, {2: 10}))
    assert replayed.delivered[2] == [("question", 50), ("answer", 50)]


@pytest.mark.paper("S000:sec.2.2")
def test_stamps_grow_along_causality() -> None:
    """[S000:sec.2.2] A message that depends on another is stamped later, even in one tick."""
    _, replayed = run(
        send("a", 7, 0, {1: 7}, before_arrivals=True),
        send("b", 7, 0, {1: 8}, before_arrivals=True),
        send("c", 7, 1, {2: 9}),
    )
    stamps = {name: message.stamp for name, message in replayed.messages.items()}
    assert stamps == {"a": 7, "b": 8, "c": 8}


@pytest.mark.paper("S000:fig.1")
def test_no_waiting_for_what_is_more_than_the_lifetime_older() -> None:
    """[S000:fig.1] m3 is sent when m1 is dead: it is delivered at once, m1 is discarded."""
    assert check_paths([VECTORS / "000-fig1-no-buffering.json"]).failed == []


@pytest.mark.paper("S000:fig.2")
def test_waiting_ends_with_the_predecessor_or_its_deadline() -> None:
    """[S000:fig.2] A message waits for one in flight, and no longer than that may live."""
    assert check_paths([VECTORS / "000-fig2-wait-then-expiry.json"]).failed == []
    _, replayed = run(send("lost", 0, 0, {1: 5, 2: None}), send("m", 6, 1, {2: 10}))
    assert replayed.delivered[2] == [("m", 101)]


@pytest.mark.paper("S000:fig.3")
@pytest.mark.parametrize(
    "name",
    [
        "type1-must-keep",
        "type2-just-delivered",
        "type3-already-delivered",
        "type4-just-replaced",
        "type5-already-replaced",
    ],
)
def test_five_types_of_relation(name: str) -> None:
    """[S000:fig.3] Exactly what must be kept is on the wire."""
    assert check_paths([VECTORS / f"000-fig3-{name}.json"]).failed == []


@pytest.mark.paper("S000:sec.4")
def test_one_entry_per_sender_and_destination() -> None:
    """[S000:sec.4] A newer message of a sender to a destination takes the place of the older."""
    _, replayed = run(
        send("m1", 0, 0, {1: 90, 2: 90}),
        send("m2", 1, 0, {2: 91}),
        send("m3", 2, 0, {3: 3}),
    )
    assert entries_of(replayed, "m3") == {"m1": {1}, "m2": {2}}


@pytest.mark.paper("S000:sec.4.3")
def test_all_copies_carry_the_same_entries_and_each_its_own_dependencies() -> None:
    """[S000:sec.4.3] CI_m is common; DC_m[j] names what destination j must wait for."""
    _, replayed = run(
        send("m1", 0, 0, {1: 90, 3: 90}),
        send("m2", 1, 0, {2: 91}),
        send("m3", 2, 0, {1: 92, 2: 92}),
    )
    copies = replayed.messages["m3"].pdus
    assert copies[1].entries == copies[2].entries
    assert entries_of(replayed, "m3") == {"m1": {3}}
    assert waits_of(replayed, "m3", 1) == {"m1"}
    assert waits_of(replayed, "m3", 2) == {"m2"}


@pytest.mark.paper("S000:sec.4.4")
def test_waiting_ends_strictly_after_the_deadline() -> None:
    """[S000:sec.4.4] A predecessor may arrive at its deadline itself: the wait covers that tick."""
    sends = (send("m1", 0, 0, {1: 5, 2: 100}), send("m2", 6, 1, {2: 10}))
    _, replayed = run(*sends)
    assert replayed.delivered[2] == [("m1", 100), ("m2", 100)]
    core = JangDelta(ProcessId(2), OrderingSettings(members=3, lifetime_ns=100, tick_ns=1))
    core.receive(ProcessId(1), replayed.messages["m2"].pdus[2], Instant(10))
    assert core.next_deadline() == 101
    assert core.wake(Instant(100)) == []
    (effect,) = core.wake(Instant(101))
    assert isinstance(effect.indication, Delivered)  # type: ignore[union-attr]


@pytest.mark.paper("S000:sec.4.5")
def test_send_extracts_then_eliminates_then_piggybacks_then_records() -> None:
    """[S000:sec.4.5] DC names m1, CI no longer does, and m itself is not in its own CI."""
    _, replayed = run(send("m1", 0, 0, {1: 90}), send("m2", 1, 0, {1: 91}))
    assert waits_of(replayed, "m2", 1) == {"m1"}
    assert entries_of(replayed, "m2") == {}


@pytest.mark.paper("S000:sec.4.5")
def test_receive_merges_what_the_sender_knew() -> None:
    """[S000:sec.4.5] Process 1 learns from m2 that m1 may be undelivered at 2, and says so."""
    _, replayed = run(
        send("m1", 0, 0, {2: 90}), send("m2", 1, 0, {1: 5}), send("m3", 6, 1, {2: 8, 3: 9})
    )
    assert waits_of(replayed, "m3", 2) == {"m1"}
    assert replayed.delivered[2] == [("m1", 90), ("m3", 90)]


@pytest.mark.paper("S000:dec.1")
def test_the_receiver_records_the_delivered_message() -> None:
    """[S000:dec.1] As printed, two messages suffice to break the order."""
    sends = (send("m1", 0, 0, {1: 1, 2: 10}), send("m2", 2, 1, {2: 3}))
    schedule, replayed = run(*sends)
    assert broken(schedule, replayed) == {}
    printed = Twin("printed", PrintedLiteral, "causal-order", {}).algorithm
    schedule, replayed = run(*sends, algorithm=printed)
    assert set(broken(schedule, replayed)) >= {"causal-order", "delta-causal-order"}


@pytest.mark.paper("S000:dec.2")
def test_equal_clock_readings_give_different_stamps() -> None:
    """[S000:dec.2] Three messages in one tick; the clock alone could not tell them apart."""
    sends = (
        send("m1", 7, 0, {1: 8}),
        send("m2", 7, 0, {1: 12}),
        send("m3", 7, 0, {1: 9}),
    )
    _, replayed = run(*sends)
    assert replayed.delivered[1] == [("m1", 8), ("m2", 12), ("m3", 12)]
    printed = Twin("printed", PrintedLiteral, "causal-order", {}).algorithm
    schedule, replayed = run(*sends, algorithm=printed)
    assert "causal-order" in broken(schedule, replayed)


@pytest.mark.paper("S000:dec.3")
def test_senders_forget_with_epsilon_and_receivers_judge_without() -> None:
    """[S000:dec.3] Process 0's clock is 3 behind: it may still deliver what 1 thinks dead."""
    sends = (
        send("m1", 13, 1, {0: 19}),
        send("m2", 17, 1, {0: 17}, before_arrivals=True),
    )
    how = {"lifetime": 3, "epsilon": 3, "offsets": (10, 13), "processes": 2}
    schedule, replayed = run(*sends, **how)  # type: ignore[arg-type]
    assert replayed.delivered[0] == [("m1", 29), ("m2", 29)]
    assert broken(schedule, replayed) == {}
    twin = Twin("eps0", IgnoresEpsilon, "causal-order", {}).algorithm
    schedule, replayed = run(*sends, algorithm=twin, **how)  # type: ignore[arg-type]
    assert "causal-order" in broken(schedule, replayed)


@pytest.mark.paper("S000:dec.4")
def test_what_is_due_at_once_is_delivered_in_stamp_order() -> None:
    """[S000:dec.4] A coarse timer makes both due at 105; the later message arrived first."""
    schedule, replayed = run(
        send("lost", 0, 0, {1: 1, 2: None}),
        send("m1", 2, 1, {2: 20}),
        send("lost too", 3, 0, {2: None}),
        send("m2", 4, 1, {2: 10}),
        granularity=5,
    )
    assert replayed.delivered[2] == [("m1", 105), ("m2", 105)]
    assert broken(schedule, replayed) == {}


@pytest.mark.paper("S000:dec.5")
def test_expired_and_empty_entries_stay_off_the_wire() -> None:
    """[S000:dec.5] Neither changes a delivery; empty ones are sent when asked for."""
    sends = (
        send("m1", 0, 0, {1: 5}),
        send("m2", 6, 1, {0: 7, 2: 9}),
        send("m3", 10, 0, {3: 11}),
        send("m4", 201, 0, {3: 202}),
    )
    # Without the empty entry of m1, process 0 learns only later that it has been delivered.
    for empties, expected in ((False, {"m1": {1}, "m2": {2}}), (True, {"m2": {2}})):
        _, replayed = run(*sends, empties=empties)
        assert entries_of(replayed, "m3") == expected
        assert entries_of(replayed, "m4") == {}
    _, replayed = run(*sends[:2], empties=True)
    assert entries_of(replayed, "m2") == {"m1": set()}
    _, replayed = run(*sends[:2], empties=False)
    assert entries_of(replayed, "m2") == {}


@pytest.mark.paper("S000:dec.6")
def test_ages_on_the_wire_are_exact() -> None:
    """[S000:dec.6] Stamps come out of both wire forms as they went in, to the tick."""
    for members, lifetime in ((4, 1_000_000), (40, 1_000_000), (4, 1_000), (4, None)):
        settings = OrderingSettings(members=members, lifetime_ns=lifetime, tick_ns=1)
        core = JangDelta(ProcessId(0), settings)
        codec = JangDeltaCodec(ProcessId(1), settings)
        for at in (5, 200, 777):
            command = Multicast(b"", destinations([1, members - 1]))
            effects = core.submit(command, Instant(at))
            for effect in effects[:2]:
                assert isinstance(effect, Send)
                pdu = effect.pdu
                assert isinstance(pdu, JangDeltaPdu)
                assert codec.decode(codec.encode(pdu)) == pdu
        assert pdu.waits == ((0, 200),)


@pytest.mark.paper("S000:dec.7")
def test_a_discarded_message_leaves_no_trace() -> None:
    """[S000:dec.7] Its control information is not merged: it carries no causality."""
    assert check_paths([VECTORS / "discarded-is-not-delivered.json"]).failed == []
