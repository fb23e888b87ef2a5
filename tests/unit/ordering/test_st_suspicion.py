"""Condition (2): what a member does about PDUs of which others have told it more than has come."""

import msgspec
import pytest

from orderwire.kernel import Broadcast, Destinations, Effects, Indicate, Instant, ProcessId, ms
from orderwire.ordering.pdu import Multicast
from orderwire.ordering.total.pdu import Data, Nak, Pdu, Suspected, Turn
from orderwire.ordering.total.settings import TotalSettings
from orderwire.ordering.total.tachikawa_st import TachikawaST

ZERO, ONE, TWO = map(ProcessId, range(3))
SETTINGS = TotalSettings(
    members=3,
    ack_delay_ns=ms(2),
    heartbeat_ns=ms(10),
    heartbeat_max_ns=ms(40),
    guard_ns=ms(5),
    fail_ns=ms(100),
)

pytestmark = pytest.mark.paper("S003:sec.4.1")


def null(tseq: int, ack: tuple[int, ...], *, poll: bool = False) -> Data:
    return Data((0, 0), tseq, Destinations(0), (0, 0, 0), ack, 64, poll)


def put(effects: Effects) -> list[Pdu]:
    return [effect.pdu for effect in effects if isinstance(effect, Broadcast)]


def run_until(core: TachikawaST, until: int) -> tuple[list[Pdu], list[ProcessId]]:
    """Let time pass; return what was put, and who was indicated as silent."""
    pdus: list[Pdu] = []
    silent: list[ProcessId] = []
    while (due := core.next_deadline()) is not None and due <= until:
        effects = core.wake(due)
        silent += [
            effect.indication.process
            for effect in effects
            if isinstance(effect, Indicate) and isinstance(effect.indication, Suspected)
        ]
        if any(isinstance(effect, Indicate) and effect.indication == Turn() for effect in effects):
            effects += core.turn(due)
        pdus += put(effects)
    return pdus, silent


def test_who_only_suspects_asks_that_source_and_spends_no_number() -> None:
    core = TachikawaST(ZERO, SETTINGS)
    core.receive(ONE, null(0, (0, 0, 5)), Instant(0))
    assert core.suspected == 1 << TWO
    pdus, silent = run_until(core, ms(60))
    assert pdus == [Nak((0, 0), ((TWO, ()),))] * 3  # after 10, 25 and 47.5 ms
    assert silent == []
    core.receive(TWO, null(4, (0, 0, 4)), Instant(ms(61)))
    assert core.suspected == 0
    assert core.next_deadline() is None
    assert core.is_at_rest
    [own] = put(core.null(Instant(ms(62))))
    assert isinstance(own, Data)
    assert own.tseq == 0


def test_who_is_asked_repeats_its_last_null_as_it_was() -> None:
    core = TachikawaST(ZERO, SETTINGS)
    [told] = put(core.null(Instant(0), poll=True))
    core.receive(ONE, null(0, (0, 0, 0)), Instant(1))  # more than `told` tells
    question = Nak((0, 0), ((ZERO, ()),))
    [again] = put(core.receive(ONE, question, Instant(ms(1))))
    assert isinstance(told, Data)
    assert isinstance(again, Data)
    assert (again.tseq, again.ack, again.pseq, again.buffers, again.poll) == (
        told.tseq,
        told.ack,
        told.pseq,
        told.buffers,
        False,
    )
    assert put(core.receive(TWO, question, Instant(ms(5)))) == []  # within T_guard
    assert put(core.receive(TWO, question, Instant(ms(6)))) == [again]
    assert core.next_deadline() is None


def test_who_is_asked_and_has_sent_a_message_last_says_where_it_is_once() -> None:
    core = TachikawaST(ZERO, SETTINGS)
    [message] = put(core.submit(Multicast(b"m", Destinations(0b10)), Instant(0)))
    core.receive(ZERO, message, Instant(1))
    question = Nak((0, 0), ((ZERO, ()),))
    assert put(core.receive(TWO, question, Instant(1))) == []
    core.receive(ONE, null(0, (1, 0, 0)), Instant(2))  # it has come: nothing waits
    pdus, _ = run_until(core, ms(5))
    assert [(pdu.tseq, pdu.destinations) for pdu in pdus if isinstance(pdu, Data)] == [(1, 0)]
    assert put(core.receive(TWO, question, Instant(ms(51)))) == pdus


def test_who_is_not_asked_any_more_owes_nothing() -> None:
    """A message made the member ask all three; what settles it leaves one suspicion."""
    core = TachikawaST(ZERO, msgspec.structs.replace(SETTINGS, members=4))
    [message] = put(core.submit(Multicast(b"m", Destinations(0b10)), Instant(0)))
    core.receive(ZERO, message, Instant(1))
    [poll], _ = run_until(core, ms(15))
    assert isinstance(poll, Data)
    assert poll.poll
    core.receive(ZERO, poll, Instant(ms(15)))
    core.receive(ONE, null(0, (1, 0, 9)), Instant(ms(16)))
    assert core.suspected == 1 << TWO
    pdus, silent = run_until(core, ms(200))
    assert silent == [TWO]
    assert set(map(type, pdus[1:])) == {Nak}  # the first is its answer to its own poll
