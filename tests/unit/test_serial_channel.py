"""The simulated 1C channel keeps what the protocols assume of it."""

from typing import Any

from orderwire.kernel import Broadcast, Effects, Indicate, Instant, ProcessId, Send
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


def test_a_pdu_to_one_member_reaches_that_one_only_and_takes_a_slot() -> None:
    channel, talkers = group()
    channel.submit(ProcessId(0), [Send(ProcessId(2), "for 2"), Broadcast("for all")])
    channel.run(100_000)
    assert [talker.heard for talker in talkers] == [["for all"], ["for all"], ["for 2", "for all"]]
    assert channel.put == 2
