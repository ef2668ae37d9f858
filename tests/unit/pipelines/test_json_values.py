"""Events decoded from JSON: each becomes one row, whatever is in the others (docs/spark.md#json)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.source.decoded import CORRUPT
from tailrace.pipelines.source.json_values import JsonDecoder

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


def decode(values: list[bytes], *, fail_fast: bool = False) -> list[dict[str, Any]]:
    decoder = JsonDecoder(SCHEMA, fail_fast=fail_fast)
    batches = decoder.decode(values, list(range(len(values))), "segment")
    return [row for decoded in batches for row in decoded.rows.to_pylist()]


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
