"""Measure how fast the segments of a container are written, for automatic scaling.

See docs/controller.md#automatic-scaling.

Nothing is done per append: a request for the rates samples the counters that segments have anyway, the length and the
number of events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.common.names import is_transaction_segment
from tailrace.segmentstore.api import (
    CREATION_TIME,
    EVENT_COUNT,
    NULL_ATTRIBUTE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    MeasuredSegment,
)
from tailrace.segmentstore.metadata.segment_rate import SegmentRate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState

_KBYTES: Final = 1
_EVENTS: Final = 2
_BYTES_PER_KBYTE: Final = 1024


class RateSampler:
    """The rates of one container's segments."""

    def __init__(self, state: ContainerState, now_s: Callable[[], float]) -> None:
        """``now_s`` returns a time that never goes back."""
        self._state = state
        self._now_s = now_s
        self._windows_s: tuple[float, ...] = ()

    def measure(self, windows_ms: Sequence[int], after: int) -> tuple[list[MeasuredSegment], bool]:
        """See `SegmentContainer.measure_rates`."""
        self._use(windows_ms)
        now_s = self._now_s()
        measured: list[MeasuredSegment] = []
        for identifier in sorted(each for each in self._state.segments if each > after):
            segment = self._state.segments[identifier]
            if segment.sealed or segment.core.get(SCALE_POLICY_TYPE) not in (_KBYTES, _EVENTS):
                continue
            if is_transaction_segment(segment.name):
                continue  # it has the stream's policy; its bytes count when it is merged
            if len(measured) == limits.RATES_PER_REPLY_MAX:
                return measured, True
            measured.append(self._measure(segment, now_s))
        return measured, False

    def merged(self, target: Segment, source: Segment, events: int, now_ms: int) -> None:
        """Count a merged transaction as if it had been written evenly while it was open, if that was not just now."""
        begun_ms = source.latest.get(CREATION_TIME)
        if target.rate is None or begun_ms is None or not self._windows_s:
            return
        life_s = (now_ms - begun_ms) / 1000
        if life_s > self._tick_s:
            amount = events if _kind(target) == _EVENTS else source.staged_length
            target.rate.spread(amount, life_s, self._now_s())

    @property
    def _tick_s(self) -> float:
        return self._windows_s[0] / limits.SEGMENT_RATE_SAMPLES_PER_WINDOW

    def _use(self, windows_ms: Sequence[int]) -> None:
        """Average over these windows; what was averaged over others is of no use."""
        if not 1 <= len(windows_ms) <= limits.RATE_WINDOWS_MAX:
            raise BadRequestError(f"{len(windows_ms)} windows, 1 to {limits.RATE_WINDOWS_MAX} are allowed")
        if list(windows_ms) != sorted(windows_ms) or windows_ms[0] < limits.RATE_WINDOW_MIN_MS:
            raise BadRequestError(f"windows must rise from at least {limits.RATE_WINDOW_MIN_MS} ms")
        self._windows_s = tuple(each / 1000 for each in windows_ms)

    def _measure(self, segment: Segment, now_s: float) -> MeasuredSegment:
        kind, target = _kind(segment), segment.core.get(SCALE_POLICY_RATE, 0)
        count = _count(segment, kind)
        key = (kind, target, self._windows_s)
        rate = segment.rate
        if rate is None or rate.key != key:
            rate = segment.rate = SegmentRate(key, self._windows_s, count, now_s)
        elif rate.sampled_before(now_s - self._tick_s):
            rate.sample(count, now_s)
        unit = _BYTES_PER_KBYTE if kind == _KBYTES else 1
        rates = [each / unit for each in rate.rates()]
        return MeasuredSegment(segment.segment_id, segment.name, kind, target, now_s - rate.begun_s, rates)


def _kind(segment: Segment) -> int:
    return segment.core.get(SCALE_POLICY_TYPE, 0)


def _count(segment: Segment, kind: int) -> int:
    if kind == _KBYTES:
        return segment.length
    count = segment.core.get(EVENT_COUNT, 0)
    return 0 if count == NULL_ATTRIBUTE else count
