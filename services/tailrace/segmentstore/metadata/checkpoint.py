"""Loads a container's metadata from a checkpoint (docs/design.md#tier-1; docs/formats/operations.md#checkpoint).

A checkpoint holds the state as of an operation, and every attribute value that the attribute index lacks. Replay
applies the later operations to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.segmentstore.metadata import fields
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.checkpoint_encoding import MAGIC, SEGMENT, VERSION, CheckpointEncoding
from tailrace.segmentstore.metadata.coverage import Coverage
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.state import ContainerState, MergedSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.segmentstore.metadata.untiered_room import UntieredRoom


def encode(state: ContainerState) -> bytes:
    """Encode the committed state, as of ``state.committed_sequence``, at once."""
    return CheckpointEncoding(state).body()


def load(state: ContainerState, as_of_sequence: int, body: fields.Buffer, place: str) -> None:
    """Fill an empty state from a checkpoint.

    Raises:
        CorruptionError: the body is damaged. FormatVersionError: it is of a newer format.
    """
    for _ in load_in_steps(state, as_of_sequence, body, place):
        pass


def load_in_steps(state: ContainerState, as_of_sequence: int, body: fields.Buffer, place: str) -> Iterator[None]:
    """Do the same, and yield after some segments: a container has thousands, which take a second. Raises as `load`."""
    try:
        yield from _load(state, as_of_sequence, fields.Reader(body, place), place)
    except ValueError as error:
        raise CorruptionError(place, str(error)) from error


def _load(state: ContainerState, as_of_sequence: int, reader: fields.Reader, place: str) -> Iterator[None]:
    """Fill the state. Raises as `load`, and ValueError when parts contradict each other."""
    state.epoch = _load_header(reader, state.container_id, as_of_sequence, place)
    for number, segment in enumerate(_load_segments(reader, as_of_sequence, state.untiered), 1):
        state.add_segment(segment)
        state.use_objects_of(segment)
        if number % limits.CHECKPOINT_SEGMENTS_PER_TURN == 0:
            yield
    for name, item in _load_merged(reader):
        state.merged[name] = item
        state.moves[item.source_id] = (item.target_id, item.target_offset)
    for key in reader.texts():
        state.pending_deletes[key] = None
    reader.finish()
    for source_id in state.moves:
        state.resolve(source_id)
    state.committed_sequence = as_of_sequence
    state.next_sequence = as_of_sequence + 1


def _load_header(reader: fields.Reader, container_id: int, as_of_sequence: int, place: str) -> int:
    """Read what stands before the segments; return the epoch of the owner."""
    if bytes(reader.take(4)) != MAGIC:
        raise CorruptionError(place, "not a checkpoint")
    reader.version(VERSION)
    found, epoch, sequence = reader.i64(), reader.i64(), reader.i64()
    if found != container_id or sequence != as_of_sequence:
        raise CorruptionError(place, f"checkpoint of container {found} as of {sequence}")
    return epoch


def _load_segments(reader: fields.Reader, sequence: int, untiered: UntieredRoom | None = None) -> Iterator[Segment]:
    for _ in range(reader.u32()):
        yield _load_segment(reader, sequence, untiered)


def segments(container_id: int, as_of_sequence: int, body: fields.Buffer, place: str) -> Iterator[Segment]:
    """Yield the segments of a checkpoint, one at a time: a container has thousands, and a caller needs a few.

    Raises:
        CorruptionError: the body is damaged. FormatVersionError: it is of a newer format.
    """
    reader = fields.Reader(body, place)
    try:
        _load_header(reader, container_id, as_of_sequence, place)
        yield from _load_segments(reader, as_of_sequence)
    except ValueError as error:
        raise CorruptionError(place, str(error)) from error


def pending_deletes(container_id: int, as_of_sequence: int, body: fields.Buffer, place: str) -> list[str]:
    """Return the keys of the objects that wait for deletion in a checkpoint.

    Raises:
        CorruptionError: the body is damaged. FormatVersionError: it is of a newer format.
    """
    reader = fields.Reader(body, place)
    try:
        _load_header(reader, container_id, as_of_sequence, place)
        for _ in _load_segments(reader, as_of_sequence):
            pass  # they stand before
        for _ in _load_merged(reader):
            pass
        keys = reader.texts()
        reader.finish()
    except ValueError as error:
        raise CorruptionError(place, str(error)) from error
    return keys


def _load_merged(reader: fields.Reader) -> Iterator[tuple[str, MergedSource]]:
    for _ in range(reader.u32()):
        yield reader.text(), MergedSource(*(reader.i64() for _ in range(5)))


def _load_segment(reader: fields.Reader, sequence: int, untiered: UntieredRoom | None) -> Segment:
    identifier, flags, key_length, modified, length, start, sealed, name_length = reader.unpack(SEGMENT)
    kind = reader.kind_of(flags)
    segment = Segment(identifier, reader.text_of(name_length), kind, key_length, modified, untiered)
    segment.length, segment.start_offset, segment.sealed = length, start, bool(sealed)
    segment.set_attributes(sequence, reader.attributes())
    segment.index = ops.IndexRoot.read(reader)
    if pages := reader.refs():
        segment.index_pages = Coverage(pages)
    if chunks := reader.refs():
        segment.chunks = Coverage(chunks)
    return segment
