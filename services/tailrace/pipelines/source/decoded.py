"""What decoded events become: rows, and a column for events that cannot be decoded (docs/spark.md#json)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CORRUPT: Final = "_corrupt"
"""The column that gets an event which cannot be decoded, if the schema has it as text or bytes."""


class Decoded(NamedTuple):
    """Rows of consecutive events: one of each, or all of a single event."""

    rows: pa.RecordBatch
    first: int
    """Index of the first event among those that were decoded together."""
    events: int


class OneRowEach:
    """Decodes events that become one row each, many at a time.

    ``columns`` returns the rows of some events, with the columns of ``wanted``, or raises pa.ArrowInvalid or
    pa.ArrowNotImplementedError when one of them cannot be decoded.
    ``fail_fast``: such an event is an error; otherwise it is a row of nulls.
    """

    def __init__(self, wanted: pa.Schema, columns: Callable[[Sequence[bytes]], pa.Table], *, fail_fast: bool) -> None:
        self._wanted = wanted
        self._columns = columns
        self._fail_fast = fail_fast

    def decode(self, values: Sequence[bytes], offsets: Sequence[int], place: str) -> Iterator[Decoded]:
        """Yield the events as rows, in order.

        Raises:
            BadRequestError: with ``fail_fast``, names the first event that cannot be decoded by segment and offset.
        """
        tables: list[pa.Table] = []
        self._decode(values, offsets, place, tables)
        del values  # an event may have 8 MiB
        whole, first = tables.pop() if len(tables) == 1 else pa.concat_tables(tables).combine_chunks(), 0
        tables.clear()
        for batch in whole.to_batches():
            yield Decoded(batch, first, batch.num_rows)
            first += batch.num_rows

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
                raise undecodable(place, offsets[0], error) from error
            else:
                into.append(corrupt_row(self._wanted, values[0]))


def combined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a copy of one that is."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def undecodable(place: str, offset: int, error: Exception) -> BadRequestError:
    """Return the error that names an event and why it cannot be decoded."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return BadRequestError(f"{place} at {offset}: the event cannot be decoded: {reason}")


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


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
