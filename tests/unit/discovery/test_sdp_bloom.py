"""SDPBloom: the filter, who asks for what, and what is repeated."""

from random import Random
from typing import Any

import pytest

from orderwire.discovery.omg_sdp import Indicate, Joined, Learned, SendData, Start
from orderwire.discovery.sdp_bloom import BloomFilter, SdpBloom
from orderwire.discovery.sdp_messages import (
    AckNack,
    Announcement,
    Heartbeat,
    Request,
    endpoint_data,
)
from orderwire.discovery.sdp_settings import SdpSettings
from orderwire.kernel import Broadcast, Instant, ProcessId, Send, ms

YOU = ProcessId(1)
S = ms(1_000)


def started(offers: list[int], wants: list[int], **changes: Any) -> SdpBloom:
    core = SdpBloom(
        ProcessId(0),
        offers=offers,
        wants=wants,
        settings=SdpSettings(**({"announcement_jitter_ns": 0, "reply": "none"} | changes)),
        chance=Random(0),
    )
    announced = BloomFilter.of(offers)
    assert core.submit(Start(), Instant(0)) == [
        Broadcast(Announcement(announced.bits, announced.size_bytes))
    ]
    return core


def announcement(keys: list[int]) -> Announcement:
    bloom = BloomFilter.of(keys)
    return Announcement(bloom.bits, bloom.size_bytes)


@pytest.mark.parametrize("size", [0, 1, 79, 630])
def test_a_filter_has_all_its_keys_and_few_others(size: int) -> None:
    """Ten bits a key and seven hashes: about 0.8 % false positives."""
    bloom = BloomFilter.of(range(size))
    assert bloom.size_bytes == max(8, -(-10 * size // 8))
    assert all(bloom.has(key) for key in range(size))
    wrong = sum(bloom.has(key) for key in range(10_000, 20_000))
    assert wrong < 200
    assert size < 79 or wrong > 20


def test_a_participant_asks_for_what_it_wants_and_gets_no_more() -> None:
    core = started([10, 11, 12], [20, 21])
    met = core.receive(YOU, announcement([20, 30, 31]), Instant(1))
    assert met == [Indicate(Joined(YOU)), Send(YOU, Request((20,)))]
    assert core.receive(YOU, Request((11, 12, 99)), Instant(2)) == [SendData(YOU, 0b11)]
    assert core.receive(YOU, endpoint_data(0), Instant(3))[0] == Indicate(Learned(YOU, 0))


def test_nothing_wanted_is_nothing_asked() -> None:
    core = started([10], [20])
    assert core.receive(YOU, announcement([30]), Instant(1)) == [Indicate(Joined(YOU))]
    assert core.receive(YOU, Announcement(), Instant(1)) == []
    assert all(not isinstance(effect, Send) for _, what in wakes(core, 5 * S) for effect in what)


def test_a_request_is_repeated_until_it_is_answered() -> None:
    core = started([], [20])
    core.receive(YOU, announcement([20]), Instant(1))
    again = Send(YOU, Request((20,)))
    assert sum(again in what for _, what in wakes(core, 4 * S)) >= 2
    core.receive(YOU, Heartbeat(0), Instant(4 * S))
    assert sum(again in what for _, what in wakes(core, 8 * S)) == 0


def test_a_filter_that_was_wrong_is_answered_all_the_same() -> None:
    core = started([10], [])
    assert core.receive(YOU, Request((99,)), Instant(1)) == [Send(YOU, Heartbeat(0))]
    assert core.receive(YOU, Request((99,)), Instant(2)) == [Send(YOU, Heartbeat(0))]


def test_what_was_asked_for_is_repaired_as_sdp_does() -> None:
    core = started([10, 11, 12], [])
    core.receive(YOU, announcement([]), Instant(1))
    core.receive(YOU, Request((10, 11, 12)), Instant(2))
    assert any(Send(YOU, Heartbeat(3)) in what for _, what in wakes(core, 2 * S))
    assert core.receive(YOU, AckNack(1, 3, 0b010), Instant(2 * S)) == [SendData(YOU, 0b010)]
    assert core.receive(YOU, AckNack(3, 3, 0), Instant(2 * S)) == []
    assert all(Send(YOU, Heartbeat(3)) not in what for _, what in wakes(core, 6 * S))


def wakes(core: SdpBloom, until_ns: int) -> list[tuple[int, Any]]:
    done = []
    while (due := core.next_deadline()) is not None and due <= until_ns:
        done.append((due, core.wake(due)))
    return done
