"""Operations of a container and their form in the log (design §3, §4; docs/formats/operations.md).

The log holds outcomes: absolute offsets, final attribute values, object keys. Replay never evaluates a condition.

A frame's payload is a run of records. A record is a fragment of one operation's body::

    u8 type | u8 flags (1 = begin, 2 = end) | u16 zero | u32 fragment length | i64 operation sequence number | fragment

An operation whose begin has no end when the next owner's RECOVERED record follows was dropped by that recovery;
anywhere else it is corruption.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.segmentstore.api import SegmentKind

Buffer: TypeAlias = bytes | bytearray | memoryview
Attributes: TypeAlias = Sequence[tuple[bytes, int]]

RECORD: Final = struct.Struct(">BBHIq")
BEGIN: Final = 1
END: Final = 2
FORMAT_VERSION: Final = 1

_APPEND: Final = struct.Struct(">BqqIIH")  # version, segment id, offset, data length, data CRC32C, attribute count
_REF: Final = struct.Struct(">qqqH")  # data offset in the object, segment offset, length, key length


class OperationType(enum.IntEnum):
    """Record types."""

    RECOVERED = 1
    CREATE = 2
    APPEND = 3
    UPDATE_ATTRIBUTES = 4
    SEAL = 5
    TRUNCATE = 6
    MERGE = 7
    DELETE = 8
    ADD_CHUNKS = 9
    INDEX = 10
    OBJECTS_DELETED = 11
    CHECKPOINT = 12


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """Where a range of a segment lies in Tier 2 (design §5).

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
        """The same bytes, seen from a segment into which they were merged `shift` bytes further on."""
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
        """A 32-bit count, then (16-bit key length, key, i64 value) each."""
        parts = self.parts
        parts.append(len(values).to_bytes(4, "big"))
        for key, value in values:
            parts.append(len(key).to_bytes(2, "big") + key + value.to_bytes(8, "big", signed=True))

    def refs(self, refs: Sequence[ChunkRef]) -> None:
        """A 32-bit count, then chunk references."""
        self.parts.append(len(refs).to_bytes(4, "big"))
        for ref in refs:
            key = ref.object_key.encode()
            self.parts.append(_REF.pack(ref.data_offset, ref.segment_offset, ref.length, len(key)) + key)

    def texts(self, values: Sequence[str]) -> None:
        """A 32-bit count, then texts."""
        self.parts.append(len(values).to_bytes(4, "big"))
        for value in values:
            self.text(value)

    def done(self) -> bytes:
        """The body."""
        return b"".join(self.parts)


class Reader:
    """Reads what `Writer` wrote; anything short is corruption at `place`."""

    __slots__ = ("_data", "_place", "_position")

    def __init__(self, data: Buffer, place: str) -> None:
        self._data = memoryview(data)
        self._position = 0
        self._place = place

    def take(self, length: int) -> memoryview:
        """The next `length` bytes."""
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise CorruptionError(self._place, f"record ends {end - len(self._data)} bytes early")
        view = self._data[self._position : end]
        self._position = end
        return view

    def rest(self) -> memoryview:
        """Everything that was not read yet."""
        return self.take(len(self._data) - self._position)

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
        try:
            return bytes(self.take(self.u16())).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(self._place, "text is not UTF-8") from error

    def attributes(self) -> list[tuple[bytes, int]]:
        """Attribute values."""
        return [(bytes(self.take(self.u16())), self.i64()) for _ in range(self.u32())]

    def refs(self) -> list[ChunkRef]:
        """Chunk references."""
        result = []
        for _ in range(self.u32()):
            data_offset, segment_offset, length, key_length = _REF.unpack(self.take(_REF.size))
            key = bytes(self.take(key_length)).decode()
            result.append(ChunkRef(key, data_offset, segment_offset, length))
        return result

    def texts(self) -> list[str]:
        """Texts."""
        return [self.text() for _ in range(self.u32())]

    def version(self, newest: int) -> int:
        """A format version, at most `newest`."""
        version = self.u8()
        if version > newest:
            raise FormatVersionError(f"{self._place}: record version {version}, this program reads up to {newest}")
        return version

    def finish(self) -> None:
        """Everything must have been read."""
        if self._position != len(self._data):
            raise CorruptionError(self._place, f"{len(self._data) - self._position} bytes after the record's end")


@dataclass(frozen=True, slots=True)
class Recovered:
    """First operation of an owner: the operation before `next_sequence` was the last one accepted."""

    TYPE: ClassVar = OperationType.RECOVERED
    epoch: int
    next_sequence: int

    def encode(self) -> bytes:
        """The body."""
        return struct.pack(">Bqq", FORMAT_VERSION, self.epoch, self.next_sequence)


@dataclass(frozen=True, slots=True)
class Create:
    """A segment begins; its id is this operation's sequence number."""

    TYPE: ClassVar = OperationType.CREATE
    segment_id: int
    name: str
    kind: SegmentKind
    key_length: int
    timestamp_ms: int
    attributes: Attributes

    def encode(self) -> bytes:
        """The body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.i64(self.segment_id, int(self.kind), self.key_length, self.timestamp_ms)
        writer.text(self.name)
        writer.attributes(self.attributes)
        return writer.done()


@dataclass(frozen=True, slots=True)
class Append:
    """Bytes at an offset, with the final values of the attributes that the append set."""

    TYPE: ClassVar = OperationType.APPEND
    segment_id: int
    offset: int
    crc: int
    attributes: Attributes
    data: memoryview


@dataclass(frozen=True, slots=True)
class UpdateAttributes:
    """Final values of attributes."""

    TYPE: ClassVar = OperationType.UPDATE_ATTRIBUTES
    segment_id: int
    attributes: Attributes

    def encode(self) -> bytes:
        """The body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.i64(self.segment_id)
        writer.attributes(self.attributes)
        return writer.done()


@dataclass(frozen=True, slots=True)
class Seal:
    """The segment takes no more bytes."""

    TYPE: ClassVar = OperationType.SEAL
    segment_id: int
    timestamp_ms: int

    def encode(self) -> bytes:
        """The body."""
        return struct.pack(">Bqq", FORMAT_VERSION, self.segment_id, self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Truncate:
    """The segment begins at `start_offset` from now on."""

    TYPE: ClassVar = OperationType.TRUNCATE
    segment_id: int
    start_offset: int

    def encode(self) -> bytes:
        """The body."""
        return struct.pack(">Bqq", FORMAT_VERSION, self.segment_id, self.start_offset)


@dataclass(frozen=True, slots=True)
class Merge:
    """All bytes of the source, which was never truncated, become the target's bytes at `target_offset`."""

    TYPE: ClassVar = OperationType.MERGE
    target_id: int
    source_id: int
    target_offset: int
    length: int
    timestamp_ms: int
    attributes: Attributes

    def encode(self) -> bytes:
        """The body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.i64(self.target_id, self.source_id, self.target_offset, self.length, self.timestamp_ms)
        writer.attributes(self.attributes)
        return writer.done()


@dataclass(frozen=True, slots=True)
class Delete:
    """The segment is gone."""

    TYPE: ClassVar = OperationType.DELETE
    segment_id: int

    def encode(self) -> bytes:
        """The body."""
        return struct.pack(">Bq", FORMAT_VERSION, self.segment_id)


@dataclass(frozen=True, slots=True)
class AddChunks:
    """Ranges of segments are in Tier 2; `orphans` are objects that the same flush wrote and nothing needs."""

    TYPE: ClassVar = OperationType.ADD_CHUNKS
    refs: Sequence[tuple[int, ChunkRef]]
    orphans: Sequence[str] = ()

    def encode(self) -> bytes:
        """The body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.u32(len(self.refs))
        for identifier, ref in self.refs:
            writer.i64(identifier)
            writer.refs([ref])
        writer.texts(self.orphans)
        return writer.done()


@dataclass(frozen=True, slots=True)
class IndexRoot:
    """State of a segment's attribute index (design §6)."""

    root_offset: int
    root_length: int
    start_offset: int
    length: int
    live_bytes: int
    flushed_through: int

    def write(self, writer: Writer) -> None:
        """Six i64 fields, as declared."""
        writer.i64(
            self.root_offset, self.root_length, self.start_offset, self.length, self.live_bytes, self.flushed_through
        )

    @classmethod
    def read(cls, reader: Reader) -> IndexRoot:
        """What `write` wrote."""
        return cls(*(reader.i64() for _ in range(6)))


EMPTY_INDEX: Final = IndexRoot(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class CommitIndex:
    """New pages, root pointer, head truncation and flushed-through sequence number, all at once (design §6)."""

    TYPE: ClassVar = OperationType.INDEX
    segment_id: int
    root: IndexRoot
    pages: Sequence[ChunkRef]

    def encode(self) -> bytes:
        """The body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.i64(self.segment_id)
        self.root.write(writer)
        writer.refs(self.pages)
        return writer.done()


@dataclass(frozen=True, slots=True)
class ObjectsDeleted:
    """Objects of the pending-delete list that are deleted."""

    TYPE: ClassVar = OperationType.OBJECTS_DELETED
    keys: Sequence[str]

    def encode(self) -> bytes:
        """The body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.texts(self.keys)
        return writer.done()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The container's metadata as of an operation; `body` is for segmentstore.checkpoint."""

    TYPE: ClassVar = OperationType.CHECKPOINT
    as_of_sequence: int
    body: Buffer = field(repr=False)

    def encode(self) -> bytes:
        """The body."""
        return struct.pack(">Bq", FORMAT_VERSION, self.as_of_sequence) + bytes(self.body)


ControlOperation: TypeAlias = (
    Recovered
    | Create
    | UpdateAttributes
    | Seal
    | Truncate
    | Merge
    | Delete
    | AddChunks
    | CommitIndex
    | ObjectsDeleted
    | Checkpoint
)
Operation: TypeAlias = ControlOperation | Append


def append_header(segment_id: int, offset: int, length: int, crc: int, attributes: Attributes) -> bytes:
    """The part of an append's body that comes before its data."""
    head = _APPEND.pack(FORMAT_VERSION, segment_id, offset, length, crc, len(attributes))
    if not attributes:
        return head
    parts = [head]
    for key, value in attributes:
        parts.append(len(key).to_bytes(2, "big") + key + value.to_bytes(8, "big", signed=True))
    return b"".join(parts)


def decode(kind: int, body: Buffer, place: str) -> Operation:
    """An operation from its body.

    Raises:
        CorruptionError: the body is not one; `place` names it. FormatVersionError: it is of a newer format.
    """
    reader = Reader(body, place)
    if kind == OperationType.APPEND:
        return _decode_append(reader)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise FormatVersionError(f"{place}: operation type {kind} is unknown to this program")
    reader.version(FORMAT_VERSION)
    operation = decoder(reader)
    reader.finish()
    return operation


def _decode_append(reader: Reader) -> Append:
    reader.version(FORMAT_VERSION)
    segment_id, offset, length, crc, count = struct.unpack(">qqIIH", reader.take(_APPEND.size - 1))
    attributes = [(bytes(reader.take(reader.u16())), reader.i64()) for _ in range(count)]
    data = reader.take(length)
    reader.finish()
    return Append(segment_id, offset, crc, attributes, data)


def _decode_create(reader: Reader) -> Create:
    identifier, kind, key_length, timestamp = reader.i64(), reader.i64(), reader.i64(), reader.i64()
    return Create(identifier, reader.text(), SegmentKind(kind), key_length, timestamp, reader.attributes())


def _decode_merge(reader: Reader) -> Merge:
    target, source, offset, length, timestamp = (reader.i64() for _ in range(5))
    return Merge(target, source, offset, length, timestamp, reader.attributes())


def _decode_add_chunks(reader: Reader) -> AddChunks:
    refs: list[tuple[int, ChunkRef]] = []
    for _ in range(reader.u32()):
        identifier = reader.i64()
        refs.extend((identifier, ref) for ref in reader.refs())
    return AddChunks(refs, reader.texts())


def _decode_index(reader: Reader) -> CommitIndex:
    identifier = reader.i64()
    return CommitIndex(identifier, IndexRoot.read(reader), reader.refs())


def _decode_checkpoint(reader: Reader) -> Checkpoint:
    as_of = reader.i64()
    return Checkpoint(as_of, reader.rest())


_DECODERS: Final[dict[int, Callable[[Reader], ControlOperation]]] = {
    OperationType.RECOVERED: lambda reader: Recovered(reader.i64(), reader.i64()),
    OperationType.CREATE: _decode_create,
    OperationType.UPDATE_ATTRIBUTES: lambda reader: UpdateAttributes(reader.i64(), reader.attributes()),
    OperationType.SEAL: lambda reader: Seal(reader.i64(), reader.i64()),
    OperationType.TRUNCATE: lambda reader: Truncate(reader.i64(), reader.i64()),
    OperationType.MERGE: _decode_merge,
    OperationType.DELETE: lambda reader: Delete(reader.i64()),
    OperationType.ADD_CHUNKS: _decode_add_chunks,
    OperationType.INDEX: _decode_index,
    OperationType.OBJECTS_DELETED: lambda reader: ObjectsDeleted(reader.texts()),
    OperationType.CHECKPOINT: _decode_checkpoint,
}


@dataclass(frozen=True, slots=True)
class Placed:
    """An operation found in the log: its number, and where its body lies (frame sequence, offset, length)."""

    sequence: int
    operation: Operation
    places: tuple[tuple[int, int, int], ...]


class Assembler:
    """Joins the records of successive frames to operations, and enforces the rule of incomplete ones.

    Fragments before the first begin belong to an operation whose begin was truncated with earlier frames: skipped.
    With `only`, operations of other types are not decoded and not returned.
    """

    def __init__(self, only: OperationType | None = None) -> None:
        self._only = only
        self._parts: list[bytes] = []
        self._places: list[tuple[int, int, int]] = []
        self._type = 0
        self._sequence = -1
        self._begun = False

    def feed(self, frame_sequence: int, payload: memoryview, place: str) -> Iterator[Placed]:
        """Operations that end in this frame."""
        position, end = 0, len(payload)
        while position < end:
            if end - position < RECORD.size:
                raise CorruptionError(place, f"record header at {position} is cut off")
            kind, flags, _, length, sequence = RECORD.unpack_from(payload, position)
            body_start = position + RECORD.size
            position = body_start + length
            if position > end or flags & ~(BEGIN | END):
                raise CorruptionError(place, f"record at {body_start} is damaged")
            where = f"{place} at {body_start}"
            body = payload[body_start:position]
            fragment = (frame_sequence, body_start, length)
            if flags & BEGIN:
                self._begin(kind, where)
            if flags == BEGIN | END:
                if self._only is None or kind == self._only:
                    yield Placed(sequence, decode(kind, body, where), (fragment,))
                continue
            yield from self._fragment(kind, flags, sequence, body, fragment, where)

    def _begin(self, kind: int, place: str) -> None:
        self._begun = True
        if self._sequence >= 0:
            if kind != OperationType.RECOVERED:
                raise CorruptionError(place, f"operation {self._sequence} has no end")
            self._reset()

    def _reset(self) -> None:
        self._sequence = -1
        self._parts = []
        self._places = []

    def _fragment(
        self, kind: int, flags: int, sequence: int, body: memoryview, fragment: tuple[int, int, int], place: str
    ) -> Iterator[Placed]:
        if not self._begun:
            return
        if flags & BEGIN:
            self._type, self._sequence = kind, sequence
        elif sequence != self._sequence or kind != self._type:
            raise CorruptionError(place, f"fragment of operation {sequence} without its begin")
        wanted = self._only is None or kind == self._only
        if wanted:
            self._parts.append(bytes(body))
            self._places.append(fragment)
        if flags & END:
            whole, places = b"".join(self._parts), tuple(self._places)
            self._reset()
            if wanted:
                yield Placed(sequence, decode(kind, whole, place), places)
