"""What the flush queue looks at: a container has thousands of segments, and most wait with a few attributes alone."""

from __future__ import annotations

from tailrace.common import limits
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.background.flush_queue import FlushQueue
from tailrace.segmentstore.metadata.segment import Segment

SEGMENTS = 100
WRITER = bytes(16)


class Counted(dict[int, Segment]):
    """The live segments, which counts how many are looked up."""

    looks = 0

    def get(self, key: int, default: object = None) -> object:  # type: ignore[override]
        self.looks += 1
        return super().get(key)


def with_attribute(number: int) -> Segment:
    segment = Segment(number, f"scope/stream/{number}.#epoch.0", SegmentKind.STREAM, 0, 0)
    segment.set_attributes(number, [(WRITER, 1)])
    return segment


async def test_what_is_due_is_found_among_segments_with_bytes_alone() -> None:
    queue, live = FlushQueue(), Counted()
    for number in range(1, SEGMENTS + 1):
        live[number] = segment = with_attribute(number)
        if number > SEGMENTS - 2:
            segment.pending.add(0, 10, 1, 1)
        queue.appended(segment)
    gone, kept = live[SEGMENTS - 1], live[SEGMENTS]
    assert queue.due(live, flush_now=True) == [gone, kept]
    assert live.looks == 2
    del live[SEGMENTS - 1]
    assert queue.due(live, flush_now=True) == [kept]
    assert queue.pending_segments == 1
    kept.pending.remove_first(1)
    assert queue.due(live, flush_now=True) == []
    assert queue.pending_segments == 0
    assert queue.due_attributes(live, SEGMENTS) == list(live.values()), "they still wait with their attributes"


async def test_a_segment_that_was_truncated_waits_again_with_its_next_bytes() -> None:
    queue, segment = FlushQueue(), Segment(1, "scope/stream/0.#epoch.0", SegmentKind.STREAM, 0, 0)
    segment.pending.add(0, 10, 1, 1)
    queue.appended(segment)
    segment.pending.remove_first(1)
    assert queue.due({1: segment}, flush_now=True) == []
    segment.pending.add(10, limits.FLUSH_THRESHOLD_BYTES, 1, 1)
    queue.appended(segment)
    assert queue.due({1: segment}, flush_now=False) == [segment]
