"""One FDP/1 participant, message by message: joining, answering, changing, leaving, refusing."""

from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import pytest

from orderwire.discovery import exchange, fdp, node
from orderwire.discovery.antientropy import SEED_TRIES
from orderwire.discovery.commands import (
    Change,
    End,
    Ended,
    Gone,
    Granted,
    IdWanted,
    Joined,
    Learnt,
    Start,
    Unreachable,
    WholeMaps,
)
from orderwire.discovery.effects import DiscoveryEffects, Post
from orderwire.discovery.entrance import (
    Entrance,
    OutsideEntrance,
    SeedEntrance,
    ServerEntrance,
    drawn_id,
)
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import (
    MESSAGE_BYTES_MAX,
    Carried,
    Contact,
    DeltaChain,
    Have,
    Heartbeat,
    Hello,
    Join,
    JoinAck,
    Leave,
    LeaveAck,
    MapRecord,
    Maps,
    Members,
    NotMe,
    Pull,
    Release,
    Renew,
    RenewOk,
    RequestId,
    Row,
    Status,
    Sync,
    SyncReply,
    Update,
    encode,
)
from orderwire.discovery.ring import UP
from orderwire.discovery.settings import (
    DELTAS_MAX,
    EARLY_MESSAGES_MAX,
    MAP_BYTES_MAX,
    MEMBERS_MAX,
    DiscoverySettings,
)
from orderwire.kernel import Indicate, Instant, LocalProtocolError, RemoteProtocolError, ms

T0 = Instant(0)
ME, INC, SPACE = 3, 50, 16
T = TypeVar("T")


def posts(effects: DiscoveryEffects, kind: type[T]) -> list[tuple[str, T]]:
    """(address, message) of the messages of this type."""
    return [
        (each.to, each.message)
        for each in effects
        if isinstance(each, Post) and isinstance(each.message, kind)
    ]


def told(effects: DiscoveryEffects) -> list[Any]:
    return [each.indication for each in effects if isinstance(each, Indicate)]


def contacts(*ids: int) -> tuple[Contact, ...]:
    return tuple(Contact(each, f"a{each}", 40 + each) for each in ids)


def row(identity: int, *, ver: int = 1, hb: int = 1, **changes: Any) -> Row:
    values = {"inc": 40 + identity, "age_ms": 0, "addr": f"a{identity}"} | changes
    return Row(identity, ver=ver, hb=hb, **values)


def carried(identity: int, **changes: Any) -> Carried:
    header = row(identity, has_map=True, **changes)
    return Carried(header, MapRecord(header.ver, b"map %d" % identity))


def join_of(source: int, *, to: int = ME, frm: int | None = None, **changes: Any) -> Join:
    values = {
        "row": row(source, has_map=True),
        "seq": 1,
        "hop": 1,
        "hi": to,
        "direction": UP,
        "first": False,
        "map": MapRecord(1, b"map %d" % source),
        "have": (),
        "members": (),
    } | changes
    return Join(to, source if frm is None else frm, **values)


class Driven:
    """A participant and what it did last."""

    def __init__(self, entrance: Entrance | None = None, **settings: Any) -> None:
        given = DiscoverySettings(**({"both_ways_bytes_max": 0} | settings))
        self.entrance = entrance if entrance is not None else OutsideEntrance()
        self.node = FdpNode("me", self.entrance, given, Random(0))
        self.node.submit(Start(map=b"mine"), T0)

    @classmethod
    def joined(cls, *ids: int, know: bool = True, **settings: Any) -> "Driven":
        """A participant that has joined; the others have answered with their MAPs."""
        driven = cls(**settings)
        effects = driven.grant(*ids)
        for _, join in posts(effects, Join):
            driven.node.receive(f"a{join.to}", driven.ack(join), T0)
        if know:
            maps = tuple(carried(each) for each in ids)
            driven.node.receive("a0", Maps(ME, ids[0], maps), T0)
        return driven

    def grant(self, *ids: int) -> DiscoveryEffects:
        return self.node.submit(Granted(ME, INC, SPACE, contacts(*ids)), T0)

    @staticmethod
    def ack(join: Join, *maps: Carried) -> JoinAck:
        key = (join.row.id, join.row.inc, join.seq, join.direction)
        return JoinAck(join.frm, join.to, *key, maps)

    def wake_at(self, time_ns: int) -> DiscoveryEffects:
        """Let every deadline up to this time be acted on, in time."""
        effects: DiscoveryEffects = []
        while (due := self.node.next_deadline()) is not None and due <= time_ns:
            effects += self.node.wake(due)
        return effects


# -- joining ----------------------------------------------------------------------------------


def test_an_id_is_wanted_at_the_start_and_the_join_names_all_members() -> None:
    node = FdpNode("me", OutsideEntrance(), DiscoverySettings(both_ways_bytes_max=0), Random(0))
    assert told(node.submit(Start(map=b"mine"), T0)) == [IdWanted(0)]
    effects = node.submit(Granted(ME, INC, SPACE, contacts(5, 9, 12, 1)), T0)
    assert told(effects) == [Joined(ME, INC)]
    copies = {join.to: join for _, join in posts(effects, Join)}
    assert {to: join.hi for to, join in copies.items()} == {5: 8, 9: 0, 1: 2} or {
        to: join.hi for to, join in copies.items()
    } == {5: 8, 9: 11, 12: 2}
    served = {*copies, *(each.id for join in copies.values() for each in join.members)}
    assert served == {5, 9, 12, 1}
    assert [join.to for join in copies.values() if join.first] == [5]
    assert all(join.map.full == b"mine" and join.row.inc == INC for join in copies.values())


def test_what_comes_before_the_id_is_kept_and_answered_after() -> None:
    driven = Driven()
    assert driven.node.receive("a5", join_of(5), T0) == []
    effects = driven.grant(5)
    assert [to for to, _ in posts(effects, JoinAck)] == ["a5"]
    assert [each.id for each in told(effects) if isinstance(each, Learnt)] == [5]


def test_at_most_so_many_early_messages_are_kept() -> None:
    driven = Driven()
    for seq in range(EARLY_MESSAGES_MAX + 100):
        driven.node.receive("a5", join_of(5, seq=seq), T0)
    assert len(posts(driven.grant(5), JoinAck)) == EARLY_MESSAGES_MAX


def test_early_messages_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "EARLY_BYTES_MAX", 10_000)
    driven = Driven()
    for seq in range(20):
        record = MapRecord(1, bytes(900))
        driven.node.receive("a5", join_of(5, seq=seq, map=record), T0)
    assert len(posts(driven.grant(5), JoinAck)) == 10


def test_a_hostile_early_message_keeps_nobody_from_joining() -> None:
    """It is dropped; what came before and after it is answered."""
    driven = Driven()
    for message in (join_of(5), join_of(SPACE), join_of(8, direction=0), join_of(9)):
        driven.node.receive("a5", message, T0)
    effects = driven.grant(5)
    assert len(posts(effects, JoinAck)) == 2
    assert posts(effects, Join)
    assert driven.node.live().keys() == {5, 9}


def test_members_outside_the_id_space_are_nobody() -> None:
    driven = Driven()
    driven.grant(5, SPACE, SPACE + 1)
    assert driven.node.roster.ring == [5]


def test_contacts_without_a_map_are_asked_when_all_have_answered() -> None:
    """[R9] … 50 ms later, and again every second while they are thought to be there.

    A join that takes less waits as long again: what joined beside it takes as long. [S002:dec.8]
    """
    driven = Driven(pull_ns=ms(50))
    joins = [join for _, join in posts(driven.grant(5, 9), Join)]
    driven.node.receive("a5", driven.ack(joins[0]), T0)
    assert posts(driven.wake_at(ms(60)), Pull) == []
    driven.node.receive("a9", driven.ack(joins[1], carried(9)), Instant(ms(60)))
    assert posts(driven.wake_at(ms(109)), Pull) == []
    assert posts(driven.wake_at(ms(110)), Pull) == [("a5", Pull(5, ME, (Have(5, 45, 0),)))]
    assert len(posts(driven.wake_at(ms(6_000)), Pull)) == 5
    assert driven.node.roster.contacts.keys() == {5}
    assert len(posts(driven.wake_at(ms(60_000)), Pull)) <= 2
    assert driven.node.roster.contacts.keys() == set()
    driven = Driven(pull_ns=ms(50))
    for _, join in posts(driven.grant(5, 9), Join):
        driven.node.receive(f"a{join.to}", driven.ack(join), Instant(ms(2)))
    assert posts(driven.wake_at(ms(4) - 1), Pull) == []
    assert len(posts(driven.wake_at(ms(4)), Pull)) == 2


def test_a_report_covers_the_range_and_the_gap_but_not_what_is_held() -> None:
    """[R8]"""
    driven = Driven.joined(1, 5, 9, 12)
    ack = posts(driven.node.receive("a15", join_of(15, first=True, hi=8), T0), JoinAck)[0][1]
    assert ack.maps is not None
    assert {each.row.id for each in ack.maps} == {ME, 5, 1}
    have = (Have(ME, INC, 1), Have(5, 45, 1), Have(1, 41, 0))
    other = join_of(15, first=True, hi=8, have=have, seq=2)
    ack = posts(driven.node.receive("a15", other, T0), JoinAck)[0][1]
    assert ack.maps is not None
    assert {each.row.id for each in ack.maps} == {1}


def test_a_report_holds_the_maps_of_suspects() -> None:
    """[R8] MAPs that are held: nothing is sent to a suspect, but it may live."""
    driven = Driven.joined(1, 5, 9, 12)
    for address in ("a5", "a1"):
        driven.node.submit(Unreachable(address=address), T0)
    ack = posts(driven.node.receive("a15", join_of(15, first=True, hi=8), T0), JoinAck)[0][1]
    assert ack.maps is not None
    assert {each.row.id for each in ack.maps} == {ME, 5, 1}


def test_a_report_takes_no_more_than_a_message_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out the joiner asks for; a single MAP is sent whatever its size.

    One's own MAP counts, and so do headers: 52 bytes and the address each.
    """
    monkeypatch.setattr(fdp, "CARRIED_BYTES_MAX", 200)
    monkeypatch.setattr(exchange, "CARRIED_BYTES_MAX", 2 * 54 + 2 * 5)
    driven = Driven.joined(5, 9, 12)
    ack = posts(driven.node.receive("a15", join_of(15, hi=14), T0), JoinAck)[0][1]
    assert ack.maps is not None
    assert [each.row.id for each in ack.maps] == [ME, 5, 9]
    wanted = (Have(9, 49, 0), Have(5, 45, 0), Have(12, 52, 0))
    ((_, maps),) = posts(driven.node.receive("a5", Pull(ME, 5, wanted), T0), Maps)
    assert [each.row.id for each in maps.maps] == [9, 5]
    monkeypatch.setattr(exchange, "CARRIED_BYTES_MAX", 1)
    ((_, maps),) = posts(driven.node.receive("a5", Pull(ME, 5, wanted), T0), Maps)
    assert [each.row.id for each in maps.maps] == [9]


def test_a_relayed_join_is_acknowledged_to_the_relay_without_maps() -> None:
    driven = Driven.joined(5)
    effects = driven.node.receive("a5", join_of(8, frm=5, hop=2), T0)
    assert posts(effects, JoinAck) == [("a5", JoinAck(5, ME, 8, 48, 1, UP, None))]


def test_members_are_learnt_before_the_join_is_relayed() -> None:
    """[R7]"""
    driven = Driven.joined(5)
    members = (Contact(9, "a9", 49), Contact(5, "a5", 45))
    effects = driven.node.receive("a2", join_of(2, hi=1, members=members), T0)
    relayed = {join.to: join.hop for _, join in posts(effects, Join)}
    assert relayed == {5: 2, 9: 2}


def test_a_copy_that_adds_nothing_is_acknowledged_and_not_relayed() -> None:
    """[R10] … and one with a wider range is relayed again."""
    driven = Driven.joined(5, 9)
    narrow = join_of(2, hi=8)
    assert len(posts(driven.node.receive("a2", narrow, T0), Join)) == 1
    again = driven.node.receive("a2", narrow, T0)
    assert len(posts(again, JoinAck)) == 1
    assert posts(again, Join) == []
    wider = driven.node.receive("a2", join_of(2, hi=1), T0)
    assert {join.to for _, join in posts(wider, Join)} == {5, 9}


# -- addressing -------------------------------------------------------------------------------


def test_a_message_for_another_id_is_answered_and_changes_nothing() -> None:
    """[R5]"""
    driven = Driven.joined(5)
    effects = driven.node.receive("a8", join_of(8, to=7), T0)
    assert effects == [Post("a8", NotMe(7, ME))]
    assert 8 not in driven.node.roster.entries


@pytest.mark.parametrize(
    "answer",
    [
        JoinAck(7, 5, ME, 1, 1, UP, ()),
        LeaveAck(7, 5, ME, 1, 1, UP),
        Maps(7, 5, ()),
        SyncReply(7, 5, (), ()),
    ],
)
def test_answers_to_a_past_life_are_no_exception(answer: Any) -> None:
    """[R5] Whoever sent them learns who listens here; NOT_ME itself is not answered."""
    driven = Driven.joined(5)
    assert driven.node.receive("a5", answer, T0) == [Post("a5", NotMe(7, ME))]
    assert driven.node.receive("a5", NotMe(7, 5), T0) == []
    assert driven.node.live().keys() == {5}


def test_not_me_makes_the_id_suspect_only_where_it_was_asked() -> None:
    """[R14] Whoever listens elsewhere cannot say that of others; nothing is sent again for ever."""
    driven = Driven.joined(5, 9)
    driven.node.receive("a9", NotMe(5, 9), T0)
    assert driven.node.roster.ring == [5, 9]
    assert posts(driven.node.receive("a5", NotMe(5, 7), T0), Join) == []
    assert driven.node.roster.ring == [9]
    assert driven.node.receive("a5", NotMe(5, 7), T0) == []
    driven.node.receive("a9", Heartbeat(ME, 9, row(5, hb=2), 2, 2, ME, UP), T0)
    assert driven.node.roster.ring == [5, 9]


def test_a_pending_join_goes_to_the_next_member_when_its_target_is_not_there() -> None:
    """[R14]"""
    driven = Driven()
    joins = {join.to: join for _, join in posts(driven.grant(5, 9, 12, 1), Join)}
    widest = next(join for join in joins.values() if len(join.members))
    nearest = widest.members[0].id
    effects = driven.node.submit(Unreachable(address=f"a{widest.to}"), T0)
    ((to, rerouted),) = posts(effects, Join)
    assert (to, rerouted.to, rerouted.hi) == (f"a{nearest}", nearest, widest.hi)


def test_an_unanswered_join_is_sent_twice_and_then_given_to_the_next() -> None:
    """[R14] The second time is after a second and what its bytes take; both name the same seq."""
    driven = Driven(ack_ns=ms(1_000))
    driven.grant(5, 9)
    effects = driven.wake_at(ms(1_100))
    assert sorted(join.to for _, join in posts(effects, Join)) == [5, 9]
    later = driven.wake_at(ms(2_300))
    assert posts(later, Join) == []
    assert driven.node.roster.ring == []
    assert driven.node.roster.suspected(5)


# -- changing ---------------------------------------------------------------------------------


def test_an_update_carries_base_version_and_delta() -> None:
    """[R12]"""
    driven = Driven.joined(5)
    ((_, update),) = posts(driven.node.submit(Change(map=b"new"), T0), Update)
    assert (update.base, update.row.ver, update.delta) == (1, 2, b"new")


def test_late_changes_are_told_once_at_the_next_heartbeat() -> None:
    """[R12, S002:sec.3]"""
    driven = Driven.joined(5)
    assert driven.node.submit(Change(map=b"one", collect=True), T0) == []
    assert driven.node.submit(Change(map=b"two", collect=True), T0) == []
    effects = driven.wake_at(ms(1_500))
    assert [each.delta for _, each in posts(effects, Update)] == [b"two"]
    assert [each.row.ver for _, each in posts(effects, Update)] == [2]
    assert posts(effects, Heartbeat) == []


def update_of(source: int, base: int, ver: int, *, hb: int = 9) -> Update:
    return Update(ME, source, row(source, ver=ver, hb=hb, has_map=True), 7, 1, ME, UP, base, b"d")


def test_an_update_applies_to_its_base_only() -> None:
    """[R12] … otherwise the MAP is asked for where the change came from."""
    driven = Driven.joined(5, 9)
    (learnt,) = told(driven.node.receive("a5", update_of(5, 1, 2), T0))
    assert (learnt.ver, learnt.map) == (2, MapRecord(2, b"map 5", (b"d",)))
    assert told(driven.node.receive("a5", update_of(5, 1, 2), T0)) == []
    assert told(driven.node.receive("a5", update_of(5, 3, 4), T0)) == []
    pulls = posts(driven.wake_at(0), Pull)
    assert pulls == [("a5", Pull(5, ME, (Have(5, 45, 2),)))]


def test_a_late_update_after_the_goodbye_changes_nothing() -> None:
    """[D7]"""
    driven = Driven.joined(5)
    goodbye = Leave(ME, 5, row(5, hb=3, status=Status.LEFT), 8, 1, ME, UP)
    assert told(driven.node.receive("a5", goodbye, T0)) == [Ended(5, 45, True)]
    driven.node.receive("a5", update_of(5, 1, 2), T0)
    driven.node.receive("a9", Sync(ME, 9, (row(9), row(5, hb=50))), T0)
    assert driven.node.live().keys() == set()
    assert driven.node.roster.entries[5].status is Status.LEFT


def test_a_heartbeat_of_a_version_that_is_not_held_makes_it_wanted() -> None:
    """[R12]"""
    driven = Driven.joined(5, 9)
    driven.node.receive("a9", Heartbeat(ME, 9, row(5, ver=3, hb=2), 2, 2, ME, UP), T0)
    assert posts(driven.wake_at(0), Pull) == [("a9", Pull(9, ME, (Have(5, 45, 1),)))]
    driven.node.receive("a9", Maps(ME, 9, (carried(5, ver=3, hb=2),)), T0)
    assert driven.node.live()[5].map == MapRecord(3, b"map 5")


@pytest.mark.parametrize(
    ("held", "answer"),
    [(Have(ME, INC, 3), "changes"), (Have(ME, INC, 0), "whole"), (Have(ME, 7, 3), "whole")],
)
def test_a_pull_is_answered_by_whatever_is_shorter(held: Have, answer: str) -> None:
    """[S002 spec 5: deltas]"""

    class Tails:
        """A change is what is new behind the old MAP."""

        def difference(self, old: bytes, new: bytes) -> bytes:
            return new[len(old) :]

        def shortened(self, record: MapRecord) -> MapRecord:
            return MapRecord(record.ver, record.full + b"".join(record.deltas))

    node = FdpNode("me", OutsideEntrance(), DiscoverySettings(), Random(0), Tails())
    node.submit(Start(map=b"a long map"), T0)
    node.submit(Granted(ME, INC, SPACE, contacts(5)), T0)
    for tail in (b"+", b"++", b"+++", b"++++"):
        node.submit(Change(map=b"a long map" + tail), T0)
    ((_, maps),) = posts(node.receive("a5", Pull(ME, 5, (held,)), T0), Maps)
    if answer == "changes":
        assert maps.chains == (DeltaChain(maps.chains[0].row, 3, (b"+", b"+")),)
        assert maps.maps == ()
    else:
        assert [each.map.full for each in maps.maps] == [b"a long map++++"]
    assert posts(node.receive("a5", Pull(ME, 5, (Have(ME, INC, 5), Have(8, 1, 0))), T0), Maps) == []


def test_changes_that_are_longer_than_the_map_are_not_sent() -> None:
    """[S002 spec 5: deltas] The MAP itself is shorter then."""
    driven = Driven.joined(5)
    for text in (b"a change", b"another one"):
        driven.node.submit(Change(map=text), T0)
    pull = Pull(ME, 5, (Have(ME, INC, 1),))
    ((_, maps),) = posts(driven.node.receive("a5", pull, T0), Maps)
    assert (maps.chains, [each.map.full for each in maps.maps]) == ((), [b"another one"])
    ((_, maps),) = posts(driven.node.receive("a5", Pull(ME, 5, (Have(ME, INC, 2),)), T0), Maps)
    assert maps.maps[0].map == MapRecord(3, b"another one")


def test_a_map_is_kept_whole_when_its_changes_are_longer_than_it() -> None:
    """What is passed on must fit a message, whatever others change."""
    driven = Driven.joined(5)
    change = bytes(2_000_000)
    for ver in range(2, 14):
        update = Update(ME, 5, row(5, ver=ver, hb=ver), ver, 1, ME, UP, ver - 1, change)
        driven.node.receive("a5", update, T0)
    record = driven.node.live()[5].map
    assert record is not None
    assert record.ver == 13
    assert record.size_bytes <= 2 * len(change)
    ((_, maps),) = posts(driven.node.receive("a9", Pull(ME, 9, (Have(5, 45, 0),)), T0), Maps)
    assert len(encode(maps)) < MESSAGE_BYTES_MAX


def test_a_change_that_cannot_be_told_makes_the_map_wanted() -> None:
    """[R12] Nobody's input fails because of it; the others see the version and ask."""

    class Whole(WholeMaps):
        def difference(self, old: bytes, new: bytes) -> bytes:
            raise LocalProtocolError("too long")

    node = FdpNode("me", OutsideEntrance(), DiscoverySettings(), Random(0), Whole())
    node.submit(Start(map=b"mine"), T0)
    node.submit(Granted(ME, INC, SPACE, contacts(5)), T0)
    effects = node.submit(Change(map=b"new"), T0)
    assert [each.row.ver for _, each in posts(effects, Heartbeat)] == [2]
    ((_, maps),) = posts(node.receive("a5", Pull(ME, 5, (Have(ME, INC, 1),)), T0), Maps)
    assert maps.maps[0].map == MapRecord(2, b"new")


def test_what_is_too_long_for_a_message_is_refused_at_the_door() -> None:
    """One's own by the caller's fault, another's by the peer's; nothing else fails later."""
    long = bytes(MAP_BYTES_MAX + 1)
    node = FdpNode("me", OutsideEntrance(), DiscoverySettings(), Random(0))
    with pytest.raises(LocalProtocolError, match="at most"):
        node.submit(Start(map=long), T0)
    driven = Driven.joined(5)
    with pytest.raises(LocalProtocolError, match="at most"):
        driven.node.submit(Change(map=long), T0)
    header = row(9, ver=2)
    for message in (
        join_of(9, map=MapRecord(1, b"", (long,))),
        JoinAck(ME, 5, ME, INC, 1, UP, (Carried(header, MapRecord(1, long)),)),
        Maps(ME, 5, (Carried(header, MapRecord(1, long)),)),
        Maps(ME, 5, (), (DeltaChain(header, 1, (long,)),)),
        Maps(ME, 5, (), (DeltaChain(row(9, ver=99), 1, (b"",) * (DELTAS_MAX + 1)),)),
        Update(ME, 5, row(5, ver=2), 7, 1, ME, UP, 1, long),
        join_of(9, have=(Have(1, 1, 1),) * (MEMBERS_MAX + 1)),
    ):
        with pytest.raises(RemoteProtocolError, match="at most"):
            driven.node.receive("a5", message, T0)
        assert driven.node.live().keys() == {5}


def test_lists_of_participants_fit_a_message() -> None:
    """What a core posts is never refused for its length: 10,000 with the longest addresses."""
    node = FdpNode("me", OutsideEntrance(), DiscoverySettings(), Random(0))
    node.submit(Start(map=bytes(MAP_BYTES_MAX)), T0)
    many = 10_000
    told = tuple(Contact(at, f"{at:05}" + "\U0001f600" * 250, 1) for at in range(1, many))
    joins = posts(node.submit(Granted(0, INC, 1 << 32, told), T0), Join)
    assert len(joins) > 10
    widest = max(joins, key=lambda each: len(each[1].members))[1]
    assert len(encode(widest)) < MESSAGE_BYTES_MAX
    assert len(widest.members) > 1_000
    rows = tuple(Row(each.id, 1, 1, 1, 0, each.addr) for each in told)
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        node.receive(told[0].addr, Sync(0, 1, part), T0)
    ((_, reply),) = posts(node.receive(told[0].addr, Sync(0, 1, ()), T0), SyncReply)
    assert 1_000 < len(reply.rows) < many
    assert len(encode(reply)) < MESSAGE_BYTES_MAX


def test_a_map_without_room_is_asked_for_when_there_is_some() -> None:
    """It is counted and not asked for again and again; who has it is there all the same."""
    driven = Driven.joined(5, 9, know=False, maps_bytes_max=6)
    (learnt,) = told(driven.node.receive("a5", Maps(ME, 5, (carried(5), carried(9))), T0))
    assert (learnt.id, driven.node.dropped["MAPs"]) == (5, 1)
    assert driven.node.roster.ring == [5, 9]
    sync = Sync(ME, 9, (row(9, has_map=True),))
    assert [each.want for _, each in posts(driven.node.receive("a9", sync, T0), SyncReply)] == [()]
    assert posts(driven.wake_at(0), Pull) == []
    goodbye = Leave(ME, 5, row(5, hb=3, status=Status.LEFT), 8, 1, ME, UP)
    driven.node.receive("a5", goodbye, T0)
    ((_, reply),) = posts(driven.node.receive("a9", sync, T0), SyncReply)
    assert [have.id for have in reply.want] == [9]
    (learnt,) = told(driven.node.receive("a9", Maps(ME, 9, (carried(9),)), T0))
    assert (learnt.id, driven.node.dropped["MAPs"]) == (9, 1)


# -- anti-entropy -----------------------------------------------------------------------------


def test_sync_is_answered_with_what_is_newer_and_what_is_lacking() -> None:
    """[R15]"""
    driven = Driven.joined(5, 9)
    rows = (row(9, hb=5, has_map=True, ver=2), row(5, hb=0), row(12, has_map=True))
    ((to, reply),) = posts(driven.node.receive("a9", Sync(ME, 9, rows), T0), SyncReply)
    assert to == "a9"
    assert {each.id for each in reply.rows} == {ME, 5}
    assert {each.id for each in reply.want} == {9, 12}
    again = posts(driven.node.receive("a9", Sync(ME, 9, rows), T0), SyncReply)
    assert [reply.want for _, reply in again] == [()]


def test_nothing_is_asked_for_while_the_join_is_not_answered() -> None:
    """[R15]"""
    driven = Driven()
    joins = [join for _, join in posts(driven.grant(5), Join)]
    sync = Sync(ME, 5, (row(5, has_map=True), row(9, has_map=True)))
    ((_, reply),) = posts(driven.node.receive("a5", sync, T0), SyncReply)
    assert reply.want == ()
    driven.node.receive("a5", driven.ack(joins[0], carried(5)), T0)
    assert [have.id for _, pull in posts(driven.wake_at(ms(1)), Pull) for have in pull.have] == [9]


def test_anti_entropy_is_fast_on_news_and_slows_down() -> None:
    """[R15] A tenth of 0.5–1 s after joining, doubling while nothing new is learnt."""
    driven = Driven.joined(5, 9, heartbeat_min_ns=ms(60_000), heartbeat_max_ns=ms(60_000),
                           fail_ns=ms(60_000))  # fmt: skip
    at: list[int] = []
    while len(at) < 8 and (due := driven.node.next_deadline()) is not None:
        if posts(driven.node.wake(due), Sync):
            at.append(due)
    gaps = [(later - sooner) / ms(1) for sooner, later in pairwise(at)]
    assert 50 <= at[0] / ms(1) <= 100
    for gap, factor in zip(gaps[1:], (0.2, 0.4, 0.8, 1.0, 1.0, 1.0), strict=False):
        assert 500 * factor <= gap <= 1_000 * factor
    driven.node.receive("a9", Sync(ME, 9, (row(12),)), Instant(at[-1] + 1))
    due = driven.wake_at(at[-1] + ms(1_100))
    after = driven.node.next_deadline()
    assert posts(due, Sync)
    assert after is not None


def test_half_of_the_syncs_go_to_the_ring_successor() -> None:
    """[R15]"""
    driven = Driven.joined(5, 9, 12, fail_ns=ms(10_000_000))
    partners = [sync.to for _, sync in posts(driven.wake_at(ms(100_000)), Sync)]
    assert len(partners) > 80
    assert set(partners[::2]) == {5}
    assert set(partners[1::2]) == {5, 9, 12}


def test_what_is_lacking_there_is_sent() -> None:
    """[R15] SYNC_REP{want} → MAPS."""
    driven = Driven.joined(5, 9)
    reply = SyncReply(ME, 5, (), (Have(9, 49, 0), Have(ME, INC, 0)))
    ((to, maps),) = posts(driven.node.receive("a5", reply, T0), Maps)
    assert (to, [each.row.id for each in maps.maps]) == ("a5", [9, ME])


SEEDS = ("s1", "s2")


def seeded(*ids: int) -> Driven:
    """A participant that came by its id without any answer of a seed, and knows others."""
    entrance = SeedEntrance("g", "me", SEEDS, DiscoverySettings(), Random(0), started_ms=1)
    driven = Driven(entrance, fail_ns=ms(10_000_000))
    for to, join in posts(driven.grant(*ids), Join):
        driven.node.receive(to, driven.ack(join), T0)
    driven.node.receive("a0", Maps(ME, 5, tuple(carried(each) for each in ids)), T0)
    return driven


def partners(driven: Driven, until_ns: int) -> list[str]:
    return [to for to, _ in posts(driven.wake_at(until_ns), Sync)]


def test_a_seed_that_answers_is_tried_one_time_in_five() -> None:
    """[spec 5] … and until then, or until it is given up, nobody else is."""
    driven = seeded(5, 9)
    first = partners(driven, ms(900))
    assert 1 <= len(first) < SEED_TRIES * len(SEEDS)
    assert set(first) <= set(SEEDS)
    driven.node.receive("s1", SyncReply(ME, 9, (), ()), Instant(ms(900)))
    later = partners(driven, ms(400_000))
    share = sum(to in SEEDS for to in later) / len(later)
    assert 0.15 <= share <= 0.25
    assert {"s1", "s2", "a5", "a9"} == set(later)


def test_seeds_that_do_not_answer_are_given_up() -> None:
    """Others are tried, too; a seed that comes up later is found all the same."""
    driven = seeded(5, 9)
    found = partners(driven, ms(400_000))
    alone = SEED_TRIES * len(SEEDS)
    assert set(found[:alone]) <= set(SEEDS)
    share = sum(to in SEEDS for to in found[alone:]) / len(found[alone:])
    assert 0.15 <= share <= 0.25


def test_a_welcome_is_an_answer_of_a_seed() -> None:
    entrance = SeedEntrance("g", "me", SEEDS, DiscoverySettings(), Random(0), started_ms=1)
    driven = Driven(entrance, fail_ns=ms(10_000_000))
    hello = Hello(drawn_id("g", 0, 1 << 64), entrance._inc, "me")
    driven.node.receive("s1", Members(hello.id, hello.inc, contacts(5, 9)), T0)
    assert driven.node.id == hello.id
    found = partners(driven, ms(5_000))
    assert set(found) & {"a5", "a9"}


def test_who_knows_nobody_tries_the_seeds_for_ever() -> None:
    driven = seeded()
    found = partners(driven, ms(60_000))
    assert len(found) > 50
    assert set(found) == set(SEEDS)


# -- losing the id ----------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["row", "member"])
def test_a_newer_incarnation_takes_the_id(by: str) -> None:
    """[R11.1] The participant wants another and joins again; what was pending is dropped."""
    driven = Driven.joined(5)
    if by == "row":
        message: Any = Sync(ME, 5, (row(ME, inc=INC + 1, addr="other"),))
    else:
        message = join_of(8, members=(Contact(ME, "other", INC + 1),))
    effects = driven.node.receive("a5", message, T0)
    assert IdWanted(INC) in told(effects)
    assert driven.node.id is None
    assert driven.node.receive("a5", join_of(9), T0) == []
    again = driven.node.submit(Granted(7, INC + 2, SPACE, contacts(5)), T0)
    assert Joined(7, INC + 2) in told(again)
    assert driven.node.id == 7
    assert {have.id for _, join in posts(again, Join) for have in join.have} >= {5}


def test_an_older_incarnation_does_not_take_the_id() -> None:
    driven = Driven.joined(5)
    driven.node.receive("a5", Sync(ME, 5, (row(ME, inc=INC - 1, addr="other"),)), T0)
    assert driven.node.id == ME


# -- the server's list ------------------------------------------------------------------------


def leased(**settings: Any) -> Driven:
    """A participant with an id of a server, which has joined 5."""
    driven = Driven(ServerEntrance("g", "me", "server", DiscoverySettings()), **settings)
    joins = posts(driven.grant(5), Join)
    driven.node.receive("a5", driven.ack(joins[0][1], carried(5)), T0)
    return driven


def test_unknown_members_that_the_server_lists_are_met() -> None:
    """[R16] … every third of a lease."""
    driven = leased()
    assert len(posts(driven.wake_at(ms(3_000)), Renew)) == 1
    effects = driven.node.receive("server", RenewOk(ME, INC, contacts(5, 9)), T0)
    assert [(to, sync.to) for to, sync in posts(effects, Sync)] == [("a9", 9)]
    assert posts(driven.node.receive("server", RenewOk(ME, INC, contacts(9)), T0), Sync) == []


def test_an_expired_member_that_the_server_lists_is_met_again() -> None:
    """[R16] After a partition each side has ended the other: the server's list heals it."""
    driven = leased()
    driven.wake_at(ms(8_000))
    assert driven.node.roster.entries[5].status is Status.EXPIRED
    now = Instant(ms(8_000))
    effects = driven.node.receive("server", RenewOk(ME, INC, contacts(5)), now)
    assert [(to, sync.to) for to, sync in posts(effects, Sync)] == [("a5", 5)]
    assert driven.node.live() == {}
    driven.node.receive("a5", SyncReply(ME, 5, (row(5, hb=9, has_map=True),), ()), now)
    driven.node.receive("a5", Maps(ME, 5, (carried(5, hb=9),)), now)
    assert driven.node.live().keys() == {5}


# -- leaving ----------------------------------------------------------------------------------


def test_a_leaver_goes_when_its_goodbye_is_acknowledged() -> None:
    """[R17]"""
    driven = Driven.joined(5)
    ((_, leave),) = posts(driven.node.submit(End(), T0), Leave)
    assert leave.row.status is Status.LEFT
    ack = LeaveAck(ME, 5, ME, INC, leave.seq, UP)
    assert told(driven.node.receive("a5", ack, T0)) == [Gone()]
    assert driven.node.next_deadline() is None
    assert driven.node.receive("a5", join_of(8), T0) == []


def test_a_leaver_waits_for_what_it_relays_and_at_most_two_seconds() -> None:
    """[R17]"""
    driven = Driven.joined(5, 9)
    driven.node.receive("a2", join_of(2, hi=1), T0)
    ((_, leave), *others) = posts(driven.node.submit(End(), T0), Leave)
    for each in (leave, *(other for _, other in others)):
        driven.node.receive(f"a{each.to}", LeaveAck(ME, each.to, ME, INC, each.seq, UP), T0)
    assert not driven.node.gone
    assert driven.node.roster.me == ME
    assert Gone() in told(driven.wake_at(ms(2_000)))


def test_a_leaver_alone_or_without_an_id_goes_at_once() -> None:
    alone = Driven()
    alone.grant()
    assert Gone() in told(alone.node.submit(End(), T0))
    assert told(Driven().node.submit(End(), T0)) == [Gone()]


def test_a_leaver_says_nothing_else_than_that_it_has_left() -> None:
    """[R11.4, R17] Whatever it answers, nobody is to take it for one that stays."""
    driven = Driven.joined(5)
    driven.node.submit(End(), T0)
    effects = driven.node.receive("a8", join_of(8), T0)
    effects += driven.node.receive("a5", Sync(ME, 5, (row(ME, inc=INC, hb=1),)), T0)
    effects += driven.node.receive("a5", SyncReply(ME, 5, (), (Have(ME, INC, 0),)), T0)
    effects += driven.node.receive("a5", Pull(ME, 5, (Have(ME, INC, 0),)), T0)
    ((_, ack),) = posts(effects, JoinAck)
    ((_, reply),) = posts(effects, SyncReply)
    said = [each.row for each in ack.maps or () if each.row.id == ME]
    said += [each for each in reply.rows if each.id == ME]
    for _, maps in posts(effects, Maps):
        said += [each.row for each in maps.maps]
        assert [each.map for each in maps.maps] == [MapRecord(0, b"")]
    assert len(said) == 4
    assert {each.status for each in said} == {Status.LEFT}


def test_the_lease_is_released_with_the_goodbye() -> None:
    effects = leased().node.submit(End(), T0)
    assert posts(effects, Release) == [("server", Release(ME, "g", INC))]


# -- the caller's and the peers' faults --------------------------------------------------------


def test_the_callers_faults_are_refused() -> None:
    node = FdpNode("me", OutsideEntrance(), DiscoverySettings(), Random(0))
    for command in (Change(map=b""), End()):
        with pytest.raises(LocalProtocolError):
            node.submit(command, T0)
    node.submit(Start(map=b""), T0)
    with pytest.raises(LocalProtocolError, match="starts once"):
        node.submit(Start(map=b""), T0)
    node.submit(End(), T0)
    for command in (Change(map=b""), End()):
        with pytest.raises(LocalProtocolError):
            node.submit(command, T0)


@pytest.mark.parametrize(
    "message",
    [
        join_of(8, direction=0),
        join_of(8, hop=0),
        join_of(SPACE),
        join_of(8, frm=SPACE),
        join_of(8, hi=SPACE),
        join_of(8, members=(Contact(SPACE, "x", 1),)),
        Sync(ME, 5, (row(SPACE),)),
        SyncReply(ME, 5, (row(SPACE),), ()),
        Maps(ME, 5, (carried(SPACE),)),
        Maps(ME, 5, (), (DeltaChain(row(SPACE), 0, (b"d",)),)),
        Maps(ME, 5, (Carried(row(5), MapRecord(2, b"newer than its header")),)),
        JoinAck(ME, 5, ME, INC, 1, UP, (Carried(row(5), MapRecord(2, b"")),)),
        Maps(ME, 5, (), (DeltaChain(row(5, ver=3), 1, (b"2", b"3", b"4")),)),
        RequestId("g", "a"),
        RenewOk(ME, INC, ()),
    ],
)
def test_what_no_correct_peer_sends_is_refused(message: Any) -> None:
    driven = Driven.joined(5)
    with pytest.raises(RemoteProtocolError):
        driven.node.receive("a5", message, T0)
    assert driven.node.live().keys() == {5}
