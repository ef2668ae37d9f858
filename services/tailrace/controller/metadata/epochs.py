"""Compute epochs, successors and stream cuts. Pure.

See docs/design.md#controller, docs/protocol/controller.md#segments-and-stream-cuts, docs/protocol/naming.md#routing,
docs/protocol/server.md#retention.

Of two segments with overlapping key ranges, the one created in the later epoch follows the other. This order defines
successors, the order of cuts, and the segments between two cuts. Every epoch, and every cut that the controller
returns or accepts, partitions the key space [0, 1).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from tailrace.common.errors import BadRequestError
from tailrace.common.names import segment_epoch, segment_id
from tailrace.common.ranges import KeyRange, covers_exactly, equal_ranges, same_cover
from tailrace.common.stream_cut import FUTURE_OFFSET, CutOrder, compare_cuts, without_future
from tailrace.controller.metadata.model import Epoch, StreamSegment

Cut = Mapping[int, int]
SegmentMap = Mapping[int, StreamSegment]


def first_epoch(segment_count: int, first_number: int, created_ms: int, numbers_skipped: int = 0) -> Epoch:
    """Return epoch 0 of a stream: equal ranges, numbered from `first_number` (docs/protocol/naming.md#numbering).

    The creation left out ``numbers_skipped`` numbers before that one.
    """
    segments = tuple(
        StreamSegment(segment_id(first_number + index, 0), low, high)
        for index, (low, high) in enumerate(equal_ranges(segment_count))
    )
    return Epoch(0, created_ms, segments, numbers_skipped=numbers_skipped)


def new_segments(ranges: Iterable[KeyRange], first_number: int, epoch: int) -> tuple[StreamSegment, ...]:
    """Return segments for the ranges in key order, with the next numbers."""
    return tuple(
        StreamSegment(segment_id(first_number + index, epoch), low, high)
        for index, (low, high) in enumerate(sorted(ranges))
    )


def next_epoch(
    current: Epoch, sealed: Sequence[int], created: Sequence[StreamSegment], created_ms: int, reason: str = ""
) -> Epoch:
    """Return the epoch after a scale that replaces `sealed` by `created`, for a `ScaleReason`."""
    gone = frozenset(sealed)
    kept = [segment for segment in current.segments if segment.identifier not in gone]
    replaced = [segment for segment in current.segments if segment.identifier in gone]
    segments = tuple(sorted((*kept, *created), key=lambda segment: segment.low))
    splits, merges = count_splits_and_merges(replaced, created)
    epoch = Epoch(current.epoch + 1, created_ms, segments, splits, merges, reason=reason)
    if not covers_exactly([segment.key_range for segment in segments]):
        raise BadRequestError(f"epoch {epoch.epoch} does not cover the key space exactly")
    return epoch


def duplicate(epoch: Epoch, number: int, created_ms: int) -> Epoch:
    """Return an epoch with that number and new segments of the same numbers and ranges.

    See docs/controller.md#commits-that-roll-over-a-scale.
    """
    segments = tuple(
        StreamSegment(segment_id(segment.number, number), segment.low, segment.high) for segment in epoch.segments
    )
    return Epoch(number, created_ms, segments, reference_epoch=epoch.reference)


def count_splits_and_merges(sealed: Sequence[StreamSegment], created: Sequence[StreamSegment]) -> tuple[int, int]:
    """Count sealed segments with several successors, and created segments with several predecessors."""
    before, after = _Placed(sealed), _Placed(created)
    splits = sum(after.count_beside(old) > 1 for old in sealed)
    merges = sum(before.count_beside(new) > 1 for new in created)
    return splits, merges


def scale_keeps_ranges(sealed: Sequence[StreamSegment], ranges: Sequence[KeyRange]) -> bool:
    """Return whether the new ranges cover exactly the ranges of the sealed segments (``scale``).

    See docs/protocol/controller.md#segments-and-stream-cuts.
    """
    if not sealed or not ranges:
        return False
    return same_cover([segment.key_range for segment in sealed], ranges)


def overlapping(segments: Iterable[StreamSegment], other: StreamSegment) -> list[StreamSegment]:
    """Return the segments that share keys with `other`."""
    return [segment for segment in segments if segment.key_range.overlaps(other.key_range)]


def successors(segment: StreamSegment, before: Epoch, after: Epoch) -> list[tuple[StreamSegment, list[int]]]:
    """Return the successors in `after` of a segment of `before`, each with the ids of all its predecessors.

    Empty when the segment is active in `after`.
    """
    if after.find(segment.identifier) is not None:
        return []
    return [
        (successor, [previous.identifier for previous in overlapping(before.segments, successor)])
        for successor in overlapping(after.segments, segment)
    ]


class _Placed:
    """Segments by key, to find those that share keys with another segment.

    They must have no keys in common, as those of an epoch or of a position in the stream. However many share keys with
    the other one, that takes two binary searches.
    """

    def __init__(self, segments: Iterable[StreamSegment]) -> None:
        ordered = sorted((segment.low, segment.high, segment.epoch) for segment in segments)
        self._lows = [low for low, _, _ in ordered]
        self._highs = [high for _, high, _ in ordered]
        epochs = [epoch for _, _, epoch in ordered]
        self._first, self._last = [epochs], [epochs]
        """The lowest and the highest epoch of 1, 2, 4, ... segments that follow each other, by the first of them."""

    def _beside(self, other: StreamSegment) -> tuple[int, int]:
        return bisect_right(self._highs, other.low), bisect_left(self._lows, other.high)

    def count_beside(self, other: StreamSegment) -> int:
        """Return how many share keys with `other`."""
        start, end = self._beside(other)
        return end - start

    def epochs_beside(self, other: StreamSegment) -> tuple[int, int] | None:
        """Return the lowest and the highest epoch of those that share keys with `other`; None when none does."""
        start, end = self._beside(other)
        if start >= end:
            return None
        power = (end - start).bit_length() - 1
        while len(self._first) <= power:
            step = 1 << len(self._first) - 1
            for rows, choose in ((self._first, min), (self._last, max)):
                rows.append(list(map(choose, rows[-1], rows[-1][step:])))
        first, last = self._first[power], self._last[power]
        start, end = start, end - (1 << power)
        return min(first[start], first[end]), max(last[start], last[end])


def epoch_span(*cuts: Cut) -> tuple[int, int]:
    """Return the first and last creation epoch of the segments that the cuts name."""
    epochs = [segment_epoch(identifier) for cut in cuts for identifier in cut]
    return min(epochs), max(epochs)


def segments_of(epochs: Iterable[Epoch]) -> dict[int, StreamSegment]:
    """Return every segment of the epochs, by id, in order of id."""
    found = {segment.identifier: segment for epoch in epochs for segment in epoch.segments}
    return dict(sorted(found.items()))


def ranges_of(segments: SegmentMap) -> dict[int, KeyRange]:
    """Return the key range of each segment."""
    return {identifier: segment.key_range for identifier, segment in segments.items()}


def check_cut(cut: Cut, segments: SegmentMap) -> None:
    """Check that a cut is a position in the stream.

    `segments` holds at least every segment of the epochs that the cut spans. The reached segments must partition
    [0, 1), no segment may lie before one of them and after another, and a future segment must succeed a reached one.

    Raises:
        BadRequestError: the cut is not valid; the message names the field ``cut``.
    """
    for identifier, offset in cut.items():
        if identifier not in segments:
            raise BadRequestError(f"cut names segment {identifier}, which the stream does not have")
        if offset < FUTURE_OFFSET:
            raise BadRequestError(f"cut has offset {offset} for segment {identifier}")
    reached = [segments[identifier] for identifier in without_future(cut)]
    if not covers_exactly([segment.key_range for segment in reached]):
        raise BadRequestError("cut does not cover the key space exactly")
    placed = _Placed(reached)
    future = [segments[identifier] for identifier, offset in cut.items() if offset == FUTURE_OFFSET]
    for segment in future:
        beside = placed.epochs_beside(segment)
        if beside is not None and beside[1] >= segment.epoch:
            raise BadRequestError(f"cut has offset -1 for segment {segment.identifier}, which is not in its future")
    for segment in segments.values():
        beside = placed.epochs_beside(segment)
        if beside is not None and beside[0] < segment.epoch < beside[1]:
            raise BadRequestError(f"cut lies both before and after segment {segment.identifier}")


def is_behind(cut: Cut, other: Cut, segments: SegmentMap) -> bool:
    """Return whether `cut` lies before `other` in any segment, so that it must not replace `other`."""
    return compare_cuts(without_future(cut), without_future(other), ranges_of(segments)) is not CutOrder.EQUAL_OR_AFTER


def _furthest(identifiers: Iterable[int], segments: SegmentMap) -> list[StreamSegment]:
    """Return the parts of these segments that none created later has the keys of, in order of key."""
    ordered = sorted((segments[identifier] for identifier in identifiers), key=lambda segment: segment.low)
    edges = sorted({edge for segment in ordered for edge in segment.key_range})
    parts: list[StreamSegment] = []
    begun: list[tuple[int, int, float]] = []
    position = 0
    for low, high in pairwise(edges):
        while position < len(ordered) and ordered[position].low <= low:
            segment = ordered[position]
            heappush(begun, (-segment.epoch, segment.identifier, segment.high))
            position += 1
        while begun and begun[0][2] <= low:
            heappop(begun)
        if begun:
            parts.append(StreamSegment(begun[0][1], low, high))
    return parts


def goes_back(position: Cut, before: Cut, segments: SegmentMap) -> bool:
    """Return whether a writer's position lies before its last one.

    A writer learns that a segment was replaced when it writes to it. So it may name segments whose keys others that it
    names have now, and none for keys that it does not write. It is back only in a segment of which it reaches no key
    in that segment, or a later one, at the offset or behind it.
    """
    reached = _Placed(_furthest(position, segments))
    for identifier, offset in before.items():
        segment = segments[identifier]
        beside = reached.epochs_beside(segment)
        if beside is None or beside[1] > segment.epoch:
            continue
        if beside[1] < segment.epoch or position[identifier] < offset:
            return True
    return False


def joined(position: Cut, before: Cut, segments: SegmentMap) -> dict[int, int]:
    """Return a writer's position where it reaches further for each key: the new one, or the last one.

    It names no segment whose keys all have a later one in it.
    """
    furthest = {**before, **{each: max(offset, before.get(each, 0)) for each, offset in position.items()}}
    kept = {part.identifier for part in _furthest(furthest, segments)}
    return {identifier: furthest[identifier] for identifier in sorted(kept)}


def wholly_before(cut: Cut, segments: SegmentMap) -> list[StreamSegment]:
    """Return the segments that a truncation at `cut` removes entirely, in order of id."""
    reached = _Placed(segments[identifier] for identifier in without_future(cut))
    return [
        segment
        for segment in segments.values()
        if segment.identifier not in cut
        and (beside := reached.epochs_beside(segment)) is not None
        and segment.epoch < beside[1]
    ]


def between(start: Cut, end: Cut, segments: SegmentMap) -> list[StreamSegment]:
    """Return every segment that a reader from `start` to `end` reads, in order of id.

    See docs/protocol/controller.md#segments-and-stream-cuts.

    Raises:
        BadRequestError: `start` is not before `end`.
    """
    if is_behind(end, start, segments):
        raise BadRequestError("cut `from` lies after cut `to`")
    first = _Placed(segments[identifier] for identifier in without_future(start))
    last = _Placed(segments[identifier] for identifier in without_future(end))

    def lies_between(segment: StreamSegment) -> bool:
        begin, limit = first.epochs_beside(segment), last.epochs_beside(segment)
        return (begin is None or segment.epoch >= begin[1]) and (limit is None or segment.epoch <= limit[0])

    return [segment for segment in segments.values() if lies_between(segment)]


def transaction_segments(epoch: Epoch, transaction_epoch: int) -> list[tuple[StreamSegment, int]]:
    """Return pairs of stream segment and id with the transaction's epoch, in order of number.

    See docs/protocol/naming.md#names.
    """
    ordered = sorted(epoch.segments, key=lambda segment: segment.number)
    return [(segment, segment_id(segment.number, transaction_epoch)) for segment in ordered]
