"""Every utterance is said once, by its speaker, in turns, also when some are never read."""

from random import Random

import pytest

from orderwire.cli.demo.conversation import Conversation
from orderwire.cli.demo.script import write_script
from orderwire.kernel import Instant

TEXT = b"".join(b"line %d\n" % k for k in range(120))
PATIENCE = 50


@pytest.mark.parametrize("loss_ratio", [0.0, 0.3, 1.0])
def test_everything_is_said_once(loss_ratio: float) -> None:
    chance = Random(7)
    rooms = write_script(TEXT, 4)
    members = [Conversation(rooms, me, patience_ns=PATIENCE) for me in range(4)]
    said: list[tuple[int, int]] = []
    waiting: list[tuple[int, int, int]] = []
    now = Instant(0)

    def say(me: int, turns: list[tuple[int, int]]) -> None:
        for room, index in turns:
            assert rooms[room].speaker(index) == me
            said.append((room, index))
            waiting.extend(
                (other, room, index)
                for other in rooms[room].members
                if other != me and chance.random() >= loss_ratio
            )

    for me, member in enumerate(members):
        say(me, member.start(now))
    while not all(member.finished for member in members):
        now = Instant(now + 1)
        if waiting:
            me, room, index = waiting.pop(chance.randrange(len(waiting)))
            say(me, members[me].read(room, index, now))
        for me, member in enumerate(members):
            say(me, member.overdue(now))
        assert now < 100_000
    everything = [(at, k) for at, room in enumerate(rooms) for k in range(len(room.utterances))]
    assert sorted(said) == everything
    assert sum(member.spoken for member in members) == len(everything)


def test_an_answer_waits_for_its_question() -> None:
    rooms = write_script(TEXT, 3)
    ben = Conversation(rooms, 1, patience_ns=PATIENCE)
    assert ben.start(Instant(0)) == [(1, 0)]
    assert ben.read(0, 0, Instant(1)) == [(0, 1)]
    assert ben.read(0, 0, Instant(2)) == []
    assert ben.overdue(Instant(PATIENCE)) == []
