"""Decode events that are records of Avro, without its file format (docs/spark.md#avro)."""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.source.decoded import OneRowEach, corrupt_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from tailrace.pipelines.source.decoded import Decoded

_NOT_IN_SPARK: Final = frozenset({"uuid", "time-millis", "time-micros", "duration"})
"""Logical types that Spark has no type for: it gets the values that are stored."""
_MARKER: Final = b"\xc3\x01"
"""How a record begins that names its schema (Avro's single-object encoding)."""
_FAILURES: Final = (EOFError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError, struct.error)
"""What decoding raises for bytes that are no such record."""


def parse_avro_schema(text: str) -> dict[str, Any]:
    """Return a schema of records, ready for decoding.

    Raises:
        BadRequestError: it is no JSON, no schema of Avro, or none of a record.
    """
    try:
        parsed = fastavro.parse_schema(_stored(json.loads(text)))
    except (ValueError, TypeError, KeyError, SchemaParseException, UnknownType) as error:
        raise BadRequestError(f"option avroSchema: {_reason(error)}") from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record" or not parsed.get("fields"):
        raise BadRequestError("option avroSchema: it is not that of a record with fields, which events are")
    return parsed


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}" if str(error) else type(error).__name__


def _stored(schema: Any) -> Any:
    """Return a schema without the logical types that Spark does not have."""
    if isinstance(schema, list):
        return [_stored(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _stored(value) for name, value in schema.items() if name != "default"}
    if kept.get("logicalType") in _NOT_IN_SPARK:
        del kept["logicalType"]
    return kept


class AvroDecoder:
    """Decodes events into the columns of a schema: fields are found by name, missing ones are null.

    ``avro_schema``: that of the writers, as `parse_avro_schema` returns it. An event is the record alone, or begins
    with Avro's marker and this schema's fingerprint. ``fail_fast``: an event that is no such record, or whose values do
    not fit the types, is an error; otherwise its columns are null. Raises BadRequestError for a wrong column
    ``_corrupt``.
    """

    def __init__(self, schema: StructType, avro_schema: dict[str, Any], *, fail_fast: bool) -> None:
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        self._corrupt = corrupt_column(self._wanted)
        self._avro_schema = avro_schema
        canonical = to_parsing_canonical_form(avro_schema)
        self._prefix = _MARKER + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
        self._rows = OneRowEach(self._wanted, self._columns, fail_fast=fail_fast)

    def decode(self, values: Sequence[bytes], offsets: Sequence[int], place: str) -> Iterator[Decoded]:
        """See OneRowEach.decode."""
        return self._rows.decode(values, offsets, place)

    def _columns(self, values: Sequence[bytes]) -> pa.Table:
        records = [self._record(value) for value in values]
        try:
            columns = [self._column(records, field) for field in self._wanted]
        except (pa.ArrowTypeError, OverflowError) as error:
            raise pa.ArrowInvalid(str(error)) from error
        return pa.Table.from_arrays(columns, schema=self._wanted)

    def _record(self, value: bytes) -> dict[str, Any]:
        stream = io.BytesIO(value)
        if value.startswith(self._prefix):
            stream.seek(len(self._prefix))
        try:
            record = fastavro.schemaless_reader(stream, self._avro_schema, None)
        except _FAILURES as error:
            raise pa.ArrowInvalid(f"it is no record of the schema ({_reason(error)})") from error
        if stream.tell() != len(value):
            raise pa.ArrowInvalid(f"{len(value) - stream.tell()} bytes follow the record")
        assert isinstance(record, dict)
        return record

    def _column(self, records: Sequence[dict[str, Any]], field: pa.Field) -> pa.Array:
        if field.name == self._corrupt:
            return pa.nulls(len(records), field.type)
        return pa.array([record.get(field.name) for record in records], field.type)
