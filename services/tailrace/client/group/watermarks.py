"""Read and write the watermarks of a stream in its mark stream (docs/protocol/naming.md#watermarks)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.client.group.state.fields import I64, RANGE, Inlined, Layout, MapOf
from tailrace.client.revisioned import RevisionedStream
from tailrace.common.errors import CorruptionError
from tailrace.common.watermarks import RangedSegment, Watermark

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.client.connections.pool import ConnectionPool
    from tailrace.client.connections.segments import SegmentClient
    from tailrace.client.revisioned import SegmentAccess
    from tailrace.common.ports import Entropy

_SEGMENT: Final = Layout(RangedSegment, {0: ((("identifier", I64), ("key_range", RANGE)),)})
WATERMARK: Final = Layout(
    Watermark, {0: ((("lower", I64), ("upper", I64), ("positions", MapOf(Inlined(_SEGMENT), I64))),)}
)


class MarkSegment:
    """The segment of a mark stream, as the controller writes it: satisfies the controller's ``MarkSegmentPort``.

    The revisioned stream's mark is where the newest watermark begins, so that readers begin there.
    """

    def __init__(self, access: SegmentAccess, segment: str) -> None:
        self._stream = RevisionedStream(access, segment)
        self._mark: int | None = None
        self._end: int | None = None

    async def newest(self) -> Watermark | None:
        """Return the newest watermark; None for none. `append` adds after it.

        Raises:
            CorruptionError: the segment holds something else. FormatVersionError.
        """
        self._mark = await self._stream.mark()
        begin = await self._stream.oldest() if self._mark is None else self._mark
        entries = await self._stream.read_from(begin)
        self._end = entries[-1].revision if entries else begin
        return self._decoded(entries[-1].payload) if entries else None

    async def append(self, watermark: Watermark) -> bool:
        """Append a watermark if the one that `newest` returned, or that was appended here, is the newest still.

        Return whether it was. When it was not, call `newest` again.
        """
        if self._end is None:
            return False
        begin, self._end = self._end, None
        self._end = await self._stream.write_conditionally(begin, WATERMARK.encode(watermark))
        if self._end is None:
            return False
        # One that fails costs readers the reading of an older watermark; the next one moves the mark.
        if await self._stream.compare_and_set_mark(self._mark, begin):
            self._mark = begin
        else:
            self._mark = await self._stream.mark()
        return True

    def _decoded(self, payload: bytes) -> Watermark:
        try:
            found: Watermark = WATERMARK.decode(payload)
        except CorruptionError as error:
            raise CorruptionError(f"a watermark in {self._stream.segment}", str(error)) from error
        return found


@dataclass(frozen=True, slots=True)
class _Access:
    pool: ConnectionPool
    segments: SegmentClient
    entropy: Entropy


def mark_segments(pool: ConnectionPool, segments: SegmentClient, entropy: Entropy) -> Callable[[str], MarkSegment]:
    """Return a function that opens the segment of a mark stream by its full name."""
    access = _Access(pool, segments, entropy)
    return lambda segment: MarkSegment(access, segment)
