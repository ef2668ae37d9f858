"""Events decoded from JSON: each becomes one row, whatever is in the others (docs/spark.md#json)."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
)

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.sink.event_values import EventEncoder
from tailrace.pipelines.sink.options import parse_options
from tailrace.pipelines.source.decoded import CORRUPT
from tailrace.pipelines.source.json_values import JsonDecoder, check_json_schema

SCHEMA = StructType([StructField("a", LongType()), StructField(CORRUPT, StringType())])
PIECES = (
    b'{"a":1}',
    b'{"a":',
    b"3}",
    b"",
    b" ",
    b'{"a":2}{"a":4}',
    b'{"a":{"a":5}',
    b'"}',
    b'{"a":"',
    b"{",
    b"}",
    b'{"b":[',
    b"]}",
    b"\n",
)


def decode(values: list[bytes], schema: StructType = SCHEMA, *, fail_fast: bool = False) -> list[dict[str, Any]]:
    decoder = JsonDecoder(schema, fail_fast=fail_fast)
    batches = decoder.decode(values, list(range(len(values))), "segment")
    return [row for decoded in batches for row in decoded.rows.to_pylist(maps_as_pydicts="strict")]


def decode_column(kind: DataType, text: str) -> Any:
    """The value of a column of this type; an error when the event cannot be decoded."""
    (row,) = decode([f'{{"c": {text}}}'.encode()], StructType([StructField("c", kind)]), fail_fast=True)
    return row["c"]


def expected(value: bytes) -> dict[str, Any]:
    """What one event alone becomes, by Python's own decoder."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("a", 0), int):
        return {"a": found.get("a"), CORRUPT: None}
    return {"a": None, CORRUPT: value.decode()}


@pytest.mark.parametrize(
    "values", [[b'{"a":1}{"a":2}', b""], [b'{"a":1}{"a":2}', b'{"a":', b"3}"], [b'{"a":1}\n{"a":2}', b'{"a":{', b"}}"]]
)
def test_errors_that_cancel_out_are_found(values: list[bytes]) -> None:
    assert decode(values) == [{"a": None, CORRUPT: value.decode()} for value in values]
    with pytest.raises(BadRequestError, match="segment at 0: the event cannot be decoded"):
        decode(values, fail_fast=True)


@given(st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map(b"".join), min_size=1, max_size=8))
def test_each_event_is_decoded_like_a_single_one(values: list[bytes]) -> None:
    assert decode(values) == [expected(value) for value in values]


COUNTS = MapType(StringType(), LongType())
DAY, UTC = datetime.date(2026, 11, 27), datetime.UTC


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (COUNTS, '{"x": 1, "y": null}', {"x": 1, "y": None}),
        (COUNTS, "{}", {}),
        (COUNTS, "null", None),
        (ArrayType(COUNTS), '[{"x": 1}, null, {}]', [{"x": 1}, None, {}]),
        (MapType(StringType(), ArrayType(COUNTS)), '{"a": [{"x": 1}], "b": null}', {"a": [{"x": 1}], "b": None}),
        (StructType([StructField("m", COUNTS), StructField("n", LongType())]), '{"n": 2}', {"m": None, "n": 2}),
        (MapType(StringType(), DateType()), '{"a": "2026-11-27"}', {"a": DAY}),
        (StructType([StructField("d", DateType())]), '{"d": "2026-11-27"}', {"d": DAY}),
        (StructType([StructField("d", DateType())]), "null", None),
        (ArrayType(DateType()), '["2026-11-27", null]', [DAY, None]),
        (ArrayType(ArrayType(DateType())), '[["2026-11-27"], [], null]', [[DAY], [], None]),
        (ArrayType(TimestampNTZType()), '["2026-11-27T08:00"]', [datetime.datetime(2026, 11, 27, 8)]),
        (DateType(), '"2026-11-27T23:00:00-05:00"', datetime.date(2026, 11, 28)),
        (TimestampType(), '"2026-11-27T08:00+01:00"', datetime.datetime(2026, 11, 27, 7, tzinfo=UTC)),
        (DateType(), '"2026-11-27T23:30:00.123456789-05"', datetime.date(2026, 11, 28)),
        (DateType(), '"2026-11-27t08:00:00z"', DAY),
        (TimestampType(), '"2026-11-27t08:00:00.5z"', datetime.datetime(2026, 11, 27, 8, 0, 0, 500_000, tzinfo=UTC)),
        (BinaryType(), '"AQID"', b"\x01\x02\x03"),
        (ArrayType(BinaryType()), '["", null]', [b"", None]),
        (DecimalType(10, 2), '"1.50"', Decimal("1.50")),
    ],
)
def test_values_of_all_types(kind: DataType, text: str, value: object) -> None:
    check_json_schema(StructType([StructField("c", kind)]))
    assert decode_column(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (COUNTS, '{"x": "1"}'),
        (COUNTS, "[1]"),
        (COUNTS, "5"),
        (ArrayType(COUNTS), '{"x": 1}'),
        (DateType(), '"2026-11-27x"'),
        (DateType(), "5"),
        (StructType([StructField("d", DateType())]), '{"d": "soon"}'),
        (BinaryType(), '"%%%%"'),
    ],
)
def test_values_of_another_type_are_not_decoded(kind: DataType, text: str) -> None:
    with pytest.raises(BadRequestError, match="segment at 0: the event cannot be decoded"):
        decode_column(kind, text)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            MapType(LongType(), LongType()),
            "column c: map<bigint,bigint> cannot be read from JSON: keys of JSON are text",
        ),
        (DayTimeIntervalType(), "column c: interval day to second cannot be read from JSON"),
        (ArrayType(TimeType()), r"column c: time\(6\) cannot be read from JSON"),
        (StructType([StructField("v", VariantType())]), "column c: variant cannot be read from JSON"),
    ],
)
def test_a_type_that_json_has_no_values_of_is_an_error_of_the_schema(kind: DataType, reason: str) -> None:
    with pytest.raises(BadRequestError, match=reason):
        check_json_schema(StructType([StructField("c", kind)]))


TEXTS = StructType([StructField("a", StringType()), StructField("m", MapType(StringType(), StringType()))])


@pytest.mark.parametrize("schema", [TEXTS, StructType(TEXTS.fields[:1])], ids=["with a map", "without"])
@pytest.mark.parametrize("value", [b'{"a": "caf\xe9"}', b'{"a": "\xed\xa0\x80"}'], ids=["Latin-1", "a surrogate"])
def test_text_that_is_not_utf_8_cannot_be_decoded(value: bytes, schema: StructType) -> None:
    with_corrupt = StructType([*schema.fields, StructField(CORRUPT, BinaryType())])
    rows = decode([b'{"a": "x"}', value, b'{"a": "y"}'], with_corrupt)
    assert [(row["a"], row[CORRUPT]) for row in rows] == [("x", None), (None, value), ("y", None)]


def test_text_in_a_map_that_is_not_utf_8_cannot_be_decoded() -> None:
    value = b'{"a": "x", "m": {"k": "caf\xe9"}}'
    rows = decode([value], StructType([*TEXTS.fields, StructField(CORRUPT, BinaryType())]))
    assert [(row["a"], row[CORRUPT]) for row in rows] == [(None, value)]


DEEP = b'{"m": {"x": 1}, "deep": ' + b"[" * 5000 + b"]" * 5000 + b"}"


@pytest.mark.parametrize(
    "value", [b'{"m": {"\xff": 1}}', b'{"\xff": 0, "m": {"x": 1}}', DEEP], ids=["key", "field", "deep"]
)
def test_an_event_that_is_no_json_ends_no_query_that_reads_maps(value: bytes) -> None:
    schema = StructType([StructField("m", COUNTS)])
    rows = decode([b'{"m": {"a": 1}}', value, b'{"m": {"b": 2}}'], schema)
    assert [rows[0], rows[2]] == [{"m": {"a": 1}}, {"m": {"b": 2}}]
    assert rows[1]["m"] in (None, {"x": 1})


WRITTEN = StructType(
    [
        StructField("text", StringType()),
        StructField("number", DoubleType()),
        StructField("raw", BinaryType()),
        StructField("money", DecimalType(12, 2)),
        StructField("day", DateType()),
        StructField("counts", COUNTS),
        StructField("times", ArrayType(TimestampType())),
        StructField("inner", StructType([StructField("day", DateType()), StructField("of", IntegerType())])),
        StructField("days", MapType(StringType(), ArrayType(DateType()))),
    ]
)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


DAYS = st.dates(datetime.date(1970, 1, 1), datetime.date(2200, 1, 1))
LATER = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(UTC))
ROWS = st.fixed_dictionaries(
    {
        "text": optional(st.text(max_size=8)),
        "number": optional(st.floats(allow_nan=False, allow_infinity=False)),
        "raw": optional(st.binary(max_size=8)),
        "money": optional(st.decimals(-(10**9), 10**9, places=2)),
        "day": optional(DAYS),
        "counts": optional(
            st.dictionaries(st.text(max_size=4), optional(st.integers(-(2**63), 2**63 - 1)), max_size=3)
        ),
        "times": optional(st.lists(optional(LATER), max_size=3)),
        "inner": optional(st.fixed_dictionaries({"day": optional(DAYS), "of": optional(st.integers(0, 9))})),
        "days": optional(st.dictionaries(st.text(max_size=4), optional(st.lists(DAYS, max_size=2)), max_size=2)),
    }
)


@given(st.lists(ROWS, min_size=1, max_size=6))
def test_what_the_sink_writes_is_read_as_it_was(rows: list[dict[str, Any]]) -> None:
    wanted = to_arrow_schema(WRITTEN, timezone="UTC")
    lists = [
        {
            name: list(value.items()) if isinstance(value, dict) and name != "inner" else value
            for name, value in row.items()
        }
        for row in rows
    ]
    batch = pa.RecordBatch.from_pylist(lists, wanted)
    options = parse_options({"controller": "tcp://here:1", "stream": "a/b", "valueFormat": "json"}, streaming=False)
    events = [event for _, some in EventEncoder(options).groups(batch) for event in some]
    assert decode(events, WRITTEN, fail_fast=True) == batch.to_pylist(maps_as_pydicts="strict") == rows
