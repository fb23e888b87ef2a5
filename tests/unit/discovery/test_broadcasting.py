"""Broadcasts at one participant: copies, deadlines, rates, rerouting, and what is remembered."""

from typing import Any

import pytest

from orderwire.discovery import broadcasting
from orderwire.discovery.broadcasting import Broadcasts
from orderwire.discovery.effects import DiscoveryEffects, Post
from orderwire.discovery.messages import (
    HOPS_MAX,
    Contact,
    Heartbeat,
    Join,
    Leave,
    MapRecord,
    Row,
    Status,
    Update,
    held,
)
from orderwire.discovery.ring import DOWN, UP
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import PATIENCE_NS_MAX, DiscoverySettings
from orderwire.discovery.timers import Timers
from orderwire.kernel import Instant, ms

T0 = Instant(0)
ME = 3
ROW = Row(ME, 50, 1, 1, 0, "me", has_map=True)
OTHER = Row(9, 49, 1, 1, 0, "a9", has_map=True)


class Driven:
    """The broadcasts of participant 3 of 16, which knows some contacts."""

    def __init__(self, *ids: int, **settings: Any) -> None:
        given = DiscoverySettings(**({"both_ways_bytes_max": 0} | settings))
        self.roster = Roster(given, "me")
        self.roster.adopt(ME, 50, 16)
        for identity in ids:
            self.roster.learn_contact(Contact(identity, f"a{identity}", 40 + identity), T0)
        self.timers = Timers()
        self.core = Broadcasts(given, self.roster, self.timers)

    def join(self, size: int = 8) -> list[Join]:
        join = Join(0, 0, ROW, 1, 1, 0, UP, False, MapRecord(1, bytes(size)), (), ())
        return copies(self.core.own(join, T0))


def copies(effects: DiscoveryEffects) -> list[Any]:
    return [each.message for each in effects if isinstance(each, Post)]


def key_of(copy: Any) -> tuple[int, int, int, int, int]:
    return (copy.row.id, copy.row.inc, copy.seq, copy.direction, copy.to)


def leave(seq: int = 1) -> Leave:
    return Leave(ME, 9, Row(9, 49, 1, 2, 0, "a9", Status.LEFT), seq, 1, 2, UP)


@pytest.mark.parametrize(
    ("limit", "size", "ways"),
    [(0, 10, {UP}), (-1, 100_000, {UP, DOWN}), (1_024, 10, {UP, DOWN}), (1_024, 5_000, {UP})],
)
def test_small_broadcasts_go_both_ways_and_large_ones_around(
    limit: int, size: int, ways: set[int]
) -> None:
    """[spec 3]"""
    driven = Driven(5, 9, 12, 1, both_ways_bytes_max=limit)
    assert {copy.direction for copy in driven.join(size)} == ways


def test_the_nearest_target_of_each_direction_is_first() -> None:
    """[R8]"""
    driven = Driven(5, 9, 12, 1, both_ways_bytes_max=-1)
    assert {copy.to for copy in driven.join() if copy.first} == {5, 1}


def test_the_source_is_sent_nothing_of_its_own() -> None:
    driven = Driven(5, 9, 12, 1)
    forged = Heartbeat(ME, 5, OTHER, 1, 1, 9, UP)
    assert {copy.to for copy in copies(driven.core.relay(forged, T0))} == {5}
    message = Heartbeat(ME, 9, OTHER, 2, 1, 8, UP)
    assert {copy.to for copy in copies(driven.core.relay(message, T0))} == {5}


def test_deadlines_grow_with_what_is_outstanding() -> None:
    """[D13] A second, and twice the time that the bytes outstanding take at the rate assumed."""
    small, large = Driven(5), Driven(5)
    small.join(8)
    large.join(1_000_000)
    due = small.timers.next()
    assert due is not None
    assert ms(1_000) < due < ms(1_001)
    later = large.timers.next()
    assert later is not None
    assert ms(4_100) < later < ms(4_300)


def test_the_rate_is_learnt_from_answers_that_took_time() -> None:
    driven = Driven(5)
    (copy,) = driven.join(1_000_000)
    driven.core.acknowledged(key_of(copy), 1_000_000, Instant(ms(20_000)))
    assert driven.core.own_joins == 0
    assert driven.core.pending == {}
    assert driven.timers.next() is None
    (copy,) = driven.join(1_000_000)
    slower = driven.timers.next()
    assert slower is not None
    assert slower > ms(5_000)
    driven.core.acknowledged(key_of(copy), 10, Instant(ms(1)))
    driven.core.acknowledged(key_of(copy), 10, Instant(ms(1)))


def test_a_joiner_waits_for_no_target_beyond_its_first_deadline() -> None:
    """[R9] Whoever comes in its place may be silent too."""
    driven = Driven(5)
    (copy,) = driven.join()
    assert driven.core.own_joins == 1
    again = copies(driven.core.overdue(key_of(copy), Instant(ms(1_100))))
    assert again == [held(copy, ms(1_100))]
    assert driven.core.own_joins == 0
    assert copies(driven.core.overdue(key_of(copy), Instant(ms(2_200)))) == []
    assert driven.core.pending == {}
    assert driven.roster.suspected(5)


def test_a_reset_gives_the_range_to_the_next_and_is_waited_for() -> None:
    """[R14]"""
    driven = Driven(5, 9, 12)
    widest = max(driven.join(), key=lambda copy: len(copy.members))
    (rerouted,) = copies(driven.core.fail(widest.to, T0))
    assert rerouted.to == widest.members[0].id
    assert rerouted.hi == widest.hi
    assert driven.core.own_joins == 2


def test_recent_updates_are_rerouted_and_old_ones_not() -> None:
    """[R14] They are not acknowledged: only what was sent within one deadline may be lost."""
    for late, expected in ((ms(900), 1), (ms(1_100), 0)):
        driven = Driven(5, 9, 12)
        update = Update(0, 0, ROW, 1, 1, 0, UP, 1, b"d")
        sent = copies(driven.core.own(update, T0))
        widest = sent[0]
        assert len(copies(driven.core.fail(widest.to, Instant(late)))) == expected


def test_what_is_sent_again_or_rerouted_is_as_old_as_it_has_become() -> None:
    """[D11] A source that has died meanwhile is not made younger by it."""
    driven = Driven(5, 9, 12)
    widest = max(driven.join(), key=lambda copy: len(copy.members))
    (again,) = copies(driven.core.overdue(key_of(widest), Instant(ms(1_100))))
    assert (again.to, again.row.age_ms) == (widest.to, 1_100)
    (rerouted,) = copies(driven.core.fail(widest.to, Instant(ms(1_600))))
    assert (rerouted.to != widest.to, rerouted.row.age_ms) == (True, 1_600)
    driven = Driven(5, 9, 12)
    update = Update(0, 0, ROW, 2, 1, 0, UP, 1, b"d")
    (widest, *_) = copies(driven.core.own(update, T0))
    (rerouted,) = copies(driven.core.fail(widest.to, Instant(1)))
    assert rerouted.row.age_ms == 1  # rounded up


def test_the_end_of_a_range_has_no_next() -> None:
    driven = Driven(5, 9)
    for copy in driven.join():
        if copy.to == copy.hi or not copy.members:
            assert copies(driven.core.fail(copy.to, T0)) == []


def test_what_came_too_far_is_not_relayed() -> None:
    driven = Driven(5, 9)
    for hop, relayed in ((HOPS_MAX - 1, 1), (HOPS_MAX, 0)):
        message = Heartbeat(ME, 12, Row(12, 1, 1, 1, 0, "a12"), hop, hop, 5, UP)
        assert len(copies(driven.core.relay(message, T0))) == relayed


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R10] The oldest is forgotten first: a late copy of it is relayed once more."""
    monkeypatch.setattr(broadcasting, "DUPLICATES_MAX", 10)
    monkeypatch.setattr(broadcasting, "RECENT_MAX", 10)
    driven = Driven(5, 12)
    for seq in range(50):
        driven.core.relay(Update(ME, 9, OTHER, seq, 1, 8, UP, 1, b"d"), T0)
    assert len(driven.core._seen) == 10
    assert len(driven.core._recent) == 10
    newest = Update(ME, 9, OTHER, 49, 1, 8, UP, 1, b"d")
    assert copies(driven.core.relay(newest, T0)) == []
    oldest = Update(ME, 9, OTHER, 0, 1, 8, UP, 1, b"d")
    assert len(copies(driven.core.relay(oldest, T0))) == 1


def relayed(seq: int, size: int) -> Join:
    return Join(ME, 9, OTHER, seq, 1, 8, UP, False, MapRecord(1, bytes(size)), (), ())


def test_what_is_relayed_to_the_silent_is_bounded_in_bytes() -> None:
    """A copy beyond that is sent once; anti-entropy repairs what was lost of it."""
    driven = Driven(5, 12, pending_bytes_max=1_000_000)
    for seq in range(100):
        assert len(copies(driven.core.relay(relayed(seq, 100_000), T0))) == 1
    assert (len(driven.core.pending), driven.core.unkept) == (9, 91)
    latest = max(pending.sent_ns for pending in driven.core.pending.values())
    assert latest == 0
    driven.core.acknowledged(next(iter(driven.core.pending)), 10, Instant(ms(1)))
    assert len(copies(driven.core.relay(relayed(101, 100_000), Instant(ms(1))))) == 1
    assert (len(driven.core.pending), driven.core.unkept) == (9, 91)
    driven.core.drop_all()
    driven.core.relay(relayed(102, 100_000), Instant(ms(2)))
    assert len(driven.core.pending) == 1


def test_goodbyes_that_are_relayed_to_the_silent_are_bounded_in_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcasting, "PENDING_MAX", 10)
    driven = Driven(5)
    for seq in range(50):
        driven.core.relay(Leave(ME, 9, OTHER, seq, 1, 8, UP), T0)
    assert (len(driven.core.pending), driven.core.unkept) == (10, 40)


def test_ones_own_join_is_always_waited_for() -> None:
    driven = Driven(5, 9, 12, pending_bytes_max=1)
    assert len(driven.join(10_000)) == driven.core.own_joins == len(driven.core.pending)
    assert driven.core.unkept == 0


def test_no_deadline_is_further_away_than_a_minute_and_its_base() -> None:
    """Whatever is outstanding, and however slow the last answers were."""
    driven = Driven(5)
    for _ in range(20):
        (copy,) = driven.join(8_000_000)
        driven.core.acknowledged(key_of(copy), 10, Instant(ms(3_600_000)))
    driven.join(8_000_000)
    due = driven.timers.next()
    assert due is not None
    assert ms(1_000) < due <= ms(1_000) + PATIENCE_NS_MAX


def test_updates_that_may_be_rerouted_are_bounded_in_bytes_and_age() -> None:
    driven = Driven(5, 12, recent_bytes_max=1_000_000)
    change = bytes(100_000)
    for seq in range(100):
        driven.core.relay(Update(ME, 9, OTHER, seq, 1, 8, UP, 1, change), T0)
    assert (len(driven.core._recent), driven.core.forgotten) == (9, 91)
    driven.core.relay(Update(ME, 9, OTHER, 100, 1, 8, UP, 1, b"d"), Instant(ms(1_001)))
    assert (len(driven.core._recent), driven.core.forgotten) == (1, 91)
    assert len(copies(driven.core.fail(5, Instant(ms(1_002))))) == 0
    assert driven.core._recent_bytes == 0


def test_updates_that_cannot_be_rerouted_any_more_are_forgotten() -> None:
    """eclipse-cyclonedds/cyclonedds #2306: all changes of the last hours were held."""
    limit = 1_000_000
    driven = Driven(5, 9, 12, recent_bytes_max=limit)

    def tell(seq: int, now: Instant, size: int) -> None:
        driven.core.own(Update(0, 0, ROW, seq, 1, 0, UP, 1, bytes(size)), now)

    for seq in range(1, 100):
        tell(seq, ms(500 * seq), 10)
    assert {key[2] for key in driven.core._recent} == {97, 98, 99}
    for seq in range(100, 200):
        tell(seq, ms(500 * 99), limit // 8)
    assert 5 <= len(driven.core._recent) <= 8
    tell(200, ms(500 * 99), limit)
    assert not driven.core._recent
    assert driven.core._recent_bytes == 0


def test_relayed_goodbyes_are_pending_until_answered() -> None:
    """[R17]"""
    driven = Driven(5, 12)
    (copy, *others) = copies(driven.core.relay(leave(), T0))
    assert set(driven.core.pending) == {key_of(each) for each in (copy, *others)}
    driven.core.drop_all()
    assert driven.core.pending == {}
    assert driven.timers.next() is None
