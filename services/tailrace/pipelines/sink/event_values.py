"""Record batches of Arrow as events and routing keys (docs/spark-sink.md#columns). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, ByteType, IntegerType, LongType, ShortType, StringType

from tailrace.common import limits
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import DataType, StructType

    from tailrace.pipelines.sink.options import SinkOptions

_JSON: Final = msgspec.json.Encoder()
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
"""Types of columns that are routing keys as their decimal text."""


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Check that the rows have the columns of the options, once. Raises BadRequestError for a missing or unfit one."""
    named = schema.fieldNames()
    for name in named if options.is_json else (options.value, options.routing_key):
        if named.count(name) > 1:
            raise BadRequestError(f"the rows have {named.count(name)} columns {name}: rename or drop all but one")
    wanted: list[tuple[str, tuple[type[DataType], ...]]] = []
    if not options.is_json:
        wanted.append((options.value, (BinaryType, StringType)))
    if options.routing_key:
        wanted.append((options.routing_key, (StringType, *_INTEGERS)))
    for name, types in wanted:
        if name not in schema.fieldNames():
            raise BadRequestError(f"the rows have no column {name}; they have {', '.join(schema.fieldNames())}")
        if not isinstance(schema[name].dataType, types):
            allowed = " or ".join(each.typeName() for each in types)
            found = schema[name].dataType.simpleString()
            raise BadRequestError(
                f"column {name} is of type {found}, not {allowed}: convert it with cast() or to_json()"
            )


class EventEncoder:
    """Makes events of rows: the value's bytes, or with `is_json` an object of all columns that are not null."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def groups(self, batch: pa.RecordBatch) -> Iterator[tuple[str | None, list[bytes]]]:
        """Yield routing keys (or None) with their events, in the order of the rows and in blocks of a bounded size.

        Raises:
            BadRequestError: a row has no value, or no key.
        """
        values = self._objects(batch) if self._options.is_json else self._values(batch)
        if not self._options.routing_key:
            yield from ((None, block) for block in _blocks(values))
            return
        events: dict[str, list[bytes]] = {}
        for key, value in zip(_texts(batch, self._options.routing_key), values, strict=True):
            events.setdefault(key, []).append(value)
        for key, some in events.items():
            yield from ((key, block) for block in _blocks(some))

    def _values(self, batch: pa.RecordBatch) -> list[bytes]:
        column = _column(batch, self._options.value)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
        values: list[bytes] = column.to_pylist()
        return values

    def _objects(self, batch: pa.RecordBatch) -> list[bytes]:
        rows = _python_rows(batch)
        return [_JSON.encode({name: value for name, value in row.items() if value is not None}) for row in rows]


def _python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows whose times are in UTC, whatever the session's zone is: JSON has offsets of whole minutes only."""
    fields = [field.with_type(_in_utc(field.type)) for field in batch.schema]
    columns = [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)]
    try:
        rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)).to_pylist(
            maps_as_pydicts="strict"
        )
    except OverflowError as error:
        for field, column in zip(fields, columns, strict=True):
            try:
                column.to_pylist()
            except OverflowError:
                raise BadRequestError(f"column {field.name} has a time that JSON cannot hold: {error}") from error
        raise
    return rows


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type with UTC in place of the zone of each timestamp in it."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _texts(batch: pa.RecordBatch, name: str) -> list[str]:
    texts: list[str] = _column(batch, name).cast(pa.large_string()).to_pylist()
    return texts


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        raise BadRequestError(f"column {name} is null in {column.null_count} of {len(column)} rows: leave them out")
    return column


def _blocks(values: Iterable[bytes]) -> Iterator[list[bytes]]:
    block: list[bytes] = []
    size = 0
    for value in values:
        if block and size + len(value) > limits.SPARK_WRITE_BYTES:
            yield block
            block, size = [], 0
        block.append(value)
        size += len(value)
    if block:
        yield block
