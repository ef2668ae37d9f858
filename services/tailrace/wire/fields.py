"""The kinds of fields that commands are made of (docs/protocol/wire.md#frames, docs/protocol/wire.md#commands).

A command declares its fields with the ``Annotated`` aliases at the end of this module; the codec reads the layout from
them. All lengths and counts are checked against the bytes that are there before anything is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, ProtocolError
from tailrace.wire.tables import NO_VERSION, TableEntry, TableKey
from tailrace.wire.text import decode_text, encode_text

Buffer: TypeAlias = bytes | bytearray | memoryview

_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_U16: Final = struct.Struct(">H")
_UUID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class AttributeCondition:
    """An attribute update that travels with a merge (docs/protocol/wire.md#segment-commands).

    ``kind`` is 1 (replace) or 4 (replace if the value equals ``old_value``).
    """

    attribute_id: bytes
    kind: int
    new_value: int
    old_value: int


@dataclass(frozen=True, slots=True)
class MergedSource:
    """A source of a batch merge and the target's length after it (docs/protocol/wire.md#segment-commands)."""

    source: str
    new_target_write_offset: int


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """A chunk of a segment as the admin command lists it (docs/protocol/wire.md#admin-commands)."""

    length_in_metadata: int
    length_in_storage: int
    start_offset: int
    chunk_name: str
    exists_in_storage: bool


@dataclass(slots=True)
class MeasuredRate:
    """An item of `SegmentRates`: the rates of one segment, in thousandths of an event or kilobyte per second."""

    name: str
    segment_id: int
    scale_type: int
    target_rate: int
    age_ms: int
    rates: list[int]


class Field(Protocol):
    """One kind of field: how it is written, and how it is read from ``view[position:end]``.

    `decode` returns the value and the position after it; it raises ProtocolError when the bytes do not hold one.
    An optional field counts as missing when fewer than ``min_bytes`` are left.
    """

    min_bytes: int

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        """Append the field's bytes to `parts`."""
        ...

    def decode(self, view: memoryview, position: int, end: int) -> tuple[Any, int]:
        """Read the field."""
        ...


def _need(wanted: int, position: int, end: int) -> int:
    """End of a field of `wanted` bytes; ProtocolError when it does not fit."""
    if wanted < 0 or wanted > end - position:
        raise ProtocolError(f"a field of {wanted} bytes is cut off or negative, {end - position} bytes are left")
    return position + wanted


def _count(view: memoryview, position: int, end: int, item_min_bytes: int) -> tuple[int, int]:
    """A list's count, checked against the least that its items take."""
    after = _need(4, position, end)
    count: int = _I32.unpack_from(view, position)[0]
    if count > limits.WIRE_LIST_ITEMS_MAX:
        raise ProtocolError(f"a list of {count} items, at most {limits.WIRE_LIST_ITEMS_MAX} are allowed")
    if count < 0 or count * item_min_bytes > end - after:
        raise ProtocolError(f"a list of {count} items does not fit in the {end - after} bytes left")
    return count, after


class IntegerField:
    """A big-endian two's complement integer."""

    def __init__(self, code: str) -> None:
        self.struct = struct.Struct(code)
        self.min_bytes = self.struct.size

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        try:
            parts.append(self.struct.pack(value))
        except struct.error as error:
            raise BadRequestError(f"{value!r} does not fit into {self.struct.size} bytes") from error

    def decode(self, view: memoryview, position: int, end: int) -> tuple[int, int]:
        after = _need(self.struct.size, position, end)
        return self.struct.unpack_from(view, position)[0], after


class FlagField:
    """A byte; anything but 0 is true."""

    min_bytes = 1

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        parts.append(b"\1" if value else b"\0")

    def decode(self, view: memoryview, position: int, end: int) -> tuple[bool, int]:
        after = _need(1, position, end)
        return view[position] != 0, after


class UuidField:
    """Sixteen bytes, upper half first."""

    min_bytes = 16

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        if len(value) != _UUID_BYTES:
            raise BadRequestError(f"an id has {_UUID_BYTES} bytes, not {len(value)}")
        parts.append(value)

    def decode(self, view: memoryview, position: int, end: int) -> tuple[bytes, int]:
        after = _need(_UUID_BYTES, position, end)
        return bytes(view[position:after]), after


class TextField:
    """u16 length and modified UTF-8."""

    min_bytes = 2

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        raw = encode_text(value)
        parts.append(_U16.pack(len(raw)) + raw)

    def decode(self, view: memoryview, position: int, end: int) -> tuple[str, int]:
        start = _need(2, position, end)
        after = _need(_U16.unpack_from(view, position)[0], start, end)
        return decode_text(bytes(view[start:after])), after


class BulkField:
    """i32 length and bytes, read as a view of the payload."""

    min_bytes = 1

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        parts.append(_I32.pack(len(value)))
        parts.append(value)

    def decode(self, view: memoryview, position: int, end: int) -> tuple[Buffer, int]:
        start = _need(4, position, end)
        after = _need(_I32.unpack_from(view, position)[0], start, end)
        return view[start:after], after


class BytesField(BulkField):
    """i32 length and a few bytes, read as a copy (tokens, keys, values)."""

    def decode(self, view: memoryview, position: int, end: int) -> tuple[bytes, int]:
        value, after = super().decode(view, position, end)
        return bytes(value), after


class RestField:
    """All bytes up to the end of the payload, read as a view."""

    min_bytes = 0

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        parts.append(value)

    def decode(self, view: memoryview, position: int, end: int) -> tuple[Buffer, int]:
        return view[position:end], end


class PaddingField:
    """Any number of zero bytes; only the number is kept."""

    min_bytes = 0

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        parts.append(bytes(value))

    def decode(self, view: memoryview, position: int, end: int) -> tuple[int, int]:
        return end - position, end


class EventField(BulkField):
    """An event with its header: i32 0, i32 length, bytes, read as a view of the bytes."""

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        parts.append(b"\0\0\0\0")
        super().encode(value, parts)

    def decode(self, view: memoryview, position: int, end: int) -> tuple[Buffer, int]:
        after = _need(4, position, end)
        if _I32.unpack_from(view, position)[0] != 0:
            raise ProtocolError("a conditional append holds something that is no event")
        return super().decode(view, after, end)


class TableKeyField:
    """i32 total, i32 length, key, i64 version. An empty key has no version (docs/protocol/wire.md#table-commands)."""

    min_bytes = 8

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        length = len(value.key)
        parts.append(_I32.pack(length + 12))
        parts.append(_I32.pack(length))
        if length:
            parts.append(value.key)
            parts.append(_I64.pack(value.version))

    def decode(self, view: memoryview, position: int, end: int) -> tuple[TableKey, int]:
        start = _need(8, position, end)
        length = _I32.unpack_from(view, position + 4)[0]
        if length == 0:
            return TableKey(b"", NO_VERSION), start
        after = _need(length, start, end)
        last = _need(8, after, end)
        return TableKey(bytes(view[start:after]), _I64.unpack_from(view, after)[0]), last


class TableEntryField:
    """A table key, then i32 total, i32 length, value (docs/protocol/wire.md#table-commands)."""

    min_bytes = 16

    _key = TableKeyField()

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        self._key.encode(value, parts)
        length = len(value.value)
        parts.append(_I32.pack(length + 4))
        parts.append(_I32.pack(length))
        parts.append(value.value)

    def decode(self, view: memoryview, position: int, end: int) -> tuple[TableEntry, int]:
        key, position = self._key.decode(view, position, end)
        start = _need(8, position, end)
        after = _need(_I32.unpack_from(view, position + 4)[0], start, end)
        return TableEntry(key.key, bytes(view[start:after]), key.version), after


class RecordField:
    """Fields one after the other, read into a small class with those arguments."""

    def __init__(self, record: type[Any], *members: tuple[str, Field]) -> None:
        self.record = record
        self.members = members
        self.min_bytes = sum(field.min_bytes for _, field in members)

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        for name, field in self.members:
            field.encode(getattr(value, name), parts)

    def decode(self, view: memoryview, position: int, end: int) -> tuple[Any, int]:
        values = []
        for _, field in self.members:
            value, position = field.decode(view, position, end)
            values.append(value)
        return self.record(*values), position


class ListField:
    """i32 count and items of one kind."""

    min_bytes = 4

    def __init__(self, item: Field) -> None:
        self.item = item

    def encode(self, value: Any, parts: list[Buffer]) -> None:
        parts.append(_I32.pack(len(value)))
        for item in value:
            self.item.encode(item, parts)

    def decode(self, view: memoryview, position: int, end: int) -> tuple[list[Any], int]:
        count, position = _count(view, position, end, self.item.min_bytes)
        items = []
        for _ in range(count):
            item, position = self.item.decode(view, position, end)
            items.append(item)
        return items, position


_I8_FIELD: Final = IntegerField(">b")
_I32_FIELD: Final = IntegerField(">i")
_I64_FIELD: Final = IntegerField(">q")
_TEXT_FIELD: Final = TextField()
_UUID_FIELD: Final = UuidField()

I8: TypeAlias = Annotated[int, _I8_FIELD]
I32: TypeAlias = Annotated[int, _I32_FIELD]
I64: TypeAlias = Annotated[int, _I64_FIELD]
Flag: TypeAlias = Annotated[bool, FlagField()]
Uuid: TypeAlias = Annotated[bytes, _UUID_FIELD]
Text: TypeAlias = Annotated[str, _TEXT_FIELD]
Bulk: TypeAlias = Annotated[Buffer, BulkField()]
ShortBytes: TypeAlias = Annotated[bytes, BytesField()]
Rest: TypeAlias = Annotated[Buffer, RestField()]
PaddingLength: TypeAlias = Annotated[int, PaddingField()]
Event: TypeAlias = Annotated[Buffer, EventField()]
I64List: TypeAlias = Annotated[list[int], ListField(_I64_FIELD)]
TextList: TypeAlias = Annotated[list[str], ListField(_TEXT_FIELD)]
TableKeys: TypeAlias = Annotated[list[TableKey], ListField(TableKeyField())]
TableEntries: TypeAlias = Annotated[list[TableEntry], ListField(TableEntryField())]
AttributeConditions: TypeAlias = Annotated[
    list[AttributeCondition],
    ListField(
        RecordField(
            AttributeCondition,
            ("attribute_id", _UUID_FIELD),
            ("kind", _I8_FIELD),
            ("new_value", _I64_FIELD),
            ("old_value", _I64_FIELD),
        ),
    ),
]
MergedSources: TypeAlias = Annotated[
    list[MergedSource],
    ListField(
        RecordField(MergedSource, ("source", _TEXT_FIELD), ("new_target_write_offset", _I64_FIELD)),
    ),
]
ChunkInfos: TypeAlias = Annotated[
    list[ChunkInfo],
    ListField(
        RecordField(
            ChunkInfo,
            ("length_in_metadata", _I64_FIELD),
            ("length_in_storage", _I64_FIELD),
            ("start_offset", _I64_FIELD),
            ("chunk_name", _TEXT_FIELD),
            ("exists_in_storage", FlagField()),
        ),
    ),
]
MeasuredRates: TypeAlias = Annotated[
    list[MeasuredRate],
    ListField(
        RecordField(
            MeasuredRate,
            ("name", _TEXT_FIELD),
            ("segment_id", _I64_FIELD),
            ("scale_type", _I8_FIELD),
            ("target_rate", _I32_FIELD),
            ("age_ms", _I64_FIELD),
            ("rates", ListField(_I64_FIELD)),
        ),
    ),
]
