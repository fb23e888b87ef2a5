"""How a participant comes by its id: leased, drawn and told to seeds, or from outside."""

from hashlib import sha256
from random import Random
from typing import Any

import pytest

from orderwire.discovery.commands import Granted, IdWanted, Refused
from orderwire.discovery.effects import Post
from orderwire.discovery.entrance import (
    ALONE_ROUNDS,
    REQUEST_BACKOFF_MAX,
    SEEDS_MAX,
    LostId,
    OutsideEntrance,
    Said,
    SeedEntrance,
    ServerEntrance,
    drawn_id,
)
from orderwire.discovery.messages import (
    Contact,
    Full,
    Hello,
    IdReply,
    Members,
    Release,
    Renew,
    RenewNo,
    RenewOk,
    RequestId,
    Taken,
)
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import ID_SPACE_MAX, DiscoverySettings
from orderwire.kernel import Indicate, Instant, RemoteProtocolError, ms

SETTINGS = DiscoverySettings()
T0 = Instant(0)
OTHER = Contact(7, "a7", 3)


def nobody() -> Roster:
    return Roster(SETTINGS, "me")


def member(identity: int = 9) -> Roster:
    """The table of a participant that has an id and knows one other."""
    made = Roster(SETTINGS, "me")
    made.adopt(identity, 50, ID_SPACE_MAX)
    made.learn_contact(OTHER, T0)
    return made


def sent(said: Said) -> list[tuple[str, Any]]:
    return [(each.to, each.message) for each in said if isinstance(each, Post)]


# -- a server -----------------------------------------------------------------------------------


def leased() -> ServerEntrance:
    return ServerEntrance("g", "me", "server", SETTINGS, wish=5)


def test_requests_come_again_and_slower_until_there_is_an_answer() -> None:
    entrance = leased()
    assert sent(entrance.ask(0, T0)) == [("server", RequestId("g", "me", 0, 5))]
    gaps, last = [], 0
    for _ in range(6):
        due = entrance.next_deadline()
        assert due is not None
        assert entrance.wake(Instant(due - 1)) == []
        assert len(sent(entrance.wake(due))) == 1
        gaps.append((due - last) // ms(1_000))
        last = due
    assert gaps == [1, 2, 4, 8, REQUEST_BACKOFF_MAX, REQUEST_BACKOFF_MAX]


def test_a_server_that_refuses_is_asked_again_soon() -> None:
    """It may be starting, too."""
    entrance = leased()
    entrance.ask(0, T0)
    entrance.unreachable("elsewhere", T0)
    assert entrance.next_deadline() == ms(1_000)
    now = T0
    waits = []
    for _ in range(9):
        entrance.unreachable("server", now)
        due = entrance.next_deadline()
        assert due is not None
        waits.append((due - now) // ms(1))
        assert len(sent(entrance.wake(due))) == 1
        now = due
    assert waits == [100, 200, 300, 400, 500, 600, 700, 800, 800]
    entrance.adopted(5, 9, now)
    renewal = entrance.next_deadline()
    entrance.unreachable("server", now)
    assert entrance.next_deadline() == renewal


def test_an_answer_for_this_guid_is_taken_once() -> None:
    entrance = leased()
    reply = IdReply("g", 5, 9, 16, (OTHER,))
    assert entrance.receive("server", reply, T0, nobody()) == []
    entrance.ask(0, T0)
    assert entrance.receive("server", IdReply("h", 5, 9, 16, ()), T0, nobody()) == []
    assert entrance.receive("server", reply, T0, nobody()) == [Granted(5, 9, 16, (OTHER,))]
    entrance.adopted(5, 9, T0)
    assert entrance.receive("server", reply, T0, nobody()) == []


def test_an_id_space_of_sixty_four_bits_is_written_as_zero() -> None:
    entrance = leased()
    entrance.ask(0, T0)
    reply = IdReply("g", ID_SPACE_MAX - 1, 9, 0, ())
    (granted,) = entrance.receive("server", reply, T0, nobody())
    assert granted == Granted(ID_SPACE_MAX - 1, 9, ID_SPACE_MAX, ())


@pytest.mark.parametrize(("retry_ms", "wait_ms"), [(1, 100), (700, 700), (10**9, 9_000)])
def test_a_full_domain_is_told_and_tried_again_within_bounds(retry_ms: int, wait_ms: int) -> None:
    entrance = leased()
    entrance.ask(0, T0)
    said = entrance.receive("server", Full("g", retry_ms, True), T0, nobody())
    assert said == [Indicate(Refused(retry_ms, True))]
    assert entrance.next_deadline() == ms(wait_ms)
    assert entrance.receive("server", Full("h", 1), T0, nobody()) == []


def test_the_lease_is_renewed_each_third_and_released() -> None:
    """[R16]"""
    entrance = leased()
    entrance.ask(0, T0)
    entrance.adopted(5, 9, T0)
    assert entrance.wake(Instant(ms(2_999))) == []
    assert sent(entrance.wake(Instant(ms(3_000)))) == [("server", Renew(5, "g", 9, "me"))]
    assert entrance.next_deadline() == ms(6_000)
    assert entrance.receive("server", RenewOk(5, 9, (OTHER,)), T0, member()) == [OTHER]
    assert entrance.receive("server", RenewOk(5, 8, (OTHER,)), T0, member()) == []
    assert entrance.receive("server", RenewNo(5, 8), T0, member()) == []
    assert entrance.receive("server", RenewNo(5, 9), T0, member()) == [LostId(9)]
    assert sent(entrance.release(T0)) == [("server", Release(5, "g", 9))]
    assert entrance.release(T0) == []
    assert entrance.next_deadline() is None


def test_only_the_server_is_believed_and_only_what_makes_sense() -> None:
    entrance = leased()
    entrance.ask(0, T0)
    with pytest.raises(RemoteProtocolError, match="not the server"):
        entrance.receive("a7", IdReply("g", 5, 9, 16, ()), T0, nobody())
    with pytest.raises(RemoteProtocolError, match="id 16 in an id space of 16"):
        entrance.receive("server", IdReply("g", 16, 9, 16, ()), T0, nobody())
    with pytest.raises(RemoteProtocolError, match="not for a participant"):
        entrance.receive("server", RequestId("g", "me"), T0, nobody())
    assert entrance.unreachable("server", T0) == []


# -- seeds [spec 5] -----------------------------------------------------------------------------


def seeded(address: str = "me", *seeds: str, id_space: int = ID_SPACE_MAX) -> SeedEntrance:
    return SeedEntrance(
        "g",
        address,
        seeds or ("s1", "s2"),
        SETTINGS,
        Random(0),
        started_ms=1_000,
        id_space=id_space,
    )


def test_ids_are_drawn_from_the_guid_and_the_attempt() -> None:
    digest = sha256(b"g/2").digest()
    assert drawn_id("g", 2, ID_SPACE_MAX) == int.from_bytes(digest[:8], "big")
    assert drawn_id("g", 2, 128) == drawn_id("g", 2, ID_SPACE_MAX) % 128


def test_incarnations_grow_with_the_clock() -> None:
    first = sent(seeded().ask(0, T0))[0][1]
    later = SeedEntrance("g", "me", ("s1",), SETTINGS, Random(9), started_ms=1_001)
    assert first.inc >> 16 == 1_000
    assert sent(later.ask(0, T0))[0][1].inc > first.inc


@pytest.mark.parametrize(("address", "rounds"), [("s1", 1), ("s2", 2), ("me", 2 + ALONE_ROUNDS)])
def test_seed_k_starts_alone_after_k_rounds_and_others_after_all(address: str, rounds: int) -> None:
    entrance = seeded(address)
    said = entrance.ask(0, T0)
    greeted = 0
    while sent(said):
        greeted += 1
        assert {to for to, _ in sent(said)} == {"s1", "s2"} - {address}
        due = entrance.next_deadline()
        assert due == ms(100 * greeted)
        said = entrance.wake(Instant(due))
    assert greeted == rounds
    (granted,) = said
    assert isinstance(granted, Granted)
    assert granted.members == ()


def test_the_only_seed_starts_at_once() -> None:
    (granted,) = seeded("s1", "s1").ask(0, T0)
    assert isinstance(granted, Granted)


def test_the_first_welcome_gives_the_id_and_later_ones_contacts() -> None:
    entrance = seeded()
    hello = sent(entrance.ask(0, T0))[0][1]
    welcome = Members(hello.id, hello.inc, (OTHER,))
    assert entrance.receive("s1", Members(hello.id, hello.inc + 1, ()), T0, nobody()) == []
    assert not entrance.met_seed
    (granted,) = entrance.receive("s1", welcome, T0, nobody())
    assert entrance.met_seed
    assert granted == Granted(hello.id, hello.inc, ID_SPACE_MAX, (OTHER,))
    entrance.adopted(hello.id, hello.inc, T0)
    assert entrance.receive("s2", welcome, T0, member()) == [OTHER]
    assert entrance.next_deadline() is None


def test_a_taken_id_makes_it_try_the_next_at_once() -> None:
    entrance = seeded()
    hello = sent(entrance.ask(0, T0))[0][1]
    again = sent(entrance.receive("s1", Taken(hello.id, hello.inc), T0, nobody()))
    assert {message.id for _, message in again} == {drawn_id("g", 1, ID_SPACE_MAX)}
    assert entrance.receive("s2", Taken(hello.id, hello.inc), T0, nobody()) == []


def test_when_no_attempt_finds_an_id_it_says_so_and_waits() -> None:
    entrance = seeded(id_space=2)
    entrance.ask(0, T0)
    refused = None
    for attempt in range(1_000):
        said = entrance.receive("s1", Taken(drawn_id("g", attempt, 2), entrance._inc), T0, nobody())
        refused = said
    assert refused == [Indicate(Refused(9_000, False, 2))]
    assert entrance.next_deadline() == ms(9_000)


def test_a_lost_id_is_replaced_by_the_next_attempt_and_a_larger_incarnation() -> None:
    entrance = seeded()
    first = sent(entrance.ask(0, T0))[0][1]
    entrance.adopted(first.id, first.inc, T0)
    second = sent(entrance.ask(first.inc, T0))[0][1]
    assert second.id == drawn_id("g", 1, ID_SPACE_MAX)
    assert second.inc > first.inc


def test_who_has_an_id_welcomes_newcomers_and_takes_note_of_them() -> None:
    """A seed serialises newcomers as a server does: each is told of those before."""
    entrance, roster = seeded("s1"), member()
    said = entrance.receive("n1", Hello(20, 60, "n1"), T0, roster)
    ((to, welcome),) = sent(said)
    assert to == "n1"
    assert set(welcome.members) == {Contact(9, "s1", 50), OTHER}
    ((_, later),) = sent(entrance.receive("n2", Hello(21, 61, "n2"), T0, roster))
    assert Contact(20, "n1", 60) in later.members
    ((_, again),) = sent(entrance.receive("n1", Hello(20, 60, "n1"), T0, roster))
    assert Contact(20, "n1", 60) not in again.members


@pytest.mark.parametrize("identity", [9, 7])
def test_an_id_that_another_has_is_taken(identity: int) -> None:
    said = seeded("s1").receive("n1", Hello(identity, 60, "n1"), T0, member())
    assert sent(said) == [("n1", Taken(identity, 60))]


def test_a_seed_without_an_id_says_nothing_yet() -> None:
    assert seeded("s1").receive("n1", Hello(20, 60, "n1"), T0, nobody()) == []


def test_seeds_refuse_what_makes_no_sense() -> None:
    with pytest.raises(RemoteProtocolError, match="id 9 in an id space of 8"):
        seeded("s1", id_space=8).receive("n", Hello(9, 1, "n"), T0, member(3))
    with pytest.raises(RemoteProtocolError, match="needs a bootstrap server"):
        seeded().receive("s1", RenewNo(1, 1), T0, nobody())
    for count in (0, SEEDS_MAX + 1):
        with pytest.raises(ValueError, match="seeds"):
            SeedEntrance("g", "me", ("s",) * count, SETTINGS, Random(0), started_ms=1)


# -- outside ------------------------------------------------------------------------------------


def test_ids_from_outside_are_wanted_and_everything_else_refused() -> None:
    entrance = OutsideEntrance()
    assert entrance.ask(4, T0) == [Indicate(IdWanted(4))]
    entrance.adopted(1, 2, T0)
    assert (entrance.release(T0), entrance.wake(T0), entrance.next_deadline()) == ([], [], None)
    assert entrance.unreachable("a", T0) == []
    with pytest.raises(RemoteProtocolError, match="come from outside"):
        entrance.receive("a", RenewNo(1, 1), T0, nobody())
