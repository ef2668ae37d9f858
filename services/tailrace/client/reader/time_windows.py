"""Say which times the events of a stream have that a group reads now (docs/client.md#time-windows)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.client.group.watermarks import WATERMARK
from tailrace.client.model import StreamName
from tailrace.client.revisioned import RevisionedStream, open_revisioned
from tailrace.common import limits, names
from tailrace.common.errors import SegmentTruncatedError
from tailrace.common.stream_cut import CutOrder, compare_cuts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.context import ClientContext
    from tailrace.common.ranges import KeyRange
    from tailrace.common.watermarks import Watermark

_END: Final = 2**63 - 1


class TimeWindow(NamedTuple):
    """Between which times the next events of a group are, by the times that the stream's writers note.

    All events with times below ``lower`` have been read; the events that have been read have times up to ``upper``.
    None: not known yet.
    """

    lower: int | None
    upper: int | None


@dataclass(slots=True)
class _Followed:
    """A stream's watermarks: the lower bound of the last one that the group has passed, and those ahead of it."""

    marks: RevisionedStream
    revision: int
    lower: int | None = None
    ahead: deque[Watermark] = field(default_factory=deque)
    read_s: float | None = None


class TimeWindows:
    """Follows the watermarks of streams that a group reads."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._followed: dict[StreamName, _Followed] = {}

    async def window(
        self, stream: StreamName, positions: Mapping[str, int], ranges: Mapping[str, KeyRange | None]
    ) -> TimeWindow:
        """Return the time window at the group's positions; a negative one is the end of a sealed segment.

        Raises:
            NoSuchStreamError: the stream does not exist. UnavailableError, CorruptionError.
        """
        followed = self._followed.get(stream)
        if followed is None:
            followed = self._followed[stream] = await self._follow(stream)
        await self._read(followed)
        position, known = _of_stream(stream, positions, ranges)
        while followed.ahead and is_passed(followed.ahead[0], position, known):
            followed.lower = followed.ahead.popleft().lower
        return TimeWindow(followed.lower, followed.ahead[0].upper if followed.ahead else None)

    async def _follow(self, stream: StreamName) -> _Followed:
        marks = await open_revisioned(self._context, StreamName(stream.scope, names.MARK_PREFIX + stream.stream))
        mark = await marks.mark()
        return _Followed(marks, await marks.oldest() if mark is None else mark)

    async def _read(self, followed: _Followed) -> None:
        """Read what was written since, from time to time, unless half of what a reader keeps lies ahead."""
        now_s = asyncio.get_running_loop().time()
        if 2 * len(followed.ahead) >= limits.WATERMARKS_AHEAD_MAX:
            return
        if followed.read_s is not None and now_s < followed.read_s + limits.WATERMARK_READ_S:
            return
        room = limits.WATERMARKS_AHEAD_MAX - len(followed.ahead)
        try:
            entries = await followed.marks.read_from(followed.revision, room)
        except SegmentTruncatedError as error:
            followed.revision = error.start_offset
            entries = await followed.marks.read_from(followed.revision, room)
        followed.read_s = now_s
        for entry in entries:
            followed.ahead.append(WATERMARK.decode(entry.payload))
            followed.revision = entry.revision


def is_passed(watermark: Watermark, position: Mapping[int, int], ranges: Mapping[int, KeyRange]) -> bool:
    """Return whether a group at a position has read everything that lies before the watermark.

    `ranges` may lack segments where the group began. The watermark's segments are all of an epoch: one that is not
    among them was sealed before that epoch, or follows some of them.
    """
    at = {segment.identifier: offset for segment, offset in watermark.positions.items()}
    known = {**ranges, **{segment.identifier: segment.key_range for segment in watermark.positions}}
    epoch = max(map(names.segment_epoch, at), default=0)
    if any(each not in known and names.segment_epoch(each) <= epoch for each in position):
        return False
    comparable = {each: offset for each, offset in position.items() if each in known}
    return compare_cuts(comparable, at, known) is CutOrder.EQUAL_OR_AFTER


def _of_stream(
    stream: StreamName, positions: Mapping[str, int], ranges: Mapping[str, KeyRange | None]
) -> tuple[dict[int, int], dict[int, KeyRange]]:
    """Return offsets and key ranges of the stream's segments, by id."""
    position, known = {}, {}
    for segment, offset in positions.items():
        name = names.parse_segment_name(segment)
        if (name.scope, name.stream) != stream:
            continue
        position[name.identifier] = _END if offset < 0 else offset
        key_range = ranges.get(segment)
        if key_range is not None:
            known[name.identifier] = key_range
    return position, known
