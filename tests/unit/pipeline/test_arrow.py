"""Arrow batches equal the schema that Spark expects, whatever columns it asks for."""

import itertools
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.pipeline import arrow
from orderwire.pipeline.arrow import COLUMNS, binary_array, check_columns, record_batches
from orderwire.pipeline.client import TIMESTAMP_NONE, MemoryMessage
from orderwire.pipeline.errors import OptionError

MESSAGES = [
    MemoryMessage(5, b"v5", b"k5", 1_700_000_000_123, pairs=(("h", b"1"), ("h", None))),
    MemoryMessage(7, None, None, 0, TIMESTAMP_NONE),
    MemoryMessage(8, b"", b"", 2, 2),
]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=20))
def test_binary_column_is_what_arrow_itself_would_build(values: list[bytes | None]) -> None:
    built = binary_array(values)
    built.validate(full=True)
    assert built.equals(pa.array(values, pa.binary()))


def test_every_subset_and_order_of_columns_equals_its_schema() -> None:
    """[SPARK-55583] A batch that differs from the schema ends in a cryptic JVM error."""
    whole = record_batches("t", 3, MESSAGES, pa.schema(list(COLUMNS.items())))[0]
    whole.validate(full=True)
    for size in (1, 2, 3, len(COLUMNS)):
        for names in itertools.islice(itertools.permutations(COLUMNS, size), 400):
            schema = pa.schema([(name, COLUMNS[name]) for name in names])
            (batch,) = record_batches("t", 3, MESSAGES, schema)
            assert batch.schema.equals(schema)
            assert batch.equals(whole.select(list(names)))


def test_values_are_those_of_the_records() -> None:
    (batch,) = record_batches("t", 3, MESSAGES, pa.schema(list(COLUMNS.items())))
    assert batch.to_pylist()[0] == {
        "key": b"k5",
        "value": b"v5",
        "topic": "t",
        "partition": 3,
        "offset": 5,
        "timestamp": datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_000),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert batch.column("value").to_pylist() == [b"v5", None, b""]
    assert batch.column("timestamp").null_count == 1
    assert batch.column("timestampType").to_pylist() == [0, -1, 1]
    assert batch.column("headers").to_pylist()[1:] == [None, None]


def test_a_batch_beyond_32_bit_offsets_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BINARY_BYTES_MAX", 10)
    messages = [MemoryMessage(at, b"12345") for at in range(5)]
    batches = record_batches("t", 0, messages, pa.schema([("value", pa.binary())]))
    assert [batch.num_rows for batch in batches] == [2, 1, 2]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (pa.schema([("valu", pa.binary())]), "unknown column 'valu'"),
        (pa.schema([("value", pa.string())]), "asked for as string; it is binary"),
        (pa.schema([("headers", COLUMNS["headers"])]), "includeHeaders=true"),
        (pa.schema([]), "no column"),
    ],
)
def test_schemas_that_cannot_be_filled_are_refused(schema: pa.Schema, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        check_columns(schema, headers=False)
