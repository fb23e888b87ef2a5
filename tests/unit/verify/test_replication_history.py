"""Histories of replication as Arrow: every event comes back as it was, and verdicts stay."""

from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from replication_histories import broken, history

from orderwire.trace.errors import TraceError, TraceVersionError
from orderwire.trace.replication_schema import HISTORY_KEY, history_schema
from orderwire.verify import replication_history as written
from orderwire.verify.replication import (
    Acknowledged,
    Elected,
    Held,
    OnDisk,
    Republished,
    Requested,
    Settled,
    TookLower,
    by_invariant,
    judge,
)
from orderwire.verify.replication_audit import TITLES, audit_table, judge_partition
from orderwire.verify.verdict import Verdict

KEY = ("r", "t", 0)


@pytest.mark.parametrize("seed", range(5))
def test_every_event_comes_back_as_it_was(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Random(seed)
    events = [*history(draw), Republished(3), TookLower(1, 2, 3), Held(0, False, None, ())]
    for most in (1, 3, 4_096):
        monkeypatch.setattr(written, "PART_ITEMS_MAX", most)
        table = written.table_of({KEY: events})
        order = list(range(table.num_rows))
        draw.shuffle(order)
        assert list(written.events_from(table.take(order))) == events


@pytest.mark.parametrize("suffix", [".arrow", ".parquet"])
def test_files_keep_several_partitions_apart(tmp_path: Path, suffix: str) -> None:
    told = {("r", "t", number): history(Random(number)) for number in range(3)}
    path = tmp_path / f"h{suffix}"
    assert written.write_history(path, told) > 0
    assert written.history_files(tmp_path) == [path]
    assert written.histories_from(written.read_history_file(path)) == told


@pytest.mark.parametrize("invariant", TITLES)
def test_each_invariant_rejects_its_broken_twin(invariant: str) -> None:
    for seed in range(20):
        draw = Random(seed)
        whole = history(draw)
        assert judge(whole) == []
        twin = broken(invariant, whole, draw)
        found = by_invariant(judge(twin))
        assert invariant in found, (seed, found)
        report = audit_table(written.table_of({KEY: twin, ("r", "t", 1): whole}))
        told = {check.id: check for check in report.checks}
        assert report.verdict is Verdict.INVALID
        assert told[invariant].verdict is Verdict.INVALID
        assert {each: told[each].violations for each in told if told[each].violations} == found
        assert [part.verdict for part in report.partitions] == [Verdict.INVALID, Verdict.VALID]


def test_the_audit_says_what_the_judge_says_and_counts_what_it_saw() -> None:
    events = history(Random(3))
    found = judge_partition(KEY, events)
    assert all(each.examined for each in found)
    report = audit_table(written.table_of({KEY: events}))
    assert report.verdict is Verdict.VALID
    nothing = audit_table(written.table_of({KEY: [Elected(0, 1)]}))
    assert nothing.verdict is Verdict.UNKNOWN


def test_acks_one_is_judged_where_it_is_promised_only() -> None:
    events = [
        Requested("s", ("m",), 1),
        Acknowledged(("m",), 1, 0),
        OnDisk(frozenset(), acks_one_lost=True),
        Settled((0,), (0,), acks_one_lost=True),
    ]
    checks = {check.id: check for check in audit_table(written.table_of({KEY: events})).checks}
    assert not checks["I4"].promised
    assert checks["I8"].violations == 0


def test_a_history_with_a_hole_or_of_another_version_is_refused(tmp_path: Path) -> None:
    table = written.table_of({KEY: history(Random(1))})
    with pytest.raises(TraceError, match="not whole"):
        list(written.events_from(table.slice(1)))
    other = table.replace_schema_metadata({HISTORY_KEY: b"99"})
    path = tmp_path / "h.parquet"
    pq.write_table(other, path)
    with pytest.raises(TraceVersionError, match="'99'"):
        written.read_history_file(path)
    assert history_schema().names == table.schema.names
