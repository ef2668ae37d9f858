"""Watermarks: how far in their own time writers have written before a position of a stream.

See docs/protocol/server.md#watermarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tailrace.common.ranges import KeyRange


class RangedSegment(NamedTuple):
    """A segment's id with its key range."""

    identifier: int
    key_range: KeyRange


@dataclass(frozen=True, slots=True)
class Watermark:
    """All events with times below ``lower`` lie before the position; no active writer has noted a time above ``upper``.

    Times are what writers noted, in units of their choice. ``positions`` maps segments, which cover the key space, to
    offsets.
    """

    lower: int
    upper: int
    positions: Mapping[RangedSegment, int]
