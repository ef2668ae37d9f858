"""Where ``stream truncate`` cuts a stream, and what it gives up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.cli.values import INT64_MAX
from tailrace.client.model import StreamName
from tailrace.client.reader.batch import SegmentSlice, slices_between
from tailrace.client.stream_manager import StreamManager
from tailrace.common import names
from tailrace.common.errors import BadRequestError
from tailrace.common.stream_cut import FUTURE_OFFSET, StreamCut

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.control.history import HistoryEpoch

_PLACE: Final = re.compile(r"(?:(?P<stream>[^:]+)/)?(?P<number>\d+)(?:\.#epoch\.(?P<epoch>\d+))?:(?P<offset>\d+)")


class SegmentPlace(NamedTuple):
    """An offset of a segment, which is named by number and epoch, or (``epoch`` None) by its id or its number."""

    stream: StreamName | None
    number: int
    epoch: int | None
    offset: int

    def is_of(self, identifier: int) -> bool:
        """Return whether this is the segment with that id."""
        if self.epoch is not None:
            return identifier == names.segment_id(self.number, self.epoch)
        return self.number in (identifier, names.segment_number(identifier))


def parse_place(text: str) -> SegmentPlace | None:
    """Parse ``SEGMENT:OFFSET``, also with the segment's full name; None for another text. Raises BadRequestError."""
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        return None
    stream = StreamName.parse(match["stream"]) if match["stream"] else None
    epoch = _int64(match["epoch"], "epoch") if match["epoch"] else None
    return SegmentPlace(stream, _int64(match["number"], "segment"), epoch, _int64(match["offset"], "offset"))


def _int64(digits: str, what: str) -> int:
    if len(digits) > len(str(INT64_MAX)) or int(digits) > INT64_MAX:
        raise BadRequestError(f"{what} {digits[:80]} is too large")
    return int(digits)


async def cut_at(client: ClientContext, stream: StreamName, place: SegmentPlace) -> StreamCut:
    """Return the earliest cut of the stream that has the segment at that offset.

    Raises:
        BadRequestError: the stream has no such segment.
    """
    if place.stream not in (None, stream):
        raise BadRequestError(f"the segment belongs to {place.stream}, not to {stream}")
    history = await client.controller.stream_history(stream)
    found = [identifier for identifier in history.key_ranges() if place.is_of(identifier)]
    if not found:
        raise BadRequestError(f"stream {stream} has no such segment; tailrace stream history {stream} --json lists all")
    head = await StreamManager(client).head(stream)
    return StreamCut(*stream, earliest_cut(history.epochs, head.positions, found[0], place.offset))


def earliest_cut(
    epochs: Sequence[HistoryEpoch], head: Mapping[int, int], identifier: int, offset: int
) -> dict[int, int]:
    """Return the earliest cut that has one segment at an offset; it stays at the head for all keys that it can. Pure.

    A segment behind scales lies after all segments that were before it. So the cut has the segments of its epoch from
    the key on where both that epoch and the head have a border, to the next such key.
    """
    ranges = {each: key_range for epoch in epochs for each, key_range in epoch.segments.items()}
    beside = next(epoch.segments for epoch in epochs if identifier in epoch.segments)
    own = ranges[identifier]
    borders = {ranges[each].low for each in head} & {each.low for each in beside.values()} | {1.0}
    low = max(border for border in borders if border <= own.low)
    high = min(border for border in borders if border >= own.high)
    cut = {each: start for each, start in head.items() if not low <= ranges[each].low < high}
    cut |= {each: head.get(each, 0) for each, key_range in beside.items() if low <= key_range.low < high}
    return cut | {identifier: offset}


async def given_up(client: ClientContext, stream: StreamName, cut: StreamCut) -> list[SegmentSlice]:
    """Return what lies between the head of a stream and a cut.

    Raises:
        BadRequestError: the stream cannot be truncated there.
    """
    head = await StreamManager(client).head(stream)
    try:
        pieces = await slices_between(client, stream, head.positions, cut.positions)
    except BadRequestError as error:
        raise BadRequestError(
            f"stream {stream}: the cut does not cover the key space or lies before the head"
        ) from error
    for identifier, offset in cut.positions.items():
        if offset != FUTURE_OFFSET:
            length = (await client.segments.segment_info(stream.segment(identifier))).length
            if offset > length:
                raise BadRequestError(f"cut has offset {offset} for segment {identifier}, which has {length} bytes")
    return pieces
