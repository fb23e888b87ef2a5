"""The full mesh: everybody ends with everybody's newest MAP, told by its owner."""

from random import Random

import pytest

from orderwire.discovery.commands import Change, End, Ended, Gone, Granted, IdWanted, Learnt, Start
from orderwire.discovery.effects import DiscoveryEffects, Post
from orderwire.discovery.entrance import OutsideEntrance
from orderwire.discovery.messages import Contact, Heartbeat, Maps, Row, Sync
from orderwire.discovery.ring import UP
from orderwire.discovery.settings import DiscoverySettings
from orderwire.discovery.tcp_mesh import MeshNode
from orderwire.kernel import Indicate, Instant, LocalProtocolError, RemoteProtocolError, ms

NOW = Instant(0)


class Mesh:
    """Participants that get ids 0, 1, … and hear each other at once, in order."""

    def __init__(self) -> None:
        self.nodes: dict[str, MeshNode] = {}
        self.told: list[tuple[str, object]] = []
        self.posts: list[tuple[str, Post]] = []
        self.held: list[tuple[str, Post]] | None = None

    def apply(self, name: str, effects: DiscoveryEffects, now: int = 0) -> None:
        todo = [(name, each) for each in effects]
        while todo:
            source, effect = todo.pop(0)
            if isinstance(effect, Indicate):
                self.told.append((source, effect.indication))
                continue
            self.posts.append((source, effect))
            if self.held is not None:
                self.held.append((source, effect))
                continue
            more = self.nodes[effect.to].receive(source, effect.message, Instant(now))
            todo += [(effect.to, each) for each in more]

    def begin(self, name: str) -> None:
        members = tuple(
            Contact(at, other, at + 1) for at, other in enumerate(self.nodes) if other != name
        )
        node = MeshNode(name, OutsideEntrance(), DiscoverySettings(), Random(1))
        self.nodes[name] = node
        self.apply(name, node.submit(Start(map=name.encode()), NOW))
        at = len(self.nodes) - 1
        self.apply(name, node.submit(Granted(at, at + 1, 16, members), NOW))

    def views(self) -> dict[str, dict[str, bytes]]:
        return {
            name: {
                entry.addr: (entry.map.deltas or (entry.map.full,))[-1]
                for entry in node.roster.live()
                if entry.map is not None
            }
            for name, node in self.nodes.items()
        }


def test_every_pair_exchanges_its_maps_once() -> None:
    mesh = Mesh()
    for name in "abcd":
        mesh.begin(name)
    assert mesh.views() == {
        name: {other: other.encode() for other in "abcd" if other != name} for name in "abcd"
    }
    assert sum(isinstance(post.message, Maps) for _, post in mesh.posts) == 4 * 3


def test_a_map_that_comes_before_the_id_waits_for_it() -> None:
    mesh = Mesh()
    mesh.begin("a")
    early = MeshNode("b", OutsideEntrance(), DiscoverySettings(), Random(1))
    mesh.nodes["b"] = early
    early.submit(Start(map=b"b"), NOW)
    maps = mesh.nodes["a"]._maps(1)
    assert early.receive("a", maps, NOW) == []
    mesh.apply("b", early.submit(Granted(1, 2, 16, (Contact(0, "a", 1),)), NOW))
    assert mesh.views() == {"a": {"b": b"b"}, "b": {"a": b"a"}}


def test_a_change_reaches_all_and_a_lost_one_is_fetched_on_the_next_heartbeat() -> None:
    mesh = Mesh()
    for name in "abc":
        mesh.begin(name)
    node = mesh.nodes["a"]
    mesh.apply("a", node.submit(Change(map=b"a2"), NOW))
    assert {view["a"] for name, view in mesh.views().items() if name != "a"} == {b"a2"}
    mesh.held = []
    mesh.apply("a", node.submit(Change(map=b"a3"), NOW))
    mesh.held = None
    due = node.next_deadline()
    assert due is not None
    mesh.apply("a", node.wake(due), due)
    assert {view["a"] for name, view in mesh.views().items() if name != "a"} == {b"a3"}
    assert ("b", Learnt(0, 1, 3, "a", node.own.told, 1)) in mesh.told


def test_who_leaves_goes_when_all_have_acknowledged() -> None:
    mesh = Mesh()
    for name in "abc":
        mesh.begin(name)
    mesh.apply("a", mesh.nodes["a"].submit(End(), NOW))
    assert ("a", Gone()) in mesh.told
    assert {name for name, said in mesh.told if said == Ended(0, 1, True)} == {"b", "c"}
    assert mesh.nodes["a"].next_deadline() is None
    assert mesh.nodes["a"].receive("b", mesh.nodes["b"]._maps(0), NOW) == []


def test_silence_ends_an_entry_after_the_fail_time() -> None:
    mesh = Mesh()
    for name in "ab":
        mesh.begin(name)
    node, mesh.held = mesh.nodes["b"], []
    now = NOW
    while ("b", Ended(0, 1, False)) not in mesh.told:
        due = node.next_deadline()
        assert due is not None
        assert due < ms(9_000)
        now = due
        mesh.apply("b", node.wake(now), now)
    assert now > node.settings.fail_ns


def test_what_came_early_is_as_old_as_it_has_become() -> None:
    """[D11]"""
    mesh = Mesh()
    mesh.begin("a")
    late = MeshNode("b", OutsideEntrance(), DiscoverySettings(), Random(1))
    late.submit(Start(map=b"b"), NOW)
    late.receive("a", mesh.nodes["a"]._maps(1), NOW)
    now = Instant(ms(4_000))
    late.submit(Granted(1, 2, 16, ()), now)
    assert late.roster.entries[0].fresh == 0


def test_a_newer_incarnation_takes_the_id() -> None:
    """[R11.1] … and the participant asks for another and tells all again."""
    mesh = Mesh()
    for name in "ab":
        mesh.begin(name)
    node = mesh.nodes["b"]
    other = Row(1, 99, 1, 1, 0, "c", has_map=True)
    mesh.apply("b", node.receive("a", Heartbeat(1, 0, other, 1, 1, 1, UP), NOW))
    assert ("b", IdWanted(2)) in mesh.told
    assert node.id is None
    mesh.apply("b", node.submit(Granted(5, 100, 16, (Contact(0, "a", 1),)), NOW))
    assert mesh.nodes["a"].roster.ring == [5]
    assert mesh.views() == {"a": {"b": b"b"}, "b": {"a": b"a"}}


def test_what_makes_no_sense_is_refused() -> None:
    mesh = Mesh()
    mesh.begin("a")
    node = mesh.nodes["a"]
    with pytest.raises(LocalProtocolError, match="starts once"):
        node.submit(Start(map=b""), NOW)
    with pytest.raises(RemoteProtocolError, match="Sync is not for"):
        node.receive("b", Sync(0, 1, ()), NOW)
    node.submit(End(), NOW)
    with pytest.raises(LocalProtocolError, match="twice"):
        node.submit(End(), NOW)
