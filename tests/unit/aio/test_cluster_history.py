"""A broker's own history: bounded, kept over a kill, and honest about what it lost."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from orderwire.aio import cluster_history
from orderwire.aio.cluster_history import SPOOL, ClusterHistory
from orderwire.aio.history_options import HistoryOptions
from orderwire.broker.cluster import GROUPS_TOPIC
from orderwire.broker.partitions import Partition
from orderwire.broker.replication.effects import Deposed, Elected, Republished
from orderwire.broker.replication.view import BrokerId
from orderwire.trace.errors import TraceError
from orderwire.trace.replication_schema import history_schema
from orderwire.verify.replication import Elected as ToldElected
from orderwire.verify.replication import Event, Missing
from orderwire.verify.replication import Republished as ToldRepublished
from orderwire.verify.replication_history import by_partition, parts_from

ME = BrokerId(2)
SECONDS_MAX = 20.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle in the time that a loaded machine takes."""
    monkeypatch.setattr(cluster_history, "_CLOSE_S", SECONDS_MAX)


class Kept:
    """A topic: records are acknowledged when they are polled for."""

    def __init__(self, fails: int = 0) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.sent = 0
        self.acknowledged = 0
        self.fails = fails

    def write(self, batch: pa.RecordBatch) -> None:
        if self.fails:
            self.fails -= 1
            raise TraceError("no")
        self.batches.append(batch)
        self.sent += 1

    def poll(self) -> None:
        self.acknowledged = self.sent

    def close(self) -> None:
        pass

    def told(self) -> dict[str, list[Event]]:
        """By writer, of all partitions together."""
        found: dict[str, list[Event]] = {}
        for _, rows in by_partition(pa.Table.from_batches(self.batches, history_schema())):
            for writer, noted in parts_from(rows).written.items():
                found.setdefault(writer, []).extend(each.event for each in noted)
        return found


class Nowhere:
    """A broker without partitions."""

    def partition(self, topic: str, index: int) -> Partition | None:
        return None


def made(folder: Path, life: str) -> ClusterHistory:
    return ClusterHistory(HistoryOptions(), folder, ME, life)


def published(history: ClusterHistory, kept: Kept) -> None:
    async def run() -> None:
        history.publish(Nowhere(), "run", lambda: kept)
        await history.settle()
        history.close()

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


def test_it_tells_what_the_judge_asks_for_and_not_of_its_own_topic(tmp_path: Path) -> None:
    history = made(tmp_path, "a")
    history.noted("t", 0, Elected(4))
    history.noted("t", 0, Deposed(4, "asked to"))
    history.noted("t", 0, Republished(3, 9, False))
    history.noted("t", 0, Republished(3, 9, True))
    history.noted(HistoryOptions().topic, 0, Elected(1))
    history.noted(GROUPS_TOPIC, 0, Elected(1))
    kept = Kept()
    published(history, kept)
    assert kept.told() == {"2/a": [ToldElected(4, ME), ToldRepublished(9)]}
    assert (tmp_path / SPOOL).read_bytes() == b""


def test_a_killed_process_leaves_its_rows_to_the_next(tmp_path: Path) -> None:
    history = made(tmp_path, "a")
    history.noted("t", 0, Elected(4))
    history.flush()
    history.noted("t", 0, Elected(5))
    history.flush()
    with (tmp_path / SPOOL).open("ab") as spool:
        spool.write(b"\0\0\0\x50torn")
    after = made(tmp_path, "b")
    after.noted("t", 0, Elected(6))
    kept = Kept()
    published(after, kept)
    assert kept.told() == {
        "2/a": [ToldElected(4, ME), ToldElected(5, ME)],
        "2/b": [ToldElected(6, ME)],
    }


def test_rows_beyond_the_bound_are_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_history, "ROWS_MAX", 3)
    history = made(tmp_path, "a")
    for epoch in range(10):
        history.noted("t", 0, Elected(epoch))
    kept = Kept()

    async def run() -> None:
        history.publish(Nowhere(), "run", lambda: kept)
        while not any(isinstance(each, Missing) for of in kept.told().values() for each in of):
            await asyncio.sleep(0.01)
        history.close()

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))
    *first, missing = kept.told()["2/a"]
    assert first == [ToldElected(epoch, ME) for epoch in range(3)]
    assert isinstance(missing, Missing)
    assert missing.rows == 7


@pytest.mark.parametrize(("fails", "lost"), [(1, False), (3, True)])
def test_a_topic_that_fails_is_tried_again_and_then_told_of(
    tmp_path: Path, fails: int, lost: bool
) -> None:
    history = made(tmp_path, "a")
    history.noted("t", 0, Elected(4))
    kept = Kept(fails)

    async def run() -> None:
        history.publish(Nowhere(), "run", lambda: kept)
        while not kept.batches:
            await asyncio.sleep(0.01)
        history.close()

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))
    told = kept.told()["2/a"]
    assert [type(each) for each in told] == [Missing if lost else ToldElected]
