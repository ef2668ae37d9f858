"""Reads and writes the big-endian fields of durable records (docs/formats/operations.md). Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.segmentstore.api import SegmentKind

Buffer: TypeAlias = bytes | bytearray | memoryview
Attributes: TypeAlias = Sequence[tuple[bytes, int]]

_REF: Final = struct.Struct(">qqqH")  # data offset in the object, segment offset, length, key length

_ATTRIBUTE_KEY_BYTES: Final = 16
_ATTRIBUTE: Final = struct.Struct(f">H{_ATTRIBUTE_KEY_BYTES}sq")  # key length, key, value; most keys are that long


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """Where a range of a segment lies in Tier 2 (docs/design.md#tier-2).

    ``data_offset`` is the position in the object of the first 64 KiB block of the section that holds the range.
    """

    object_key: str
    data_offset: int
    segment_offset: int
    length: int

    @property
    def end(self) -> int:
        """Segment offset after the last byte."""
        return self.segment_offset + self.length

    def shifted(self, shift: int) -> ChunkRef:
        """Return the reference after a merge moved the bytes `shift` bytes further on."""
        return ChunkRef(self.object_key, self.data_offset, self.segment_offset + shift, self.length)


class Writer:
    """Builds a record body from big-endian fields."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def u8(self, value: int) -> None:
        """An unsigned byte."""
        self.parts.append(value.to_bytes(1, "big"))

    def i64(self, *values: int) -> None:
        """Signed 64-bit integers."""
        self.parts.append(struct.pack(f">{len(values)}q", *values))

    def u32(self, value: int) -> None:
        """An unsigned 32-bit integer."""
        self.parts.append(value.to_bytes(4, "big"))

    def text(self, value: str) -> None:
        """UTF-8 text with a 16-bit length."""
        data = value.encode()
        self.parts.append(len(data).to_bytes(2, "big") + data)

    def attributes(self, values: Attributes) -> None:
        """A 32-bit count, then `attribute_items`."""
        self.u32(len(values))
        self.attribute_items(values)

    def attribute_items(self, values: Attributes) -> None:
        """(16-bit key length, key, i64 value) each."""
        parts, pack = self.parts, _ATTRIBUTE.pack
        for key, value in values:
            length = len(key)
            if length == _ATTRIBUTE_KEY_BYTES:
                parts.append(pack(length, key, value))
            else:
                parts.append(length.to_bytes(2, "big") + key + value.to_bytes(8, "big", signed=True))

    def refs(self, refs: Sequence[ChunkRef]) -> None:
        """A 32-bit count, then `ref_items`."""
        self.u32(len(refs))
        self.ref_items(refs)

    def ref_items(self, refs: Sequence[ChunkRef]) -> None:
        """Chunk references."""
        for ref in refs:
            key = ref.object_key.encode()
            self.parts.append(_REF.pack(ref.data_offset, ref.segment_offset, ref.length, len(key)) + key)

    def texts(self, values: Sequence[str]) -> None:
        """A 32-bit count, then texts."""
        self.parts.append(len(values).to_bytes(4, "big"))
        for value in values:
            self.text(value)

    def done(self) -> bytes:
        """Return the body."""
        return b"".join(self.parts)


class Reader:
    """Reads what `Writer` wrote. Raises CorruptionError, which names `place`, where the record does not hold that."""

    __slots__ = ("_data", "_keys", "_place", "_position")

    def __init__(self, data: Buffer, place: str) -> None:
        self._data = memoryview(data)
        self._keys: dict[bytes, str] = {}  # of objects: segments share them
        self._position = 0
        self._place = place

    def take(self, length: int) -> memoryview:
        """Return the next `length` bytes."""
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise CorruptionError(self._place, f"record ends {end - len(self._data)} bytes early")
        view = self._data[self._position : end]
        self._position = end
        return view

    def rest(self) -> memoryview:
        """Return all bytes that were not read yet."""
        return self.take(len(self._data) - self._position)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The fields of a layout, at once: a checkpoint has thousands of segments."""
        position, end = self._position, self._position + layout.size
        if end > len(self._data):
            self.take(layout.size)  # raises
        self._position = end
        return layout.unpack_from(self._data, position)

    def u8(self) -> int:
        """An unsigned byte."""
        return self.take(1)[0]

    def u16(self) -> int:
        """An unsigned 16-bit integer."""
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        """An unsigned 32-bit integer."""
        return int.from_bytes(self.take(4), "big")

    def i64(self) -> int:
        """A signed 64-bit integer."""
        return int.from_bytes(self.take(8), "big", signed=True)

    def text(self) -> str:
        """UTF-8 text."""
        return self.text_of(self.u16())

    def text_of(self, length: int) -> str:
        """UTF-8 text of so many bytes."""
        return self._decoded(self.take(length), "text")

    def kind(self) -> SegmentKind:
        """The kind of a segment. Flags that this program does not know are kept."""
        return self.kind_of(self.i64())

    def kind_of(self, flags: int) -> SegmentKind:
        """The kind with these flags. Raises CorruptionError for a negative number."""
        if flags < 0:  # SegmentKind would make other flags of it
            raise CorruptionError(self._place, f"segment kind {flags} does not exist")
        return SegmentKind(flags)

    def attributes(self) -> list[tuple[bytes, int]]:
        """Attribute values."""
        found, data = [], self._data
        last = len(data) - _ATTRIBUTE.size
        for _ in range(self.u32()):
            if self._position <= last:
                length, key, value = _ATTRIBUTE.unpack_from(data, self._position)
                if length == _ATTRIBUTE_KEY_BYTES:
                    self._position += _ATTRIBUTE.size
                    found.append((key, value))
                    continue
            found.append((bytes(self.take(self.u16())), self.i64()))
        return found

    def refs(self) -> list[ChunkRef]:
        """Chunk references."""
        result = []
        for _ in range(self.u32()):
            data_offset, segment_offset, length, key_length = self.unpack(_REF)
            data = bytes(self.take(key_length))
            key = self._keys.get(data)
            if key is None:
                key = self._keys[data] = self._decoded(data, "object key")
            result.append(ChunkRef(key, data_offset, segment_offset, length))
        return result

    def only_ref(self) -> ChunkRef:
        """Chunk references, of which there must be one."""
        refs = self.refs()
        if len(refs) != 1:
            raise CorruptionError(self._place, f"{len(refs)} chunk references where one should be")
        return refs[0]

    def texts(self) -> list[str]:
        """Texts."""
        return [self.text() for _ in range(self.u32())]

    def version(self, newest: int) -> int:
        """Read a format version. Raises FormatVersionError when it is above `newest`."""
        version = self.u8()
        if version > newest:
            raise FormatVersionError(f"{self._place}: record version {version}, this program reads up to {newest}")
        return version

    def finish(self) -> None:
        """Raise CorruptionError unless everything was read."""
        if self._position != len(self._data):
            raise CorruptionError(self._place, f"{len(self._data) - self._position} bytes after the record's end")

    def _decoded(self, data: Buffer, what: str) -> str:
        try:
            return bytes(data).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(self._place, f"{what} is not UTF-8") from error
