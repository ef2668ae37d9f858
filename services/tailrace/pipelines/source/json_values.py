"""Decode events from JSON by Arrow, many at a time (docs/spark.md#json)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

CORRUPT: Final = "_corrupt"
"""The column that gets an event which cannot be decoded, if the schema has it as text or bytes."""
_ZONE: Final = r"(Z|[+-]\d\d:?\d\d)$"
_MIDNIGHT: Final = r"^\d{4}-\d\d-\d\d$"


class JsonDecoder:
    """Decodes events into the columns of a schema: missing fields are null, other fields are left out.

    ``fail_fast``: an event that is no JSON object with values of these types is an error;
    otherwise its columns are null.
    """

    def __init__(self, schema: StructType, *, fail_fast: bool) -> None:
        self._fail_fast = fail_fast
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        self._corrupt = corrupt_column(self._wanted)
        # Arrow reads times of one form only, so they are read as text.
        parsed = pa.schema(
            pa.field(field.name, pa.string() if pa.types.is_temporal(field.type) else field.type)
            for field in self._wanted
            if field.name != self._corrupt
        )
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=parsed, newlines_in_values=True, unexpected_field_behavior="ignore"
        )
        self._parsed = parsed

    def decode(self, values: Sequence[bytes], offsets: Sequence[int], place: str) -> Iterator[pa.RecordBatch]:
        """Yield the events as columns.

        Raises:
            BadRequestError: with ``fail_fast``, names the first event that cannot be decoded by segment and offset.
        """
        tables: list[pa.Table] = []
        self._decode(values, offsets, place, tables)
        yield from pa.concat_tables(tables).combine_chunks().to_batches()

    def _decode(self, values: Sequence[bytes], offsets: Sequence[int], place: str, into: list[pa.Table]) -> None:
        """Decode all at once; where that fails, by halves: then only the events that fail are decoded alone."""
        try:
            into.append(self._columns(values))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if len(values) > 1:
                half = len(values) // 2
                self._decode(values[:half], offsets[:half], place, into)
                self._decode(values[half:], offsets[half:], place, into)
            elif self._fail_fast:
                reason = str(error).splitlines()[0]
                raise BadRequestError(f"{place} at {offsets[0]}: the event cannot be decoded: {reason}") from error
            else:
                into.append(corrupt_row(self._wanted, values[0]))

    def _columns(self, values: Sequence[bytes]) -> pa.Table:
        if not all(map(_is_closed, values)):
            raise pa.ArrowInvalid("the event is no JSON object")
        data = b"\n".join(values)
        read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pyarrow.json.read_json(io.BytesIO(data), read_options=read, parse_options=self._options)
        if table.num_rows != len(values):
            raise pa.ArrowInvalid(f"{len(values)} events have {table.num_rows} JSON objects")
        columns = [self._column(table, field) for field in self._wanted]
        return pa.Table.from_arrays(columns, schema=self._wanted)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        if field.name == self._corrupt:
            return pa.nulls(table.num_rows, field.type)
        column = table.column(field.name)
        return _times(column, field.type) if pa.types.is_temporal(field.type) else column


def corrupt_column(wanted: pa.Schema) -> str:
    """Return the name of the column for events that cannot be decoded; empty: there is none.

    Raises:
        BadRequestError: it is neither text nor bytes.
    """
    if CORRUPT not in wanted.names:
        return ""
    if not _is_text(wanted.field(CORRUPT).type):
        raise BadRequestError(f"the column {CORRUPT} must be string or binary")
    return CORRUPT


def corrupt_row(wanted: pa.Schema, value: bytes) -> pa.Table:
    """Return the row of an event that cannot be decoded: nulls, but for the column that has the event."""
    row: dict[str, object] = dict.fromkeys(wanted.names)
    if CORRUPT in row:
        is_binary = pa.types.is_binary(wanted.field(CORRUPT).type)
        row[CORRUPT] = value if is_binary else value.decode(errors="replace")
    return pa.Table.from_pylist([row], wanted)


def _times(texts: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Return times of texts in ISO 8601; those without a zone are in UTC."""
    if pa.types.is_date(wanted):
        return pc.cast(pc.utf8_slice_codeunits(texts, 0, 10), wanted)
    if not pa.types.is_timestamp(wanted):
        raise pa.ArrowNotImplementedError(f"{wanted} cannot be read from JSON")
    whole = pc.if_else(
        pc.match_substring_regex(texts, _MIDNIGHT), pc.binary_join_element_wise(texts, "00:00:00", " "), texts
    )
    if wanted.tz is None:
        return pc.cast(pc.replace_substring_regex(whole, _ZONE, ""), wanted)
    zoned = pc.if_else(pc.match_substring_regex(whole, _ZONE), whole, pc.binary_join_element_wise(whole, "Z", ""))
    return pc.cast(zoned, wanted)


def _is_closed(value: bytes) -> bool:
    """Return whether an event begins and ends as an object does.

    Then the next event cannot continue one that ends within an object: a brace is not allowed there. So there are never
    fewer objects than events, and when there are as many, each event has one.
    """
    text = value.strip()
    return text.startswith(b"{") and text.endswith(b"}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
