"""The commit of a flush of merged transactions looks at its own appends, not at all that the target has pending."""

from __future__ import annotations

import pytest

from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.coverage import Coverage
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.state import ContainerState

OWN, SOURCES = 2000, 50


def test_a_flush_of_merged_sources_is_not_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ContainerState(7)

    def apply(operation: ops.Operation) -> None:
        state.apply(state.next_sequence, operation)

    def append(segment_id: int, frame: int) -> None:
        segment = state.segments[segment_id]
        apply(ops.Append(segment_id, segment.length, 0, [], memoryview(b"0123456789")))
        segment.pending.add(segment.length - 10, 10, 0, frame)

    for number in range(1, SOURCES + 2):
        apply(ops.Create(number, f"scope/stream/{number}.#epoch.0", SegmentKind.STREAM, 0, 0, []))
    target = state.segments[1]
    for source in range(2, SOURCES + 2):
        append(source, 1)  # they are uploaded as one object; meanwhile:
    for _ in range(OWN):
        append(1, 2)
    for source in range(2, SOURCES + 2):
        apply(ops.Merge(1, source, target.length, 10, 0, []))

    looks = 0
    covers = Coverage.covers

    def counted(self: Coverage, start: int, end: int) -> bool:
        nonlocal looks
        looks += 1
        return covers(self, start, end)

    monkeypatch.setattr(Coverage, "covers", counted)
    apply(ops.AddChunks([(source, ChunkRef("c7/x", 0, 0, 10)) for source in range(2, SOURCES + 2)]))
    assert len(target.pending) == OWN
    assert target.pending.length_bytes == OWN * 10
    assert looks <= 2 * SOURCES  # were 101,325: some 4 us each, in one turn of the event loop
