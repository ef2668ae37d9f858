"""Options of the sink, and rows of Arrow as events."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, DoubleType, LongType, StringType, StructField, StructType

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.pipelines.sink.event_values import EventEncoder, check_columns
from tailrace.pipelines.sink.options import SinkOptions, Unresolved, parse_options

GIVEN = {"controller": "tcp://c:9090", "stream": "s/t"}


def options(**given: str) -> SinkOptions:
    return parse_options(GIVEN | given, streaming=False)


def test_defaults() -> None:
    parsed = parse_options(GIVEN | {"checkpointLocation": "x", "path": ""}, streaming=True)
    assert (parsed.controller, str(parsed.stream), parsed.value) == ("tcp://c:9090", "s/t", "value")
    assert (parsed.is_json, parsed.exactly_once, parsed.unresolved) == (False, True, Unresolved.FAIL)
    assert parsed.lease_ms == limits.TRANSACTION_LEASE_MAX_MS


def test_each_option_is_read() -> None:
    parsed = options(value="v", routingKey="k", leaseSeconds="30", unresolved="rewrite", query="nightly", batch="0")
    assert (parsed.value, parsed.routing_key, parsed.lease_ms) == ("v", "k", 30_000)
    assert (parsed.unresolved, parsed.query, parsed.batch) == (Unresolved.REWRITE, "nightly", 0)
    assert not options(delivery="atLeastOnce").exactly_once
    assert options(valueFormat="JSON").is_json


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stream": ""}, "the option stream is missing"),
        ({"rountingKey": "k"}, "there is no option rountingkey"),
        ({"leaseSeconds": "5"}, "not between 10 and 600"),
        ({"unresolved": "maybe"}, "none of fail, keep, rewrite"),
        ({"query": "q"}, "belong together"),
        ({"batch": "1"}, "belong together"),
        ({"query": "q", "batch": "-1"}, "not a number of at least 0"),
        ({"query": "q", "batch": "1", "delivery": "atLeastOnce"}, "no use"),
        ({"query": "q" * 300, "batch": "1"}, "at most 256 characters"),
        ({"valueFormat": "json", "value": "v"}, "all columns are written"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        options(**given)


def test_a_streaming_query_has_its_own_batches() -> None:
    with pytest.raises(BadRequestError, match="options of tables"):
        parse_options(GIVEN | {"query": "q", "batch": "1"}, streaming=True)


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        ({"a": StringType()}, {}, "no column value; they have a"),
        ({"value": LongType()}, {}, "column value is of type bigint, not binary or string"),
        (
            {"value": BinaryType(), "k": DoubleType()},
            {"routingKey": "k"},
            "column k is of type double, not string or byte",
        ),
        ({"a": LongType()}, {"valueFormat": "json", "routingKey": "k"}, "no column k"),
    ],
)
def test_unfit_columns_are_named(columns: dict[str, DataType], given: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        check_columns(StructType([StructField(*each) for each in columns.items()]), options(**given))


def test_events_of_a_key_stay_in_order() -> None:
    batch = pa.record_batch({"k": ["a", "b", "a", "b", "a"], "value": ["1", "2", "3", "4", "5"]})
    assert list(EventEncoder(options(routingKey="k")).groups(batch)) == [
        ("a", [b"1", b"3", b"5"]),
        ("b", [b"2", b"4"]),
    ]


def test_an_integer_is_a_key_as_its_decimal_text() -> None:
    check_columns(StructType([StructField("k", LongType())]), options(valueFormat="json", routingKey="k"))
    batch = pa.record_batch({"k": pa.array([-5, 2**40, -5], pa.int64())})
    assert list(EventEncoder(options(valueFormat="json", routingKey="k")).groups(batch)) == [
        ("-5", [b'{"k":-5}', b'{"k":-5}']),
        ("1099511627776", [b'{"k":1099511627776}']),
    ]


def test_events_come_in_blocks_of_a_bounded_size() -> None:
    values = [bytes([each]) * (limits.SPARK_WRITE_BYTES // 3) for each in range(10)]
    groups = list(EventEncoder(options()).groups(pa.record_batch({"value": values})))
    assert [event for _, block in groups for event in block] == values
    assert all(key is None and sum(map(len, block)) <= limits.SPARK_WRITE_BYTES for key, block in groups)
    large = pa.record_batch({"value": [b"x" * (3 * limits.SPARK_WRITE_BYTES), b"y"]})
    assert [len(block) for _, block in EventEncoder(options()).groups(large)] == [1, 1]


def test_rows_as_json() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    batch = pa.record_batch(
        {
            "n": [1, None],
            "at": pa.array([moment, moment], pa.timestamp("us", "UTC")),
            "price": [Decimal("1.50"), Decimal("2.00")],
            "raw": [b"\x00\xff", b""],
            "tags": pa.array([{"a": 1}, {}], pa.map_(pa.string(), pa.int64())),
        }
    )
    ((_, events),) = EventEncoder(options(valueFormat="json")).groups(batch)
    assert [json.loads(each) for each in events] == [
        {"n": 1, "at": "2026-01-02T03:04:05Z", "price": "1.50", "raw": "AP8=", "tags": {"a": 1}},
        {"at": "2026-01-02T03:04:05Z", "price": "2.00", "raw": "", "tags": {}},
    ]


@pytest.mark.parametrize("column", ["value", "k"])
def test_a_null_value_or_key_is_an_error(column: str) -> None:
    batch = pa.record_batch({"value": ["1", "2"], "k": ["a", "b"]} | {column: ["x", None]})
    with pytest.raises(BadRequestError, match=f"column {column} is null in 1 of 2 rows"):
        list(EventEncoder(options(routingKey="k")).groups(batch))


@pytest.mark.parametrize("given", [{}, {"valueFormat": "json"}])
def test_a_column_that_is_there_twice_is_an_error(given: dict[str, str]) -> None:
    """As after `readings.join(bounds, "sensor")`: which of them has the events is not known."""
    fields = [("value", BinaryType()), ("value", BinaryType()), ("sensor", StringType())]
    schema = StructType([StructField(*field) for field in fields])
    with pytest.raises(BadRequestError, match="2 columns value"):
        check_columns(schema, options(**given))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_times_do_not_depend_on_the_zone_of_the_session(zone: str) -> None:
    """Zones of before 1900 have offsets with seconds, and times at the ends of the calendar leave it in some zone."""
    texts = ["1880-06-01T12:00:00", "9999-12-31T23:59:59", "0001-01-01T00:00:00", "2020-07-01T00:00:00.000001"]
    times = [datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC) for text in texts]
    kind = pa.timestamp("us", zone)
    plain = pa.array(times, pa.timestamp("us", "UTC")).cast(kind)
    nested = pa.array([[{"at": each}] for each in times], pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])))
    nested = nested.cast(pa.list_(pa.struct([("at", kind)])))
    keyed = pa.array([[("k", each)] for each in times], pa.map_(pa.string(), pa.timestamp("us", "UTC")))
    keyed = keyed.cast(pa.map_(pa.string(), kind))
    batch = pa.record_batch({"at": plain, "nested": nested, "keyed": keyed})
    ((_, events),) = EventEncoder(options(valueFormat="json")).groups(batch)
    expected = [text + "Z" for text in texts]
    found = [json.loads(event) for event in events]
    assert [row["at"] for row in found] == expected
    assert [row["nested"][0]["at"] for row in found] == expected
    assert [row["keyed"]["k"] for row in found] == expected


def test_a_time_that_json_cannot_hold_is_named() -> None:
    late = pa.array([2**60], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"n": pa.array([1]), "until": late})
    with pytest.raises(BadRequestError, match="column until has a time that JSON cannot hold"):
        list(EventEncoder(options(valueFormat="json")).groups(batch))
