"""What a broker of a cluster writes to its log of what its replicas tell."""

import logging
from typing import Any

import pytest

from orderwire.aio.cluster_frames import Codec
from orderwire.aio.cluster_host import ClusterHost
from orderwire.broker.replication.effects import (
    Committed,
    Deposed,
    Elected,
    Event,
    MemberJoined,
    MemberRemoved,
    Note,
    Orphaned,
    Recovered,
    Republished,
    RoundOpened,
    Sealed,
    Truncated,
)
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.topics import Topic

OFTEN = [
    RoundOpened(1, 2, 0, 3, 4),
    Committed(1, 2, 4),
    Sealed(1, 2, 3),
]
SELDOM = [
    Orphaned(1, 2, 3),
    Republished(1, 2, duplicate=False),
    Elected(1),
    Recovered(1, 2),
    Deposed(1, "why"),
    MemberRemoved(1, BrokerId(2), "why"),
    MemberJoined(1, BrokerId(2)),
    Truncated(2, 1),
]


class Nobody:
    process_ended = None


@pytest.mark.parametrize("event", [*OFTEN, *SELDOM], ids=lambda event: type(event).__name__)
def test_what_grows_with_the_load_is_for_debugging(
    event: Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    driver: Any = Nobody()
    host = ClusterHost(BrokerId(0), driver, "life", Codec({}))
    host.carry_out(Topic("t", bytes(16), 1), 0, Note(event))
    (record,) = caplog.records
    assert record.levelno == (logging.DEBUG if event in OFTEN else logging.INFO)
    assert host.events[type(event).__name__] == 1
