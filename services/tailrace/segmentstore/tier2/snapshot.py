"""A container's metadata as an object of Tier 2 (docs/design.md#snapshots; docs/formats/chunks.md). Pure.

A snapshot is a checkpoint plus references to the bytes that were in the log alone at that moment; those are written
beside it as ordinary chunks. So it holds the whole container as of one operation, and names no byte that Tier 2 lacks.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.common.errors import CorruptionError, DataLossError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.missing_bytes import missing_bytes
from tailrace.segmentstore.metadata.state import ContainerState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.segmentstore.metadata.fields import Buffer, ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment

KIND: Final = "s"
"""First letter of keys."""
MAGIC: Final = b"TRSN"
VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sB3x16sqqqqqq")
_NAME: Final = re.compile(r"s(\d{1,9})/([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]+)")


class SnapshotName(NamedTuple):
    """What a key says. Restore takes the greatest one; the epoch counts before the sequence number."""

    epoch: int
    sequence: int
    nonce: str

    def key(self, container: int) -> str:
        """Return the key of the object."""
        return f"{folder(container)}/{self.epoch:016x}-{self.sequence:016x}-{self.nonce}"


def folder(container: int) -> str:
    """Return the prefix of the keys of a container's snapshots."""
    return f"{KIND}{container}"


def parse_key(key: str) -> tuple[int, SnapshotName] | None:
    """Return container and name; None for a key of another form."""
    match = _NAME.fullmatch(key)
    return (int(match[1]), SnapshotName(int(match[2], 16), int(match[3], 16), match[4])) if match else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A container as of operation ``sequence``: ``body`` is a checkpoint, ``tail`` has (segment id, reference).

    ``time_ms`` is when that operation was the last one, in ms since 1970: before ``tail`` was written.
    """

    cluster_id: bytes
    container: int
    epoch: int
    sequence: int
    time_ms: int
    body: Buffer
    tail: Sequence[tuple[int, ChunkRef]]

    def encode(self, key: str) -> list[Buffer]:
        """Return the object's bytes; the key is part of the CRC."""
        tail = ops.AddChunks(self.tail).encode()
        header = _HEADER.pack(
            MAGIC,
            VERSION,
            self.cluster_id,
            self.container,
            self.epoch,
            self.sequence,
            self.time_ms,
            len(self.body),
            len(tail),
        )
        crc = crc32c(tail, crc32c(self.body, crc32c(header, crc32c(key.encode()))))
        return [header, self.body, tail, crc.to_bytes(4, "big")]

    @classmethod
    def decode(cls, key: str, data: Buffer) -> Snapshot:
        """Return the snapshot in an object.

        Raises:
            CorruptionError: it is damaged, or the key does not match; the error names the object.
            FormatVersionError: it is of a newer format.
        """
        place = f"object {key}"
        view = memoryview(data)
        if len(view) < _HEADER.size + 4 or bytes(view[:4]) != MAGIC:
            raise CorruptionError(place, "not a snapshot")
        _, version, cluster, container, epoch, sequence, time_ms, body, tail = _HEADER.unpack_from(view)
        if version > VERSION:
            raise FormatVersionError(f"{place}: snapshot version {version}, this program reads up to {VERSION}")
        if crc32c(view[:-4], crc32c(key.encode())) != int.from_bytes(view[-4:], "big"):
            raise CorruptionError(place, "snapshot CRC32C does not match")
        middle, end = _HEADER.size + body, _HEADER.size + body + tail
        if end + 4 != len(view) or min(body, tail) < 0:
            raise CorruptionError(place, f"has {len(view)} bytes, its parts {end + 4}")
        named = parse_key(key)
        if named is None or (container, epoch, sequence) != (named[0], named[1].epoch, named[1].sequence):
            raise CorruptionError(place, f"holds operation {sequence} of epoch {epoch} of container {container}")
        chunks = ops.decode(ops.OperationType.ADD_CHUNKS, view[middle:end], place)
        assert isinstance(chunks, ops.AddChunks)
        return cls(cluster, container, epoch, sequence, time_ms, view[_HEADER.size : middle], chunks.refs)

    def segments(self, key: str) -> Iterator[Segment]:
        """Yield the segments, one at a time, each with a reference to every byte from its start to its end.

        The segments share nothing, and are no state: attributes that the attribute index holds are not among theirs.

        Raises:
            CorruptionError: the body is damaged; the error names the object. DataLossError: a byte has no reference.
            FormatVersionError: the snapshot is of a newer format.
        """
        for segment, gaps in self.covered_segments(key):
            for start, end in gaps:
                raise DataLossError(f"object {key}: bytes {start} to {end} of segment {segment.name} are not in Tier 2")
            yield segment

    def covered_segments(self, key: str) -> Iterator[tuple[Segment, list[tuple[int, int]]]]:
        """Yield the segments as `segments` does, each with the ranges [start, end) that have no reference: no error.

        Raises:
            CorruptionError, FormatVersionError: see `segments`.
        """
        place = f"object {key}"
        tail: dict[int, list[ChunkRef]] = {}
        for segment_id, ref in self.tail:
            tail.setdefault(segment_id, []).append(ref)
        for segment in checkpoint.segments(self.container, self.sequence, self.body, place):
            try:
                for ref in tail.get(segment.segment_id, ()):
                    segment.chunks.add(ref)
            except ValueError as error:
                raise CorruptionError(place, f"segment {segment.name}: {error}") from error
            yield segment, list(segment.chunks.gaps(segment.start_offset, segment.length))

    def pending_deletes(self, key: str) -> list[str]:
        """Return the keys of the objects that wait for deletion. Raises CorruptionError, FormatVersionError."""
        return checkpoint.pending_deletes(self.container, self.sequence, self.body, f"object {key}")

    def load(self, key: str, *, next_sequence: int = 0, into: ContainerState | None = None) -> ContainerState:
        """Return the container's state, in which every byte has a reference.

        Its next operation has the number `next_sequence` or a later one.

        ``into``: an empty state to fill.

        Raises:
            CorruptionError: the body is damaged; the error names the object. DataLossError: a byte has no reference.
            FormatVersionError: the snapshot is of a newer format.
        """
        place = f"object {key}"
        state = ContainerState(self.container) if into is None else into
        checkpoint.load(state, self.sequence, self.body, place)
        state.apply(max(self.sequence + 1, next_sequence - 1), ops.AddChunks(self.tail), place)
        for segment, start, end in missing_bytes(state):
            raise DataLossError(f"{place}: bytes {start} to {end} of segment {segment.name} are not in Tier 2")
        return state
