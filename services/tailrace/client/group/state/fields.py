"""Encode primitives and versioned frames of the Java client's serialised objects.

See docs/protocol/reader-group-state.md#encodings.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from tailrace.common import names
from tailrace.common.errors import BadRequestError, CorruptionError, FormatVersionError, InvalidNameError, ProtocolError
from tailrace.common.ranges import KeyRange
from tailrace.wire.text import decode_text, encode_text

_PLACE: Final = "a serialised client object"
_U16: Final = struct.Struct(">H")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_U64: Final = struct.Struct(">Q")
_TWO_F64: Final = struct.Struct(">dd")


def corrupt(reason: str) -> CorruptionError:
    """Return the error for invalid bytes; the reader of the segment adds the position."""
    return CorruptionError(_PLACE, reason)


class Input:
    """An input over ``data[position:end]``."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes | memoryview, position: int = 0, end: int | None = None) -> None:
        self.data = memoryview(data)
        self.position = position
        self.end = len(self.data) if end is None else end

    def take(self, count: int) -> memoryview:
        """Read `count` bytes. Raises CorruptionError when there are fewer."""
        after = self.position + count
        if count < 0 or after > self.end:
            raise corrupt(f"{count} bytes expected at {self.position}, {self.end - self.position} remain")
        result = self.data[self.position : after]
        self.position = after
        return result

    def inner(self, count: int) -> Input:
        """Consume the next `count` bytes and return an input over them."""
        start = self.position
        self.take(count)
        return Input(self.data, start, self.position)

    def number(self, form: struct.Struct) -> int:
        """Read one integer of the given form."""
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def byte(self) -> int:
        """Read one unsigned byte."""
        return self.take(1)[0]


class Kind(Protocol):
    """Encode and decode one field."""

    def write(self, out: bytearray, value: Any) -> None:
        """Append the field."""
        ...

    def read(self, source: Input) -> Any:
        """Read the field. Raises CorruptionError, FormatVersionError."""
        ...


class _Number:
    def __init__(self, form: struct.Struct) -> None:
        self.form = form

    def write(self, out: bytearray, value: Any) -> None:
        out += self.form.pack(value)

    def read(self, source: Input) -> int:
        return source.number(self.form)


class _Flag:
    def write(self, out: bytearray, value: Any) -> None:
        out.append(1 if value else 0)

    def read(self, source: Input) -> bool:
        return source.byte() != 0


class _Text:
    def write(self, out: bytearray, value: Any) -> None:
        raw = encode_text(value)
        out += _U16.pack(len(raw))
        out += raw

    def read(self, source: Input) -> str:
        raw = bytes(source.take(source.number(_U16)))
        try:
            return decode_text(raw)
        except ProtocolError as error:
            raise corrupt(str(error)) from error


class _Uuid:
    def write(self, out: bytearray, value: Any) -> None:
        out += value.bytes

    def read(self, source: Input) -> uuid.UUID:
        return uuid.UUID(bytes=bytes(source.take(16)))


class _CompactInt:
    """0xxxxxxx, 10xxxxxx and one more byte, 11xxxxxx and three more."""

    def write(self, out: bytearray, value: Any) -> None:
        if not 0 <= value < 1 << 30:
            raise BadRequestError(f"{value} does not fit a compact integer")
        if value < 0x80:
            out.append(value)
        elif value < 0x4000:
            out += _U16.pack(value | 0x8000)
        else:
            out += _U32.pack(value | 0xC0000000)

    def read(self, source: Input) -> int:
        first = source.byte()
        if first < 0x80:
            return first
        more = 1 if first < 0xC0 else 3
        return (first & 0x3F) << 8 * more | int.from_bytes(source.take(more), "big")


def _write_sized(out: bytearray, value: int, top: int, bits: int) -> None:
    """Write `value` in 1, 2, 4 or 8 bytes; the first has `top` above two size bits and `bits` of the value."""
    for size_code, size in enumerate((1, 2, 4, 8)):
        if 0 <= value < 1 << (bits + 8 * (size - 1)):
            marker = (top << 2 | size_code) << bits
            out += (marker << 8 * (size - 1) | value).to_bytes(size, "big")
            return
    raise BadRequestError(f"{value} does not fit a compact long")


class _CompactLong:
    """Two size bits, then 6, 14, 30 or 62 bits; −1 is stored as the largest value (an ended segment)."""

    _LARGEST: Final = 2**62 - 1

    def write(self, out: bytearray, value: Any) -> None:
        _write_sized(out, self._LARGEST - 1 if value == -1 else value, 0, 6)

    def read(self, source: Input) -> int:
        first = source.byte()
        more = (1 << (first >> 6)) - 1
        value = (first & 0x3F) << 8 * more | int.from_bytes(source.take(more), "big")
        return -1 if value == self._LARGEST - 1 else value


class _CompactSignedLong:
    """A sign bit, two size bits, then 5, 13, 29 or 61 bits; negative x is stored as −x−1."""

    def write(self, out: bytearray, value: Any) -> None:
        _write_sized(out, -value - 1 if value < 0 else value, int(value < 0), 5)

    def read(self, source: Input) -> int:
        first = source.byte()
        more = (1 << (first >> 5 & 3)) - 1
        value = (first & 0x1F) << 8 * more | int.from_bytes(source.take(more), "big")
        return -value - 1 if first & 0x80 else value


class _Segment:
    """A segment's qualified name; other accepted spellings are normalised.

    See docs/protocol/reader-group-state.md#encodings.
    """

    def write(self, out: bytearray, value: Any) -> None:
        TEXT.write(out, value)

    def read(self, source: Input) -> str:
        text: str = TEXT.read(source)
        try:
            return names.parse_segment_name(text).qualified
        except InvalidNameError as error:
            raise corrupt(str(error)) from error


class _Range:
    """Two doubles; a negative one is an unknown range."""

    def write(self, out: bytearray, value: Any) -> None:
        out += _TWO_F64.pack(*(value or (-1.0, -1.0)))

    def read(self, source: Input) -> KeyRange | None:
        low, high = _TWO_F64.unpack(source.take(16))
        return None if low < 0 or high < 0 else KeyRange(low, high)


I32: Final[Kind] = _Number(_I32)
I64: Final[Kind] = _Number(_I64)
FLAG: Final[Kind] = _Flag()
TEXT: Final[Kind] = _Text()
UUID: Final[Kind] = _Uuid()
COMPACT_INT: Final[Kind] = _CompactInt()
COMPACT_LONG: Final[Kind] = _CompactLong()
COMPACT_SIGNED_LONG: Final[Kind] = _CompactSignedLong()
SEGMENT: Final[Kind] = _Segment()
RANGE: Final[Kind] = _Range()


class ListOf:
    """Compact count and items; absent is empty."""

    def __init__(self, item: Kind) -> None:
        self.item = item

    def write(self, out: bytearray, value: Sequence[Any]) -> None:
        COMPACT_INT.write(out, len(value))
        for item in value:
            self.item.write(out, item)

    def read(self, source: Input) -> list[Any]:
        return [self.item.read(source) for _ in range(_checked_count(source))]


class MapOf:
    """Compact count and pairs, in the writer's order; absent is empty."""

    def __init__(self, key: Kind, value: Kind) -> None:
        self.key = key
        self.value = value

    def write(self, out: bytearray, value: Mapping[Any, Any] | None) -> None:
        items = value or {}
        COMPACT_INT.write(out, len(items))
        for key, item in items.items():
            self.key.write(out, key)
            self.value.write(out, item)

    def read(self, source: Input) -> dict[Any, Any]:
        count = _checked_count(source)
        return {self.key.read(source): self.value.read(source) for _ in range(count)}


def _checked_count(source: Input) -> int:
    """Read a count, bounded by the remaining bytes because each item takes at least one."""
    count: int = COMPACT_INT.read(source)
    if count > source.end - source.position:
        raise corrupt(f"a list of {count} items does not fit into {source.end - source.position} bytes")
    return count


class RangedSegment:
    """(segment, range): a map key that carries a segment's key range."""

    def write(self, out: bytearray, value: tuple[str, KeyRange | None]) -> None:
        SEGMENT.write(out, value[0])
        RANGE.write(out, value[1])

    def read(self, source: Input) -> tuple[str, KeyRange | None]:
        return SEGMENT.read(source), RANGE.read(source)


class PlainSegment:
    """The segment of a ranged key without its range, which first revisions write."""

    def write(self, out: bytearray, value: tuple[str, KeyRange | None]) -> None:
        SEGMENT.write(out, value[0])

    def read(self, source: Input) -> tuple[str, KeyRange | None]:
        return SEGMENT.read(source), None


Revision: TypeAlias = tuple[tuple[str, Kind], ...]


@dataclass(frozen=True)
class Layout:
    """Fields of a serialised class: the revisions of each object version, and the version to write.

    Later revisions may repeat a field: the last one is used. With `optional_last`, the last revision is written only
    when it has a value.
    """

    record: type[Any]
    versions: Mapping[int, tuple[Revision, ...]]
    written_version: int = 0
    optional_last: bool = False

    def write_body(self, out: bytearray, value: Any) -> None:
        """Version, revision count, revisions without the format byte.

        See docs/protocol/reader-group-state.md#versioned-framing.
        """
        revisions = self.versions[self.written_version]
        if self.optional_last and not any(getattr(value, name) for name, _ in revisions[-1]):
            revisions = revisions[:-1]
        out += bytes((self.written_version, len(revisions)))
        for number, fields in enumerate(revisions):
            out.append(number)
            start = len(out)
            out += b"\0\0\0\0"
            for name, kind in fields:
                kind.write(out, getattr(value, name))
            _I32.pack_into(out, start, len(out) - start - 4)

    def read_body(self, source: Input) -> Any:
        """Read the object; skip additional revisions and additional bytes inside a revision."""
        version, count = source.byte(), source.byte()
        revisions = self.versions.get(version)
        if revisions is None:
            raise FormatVersionError(f"{self.record.__name__} has unknown version {version}")
        values: dict[str, Any] = {}
        for number in range(count):
            if source.byte() != number:
                raise corrupt(f"revision {number} of {self.record.__name__} is out of order")
            body = source.inner(source.number(_I32))
            for name, kind in revisions[number] if number < len(revisions) else ():
                values[name] = kind.read(body)
        try:
            return self.record(**values)
        except TypeError as error:
            raise corrupt(f"{self.record.__name__} lacks its first revision") from error

    def encode(self, value: Any) -> bytes:
        """The single-type form: format byte and body."""
        out = bytearray(1)
        self.write_body(out, value)
        return bytes(out)

    def decode(self, data: bytes | memoryview) -> Any:
        """Read the single-type form; ignore bytes after it."""
        source = Input(data)
        read_format(source)
        return self.read_body(source)


def read_format(source: Input) -> None:
    """Consume the format byte, which is 0."""
    if (number := source.byte()) != 0:
        raise FormatVersionError(f"serialisation format {number} is unknown")


class Nested:
    """An object in its single-type form behind a compact length; of length 0 when absent."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def write(self, out: bytearray, value: Any) -> None:
        raw = b"" if value is None else self.layout.encode(value)
        COMPACT_INT.write(out, len(raw))
        out += raw

    def read(self, source: Input) -> Any:
        length = COMPACT_INT.read(source)
        return self.layout.decode(source.take(length)) if length else None


class Inlined:
    """An object in its single-type form without a length."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def write(self, out: bytearray, value: Any) -> None:
        out.append(0)
        self.layout.write_body(out, value)

    def read(self, source: Input) -> Any:
        read_format(source)
        return self.layout.read_body(source)
