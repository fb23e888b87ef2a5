"""Summaries, and details for those who match something."""

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, cast

import pytest
from drawn_maps import ENDPOINTS
from hypothesis import given, settings
from hypothesis import strategies as st

from orderwire.discovery.asking import Asking, Source
from orderwire.discovery.commands import Ended, Learnt
from orderwire.discovery.interest import InterestNode, Listed
from orderwire.discovery.map_codec import CHANGES_MAX, decode_map, encode_map
from orderwire.discovery.maps import EndpointData, EndpointKind, Map, ParticipantData
from orderwire.discovery.messages import Ask, Details, MapRecord, decode, encode
from orderwire.discovery.settings import BootstrapSettings, DiscoverySettings
from orderwire.discovery.summaries import (
    HASHES_MAX,
    CompactSummaries,
    Interests,
    Offer,
    Summary,
    Wanted,
    decode_summary,
    encode_summary,
    pack_hashes,
    summary_of,
    topic_hash,
    unpack_hashes,
)
from orderwire.kernel import Instant, LocalProtocolError, RemoteProtocolError, ms, stream
from orderwire.participant.topics import Pattern
from orderwire.sim.discovery_world import DiscoveryWorld, Faults

READER, WRITER = EndpointKind
ANA = ParticipantData("guid-1", "ana")


def meant(reader: str, writer: str) -> bool:
    return Pattern(reader).matches(writer)


def endpoint(key: int, kind: EndpointKind, topic: str) -> EndpointData:
    return EndpointData(key, kind, topic, "T")


# -- summaries --------------------------------------------------------------------------------

ENDPOINT_LISTS = st.lists(ENDPOINTS, max_size=8, unique_by=lambda each: each.key)


@given(lists=st.lists(ENDPOINT_LISTS, min_size=1, max_size=4))
@settings(max_examples=40)
def test_a_summary_follows_its_changes(lists: list[list[EndpointData]]) -> None:
    form = CompactSummaries()
    told = [
        summary_of(ver, each, participant=ParticipantData(str(ver // 2)))
        for ver, each in enumerate(lists)
    ]
    record = MapRecord(1, encode_summary(told[0]))
    for old, new in pairwise(told):
        delta = form.difference(encode_summary(old), encode_summary(new))
        record = record.with_delta(record.ver + 1, delta)
    assert decode_summary(record) == told[-1]
    assert form.shortened(record) == MapRecord(record.ver, encode_summary(told[-1]))


def test_a_summary_holds_a_hash_for_each_topic_and_kind() -> None:
    every = [
        endpoint(1, READER, "a"),
        endpoint(2, READER, "a"),
        endpoint(3, WRITER, "a"),
        endpoint(4, READER, "b/*"),
    ]
    summary = summary_of(5, every, participant=ANA)
    assert (summary.ver, summary.endpoints, summary.patterns) == (5, 4, ("b/*",))
    assert set(unpack_hashes(summary.hashes)) == {
        topic_hash(READER, "a"),
        topic_hash(WRITER, "a"),
        topic_hash(READER, "b/*"),
    }
    assert len({topic_hash(kind, topic) for kind in EndpointKind for topic in "abc"}) == 6


@pytest.mark.parametrize(
    "record",
    [
        MapRecord(1, b""),
        MapRecord(1, b"\xc1"),
        MapRecord(1, encode_summary(Summary(1, 1, b"abc"))),
        MapRecord(1, encode_summary(Summary(1, 1, b"\0\0\0\2\0\0\0\1"))),
        MapRecord(1, encode_summary(Summary(1, 1, b"\0\0\0\1\0\0\0\1"))),
        MapRecord(1, encode_summary(Summary(1, 0, b"")), (b"",)),
        MapRecord(1, encode_summary(Summary(1, 0, b"")), (b"",) * (CHANGES_MAX + 1)),
        MapRecord(
            2,
            encode_summary(Summary(1, 0, b"")),
            (
                CompactSummaries().difference(
                    encode_summary(Summary(1, 1, pack_hashes([7]))),
                    encode_summary(Summary(2, 0, b"")),
                ),
            ),
        ),
    ],
)
def test_what_is_no_summary_is_refused(record: MapRecord) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_hashes(decode_summary(record).hashes)
    if record.deltas or record.full in (b"", b"\xc1"):
        assert CompactSummaries().shortened(record) == MapRecord(record.ver, b"")


def test_limits() -> None:
    with pytest.raises(RemoteProtocolError, match="at most 1048576"):
        unpack_hashes(bytes(4 * (HASHES_MAX + 1)))
    patterns = [endpoint(key, READER, f"{key}/*") for key in range(1_025)]
    with pytest.raises(LocalProtocolError, match="1025 patterns"):
        summary_of(1, patterns)


# -- matching ---------------------------------------------------------------------------------

TOPICS = ["a", "b", "a/b", "a/c", "b/c"]
READS = [*TOPICS, "*", "a/*", "**"]


def drawn_endpoints(chance: Random, count: int) -> list[EndpointData]:
    endpoints = []
    for key in range(count):
        kind = chance.choice((READER, WRITER))
        topics = READS if kind is READER and chance.random() < 0.5 else TOPICS
        endpoints.append(endpoint(key, kind, chance.choice(topics)))
    return endpoints


def matching(mine: list[EndpointData], theirs: list[EndpointData]) -> list[EndpointData]:
    """By definition: one reads what the other writes."""
    return [
        each
        for each in theirs
        if any(
            each.kind is not own.kind
            and meant(*((own.topic, each.topic) if own.kind is READER else (each.topic, own.topic)))
            for own in mine
        )
    ]


@given(chance=st.randoms(use_true_random=False), count=st.integers(0, 6))
def test_what_is_asked_for_is_what_matches(chance: Random, count: int) -> None:
    mine, theirs = drawn_endpoints(chance, count), drawn_endpoints(chance, 5)
    interests = Interests(mine, meant)
    wanted = interests.wanted(summary_of(1, theirs))
    expected = matching(mine, theirs)
    assert Offer(theirs, meant).matching(wanted) == expected
    assert [each for each in theirs if interests.is_match(each.kind, each.topic)] == expected
    assert bool(wanted) or not expected


def test_topics_that_share_a_hash_are_told_apart() -> None:
    """`plumless` and `buckeroo` have the same CRC-32."""
    assert topic_hash(READER, "plumless") == topic_hash(READER, "buckeroo")
    interests = Interests([endpoint(1, WRITER, "plumless")])
    theirs = [endpoint(1, READER, "buckeroo"), endpoint(2, READER, "plumless")]
    wanted = interests.wanted(summary_of(1, theirs))
    assert Offer(theirs).matching(wanted) == theirs
    assert [interests.is_match(each.kind, each.topic) for each in theirs] == [False, True]


# -- asking -----------------------------------------------------------------------------------


def ask_of(effects: list[Any]) -> Ask:
    (post,) = effects
    assert isinstance(post.message, Ask)
    assert decode(encode(post.message)) == post.message
    return post.message


def told(asking: Asking, ver: int, inc: int = 2) -> Source:
    """Participant 5 tells a summary of this version."""
    record = MapRecord(ver, encode_summary(Summary(ver, 1, b"")))
    return asking.learn(Learnt(5, inc, ver, "there", record, 0))


def test_asking_again_and_ever_slower() -> None:
    asking = Asking(ms(1_000))
    wanted = Wanted(frozenset({7}), ("a/*",))
    five = told(asking, 3)
    first = ask_of(asking.want(five, 1, wanted, Instant(0)))
    assert (first.to, first.inc, first.frm, first.patterns) == (5, 2, 1, ("a/*",))
    assert asking.want(five, 1, wanted, ms(1)) == []
    times = []
    for _ in range(6):
        due = asking.next_deadline()
        assert due is not None
        times.append(due // 1_000_000)
        last = ask_of(asking.wake(1, due))
    assert times == [1_000, 3_000, 7_000, 15_000, 23_000, 31_000]
    assert not asking.answered("there", Details(1, 5, 2, first.number, 3, ()), ms(31_000))
    assert not asking.answered("there", Details(1, 5, 9, last.number, 3, ()), ms(31_000))
    assert not asking.answered("elsewhere", Details(1, 5, 2, last.number, 3, ()), ms(31_000))
    assert asking.answered("there", Details(1, 5, 2, last.number, 3, ()), ms(31_000)) is five
    assert asking.next_deadline() is None
    assert asking.want(five, 1, Wanted(frozenset({7})), ms(31_001)) == []
    ask_of(asking.want(five, 1, Wanted(frozenset({8})), ms(31_002)))
    asking.want(five, 1, Wanted(), ms(31_003))
    assert five.held is None
    ask_of(asking.want(five, 1, wanted, ms(31_004)))
    assert asking.forget(Ended(5, 1, True)) is None
    assert asking.forget(Ended(5, 2, True)) is five
    assert asking.next_deadline() is None
    assert asking.sources == {}


def test_another_life_is_asked_anew() -> None:
    asking = Asking(ms(1_000))
    wanted = Wanted(frozenset({7}))
    ask_of(asking.want(told(asking, 3), 1, wanted, Instant(0)))
    assert told(asking, 4) is asking.sources[5]
    reborn = told(asking, 1, inc=3)
    assert asking.next_deadline() is None
    assert ask_of(asking.want(reborn, 1, wanted, ms(1))).inc == 3


def test_an_old_answer_is_kept_but_not_the_end() -> None:
    asking = Asking(ms(1_000))
    wanted = Wanted(frozenset({7}))
    five = told(asking, 3)
    first = ask_of(asking.want(five, 1, wanted, Instant(0)))
    assert asking.answered("there", Details(1, 5, 2, first.number, 2, ()), ms(1)) is five
    assert five.held is not None
    assert five.held.ver == 2
    assert asking.want(five, 1, wanted, ms(1)) == []
    second = ask_of(asking.wake(1, ms(1_000)))
    assert asking.answered("there", Details(1, 5, 2, second.number, 3, ()), ms(1_001)) is five
    assert asking.want(five, 1, wanted, ms(1_001)) == []
    assert asking.next_deadline() is None


# -- domains ----------------------------------------------------------------------------------


class Domain:
    """Participants with interest-only delivery, in simulated time."""

    def __init__(self, seed: int, loss_ratio: float = 0.0) -> None:
        chance = stream(seed, "delay")
        self.world = DiscoveryWorld(
            DiscoverySettings(),
            BootstrapSettings(),
            seed,
            lambda _from, _to: chance.randrange(ms(1), ms(20)),
            faults=Faults(loss_ratio=loss_ratio),
            record=True,
        )
        self.own: dict[str, list[EndpointData]] = {}
        self.told: list[tuple[str, Any]] = []
        self.world.listeners.append(lambda _time, address, told: self.told.append((address, told)))
        self.world.server_up()

    def map(self, address: str, endpoints: list[EndpointData]) -> bytes:
        self.own[address] = endpoints
        return encode_map(Map.of(ParticipantData(address), endpoints))

    def start(self, address: str, endpoints: list[EndpointData]) -> None:
        def node(*of: Any) -> InterestNode:
            return InterestNode(*of, matches=meant)

        data = self.map(address, endpoints)
        self.world.start(address, data, node=cast("Callable[..., Any]", node))

    def change(self, address: str, endpoints: list[EndpointData]) -> None:
        self.world.change(address, self.map(address, endpoints))

    def node(self, address: str) -> InterestNode:
        core = self.world.processes[address].core
        assert isinstance(core, InterestNode)
        return core

    def check(self) -> None:
        """Everyone has details of exactly what matches."""
        there = [address for address in self.world.processes if address in self.own]
        for address in there:
            found = {
                each.participant.guid: list(each.endpoints)
                for each in self.node(address).details().values()
            }
            expected = {
                other: matching(self.own[address], self.own[other])
                for other in there
                if other != address
            }
            assert found == {other: each for other, each in expected.items() if each}

    def told_last(self, address: str) -> dict[str, list[EndpointData]]:
        """What a participant was told of each other one, last."""
        last: dict[str, list[EndpointData]] = {}
        for to, told in self.told:
            if to == address and isinstance(told, Learnt):
                whole = decode_map(told.map.full)
                last[whole.participant.guid] = list(whole.endpoints)
        return last


@given(chance=st.randoms(use_true_random=False), count=st.integers(2, 7))
@settings(max_examples=25)
def test_everyone_gets_the_details_of_exactly_what_matches(chance: Random, count: int) -> None:
    domain = Domain(chance.getrandbits(32))
    for number in range(count):
        domain.start(f"p{number}", drawn_endpoints(chance, chance.randrange(6)))
    domain.world.run(ms(3_000))
    domain.check()
    for number in range(count):
        if chance.random() < 0.5:
            domain.change(f"p{number}", drawn_endpoints(chance, chance.randrange(6)))
    domain.world.run(ms(6_000))
    domain.check()
    for number in range(count):
        last = domain.told_last(f"p{number}")
        details = domain.node(f"p{number}").details().values()
        assert {each.participant.guid: list(each.endpoints) for each in details} == {
            guid: endpoints for guid, endpoints in last.items() if endpoints
        }


@pytest.mark.parametrize("seed", range(3))
def test_loss_crashes_and_leaving_are_got_over(seed: int) -> None:
    chance = stream(seed, "test")
    domain = Domain(seed, loss_ratio=0.1)
    for number in range(6):
        domain.start(f"p{number}", drawn_endpoints(chance, 4))
    domain.world.run(ms(4_000))
    domain.world.crash("p1", silent=True)
    domain.world.leave("p2")
    domain.change("p3", drawn_endpoints(chance, 4))
    domain.world.run(ms(8_000))
    domain.start("p1", drawn_endpoints(chance, 4))
    domain.world.run(ms(30_000))
    assert "p2" not in domain.world.processes
    domain.check()


def test_the_endpoints_of_those_who_match_nothing_stay_at_home() -> None:
    domain = Domain(1)
    domain.start("ana", [endpoint(1, WRITER, "a"), endpoint(2, WRITER, "secret")])
    domain.start("ben", [endpoint(1, READER, "a")])
    domain.start("cyd", [endpoint(1, READER, "b")])
    domain.world.run(ms(2_000))
    listed = {(to, told.summary.participant.guid) for to, told in domain.told
              if isinstance(told, Listed)}  # fmt: skip
    assert ("cyd", "ana") in listed
    assert domain.told_last("cyd") == {}
    assert domain.told_last("ben") == {"ana": [endpoint(1, WRITER, "a")]}
    asks = [each for each in domain.world.posted if isinstance(each.message, Ask)]
    assert {(each.source, each.to) for each in asks} == {("ana", "ben"), ("ben", "ana")}
    sent = b"".join(encode(each.message) for each in domain.world.posted)
    assert b"secret" not in sent


def test_what_no_longer_matches_is_told_as_nothing() -> None:
    domain = Domain(1)
    domain.start("ana", [endpoint(1, WRITER, "a")])
    domain.start("ben", [endpoint(1, READER, "a")])
    domain.world.run(ms(1_000))
    domain.change("ben", [])
    domain.world.run(ms(2_000))
    assert domain.told_last("ben") == {"ana": []}
    assert domain.told_last("ana") == {"ben": []}
    domain.check()


def test_a_participant_that_sends_noise_for_a_summary_harms_nobody() -> None:
    domain = Domain(1)
    domain.start("ana", [endpoint(1, WRITER, "a")])
    domain.start("ben", [endpoint(1, READER, "a")])
    domain.world.start("eve", b"noise")
    domain.world.run(ms(2_000))
    assert domain.node("ana").malformed == 1
    assert domain.told_last("ana") == {"ben": [endpoint(1, READER, "a")]}
    eve = domain.world.processes["eve"].core.id  # type: ignore[attr-defined]
    ana = domain.node("ana")
    assert ana.receive("eve", Details(0, eve, 1, 1, 1, ()), ms(2_000)) == []
    assert ana.receive("eve", Ask(999, 1, eve, 1, b"", ()), ms(2_000)) == []
    with pytest.raises(RemoteProtocolError):
        ana.receive("eve", Ask(cast("Any", ana.fdp.id), ana._inc, eve, 1, b"x", ()), ms(2_000))


def churned(seed: int) -> Domain:
    """Participants that come, change, leave and die for 20 s, then quiet."""
    chance = stream(seed, "churn")
    domain = Domain(seed, loss_ratio=chance.choice((0.0, 0.02, 0.1)))
    for number in range(chance.randrange(3, 9)):
        domain.start(f"p{number}", drawn_endpoints(chance, chance.randrange(6)))
    for step in range(chance.randrange(5, 20)):
        domain.world.run(ms(1_000 * step + chance.randrange(1_000)))
        there = [each for each in domain.own if each in domain.world.processes]
        address = chance.choice(sorted(domain.own))
        what = chance.choice(("change", "change", "crash", "leave"))
        if address not in there:
            domain.start(address, drawn_endpoints(chance, 4))
        elif what == "change" or len(there) < 3:
            if not domain.node(address).fdp.leaving:
                domain.change(address, drawn_endpoints(chance, chance.randrange(6)))
        elif what == "crash":
            domain.world.crash(address, silent=chance.random() < 0.5)
        elif not domain.node(address).fdp.leaving:
            domain.world.leave(address)
    domain.world.calm()
    domain.world.run(domain.world.world.now_ns + ms(20_000))
    return domain


@pytest.mark.parametrize("seed", range(3))
def test_details_are_exact_after_churn(seed: int) -> None:
    churned(seed).check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_details_are_exact_after_churn_in_bulk(seed: int) -> None:
    churned(seed).check()
