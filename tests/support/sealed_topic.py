"""A topic with seals, for real clients to read."""

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from logs import open_log, placed

from orderwire.aio.broker_process import BrokerProcess
from orderwire.broker.log.file import DiskStorage
from orderwire.broker.replication.seal import Seal, make_seal

TOPIC = "sealed"
VALUES = [b"%06d" % number for number in range(20)]
"""Ten, then a seal of 500 offsets, ten more, and another of 500 at the end."""
_END = 1_020


def leave_sealed_topic(folder: Path) -> None:
    """Have this data directory of a broker hold the topic, as an active-active replica leaves it.

    [S004:8.3]
    """
    with BrokerProcess.start(folder) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
    (place,) = (folder / "topics").glob("*/0")
    now_ms = time.time_ns() // 1_000_000
    log = open_log(DiskStorage(place), now_ms)
    for batch in (
        placed(0, 1, *VALUES[:10], at_ms=now_ms),
        make_seal(Seal(10, 509, 1, 1, "nobody has it"), now_ms),
        placed(510, 1, *VALUES[10:], at_ms=now_ms),
        make_seal(Seal(520, _END - 1, 1, 2, "nobody has it"), now_ms),
    ):
        log.append_placed(batch, now_ms)
    assert log.end_offset == _END
    log.sync()
    log.close()
