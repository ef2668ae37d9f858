"""Stream cuts of what a reader group has read: positions that others can truncate at, publish and start from.

The state of a group says less than a cut has to (reader-group-state §4): −1 stands for the end of a sealed segment,
while in a cut it is a segment that was not reached (naming §7). And a segment that was read to its end is forgotten,
though what follows it may still wait for another predecessor: then nobody owns its part of the key space. Every cut
given out covers the key space [0, 1), and lies nowhere past what was read.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.client.group.state.records import ENDED_OFFSET
from tailrace.client.model import StreamName
from tailrace.common import names
from tailrace.common.errors import NoSuchSegmentError, NotFoundError
from tailrace.common.ranges import KeyRange
from tailrace.common.stream_cut import StreamCut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.context import ClientContext


def cuts_of(offsets: Mapping[str, int]) -> dict[str, StreamCut]:
    """Cuts by ``scope/stream`` of offsets by segment name, just as they are."""
    return {str(stream): StreamCut(stream.scope, stream.stream, cut) for stream, cut in _by_stream(offsets).items()}


async def complete_cuts(context: ClientContext, offsets: Mapping[str, int]) -> dict[str, StreamCut]:
    """Cuts by ``scope/stream`` of offsets as the state of a group has them (see the module).

    A cut behind which the stream was truncated or deleted meanwhile is given as far as it is known: it is of no use.
    """
    cuts = {}
    for stream, positions in _by_stream(offsets).items():
        complete = dict(positions)
        with contextlib.suppress(NotFoundError):
            complete = await _complete(context, stream, positions)
        cuts[str(stream)] = StreamCut(stream.scope, stream.stream, complete)
    return cuts


async def _complete(context: ClientContext, stream: StreamName, positions: Mapping[int, int]) -> dict[int, int]:
    cut = dict(positions)
    first = min((names.segment_epoch(identifier) for identifier in positions), default=0)
    segments: dict[int, KeyRange] = {}
    epoch = first
    while first_gap({identifier: segments[identifier] for identifier in cut if identifier in segments}) is not None:
        found = await _epoch(context, stream, epoch)
        epoch += 1
        if not found:
            break  # no more epochs
        segments.update(found)
        if cut.keys() <= segments.keys():
            cut = without_gaps(cut, segments)
    for identifier, offset in list(cut.items()):
        if offset == ENDED_OFFSET:
            with contextlib.suppress(NoSuchSegmentError):
                cut[identifier] = (await context.segments.segment_info(stream.segment(identifier))).length
    return cut


async def _epoch(context: ClientContext, stream: StreamName, epoch: int) -> dict[int, KeyRange]:
    try:
        return dict(await context.controller.epoch_segments(stream, epoch))
    except NotFoundError:
        return {}


def without_gaps(cut: Mapping[int, int], segments: Mapping[int, KeyRange]) -> dict[int, int]:
    """Fill the gaps of a cut with the ends of the segments that were read there, as far as `segments` tells them.

    Where such a segment and a later one of the cut share keys, the later one is given up: the cut moves back.
    """
    filled = dict(cut)
    while (gap := first_gap({identifier: segments[identifier] for identifier in filled})) is not None:
        ended = _last_before(gap, filled, segments)
        if ended is None:
            return filled
        own = segments[ended]
        filled = {item: offset for item, offset in filled.items() if not segments[item].overlaps(own)}
        filled[ended] = ENDED_OFFSET
    return filled


def first_gap(ranges: Mapping[int, KeyRange]) -> KeyRange | None:
    """The lowest part of the key space that no range covers."""
    end = 0.0
    for low, high in sorted(ranges.values()):
        if low > end:
            return KeyRange(end, low)
        end = max(end, high)
    return KeyRange(end, 1.0) if end < 1.0 else None


def _last_before(gap: KeyRange, cut: Mapping[int, int], segments: Mapping[int, KeyRange]) -> int | None:
    """The segment that was read to its end where the gap begins: the newest one that waits for nothing of the cut.

    None when it cannot be told yet: what follows it is not among the segments.
    """
    last = None
    waiting: list[KeyRange] = []  # keys whose later segments come after something that is still being read
    for identifier in sorted(segments, key=names.segment_epoch):
        own = segments[identifier]
        waits = any(own.overlaps(part) for part in waiting)
        if own.contains(gap.low):
            if waits:
                return last
            last = identifier
        if waits or identifier in cut:
            waiting = _with(waiting, own)
    return None


def _with(parts: list[KeyRange], own: KeyRange) -> list[KeyRange]:
    """The union, still of parts that do not overlap."""
    met = [part for part in parts if part.overlaps(own)]
    rest = [part for part in parts if not part.overlaps(own)]
    low, high = min(part.low for part in (*met, own)), max(part.high for part in (*met, own))
    return [*rest, KeyRange(low, high)]


def _by_stream(offsets: Mapping[str, int]) -> dict[StreamName, dict[int, int]]:
    positions: dict[StreamName, dict[int, int]] = {}
    for segment, offset in offsets.items():
        name = names.parse_segment_name(segment)
        positions.setdefault(StreamName(name.scope, name.stream), {})[name.identifier] = offset
    return positions
