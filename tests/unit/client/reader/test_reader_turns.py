"""A read call looks at the segments in which something has changed, however many others its reader has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.reader.segment_input import SegmentInput
from tailrace.kernel import pack_events

STREAM = StreamName("s", "t")
DEADLINE_S = 120.0
SEGMENTS = 300
BUSY = 7


@pytest.fixture
async def reader(
    controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EventReader]:
    """A reader that has all segments of a stream without events."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)
    controller.begin(*((number, number / SEGMENTS, (number + 1) / SEGMENTS) for number in range(SEGMENTS)))
    config = group_config({STREAM: None}, group_refresh_ms=60_000, automatic_checkpoint_ms=-1)
    await ReaderGroupManager(context, "s").create("g", config)
    async with EventReader(context, "s", "g", "r", dead_after_s=None) as reader:
        async with asyncio.timeout(DEADLINE_S):
            while len(reader.position.positions) < SEGMENTS:
                assert await reader.read_batch(1, 10) is None
        yield reader


async def write(store: Any, events: dict[int, list[bytes]]) -> None:
    async with store.grown:
        for identifier, added in events.items():
            store.segments[STREAM.segment(identifier)].data += pack_events(added)
        store.grown.notify_all()


async def read(reader: EventReader, count: int) -> list[tuple[str, bytes]]:
    """Read so many events, one in each call."""
    found: list[tuple[str, bytes]] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            batch = await reader.read_batch(1, 1000)
            if batch is not None:
                found += [(batch.segment, event) for event in batch.events]
    return found


async def test_segments_without_events_cost_a_read_call_nothing(
    reader: EventReader, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: Counter[str] = Counter()
    for name in ("ended", "ready"):
        own = getattr(SegmentInput, name)

        def look(source: SegmentInput, name: str = name, own: Any = own) -> bool:
            looks[name] += 1
            return bool(own.fget(source))

        monkeypatch.setattr(SegmentInput, name, property(look))
    events = [b"%d" % number for number in range(200)]
    await write(store, {BUSY: events})
    assert await read(reader, 200) == [(STREAM.segment(BUSY), event) for event in events]
    assert looks.total() < 10 * (SEGMENTS + len(events))


async def test_segments_with_events_take_turns(reader: EventReader, store: Any) -> None:
    await write(store, {number: [b"a", b"b"] for number in range(SEGMENTS)})
    found = await read(reader, 2 * SEGMENTS)
    by_segment: dict[str, list[bytes]] = {}
    for segment, event in found:
        by_segment.setdefault(segment, []).append(event)
    assert by_segment == {STREAM.segment(number): [b"a", b"b"] for number in range(SEGMENTS)}


async def test_a_busy_segment_does_not_hold_up_another(reader: EventReader, store: Any) -> None:
    await write(store, {BUSY: [b"x"] * 1000})
    await read(reader, 10)
    await write(store, {BUSY + 1: [b"y"]})
    async with asyncio.timeout(DEADLINE_S):
        while not reader._inputs[STREAM.segment(BUSY + 1)].ready:  # noqa: ASYNC110 - state of an input
            await asyncio.sleep(0)
    assert (STREAM.segment(BUSY + 1), b"y") in await read(reader, 3)


async def test_events_that_were_taken_back_are_returned_again(reader: EventReader, store: Any) -> None:
    await write(store, {BUSY: [b"a"]})
    for _ in range(3):
        assert await read(reader, 1) == [(STREAM.segment(BUSY), b"a")]
        reader.take_back()
    assert await read(reader, 1) == [(STREAM.segment(BUSY), b"a")]


async def test_a_cancelled_call_loses_no_end_of_a_segment(
    reader: EventReader, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = [STREAM.segment(number) for number in range(10)]
    hold = asyncio.Event()
    entered = asyncio.Event()
    close = SegmentInput.close

    async def slow_close(source: SegmentInput) -> None:
        await close(source)
        entered.set()
        await hold.wait()

    monkeypatch.setattr(SegmentInput, "close", slow_close)
    async with store.grown:
        for segment in sealed:
            store.segments[segment].sealed = True
        store.grown.notify_all()
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not all(reader._inputs[segment].ended for segment in sealed):  # noqa: ASYNC110 - state of the inputs
                await asyncio.sleep(0)
            for _ in range(3):
                entered.clear()
                call = asyncio.create_task(reader.read_batch(1, 100))
                await entered.wait()
                call.cancel()
                await asyncio.wait([call])
            hold.set()
            while len(reader.ended_segments) < len(sealed):
                assert await reader.read_batch(1, 10) is None
    finally:
        hold.set()
    assert sorted(reader.ended_segments) == sorted(sealed)
