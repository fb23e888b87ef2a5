"""The bootstrap server: leases, the full list, when it is full, and without its table."""

from typing import Any

import pytest

from orderwire.discovery.bootstrap import EPOCH_MAX, EPOCH_SHIFT, BootstrapServer, Holder
from orderwire.discovery.commands import Unreachable
from orderwire.discovery.effects import Post
from orderwire.discovery.messages import (
    MESSAGE_BYTES_MAX,
    Contact,
    Full,
    Heartbeat,
    IdReply,
    Message,
    Pull,
    Release,
    Renew,
    RenewNo,
    RenewOk,
    RequestId,
    Row,
    encode,
)
from orderwire.discovery.ring import UP
from orderwire.discovery.settings import BootstrapSettings
from orderwire.kernel import Instant, LocalProtocolError, RemoteProtocolError, ms

LEASE = ms(9_000)


def server(id_space: int = 4, *, epoch: int = 5, at: int = 0, **options: Any) -> BootstrapServer:
    return BootstrapServer(
        BootstrapSettings(id_space=id_space), Instant(at), epoch=epoch, **options
    )


def ask(core: BootstrapServer, message: Message, at: int = 0, source: str = "") -> Message | None:
    """What the server answers; it answers to where the message came from."""
    source = source or getattr(message, "addr", "somebody")
    effects = core.receive(source, message, Instant(at))
    if not effects:
        return None
    (post,) = effects
    assert isinstance(post, Post)
    assert post.to == source
    answer: Message = post.message
    return answer


def granted(core: BootstrapServer, guid: str, at: int = 0, **fields: Any) -> IdReply:
    answer = ask(core, RequestId(guid, **({"addr": f"at {guid}"} | fields)), at)
    assert isinstance(answer, IdReply)
    return answer


def renew(core: BootstrapServer, reply: IdReply, at: int, **changes: Any) -> Message | None:
    fields = {"id": reply.id, "guid": reply.guid, "inc": reply.inc, "addr": f"at {reply.guid}"}
    return ask(core, Renew(**fields | changes), at)


def test_the_same_guid_gets_the_same_id_and_incarnation() -> None:
    core = server()
    first = granted(core, "a")
    granted(core, "b")
    again = granted(core, "a", ms(1))
    assert (again.id, again.inc) == (first.id, first.inc)
    assert [each.addr for each in again.members] == ["at b"]


def test_the_list_is_in_the_order_of_issue_and_without_the_newcomer() -> None:
    core = server(8)
    replies = [granted(core, guid) for guid in "abcd"]
    assert replies[3].members == tuple(
        Contact(each.id, f"at {each.guid}", each.inc) for each in replies[:3]
    )
    assert len({each.id for each in replies}) == 4
    assert [each.inc for each in replies] == sorted({each.inc for each in replies})


def test_ids_come_in_bit_reversed_order() -> None:
    """Ascending ids would make the first one everybody's first successor. [S002 spec 0.8]"""
    core = server(8)
    assert [granted(core, guid).id for guid in "abcdefgh"] == [0, 4, 2, 6, 1, 5, 3, 7]
    odd = server(5)
    assert sorted(granted(odd, guid).id for guid in "abcde") == [0, 1, 2, 3, 4]


def test_full_is_said_with_the_time_until_a_lease_ends() -> None:
    core = server(2)
    granted(core, "a")
    granted(core, "b", ms(1_000))
    assert ask(core, RequestId("c", "at c"), ms(2_000)) == Full("c", 7_000, limit=2)
    reply = granted(core, "c", LEASE + 1)
    assert reply.id == 0
    assert [each.addr for each in reply.members] == ["at b"]


def test_a_lease_lasts_to_its_end_and_not_beyond() -> None:
    core = server(1)
    reply = granted(core, "a")
    assert isinstance(ask(core, RequestId("b", "at b"), LEASE), Full)
    assert isinstance(renew(core, reply, LEASE), RenewOk)
    assert isinstance(ask(core, RequestId("b", "at b"), 2 * LEASE), Full)
    taken = granted(core, "b", 2 * LEASE + 1)
    assert (taken.id, taken.inc > reply.inc) == (reply.id, True)
    assert renew(core, reply, 2 * LEASE + 2) == RenewNo(reply.id, reply.inc)


def test_a_release_frees_at_once_but_only_the_holders() -> None:
    core = server(1)
    reply = granted(core, "a")
    assert ask(core, Release(reply.id, "b", reply.inc)) is None
    assert ask(core, Release(reply.id, "a", reply.inc + 1)) is None
    assert isinstance(ask(core, RequestId("b", "at b")), Full)
    assert ask(core, Release(reply.id, "a", reply.inc)) is None
    assert granted(core, "b").id == reply.id


def test_a_new_process_at_an_address_frees_the_old_ones_id() -> None:
    """One address is one participant."""
    core = server(1)
    first = granted(core, "a", addr="here")
    second = granted(core, "b", addr="here")
    assert second.id == first.id
    assert second.inc > first.inc
    assert renew(core, first, ms(1), addr="here") == RenewNo(first.id, first.inc)


def test_who_lost_an_id_gets_another_incarnation() -> None:
    core = server(4)
    first = granted(core, "a")
    again = granted(core, "a", lost_inc=first.inc)
    assert again.inc > first.inc
    assert granted(core, "a", lost_inc=first.inc).inc == again.inc
    ahead = granted(server(4, epoch=1), "b", lost_inc=first.inc)
    assert ahead.inc > first.inc


def test_a_wish_is_granted_when_it_is_free() -> None:
    core = server(4)
    assert granted(core, "a", wish=3).id == 3
    assert granted(core, "b", wish=3).id != 3
    assert granted(core, "c", wish=99).id < 4


def test_without_its_table_it_listens_for_one_lease_first() -> None:
    """[R1] It knows those that renew, with their incarnations, and goes on above them."""
    old = server(4, epoch=5)
    known = granted(old, "a")
    core = server(4, epoch=5, recovering=True)
    assert ask(core, RequestId("b", "at b"), ms(1)) == Full("b", 8_999, True)
    answer = renew(core, known, ms(3_000))
    assert answer == RenewOk(known.id, known.inc, ())
    assert core.epoch == 6
    reply = granted(core, "b", LEASE)
    assert reply.id != known.id
    assert reply.inc > known.inc
    assert reply.members == (Contact(known.id, "at a", known.inc),)


def test_two_starts_within_a_second_issue_different_incarnations() -> None:
    """The counter begins at the second's nanoseconds, and may pass on into the next second."""
    early, late = server(4, epoch=5, counter=100_000), server(4, epoch=5, counter=900_000_000)
    assert granted(late, "a").inc > granted(early, "a").inc
    full = server(4, epoch=5, counter=(1 << EPOCH_SHIFT) - 1)
    assert granted(full, "a").inc < granted(full, "b").inc
    assert granted(full, "c").inc >> EPOCH_SHIFT == 6


def test_without_the_wait_two_may_hold_an_id_and_the_newer_keeps_it() -> None:
    old, core = server(4), server(4, epoch=6)
    first, second = granted(old, "a"), granted(core, "b")
    assert first.id == second.id
    assert renew(core, first, ms(1)) == RenewNo(first.id, first.inc)
    assert isinstance(renew(core, second, ms(1)), RenewOk)


def test_an_older_holder_gives_way_to_a_newer_incarnation() -> None:
    core, later = server(4, epoch=5), server(4, epoch=9)
    mine = granted(core, "a")
    newer = granted(later, "b")
    assert isinstance(renew(core, newer, ms(1)), RenewOk)
    assert renew(core, mine, ms(2)) == RenewNo(mine.id, mine.inc)
    assert granted(core, "c", ms(3)).inc > newer.inc


@pytest.mark.parametrize("identity", [4, 1 << 63])
def test_an_id_outside_the_space_is_not_renewed(identity: int) -> None:
    reply = granted(server(), "a")
    assert renew(server(), reply, 0, id=identity) == RenewNo(identity, reply.inc)


def test_a_guid_that_has_another_id_does_not_renew_its_old_one() -> None:
    core = server(4, recovering=True)
    reply = granted(core, "a", LEASE)
    assert renew(core, reply, LEASE, id=reply.id ^ 1) == RenewNo(reply.id ^ 1, reply.inc)


@pytest.mark.parametrize("inc", [(EPOCH_MAX + 1) << EPOCH_SHIFT, (1 << 63) - 1])
def test_an_incarnation_that_leaves_no_room_above_it_is_refused(inc: int) -> None:
    """Whatever is issued after it must be larger and still fit."""
    core = server()
    with pytest.raises(RemoteProtocolError):
        ask(core, Renew(0, "x", inc, "there"))
    with pytest.raises(RemoteProtocolError):
        ask(core, RequestId("x", "there", inc))
    assert granted(core, "a").inc >> EPOCH_SHIFT == 5


@pytest.mark.parametrize("id_space", [8, 5, 1])
def test_an_id_is_given_again_when_all_others_have_been(id_space: int) -> None:
    """Decision 0018: an ordering must not take a newcomer for one that has just left."""
    core = server(id_space)
    given = []
    for life in range(3 * id_space):
        reply = granted(core, f"g{life}", life)
        ask(core, Release(reply.id, reply.guid, reply.inc), life)
        given.append(reply.id)
    for start in range(2 * id_space):
        assert sorted(given[start : start + id_space]) == list(range(id_space))


def test_an_id_is_given_again_when_all_others_are_held() -> None:
    core = server(8)
    replies = [granted(core, guid) for guid in "abcdefgh"]
    for at in range(100):
        ask(core, Release(replies[3].id, replies[3].guid, replies[3].inc), at)
        again = granted(core, "d", at)
        assert again.id == replies[3].id
        replies[3] = again


def test_wishes_do_not_change_what_is_free() -> None:
    core = server(8)
    for at in range(1_000):
        reply = granted(core, "a", at, wish=5)
        ask(core, Release(reply.id, "a", reply.inc), at)
    assert sorted(granted(core, guid, ms(1)).id for guid in "abcdefgh") == list(range(8))


def test_a_request_that_comes_again_begins_the_lease_anew_where_it_came_from() -> None:
    """[R1] The answer was lost, and the participant is somewhere else meanwhile."""
    core = server(1)
    first = granted(core, "a")
    again = granted(core, "a", ms(8_000), addr="elsewhere")
    assert (again.id, again.inc) == (first.id, first.inc)
    assert core.holders()[first.id].addr == "elsewhere"
    assert isinstance(ask(core, RequestId("b", "at b"), ms(16_000)), Full)
    assert isinstance(renew(core, first, ms(17_000), addr="elsewhere"), RenewOk)


def test_whatever_is_shown_is_risen_above() -> None:
    """[R1] By a lost id, a lease or a release; of one's own epoch what was not issued here."""
    later = 9 << EPOCH_SHIFT | 7
    for show in (
        RequestId("a", "at a", later),
        Renew(3, "a", later, "at a"),
        Release(3, "a", later),
    ):
        core = server(8, epoch=5)
        first = ask(core, show)
        if isinstance(first, IdReply):
            assert first.inc > later
        assert core.epoch == 10
        second, third = granted(core, "b"), granted(core, "c")
        assert later < second.inc < third.inc
    core = server(8, epoch=5)
    beyond = granted(core, "a").inc + 5
    assert granted(core, "b", lost_inc=beyond).inc > beyond
    assert granted(core, "c").inc > beyond


def test_a_lease_that_is_renewed_by_a_newer_incarnation_is_that_ones() -> None:
    """[R1] … and no longer that of the older one of the same guid."""
    core = server(8, epoch=5)
    mine = granted(core, "a")
    newer = 9 << EPOCH_SHIFT | 1
    assert renew(core, mine, ms(1), inc=newer) == RenewOk(mine.id, newer, ())
    assert core.holders()[mine.id].inc == newer
    assert granted(core, "b").members == (Contact(mine.id, "at a", newer),)
    assert renew(core, mine, ms(2)) == RenewNo(mine.id, mine.inc)


def test_one_address_is_one_holder_however_it_comes_there() -> None:
    """The newer one: by a request from elsewhere, or by renewing at a server without its table."""
    core = server(8)
    granted(core, "a", addr="here")
    moved = granted(core, "b")
    assert granted(core, "b", addr="here").id == moved.id
    assert core.holders().keys() == {moved.id}
    older, newer = (Renew(at, f"g{at}", (1 << EPOCH_SHIFT) + at, "here") for at in (1, 2))
    for first, second in ((older, newer), (newer, older)):
        core = server(8, recovering=True)
        ask(core, first)
        answer = ask(core, second)
        assert core.holders().keys() == {2}
        assert isinstance(answer, RenewOk) is (second is newer)


def test_leases_end_in_the_order_in_which_they_were_renewed() -> None:
    """Looking for those that are over takes no longer when many hold ids."""
    core = server(1 << 12)
    replies = [granted(core, f"g{at}", at) for at in range(1_000)]
    for reply in replies[::2]:
        renew(core, reply, ms(5_000))
    core.receive("x", Release(1, "x", 0), Instant(LEASE + 500))
    assert len(core.holders()) == 500 + 250
    core.receive("x", Release(1, "x", 0), Instant(LEASE + ms(1)))
    assert core.holders().keys() == {each.id for each in replies[::2]}
    assert len(core._leases) == 500


def test_a_list_that_waits_behind_many_others_is_not_sent_again() -> None:
    """2,000 lists take four seconds at 100 Mbit/s: who asks again after one would double that."""
    core = server(1 << 11)
    for at in range(2_000):
        core._hold(at, Holder(f"g{at}", at + 1, f"a{at}", 0), Instant(0))
    for at in range(2_000):
        granted(core, f"g{at}", addr=f"a{at}")
    assert granted(core, "g0", ms(1_000), addr="a0").members  # Sent among the first.
    assert ask(core, RequestId("g1999", "a1999"), ms(1_000)) is None
    assert core.holders()[1_999].until_ns == ms(1_000) + LEASE  # It is there all the same.
    assert granted(core, "g1998", ms(1_000), addr="elsewhere").id == 1_998
    assert granted(core, "g1999", ms(8_000), addr="a1999").id == 1_999


def test_a_small_domain_is_answered_as_often_as_it_asks() -> None:
    core = server(1 << 8)
    for second in range(3):
        for at in range(200):
            assert len(granted(core, f"g{at}", ms(1_000 * second)).members) >= at


def test_the_list_fits_a_message_however_long_the_addresses_are() -> None:
    core = server(1 << 16)
    for at in range(9_000):
        core._hold(at, Holder(f"g{at}", at + 1, f"{at:05}" + "\U0001f600" * 250, 0), Instant(0))
    reply = granted(core, "a")
    assert 5_000 < len(reply.members) < 9_000
    assert len(encode(reply)) < MESSAGE_BYTES_MAX


def test_ids_of_sixty_four_bits_fit_the_message() -> None:
    core = server(1 << 64)
    reply = granted(core, "a")
    assert reply.id_space == 0
    assert granted(core, "b").id == 1 << 63


def test_what_is_not_for_a_server_is_refused() -> None:
    core = server()
    row = Row(1, 1, 1, 1, 0, "a")
    for message in (Heartbeat(0, 1, row, 1, 1, 0, UP), Pull(0, 1, ()), RenewNo(0, 1)):
        with pytest.raises(RemoteProtocolError, match="not for a bootstrap server"):
            core.receive("a", message, Instant(0))
    assert core.submit(Unreachable(address="a"), Instant(0)) == []
    with pytest.raises(LocalProtocolError):
        core.submit("start", Instant(0))
    assert core.wake(Instant(0)) == []
    assert core.next_deadline() is None


@pytest.mark.parametrize(
    "wrong", [{"id_space": 0}, {"id_space": (1 << 64) + 1}, {"lease_ns": 0}, {"recovery_ns": -1}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        BootstrapSettings(**wrong)
