"""Report once what of a stream was truncated before a group read it (docs/client.md#read).

A truncation takes away parts of many segments at once. Their reader would meet each of them alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.client.group.report import info_of, segments_after
from tailrace.client.group.stream_cuts import complete_cuts
from tailrace.client.model import StreamName
from tailrace.common import limits, names
from tailrace.common.errors import NotFoundError, SegmentGoneError, SegmentTruncatedError
from tailrace.common.stream_cut import StreamCut
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.context import ClientContext

_UNREAD: Final = 0


class StreamTruncatedError(SegmentTruncatedError):
    """A stream was truncated past a group's position; ``segment`` is where its reader met it first.

    ``position``: where the group was, by what this reader and the state know. ``head``: where the stream begins.
    ``missed_bytes``: between them, as far as the segments there still exist (``is_complete``).
    """

    def __init__(
        self,
        first: SegmentTruncatedError,
        position: StreamCut,
        head: StreamCut,
        missed_bytes: int,
        *,
        is_complete: bool,
    ) -> None:
        super().__init__(first.segment, first.start_offset, first.read_to)
        self.position = position
        self.head = head
        self.missed_bytes = missed_bytes
        self.is_complete = is_complete
        amount = f"{missed_bytes} bytes" if is_complete else f"at least {missed_bytes} bytes"
        stream = f"{position.scope}/{position.stream}"
        cuts = f"the group was at {_shown(position)}, the stream begins at {_shown(head)}"
        self.args = (f"{first}; of stream {stream} {amount} in all: {cuts}",)


class Truncations:
    """What one reader has reported of its streams: each head once, and each deletion (None) once."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._reported: dict[StreamName, StreamCut | None] = {}

    async def report(self, first: SegmentTruncatedError, positions: Mapping[str, int]) -> SegmentTruncatedError | None:
        """Return the error of the whole stream; None when it was reported.

        ``positions`` are those of the group by segment, before the truncation was met. Raises UnavailableError.
        """
        name = names.parse_segment_name(first.segment)
        stream = StreamName(name.scope, name.stream)
        own = {each: offset for each, offset in positions.items() if each.startswith(f"{stream}/")}
        own[first.segment] = first.read_to or 0
        head = await self._head(stream)
        if stream in self._reported and self._reported[stream] == head and self._is_behind(first, head):
            return None
        if head is None:
            self._reported[stream] = None
            return first
        try:
            position = (await complete_cuts(self._context, own))[str(stream)]
            missed, is_complete = await self._missed(stream, first, position, head)
        except NotFoundError:
            return first  # the stream was deleted meanwhile
        self._reported[stream] = head
        return StreamTruncatedError(first, position, head, missed, is_complete=is_complete)

    async def _head(self, stream: StreamName) -> StreamCut | None:
        """Return where a stream begins; None when it was deleted."""
        try:
            return StreamCut(*stream, await self._context.controller.head_segments(stream))
        except NotFoundError:
            return None

    @staticmethod
    def _is_behind(first: SegmentTruncatedError, head: StreamCut | None) -> bool:
        """Return whether the head, or the deletion, accounts for what a reader met."""
        if head is None:
            return True
        offset = head.positions.get(names.parse_segment_name(first.segment).identifier)
        return offset is None or isinstance(first, SegmentGoneError) or first.start_offset <= offset

    async def _missed(
        self, stream: StreamName, first: SegmentTruncatedError, position: StreamCut, head: StreamCut
    ) -> tuple[int, bool]:
        """Return the bytes between two cuts, and whether all of their segments still exist."""
        ends = {stream.segment(each): offset for each, offset in head.positions.items()}
        if not isinstance(first, SegmentGoneError):
            ends[first.segment] = max(first.start_offset, ends.get(first.segment, 0))
        found = [stream.segment(each) for each in await segments_after(self._context, stream, position.positions, ends)]
        segments = [*dict.fromkeys([first.segment, *found])]
        begins = {stream.segment(each): offset for each, offset in position.positions.items()}
        total, is_complete = 0, True
        for segment, info in zip(segments, await gather_bounded(segments, info_of(self._context)), strict=True):
            if info is None:
                is_complete = False
            else:
                total += max(0, ends.get(segment, info.length) - max(_UNREAD, begins.get(segment, 0)))
        return total, is_complete


def _shown(cut: StreamCut) -> str:
    """Return a cut for people: its first segments with offsets."""
    listed = [
        f"{names.segment_number(each)}.#epoch.{names.segment_epoch(each)}: {offset}"
        for each, offset in sorted(cut.positions.items())
    ]
    more = len(listed) - limits.NAMES_SHOWN_MAX
    return "{" + ", ".join(listed[: limits.NAMES_SHOWN_MAX]) + (f", and {more} more" if more > 0 else "") + "}"
