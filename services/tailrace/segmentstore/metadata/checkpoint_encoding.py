"""Encodes a container's metadata as of one operation, in steps between which later operations commit. Pure.

See docs/design.md#tier-1, docs/formats/operations.md#checkpoint.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tailrace.common import limits
from tailrace.segmentstore.metadata import fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState

MAGIC: Final = b"TRCP"
VERSION: Final = 1

SEGMENT: Final = struct.Struct(">6qBH")  # id, kind, key length, last change, length, start, sealed, length of the name
_SEGMENT_ITEMS: Final = 4
"""A segment takes as long as so many of its attributes, beside these."""


class _Large(NamedTuple):
    """A segment as of one operation, too large to be encoded at once. Nothing in it changes with the segment."""

    head: bytes
    keys: Sequence[bytes]
    values: Mapping[bytes, int]
    root: bytes
    pages: Sequence[fields.ChunkRef]
    chunks: Sequence[fields.ChunkRef]


class CheckpointEncoding:
    """One checkpoint, of the state when this was made; a context manager, at whose end the state forgets it.

    A segment that changes before it was encoded is copied then: the state calls `before_change`.
    """

    def __init__(self, state: ContainerState) -> None:
        self._state = state
        self.as_of_sequence = state.committed_sequence
        self.pending_deletes = state.pending_deletes.copy()
        """The objects that waited to be deleted, in order."""
        self._epoch = state.epoch
        self._left = state.segments.copy()
        self._changed: dict[int, bytes | _Large] = {}
        self._merged = list(state.merged.items())
        self._writer = fields.Writer()
        self._items = 0
        self._encoded: list[bytes] = []
        self._steps = self._encode()

    def __enter__(self) -> Self:
        """Begin to keep segments as they were when this was made; nothing may have been committed since."""
        self._state.encodings.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Keep nothing any more."""
        self._state.encodings.remove(self)

    def before_change(self, segment: Segment) -> None:
        """Copy the segment, if it is still to be encoded, before an operation changes it."""
        segment_id = segment.segment_id
        if segment_id in self._left and segment_id not in self._changed:
            if _items(segment) <= limits.CHECKPOINT_ITEMS_PER_TURN:
                writer = fields.Writer()
                _encode_small(writer, segment)
                self._changed[segment_id] = writer.done()
            else:
                self._changed[segment_id] = _large(segment)

    def steps(self) -> Iterator[None]:
        """Encode, and yield after each ``limits.CHECKPOINT_ITEMS_PER_TURN``: some milliseconds."""
        return self._steps

    def body(self) -> bytes:
        """Return the checkpoint, encoding what is left of it."""
        for _ in self._steps:
            pass
        return b"".join(self._encoded)

    def _encode(self) -> Iterator[None]:
        """Encode everything; yield after each step."""
        writer = self._writer
        writer.parts.append(MAGIC)
        writer.u8(VERSION)
        writer.i64(self._state.container_id, self._epoch, self.as_of_sequence)
        writer.u32(len(self._left))
        yield from self._encode_segments()
        writer.u32(len(self._merged))
        for name, item in self._merged:
            writer.text(name)
            writer.i64(item.source_id, item.target_id, item.target_offset, item.target_length, item.timestamp_ms)
            if self._is_step(1):
                yield
        writer.u32(len(self.pending_deletes))
        for key in self.pending_deletes:
            writer.text(key)
            if self._is_step(1):
                yield
        self._encoded.append(writer.done())

    def _encode_segments(self) -> Iterator[None]:
        writer, left, changed = self._writer, self._left, self._changed
        for segment_id in tuple(left):
            segment = left.pop(segment_id)
            record, items = changed.pop(segment_id, None), 1
            if isinstance(record, bytes):
                writer.parts.append(record)
            elif record is None and (items := _items(segment)) <= limits.CHECKPOINT_ITEMS_PER_TURN:
                _encode_small(writer, segment)
            else:
                yield from self._encode_large(record or _large(segment))
            if self._is_step(items):
                yield

    def _encode_large(self, segment: _Large) -> Iterator[None]:
        writer, values = self._writer, segment.values
        writer.parts.append(segment.head)
        writer.u32(len(segment.keys))
        for part in _slices(segment.keys):
            writer.attribute_items([(key, values[key]) for key in segment.keys[part]])
            if self._is_step(part.stop - part.start):
                yield
        writer.parts.append(segment.root)
        for refs in (segment.pages, segment.chunks):
            writer.u32(len(refs))
            for part in _slices(refs):
                writer.ref_items(refs[part])
                if self._is_step(part.stop - part.start):
                    yield

    def _is_step(self, items: int) -> bool:
        """Count what was encoded; return whether a step is over."""
        self._items += items
        if self._items < limits.CHECKPOINT_ITEMS_PER_TURN:
            return False
        self._items = 0
        self._encoded.append(self._writer.done())
        self._writer.parts.clear()
        return True


def _slices(items: Sequence[object]) -> Iterator[slice]:
    step = limits.CHECKPOINT_ITEMS_PER_TURN
    return (slice(start, min(start + step, len(items))) for start in range(0, len(items), step))


def _items(segment: Segment) -> int:
    """Return how long the segment takes, in attributes or references."""
    return _SEGMENT_ITEMS + len(segment.core) + len(segment.dirty) + len(segment.index_pages) + len(segment.chunks)


def _head(segment: Segment) -> bytes:
    name = segment.name.encode()
    return (
        SEGMENT.pack(
            segment.segment_id,
            segment.kind,
            segment.key_length,
            segment.last_modified_ms,
            segment.length,
            segment.start_offset,
            segment.sealed,
            len(name),
        )
        + name
    )


def _encode_small(writer: fields.Writer, segment: Segment) -> None:
    committed, dirty = segment.committed, segment.dirty.keys()
    writer.parts.append(_head(segment))
    writer.attributes([*segment.core.items(), *((key, committed[key]) for key in dirty)])
    segment.index.write(writer)
    writer.refs(list(segment.index_pages))
    writer.refs(list(segment.chunks))


def _large(segment: Segment) -> _Large:
    keys = [*segment.core, *segment.dirty.keys()]
    index = fields.Writer()
    segment.index.write(index)
    return _Large(
        _head(segment),
        keys,
        segment.committed.copy(),
        index.done(),
        list(segment.index_pages),
        list(segment.chunks),
    )
