"""Readers whose group is deleted under them: read calls name the group, and a close succeeds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.common.errors import NoSuchReaderGroupError, NoSuchSegmentError
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
GROUP_SEGMENT = "s/_RGg/0.#epoch.0"
DEADLINE_S = 120.0


@pytest.fixture
async def manager(controller: Any, context: ClientContext) -> ReaderGroupManager:
    """A scope with a group over one segment that refreshes fast and makes no checkpoints by itself."""
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1))
    return manager


async def read_on(reader: EventReader) -> None:
    """Read until reading fails."""
    while True:
        await reader.read_events(1, 10)


async def test_a_reader_of_a_deleted_group_can_be_closed(context: ClientContext, manager: ReaderGroupManager) -> None:
    async with asyncio.timeout(DEADLINE_S), EventReader(context, "s", "g", "r1") as reader:
        await reader.read_events(1, 10)
        await manager.delete("g")
    await reader.close()


async def test_a_read_names_the_group_that_was_deleted(context: ClientContext, manager: ReaderGroupManager) -> None:
    async with asyncio.timeout(DEADLINE_S), EventReader(context, "s", "g", "r1") as reader:
        await reader.read_events(1, 10)
        await manager.delete("g")
        with pytest.raises(NoSuchReaderGroupError, match="reader group s/g does not exist"):
            await read_on(reader)


async def test_a_group_may_be_deleted_while_a_reader_leaves(
    store: Any, context: ClientContext, manager: ReaderGroupManager
) -> None:
    async with asyncio.timeout(DEADLINE_S), EventReader(context, "s", "g", "r1") as reader:
        await reader.read_events(1, 10)
        store.answer(c.ConditionalAppend, lambda request_id: c.NoSuchSegment(request_id, GROUP_SEGMENT))
    assert await (await manager.open("g")).online_readers() == ["r1"], "the removal met the answer"


async def test_a_handle_of_a_deleted_group_names_it(context: ClientContext, manager: ReaderGroupManager) -> None:
    group = await manager.open("g")
    await manager.delete("g")
    for call in (group.state, group.compact, lambda: group.stream_cuts(deadline_s=DEADLINE_S)):
        with pytest.raises(NoSuchReaderGroupError, match="reader group s/g does not exist"):
            await call()


async def test_a_missing_segment_of_a_stream_is_no_missing_group(
    context: ClientContext, manager: ReaderGroupManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the group's own state says that the group is gone."""
    reader = await EventReader(context, "s", "g", "r1").start()
    member = reader._member
    assert member is not None

    async def stop() -> None:
        raise NoSuchSegmentError(STREAM.segment(0))

    with monkeypatch.context() as once:
        once.setattr(member._publisher, "stop", stop)
        with pytest.raises(NoSuchSegmentError):
            await reader.close()
    await reader.close()
    assert await (await manager.open("g")).online_readers() == []
