"""Which segments the storage writer and the attribute writer flush next, and when."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace.segmentstore.metadata.segment import Segment

_ATTRIBUTE_TICKS = 4  # a look goes through all segments with attributes to flush, and few of them become due by age


class FlushQueue:
    """Collects segments with un-tiered bytes or dirty attributes.

    Commits fill the queue and the two writers empty it, so none needs to know the others.
    """

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._attributes_wake = asyncio.Event()
        self._flush_now = False
        self._segments: dict[int, Segment] = {}
        # Those of them with un-tiered bytes: many segments wait with a few attributes alone.
        self._pending: dict[int, Segment] = {}

    @property
    def pending_segments(self) -> int:
        """Return how many segments have un-tiered bytes, at most: some may be gone since the last look."""
        return len(self._pending)

    def appended(self, segment: Segment) -> None:
        """Add a segment that has new un-tiered bytes or dirty attributes."""
        if segment.segment_id not in self._segments:
            self._segments[segment.segment_id] = segment
        if segment.pending:
            self._pending[segment.segment_id] = segment
        if segment.dirty:
            if segment.attributes_deadline == math.inf:
                segment.attributes_deadline = asyncio.get_running_loop().time() + limits.FLUSH_INTERVAL_S
            if len(segment.dirty) >= _many_attributes(segment) and segment.damage is None:
                self._attributes_wake.set()
        if segment.flush_deadline == math.inf:
            segment.flush_deadline = asyncio.get_running_loop().time() + limits.FLUSH_INTERVAL_S
        if (
            segment.pending.length_bytes >= limits.FLUSH_THRESHOLD_BYTES
            or len(segment.pending) >= limits.FLUSH_PENDING_APPENDS_MAX
        ):
            self._wake.set()

    def flush_now(self) -> None:
        """Ask for a flush of every segment, because the cache, the log's disk or the records have no room."""
        self._flush_now = True
        self._wake.set()
        self._attributes_wake.set()

    @property
    def must_flush_now(self) -> bool:
        """Whether `flush_now` was called since the last `take_flush_now`."""
        return self._flush_now

    def take_flush_now(self) -> bool:
        """Return whether `flush_now` was called since the last call."""
        flush_now, self._flush_now = self._flush_now, False
        return flush_now

    def due(self, live: Mapping[int, Segment], *, flush_now: bool) -> list[Segment]:
        """Return the segments whose bytes are to be flushed; forget those that `live` no longer holds."""
        now_s = asyncio.get_running_loop().time()
        due = []
        for segment in self._live(self._pending, live):
            if not segment.pending:
                self._forget_clean(segment)  # a truncation took them
            elif segment.flushing:
                continue
            elif (
                segment.pending.length_bytes >= limits.FLUSH_THRESHOLD_BYTES
                or len(segment.pending) >= limits.FLUSH_PENDING_APPENDS_MAX
                or flush_now
                or segment.flush_deadline <= now_s
            ):
                due.append(segment)
        return due

    def due_attributes(self, live: Mapping[int, Segment], excess: int) -> list[Segment]:
        """Return the segments whose attribute indexes are to be flushed; forget those that `live` no longer holds.

        Damaged indexes have to wait. ``excess``: how many attributes to flush in any case; if the segments that are due
        have fewer, those with most to write are added.
        """
        now_s = asyncio.get_running_loop().time()
        due, others = [], []
        for segment in self._live(self._segments, live):
            count = len(segment.dirty)
            if not count or (segment.damage is not None and segment.damage.retry_at_s > now_s):
                continue
            if count >= _many_attributes(segment) or (
                count >= limits.FLUSH_ATTRIBUTES_AGED_THRESHOLD and segment.attributes_deadline <= now_s
            ):
                due.append(segment)
                excess -= count
            elif excess > 0:
                others.append(segment)
        others.sort(key=lambda segment: -len(segment.dirty))
        for segment in others:
            if excess <= 0:
                break
            due.append(segment)
            excess -= len(segment.dirty)
        return due

    def _live(self, some: Mapping[int, Segment], live: Mapping[int, Segment]) -> Iterator[Segment]:
        for segment_id, segment in list(some.items()):
            if live.get(segment_id) is segment:
                yield segment
            else:  # deleted, or merged: its bytes belong to the target now
                self._pending.pop(segment_id, None)
                self._segments.pop(segment_id, None)

    def flushed(self, segment: Segment) -> None:
        """Set the segment's next deadline; forget it when Tier 2 holds all of it."""
        deadline_s = asyncio.get_running_loop().time() + limits.FLUSH_INTERVAL_S
        segment.flush_deadline = deadline_s if segment.pending else math.inf
        self._forget_clean(segment)

    def attributes_flushed(self, segment: Segment) -> None:
        """Set the next deadline of the segment's attributes; forget it when Tier 2 holds all of it."""
        deadline_s = asyncio.get_running_loop().time() + limits.FLUSH_INTERVAL_S
        segment.attributes_deadline = deadline_s if segment.dirty else math.inf
        self._forget_clean(segment)

    def _forget_clean(self, segment: Segment) -> None:
        if not segment.pending:
            self._pending.pop(segment.segment_id, None)
            if not segment.dirty:
                self._segments.pop(segment.segment_id, None)

    async def wait(self) -> None:
        """Wait for a signal that bytes are to be flushed, at most ``limits.FLUSH_TICK_S``."""
        await _wait(self._wake, limits.FLUSH_TICK_S)

    async def wait_attributes(self) -> None:
        """Wait for a signal that attributes are to be flushed, at most a few times ``limits.FLUSH_TICK_S``."""
        await _wait(self._attributes_wake, _ATTRIBUTE_TICKS * limits.FLUSH_TICK_S)


def _many_attributes(segment: Segment) -> int:
    """Return how many dirty attributes are flushed at once: more for a larger index, because a flush may rewrite it."""
    worth_it = min(segment.index.live_bytes // limits.FLUSH_BYTES_PER_ATTRIBUTE_MAX, limits.FLUSH_ATTRIBUTES_BATCH_MAX)
    return max(limits.FLUSH_ATTRIBUTES_THRESHOLD, worth_it)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    event.clear()
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
