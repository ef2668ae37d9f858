"""Read between two cuts without a reader group, as segment slices in any order (docs/design.md#rooms)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.reader.read_ahead import ReadAhead
from tailrace.client.reader.segment_input import UNLIMITED_OFFSET, SegmentInput
from tailrace.common import limits
from tailrace.common.stream_cut import FUTURE_OFFSET
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import Cut, StreamName


class SegmentSlice(NamedTuple):
    """Bytes ``start`` to ``end`` of a segment; events that begin before ``end`` belong to it."""

    segment: str
    start: int
    end: int


async def slices_between(
    context: ClientContext, stream: StreamName, start: Cut | None = None, end: Cut | None = None
) -> list[SegmentSlice]:
    """Return the slices between two cuts; None is the head, and the present tail. Empty slices are left out.

    Raises:
        NotFoundError, BadRequestError.
    """
    identifiers = await context.controller.segments_between(stream, start, end)
    infos = await gather_bounded(map(stream.segment, identifiers), context.segments.segment_info)
    slices = []
    for identifier, info in zip(identifiers, infos, strict=True):
        first = max(info.start_offset, offset_of_cut(start, identifier, 0))
        last = min(info.length, offset_of_cut(end, identifier, info.length))
        if first < last:
            slices.append(SegmentSlice(info.name, first, last))
    return slices


def offset_of_cut(cut: Cut | None, identifier: int, absent: int) -> int:
    """Return the offset of a cut in a segment: 0 where the cut has not reached it, `absent` if it does not name it.

    See docs/protocol/naming.md#stream-cuts.
    """
    offset = (cut or {}).get(identifier, absent)
    return 0 if offset == FUTURE_OFFSET else offset


class SegmentReader:
    """Read one segment from an offset to another, or without end. Use ``async with``."""

    def __init__(self, context: ClientContext, segment: str, start: int, end: int = UNLIMITED_OFFSET) -> None:
        self._changed = asyncio.Event()
        self._input = SegmentInput(
            context, segment, start, end_offset=end, ahead=ReadAhead(), changed=self._changed.set
        )

    async def __aenter__(self) -> SegmentReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def offset(self) -> int:
        """Return the offset where the next event begins."""
        return self._input.offset

    async def read(self, max_events: int = limits.READER_EVENTS_PER_READ_MAX) -> list[bytes]:
        """Wait for events and return them; empty at the end. Raises SegmentTruncatedError and other segment errors."""
        while not self._input.ended:
            self._changed.clear()
            if self._input.ready:
                events = self._input.take(max_events)
                if events:
                    return events
            else:
                await self._changed.wait()
        return []

    async def close(self) -> None:
        """Stop reading."""
        await self._input.close()


async def read_slice(context: ClientContext, piece: SegmentSlice) -> AsyncIterator[list[bytes]]:
    """Yield the events of a slice, in lists."""
    async with SegmentReader(context, piece.segment, piece.start, piece.end) as reader:
        while events := await reader.read():
            yield events
