"""Decode events from JSON by Arrow, many at a time (docs/spark.md#json)."""

from __future__ import annotations

import base64
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    AnsiIntervalType,
    ArrayType,
    CalendarIntervalType,
    MapType,
    StringType,
    StructType,
    TimeType,
    VariantType,
)

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.source.decoded import OneRowEach, combined, corrupt_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized

    from pyspark.sql.types import DataType

    from tailrace.pipelines.source.decoded import Decoded

T = TypeVar("T")
_ZONE: Final = r"(Z|[+-]\d\d:?\d\d)$"
_DATE: Final = r"^\d{4}-\d\d-\d\d$"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])


def check_json_schema(schema: StructType) -> None:
    """Check that JSON has values of all these types. Raises BadRequestError for a column that it has none of."""
    for field in schema:
        if (unfit := _unfit(field.dataType)) is not None:
            hint = ": keys of JSON are text" if isinstance(unfit, MapType) else ""
            raise BadRequestError(f"column {field.name}: {unfit.simpleString()} cannot be read from JSON{hint}")


def _unfit(kind: DataType) -> DataType | None:
    """Return the first type within a type that JSON has no values of; None: there is none."""
    inner: tuple[DataType, ...] = ()
    match kind:
        case StructType():
            inner = tuple(field.dataType for field in kind)
        case ArrayType():
            inner = (kind.elementType,)
        case MapType():
            if not isinstance(kind.keyType, StringType):
                return kind
            inner = (kind.valueType,)
        case AnsiIntervalType() | CalendarIntervalType() | TimeType() | VariantType():
            return kind
    return next((found for each in inner if (found := _unfit(each)) is not None), None)


class JsonDecoder:
    """Decodes events into the columns of a schema: missing fields are null, other fields are left out.

    ``fail_fast``: an event that is no JSON object with values of these types is an error;
    otherwise its columns are null. The schema passed `check_json_schema`.
    """

    def __init__(self, schema: StructType, *, fail_fast: bool) -> None:
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        self._corrupt = corrupt_column(self._wanted)
        self._rows = OneRowEach(self._wanted, self._columns, fail_fast=fail_fast)
        fields = [field for field in self._wanted if field.name != self._corrupt]
        self._maps = {field.name for field in fields if _has_map(field.type)}
        self._options = _parse_options(field for field in fields if field.name not in self._maps)

    def decode(self, values: Sequence[bytes], offsets: Sequence[int], place: str) -> Iterator[Decoded]:
        """See OneRowEach.decode."""
        return self._rows.decode(values, offsets, place)

    def _columns(self, values: Sequence[bytes]) -> pa.Table:
        if not all(map(_is_closed, values)):
            raise pa.ArrowInvalid("the event is no JSON object")
        table = _read(values, self._options)
        objects = [_parsed(_OBJECT, value) for value in values] if self._maps else []
        columns = [self._column(table, objects, field) for field in self._wanted]
        return pa.Table.from_arrays(columns, schema=self._wanted)

    def _column(self, table: pa.Table, objects: Sequence[Mapping[str, msgspec.Raw]], field: pa.Field) -> pa.Array:
        if field.name == self._corrupt:
            return pa.nulls(table.num_rows, field.type)
        if field.name in self._maps:
            return _with_maps([each.get(field.name) for each in objects], field.type)
        return _finished(combined(table.column(field.name)), field.type)


def _parse_options(fields: Iterable[pa.Field]) -> pyarrow.json.ParseOptions:
    return pyarrow.json.ParseOptions(
        explicit_schema=pa.schema([pa.field(field.name, _read_as(field.type)) for field in fields]),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )


def _read(objects: Sequence[bytes], options: pyarrow.json.ParseOptions) -> pa.Table:
    """Return the columns of objects, a row each. Raises pa.ArrowInvalid."""
    data = b"\n".join(objects)
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    table = pyarrow.json.read_json(pa.BufferReader(data), read_options=read, parse_options=options)
    if table.num_rows != len(objects):
        raise pa.ArrowInvalid(f"{len(objects)} events have {table.num_rows} JSON objects")
    table.validate(full=True)  # Arrow's reader takes text that is not UTF-8, on which later readers fail
    return table


# -- what Arrow reads as something else


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Return the type that Arrow is to read: text for bytes, and for times, of which it reads one form only."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_read_as(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    return pa.string() if pa.types.is_temporal(kind) or pa.types.is_binary(kind) else kind


def _finished(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return what was read as `_read_as` says as the wanted type. Raises pa.ArrowInvalid."""
    if column.type == wanted:
        return column
    if pa.types.is_struct(wanted):
        inner = [_finished(column.field(index), field.type) for index, field in enumerate(wanted)]
        return pa.StructArray.from_arrays(inner, fields=list(wanted), mask=column.is_null())
    if pa.types.is_list(wanted):
        values = _finished(column.flatten(), wanted.value_type)
        return _lists(column, pc.fill_null(pc.list_value_length(column), 0), values, wanted)
    return _binary(column) if pa.types.is_binary(wanted) else _times(column, wanted)


def _lists(column: pa.Array, lengths: pa.Array, values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return lists of these lengths; null where the column is."""
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(pc.cumulative_sum(lengths), pa.int32())])
    return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=column.is_null())


def _binary(texts: pa.Array) -> pa.Array:
    """Return the bytes of texts in Base64."""
    try:
        decoded = [None if text is None else base64.b64decode(text, validate=True) for text in texts.to_pylist()]
    except ValueError as error:
        raise pa.ArrowInvalid(f"bytes are text in Base64: {error}") from error
    return pa.array(decoded, pa.binary())


def _times(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return times of texts in ISO 8601; those without a zone are in UTC."""
    try:
        return _usual_times(texts, wanted)
    except pa.ArrowInvalid:
        return _usual_times(_usual(texts), wanted)


def _usual(texts: pa.Array) -> pa.Array:
    """Return times in the form that Arrow reads: upper case, zones with minutes, not more than microseconds."""
    upper = pc.ascii_upper(texts)
    zoned = pc.replace_substring_regex(upper, r"(:\d\d(?:\.\d+)?[+-]\d\d)$", r"\1:00")
    return pc.replace_substring_regex(zoned, r"(\.\d{6})\d+", r"\1")


def _usual_times(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    dates = pc.match_substring_regex(texts, _DATE)
    if pa.types.is_date(wanted):
        if pc.all(dates).as_py() is not False:
            return pc.cast(texts, wanted)
        return pc.cast(_usual_times(texts, pa.timestamp("us", "UTC")), wanted)
    whole = pc.if_else(dates, pc.binary_join_element_wise(texts, "00:00:00", " "), texts)
    if wanted.tz is None:
        return pc.cast(pc.replace_substring_regex(whole, _ZONE, ""), wanted)
    zoned = pc.if_else(pc.match_substring_regex(whole, _ZONE), whole, pc.binary_join_element_wise(whole, "Z", ""))
    return pc.cast(zoned, wanted)


# -- maps, which Arrow does not read: their keys are found here, their values are read by Arrow


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def _with_maps(raw: Sequence[msgspec.Raw | None], wanted: pa.DataType) -> pa.Array:
    """Return values of a type from JSON; None is null. Raises pa.ArrowInvalid."""
    if not _has_map(wanted):
        lines = [b'{"v":%b}' % (b"null" if each is None else bytes(each)) for each in raw]
        field = pa.field("v", wanted)
        if not lines:
            return pa.nulls(0, wanted)
        return _finished(combined(_read(lines, _parse_options([field])).column("v")), wanted)
    known = [None if each is None or bytes(each).strip() == b"null" else each for each in raw]
    missing = pa.array([each is None for each in known], pa.bool_())
    if pa.types.is_list(wanted):
        arrays: list[list[msgspec.Raw]] = [[] if each is None else _parsed(_ARRAY, each) for each in known]
        values = _with_maps([item for each in arrays for item in each], wanted.value_type)
        return pa.ListArray.from_arrays(_offsets(arrays), values, type=wanted, mask=missing)
    objects: list[dict[str, msgspec.Raw]] = [{} if each is None else _parsed(_OBJECT, each) for each in known]
    if pa.types.is_struct(wanted):
        inner = [_with_maps([each.get(field.name) for each in objects], field.type) for field in wanted]
        return pa.StructArray.from_arrays(inner, fields=list(wanted), mask=missing)
    keys = pa.array([key for each in objects for key in each], pa.string())
    items = _with_maps([item for each in objects for item in each.values()], wanted.item_type)
    return pa.MapArray.from_arrays(_offsets(objects), keys, items, type=wanted, mask=missing)


def _offsets(groups: Sequence[Sized]) -> pa.Array:
    return pa.array(accumulate(map(len, groups), initial=0), pa.int32())


def _parsed(decoder: msgspec.json.Decoder[T], value: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise pa.ArrowInvalid(str(error)) from error


def _is_closed(value: bytes) -> bool:
    """Return whether an event begins and ends as an object does.

    Then the next event cannot continue one that ends within an object: a brace is not allowed there. So there are never
    fewer objects than events, and when there are as many, each event has one.
    """
    text = value.strip()
    return text.startswith(b"{") and text.endswith(b"}")
