"""Operations of a container and their form in the log.

See docs/design.md#write-path, docs/design.md#tier-1, docs/formats/operations.md.

The log holds outcomes: absolute offsets, final attribute values, object keys. Replay never evaluates a condition.

`operation_log` says how bodies lie in frames.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.segmentstore.metadata.fields import Attributes, Buffer, ChunkRef, Reader, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.segmentstore.api import SegmentKind

FORMAT_VERSION: Final = 1

_VALUE: Final = struct.Struct(">q")
_USUAL_KEY_BYTES: Final = 16
_ATTRIBUTE: Final = struct.Struct(f">H{_USUAL_KEY_BYTES}sq")  # one with a key of the usual length
_APPEND: Final = struct.Struct(">BqqIIH")  # version, segment id, offset, data length, data CRC32C, attribute count


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
    SWAP_CHUNKS = 13
    SWEEP_BARRIER = 14
    MOVE_CHUNKS = 15


@dataclass(frozen=True, slots=True)
class Recovered:
    """First operation of an owner: the operation before `next_sequence` was the last one accepted."""

    TYPE: ClassVar = OperationType.RECOVERED
    epoch: int
    next_sequence: int

    def encode(self) -> bytes:
        """Return the body."""
        return struct.pack(">Bqq", FORMAT_VERSION, self.epoch, self.next_sequence)


@dataclass(frozen=True, slots=True)
class Create:
    """A segment is created; its id is this operation's sequence number."""

    TYPE: ClassVar = OperationType.CREATE
    segment_id: int
    name: str
    kind: SegmentKind
    key_length: int
    timestamp_ms: int
    attributes: Attributes

    def encode(self) -> bytes:
        """Return the body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.i64(self.segment_id, int(self.kind), self.key_length, self.timestamp_ms)
        writer.text(self.name)
        writer.attributes(self.attributes)
        return writer.done()


class Append(NamedTuple):
    """Bytes at an offset, with the final values of the attributes that the append set."""

    segment_id: int
    offset: int
    crc: int
    attributes: Attributes
    data: memoryview

    @property
    def TYPE(self) -> OperationType:
        """Record type."""
        return OperationType.APPEND


@dataclass(frozen=True, slots=True)
class UpdateAttributes:
    """Final values of attributes."""

    TYPE: ClassVar = OperationType.UPDATE_ATTRIBUTES
    segment_id: int
    attributes: Attributes

    def encode(self) -> bytes:
        """Return the body."""
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
        """Return the body."""
        return struct.pack(">Bqq", FORMAT_VERSION, self.segment_id, self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Truncate:
    """The segment begins at `start_offset`."""

    TYPE: ClassVar = OperationType.TRUNCATE
    segment_id: int
    start_offset: int

    def encode(self) -> bytes:
        """Return the body."""
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
        """Return the body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.i64(self.target_id, self.source_id, self.target_offset, self.length, self.timestamp_ms)
        writer.attributes(self.attributes)
        return writer.done()


@dataclass(frozen=True, slots=True)
class Delete:
    """The segment is deleted."""

    TYPE: ClassVar = OperationType.DELETE
    segment_id: int

    def encode(self) -> bytes:
        """Return the body."""
        return struct.pack(">Bq", FORMAT_VERSION, self.segment_id)


@dataclass(frozen=True, slots=True)
class AddChunks:
    """Ranges of segments are in Tier 2; `orphans` are objects that may exist and that no state will reference."""

    TYPE: ClassVar = OperationType.ADD_CHUNKS
    refs: Sequence[tuple[int, ChunkRef]]
    orphans: Sequence[str] = ()

    def encode(self) -> bytes:
        """Return the body."""
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
    """State of a segment's attribute index (docs/design.md#attributes)."""

    root_offset: int
    root_length: int
    start_offset: int
    length: int
    live_bytes: int
    flushed_through: int

    def write(self, writer: Writer) -> None:
        """Six i64 fields, as declared."""
        writer.parts.append(
            _INDEX_ROOT.pack(
                self.root_offset,
                self.root_length,
                self.start_offset,
                self.length,
                self.live_bytes,
                self.flushed_through,
            )
        )

    @classmethod
    def read(cls, reader: Reader) -> IndexRoot:
        """Read what `write` wrote. The root of an empty index is the same object for all segments."""
        found = reader.unpack(_INDEX_ROOT)
        return cls(*found) if any(found) else EMPTY_INDEX


_INDEX_ROOT: Final = struct.Struct(">6q")
EMPTY_INDEX: Final = IndexRoot(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class CommitIndex:
    """New pages, root pointer, head truncation and flushed-through sequence number, all at once.

    See docs/design.md#attributes.
    """

    TYPE: ClassVar = OperationType.INDEX
    segment_id: int
    root: IndexRoot
    pages: Sequence[ChunkRef]

    def encode(self) -> bytes:
        """Return the body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.i64(self.segment_id)
        self.root.write(writer)
        writer.refs(self.pages)
        return writer.done()


@dataclass(frozen=True, slots=True)
class ObjectsDeleted:
    """Objects of the pending deletes are deleted."""

    TYPE: ClassVar = OperationType.OBJECTS_DELETED
    keys: Sequence[str]

    def encode(self) -> bytes:
        """Return the body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.texts(self.keys)
        return writer.done()


@dataclass(frozen=True, slots=True)
class SwapChunks:
    """The same bytes, rewritten: `new` replaces exactly the references `old`, if the segment still holds all of them.

    Both are sorted and contiguous over one range of the segment. If the segment lacks some of `old`, nothing changes
    and the objects of `new` become pending deletes (docs/design.md#tier-2: a conditional step).
    """

    TYPE: ClassVar = OperationType.SWAP_CHUNKS
    segment_id: int
    old: Sequence[ChunkRef]
    new: Sequence[ChunkRef]

    def encode(self) -> bytes:
        """Return the body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.i64(self.segment_id)
        writer.refs(self.old)
        writer.refs(self.new)
        return writer.done()


class ChunkMove(NamedTuple):
    """One reference to replace: `new` ends where `old` ends, and begins with it or later, where the segment begins."""

    segment_id: int
    old: ChunkRef
    new: ChunkRef


@dataclass(frozen=True, slots=True)
class MoveChunks:
    """What is retained of some objects lies in others: each move applies if its segment still holds `old`.

    The object of a `new` that no move applies becomes a pending delete (docs/design.md#reclamation).
    """

    TYPE: ClassVar = OperationType.MOVE_CHUNKS
    moves: Sequence[ChunkMove]

    def encode(self) -> bytes:
        """Return the body."""
        writer = Writer()
        writer.u8(FORMAT_VERSION)
        writer.u32(len(self.moves))
        for move in self.moves:
            writer.i64(move.segment_id)
            writer.refs([move.old])
            writer.refs([move.new])
        return writer.done()


@dataclass(frozen=True, slots=True)
class SweepBarrier:
    """The owner of `epoch` listed objects after operation `listed_after`, and still owns the log now.

    See docs/design.md#tier-2.
    """

    TYPE: ClassVar = OperationType.SWEEP_BARRIER
    epoch: int
    listed_after: int

    def encode(self) -> bytes:
        """Return the body."""
        return struct.pack(">Bqq", FORMAT_VERSION, self.epoch, self.listed_after)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The container's metadata as of an operation; `checkpoint` reads the body."""

    TYPE: ClassVar = OperationType.CHECKPOINT
    as_of_sequence: int
    body: Buffer = field(repr=False)

    def encode(self) -> bytes:
        """Return the body."""
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
    | SwapChunks
    | SweepBarrier
    | MoveChunks
)
Operation: TypeAlias = ControlOperation | Append


_new_append: Final = tuple.__new__  # half the time that Append(...) takes


def append_body_max(length: int, attribute_count: int) -> int:
    """Return an upper bound of the bytes of an append's body."""
    return _APPEND.size + length + attribute_count * (10 + limits.ATTRIBUTE_KEY_MAX_BYTES)


def append_header(segment_id: int, offset: int, length: int, crc: int, attributes: Attributes) -> bytes:
    """Return the part of an append's body that comes before its data."""
    head = _APPEND.pack(FORMAT_VERSION, segment_id, offset, length, crc, len(attributes))
    if not attributes:
        return head
    parts = [head]
    for key, value in attributes:
        parts.append(len(key).to_bytes(2, "big") + key + value.to_bytes(8, "big", signed=True))
    return b"".join(parts)


def decode(kind: int, body: Buffer, place: str) -> Operation:
    """Decode an operation from its body.

    Raises:
        CorruptionError: the body is damaged; the error names `place`. FormatVersionError: it is of a newer format.
    """
    if kind == OperationType.APPEND:
        view = memoryview(body)
        return decode_append(view, 0, len(view), place)
    reader = Reader(body, place)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise FormatVersionError(f"{place}: operation type {kind} is unknown to this program")
    reader.version(FORMAT_VERSION)
    operation = decoder(reader)
    reader.finish()
    return operation


def decode_append(payload: memoryview, start: int, end: int, place: str) -> Append:
    """Decode an append from payload[start:end] without a `Reader`: recovery time depends on it. Raises as `decode`."""
    try:
        version, segment_id, offset, length, crc, count = _APPEND.unpack_from(payload, start)
        position = start + _APPEND.size
        attributes = []
        for _ in range(count):
            key_length, key, value = _ATTRIBUTE.unpack_from(payload, position)
            if key_length == _USUAL_KEY_BYTES:
                position += _ATTRIBUTE.size
            else:
                key_end = position + 2 + key_length
                key = bytes(payload[position + 2 : key_end])
                (value,) = _VALUE.unpack_from(payload, key_end)
                position = key_end + 8
            attributes.append((key, value))
    except struct.error as error:
        return _decode_odd_append(payload[start:end], place, error)
    if version > FORMAT_VERSION or position + length != end:
        return _decode_odd_append(payload[start:end], place, None)
    return _new_append(Append, (segment_id, offset, crc, attributes, payload[position:end]))


def _decode_odd_append(body: Buffer, place: str, cause: struct.error | None) -> Append:
    """Decode an append with short keys near the end of the payload, or report that it is damaged."""
    view = memoryview(body)
    if not view or view[0] > FORMAT_VERSION:
        Reader(view, place).version(FORMAT_VERSION)
    try:
        _, segment_id, offset, length, crc, count = _APPEND.unpack_from(view)
        position = _APPEND.size
        attributes = []
        for _ in range(count):
            key_end = position + 2 + int.from_bytes(view[position : position + 2], "big")
            (value,) = _VALUE.unpack_from(view, key_end)
            attributes.append((bytes(view[position + 2 : key_end]), value))
            position = key_end + 8
    except struct.error as error:
        raise CorruptionError(place, "record of an append is cut off") from error
    if position + length != len(view):
        raise CorruptionError(place, f"{len(view) - position} bytes where an append has {length}") from cause
    return Append(segment_id, offset, crc, attributes, view[position:])


def _decode_create(reader: Reader) -> Create:
    identifier, kind, key_length, timestamp = reader.i64(), reader.kind(), reader.i64(), reader.i64()
    return Create(identifier, reader.text(), kind, key_length, timestamp, reader.attributes())


def _decode_merge(reader: Reader) -> Merge:
    target, source, offset, length, timestamp = (reader.i64() for _ in range(5))
    return Merge(target, source, offset, length, timestamp, reader.attributes())


def _decode_add_chunks(reader: Reader) -> AddChunks:
    refs: list[tuple[int, ChunkRef]] = []
    for _ in range(reader.u32()):
        identifier = reader.i64()
        refs.extend((identifier, ref) for ref in reader.refs())
    return AddChunks(refs, reader.texts())


def _decode_move_chunks(reader: Reader) -> MoveChunks:
    moves = []
    for _ in range(reader.u32()):
        moves.append(ChunkMove(reader.i64(), reader.only_ref(), reader.only_ref()))
    return MoveChunks(moves)


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
    OperationType.SWAP_CHUNKS: lambda reader: SwapChunks(reader.i64(), reader.refs(), reader.refs()),
    OperationType.SWEEP_BARRIER: lambda reader: SweepBarrier(reader.i64(), reader.i64()),
    OperationType.MOVE_CHUNKS: _decode_move_chunks,
}
