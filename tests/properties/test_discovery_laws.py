"""Laws of discovery: merging is a join-semilattice, ranges are divided, hostile peers harmless."""

from contextlib import suppress
from random import Random
from typing import Any

from drawn_messages import of_kind, values
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.commands import End, Granted, Start
from orderwire.discovery.effects import DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance, OutsideEntrance, SeedEntrance, ServerEntrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import (
    Contact,
    Join,
    MapRecord,
    Message,
    Row,
    Status,
    decode,
    encode,
)
from orderwire.discovery.ring import (
    DOWN,
    UP,
    RangePolicy,
    between,
    broadcast_tree,
    distance,
    own_targets,
    targets,
    within,
)
from orderwire.discovery.roster import Merge, Roster
from orderwire.discovery.settings import BootstrapSettings, DiscoverySettings
from orderwire.kernel import Instant, LocalProtocolError, RemoteProtocolError, ms

# -- merging [FDP/1 R11] ------------------------------------------------------------------------

NOW = Instant(ms(100_000))
HB_LAST = 12


@st.composite
def headers(draw: st.DrawFn) -> Row:
    """A header of one of three ids.

    What an owner says is consistent: its goodbye is its last word, and a heartbeat was made at one
    time, so that it is as old whoever tells of it.
    """
    identity, inc = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    left = draw(st.booleans()) and draw(st.booleans())
    hb = HB_LAST if left else draw(st.integers(0, HB_LAST - 1))
    age_ms = 800 * (HB_LAST - hb)
    ver = 9 if left else draw(st.integers(1, 8))
    status = Status.LEFT if left else draw(st.sampled_from((Status.LIVE, Status.EXPIRED)))
    return Row(identity, inc, ver, hb, age_ms, f"a{identity}", status, True)


def merged(rows: list[Row]) -> dict[int, tuple[Any, ...]]:
    roster = Roster(DiscoverySettings(), "me")
    roster.adopt(0, 1, 16)
    for row in rows:
        roster.merge(row, NOW)
    return view(roster)


def view(roster: Roster) -> dict[int, tuple[Any, ...]]:
    return {
        each.id: (each.inc, each.ver, each.hb, each.fresh, each.addr, each.status)
        for each in roster.entries.values()
    }


@given(rows=st.lists(headers(), max_size=12), chance=st.randoms(use_true_random=False))
def test_merging_is_commutative_and_idempotent(rows: list[Row], chance: Random) -> None:
    expected = merged(rows)
    shuffled = rows + chance.choices(rows, k=len(rows)) if rows else []
    chance.shuffle(shuffled)
    assert merged(shuffled) == expected
    assert merged(rows + rows) == expected


@given(rows=st.lists(headers(), max_size=12), cut=st.integers(0, 12))
def test_merging_is_associative(rows: list[Row], cut: int) -> None:
    """What one has merged can be told to another as its entries, in place of all it was told."""
    roster = Roster(DiscoverySettings(), "me")
    roster.adopt(0, 1, 16)
    for row in rows[:cut]:
        roster.merge(row, NOW)
    summary = [roster.row_of(entry, NOW) for entry in roster.entries.values()]
    assert merged(summary + rows[cut:]) == merged(rows)


@given(
    rows=st.lists(headers(), max_size=12),
    told=st.lists(headers(), max_size=12),
    data=st.data(),
)
def test_headers_that_tell_of_life_alone_are_taken_as_all_others(
    rows: list[Row], told: list[Row], data: st.DataObject
) -> None:
    one, other = (Roster(DiscoverySettings(), "me") for _ in range(2))
    for roster in (one, other):
        roster.adopt(0, 1, 16)
        for row in rows:
            roster.merge(row, NOW)
    for row in data.draw(st.lists(st.sampled_from(rows), max_size=12)) if rows else []:
        record = MapRecord(row.ver, b"map")
        assert one.put_map(row, record) == other.put_map(row, record)
        if data.draw(st.booleans()):
            assert one.suspect(row.id) == other.suspect(row.id)
    told += [replace(row, hb=row.hb + 1) for row in rows]
    news = [row for row in told if one.merge(row, NOW) is Merge.NEWS]
    found = [row for row in other.telling_more(told, NOW) if other.merge(row, NOW) is Merge.NEWS]
    assert found == news
    assert view(one) == view(other)
    assert one.ring == other.ring
    assert [*one.suspects()] == [*other.suspects()]


# -- ranges [S002:sec.4.1, FDP/1 R3] --------------------------------------------------------------


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[int], int]:
    """Some members and the size of their id space, dense or sparse."""
    size = draw(st.sampled_from((1, 2, 3, 7, 16, 64, 1 << 16, 1 << 64)))
    ids = st.integers(0, size - 1)
    return sorted(draw(st.sets(ids, min_size=1, max_size=min(size, 40)))), size


@given(given=rings(), data=st.data(), direction=st.sampled_from((UP, DOWN)))
def test_targets_divide_a_range_into_what_each_serves(
    given: tuple[list[int], int], data: st.DataObject, direction: int
) -> None:
    members, size = given
    me = data.draw(st.sampled_from(members))
    hi = data.draw(st.integers(0, size - 1))
    ring = [each for each in members if each != me]
    inside = list(between(ring, me, hi, size, direction))
    for policy in (RangePolicy.RANK, RangePolicy.SUCC):
        hops = targets(ring, me, hi, size, direction, policy)
        for member in inside:
            assert sum(within(member, hop.to, hop.hi, size, direction) for hop in hops) == 1
        for hop in hops:
            assert hop.to in inside
            reach = distance(me, hop.hi, size, direction)
            assert distance(me, hop.to, size, direction) <= reach
            assert reach <= distance(me, hi, size, direction)


@given(given=rings(), data=st.data(), both_ways=st.booleans())
@example(given=(list(range(16)), 16), data=None, both_ways=False)
def test_a_broadcast_reaches_each_member_once_and_no_deeper_than_the_logarithm(
    given: tuple[list[int], int], data: st.DataObject | None, both_ways: bool
) -> None:
    members, size = given
    source = members[0] if data is None else data.draw(st.sampled_from(members))
    for policy in (RangePolicy.RANK, RangePolicy.SUCC):
        edges = broadcast_tree(members, source, size, both_ways=both_ways, policy=policy)
        assert sorted(edge.to for edge in edges) == [each for each in members if each != source]
        if policy is RangePolicy.RANK:
            assert max((edge.hop for edge in edges), default=0) <= (len(members) - 1).bit_length()


@given(given=rings(), data=st.data(), both_ways=st.booleans())
def test_ranges_shrink_whatever_the_views_are(
    given: tuple[list[int], int], data: st.DataObject, both_ways: bool
) -> None:
    """A relay with another view still serves ids of its range only, nearer to its end."""
    members, size = given
    source = data.draw(st.sampled_from(members))
    known = st.lists(st.sampled_from(members), unique=True)
    ring = sorted(set(data.draw(known)) - {source})
    for to, hi, direction in own_targets(ring, source, size, both_ways=both_ways):
        other = sorted(set(data.draw(known)) - {to})
        for hop in targets(other, to, hi, size, direction):
            assert within(hop.to, to, hi, size, direction)
            assert within(hop.hi, hop.to, hi, size, direction)
            assert distance(hop.to, hop.hi, size, direction) < distance(to, hi, size, direction)


# -- hostile peers --------------------------------------------------------------------------------

SPACE = 8
SOURCES = ("server", "a0", "a1", "a2", "elsewhere")


def entrance(kind: str) -> Entrance:
    if kind == "server":
        return ServerEntrance("g", "me", "server", DiscoverySettings())
    if kind == "seeds":
        return SeedEntrance(
            "g", "me", ("a0", "a1"), DiscoverySettings(), Random(1), started_ms=1_000_000,
            id_space=SPACE,
        )  # fmt: skip
    return OutsideEntrance()


def harmless(effects: DiscoveryEffects) -> None:
    """What a correct participant posts, every correct participant can read."""
    for each in effects:
        if isinstance(each, Post):
            assert decode(encode(each.message)) == each.message


@settings(max_examples=150)
@given(
    kind=st.sampled_from(("server", "seeds", "outside")),
    has_id=st.booleans(),
    told=st.lists(
        st.tuples(st.sampled_from(SOURCES), values(SPACE), st.integers(0, 3_000)), max_size=25
    ),
    leaves=st.booleans(),
)
def test_a_participant_survives_any_messages(
    kind: str, has_id: bool, told: list[tuple[str, Message, int]], leaves: bool
) -> None:
    """It raises RemoteProtocolError or nothing, says nothing unreadable, keeps bounded tables."""
    node = FdpNode("me", entrance(kind), DiscoverySettings(), Random(0))
    now = 0
    harmless(node.submit(Start(map=b"mine"), Instant(now)))
    if has_id:
        contacts = (Contact(1, "a1", 7), Contact(2, "a2", 8))
        harmless(node.submit(Granted(0, 50, SPACE, contacts), Instant(now)))
    for source, message, wait_ms in told:
        with suppress(RemoteProtocolError):
            harmless(node.receive(source, message, Instant(now)))
        end = now + ms(wait_ms)
        for _ in range(200):
            due = node.next_deadline()
            if due is None or due > end:
                break
            now = max(now, due)
            harmless(node.wake(Instant(now)))
        else:
            raise AssertionError(f"awake 200 times within {wait_ms} ms")
        now = end
        roster = node.roster
        assert len(roster.entries) + len(roster.contacts) <= 2 * max(roster.id_space, SPACE)
        assert len(roster.ring) == len(set(roster.ring))
        assert roster.ring == sorted(roster.ring)
    if leaves:
        try:
            harmless(node.submit(End(), Instant(now)))
        except LocalProtocolError:
            assert node.leaving
        for _ in range(20):
            due = node.next_deadline()
            if due is None:
                break
            harmless(node.wake(due))
        assert node.gone


@given(
    told=st.lists(st.tuples(st.sampled_from(SOURCES), values(SPACE)), max_size=30),
    step_ms=st.integers(0, 3_000),
)
def test_a_server_survives_any_messages(told: list[tuple[str, Message]], step_ms: int) -> None:
    server = BootstrapServer(BootstrapSettings(id_space=SPACE), Instant(0), epoch=3)
    for at, (source, message) in enumerate(told):
        try:
            harmless(server.receive(source, message, Instant(at * ms(step_ms))))
        except RemoteProtocolError:
            continue
        assert len(server.holders()) <= SPACE


@settings(max_examples=60)
@given(st.lists(of_kind(Join, SPACE), max_size=8))
def test_what_one_hostile_join_starts_ends(joins: list[Message]) -> None:
    """Each is relayed at most once a target: a forged broadcast does not go around for ever."""
    nodes = {}
    ids = range(SPACE)
    for me in ids:
        node = FdpNode(f"a{me}", OutsideEntrance(), DiscoverySettings(), Random(me))
        node.submit(Start(map=b"m"), Instant(0))
        others = tuple(Contact(each, f"a{each}", 10 + each) for each in ids if each != me)
        node.submit(Granted(me, 10 + me, SPACE, others), Instant(0))
        nodes[f"a{me}"] = node
    todo = [("hostile", f"a{at % SPACE}", join) for at, join in enumerate(joins)]
    carried = 0
    while todo:
        source, to, message = todo.pop()
        carried += isinstance(message, Join)
        assert carried <= 4 * SPACE * SPACE * max(1, len(joins))
        node = nodes.get(to)
        if node is None:
            continue
        try:
            effects = node.receive(source, message, Instant(0))
        except RemoteProtocolError:
            continue
        todo += [(to, each.to, each.message) for each in effects if isinstance(each, Post)]
