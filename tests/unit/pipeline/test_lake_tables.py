"""The lake without Spark: commits, replays, orphans, refusals."""

import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from orderwire.pipeline.errors import LakeError
from orderwire.pipeline.lake import Lake
from orderwire.pipeline.tables import TABLES


def rows(start: int, count: int) -> pa.Table:
    numbers = list(range(start, start + count))
    return pa.table(
        {
            "run_id": ["r"] * count,
            "source": pa.array([n % 3 for n in numbers], pa.int32()),
            "number": pa.array(numbers, pa.int64()),
            "destination": pa.array([1] * count, pa.int32()),
        }
    )


def numbers(lake: Lake, version: int | None = None) -> list[int]:
    return sorted(lake.read_arrow("dests", version=version).column("number").to_pylist())


def foreign(lake: Lake) -> list[int]:
    """What another reader of Delta tables sees."""
    seen = DeltaTable(lake.path("dests")).to_pyarrow_table()
    return sorted(seen.column("number").to_pylist())


def test_batches_are_rows_of_versions(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.version("dests") is None
    assert lake.read_arrow("dests").num_rows == 0
    first = lake.append_table("dests", rows(0, 5), "job", 0)
    second = lake.append_table("dests", rows(5, 5), "job", 1)
    assert (first.skipped, first.rows) == (False, 5)
    assert numbers(lake) == foreign(lake) == list(range(10))
    assert numbers(lake, first.version) == list(range(5))
    assert lake.files("dests", second.version) == sorted(first.files + second.files)
    assert lake.tables() == ["dests"]


@pytest.mark.parametrize("replayed", [1, 0])
def test_a_replayed_batch_is_ignored(tmp_path: Path, replayed: int) -> None:
    """N and N-1: the comparison is "not greater", not "equal"."""
    lake = Lake(tmp_path)
    for batch in (0, 1):
        lake.append_table("dests", rows(5 * batch, 5), "job", batch)
    before = lake.version("dests")
    again = lake.append_table("dests", rows(99, 7), "job", replayed)
    assert again.skipped
    assert again.files == tuple(lake.batch_files("dests", "job", replayed))
    assert lake.version("dests") == before
    assert numbers(lake) == list(range(10))


def test_applications_count_for_themselves(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append_table("dests", rows(0, 2), "one", 7)
    lake.append_table("dests", rows(2, 2), "two", 0)
    assert lake.recorded("dests", "one") == 7
    assert lake.recorded("dests", "two") == 0
    assert lake.recorded("dests", "three") is None
    assert numbers(lake) == [0, 1, 2, 3]


def test_an_empty_batch_is_recorded_without_a_file(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    made = lake.append_table("dests", rows(0, 0), "job", 3)
    assert (made.rows, made.files) == (0, ())
    assert lake.recorded("dests", "job") == 3
    assert lake.append_table("dests", rows(0, 4), "job", 3).skipped


def test_files_without_a_commit_are_nobodys_rows_and_are_cleaned(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append_table("dests", rows(0, 5), "job", 0)
    orphan = lake.path("dests") / "data" / "job" / "1"
    orphan.mkdir()
    pq.write_table(rows(5, 5), orphan / "part-0.parquet")
    assert numbers(lake) == foreign(lake) == list(range(5))
    assert lake.clean("dests", "job") == [str(orphan)]
    assert lake.clean("dests", "job") == []
    assert numbers(lake) == list(range(5))


def test_a_crash_before_the_commit_is_overwritten_by_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "_commit", die)
        with pytest.raises(KeyboardInterrupt):
            lake.append_table("dests", rows(0, 5), "job", 0)
    assert numbers(lake) == foreign(lake) == []
    lake.append_table("dests", rows(0, 5), "job", 0)
    assert numbers(lake) == foreign(lake) == list(range(5))


def test_a_second_writer_of_one_application_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    lake.append_table("dests", rows(0, 1), "job", 0)
    write = pq.write_table

    def write_late(*args: object, **more: object) -> None:
        monkeypatch.setattr(pq, "write_table", write)
        Lake(tmp_path).append_table("dests", rows(1, 1), "job", 1)
        write(*args, **more)

    monkeypatch.setattr(pq, "write_table", write_late)
    with pytest.raises(LakeError, match="batch 1 of 'job' was not committed"):
        lake.append_table("dests", rows(1, 1), "job", 1)
    assert numbers(lake) == [0, 1]


def test_statistics_let_readers_skip_files(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for batch in range(3):
        lake.append_table("dests", rows(10 * batch, 10), "job", batch)
    found = lake.files_where("dests", lambda f: f["max.number"] >= 15 and f["min.run_id"] <= "r")
    assert [Path(file).parent.name for file in found] == ["1", "2"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"readerFeatures": ["deletionVectors"]}, "deletionVectors"),
        ({"readerFeatures": ["columnMapping"]}, "columnMapping"),
    ],
)
def test_tables_whose_files_do_not_tell_their_rows_are_refused(
    tmp_path: Path, change: dict[str, list[str]], told: str
) -> None:
    lake = Lake(tmp_path)
    lake.append_table("dests", rows(0, 1), "job", 0)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "writerFeatures": change["readerFeatures"],
        **change,
    }
    log = lake.path("dests") / "_delta_log" / f"{lake.version('dests') + 1:020}.json"  # type: ignore[operator]
    log.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(LakeError, match=f"{told}, which this reader does not know"):
        lake.files("dests")


def test_wrong_names_and_columns_are_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with pytest.raises(LakeError, match="no table 'event'; its tables: raw_messages, events"):
        lake.version("event")
    with pytest.raises(LakeError, match="table dests has columns"):
        lake.append_table("dests", rows(0, 1).drop_columns(["number"]), "job", 0)
    with pytest.raises(LakeError, match=r"application id '\.\./x'"):
        lake.append_table("dests", rows(0, 1), "../x", 0)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_round_trips_empty_and_sorts_by_its_columns(tmp_path: Path, name: str) -> None:
    settings = TABLES[name]
    assert set(settings.sorted_by) | set(settings.statistics) <= set(settings.schema.names)
    lake = Lake(tmp_path)
    lake.append_table(name, settings.schema.empty_table(), "job", 0)
    assert lake.read_arrow(name).schema.equals(settings.schema)


def test_a_table_of_an_earlier_release_gets_the_columns_it_lacks(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    settings = TABLES["dests"]
    columns = pa.schema([*settings.schema, pa.field("lifetime_ns", pa.int64())])
    lake.append_table("dests", rows(0, 3), "job", 0)
    newer = msgspec.structs.replace(settings, schema=columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orderwire.pipeline.lake.TABLES", {**TABLES, "dests": newer})
        assert lake.read_arrow("dests").column("lifetime_ns").to_pylist() == [None] * 3
        wider = rows(3, 2).append_column("lifetime_ns", pa.array([7, None], pa.int64()))
        lake.append_table("dests", wider, "job", 1)
        assert sorted(lake.read_arrow("dests").column("lifetime_ns").to_pylist(), key=str) == [
            7, None, None, None, None,
        ]  # fmt: skip
        seen = DeltaTable(lake.path("dests")).to_pyarrow_table()
        assert sorted(seen.column("lifetime_ns").to_pylist(), key=str)[0] == 7
