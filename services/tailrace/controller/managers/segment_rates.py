"""How fast the segments of streams are written, for descriptions (docs/controller.md#automatic-scaling).

The scaling job asks for the rates; nothing is decided by what is kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.common.stream_policies import ScaleType
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.scaling.times import ScalingTimes
    from tailrace.wire.commands import MeasuredRate

_THOUSANDTHS = 1000
_LOG = structlog.get_logger(__name__)


class _Seen(NamedTuple):
    """A segment's rate in thousandths, the kind of policy by which it was measured, when, and by which container."""

    rate: int
    kind: int
    seen_s: float
    container_id: int


class RatesFound:
    """What one round of the scaling job gets from all containers."""

    def __init__(self, times: ScalingTimes, now_s: float) -> None:
        self._young_ms = times.sample_ms
        self._now_s = now_s
        self._end: StreamKey | None = None
        """Streams from this one on are left out; None: none is yet."""
        self._added = 0
        self.streams: dict[StreamKey, dict[int, _Seen]] = {}
        self.young: set[tuple[StreamKey, int]] = set()
        """Segments whose container measures them since a moment, and does not know their rate yet."""
        self.silent: set[int] = set()
        """Containers that did not answer."""

    def add(self, key: StreamKey, segment: int, container_id: int, measured: MeasuredRate) -> None:
        """Take what a container says of a segment."""
        if self._end is not None and key >= self._end:
            return
        if measured.age_ms <= self._young_ms:
            self.young.add((key, segment))
            return
        seen = _Seen(measured.rates[0], measured.scale_type, self._now_s, container_id)
        self.streams.setdefault(key, {})[segment] = seen
        self._added += 1

    def trim(self) -> None:
        """Keep the first streams only, when there are twice as many segments as are remembered."""
        if self._added > 2 * limits.SEGMENT_RATES_KEPT_MAX:
            kept = _first(self.streams)
            self._end, self.streams = min(self.streams.keys() - kept.keys()), kept
            self._added = self.segments

    @property
    def segments(self) -> int:
        """Return how many segments have a rate."""
        return sum(map(len, self.streams.values()))


class SegmentRates:
    """Remembers the rates that the scaling job got last.

    A segment whose container did not answer, or began to measure it a moment ago, keeps its rate for
    ``ScalingTimes.rates_shown_s``: while containers move, streams do not look idle.
    """

    def __init__(self, times: ScalingTimes) -> None:
        self._shown_s = times.rates_shown_s
        self._streams: dict[StreamKey, dict[int, _Seen]] = {}
        self._asked_s: float | None = None
        self._asked_ms = 0
        self._is_full = False

    def replace(self, found: RatesFound, now_s: float, now_ms: int) -> None:
        """Remember what a round got, of `limits.SEGMENT_RATES_KEPT_MAX` segments at most, by whole streams."""
        self._keep_unknown(found, now_s)
        self._streams, self._asked_s, self._asked_ms = found.streams, now_s, now_ms
        left_out = found.segments - limits.SEGMENT_RATES_KEPT_MAX
        if left_out > 0:
            self._streams = _first(found.streams)
            if not self._is_full:
                _LOG.warning("segment_rates_left_out", segments=left_out, kept=limits.SEGMENT_RATES_KEPT_MAX)
        self._is_full = left_out > 0

    def _keep_unknown(self, found: RatesFound, now_s: float) -> None:
        """Add the former rates of segments that the round has learned nothing about."""
        for key, segments in self._streams.items():
            for segment, seen in segments.items():
                is_unknown = seen.container_id in found.silent or (key, segment) in found.young
                if is_unknown and now_s - seen.seen_s <= self._shown_s:
                    found.streams.setdefault(key, {}).setdefault(segment, seen)

    def of(self, key: StreamKey, kind: ScaleType, now_s: float) -> tuple[int, Mapping[int, float]] | None:
        """Return when containers were asked last, and the rates of a stream's segments by that kind of policy.

        In the policy's unit per second, as means over the first window of ADR 0027, two minutes. None: this controller
        has not asked for a while, because it started a moment ago or has no streams of its own.
        """
        if self._asked_s is None or now_s - self._asked_s > self._shown_s:
            return None
        segments = self._streams.get(key, {}).items()
        return self._asked_ms, {segment: seen.rate / _THOUSANDTHS for segment, seen in segments if seen.kind == kind}


def _first(streams: dict[StreamKey, dict[int, _Seen]]) -> dict[StreamKey, dict[int, _Seen]]:
    """Return the streams with the first names, so that those of the next round are the same."""
    first: dict[StreamKey, dict[int, _Seen]] = {}
    room = limits.SEGMENT_RATES_KEPT_MAX
    for key in sorted(streams):
        room -= len(streams[key])
        if room < 0:
            break
        first[key] = streams[key]
    return first
