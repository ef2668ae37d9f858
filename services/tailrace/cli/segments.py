"""Parse segments, splits and merges of the command line (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tailrace.client.control.scale_plan import ScalePlan, active_text, plan_changes
from tailrace.client.model import SegmentRange
from tailrace.common import names
from tailrace.common.errors import BadRequestError

_DIGITS_MAX: Final = 19
_SEGMENT: Final = re.compile(r"(\d{1,19})(?:\.#epoch\.(\d{1,10}))?")


def plan_texts(active: Sequence[SegmentRange], splits: Sequence[str], merges: Sequence[str]) -> ScalePlan:
    """Plan splits (``ID:N``) and merges (``ID,ID``) in one scale. Raises BadRequestError."""
    split = [(find_segment(active, name).identifier, parts) for name, parts in map(parse_split, splits)]
    merge = [[find_segment(active, name).identifier for name in parse_merge(text)] for text in merges]
    return plan_changes(active, split, merge)


def parse_split(text: str) -> tuple[str, int]:
    """Parse ``ID:N``. Raises BadRequestError."""
    name, separator, parts = text.rpartition(":")
    if not separator or not parts.isdecimal() or len(parts) > _DIGITS_MAX or int(parts) < 2:
        raise BadRequestError(f"--split {text[:80]!r} is not of the form ID:N with N at least 2")
    _match(name)
    return name, int(parts)


def parse_merge(text: str) -> list[str]:
    """Parse ``ID,ID``, at least two. Raises BadRequestError."""
    chosen = text.split(",")
    if len(chosen) < 2:
        raise BadRequestError(f"--merge {text[:80]!r} is not of the form ID,ID")
    for name in chosen:
        _match(name)
    return chosen


def _match(text: str) -> re.Match[str]:
    match = _SEGMENT.fullmatch(text.strip())
    if match is None:
        raise BadRequestError(f"{text[:80]!r} is not a segment id")
    return match


def find_segment(active: Sequence[SegmentRange], text: str) -> SegmentRange:
    """Return the active segment for an id, a number, or ``NUMBER.#epoch.EPOCH``.

    Numbers are unique in a stream (docs/protocol/naming.md#names). Raises BadRequestError.
    """
    match = _match(text)
    number, epoch = int(match[1]), match[2]
    for segment in active:
        if epoch is not None:
            found = segment.identifier == names.segment_id(number, int(epoch))
        else:
            found = number in (segment.identifier, names.segment_number(segment.identifier))
        if found:
            return segment
    raise BadRequestError(f"segment {text.strip()[:80]} is not active; {active_text(active)}")
