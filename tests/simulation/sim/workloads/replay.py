"""Replay must come to the state that the commits came to, or the two part for good."""

from __future__ import annotations

from typing import Any

from sim.violations import require
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.state import ContainerState


def _view(segment: Segment) -> dict[str, Any]:
    return {
        "name": segment.name,
        "length": segment.length,
        "start": segment.start_offset,
        "sealed": segment.sealed,
        "core attributes": segment.core,
        "chunks": list(segment.chunks),
        "index": segment.index,
        "index pages": list(segment.index_pages),
        "appends that are not in Tier 2": [(item.offset, item.length, item.crc) for item in segment.pending],
    }


def check_replayed(before: ContainerState, after: ContainerState) -> None:
    """Compare the state of an owner that ended with that of the next one, if the latter found nothing newer."""
    if after.committed_sequence != before.committed_sequence + 1:  # its RECOVERED record
        return
    check_same_state(before, after, "replay")


def check_same_state(before: ContainerState, after: ContainerState, who: str) -> None:
    """Compare two states as far as their log and Tier 2 determine them; ``who`` came to the second one."""
    require(sorted(after.segments) == sorted(before.segments), f"{who} came to other segments")
    for segment_id, committed in sorted(before.segments.items()):
        replayed = after.segments[segment_id]
        wanted, found = _view(committed), _view(replayed)
        for what, value in wanted.items():
            require(found[what] == value, f"{committed.name}: {what} {found[what]} after {who}, {value} before")
        for key, value in committed.committed.items():
            if key in committed.dirty:
                kept = key in replayed.dirty and replayed.committed.get(key) == value
                require(kept, f"{committed.name}: attribute {key.hex()} is not {value} after {who}")
    require(after.object_uses == before.object_uses, f"{who} came to other uses of objects")
    require(sorted(after.pending_deletes) == sorted(before.pending_deletes), f"{who} came to other objects to delete")
