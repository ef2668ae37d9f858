"""A snapshot of a segment whose appends lie between merges that Tier 2 holds looks at each append once."""

from __future__ import annotations

import pytest

from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.background.snapshot_tail import _gaps
from tailrace.segmentstore.metadata import pending_appends
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.pending_appends import PendingAppend
from tailrace.segmentstore.metadata.segment import Segment

COUNT = 500


def test_gaps_are_not_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of Tier 2 allows thousands; with 2,000 the event loop stood still for 3.7 s."""
    segment = Segment(1, "scope/stream/0.#epoch.0", SegmentKind.STREAM, 0, 0)
    for _ in range(COUNT):
        segment.pending.add(segment.length, 10, 0, 1)
        segment.length += 10
        segment.chunks.add(ChunkRef("c7/x", 0, segment.length, 10))
        segment.length += 10
    looks = 0

    def counted(*columns: int) -> PendingAppend:
        nonlocal looks
        looks += 1
        return PendingAppend(*columns)

    monkeypatch.setattr(pending_appends, "PendingAppend", counted)
    gaps = [(run.start, run.end, len(run.items)) for (run,) in _gaps(segment)]
    assert gaps == [(20 * number, 20 * number + 10, 1) for number in range(COUNT)]
    assert looks <= 2 * COUNT
