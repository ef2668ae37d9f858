"""How fast the segments of streams are written, for descriptions (docs/controller.md#automatic-scaling).

The scaling job gets the rates; nothing is decided by what is kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.common.stream_policies import ScaleType
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.wire.commands import MeasuredRate

_THOUSANDTHS = 1000


class RatesFound:
    """What a round of the scaling job got from all containers, of `limits.SEGMENT_RATES_KEPT_MAX` segments at most."""

    def __init__(self) -> None:
        self.streams: dict[StreamKey, dict[int, tuple[int, int]]] = {}
        """Kind of the policy that a segment was measured by, and its rate over two minutes in thousandths."""
        self._segments = 0

    def add(self, key: StreamKey, segment: int, measured: MeasuredRate) -> None:
        """Add a segment, if there is room."""
        if self._segments < limits.SEGMENT_RATES_KEPT_MAX:
            self._segments += 1
            self.streams.setdefault(key, {})[segment] = (measured.scale_type, measured.rates[0])


class SegmentRates:
    """Remembers the rates that the last round of the scaling job got."""

    def __init__(self) -> None:
        self._found: RatesFound | None = None

    def replace(self, found: RatesFound) -> None:
        """Remember what a round got, and forget what others did."""
        self._found = found

    def of(self, key: StreamKey, kind: ScaleType) -> Mapping[int, float] | None:
        """Return the rates of a stream's segments that were measured by that kind of policy.

        In the policy's unit per second, as a mean over two minutes (ADR 0027). None: this controller has asked for
        none, because it started a moment ago or has no streams of its own.
        """
        if self._found is None:
            return None
        rates = self._found.streams.get(key, {})
        return {segment: rate / _THOUSANDTHS for segment, (measured_by, rate) in rates.items() if measured_by == kind}
