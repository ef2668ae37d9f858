"""Bodies of checkpoints, which frames and snapshots hold behind their checksums."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.missing_bytes import missing_bytes
from tailrace.segmentstore.metadata.state import ContainerState

DOCUMENTED = (CorruptionError, FormatVersionError)
CONTAINER = 3


def a_state() -> ContainerState:
    """A container with a table, a stream's segment in Tier 2, and a segment that was merged into it."""
    state = ContainerState(CONTAINER)
    stream, table, merged = SegmentKind.STREAM, SegmentKind.TABLE, SegmentKind.TRANSIENT
    attributes = [(bytes(range(16)), 7), (b"\x80" + bytes(15), 8)]
    operations: list[ops.Operation] = [
        ops.Recovered(2, 1),
        ops.Create(2, "scope/stream/0.#epoch.0", stream, 0, 1000, attributes),
        ops.Create(3, "scope/table/0", table, 0, 1000, []),
        ops.Create(4, "scope/stream/merged", merged, 0, 1000, []),
        ops.Append(2, 0, 0, attributes, memoryview(b"12345678")),
        ops.Append(4, 0, 0, [], memoryview(b"1234")),
        ops.AddChunks([(2, ChunkRef("c3/a", 70, 0, 8)), (4, ChunkRef("c3/b", 70, 0, 4))], ["c3/orphan"]),
        ops.Merge(2, 4, 8, 4, 1000, []),
        ops.CommitIndex(2, ops.IndexRoot(0, 50, 0, 50, 50, 5), [ChunkRef("c3/i", 70, 0, 50)]),
    ]
    for sequence, operation in enumerate(operations, 1):
        state.apply(sequence, operation)
    return state


SEQUENCE = a_state().committed_sequence


def run(data: bytes) -> None:
    state = ContainerState(CONTAINER)
    checkpoint.load(state, SEQUENCE, data, "fuzz")
    checkpoint.encode(state)  # what was accepted can be written again, and used
    for _ in missing_bytes(state):
        break
    state.reset_staged()


def seeds() -> Iterator[bytes]:
    yield checkpoint.encode(a_state())
    empty = ContainerState(CONTAINER)
    empty.committed_sequence = SEQUENCE
    yield checkpoint.encode(empty)
