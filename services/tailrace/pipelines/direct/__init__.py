"""Read segments from Tier 2 without a segment store, and without Spark (docs/spark-direct.md)."""

from __future__ import annotations

from tailrace.pipelines.direct.divisions import divisions
from tailrace.pipelines.direct.events import BlockingEvents, DirectEvents, EventBatch
from tailrace.pipelines.direct.references import SegmentReferences, Split, load_references
from tailrace.pipelines.direct.segment_range import SegmentRange, TierTwo
from tailrace.pipelines.direct.store_location import StoreLocation

__all__ = [
    "BlockingEvents",
    "DirectEvents",
    "EventBatch",
    "SegmentRange",
    "SegmentReferences",
    "Split",
    "StoreLocation",
    "TierTwo",
    "divisions",
    "load_references",
]
