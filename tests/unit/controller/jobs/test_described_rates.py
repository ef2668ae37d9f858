"""Rates of segments in descriptions: what the scaling job found, and what stays known while it finds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import structlog

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.common.names import parse_segment_name
from tailrace.common.stream_policies import ScaleType
from tailrace.controller.managers.segment_rates import RatesFound, SegmentRates
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.scaling.times import ScalingTimes
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc import operator_pb2
from tailrace.wire.commands import MeasuredRate

TIMES = ScalingTimes()
EVENTS = ScaleType.BY_RATE_IN_EVENTS
STREAM = StreamKey("scope", "stream")
OLD_MS, YOUNG_MS = 60_000, 5000
FAST = 7.25


class Source:
    """Two containers that have the segments of even and of odd numbers; each rate is ten times the number, and 0.25."""

    container_count = 2

    def __init__(self, world: Any) -> None:
        self._world = world
        self.away: set[int] = set()

    async def rates(self, container_id: int, windows_ms: Sequence[int]) -> list[MeasuredRate]:
        if container_id in self.away:
            raise UnavailableError(f"container {container_id} has no owner")
        found = []
        for name, segment in sorted(self._world.segments.segments.items()):
            number = parse_segment_name(name).identifier
            if segment.scale_type and not segment.sealed and number % 2 == container_id:
                rates = [10_000 * number + 250] * len(windows_ms)
                found.append(MeasuredRate(name, number, segment.scale_type, segment.target_rate, OLD_MS, rates))
        return found


async def described(api: Any) -> Any:
    """The description of the stream."""
    return await api.call("describeStream", operator_pb2.DescribeStreamRequest(scope="scope", stream="stream"))


async def per_s(api: Any) -> dict[int, float]:
    """The rates in it."""
    return dict((await described(api)).rates.perSecond)


async def reports(api: Any, since: int = 0) -> list[Any]:
    """Reports of the stream, with a version that the caller has."""
    wanted = operator_pb2.StreamReportsRequest.Wanted(scope="scope", stream="stream", since=since)
    return list((await api.call("streamReports", operator_pb2.StreamReportsRequest(streams=[wanted]))).reports)


async def test_rates_of_active_segments_are_described(world: Any, make_api: Any) -> None:
    controller = await world.start(sole=True)
    api, job, source = make_api(controller), controller.scaling, Source(world)
    policy = pb.ScalingPolicy(
        scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC, targetRate=10**6, scaleFactor=2, minNumSegments=3
    )
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    await api.call("createStream", pb.StreamConfig(streamInfo=api.info, scalingPolicy=policy))
    assert not (await described(api)).HasField("rates"), "nothing was asked yet"
    source.away = {1}
    await job.round(source)
    assert await per_s(api) == {0: 0.25, 2: 20.25}
    source.away = set()
    await job.round(source)
    assert await per_s(api) == {0: 0.25, 1: 10.25, 2: 20.25}
    assert (await described(api)).rates.measuredMs == world.clock.ms
    (before,) = await reports(api)
    world.clock.ms += 30_000
    source.away = {0}
    await job.round(source)
    assert await per_s(api) == {0: 0.25, 1: 10.25, 2: 20.25}, "the container is moving, the stream is not idle"
    (after,) = await reports(api, before.version)
    assert (after.version, after.HasField("description")) == (before.version, False), "its time alone is no news"
    await api.scaled([0], [(0.0, 1 / 6), (1 / 6, 1 / 3)])
    assert await per_s(api) == {1: 10.25, 2: 20.25}, "the new ones were not measured yet"
    policy.scaleType = pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC
    await api.call("updateStream", pb.StreamConfig(streamInfo=api.info, scalingPolicy=policy))
    found = await described(api)
    assert (found.HasField("rates"), len(found.rates.perSecond)) == (True, 0), "these were measured in another unit"
    fixed = pb.ScalingPolicy(scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=2)
    await api.call("updateStream", pb.StreamConfig(streamInfo=api.info, scalingPolicy=fixed))
    await job.round(source)
    assert not (await described(api)).HasField("rates")


def look(
    rates: SegmentRates, now_s: float, *measured: tuple[int, int, int, float], silent: tuple[int, ...] = ()
) -> dict[int, float] | None:
    """One round: container, segment, age in ms and rate of each; the rates of the stream behind it."""
    found = RatesFound(TIMES, now_s)
    found.silent.update(silent)
    for container_id, segment, age_ms, rate in measured:
        row = MeasuredRate("", segment, EVENTS, 100, age_ms, [round(1000 * rate)] * 4)
        found.add(STREAM, segment, container_id, row)
    rates.replace(found, now_s, round(1000 * now_s))
    shown = rates.of(STREAM, EVENTS, now_s)
    assert shown is not None
    assert shown[0] == round(1000 * now_s)
    return dict(shown[1])


def test_a_segment_that_is_measured_since_a_moment_has_no_rate_yet() -> None:
    rates = SegmentRates(TIMES)
    assert look(rates, 0, (0, 1, 0, 0.0), (0, 2, YOUNG_MS, 0.0), (0, 3, YOUNG_MS + 1, FAST)) == {3: FAST}
    assert look(rates, 30, (0, 1, 30_000, 1.0), (0, 2, 35_000, 2.0), (0, 3, OLD_MS, 3.0)) == {1: 1.0, 2: 2.0, 3: 3.0}


@pytest.mark.parametrize("how", ["silent", "young"])
def test_what_a_round_learns_nothing_about_keeps_its_rate_for_two_minutes(how: str) -> None:
    rates = SegmentRates(TIMES)
    assert look(rates, 0, (0, 1, OLD_MS, FAST), (1, 2, OLD_MS, 2.0)) == {1: FAST, 2: 2.0}
    for now_s in (30, 60, 90, 120):
        if how == "silent":
            shown = look(rates, now_s, (1, 2, OLD_MS, 2.0), silent=(0,))
        else:
            shown = look(rates, now_s, (0, 1, 0, 0.0), (1, 2, OLD_MS, 2.0))
        assert shown == {1: FAST, 2: 2.0}
    assert look(rates, 150, (1, 2, OLD_MS, 2.0), silent=(0,)) == {2: 2.0}


def test_a_segment_that_its_container_does_not_name_any_more_has_no_rate() -> None:
    rates = SegmentRates(TIMES)
    look(rates, 0, (0, 1, OLD_MS, FAST), (0, 2, OLD_MS, 2.0))
    assert look(rates, 30, (0, 2, OLD_MS, 2.0), silent=(1,)) == {2: 2.0}


def test_rates_are_not_known_before_the_first_look_and_long_after_the_last() -> None:
    rates = SegmentRates(TIMES)
    assert rates.of(STREAM, EVENTS, 0) is None
    look(rates, 0, (0, 1, OLD_MS, FAST))
    assert rates.of(STREAM, EVENTS, 120) == (0, {1: FAST})
    assert rates.of(STREAM, ScaleType.BY_RATE_IN_KBYTES, 120) == (0, {})
    assert rates.of(STREAM, EVENTS, 121) is None


def test_the_same_streams_are_remembered_whole_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_RATES_KEPT_MAX", 5)
    rates = SegmentRates(TIMES)
    keys = [StreamKey("scope", f"s{number}") for number in range(4)]

    def fill(order: Sequence[StreamKey], now_s: float) -> list[int]:
        found = RatesFound(TIMES, now_s)
        for key in order:
            for segment in (0, 1):
                row = MeasuredRate("", segment, EVENTS, 100, OLD_MS, [1000] * 4)
                found.add(key, segment, 0, row)
        rates.replace(found, now_s, 0)
        return [len(shown[1]) if (shown := rates.of(key, EVENTS, now_s)) else -1 for key in keys]

    with structlog.testing.capture_logs() as logs:
        assert fill(keys, 0) == fill(keys[::-1], 30) == [2, 2, 0, 0]
        assert [(each["event"], each["segments"]) for each in logs] == [("segment_rates_left_out", 3)], "said once"
        assert fill(keys[:2], 60) == [2, 2, 0, 0]
        assert fill(keys, 90) == [2, 2, 0, 0]
        assert len(logs) == 2, "it has begun again"


def test_a_round_keeps_no_more_than_the_first_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_RATES_KEPT_MAX", 5)
    found = RatesFound(TIMES, 0)
    for number in (5, 4, 3, 2, 1, 0):
        for segment in (0, 1):
            found.add(StreamKey("scope", f"s{number}"), segment, 0, MeasuredRate("", segment, EVENTS, 100, OLD_MS, [1]))
        found.trim()
    assert found.streams.keys() == {StreamKey("scope", f"s{number}") for number in (0, 1)}
    found.add(StreamKey("scope", "s9"), 0, 0, MeasuredRate("", 0, EVENTS, 100, OLD_MS, [1]))
    found.add(StreamKey("scope", "s"), 0, 0, MeasuredRate("", 0, EVENTS, 100, OLD_MS, [1]))
    assert {key.stream for key in found.streams} == {"s", "s0", "s1"}


def test_a_first_sample_is_as_old_as_segment_stores_make_it() -> None:
    assert TIMES.sample_ms == YOUNG_MS == TIMES.windows_ms[0] / limits.SEGMENT_RATE_SAMPLES_PER_WINDOW
