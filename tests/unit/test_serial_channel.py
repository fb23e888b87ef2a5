"""The simulated 1C channel keeps what the protocols assume of it."""

from typing import Any

from orderwire.kernel import Broadcast, Effects, Indicate, Instant, ProcessId, Send
from orderwire.ordering.total.csn_pdu import KeepPlace
from orderwire.ordering.total.pdu import Turn
from orderwire.sim.serial_channel import ChannelSettings, SerialChannel


class Talker:
    """Says what it is told to; on a turn, "turn"."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def submit(self, command: Any, now: Instant) -> Effects:
        effects: Effects = list(command)
        return effects

    def receive(self, source: ProcessId, pdu: str, now: Instant) -> Effects:
        self.heard.append(pdu)
        return []

    def turn(self, now: Instant) -> Effects:
        return [Broadcast("turn")]

    def wake(self, now: Instant) -> Effects:
        return []

    def next_deadline(self) -> Instant | None:
        return None


def group() -> tuple[SerialChannel, list[Talker]]:
    channel = SerialChannel(
        ChannelSettings(slot_ns=1_000), 1, Turn, lambda *_: None, lambda *_: None
    )
    talkers = [Talker(), Talker(), Talker()]
    for process, talker in enumerate(talkers):
        channel.add(ProcessId(process), talker)
    return channel, talkers


def test_a_turn_does_not_overtake_what_its_sender_has_built_before() -> None:
    channel, talkers = group()
    told = [Broadcast("a"), Indicate(Turn()), Broadcast("b"), Indicate(Turn()), Broadcast("c")]
    channel.submit(ProcessId(0), told)
    channel.run(100_000)
    assert talkers[1].heard == ["a", "b", "c", "turn"]
    assert channel.is_idle


class Counter(Talker):
    """Hears numbers, and says in a place that it has kept how much it has heard by then."""

    def takes_number(self, pdu: str) -> bool:
        return True

    def receive_numbered(self, source: ProcessId, pdu: str, csn: int, now: Instant) -> Effects:
        return self.receive(source, pdu, now)

    def fill_place(self, now: Instant) -> Effects:
        return [Broadcast(f"heard {len(self.heard)}")] if self.heard else []


def test_a_place_stands_between_what_came_before_and_after_it_and_is_filled_when_due() -> None:
    channel = SerialChannel(
        ChannelSettings(slot_ns=1_000),
        1,
        Turn,
        lambda *_: None,
        lambda *_: None,
        place_form=KeepPlace,
    )
    counters = [Counter(), Counter()]
    for process, counter in enumerate(counters):
        channel.add(ProcessId(process), counter)
    channel.submit(ProcessId(0), [Indicate(KeepPlace())])
    assert channel.is_idle, "one that is not needed takes nothing"
    channel.submit(ProcessId(0), [Broadcast("a"), Indicate(KeepPlace()), Broadcast("b")])
    channel.run(100_000)
    assert counters[1].heard == ["a", "heard 1", "b"]


def test_a_pdu_to_one_member_reaches_that_one_only_and_takes_a_slot() -> None:
    channel, talkers = group()
    channel.submit(ProcessId(0), [Send(ProcessId(2), "for 2"), Broadcast("for all")])
    channel.run(100_000)
    assert [talker.heard for talker in talkers] == [["for all"], ["for all"], ["for 2", "for all"]]
    assert channel.put == 2
