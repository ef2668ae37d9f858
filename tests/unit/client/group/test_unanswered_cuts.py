"""Cuts that a reader does not answer in time leave one silent checkpoint, not one for each call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.common.errors import DeadlineError
from tailrace.kernel import pack_events

STREAM = StreamName("s", "t")
CUT = {"s/t": {0: 9}}
DEADLINE_S = 120.0


@pytest.fixture
async def group(controller: Any, context: ClientContext, store: Any, monkeypatch: pytest.MonkeyPatch) -> ReaderGroup:
    """A group over a segment with one event."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1))
    store.segments[STREAM.segment(0)].data += pack_events([b"a"])
    return await manager.open("g")


@pytest.fixture
async def reader(group: ReaderGroup, context: ClientContext) -> AsyncIterator[EventReader]:
    """A reader that has read the event, and whose application does not go on."""
    async with EventReader(context, "s", "g", "r") as reader:
        async with asyncio.timeout(DEADLINE_S):
            while await reader.read_event(20) is None:
                pass
        yield reader


async def give_up(group: ReaderGroup, times: int) -> None:
    for _ in range(times):
        with pytest.raises(DeadlineError):
            await group.stream_cuts(deadline_s=0.01)


async def cuts(group: ReaderGroup, reader: EventReader) -> dict[str, dict[int, int]]:
    """Cuts while the reader goes on."""
    asked = asyncio.create_task(group.stream_cuts(deadline_s=DEADLINE_S))
    while not asked.done():
        assert await reader.read_event(10) is None
    return {stream: dict(cut.positions) for stream, cut in (await asked).items()}


async def test_calls_that_are_not_answered_wait_for_the_same_cut(group: ReaderGroup, reader: EventReader) -> None:
    await give_up(group, 5)
    assert len((await group.state()).due) == 1
    assert await cuts(group, reader) == CUT
    assert not (await group.state()).due


async def test_a_call_after_a_late_answer_gets_a_cut_of_its_own(
    group: ReaderGroup, reader: EventReader, store: Any
) -> None:
    await give_up(group, 1)
    async with asyncio.timeout(DEADLINE_S):
        while (await group.state()).due:
            assert await reader.read_event(10) is None
    async with store.grown:
        store.segments[STREAM.segment(0)].data += pack_events([b"b"])
        store.grown.notify_all()
    async with asyncio.timeout(DEADLINE_S):
        while await reader.read_event(20) is None:
            pass
    assert await cuts(group, reader) == {"s/t": {0: 18}}


async def test_a_cut_that_was_given_up_can_be_cancelled(group: ReaderGroup, reader: EventReader) -> None:
    await give_up(group, 2)
    await group.cancel_outstanding_checkpoints()
    state = await group.state()
    assert (state.due, state.outstanding_checkpoints()) == ({}, [])
    asked = asyncio.create_task(group.checkpoint("c", deadline_s=DEADLINE_S))
    seen = []
    async with asyncio.timeout(DEADLINE_S):
        while not asked.done():
            seen += [item.checkpoint for item in await reader.read_events(1, 10)]
    assert seen == ["c"], "nothing of what was cancelled is answered"
    assert (await asked).cuts["s/t"].positions == CUT["s/t"]
    assert await cuts(group, reader) == CUT
