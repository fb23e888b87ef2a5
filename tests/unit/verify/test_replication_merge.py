"""What several brokers wrote of a partition, with what clients did, is judged as one history."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from replication_histories import history

from orderwire.trace.replication_schema import HISTORY_KEY, history_schema
from orderwire.verify.replication import (
    Acknowledged,
    Batch,
    Committed,
    Delivered,
    Elected,
    Event,
    LogStart,
    Lost,
    Missing,
    Republished,
    Requested,
)
from orderwire.verify.replication_audit import HistoryReport, audit_table
from orderwire.verify.replication_history import noted_batches, read_history_file, table_of
from orderwire.verify.verdict import Verdict

KEY = ("r", "t", 0)
BY_BROKERS = (Committed, Elected, Republished, LogStart)


def split(events: list[Event]) -> tuple[list[Event], dict[str, list[tuple[int, int, Event]]]]:
    """What clients and files tell, and what each broker wrote: position, time, event."""
    written: dict[str, list[tuple[int, int, Event]]] = {}
    own: list[Event] = []
    for at, event in enumerate(events):
        if isinstance(event, BY_BROKERS):
            who = event.broker if isinstance(event, Committed | Elected) else 0
            mine = written.setdefault(f"{who}/life", [])
            mine.append((len(mine), at, event))
        else:
            own.append(event)
    return own, written


def joined(own: list[Event], written: dict[str, list[tuple[int, int, Event]]]) -> pa.Table:
    batches = [
        batch
        for writer, noted in written.items()
        for batch in noted_batches(*KEY, writer, iter(noted))
    ]
    return pa.concat_tables(
        [table_of({KEY: own}), pa.Table.from_batches(batches, history_schema())]
    )


def verdicts(report: HistoryReport) -> dict[str, Verdict]:
    return {check.id: check.verdict for check in report.checks}


@pytest.mark.parametrize("seed", range(5))
def test_brokers_and_clients_give_the_verdicts_of_one_history(seed: int) -> None:
    draw = Random(seed)
    events = history(draw)
    table = joined(*split(events))
    order = [*range(table.num_rows), *(draw.randrange(table.num_rows) for _ in range(5))]
    own_rows = len(split(events)[0])
    # A client that publishes again may do it twice: rows of writers count once.
    order = [at for number, at in enumerate(order) if number < table.num_rows or at >= own_rows]
    draw.shuffle(order)
    report = audit_table(table.take(order))
    assert report.verdict is Verdict.VALID
    assert verdicts(report) == verdicts(audit_table(table_of({KEY: events})))


def test_a_row_that_is_not_there_leaves_the_verdict_open() -> None:
    own, written = split(history(Random(1)))
    for writer, noted in written.items():
        for lost in range(len(noted) - 1):
            fewer = {**written, writer: noted[:lost] + noted[lost + 1 :]}
            report = audit_table(joined(own, fewer))
            assert report.verdict is Verdict.UNKNOWN, (writer, lost)
            assert report.partitions[0].verdict is Verdict.UNKNOWN
            assert report.partitions[0].missing == [f"rows of {writer} (1 rows)"]


def test_what_nobody_tells_of_leaves_the_verdict_open() -> None:
    own, written = split(history(Random(2)))
    cut = {writer: noted[:-3] for writer, noted in written.items()}
    high = written["1/life"][-1][2]
    assert isinstance(high, Committed)
    cut["1/life"].append((len(cut["1/life"]), 999, high))
    assert audit_table(joined(own, cut)).verdict is Verdict.UNKNOWN
    skipped = {**written, "9/life": [(0, 0, Elected(7, 9))]}
    report = audit_table(joined(own, skipped))
    assert report.partitions[0].missing == ["who was elected between the epochs 1 and 7"]
    alone = audit_table(joined([], written))
    assert alone.verdict is Verdict.UNKNOWN
    assert alone.partitions[0].missing == ["what clients did"]
    assert not any(check.violations for check in alone.checks)


def test_rows_that_found_no_room_never_give_valid_and_hide_no_contradiction() -> None:
    own, written = split(history(Random(3)))
    noted = written["0/life"]
    noted.append((len(noted), 999, Missing("rows", 3)))
    report = audit_table(joined(own, written))
    assert set(verdicts(report).values()) == {Verdict.UNKNOWN}
    assert report.partitions[0].missing == ["rows (3 rows)"]
    last = [event for _, _, event in noted if isinstance(event, Committed)][-1]
    batch = last.batches[-1]
    other = Batch(batch.first, batch.last, batch.epoch, batch.digest ^ 1, batch.messages)
    twin = Committed(0, 5, batch.first, batch.last + 1, (other,))
    noted.append((len(noted), 1_000, twin))
    assert verdicts(audit_table(joined(own, written)))["I2"] is Verdict.INVALID


def test_two_originals_and_a_height_that_falls_are_seen_over_writers() -> None:
    own, written = split(history(Random(4)))
    written["2/other"] = [(0, 0, Elected(1, 0))]
    assert verdicts(audit_table(joined(own, written)))["I7"] is Verdict.INVALID
    own, written = split(history(Random(4)))
    noted = written["1/life"]
    noted.append((len(noted), 999, Committed(1, 0, 3, 2, ())))
    assert verdicts(audit_table(joined(own, written)))["I6"] is Verdict.INVALID


def test_a_history_of_version_1_reads_as_ever(tmp_path: Path) -> None:
    events: list[Event] = [Requested("s", ("m",), 1)]
    table = table_of({KEY: events}).drop_columns(["writer", "time_ns"])
    path = tmp_path / "h.parquet"
    pq.write_table(table.replace_schema_metadata({HISTORY_KEY: b"1"}), path)
    assert read_history_file(path) == table_of({KEY: events})


def test_behind_a_loss_nothing_is_judged_and_before_it_everything() -> None:
    """Nobody tells which of two histories a writer was in; there are two of them."""

    def batch(at: int, epoch: int, message: str) -> Batch:
        return Batch(at, at, epoch, at, (message,))

    first, lost, new = batch(0, 0, "a"), batch(1, 0, "b"), batch(1, 1, "c")
    own: list[Event] = [
        Requested("p", ("a", "b", "c"), acks=-1),
        Acknowledged(("a",), -1, 0),
        Acknowledged(("b",), -1, 1),
        Acknowledged(("c",), -1, 1),
        Delivered("d", 0, 0, 2, 2, ((0, "a"), (1, "b"))),
    ]
    before: list[Event] = [Elected(0, 0), Committed(0, 1, 0, 2, (first, lost))]
    after: list[Event] = [Elected(1, 1), Committed(1, 1, 0, 2, (first, new))]
    told = Lost(1, 1, 1, 2, unclean=True)

    def audit(*second: Event) -> HistoryReport:
        writers = {"0/life": before, "1/life": list(second)}
        noted = {
            who: [(at, at, event) for at, event in enumerate(events)]
            for who, events in writers.items()
        }
        return audit_table(joined(own, noted))

    assert audit(*after).verdict is Verdict.INVALID
    report = audit(after[0], told, after[1])
    assert not [check.id for check in report.checks if check.verdict is Verdict.INVALID]
    assert report.verdict is Verdict.UNKNOWN
    assert any("offset 1" in said for each in report.partitions for said in each.missing)
    other = Committed(1, 1, 0, 1, (batch(0, 1, "c"),))
    assert audit(after[0], told, other).verdict is Verdict.INVALID, "before the loss"
