"""Which segments the storage writer flushes next, and when."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.segmentstore.metadata.segment import Segment


class FlushQueue:
    """Collects segments with un-tiered bytes or dirty attributes.

    Commits fill the queue and the storage writer empties it, so neither needs to know the other.
    """

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._flush_now = False
        self._segments: dict[int, Segment] = {}

    def appended(self, segment: Segment) -> None:
        """Add a segment that has new un-tiered bytes or dirty attributes."""
        if segment.segment_id not in self._segments:
            self._segments[segment.segment_id] = segment
        if segment.flush_deadline == math.inf:
            segment.flush_deadline = asyncio.get_running_loop().time() + limits.FLUSH_INTERVAL_S
        if (
            segment.pending.length_bytes >= limits.FLUSH_THRESHOLD_BYTES
            or len(segment.pending) >= limits.FLUSH_PENDING_APPENDS_MAX
        ):
            self._wake.set()

    def flush_now(self) -> None:
        """Ask for a flush of every segment, because the cache or the log's disk has no room."""
        self._flush_now = True
        self._wake.set()

    @property
    def must_flush_now(self) -> bool:
        """Whether `flush_now` was called since the last `take_flush_now`."""
        return self._flush_now

    def take_flush_now(self) -> bool:
        """Return whether `flush_now` was called since the last call."""
        flush_now, self._flush_now = self._flush_now, False
        return flush_now

    def due(self, live: Mapping[int, Segment], *, flush_now: bool) -> list[Segment]:
        """Return the segments to flush; forget those that `live` no longer holds."""
        now_s = asyncio.get_running_loop().time()
        due = []
        for segment_id, segment in list(self._segments.items()):
            if live.get(segment_id) is not segment:
                del self._segments[segment_id]  # deleted, or merged: its bytes belong to the target now
                continue
            if segment.flushing:
                continue
            if (
                segment.pending.length_bytes >= limits.FLUSH_THRESHOLD_BYTES
                or len(segment.pending) >= limits.FLUSH_PENDING_APPENDS_MAX
                or (segment.pending and (flush_now or segment.flush_deadline <= now_s))
                or attributes_due(segment, now_s)
            ):
                due.append(segment)
        return due

    def flushed(self, segment: Segment) -> None:
        """Set the segment's next deadline; forget it when Tier 2 holds all of it."""
        deadline_s = asyncio.get_running_loop().time() + limits.FLUSH_INTERVAL_S
        segment.flush_deadline = deadline_s if segment.pending else math.inf
        if not segment.pending and not segment.dirty:
            self._segments.pop(segment.segment_id, None)

    async def wait(self) -> None:
        """Wait for a signal, at most ``limits.FLUSH_TICK_S``."""
        self._wake.clear()
        try:
            async with asyncio.timeout(limits.FLUSH_TICK_S):
                await self._wake.wait()
        except TimeoutError:
            return


def attributes_due(segment: Segment, now_s: float) -> bool:
    """Return whether enough attributes are dirty for a flush of the attribute index; a damaged one has to wait."""
    if segment.damage is not None and segment.damage.retry_at_s > now_s:
        return False
    count = len(segment.dirty)
    return count >= limits.FLUSH_ATTRIBUTES_THRESHOLD or (
        count >= limits.FLUSH_ATTRIBUTES_AGED_THRESHOLD and segment.flush_deadline <= now_s
    )
