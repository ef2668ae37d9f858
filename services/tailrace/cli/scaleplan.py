"""Which segments a scale seals and which key ranges it makes (pure; controller §4, "scale")."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.client.model import SegmentRange
from tailrace.common import limits, names
from tailrace.common.errors import BadRequestError
from tailrace.common.ranges import KeyRange, equal_ranges, split_range

_SEGMENT: Final = re.compile(r"(\d+)(?:\.#epoch\.(\d+))?")


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """Segments to seal, the ranges of those that replace them, and how many segments there are then."""

    sealed: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    resulting_count: int

    @property
    def changes_nothing(self) -> bool:
        """Whether the stream is as asked for already."""
        return not self.sealed


def plan_count(segments: Sequence[SegmentRange], count: int) -> ScalePlan:
    """`count` equal ranges; segments whose range is one of them stay. Raises BadRequestError."""
    if not 1 <= count <= limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(f"{count} segments: between 1 and {limits.STREAM_SEGMENTS_MAX} are possible")
    wanted = equal_ranges(count)
    present = [segment.key_range for segment in segments]
    sealed = tuple(segment.identifier for segment in segments if segment.key_range not in wanted)
    return ScalePlan(sealed, tuple(item for item in wanted if item not in present), count)


def plan_changes(segments: Sequence[SegmentRange], splits: Sequence[str], merges: Sequence[str]) -> ScalePlan:
    """Splits (``ID:N``) and merges (``ID,ID``) in one scale. Raises BadRequestError."""
    sealed: list[int] = []
    ranges: list[KeyRange] = []
    for text in splits:
        identifier, parts = _plan_split(segments, text)
        sealed.append(identifier)
        ranges += parts
    for text in merges:
        identifiers, joined = _plan_merge(segments, text)
        sealed += identifiers
        ranges.append(joined)
    if len(set(sealed)) != len(sealed):
        raise BadRequestError("a segment is named twice")
    count = len(segments) - len(sealed) + len(ranges)
    if count > limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(f"{count} segments would be left, at most {limits.STREAM_SEGMENTS_MAX} are possible")
    return ScalePlan(tuple(sealed), tuple(ranges), count)


def _plan_split(segments: Sequence[SegmentRange], text: str) -> tuple[int, list[KeyRange]]:
    name, separator, parts = text.rpartition(":")
    if not separator or not parts.isdecimal() or not 2 <= int(parts) <= limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(f"--split {text[:80]!r} is not of the form ID:N with N at least 2")
    segment = find_segment(segments, name)
    return segment.identifier, split_range(segment.key_range, int(parts))


def _plan_merge(segments: Sequence[SegmentRange], text: str) -> tuple[list[int], KeyRange]:
    chosen = sorted((find_segment(segments, name) for name in text.split(",")), key=lambda segment: segment.key_range)
    if len(chosen) < 2:
        raise BadRequestError(f"--merge {text[:80]!r} is not of the form ID,ID")
    for left, right in itertools.pairwise(chosen):
        if left.key_range.high != right.key_range.low:
            raise BadRequestError(
                f"--merge {text[:80]!r}: segments {left.identifier} and {right.identifier} are not neighbours"
            )
    joined = KeyRange(chosen[0].key_range.low, chosen[-1].key_range.high)
    return [segment.identifier for segment in chosen], joined


def find_segment(segments: Sequence[SegmentRange], text: str) -> SegmentRange:
    """The active segment that is meant by an id, a number, or ``NUMBER.#epoch.EPOCH``.

    Numbers are unique in a stream (naming §1). Raises BadRequestError.
    """
    match = _SEGMENT.fullmatch(text.strip())
    if match is None:
        raise BadRequestError(f"{text[:80]!r} is not the id of a segment")
    number, epoch = int(match[1]), match[2]
    for segment in segments:
        if epoch is not None:
            found = segment.identifier == names.segment_id(number, int(epoch))
        else:
            found = number in (segment.identifier, names.segment_number(segment.identifier))
        if found:
            return segment
    active = ", ".join(str(segment.identifier) for segment in segments[:20])
    raise BadRequestError(f"segment {text.strip()[:80]} is not active; active are {active}")
