"""Who reads what: matching over control messages, and what peers may get wrong."""

import contextlib
from collections import deque
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderwire import LocalProtocolError, SelectiveTotal, Trace
from orderwire.aio.addresses import is_loopback
from orderwire.kernel import ProcessId, RemoteProtocolError
from orderwire.participant.control import (
    NUMBER_MAX,
    PROTOCOL_VERSION,
    TOPICS_MAX,
    Declare,
    State,
    Want,
    Withdraw,
    decode,
    encode,
)
from orderwire.participant.matching import RETIRED_MAX, Matching, Outlet
from orderwire.participant.members import Members
from orderwire.participant.topics import Pattern
from orderwire.trace import BackgroundSink, MemorySink

NAMES = ("ana", "ben", "carl")


class Wanting:
    """A reader as the matching sees it."""

    def __init__(self, pattern: str, domain_key: str = "fifo") -> None:
        self.pattern = Pattern(pattern)
        self.domain_key = domain_key

    def wants(self, name: str, *, own: bool) -> bool:
        return self.pattern.matches(name)

    def matches_changed(self) -> None:
        pass

    def put(self, *sample: Any) -> None:
        raise AssertionError(sample)


class Network:
    """Matchings that exchange control messages, in order between each two."""

    def __init__(self, count: int) -> None:
        self.under_way: deque[tuple[ProcessId, ProcessId, bytes]] = deque()
        self.members = [self._member(ProcessId(me), count) for me in range(count)]

    def _member(self, me: ProcessId, count: int) -> Matching:
        names = NAMES[:count]
        return Matching(
            me, names, " ".join(names), lambda to, data: self.under_way.append((me, to, data))
        )

    def connect(self, a: int, b: int) -> None:
        self.members[a].connected(ProcessId(b))
        self.members[b].connected(ProcessId(a))

    def disconnect(self, a: int, b: int) -> None:
        self.members[a].disconnected(ProcessId(b))
        self.members[b].disconnected(ProcessId(a))
        self.under_way = deque(
            message for message in self.under_way if {message[0], message[1]} != {a, b}
        )

    def settle(self) -> None:
        while self.under_way:
            self.step()

    def step(self) -> None:
        """Bring one message."""
        if self.under_way:
            source, to, data = self.under_way.popleft()
            self.members[to].control(source, data)


def test_a_reader_elsewhere_becomes_a_destination() -> None:
    network = Network(3)
    ana, ben, carl = network.members
    for a, b in ((0, 1), (0, 2), (1, 2)):
        network.connect(a, b)
    outlet = ana.declare("chat/room", "fifo")
    ben_reader, second, carl_reader = Wanting("chat/*"), Wanting("**"), Wanting("chat/room")
    ben.add_reader(ben_reader)
    ben.add_reader(second)
    carl.add_reader(carl_reader)
    network.settle()
    assert (outlet.destinations, outlet.matched) == (0b110, 3)
    assert ben.matches_of(ben_reader) == [(0, "chat/room")]
    assert ben.routes["fifo"][ProcessId(0)] == {0: ("chat/room", (ben_reader, second))}
    ben.remove_reader(second)
    carl.remove_reader(carl_reader)
    network.settle()
    assert (outlet.destinations, outlet.matched) == (0b010, 1)
    ana.withdraw(outlet)
    network.settle()
    assert ben.matches_of(ben_reader) == []
    # What was written before may come after the news that the writer was closed.
    assert ben.routes["fifo"][ProcessId(0)] == {0: ("chat/room", (ben_reader,))}
    ben.remove_reader(ben_reader)
    assert ben.routes["fifo"][ProcessId(0)] == {}


SEATS = SelectiveTotal().key


def _with_seats() -> tuple[Network, Outlet]:
    """Return Ana, who writes, Ben, who reads, and Ana's outlet; both have seats."""
    network = Network(2)
    ana, ben = network.members
    network.connect(0, 1)
    for each in (ana, ben):
        each.seat(SEATS, frozenset((ProcessId(0), ProcessId(1))))
    outlet = ana.declare("a", SEATS)
    ben.add_reader(Wanting("a", SEATS))
    network.settle()
    assert outlet.destinations == 0b10
    return network, outlet


def test_only_members_with_seats_count() -> None:
    network, outlet = _with_seats()
    ana, ben = network.members
    reader = Wanting("*", SEATS)
    ben.add_reader(reader)
    assert ben.matches_of(reader) == [(0, "a")]
    ana.seat(SEATS, frozenset())
    ben.seat(SEATS, frozenset())
    assert (outlet.destinations, outlet.matched) == (0, 0)
    assert ben.matches_of(reader) == []
    assert ana.declare("b", SEATS).destinations == 0
    other = ana.declare("a", "fifo")
    ben.add_reader(Wanting("a"))
    network.settle()
    assert other.destinations == 0b10, "other domains have no seats"


def test_who_has_a_seat_is_a_destination_while_its_stream_is_broken() -> None:
    network, outlet = _with_seats()
    network.disconnect(0, 1)
    assert outlet.destinations == 0b10
    network.members[0].forget(ProcessId(1))
    assert outlet.destinations == 0


def test_after_a_broken_stream_all_wants_of_topics_with_seats_are_told() -> None:
    """Its reader was closed meanwhile, or it is a new life that has none.  Decision 0037."""
    for new_life in (False, True):
        network, outlet = _with_seats()
        network.disconnect(0, 1)
        if new_life:
            network.members[1] = network._member(ProcessId(1), 2)
        else:
            ben = network.members[1]
            ben.remove_reader(next(iter(ben._readers)))
        network.connect(0, 1)
        network.settle()
        assert outlet.destinations == 0


def test_the_readers_of_withdrawn_topics_are_kept_for_a_while() -> None:
    network = Network(2)
    ana, ben = network.members
    network.connect(0, 1)
    first, second = Wanting("**"), Wanting("t/1")
    ben.add_reader(first)
    ben.add_reader(second)
    for number in range(RETIRED_MAX + 1):
        ana.withdraw(ana.declare(f"t/{number}", "fifo"))
        network.settle()
    routes = ben.routes["fifo"][ProcessId(0)]
    assert sorted(routes) == list(range(1, RETIRED_MAX + 1))
    assert routes[1] == ("t/1", (first, second))
    ben.remove_reader(first)
    assert routes == {1: ("t/1", (second,))}
    # Another life of ana counts its topics from 0 again.
    network.disconnect(0, 1)
    again = Matching(ProcessId(0), NAMES[:2], "ana ben", ana._send)
    network.members[0] = again
    network.connect(0, 1)
    again.declare("t/1", "fifo")
    again.declare("other", "fifo")
    network.settle()
    assert routes == {0: ("t/1", (second,))}


def test_another_order_does_not_match_but_is_named() -> None:
    network = Network(2)
    ana, ben = network.members
    network.connect(0, 1)
    outlet = ana.declare("chat", "causal")
    reader = Wanting("chat", "fifo")
    ben.add_reader(reader)
    network.settle()
    assert outlet.matched == 0
    assert ben.incompatible_with(reader) == [(0, "chat", "causal")]
    ana.declare("chat", "fifo")
    network.settle()
    assert ben.incompatible_with(reader) == []


def test_writers_of_one_topic_share_an_outlet() -> None:
    [alone] = Network(1).members
    first, second = alone.declare("a", "fifo"), alone.declare("a", "fifo")
    assert first is second
    alone.withdraw(first)
    assert alone.declare("b", "fifo").number == 1
    alone.withdraw(second)
    assert alone.declare("a", "fifo").number == 2


def test_topics_are_limited() -> None:
    [alone] = Network(1).members
    for number in range(TOPICS_MAX):
        alone.declare(f"t/{number}", "fifo")
    with pytest.raises(LocalProtocolError, match="writes to 1024 topics already"):
        alone.declare("one/more", "fifo")


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("link"), st.integers(0, 1)),
        st.tuples(st.just("declare"), st.sampled_from(["a", "b", "a/b"])),
        st.tuples(st.just("withdraw"), st.integers(0, 3)),
        st.tuples(st.just("read"), st.sampled_from(["a", "*", "**", "a/*"])),
        st.tuples(st.just("unread"), st.integers(0, 3)),
        st.tuples(st.just("step"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(_steps)
def test_after_any_changes_the_destinations_are_who_reads(steps: list[tuple[str, Any]]) -> None:
    """Whatever was lost when the link broke, the next state repairs."""
    network = Network(2)
    ana, ben = network.members
    network.connect(0, 1)
    linked = True
    outlets, readers = [], []
    for what, argument in [*steps, ("end", 0)]:
        match what:
            case "link":
                if linked:
                    network.disconnect(0, 1)
                else:
                    network.connect(0, 1)
                linked = not linked
            case "declare":
                outlets.append(ana.declare(argument, "fifo"))
            case "withdraw" if outlets:
                ana.withdraw(outlets.pop(argument % len(outlets)))
            case "read":
                readers.append(Wanting(argument))
                ben.add_reader(readers[-1])
            case "unread" if readers:
                ben.remove_reader(readers.pop(argument % len(readers)))
            case "step":
                network.step()
            case "end" if not linked:
                network.connect(0, 1)
    network.settle()
    for outlet in outlets:
        count = sum(reader.pattern.matches(outlet.name) for reader in readers)
        assert outlet.matched == count
        assert outlet.destinations == (0b10 if count else 0)


def test_members_that_count_differently_are_refused() -> None:
    ana = Network(2).members[0]
    with pytest.raises(RemoteProtocolError, match="ben counts other members than we do"):
        ana.control(ProcessId(1), encode(State(PROTOCOL_VERSION, "ana\nben\ncarl", ())))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([9, 1]),
        encode(State(PROTOCOL_VERSION + 1, "ana\nben", ())),
        encode(Declare(NUMBER_MAX + 1, "a", "fifo")),
        encode(Declare(-1, "a", "fifo")),
        encode(Declare(0, "a" * 256, "fifo")),
        encode(Declare(0, "a", "f" * 513)),
        encode(Want(0, -1)),
        encode(
            State(
                PROTOCOL_VERSION,
                "ana\nben",
                tuple(Declare(n, "a", "f") for n in range(TOPICS_MAX + 1)),
            )
        ),
    ],
)
def test_a_peers_mistakes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


@given(st.binary(max_size=60))
def test_noise_never_does_more_than_be_refused(data: bytes) -> None:
    ana = Network(2).members[0]
    with contextlib.suppress(RemoteProtocolError):
        ana.control(ProcessId(1), data)


def test_messages_about_unknown_topics_change_nothing() -> None:
    ana = Network(2).members[0]
    ana.control(ProcessId(1), encode(Want(7, 3)))
    ana.control(ProcessId(1), encode(Withdraw(7)))


def test_ids_follow_the_names() -> None:
    members = Members({"carl": "10.0.0.3:1", "ana": "10.0.0.1:1", "ben": "localhost:1"})
    assert members.names == ("ana", "ben", "carl")
    assert members.id_of("carl") == 2
    assert not members.on_one_machine
    assert Members({n: f"127.0.0.1:{n + 1}" for n in range(12)}).names[10] == "10"
    assert (is_loopback("127.9.9.9"), is_loopback("8.8.8.8"), is_loopback("host")) == (
        *(True, False, False),
    )


@pytest.mark.parametrize(
    ("addresses", "sentence"),
    [
        ({}, "members is empty"),
        ({"a": "127.0.0.1"}, "must be 'host:port'"),
        ({"a": "127.0.0.1:99999"}, "must be 'host:port'"),
        ({"a": "[::1]:5"}, "IPv4"),
        ({"a": 5}, "must be 'host:port'"),
        ({"": "127.0.0.1:5"}, "printable"),
        ({"a": "127.0.0.1:5", "b": "127.0.0.1:5"}, "have the same address"),
    ],
)
def test_bad_members_are_refused(addresses: Any, sentence: str) -> None:
    with pytest.raises(LocalProtocolError, match=sentence):
        Members(addresses)


@pytest.mark.parametrize(
    ("given_settings", "sentence"),
    [
        ({"run": ""}, "needs a run"),
        ({"run": "r"}, "exactly one of path=, brokers= and sink=, got none"),
        ({"run": "r", "path": "x", "brokers": "h:1"}, "got path and brokers"),
        ({"run": "r", "path": "x", "topic": "t"}, "no effect without brokers="),
        ({"run": "r", "path": "x", "flush_interval_ms": 0}, "must be positive"),
    ],
)
def test_bad_trace_settings_are_refused(given_settings: Any, sentence: str) -> None:
    with pytest.raises(LocalProtocolError, match=sentence):
        Trace(**given_settings)


def test_a_trace_opens_its_place(tmp_path: Any) -> None:
    mine = MemorySink()
    assert Trace(run="r", sink=mine).open("ana") is mine
    for path, file in ((tmp_path / "t.parquet", "t.parquet"), (tmp_path / "d", "d/ana.arrow")):
        sink = Trace(run="r", path=path).open("ana")
        assert isinstance(sink, BackgroundSink)
        sink.close()
        assert (tmp_path / file).exists()
