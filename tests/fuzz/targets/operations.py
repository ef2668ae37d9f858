"""Payloads of the log's frames: records joined to operations, which are applied to a container's state."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.operation_log import BEGIN, END, RECORD, WHOLE, Assembler
from targets.checkpoints import SEQUENCE, a_state

DOCUMENTED = (CorruptionError, FormatVersionError)


def run(data: bytes) -> None:
    state = a_state()
    for placed in Assembler().feed(0, memoryview(data), "fuzz"):
        state.apply(placed.sequence, placed.operation, "fuzz")


def seeds() -> Iterator[bytes]:
    first, other = ChunkRef("c3/a", 70, 0, 8), ChunkRef("c3/z", 70, 0, 8)
    operations: list[ops.ControlOperation] = [
        ops.Recovered(3, SEQUENCE + 1),
        ops.Create(20, "scope/new", SegmentKind.STREAM, 0, 1000, [(bytes(range(16)), 7)]),
        ops.UpdateAttributes(2, [(b"short", 7), (bytes(range(16)), -(2**63))]),
        ops.Truncate(2, 4),
        ops.Seal(2, 1000),
        ops.Merge(2, 3, 12, 0, 1000, []),
        ops.Delete(3),
        ops.AddChunks([(2, ChunkRef("c3/n", 70, 12, 3))], ["c3/orphan"]),
        ops.CommitIndex(2, ops.IndexRoot(50, 50, 0, 100, 50, 9), [ChunkRef("c3/j", 70, 50, 50)]),
        ops.ObjectsDeleted(["c3/orphan"]),
        ops.SwapChunks(2, [first], [other]),
        ops.SweepBarrier(2, 1),
        ops.MoveChunks([ops.ChunkMove(2, first, other)]),
        ops.Checkpoint(SEQUENCE, checkpoint.encode(a_state())),
    ]
    for operation in operations:
        yield _record(operation.TYPE, WHOLE, operation.encode())
    append = ops.append_header(2, 12, 4, 5, [(bytes(range(16)), 7), (b"short", 8)]) + b"data"
    yield _record(ops.OperationType.APPEND, WHOLE, append)
    yield _record(ops.OperationType.APPEND, BEGIN, append[:20]) + _record(ops.OperationType.APPEND, END, append[20:])


def _record(kind: ops.OperationType, flags: int, body: bytes) -> bytes:
    return RECORD.pack(kind, flags, 0, len(body), SEQUENCE + 1) + body
