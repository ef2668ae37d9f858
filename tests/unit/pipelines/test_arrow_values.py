"""Events decoded from Arrow's IPC format: the rows of each, whatever is in the others (docs/spark.md#arrow)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.source.arrow_values import ArrowDecoder
from tailrace.pipelines.source.decoded import CORRUPT

SCHEMA = StructType([StructField("a", LongType()), StructField("b", StringType()), StructField(CORRUPT, BinaryType())])


def event(rows: list[dict[str, Any]], schema: pa.Schema | None = None, *, batches: int = 1) -> bytes:
    table = pa.Table.from_pylist(rows, schema)
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=max(1, len(rows) // batches)):
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode(values: list[bytes], *, fail_fast: bool = False, schema: StructType = SCHEMA) -> list[dict[str, Any]]:
    decoder = ArrowDecoder(schema, fail_fast=fail_fast)
    batches = decoder.decode(values, list(range(len(values))), "segment")
    return [row for decoded in batches for row in decoded.rows.to_pylist()]


def test_an_event_has_any_number_of_rows() -> None:
    values = [event([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], batches=2), event([], pa.schema([("a", pa.int64())]))]
    rows = decode([*values, event([{"a": 3, "b": "z"}])])
    assert [(row["a"], row["b"], row[CORRUPT]) for row in rows] == [(1, "x", None), (2, "y", None), (3, "z", None)]


def test_columns_are_found_by_name_and_cast() -> None:
    other = pa.schema([("c", pa.float64()), ("a", pa.int16())])
    assert decode([event([{"a": 7, "c": 0.5}], other)]) == [{"a": 7, "b": None, CORRUPT: None}]


def test_times_get_the_unit_of_spark() -> None:
    schema = StructType([StructField("at", TimestampType())])
    stamps = pa.schema([("at", pa.timestamp("ms", "UTC"))])
    (row,) = decode([event([{"at": 1500}], stamps)], schema=schema)
    assert row["at"].timestamp() == 1.5


def test_an_event_that_does_not_fit_is_one_row_with_all_of_it() -> None:
    good, text = event([{"a": 1}]), event([{"a": "no number"}])
    rows = decode([good, b"", b"nothing of Arrow's", text, good[:-20], good])
    assert [row["a"] for row in rows] == [1, None, None, None, None, 1]
    assert [row[CORRUPT] for row in rows] == [None, b"", b"nothing of Arrow's", text, good[:-20], None]


def test_an_event_with_two_columns_of_a_name_cannot_be_decoded() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    value = bytes(sink.getvalue())
    (row,) = decode([value])
    assert (row["a"], row[CORRUPT]) == (None, value)
    with pytest.raises(BadRequestError, match="2 columns a"):
        decode([value], fail_fast=True)


def test_fail_fast_names_the_place() -> None:
    with pytest.raises(BadRequestError, match=r"^segment at 1: the event cannot be decoded: "):
        decode([event([{"a": 1}]), b"x"], fail_fast=True)


def test_the_column_of_what_is_corrupt_is_text_or_bytes() -> None:
    with pytest.raises(BadRequestError, match="must be string or binary"):
        ArrowDecoder(StructType([StructField(CORRUPT, LongType())]), fail_fast=False)


GOOD = event([{"a": 1, "b": "one"}, {"a": 2, "b": None}])


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=8))
def test_damaged_events_are_rows_or_corrupt_and_never_end_the_process(changes: list[tuple[int, int]]) -> None:
    value = bytearray(GOOD)
    for place, byte in changes:
        value[place] = byte
    rows = decode([bytes(value), GOOD])
    assert [row["a"] for row in rows[-2:]] == [1, 2]
