"""The memory of a reader for fetched events, shared by its segments."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.model import StreamName
from tailrace.client.reader.batch import SegmentReader
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.reader.read_ahead import ReadAhead
from tailrace.client.reader.segment_input import SegmentInput
from tailrace.client.types import SegmentReadResult
from tailrace.common import limits
from tailrace.kernel import pack_events

STREAM = StreamName("s", "t")
DEADLINE_S = 120.0
QUIET_TURNS = 50
KIB = limits.KIB
MIB = limits.MIB


async def until_quiet(count: Callable[[], int]) -> int:
    """Wait until a count changes no more in many turns of the loop."""
    async with asyncio.timeout(DEADLINE_S):
        last, quiet = count(), 0
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if count() == last else 0
            last = count()
        return last


class Endless:
    """Segments that repeat one event without end, of which any length can be read at once. ``served``: bytes read."""

    def __init__(self, event: bytes) -> None:
        self._event = pack_events([event])
        self.served = 0
        self.requests: dict[str, list[int]] = {}

    async def read(self, segment: str, offset: int, length: int, **_: Any) -> SegmentReadResult:
        await asyncio.sleep(0)
        begin = offset % len(self._event)
        self.served += length
        self.requests.setdefault(segment, []).append(length)
        count = (begin + length) // len(self._event) + 1
        return SegmentReadResult((self._event * count)[begin : begin + length], False, False)

    @property
    def context(self) -> ClientContext:
        return cast("ClientContext", SimpleNamespace(segments=self))


async def test_a_reader_of_many_segments_holds_what_one_budget_allows(
    store: Any, controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)
    segments = 200
    controller.begin(*((number, number / segments, (number + 1) / segments) for number in range(segments)))
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", group_config({STREAM: None}, automatic_checkpoint_ms=-1))
    endless = Endless(b"x" * 1000)
    own_read = context.segments.read

    async def read(name: str, offset: int, length: int, *, timeout_s: float | None = None) -> SegmentReadResult:
        if name.startswith("s/t/"):
            return await endless.read(name, offset, length)
        return await own_read(name, offset, length, timeout_s=timeout_s)

    monkeypatch.setattr(context.segments, "read", read)
    async with EventReader(context, "s", "g", "reader", dead_after_s=None) as reader:
        returned = 0
        async with asyncio.timeout(DEADLINE_S):
            while len(endless.requests) < segments or returned < limits.READER_READ_AHEAD_BYTES:
                batch = await reader.read_batch(1000, 1000)
                if batch is not None:
                    returned += sum(len(event) + 8 for event in batch.events)
                    await asyncio.sleep(0)
        held = await until_quiet(lambda: endless.served) - returned
    assert held <= 1.1 * limits.READER_READ_AHEAD_BYTES
    assert held >= limits.READER_READ_AHEAD_BYTES / 4, "memory that is not used"


async def test_one_segment_holds_no_more_than_its_events_and_a_reply() -> None:
    endless = Endless(b"x" * 1000)
    tracemalloc.start()
    try:
        async with SegmentReader(endless.context, "s/t/0.#epoch.0", 0):
            await until_quiet(lambda: endless.served)
            held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert endless.served == 2 * limits.READER_REQUEST_BYTES
    assert held < 2.5 * limits.READER_REQUEST_BYTES


@pytest.mark.parametrize("segments", [1, 8])
async def test_few_segments_are_read_with_requests_of_the_largest_size(segments: int) -> None:
    ahead = ReadAhead()
    parts = [ahead.part() for _ in range(segments)]
    assert {part.request_bytes(0, has_more=False) for part in parts} == {limits.READER_REQUEST_BYTES}


async def test_idle_segments_leave_the_spare_bytes_to_those_with_more_to_read() -> None:
    ahead = ReadAhead(64 * MIB)
    parts = [ahead.part() for _ in range(1000)]
    assert {part.request_bytes(0, has_more=False) for part in parts} == {64 * MIB // 2 // 4 // 1000}
    busy = parts[:20]
    assert {part.request_bytes(0, has_more=True) for part in busy} == {limits.READER_REQUEST_BYTES}
    for part in busy:
        part.keep(10 * KIB)
    assert {part.request_bytes(0, has_more=True) for part in parts[20:40]} == {limits.READER_REQUEST_BYTES}


async def test_spare_bytes_come_back_when_events_were_returned_or_a_segment_ends() -> None:
    ahead = ReadAhead(8 * MIB)
    parts = [ahead.part() for _ in range(100)]
    share = ahead.share_bytes

    def lengths() -> list[int]:
        return [part.request_bytes(0, has_more=True) for part in parts]

    first = lengths()
    assert first.count(limits.READER_REQUEST_BYTES) == 4
    assert first.count(share) == 95
    full = parts[:2]
    for part in full:
        part.keep(limits.READER_REQUEST_BYTES)
        part.parsed(0)
    assert parts[50].request_bytes(0, has_more=True) == share
    for part in full:
        part.returned()
    assert parts[50].request_bytes(0, has_more=True) == limits.READER_REQUEST_BYTES
    for part in parts:
        part.close()
    assert (ahead.share_bytes, ahead.take_spare(100 * MIB)) == (limits.READER_REQUEST_BYTES, 4 * MIB)


async def read_all(endless: Endless, segments: int, events: int, ahead: ReadAhead) -> int:
    """Read so many events of each segment, one after the other; return how many bytes were held at most."""
    changed = asyncio.Event()
    inputs = [
        SegmentInput(endless.context, f"s/t/{number}.#epoch.0", 0, ahead=ahead, changed=changed.set)
        for number in range(segments)
    ]
    left = dict.fromkeys(inputs, events)
    held = returned = 0
    async with asyncio.timeout(DEADLINE_S):
        while left:
            await until_quiet(lambda: endless.served)
            held = max(held, endless.served - returned)
            ready = [source for source in left if source.ready]
            if not ready:
                changed.clear()
                await changed.wait()
            for source in ready[:1]:
                taken = source.take(1)
                returned += len(taken[0]) + 8
                left[source] -= 1
                if not left[source]:
                    del left[source]
                    await source.close()
                    returned += sum(endless.requests[source.segment]) - source.offset
    return held


async def test_events_larger_than_the_share_of_many_segments_are_all_read_within_the_budget() -> None:
    budget = 4 * MIB
    held = await read_all(Endless(b"x" * (300 * KIB)), 50, 3, ReadAhead(budget))
    assert budget / 4 < held <= 1.2 * budget


async def test_events_larger_than_the_whole_budget_are_read_one_after_the_other() -> None:
    size = 3 * MIB
    held = await read_all(Endless(b"x" * size), 10, 3, ReadAhead(2 * MIB))
    assert held <= 2 * MIB + 2 * size


async def test_a_segment_that_ends_while_it_waits_for_room_lets_the_others_go_on() -> None:
    ahead = ReadAhead(2 * MIB)
    first, second, third, fourth = (ahead.part() for _ in range(4))
    await first.room_for(3 * MIB)
    waiting = [asyncio.create_task(part.room_for(2 * MIB)) for part in (second, third, fourth)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    second.close()
    assert not waiting[1].done()
    first.parsed(0)
    first.returned()
    async with asyncio.timeout(DEADLINE_S):
        await waiting[1]
    assert not waiting[2].done()
    waiting[2].cancel()
    third.close()
    await asyncio.gather(waiting[2], return_exceptions=True)
    for part in (first, fourth):
        part.close()
    assert ahead.take_spare(10 * MIB) == MIB
