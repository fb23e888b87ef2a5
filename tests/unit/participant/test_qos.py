"""Order QoS, topics and patterns: what is refused, and why it says so."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire import (
    Delivery,
    DeltaCausal,
    Fifo,
    LocalProtocolError,
    Participant,
    Published,
    SelectiveTotal,
    Topic,
    Unordered,
)
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.participant.domain import channel_number
from orderwire.participant.qos import Order
from orderwire.participant.topics import Pattern

ANY = Unordered()


@pytest.mark.paper("S000:sec.2.2")
def test_presets_are_the_lifetimes_of_the_paper() -> None:
    """[S000:sec.2.2] Lifetimes of 250 ms, 350 ms, 1 s and 2 s for four kinds of application."""
    presets = {
        DeltaCausal.conference(): 250,
        DeltaCausal.videophone(): 350,
        DeltaCausal.playback(): 1_000,
        DeltaCausal.catalogue(): 2_000,
    }
    for order, lifetime_ms in presets.items():
        assert order.lifetime_ns == lifetime_ms * 1_000_000
        assert order == DeltaCausal(lifetime_ms=lifetime_ms)


def test_equal_orders_are_one_domain_and_a_name_makes_another() -> None:
    orders = [
        DeltaCausal(lifetime_ms=250),
        DeltaCausal(lifetime_ms=251),
        DeltaCausal(lifetime_ms=250, clock_error_ms=2),
        DeltaCausal(lifetime_ms=250, domain="other"),
        Fifo(),
        Fifo(lifetime_ms=250),
        Unordered(),
        Unordered(lifetime_ms=250),
    ]
    assert len({order.key for order in orders}) == len(orders)
    assert len({channel_number(order.key) for order in orders}) == len(orders)
    assert DeltaCausal(lifetime_ms=250).key == DeltaCausal.conference().key
    assert DeltaCausal(lifetime_ms=250).key == DeltaCausal(lifetime_ms=250.0).key
    assert [order.label for order in orders[:5]] == [
        *("bounded-jang-250ms", "bounded-jang-251ms", "bounded-jang-250ms", "other", "fifo"),
    ]
    assert {order.algorithm for order in orders} <= set(ALGORITHMS)


def maxcb(**more: Any) -> Published:
    return Published(**{"algorithm": "yoshimoto-maxcb", "lifetime_ms": 250, **more})


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"unordered", "fifo"}))
def test_every_algorithm_can_be_chosen(name: str) -> None:
    order = Published(algorithm=name, lifetime_ms=250)
    assert (order.algorithm, order.label) == (name, f"{name}-250ms")
    settings = order.settings(3)
    delivered_by = 230_000_000 if name == "fixed-delay" else 250_000_000
    assert (settings.lifetime_ns, settings.epsilon_ns) == (delivered_by, 1_000_000)
    same = DeltaCausal(lifetime_ms=250)
    assert (order.key == same.key) == (name == same.algorithm)
    assert order.quiet_ns == same.quiet_ns


def test_what_bounds_a_tag_is_agreed_on() -> None:
    orders = [maxcb(), maxcb(max_cb=3), DeltaCausal(lifetime_ms=250, tag_bytes_max=64)]
    assert [order.settings(2).max_cb for order in orders[:2]] == [4, 3]
    assert orders[2].settings(2).tag_bytes_max == 64
    assert "tag_bytes_max=64" in orders[2].key
    assert len({order.key for order in [*orders, DeltaCausal.conference()]}) == 4
    assert Published(algorithm="raynal-schiper-toueg").quiet_ns == 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: DeltaCausal(lifetime_ms=0), "lifetime_ms=0 must be above 0"),
        (lambda: DeltaCausal(lifetime_ms=-5), "lifetime_ms=-5 must be above 0"),
        (lambda: DeltaCausal(lifetime_ms=float("nan")), "must be above 0"),
        (lambda: DeltaCausal(lifetime_ms=float("inf")), "at most 86400000 milliseconds"),
        (lambda: DeltaCausal(lifetime_ms=None), "must be a number of milliseconds"),
        (lambda: DeltaCausal(lifetime_ms="250"), "must be a number of milliseconds"),
        (lambda: DeltaCausal(lifetime_ms=0.0005), "whole number of microseconds"),
        (lambda: DeltaCausal(lifetime_ms=5, clock_error_ms=-1), "must not be negative"),
        (lambda: DeltaCausal(lifetime_ms=5, clock_error_ms=5), "must be below lifetime_ms"),
        (lambda: DeltaCausal(lifetime_ms=5, clock_error_ms="1"), "must be a number of milli"),
        (lambda: DeltaCausal(lifetime_ms=5, clock_error_ms=True), "must be a number of milli"),
        (lambda: DeltaCausal(lifetime_ms=5, clock_error_ms=1e-7), "no whole number of nano"),
        (lambda: DeltaCausal(lifetime_ms=5, clock_error_ms=float("inf")), "clock_error_ms=inf"),
        (lambda: Unordered(domain=3), "must be a name, as text"),
        (lambda: Fifo(lifetime_ms=0), "lifetime_ms=0 must be above 0"),
        (lambda: Unordered(lifetime_ms=True), "must be a number of milliseconds"),
        (lambda: Unordered(domain="x" * 65), "at most 64 printable characters"),
        (lambda: Order(), "use Unordered, Fifo, DeltaCausal, Published or SelectiveT"),
        (lambda: DeltaCausal(lifetime_ms=5, tag_bytes_max=7), "tag_bytes_max=7 is below 8"),
        (lambda: DeltaCausal(lifetime_ms=5, tag_bytes_max=9.5), "must be a whole number"),
        (lambda: Published(algorithm="fifo"), "algorithm='fifo' is Fifo()"),
        (lambda: Published(algorithm="isis"), "no ordering algorithm 'isis'; there are"),
        (lambda: Published(algorithm=3), "algorithm=3 must be a name of the catalog"),
        (lambda: Published(algorithm="fixed-delay"), "fixed-delay needs a lifetime"),
        (lambda: Published(algorithm="baldoni-broadcast"), "baldoni-broadcast needs a lifetime"),
        (lambda: Published(algorithm="yavatkar-mcp", max_cb=2), "no effect on yavatkar-mcp"),
        (lambda: Published(algorithm="bounded-jang", max_cb=2), "no effect on bounded-jang"),
        (lambda: maxcb(max_cb=0), "max_cb=0 is not positive"),
        (lambda: SelectiveTotal(domain="d"), "group= names its group"),
        (lambda: SelectiveTotal(group=""), "group='' must be 1 to 64 printable characters"),
        (lambda: SelectiveTotal(delivery="ack"), "must be Delivery.PREACK or Delivery.ACK"),
        (lambda: SelectiveTotal(relay="here"), "expected HOST:PORT"),
        (lambda: SelectiveTotal(relay="a:1", zookeeper="b:1"), "give one"),
        (lambda: SelectiveTotal(least=0), "least=0 must be at least 1"),
        (lambda: SelectiveTotal(session_ms=0), "session_ms=0 must be above 0"),
        (lambda: SelectiveTotal(session_ms=1), "session_ms=1 must be at least 1000"),
        (lambda: SelectiveTotal(relay=7500), "relay=7500 must be 'host:port' or None"),
        (lambda: SelectiveTotal(zookeeper=""), "zookeeper='' must be 'host:port' or None"),
        (lambda: SelectiveTotal(enter_ms="1"), "must be a number of milliseconds"),
        (lambda: maxcb(max_cb=True), "max_cb=True must be a whole number"),
        (lambda: maxcb(lifetime_ms=0), "lifetime_ms=0 must be above 0"),
        (lambda: maxcb(clock_error_ms=250), "must be below lifetime_ms"),
    ],
)
def test_an_order_without_effect_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(LocalProtocolError, match=re.escape(sentence)):
        make()


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(TypeError):
        Unordered(clock_error_ms=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "has an empty level"),
        ("/chat", "has an empty level"),
        ("chat/", "has an empty level"),
        ("chat//room", "has an empty level"),
        ("chat/*", "only readers may use"),
        ("chat/a*", "only readers may use"),
        ("chat room", "no spaces"),
        ("chat\n", "no spaces"),
        ("x" * 256, "too long"),
        ("/".join("x" * 33), "too long"),
    ],
)
def test_a_bad_topic_name_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(LocalProtocolError, match=re.escape(sentence)):
        Topic(name, ANY)


def test_a_topic_needs_an_order() -> None:
    with pytest.raises(LocalProtocolError, match=r"must be Unordered\(\), Fifo\(\), Delta"):
        Topic("chat", "fifo")  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="must be text"):
        Topic(7, ANY)  # type: ignore[arg-type]


def test_a_codec_must_be_a_function() -> None:
    with pytest.raises(LocalProtocolError, match="encode='utf-8' of topic 'chat' must be a func"):
        Topic("chat", ANY, encode="utf-8")  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="decode='utf-8' of topic 'chat' must be a func"):
        Topic("chat", ANY, decode="utf-8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        (["me"], "must be a mapping of names to addresses"),
        ({"me": "127.0.0.1:7400", "you": "127.0.0.1:0"}, "port 0, where the others cannot find it"),
        ({"me": "127.0.0.1:0", "you": "127.0.0.1:7400"}, "port 0, where the others cannot find it"),
    ],
)
def test_members_that_cannot_meet_are_refused(members: Any, sentence: str) -> None:
    with pytest.raises(LocalProtocolError, match=sentence):
        Participant("me", members=members)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("chat/room", ["chat/room"], ["chat", "chat/room/1", "chat/rooms"]),
        ("chat/*", ["chat/room", "chat/übung"], ["chat", "chat/a/b", "other/room"]),
        ("*/room", ["chat/room"], ["room", "a/b/room"]),
        ("chat/**", ["chat", "chat/a", "chat/a/b/c"], ["other", "chats/a"]),
        ("**/room", ["room", "a/room", "a/b/room"], ["room/a"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z", "a/z/z"], ["a/b", "b/a/z"]),
        ("**", ["a", "a/b"], []),
        ("**/a/*/b/**", ["a/x/b", "q/a/a/x/b/c", "a/a/b"], ["a/b", "a/x/c"]),
    ],
)
def test_wildcards(pattern: str, matching: list[str], others: list[str]) -> None:
    chosen = Pattern(pattern)
    assert [name for name in matching + others if chosen.matches(name)] == matching


@pytest.mark.parametrize("pattern", ["", "a//b", "a*", "a/b*c", "***", "**/**", "a/**/**", "a b"])
def test_a_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(LocalProtocolError):
        Pattern(pattern)


_level = st.sampled_from(["a", "b", "c"])
_patterns = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=6).filter(
    lambda levels: "**/**" not in "/".join(levels)
)


@given(_patterns, st.lists(_level, min_size=1, max_size=6))
def test_matching_equals_the_definition(pattern: list[str], name: list[str]) -> None:
    levels = {"*": "[^/]+/", "**": "([^/]+/)*"}
    expected = re.fullmatch(
        "".join(levels.get(level, level + "/") for level in pattern), "/".join(name) + "/"
    )
    assert Pattern("/".join(pattern)).matches("/".join(name)) == (expected is not None)


def test_a_group_with_one_order_is_where_members_meet_however_they_get_there() -> None:
    """[S003:sec.2] Who is to have one order names the same group and delivery."""
    order = SelectiveTotal(relay="127.0.0.1:7500")
    assert order.key == SelectiveTotal(zookeeper="127.0.0.1:2181", least=3).key
    assert order.key != SelectiveTotal(group="other").key
    assert order.key != SelectiveTotal(delivery=Delivery.ACK).key
    assert (order.label, SelectiveTotal(group="book").label) == ("selective-total", "book")
    assert order.lifetime_ns is None
    with pytest.raises(LocalProtocolError, match="has no effect"):
        order.own_lifetime_ns(5)
