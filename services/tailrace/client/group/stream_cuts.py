"""Compute stream cuts of a reader group's position, to truncate at, publish and start from.

The state of a group holds less than a cut needs (docs/protocol/reader-group-state.md#state). In the state, −1 is the
end of a sealed segment; in a cut it is a segment that was not reached (docs/protocol/naming.md#stream-cuts). The state
also drops a segment that was read to its end, while its successor may wait for another predecessor: then no segment
owns its key range. Every returned cut covers the key space [0, 1) and lies nowhere past the events that were read.
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


async def complete_cuts(context: ClientContext, offsets: Mapping[str, int]) -> dict[str, StreamCut]:
    """Return cuts by ``scope/stream`` of offsets in the state of a group (see the module).

    When the stream was truncated past the cut or deleted, the cut may be incomplete: it is useless anyway.
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
    """Fill the gaps of a cut with the ends of the segments that were read there, if `segments` has them.

    Where such a segment comes before a later one of the cut, also with others between them, the later one is removed:
    the cut moves back.
    """
    filled = dict(cut)
    while (gap := first_gap({identifier: segments[identifier] for identifier in filled})) is not None:
        ended = _last_before(gap, filled, segments)
        if ended is None:
            return filled
        later = _following(ended, segments)
        filled = {item: offset for item, offset in filled.items() if item not in later}
        filled[ended] = ENDED_OFFSET
    return filled


def _following(first: int, segments: Mapping[int, KeyRange]) -> set[int]:
    """Return the segments that are read after `first`: those that share keys with it, or with such a segment."""
    found = {first}
    for identifier in sorted(segments, key=names.segment_epoch):
        epoch, own = names.segment_epoch(identifier), segments[identifier]
        if any(names.segment_epoch(each) < epoch and segments[each].overlaps(own) for each in found):
            found.add(identifier)
    return found - {first}


def first_gap(ranges: Mapping[int, KeyRange]) -> KeyRange | None:
    """Return the lowest part of the key space that no range covers."""
    end = 0.0
    for low, high in sorted(ranges.values()):
        if low > end:
            return KeyRange(end, low)
        end = max(end, high)
    return KeyRange(end, 1.0) if end < 1.0 else None


def _last_before(gap: KeyRange, cut: Mapping[int, int], segments: Mapping[int, KeyRange]) -> int | None:
    """Return the segment that was read to its end where the gap begins: the newest without predecessors in the cut.

    None when it is unknown because its successors are not among the segments.
    """
    last = None
    waiting: list[KeyRange] = []  # keys whose later segments follow a segment that is still being read
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
    """Return the union as disjoint ranges."""
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
