"""Events decoded from Avro: each becomes one row, whatever is in the others (docs/spark.md#avro)."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.source.avro_types import columns_of
from tailrace.pipelines.source.avro_values import AvroDecoder, parse_avro_schema
from tailrace.pipelines.source.decoded import CORRUPT

PLAIN = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}
COLUMNS = StructType([StructField("a", LongType()), StructField(CORRUPT, BinaryType())])
EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "everything",
    "namespace": "n.s",
    "fields": [
        {"name": "flag", "type": "boolean", "default": False},
        {"name": "small", "type": ["null", "int"], "default": None},
        {"name": "share", "type": "float"},
        {"name": "exact", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "hash", "type": {"type": "fixed", "name": "hash", "size": 4}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["ON", "OFF"]}},
        {"name": "kinds", "type": {"type": "array", "items": "kind"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "in", "type": {"type": "record", "name": "inner", "fields": [{"name": "x", "type": "double"}]}},
        {"name": "more", "type": ["inner", "null"]},
    ],
}


def encoded(record: dict[str, Any], schema: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


def decode(
    values: list[bytes], schema: dict[str, Any], columns: StructType = COLUMNS, *, fail_fast: bool = False
) -> list[dict[str, Any]]:
    decoder = AvroDecoder(columns, parse_avro_schema(json.dumps(schema)), fail_fast=fail_fast)
    batches = decoder.decode(values, list(range(len(values))), "segment")
    return [row for decoded in batches for row in decoded.rows.to_pylist()]


def test_every_type_that_spark_has() -> None:
    record = {
        "flag": True,
        "small": -3,
        "share": 0.5,
        "exact": Decimal("-12345.67"),
        "day": datetime.date(2026, 11, 26),
        "at": datetime.datetime(2026, 11, 26, 8, 30, tzinfo=datetime.UTC),
        "local": datetime.datetime(2026, 11, 26, 8, 30, 0, 7),
        "id": str(uuid.UUID(int=5)),
        "hash": b"\0\1\2\3",
        "kind": "OFF",
        "kinds": ["ON", "OFF"],
        "counts": {"a": 1},
        "in": {"x": 1.5},
        "more": None,
    }
    columns = columns_of(parse_avro_schema(json.dumps(EVERYTHING)))
    assert columns.simpleString() == (
        "struct<flag:boolean,small:int,share:float,exact:decimal(9,2),day:date,at:timestamp,local:timestamp_ntz,id:string,"
        "hash:binary,kind:string,kinds:array<string>,counts:map<string,bigint>,in:struct<x:double>,more:struct<x:double>>"
    )
    nothing = {**record, "small": None, "more": {"x": 2.5}, "kinds": []}
    rows = decode([encoded(record, EVERYTHING), encoded(nothing, EVERYTHING)], EVERYTHING, columns)
    assert rows == [{**record, "counts": [("a", 1)]}, {**nothing, "counts": [("a", 1)]}]


def test_columns_are_found_by_name() -> None:
    columns = StructType([StructField("b", StringType()), StructField("c", LongType())])
    assert decode([encoded({"a": 1, "b": "x"}, PLAIN)], PLAIN, columns) == [{"b": "x", "c": None}]


def test_an_event_may_name_its_schema() -> None:
    value = encoded({"a": 7, "b": ""}, PLAIN)
    name = bytes.fromhex(fingerprint(to_parsing_canonical_form(PLAIN), "CRC-64-AVRO"))
    assert decode([b"\xc3\x01" + name + value, value], PLAIN) == [{"a": 7, CORRUPT: None}] * 2


def test_what_is_no_such_record_is_one_row_with_all_of_it() -> None:
    good = encoded({"a": 1, "b": "x"}, PLAIN)
    bad = [b"", good[:-1], good + b"!", b"\xff" * 20, b"\x02\x03"]
    rows = decode([good, *bad, good], PLAIN)
    assert [row["a"] for row in rows] == [1, *([None] * len(bad)), 1]
    assert [row[CORRUPT] for row in rows] == [None, *bad, None]


def test_fail_fast_names_the_place_and_the_reason() -> None:
    good = encoded({"a": 1, "b": "x"}, PLAIN)
    with pytest.raises(BadRequestError, match=r"^segment at 1: the event cannot be decoded: 1 bytes follow the record"):
        decode([good, good + b"!"], PLAIN, fail_fast=True)
    with pytest.raises(BadRequestError, match=r"^segment at 0: .* it is no record of the schema \(EOFError"):
        decode([b""], PLAIN, fail_fast=True)


def test_values_that_do_not_fit_the_columns_are_corrupt() -> None:
    columns = StructType([StructField("b", LongType()), StructField(CORRUPT, BinaryType())])
    value = encoded({"a": 1, "b": "x"}, PLAIN)
    assert decode([value], PLAIN, columns) == [{"b": None, CORRUPT: value}]


@pytest.mark.parametrize(
    ("schema", "mistake"),
    [
        ("", "option avroSchema: JSONDecodeError"),
        ('{"type": "record", "name": "r"}', "not that of a record with fields"),
        ('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "wrong"}]}', "avroSchema: UnknownType"),
        ('"long"', "not that of a record with fields"),
        ("[]", "not that of a record with fields"),
    ],
)
def test_a_wrong_schema_is_an_error(schema: str, mistake: str) -> None:
    with pytest.raises(BadRequestError, match=mistake):
        parse_avro_schema(schema)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (["int", "string"], "r.f: it is one of 2 types"),
        (["null", {"type": "array", "items": "r"}], "r.f: a r is part of itself"),
        ("null", "r.f: it is of type null"),
    ],
)
def test_a_field_that_spark_has_no_type_for_is_named(kind: Any, reason: str) -> None:
    fields = [{"name": "r", "type": {"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]}}]
    schema = parse_avro_schema(json.dumps({"type": "record", "name": "top", "fields": fields}))
    with pytest.raises(BadRequestError, match=f"Spark has no type for {reason}; give a schema"):
        columns_of(schema)


@given(st.lists(st.binary(max_size=24), min_size=1, max_size=8))
def test_each_event_is_decoded_like_a_single_one(values: list[bytes]) -> None:
    together = decode(values, PLAIN)
    assert together == [row for value in values for row in decode([value], PLAIN)]
    for value, row in zip(values, together, strict=True):
        assert (row["a"] is None) == (row[CORRUPT] == value)


def test_integers_keep_their_values() -> None:
    numbers = [-(1 << 63), -1, 0, 1, (1 << 63) - 1]
    rows = decode([encoded({"a": number, "b": ""}, PLAIN) for number in numbers], PLAIN)
    assert [row["a"] for row in rows] == numbers
    assert pa.array(numbers).type == pa.int64()
