"""The table of one participant: evidence, ages, doubt, addresses, and what is forgotten."""

from typing import Any

import pytest

from orderwire.discovery.messages import Contact, MapRecord, Row, Status
from orderwire.discovery.roster import RECORD_LIFE_FAILS, Merge, Roster
from orderwire.discovery.settings import DiscoverySettings
from orderwire.kernel import Instant, ms

FAIL = ms(6_000)
SPARSE = 1 << 64


def roster(*, id_space: int = 64, me: int = 0, inc: int = 100) -> Roster:
    made = Roster(DiscoverySettings(fail_ns=FAIL), "me")
    made.adopt(me, inc, id_space)
    return made


def row(identity: int = 5, **changes: Any) -> Row:
    fields = {"inc": 10, "ver": 1, "hb": 1, "age_ms": 0, "addr": f"a{identity}"} | changes
    return Row(identity, **fields)


def known(table: Roster, identity: int = 5, at: int = 0, **changes: Any) -> None:
    """Let it be live, with a MAP."""
    header = row(identity, **changes)
    table.merge(header, Instant(at))
    assert table.put_map(header, MapRecord(header.ver, b"map"))


def status(table: Roster, identity: int = 5) -> Status | None:
    entry = table.entries.get(identity)
    return None if entry is None else entry.status


def test_only_a_larger_heartbeat_is_evidence() -> None:
    """[R11.4]"""
    table = roster()
    known(table)
    assert table.merge(row(), Instant(ms(3_000))) is Merge.NOTHING
    assert table.entries[5].fresh == 0
    assert table.merge(row(hb=2, age_ms=1_000), Instant(ms(3_000))) is Merge.EVIDENCE
    assert table.entries[5].fresh == ms(2_000)


def test_an_entry_expires_after_the_fail_time_and_not_at_it() -> None:
    """[R13] The check is strict."""
    table = roster()
    known(table)
    table.expire(Instant(FAIL))
    assert status(table) is Status.LIVE
    table.expire(Instant(FAIL + 1))
    assert status(table) is Status.EXPIRED
    assert table.entries[5].map is None
    assert table.ring == []
    assert table.ended == [(5, 10, Status.EXPIRED)]


@pytest.mark.parametrize(("age_ms", "expected"), [(6_000, Status.LIVE), (6_001, Status.EXPIRED)])
def test_evidence_that_is_too_old_makes_nobody_live(age_ms: int, expected: Status) -> None:
    """[R11.2, R11.4] … whether it is unknown or expired."""
    table = roster()
    table.merge(row(age_ms=age_ms), Instant(ms(20_000)))
    assert status(table) is expected
    other = roster()
    known(other)
    other.expire(Instant(ms(20_000)))
    other.merge(row(hb=2, age_ms=age_ms), Instant(ms(20_000)))
    assert status(other) is expected


def test_a_goodbye_is_final_for_its_incarnation() -> None:
    """[R11.4]"""
    table = roster()
    known(table)
    assert table.merge(row(status=Status.LEFT), Instant(1)) is Merge.NEWS
    table.merge(row(hb=99), Instant(2))
    assert status(table) is Status.LEFT
    table.merge(row(inc=11, hb=1), Instant(3))
    assert status(table) is Status.LIVE


def test_a_larger_incarnation_replaces_and_a_smaller_one_is_ignored() -> None:
    """[R11.2, R11.3]"""
    table = roster()
    known(table, inc=10, ver=7, hb=50)
    assert table.merge(row(inc=11), Instant(1)) is Merge.NEWS
    assert (table.entries[5].inc, table.entries[5].map) == (11, None)
    assert table.ended == [(5, 10, Status.EXPIRED)]
    assert table.merge(row(inc=10, hb=99, ver=99), Instant(2)) is Merge.NOTHING
    assert table.entries[5].ver == 1


def test_one_address_is_one_participant() -> None:
    """[R11.2] The newer incarnation has it, whichever is learnt first."""
    for order in ((0, 1), (1, 0)):
        table = roster()
        rows = (row(5, inc=10, addr="same"), row(9, inc=11, addr="same"))
        for at in order:
            table.merge(rows[at], Instant(0))
        assert (status(table, 5), status(table, 9)) == (Status.EXPIRED, Status.LIVE)
        assert table.ring == [9]
        assert table.holder("same") == 9


@pytest.mark.parametrize("newer", [{"status": Status.LEFT}, {"age_ms": 6_001}])
def test_a_newer_life_ends_the_older_one_at_its_address_even_when_it_is_over(
    newer: dict[str, Any],
) -> None:
    """[R11.2] … and what is over holds no address: the next one may have it."""
    table = roster()
    known(table, 5, inc=10, addr="same")
    table.learn_contact(Contact(7, "other", 10), Instant(0))
    table.merge(row(9, inc=11, addr="same", **newer), Instant(0))
    assert status(table, 5) is Status.EXPIRED
    assert table.ended == [(5, 10, Status.EXPIRED)]
    assert status(table, 9) is newer.get("status", Status.EXPIRED)
    assert (table.holder("same"), table.ring) == (None, [7])
    table.merge(row(8, inc=11, addr="other", **newer), Instant(0))
    assert (table.contacts, table.ring) == ({}, [])
    table.merge(row(6, inc=10, addr="same"), Instant(0))
    assert table.ring == [6]


def test_what_is_over_and_older_ends_nobody() -> None:
    """[R11.2]"""
    table = roster()
    known(table, 5, inc=12, addr="same")
    table.merge(row(9, inc=11, addr="same", status=Status.LEFT), Instant(0))
    assert (status(table, 5), status(table, 9)) == (Status.LIVE, Status.LEFT)
    assert table.holder("same") == 5


def test_maps_are_bounded_together_and_whoever_was_turned_away_is_let_in_later() -> None:
    table = Roster(DiscoverySettings(maps_bytes_max=10), "me")
    table.adopt(0, 100, 64)
    for identity in (5, 6, 7):
        table.merge(row(identity), Instant(0))
    assert table.put_map(row(5), MapRecord(1, b"12345"))
    assert table.put_map(row(6), MapRecord(1, b"1234"))
    assert not table.put_map(row(7), MapRecord(1, b"12"))
    assert (table.maps_bytes, table.maps_refused) == (9, 1)
    assert not table.entries[7].lacks_map  # Nobody is asked for it now.
    table.merge(row(6, ver=2, hb=2), Instant(0))
    assert not table.put_map(row(6, ver=2), MapRecord(2, b"1234567"))
    assert table.entries[6].map == MapRecord(1, b"1234")
    assert not table.entries[6].lacks_map
    table.merge(row(6, ver=3, hb=3), Instant(0))
    assert table.entries[6].lacks_map
    assert table.put_map(row(6, ver=3), MapRecord(3, b"1"))
    assert table.entries[7].lacks_map
    assert table.put_map(row(7), MapRecord(1, b"12"))
    table.merge(row(5, inc=11), Instant(0))
    assert table.maps_bytes == 3
    table.expire(Instant(FAIL + 1))
    assert table.maps_bytes == 0


def test_one_who_claims_ones_own_address_is_a_past_life() -> None:
    table = roster()
    table.merge(row(5, addr="me"), Instant(0))
    assert status(table, 5) is Status.EXPIRED
    assert table.learn_contact(Contact(6, "me", 3), Instant(0)) is Merge.NOTHING
    assert table.ring == []


def test_a_contact_becomes_an_entry_and_an_older_one_changes_nothing() -> None:
    table = roster()
    assert table.learn_contact(Contact(5, "a5", 10), Instant(0)) is Merge.NEWS
    assert table.learn_contact(Contact(5, "a5", 10), Instant(0)) is Merge.NOTHING
    assert table.merge(row(inc=9), Instant(0)) is Merge.NOTHING
    assert table.ring == [5]
    known(table)
    assert table.contacts == {}
    assert table.learn_contact(Contact(5, "a5", 10), Instant(0)) is Merge.NOTHING
    assert table.learn_contact(Contact(5, "b5", 11), Instant(0)) is Merge.NEWS
    assert status(table) is Status.EXPIRED
    assert table.address_of(5) == "b5"


def test_a_contact_that_says_nothing_is_forgotten() -> None:
    table = roster()
    table.learn_contact(Contact(5, "a5", 10), Instant(0))
    table.expire(Instant(FAIL))
    assert table.ring == [5]
    table.expire(Instant(FAIL + 1))
    assert (table.ring, table.contacts, table.holder("a5")) == ([], {}, None)


def test_suspicion_ends_with_new_evidence_or_a_direct_word() -> None:
    """[R14]"""
    table = roster()
    known(table)
    assert table.suspect(5)
    assert not table.suspect(5)
    assert table.ring == []
    table.merge(row(), Instant(1))
    assert table.ring == []
    table.merge(row(hb=2), Instant(2))
    assert table.ring == [5]
    table.suspect(5)
    table.heard(5, "elsewhere")
    assert table.suspected(5)
    table.heard(5, "a5")
    assert table.ring == [5]
    assert not table.suspect(77)
    assert not table.suspect(0)


def test_a_map_is_kept_if_it_is_newer_than_the_one_held() -> None:
    """[R11.5]"""
    table = roster()
    known(table, ver=3)
    assert not table.put_map(row(ver=3), MapRecord(3, b"same"))
    assert not table.put_map(row(ver=2), MapRecord(2, b"old"))
    assert not table.put_map(row(inc=9, ver=9), MapRecord(9, b"of another life"))
    assert table.put_map(row(ver=4), MapRecord(4, b"new"))
    assert table.entries[5].map == MapRecord(4, b"new")
    assert not table.put_map(row(7), MapRecord(1, b"of a stranger"))


def test_small_id_spaces_keep_every_record_and_large_ones_forget() -> None:
    """[R13] At least twice the fail time; what comes of it later is refused, not revived."""
    kept, forgotten = roster(), roster(id_space=SPARSE)
    late = Instant(RECORD_LIFE_FAILS * FAIL + 1)
    for table in (kept, forgotten):
        known(table)
        table.expire(Instant(FAIL + 1))
        table.expire(Instant(2 * FAIL))
        assert status(table) is Status.EXPIRED
        table.expire(late)
    assert status(kept) is Status.EXPIRED
    assert status(forgotten) is None
    forgotten.merge(row(hb=1, age_ms=late // ms(1) + 1), late)
    assert status(forgotten) is None


def test_what_is_forgotten_leaves_nothing_behind() -> None:
    table = roster(id_space=SPARSE)
    for at in range(1_000):
        now = at * ms(100)
        known(table, 1 + at, at=now)
        table.suspect(1 + at)
        table.expire(Instant(now))
    table.expire(Instant(ms(100_000) + 10 * FAIL))
    table.expire(Instant(ms(100_000) + 10 * FAIL))
    assert table.entries == {}
    assert table.ring == []
    assert table._suspects == {}
    assert table._by_addr == {}


def test_an_age_is_told_rounded_up_and_never_more_than_fits() -> None:
    table = roster()
    known(table)
    assert table.row_of(table.entries[5], Instant(1)).age_ms == 1
    table.merge(row(6, age_ms=(1 << 62)), Instant(0))
    assert table.row_of(table.entries[6], Instant(ms(5_000))).age_ms <= 1 << 62


def test_a_new_id_ends_what_had_it_or_the_address() -> None:
    table = roster()
    known(table, 5)
    known(table, 6)
    table.lose()
    table.adopt(5, 200, 64)
    assert table.ended == [(5, 10, Status.EXPIRED)]
    assert table.ring == [6]
    assert not table.lost
