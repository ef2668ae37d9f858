"""Decode events that are streams of Arrow's IPC format, of any number of rows each (docs/spark.md#arrow)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.pipelines.source.decoded import Decoded, corrupt_column, corrupt_row, undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType


class ArrowDecoder:
    """Decodes events into the columns of a schema: missing columns are null, other columns are left out.

    ``fail_fast``: an event that is no such stream, or whose values do not fit the types, is an error; otherwise it is
    one row of nulls. Raises BadRequestError for a wrong column ``_corrupt``.
    """

    def __init__(self, schema: StructType, *, fail_fast: bool) -> None:
        self._fail_fast = fail_fast
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        self._corrupt = corrupt_column(self._wanted)

    def decode(self, values: Sequence[bytes], offsets: Sequence[int], place: str) -> Iterator[Decoded]:
        """Yield the rows of events, in order; one event's at a time.

        Raises:
            BadRequestError: with ``fail_fast``, names the first event that cannot be decoded by segment and offset.
        """
        for index, (value, offset) in enumerate(zip(values, offsets, strict=True)):
            try:
                found = self._rows(value)
            except (pa.ArrowException, OSError) as error:
                if self._fail_fast:
                    raise undecodable(place, offset, error) from error
                found = corrupt_row(self._wanted, value).to_batches()
            yield from (Decoded(batch, index, 1) for batch in found)

    def _rows(self, value: bytes) -> list[pa.RecordBatch]:
        """Return the whole event, so that none is decoded in part."""
        with pyarrow.ipc.open_stream(pa.BufferReader(value)) as stream:
            return [self._columns(batch) for batch in stream if batch.num_rows]

    def _columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        batch.validate(full=True)  # offsets that lead out of a buffer would end the process
        columns = [self._column(batch, field) for field in self._wanted]
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        found = batch.schema.get_all_field_indices(field.name)
        if field.name == self._corrupt or not found:
            return pa.nulls(batch.num_rows, field.type)
        if len(found) > 1:
            raise pa.ArrowInvalid(f"the event has {len(found)} columns {field.name}")
        return pc.cast(batch.column(found[0]), field.type)
