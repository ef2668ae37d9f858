"""Decode events from JSON by Arrow, many at a time (docs/spark.md#json)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.pipelines.source.decoded import OneRowEach, corrupt_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from tailrace.pipelines.source.decoded import Decoded

_ZONE: Final = r"(Z|[+-]\d\d:?\d\d)$"
_MIDNIGHT: Final = r"^\d{4}-\d\d-\d\d$"


class JsonDecoder:
    """Decodes events into the columns of a schema: missing fields are null, other fields are left out.

    ``fail_fast``: an event that is no JSON object with values of these types is an error;
    otherwise its columns are null.
    """

    def __init__(self, schema: StructType, *, fail_fast: bool) -> None:
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        self._corrupt = corrupt_column(self._wanted)
        self._rows = OneRowEach(self._wanted, self._columns, fail_fast=fail_fast)
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

    def decode(self, values: Sequence[bytes], offsets: Sequence[int], place: str) -> Iterator[Decoded]:
        """See OneRowEach.decode."""
        return self._rows.decode(values, offsets, place)

    def _columns(self, values: Sequence[bytes]) -> pa.Table:
        if not all(map(_is_closed, values)):
            raise pa.ArrowInvalid("the event is no JSON object")
        data = b"\n".join(values)
        read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pyarrow.json.read_json(pa.BufferReader(data), read_options=read, parse_options=self._options)
        if table.num_rows != len(values):
            raise pa.ArrowInvalid(f"{len(values)} events have {table.num_rows} JSON objects")
        columns = [self._column(table, field) for field in self._wanted]
        return pa.Table.from_arrays(columns, schema=self._wanted)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        if field.name == self._corrupt:
            return pa.nulls(table.num_rows, field.type)
        column = table.column(field.name)
        return _times(column, field.type) if pa.types.is_temporal(field.type) else column


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
