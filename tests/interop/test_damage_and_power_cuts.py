"""Disks that lie, as other brokers' users reported: 4 nats-server #7549, 17 #5412 and #6600."""

import asyncio
import contextlib
import os
import re
import time
from pathlib import Path

import pytest
from cluster_client import QUIET, SECONDS_MAX, in_sync, make_topic, quick_in, until
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.aio.cluster_status import ask_status
from orderwire.broker.replication.settings import Mode
from orderwire.broker.wire.batch import walk

pytestmark = [pytest.mark.network, pytest.mark.timeout(240)]

FIELDS = {
    "base offset": 7,
    "length": 10,
    "epoch": 15,
    "magic": 16,
    "crc": 18,
    "attributes": 22,
    "last offset delta": 26,
    "base timestamp": 33,
    "max timestamp": 41,
    "producer id": 50,
    "producer epoch": 52,
    "base sequence": 56,
    "count": 60,
    "body": 64,
}
"""A byte of each field of a batch's header, and of its records."""


def flip(folder: Path, at: int) -> None:
    """Change one bit of a log's second batch."""
    (path,) = folder.glob("*.log")
    data = bytearray(path.read_bytes())
    second = [start for start, _ in walk(bytes(data))][1]
    data[second + at] ^= 0x04
    path.write_bytes(data)


def everything(
    bootstrap: str, topic: str, partitions: int, count: int
) -> dict[tuple[int, int], bytes]:
    """Read so many messages, by partition and offset."""
    told = {"bootstrap.servers": bootstrap, "group.id": "all", **QUIET}
    found: dict[tuple[int, int], bytes] = {}
    end = time.monotonic() + SECONDS_MAX
    with contextlib.closing(Consumer(told)) as consumer:
        consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
        while len(found) < count and time.monotonic() < end:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found[message.partition(), message.offset()] = message.value()
    return found


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
@quick_in(Mode.ACTIVE_ACTIVE)
def test_4_a_flipped_bit_is_found_not_served_and_mended(
    tmp_path: Path, mode: Mode, killed: bool
) -> None:
    """nats-server #7549: one replica's bits differ, in every field of a batch, and in its body.

    After a proper end that is damage; in what a killed broker had just written it may as well be a
    torn tail.
    """
    count = len(FIELDS)
    with ClusterProcess.start(tmp_path, mode=mode, session_ms=2_000) as cluster:
        make_topic(cluster.bootstrap, "t", partitions=count)
        acked: dict[tuple[int, int], bytes] = {}

        def told(error: object, message: object) -> None:
            assert error is None, error
            acked[message.partition(), message.offset()] = message.value()  # type: ignore[attr-defined]

        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET})
        for number in range(3):
            for partition in range(count):
                value = b"%d of %d" % (number, partition)
                producer.produce("t", value, partition=partition, on_delivery=told)
            assert producer.flush(SECONDS_MAX) == 0
        if killed:
            cluster.brokers[1].kill()
        else:
            assert cluster.brokers[1].stop() == 0
        (topic,) = (tmp_path / "broker-1" / "topics").iterdir()
        for partition, at in enumerate(FIELDS.values()):
            flip(topic / str(partition), at)
        cluster.restart(1)
        for partition in range(count):
            until(
                lambda partition=partition: in_sync(cluster.bootstrap, "t", partition) == [0, 1, 2],
                f"partition {partition} is not whole",
            )
        if not killed:
            log = cluster.brokers[1].log.read_text()
            assert log.count("is damaged and set aside") == count

        def ends() -> set[int]:
            told = asyncio.run(ask_status(cluster.brokers[1].internal, None))["partitions"]
            return {one["high_watermark"] for one in told if one["topic"] == "t"}

        until(lambda: ends() == {3}, "something is missing there")
        cluster.brokers[0].kill()
        assert everything(cluster.bootstrap, "t", count, len(acked)) == acked
        cluster.stop()
        for partition in range(count):
            one, two = (
                b"".join(
                    path.read_bytes()
                    for path in sorted(
                        (tmp_path / f"broker-{each}" / "topics" / topic.name / str(partition)).glob(
                            "*.log"
                        )
                    )
                )
                for each in (1, 2)
            )
            assert one == two


RECORDER = """
import os
_log = os.open(os.environ["SYNCED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
def _noted(real):
    def sync(file):
        number = file if isinstance(file, int) else file.fileno()
        size = os.fstat(number).st_size
        real(file)
        path = os.readlink(f"/proc/self/fd/{number}")
        os.write(_log, f"{size} {path}\\n".encode())
    return sync
os.fdatasync, os.fsync = _noted(os.fdatasync), _noted(os.fsync)
"""
GROWING = re.compile(r"\d{20}\.log|pending.*|lane-.*")
"""Files that are only appended to."""


def cut_power(folder: Path, synced: Path) -> int:
    """Take from the disks what no fdatasync had covered; returns how much that was."""
    sizes: dict[str, int] = {}
    for line in synced.read_text().splitlines():
        size, path = line.split(" ", 1)
        sizes[path] = int(size)
    lost = 0
    for path in folder.glob("broker-*/topics/*/*/*"):
        if GROWING.fullmatch(path.name) and path.is_file():
            size, kept = path.stat().st_size, sizes.get(str(path), 0)
            if size > kept:
                lost += size - kept
                os.truncate(path, kept)
    return lost


@quick_in(Mode.ACTIVE_STANDBY)
def test_17_no_group_is_ahead_of_what_is_left_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """nats-server #5412, #6600: all brokers lose what they had not put on disk."""
    (tmp_path / "sitecustomize.py").write_text(RECORDER)
    synced = tmp_path / "synced"
    monkeypatch.setenv("SYNCED", str(synced))
    path = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    folder = tmp_path / "cluster"
    seen: dict[int, bytes] = {}
    acked: dict[int, bytes] = {}

    def told(error: object, message: object) -> None:
        if error is None:
            acked[message.offset()] = message.value()  # type: ignore[attr-defined]

    with ClusterProcess.start(folder, mode=mode, session_ms=2_000) as cluster:
        make_topic(cluster.bootstrap, "t")
        sent = 0
        for _ in range(2):
            all_of_them = Producer(
                {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, **QUIET}
            )
            hasty = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1, **QUIET})
            consumer = Consumer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "group.id": "g",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    **QUIET,
                }
            )
            consumer.subscribe(["t"])
            committed = 0
            end = time.monotonic() + SECONDS_MAX
            while committed < 10:
                assert time.monotonic() < end, "nothing is read"
                all_of_them.produce("t", b"all %d" % sent, on_delivery=told)
                hasty.produce("t", b"one %d" % sent)
                sent += 1
                all_of_them.poll(0)
                hasty.poll(0)
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    before = seen.setdefault(message.offset(), message.value())
                    assert before == message.value(), "another message is at its place"
                    with contextlib.suppress(KafkaException):
                        consumer.commit(message, asynchronous=False)
                        committed += 1
            for broker in cluster.brokers:
                broker.kill()
            cut_power(folder, synced)
            for index in range(3):
                cluster.restart(index)
            until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1, 2], "it did not come back")
            consumer.close()
            place = TopicPartition("t", 0)
            looker = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", **QUIET})

            def stands(looker: Consumer = looker, place: TopicPartition = place) -> int:
                try:
                    return int(looker.committed([place], timeout=5)[0].offset)
                except KafkaException:
                    return -1

            until(lambda: stands() > 0, "the group's offset is gone")
            _, high = looker.get_watermark_offsets(place, timeout=SECONDS_MAX)
            assert stands() <= high, "a group is ahead of the log"
            looker.close()
            left = {
                at: value for (_, at), value in everything(cluster.bootstrap, "t", 1, high).items()
            }
            for at, value in {**seen, **acked}.items():
                assert left.get(at) == value, f"offset {at} was told, and is gone"
