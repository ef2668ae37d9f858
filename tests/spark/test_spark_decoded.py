"""Events that Spark reads decoded: Avro, Arrow, and where each row comes from (docs/spark.md#avro)."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.ipc
import pytest
from pyspark.errors import PySparkException

from tailrace.client import ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.cli.demo.server import Endpoints
    from tailrace.client import BlockingClient

READING = {
    "type": "record",
    "name": "reading",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "value", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
    ],
}


@pytest.fixture
def stream(client: BlockingClient, scope: str) -> str:
    name = f"{scope}/events"
    client.streams.create_stream(name, StreamConfig(ScalingPolicy.fixed(2)))
    return name


def reader(spark: SparkSession, server: Endpoints, stream: str, **options: str) -> Any:
    found = spark.read.format("tailrace").option("controller", server.controller).option("stream", stream)
    for name, value in options.items():
        found = found.option(name, value)
    return found


def write(client: BlockingClient, stream: str, events: list[bytes]) -> None:
    with client.writer(stream) as writer:
        for number, event in enumerate(events):
            writer.write_event(event, routing_key=str(number))
        writer.flush()


def encoded(record: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(READING), record)
    return data.getvalue()


def test_records_of_avro_are_rows(spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str) -> None:
    records = [
        {"sensor": f"s{number}", "value": number / 2 if number % 3 else None, "at": number, "tags": {"n": number}}
        for number in range(500)
    ]
    write(client, stream, [*map(encoded, records), b"no Avro \xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"])
    options = {"valueFormat": "avro", "avroSchema": json.dumps(READING)}
    table = reader(spark, server, stream, **options).load()
    assert table.schema.simpleString() == "struct<sensor:string,value:double,at:timestamp,tags:map<string,bigint>>"
    rows = [row.asDict() for row in table.where("sensor is not null").collect()]
    found = sorted((row | {"at": round(row["at"].timestamp() * 1e6)} for row in rows), key=lambda row: row["at"])
    assert found == records
    assert table.count() == len(records) + 1
    chosen = reader(spark, server, stream, **options).schema("sensor string, _corrupt binary, _stream string").load()
    (bad,) = chosen.where("_corrupt is not null").collect()
    assert bytes(bad["_corrupt"]).startswith(b"no Avro")
    assert {row["_stream"] for row in chosen.collect()} == {"events"}
    with pytest.raises(PySparkException, match=r"events/\d.* at \d+: the event cannot be decoded: it is no record"):
        reader(spark, server, stream, **options, mode="failfast").load().collect()


@pytest.mark.parametrize(
    ("options", "schema", "words"),
    [
        ({"valueFormat": "avro"}, "", "option avroSchema: JSONDecodeError"),
        ({"valueFormat": "avro"}, "a bigint", "valueFormat=avro and the option avroSchema need each other"),
        ({"valueFormat": "avro", "avroSchema": "{"}, "a bigint", "option avroSchema: JSONDecodeError"),
        ({"avroSchema": "{}"}, "", "valueFormat=avro and the option avroSchema need each other"),
        ({"valueFormat": "json"}, "_offset string", "column _offset says where an event is: its type is bigint"),
        ({"valueFormat": "json"}, "_offset bigint", "the schema has places alone"),
    ],
)
def test_what_cannot_be_read_so_is_an_error_of_the_driver(
    spark: SparkSession, server: Endpoints, stream: str, options: dict[str, str], schema: str, words: str
) -> None:
    asked = reader(spark, server, stream, **options)
    with pytest.raises(PySparkException, match=words):
        (asked.schema(schema) if schema else asked).load().collect()


def test_objects_of_json_have_their_places(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    write(client, stream, [json.dumps({"n": number, "filler": "x" * (number % 50)}).encode() for number in range(300)])
    schema = "_epoch int, n bigint, _offset bigint, _segment int, _scope string"
    rows = reader(spark, server, stream, valueFormat="json").schema(schema).load().collect()
    decoded = {(row["_segment"], row["_offset"]): (row["n"], row["_epoch"], row["_scope"]) for row in rows}
    raw = {
        (row["segment"], row["offset"]): (json.loads(bytes(row["value"]))["n"], row["epoch"], row["scope"])
        for row in reader(spark, server, stream).load().collect()
    }
    assert decoded == raw
    assert len(raw) == 300


def test_events_in_the_format_of_arrow_are_rows(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    table = pa.table({"n": list(range(50)), "name": [f"row {number}" for number in range(50)]})
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=20)
    with client.writer(stream) as events:
        events.write_event(bytes(sink.getvalue()), routing_key="a")
        events.write_event(b"no Arrow", routing_key="b")
        events.flush()
    schema = "n bigint, _offset bigint, name string, _corrupt binary"
    rows = reader(spark, server, stream, valueFormat="arrow").schema(schema).load().collect()
    good = sorted((row["n"], row["name"]) for row in rows if row["_corrupt"] is None)
    assert good == [(number, f"row {number}") for number in range(50)]
    assert [bytes(row["_corrupt"]) for row in rows if row["_corrupt"] is not None] == [b"no Arrow"]
    places = {row["_offset"] for row in rows if row["_corrupt"] is None}
    assert len(places) == 1, "all rows of one event"
