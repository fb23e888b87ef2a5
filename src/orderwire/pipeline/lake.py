"""The lake: Delta tables that the JVM writes as Parquet and deltalake commits.

A batch lands in the folder `data/<application>/<batch>` of its table, and becomes part of the table
by one commit that also records (application, batch).  A crash before the commit leaves files that
no reader of the table sees, and the replay overwrites them; a replay after it is noticed and
skipped.  [specs/pipeline.md:4]

Everything but `append_batch` and `read` works without Spark.
"""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from orderwire.pipeline.errors import LakeError
from orderwire.pipeline.tables import TABLES, TableSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROW_GROUP_ROWS = 131_072
COMPRESSION = "zstd"
_APPLICATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,299}")
_REFUSED_FEATURES = {"deletionVectors", "columnMapping"}
"""With these a data file alone does not say which rows or columns are the table's."""


class Appended(msgspec.Struct, frozen=True):
    """What became of a batch."""

    skipped: bool
    """Whether it had been recorded before, and nothing was written."""
    rows: int
    files: tuple[str, ...]
    """The batch's data files, absolute."""
    version: int
    """The table's version that holds the batch."""


class Lake:
    """A folder of tables.  One writer for each application id; any number of readers."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(str(root).removeprefix("file://")).absolute()

    def path(self, name: str) -> Path:
        """The table's folder.  Raises LakeError on a name that is not in `TABLES`."""
        _settings(name)
        return self.root / name

    def tables(self) -> list[str]:
        """The tables that exist."""
        return [name for name in TABLES if self.version(name) is not None]

    def version(self, name: str) -> int | None:
        """The table's newest version; None when there is no such table yet."""
        table = self._open(name)
        return None if table is None else table.version()

    def recorded(self, name: str, application: str) -> int | None:
        """The last batch of this application that the table holds."""
        table = self._open(name)
        return None if table is None else table.transaction_version(application)

    def files(self, name: str, version: int | None = None) -> list[str]:
        """The data files of one version, absolute; of the newest when None."""
        table = self._open(name, version)
        return [] if table is None else sorted(self._local(name, uri) for uri in table.file_uris())

    def files_where(self, name: str, keep: Callable[[dict[str, Any]], bool]) -> list[str]:
        """The files whose statistics `keep` accepts.

        It is given `num_records` and `min.COLUMN`, `max.COLUMN` for the table's statistics.
        """
        table = self._open(name)
        if table is None:
            return []
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return sorted(self._local(name, a["path"]) for a in actions if keep(a))

    def rows(self, name: str) -> int:
        """How many rows the table has, from its log alone."""
        table = self._open(name)
        if table is None:
            return 0
        return sum(pa.table(table.get_add_actions()).column("num_records").to_pylist())

    def batch_files(self, name: str, application: str, batch: int) -> list[str]:
        """The files that one committed batch added."""
        folder = str(self._batch_folder(name, application, batch))
        return [file for file in self.files(name) if str(Path(file).parent) == folder]

    def append_batch(self, name: str, frame: "DataFrame", application: str, batch: int) -> Appended:
        """Write a DataFrame as one batch, unless the table holds it already.

        For `foreachBatch`: called again with the same or an earlier batch it does nothing.
        Raises LakeError when the columns are not the table's.
        """
        settings = _settings(name)
        _check_columns(name, frame.schema, spark_schema(name))
        table = self._create(name)
        if (done := self._done(name, table, application, batch)) is not None:
            return done
        folder = self._batch_folder(name, application, batch)
        (
            frame.select(*settings.schema.names)
            .sortWithinPartitions(*settings.sorted_by)
            .write.mode("overwrite")
            .option("compression", COMPRESSION)
            .option("parquet.block.row.count.limit", ROW_GROUP_ROWS)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(str(folder))
        )
        return self._commit(name, table, application, batch, folder)

    def append_table(self, name: str, rows: pa.Table, application: str, batch: int) -> Appended:
        """Write an Arrow table as one batch, without Spark; otherwise like `append_batch`."""
        settings = _settings(name)
        if set(rows.schema.names) != set(settings.schema.names):
            raise LakeError(
                f"table {name} has columns {settings.schema.names}, not {rows.schema.names}"
            )
        table = self._create(name)
        if (done := self._done(name, table, application, batch)) is not None:
            return done
        folder = self._batch_folder(name, application, batch)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ordered = rows.select(settings.schema.names).cast(settings.schema)
        ordered = ordered.sort_by([(column, "ascending") for column in settings.sorted_by])
        pq.write_table(
            ordered,
            folder / "part-00000.parquet",
            compression=COMPRESSION,
            row_group_size=ROW_GROUP_ROWS,
        )
        return self._commit(name, table, application, batch, folder)

    def read(
        self,
        spark: "SparkSession",
        name: str,
        *,
        version: int | None = None,
        files: Sequence[str] | None = None,
    ) -> "DataFrame":
        """The table, or some files of it, as a DataFrame read by the JVM's own Parquet reader."""
        chosen = self.files(name, version) if files is None else list(files)
        reader = spark.read.schema(spark_schema(name))
        if not chosen:
            return spark.createDataFrame([], spark_schema(name))
        return reader.option("basePath", str(self.path(name))).parquet(*chosen)

    def read_arrow(
        self, name: str, *, version: int | None = None, columns: list[str] | None = None
    ) -> pa.Table:
        """The table as Arrow, without Spark; for results, not for big tables."""
        schema = _settings(name).schema
        files = self.files(name, version)
        # Files of an earlier release may lack columns: with a schema those read as null.
        parts = [ds.dataset(files, schema=schema).to_table(columns)] if files else []
        if not parts:
            empty: pa.Table = schema.empty_table()
            return empty if columns is None else empty.select(columns)
        return pa.concat_tables(parts)

    def clean(self, name: str, application: str) -> list[str]:
        """Remove what a crash left: folders of this application's batches that never committed.

        Only for the application's one writer, between batches.  Returns the folders.
        """
        last = self.recorded(name, application)
        home = self.path(name) / "data" / application
        orphans = [
            folder
            for folder in (sorted(home.iterdir()) if home.is_dir() else [])
            if not folder.name.isdigit() or last is None or int(folder.name) > last
        ]
        for folder in orphans:
            shutil.rmtree(folder)
        return [str(folder) for folder in orphans]

    def _done(self, name: str, table: DeltaTable, application: str, batch: int) -> Appended | None:
        """The outcome of a batch that the table holds already."""
        last = table.transaction_version(application)
        if last is None or last < batch:
            return None
        return Appended(True, 0, tuple(self.batch_files(name, application, batch)), table.version())

    def _commit(
        self, name: str, table: DeltaTable, application: str, batch: int, folder: Path
    ) -> Appended:
        """Make the files of a written batch part of the table.

        `table` is as it was before the batch was written: a commit of the same application in
        between, by a writer that should be dead, is noticed as a conflict.
        """
        settings = _settings(name)
        actions: list[AddAction | RemoveAction] = []
        kept: list[str] = []
        rows = 0
        for file in sorted(folder.glob("*.parquet")):
            about = pq.read_metadata(file)
            if not about.num_rows:
                file.unlink()
                continue
            rows += about.num_rows
            kept.append(str(file))
            actions.append(
                AddAction(
                    str(file.relative_to(self.path(name))),
                    file.stat().st_size,
                    {},
                    time.time_ns() // 1_000_000,
                    True,
                    json.dumps(file_statistics(about, settings.statistics)),
                )
            )
        try:
            table.create_write_transaction(
                actions,
                mode="append",
                schema=Schema.from_arrow(settings.schema),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(application, batch)]
                ),
            )
        except DeltaError as error:
            raise LakeError(
                f"batch {batch} of {application!r} was not committed to {self.path(name)}: {error}."
                " Is another writer using the same application id?"
            ) from None
        version = self.version(name)
        assert version is not None
        return Appended(False, rows, tuple(kept), version)

    def _batch_folder(self, name: str, application: str, batch: int) -> Path:
        if not _APPLICATION.fullmatch(application):
            raise LakeError(
                f"application id {application!r} is no file name: expected letters, digits, . _ -"
            )
        assert batch >= 0, f"batch {batch}"
        return self.path(name) / "data" / application / str(batch)

    def _create(self, name: str) -> DeltaTable:
        table = self._open(name)
        if table is None:
            schema = Schema.from_arrow(_settings(name).schema)
            DeltaTable.create(self.path(name), schema=schema, mode="ignore", name=name)
            table = self._open(name)
            assert table is not None
        return self._widened(name, table)

    def _widened(self, name: str, table: DeltaTable) -> DeltaTable:
        """Add the columns that a table of an earlier release does not have: null in its rows."""
        known = {field.name for field in table.schema().fields}
        fields = Schema.from_arrow(_settings(name).schema).fields
        missing = [field for field in fields if field.name not in known]
        if not missing:
            return table
        table.alter.add_columns(missing)
        widened = self._open(name)
        assert widened is not None
        return widened

    def _open(self, name: str, version: int | None = None) -> DeltaTable | None:
        path = self.path(name)
        try:
            table = DeltaTable(path, version=version)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise LakeError(f"{path}: version {version} cannot be opened: {error}") from None
        features = set(table.protocol().reader_features or ())
        mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        refused = sorted(features & _REFUSED_FEATURES)
        if mapping != "none" and "columnMapping" not in refused:
            refused.append("columnMapping")
        if refused:
            raise LakeError(
                f"{path} uses {', '.join(refused)}, which this reader does not know: its files "
                "alone do not tell the table's rows. Rewrite it without"
            )
        return table

    def _local(self, name: str, uri: str) -> str:
        path = Path(uri.removeprefix("file://"))
        return str(path if path.is_absolute() else self.path(name) / path)


def spark_schema(name: str) -> "StructType":
    """A table's columns as Spark says them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(_settings(name).schema)


def file_statistics(about: pq.FileMetaData, columns: Iterable[str]) -> dict[str, Any]:
    """What a Delta log keeps of a file: rows, and least, greatest and nulls of some columns."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    at = {about.schema.column(i).path: i for i in range(len(about.schema))}
    for column in columns:
        chunks = [
            about.row_group(group).column(at[column]).statistics
            for group in range(about.num_row_groups)
        ]
        if all(chunk is not None and chunk.has_min_max for chunk in chunks):
            least[column] = min(chunk.min for chunk in chunks)
            greatest[column] = max(chunk.max for chunk in chunks)
        if all(chunk is not None and chunk.has_null_count for chunk in chunks):
            nulls[column] = sum(chunk.null_count for chunk in chunks)
    return {
        "numRecords": about.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def _settings(name: str) -> TableSettings:
    settings = TABLES.get(name)
    if settings is None:
        raise LakeError(f"the lake has no table {name!r}; its tables: {', '.join(TABLES)}")
    return settings


def _check_columns(name: str, given: "StructType", wanted: "StructType") -> None:
    have = {field.name: field.dataType.simpleString() for field in given}
    want = {field.name: field.dataType.simpleString() for field in wanted}
    wrong = [
        f"{column} is {have.get(column, 'missing')}, expected {kind}"
        for column, kind in want.items()
        if have.get(column) != kind
    ]
    wrong += [f"{column} is not one of its columns" for column in have if column not in want]
    if wrong:
        raise LakeError(f"table {name}: {'; '.join(wrong)}")
