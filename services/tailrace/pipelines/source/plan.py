"""What a streaming query reads next (docs/spark.md#order). Pure.

A batch has no events of a segment and of one that follows it: successors begin in a later batch than the one that read
their predecessors to the end. So the events of a routing key are in order from batch to batch, across scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.common.stream_cut import StreamCut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.client.model import StreamName, Successor
    from tailrace.pipelines.source.offsets import Positions


class Slice(NamedTuple):
    """Bytes ``start`` to ``end`` of a segment, both where an event begins or the segment ends."""

    stream: StreamName
    identifier: int
    start: int
    end: int


def follow(complete: Mapping[int, Sequence[Successor]]) -> tuple[set[int], set[int]]:
    """Return the complete segments to leave, and those that follow them.

    ``complete`` has the successors of segments that were read to their end. A segment is left only with all others that
    have common successors: otherwise two segments of the position would have the same keys.
    """
    leaving = {each for each, successors in complete.items() if successors}
    while True:
        stays = {
            each
            for each in leaving
            if any(before not in leaving for after in complete[each] for before in after.predecessors)
        }
        if not stays:
            return leaving, {after.segment.identifier for each in leaving for after in complete[each]}
        leaving -= stays


def share(unread: Sequence[int], most: int) -> list[int]:
    """Divide `most` among segments with so much unread: nearly equal parts, none larger than what is unread.

    Each segment with something unread gets at least 1, so that it goes on.
    """
    parts = [0] * len(unread)
    left = most
    waiting = sorted((index for index, each in enumerate(unread) if each > 0), key=lambda index: unread[index])
    while waiting:
        index = waiting.pop(0)
        parts[index] = max(1, min(unread[index], left // (len(waiting) + 1)))
        left = max(0, left - parts[index])
    return parts


def slices(start: Positions, end: Positions) -> list[Slice]:
    """Return what lies between two positions of which the second follows the first as `follow` says.

    Nothing of a stream that only the second one has: there it begins.
    """
    found = []
    for stream, cut in sorted(end.items()):
        before = start.get(stream)
        if before is None:
            continue
        for identifier, offset in sorted(cut.items()):
            first = before.get(identifier, 0)
            if first < offset:
                found.append(Slice(stream, identifier, first, offset))
    return found


def divided(piece: Slice, begins: Iterable[int], most: int) -> list[Slice]:
    """Divide a slice where events are known to begin: into parts of at most `most` bytes as far as `begins` allows."""
    found, first, last = [], piece.start, piece.start
    for offset in [*sorted(each for each in set(begins) if piece.start < each < piece.end), piece.end]:
        if offset - first > most and last > first:
            found.append(piece._replace(start=first, end=last))
            first = last
        last = offset
    return [*found, piece._replace(start=first)]


def grouped(lengths: Sequence[int], least: int) -> list[range]:
    """Divide consecutive things of these lengths into groups of at least so much together, by their indexes.

    The last group may be smaller. With `least` 0 each thing is a group.
    """
    found, first, size = [], 0, 0
    for index, length in enumerate(lengths):
        size += length
        if size >= least:
            found.append(range(first, index + 1))
            first, size = index + 1, 0
    return [*found, range(first, len(lengths))] if first < len(lengths) else found


def cut_of(stream: StreamName, positions: Positions) -> StreamCut:
    """Return the position in a stream as a stream cut."""
    return StreamCut(stream.scope, stream.stream, positions[stream])
