"""What is told to several brokers becomes a frame once."""

from typing import Any

import msgspec
import pytest

from orderwire.aio import cluster_links
from orderwire.aio.cluster_frames import Codec, FrameKind
from orderwire.aio.cluster_links import ClusterLinks
from orderwire.broker.replication.active_active_messages import Commit, Copied
from orderwire.broker.replication.view import BrokerId


class _Link:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, frame: Any) -> None:
        self.sent.append(frame)

    def flush(self) -> None:
        pass


def _links(count: int) -> tuple[ClusterLinks, list[_Link]]:
    def nothing(*_: Any) -> None:
        pass

    links = ClusterLinks(
        BrokerId(0),
        lambda: "cluster",
        "life",
        Codec({}),
        tls=None,
        connected=nothing,
        disconnected=nothing,
        received=nothing,
        requested=nothing,
        process_ended=nothing,
        settled=nothing,
        status=lambda: b"",
    )
    peers = [_Link() for _ in range(count)]
    links._links = {BrokerId(each + 1): peer for each, peer in enumerate(peers)}  # type: ignore[misc]
    return links, peers


def test_one_message_to_several_is_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[msgspec.Struct] = []
    original = cluster_links.message_frame

    def counted(*arguments: Any) -> Any:
        made.append(arguments[-1])
        return original(*arguments)

    monkeypatch.setattr(cluster_links, "message_frame", counted)
    links, (one, other) = _links(2)
    copy = Copied(3, b"x" * 100)
    for to in (1, 2):
        links.tell(BrokerId(to), FrameKind.ACTIVE_ACTIVE, b"t" * 16, 5, copy)
    assert made == [copy]
    assert one.sent == other.sent == [original(FrameKind.ACTIVE_ACTIVE, b"t" * 16, 5, copy)]
    commit = Commit(3, 1, 1, 0)
    links.tell(BrokerId(1), FrameKind.ACTIVE_ACTIVE, b"t" * 16, 5, commit)
    links.tell(BrokerId(7), FrameKind.ACTIVE_ACTIVE, b"t" * 16, 5, commit)
    assert made == [copy, commit]
    assert one.sent[1] == original(FrameKind.ACTIVE_ACTIVE, b"t" * 16, 5, commit)
    links.flush()
    links.tell(BrokerId(1), FrameKind.ACTIVE_ACTIVE, b"t" * 16, 5, commit)
    assert made == [copy, commit, commit], "nothing is held beyond a turn"
