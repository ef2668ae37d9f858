"""Decide whether a stream gets a watermark, and which one (docs/protocol/server.md#watermarks). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common.names import segment_epoch
from tailrace.common.watermarks import RangedSegment, Watermark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace.controller.metadata.model import StreamSegment
    from tailrace.controller.metadata.records import WriterMark


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the marks of a stream's writers.

    ``gone``: writers that no longer count, to be forgotten. ``counted``: the marks that the next watermark is made of;
    empty when there is none now.
    """

    gone: frozenset[str]
    counted: tuple[WriterMark, ...]


def decide(marks: Mapping[str, WriterMark], last: Watermark | None, timeout_ms: int, now_ms: int) -> Decision:
    """Return which writers count.

    A writer whose time is beyond the last watermark's lower bound has advanced. One that has not is waited for, until
    it is removed or has noted no time for `timeout_ms`. There is a next watermark once no writer is waited for.

    A mark that is `timeout_ms` ahead was noted by a clock that was wrong. So no writer is waited for longer than twice
    that time, whatever the clocks say.
    """
    gone, counted, is_waiting = set(), [], False
    for writer, mark in marks.items():
        if has_advanced(mark, last):
            counted.append(mark)
        elif not mark.alive or abs(now_ms - mark.noted_ms) >= timeout_ms:
            gone.add(writer)
        else:
            is_waiting = True
    return Decision(frozenset(gone), () if is_waiting else tuple(counted))


def has_advanced(mark: WriterMark, last: Watermark | None) -> bool:
    """Return whether a writer's time is beyond the last watermark's lower bound."""
    return last is None or mark.timestamp > last.lower


def position_epoch(marks: Iterable[WriterMark], last: Watermark | None) -> int:
    """Return the epoch whose segments the next watermark names: the last one in which a position has a segment.

    -1 when there is no position at all.
    """
    named = {identifier for mark in marks for identifier in mark.position}
    if last is not None:
        named.update(segment.identifier for segment in last.positions)
    return max(map(segment_epoch, named), default=-1)


def next_watermark(marks: Iterable[WriterMark], last: Watermark | None, segments: Iterable[StreamSegment]) -> Watermark:
    """Return the watermark of these marks; `segments` are those of `position_epoch`.

    Its position lies behind those of all marks and of the last watermark: every segment that one of them names is
    active in that epoch, or comes before one that is. So a segment that none of them names begins behind them all.
    """
    marks = tuple(marks)
    known = {} if last is None else {segment.identifier: offset for segment, offset in last.positions.items()}
    positions = {}
    for segment in sorted(segments, key=lambda each: each.low):
        offsets = [mark.position.get(segment.identifier, 0) for mark in marks]
        named = RangedSegment(segment.identifier, segment.key_range)
        positions[named] = max(known.get(segment.identifier, 0), *offsets)
    times = [mark.timestamp for mark in marks]
    return Watermark(min(times), max(times), positions)
