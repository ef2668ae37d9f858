"""Bound the times at which events were written, by the cuts that retention recorded (docs/spark.md#times)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.common.errors import NoSuchStreamError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.client.context import ClientContext
    from tailrace.client.control.history import TimedCut
    from tailrace.client.model import StreamName
    from tailrace.pipelines.source.plan import Slice

COLUMN: Final = "ingested_before"


class TimeBound(NamedTuple):
    """All bytes of a segment before the offset ``end`` were written before ``time_ms``, in ms since 1970."""

    end: int
    time_ms: int


def time_bounds(piece: Slice, cuts: Sequence[TimedCut], now_ms: int) -> tuple[TimeBound, ...]:
    """Return bounds for all bytes of a slice, in order of offset and of time.

    ``cuts`` are in order of time, and `now_ms` is a time at which the slice had been written. Pure.
    """
    found: list[TimeBound] = []
    reached = piece.start
    for cut in cuts:
        written = cut.end_of(piece.identifier)
        end = piece.end if written is None else min(written, piece.end)
        if end > reached:
            reached = end
            found.append(TimeBound(reached, cut.recorded_ms))
    if reached < piece.end:
        found.append(TimeBound(piece.end, now_ms))
    return tuple(found)


def needed(cuts: Sequence[TimedCut], position: Mapping[int, int]) -> tuple[TimedCut, ...]:
    """Return the cuts that bound times of what lies behind a position, and the last one in any case.

    ``cuts`` are in order of time. A cut in front of the position bounds nothing behind it, neither in the position's
    segments nor in later ones: it has nothing of those. Pure.
    """
    if not position:  # then segments are read from their beginning
        return tuple(cuts)
    for index, cut in enumerate(cuts[:-1]):
        ends = ((cut.end_of(identifier), offset) for identifier, offset in position.items())
        if any(end is None or end > offset for end, offset in ends):
            return tuple(cuts[index:])
    return tuple(cuts[-1:])


class RecordedCuts:
    """The recorded cuts of streams, of which those that are known are not asked for again.

    A query that runs for months must `forget` those that it has passed.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._known: dict[StreamName, tuple[TimedCut, ...]] = {}

    async def of(self, stream: StreamName) -> tuple[TimedCut, ...]:
        """Return all recorded cuts of a stream, oldest first; of one that was deleted those that are known."""
        known = self._known.get(stream, ())
        try:
            newer = await self._context.controller.stream_cuts(stream, known[-1].recorded_ms if known else 0)
        except NoSuchStreamError:
            return known  # whether its events are lost is for those who read them
        known += tuple(cut for cut in newer if not known or cut.recorded_ms > known[-1].recorded_ms)
        self._known[stream] = known
        return known

    def forget(self, positions: Mapping[StreamName, Mapping[int, int]]) -> None:
        """Forget the cuts that no batch from these positions on needs, and all of other streams."""
        self._known = {
            stream: needed(known, positions[stream]) for stream, known in self._known.items() if stream in positions
        }
