"""What a description says of the age of data and of unread data, where the positions of two segments differ."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.common.names import segment_id
from tailrace.controller.metadata.stream_store import StreamStore
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc import operator_pb2 as pb_operator

from .test_retention_manager import KEY, PERIOD_MS, TABLE, Bench, by_time

LEFT, RIGHT = segment_id(0, 0), segment_id(1, 0)


@pytest.fixture
def bench(world: Any, make_api: Any) -> Bench:
    return Bench(world, make_api)


async def begin(bench: Bench) -> list[int]:
    """A stream that keeps all, with cuts at 1, 11, 21, ..., 91 in both segments; returns the times of these."""
    await bench.begin(by_time(1000 * PERIOD_MS), segments=2)
    for number in range(10):
        for segment in (LEFT, RIGHT):
            await bench.append(10 if number else 1, segment)
        await bench.apply()
    return [each.recorded_ms for each in bench.record().recorded]


async def truncate(bench: Bench, cut: dict[int, int]) -> None:
    answer = await bench.api.call("truncateStream", pb.StreamCut(streamInfo=bench.api.info, cut=cut))
    assert answer.status == pb.UpdateStreamStatus.SUCCESS


async def described(bench: Bench) -> pb_operator.Retention:
    request = pb_operator.DescribeStreamRequest(scope="scope", stream="stream", sizes=True)
    found: pb_operator.StreamDescription = await bench.api.call("describeStream", request)
    assert found.status == found.SUCCESS
    return found.retention


async def holder(bench: Bench, cut: dict[int, int], group: str = "group") -> tuple[int, int, int]:
    """Unread bytes, lost bytes, and the time before which some unread ones were written."""
    await bench.subscribe(group)
    assert await bench.publish(cut, group) == pb.UpdateSubscriberStatus.SUCCESS
    (found,) = [each for each in (await described(bench)).holders if each.subscriber == f"scope/{group}"]
    return found.unreadBytes, found.lostBytes, found.unreadBeforeMs


@pytest.mark.parametrize(
    ("head", "number"),
    [({LEFT: 90, RIGHT: 5}, 0), ({LEFT: 1, RIGHT: 91}, 0), ({LEFT: 11, RIGHT: 50}, 1), ({LEFT: 50, RIGHT: 50}, 4)],
)
async def test_the_oldest_byte_is_in_the_segment_that_was_truncated_least(
    bench: Bench, head: dict[int, int], number: int
) -> None:
    times = await begin(bench)
    await truncate(bench, head)
    assert (await described(bench)).oldestMs == times[number]


async def test_what_is_unread_is_as_old_as_the_segment_that_was_read_least(bench: Bench) -> None:
    times = await begin(bench)
    assert await holder(bench, {LEFT: 85, RIGHT: 5}) == (92, 0, times[1])
    assert await holder(bench, {LEFT: 0, RIGHT: 91}, "other") == (91, 0, times[0])
    assert await holder(bench, {LEFT: 91, RIGHT: 91}, "quick") == (0, 0, 0)


async def test_what_was_deleted_in_one_segment_is_not_unread_there(bench: Bench) -> None:
    times = await begin(bench)
    await truncate(bench, {LEFT: 90, RIGHT: 5})
    assert await holder(bench, {LEFT: 80, RIGHT: 8}) == (84, 10, times[1])
    assert await holder(bench, {LEFT: 90, RIGHT: 91}, "quick") == (1, 0, times[9])


async def test_a_position_beyond_the_tail_hides_nothing_of_other_segments(bench: Bench) -> None:
    times = await begin(bench)
    assert await holder(bench, {LEFT: 10**9, RIGHT: 5}) == (86, 0, times[1])


async def test_positions_of_before_a_scale_are_compared_with_cuts_of_after_it(bench: Bench) -> None:
    times = await begin(bench)
    low, high = sorted(set(await bench.api.scaled([LEFT], [(0.0, 0.25), (0.25, 0.5)])) - {RIGHT})
    await bench.append(10, low)
    await bench.apply()
    times.append(bench.world.clock.ms)
    assert await holder(bench, {LEFT: 91, RIGHT: 91}) == (10, 0, times[10])
    assert await holder(bench, {LEFT: 91, RIGHT: 90}, "other") == (11, 0, times[9])
    await truncate(bench, {low: 5, high: 0, RIGHT: 91})
    assert await holder(bench, {low: 7, high: 0, RIGHT: 91}, "late") == (3, 0, times[10])
    assert (await described(bench)).oldestMs == times[9]


async def test_few_recorded_cuts_are_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin(bench)
    for number in range(5):
        await bench.subscribe(f"group{number}")
        await bench.publish({LEFT: 50, RIGHT: 5 + number}, f"group{number}")
    read, real = 0, StreamStore.retention_cut

    async def counted(*arguments: Any) -> Any:
        nonlocal read
        read += 1
        return await real(*arguments)

    monkeypatch.setattr(StreamStore, "retention_cut", counted)
    await described(bench)
    assert read <= 5, "a search in halves of ten, whose cuts all five subscribers need"


async def test_a_cut_that_is_missing_is_left_out(bench: Bench) -> None:
    times = await begin(bench)
    await bench.world.metadata.remove(TABLE, [(KEY.retention_cut(0, 1), -(2**63))])
    await bench.restart(seed=2)  # the other one knows the cut
    assert await holder(bench, {LEFT: 85, RIGHT: 5}) == (92, 0, times[2])
