"""One handle of a reader group is used by several tasks, or threads, at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.localtransport import LocalTransport
from tailrace.client import BlockingClient
from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state import records as r
from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
TASKS = 4
DEADLINE_S = 120.0


@pytest.fixture
async def group(controller: Any, context: ClientContext) -> ReaderGroup:
    """A group over one segment."""
    controller.begin((0, 0.0, 1.0))
    await ReaderGroupManager(context, "s").create("g", group_config({STREAM: None}, automatic_checkpoint_ms=-1))
    return await ReaderGroupManager(context, "s").open("g")


async def add(context: ClientContext, *readers: str) -> None:
    """Change the state through another handle."""
    other = (await ReaderGroupManager(context, "s").open("g"))._synchronizer
    await other.update(lambda _: [r.AddReader(reader) for reader in readers])


async def test_tasks_that_fetch_at_the_same_time_apply_each_record_once(
    group: ReaderGroup, context: ClientContext
) -> None:
    await add(context, "r1", "r2")
    found = await asyncio.gather(*(group.online_readers() for _ in range(TASKS)))
    assert found == [["r1", "r2"]] * TASKS
    assert await group.online_readers() == ["r1", "r2"]


async def test_tasks_that_change_the_state_at_the_same_time_all_succeed(
    group: ReaderGroup, context: ClientContext
) -> None:
    names = [f"r{number}" for number in range(TASKS)]
    await add(context, *names)
    await asyncio.gather(*map(group.reader_offline, names), group.compact(), group.positions(), group.reset())
    assert await group.online_readers() == []
    assert (await group.state()).config.generation == 1


async def test_a_call_that_is_cancelled_lets_the_next_one_go_on(
    group: ReaderGroup, context: ClientContext, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a server keeps the others, for a bounded time."""
    await add(context, "r1")
    asked = asyncio.Event()

    def hold(command: c.Command) -> list[c.Command] | None:
        if not isinstance(command, c.GetStreamSegmentInfo):
            return None
        asked.set()
        return []

    store.rules.append(hold)
    first = asyncio.create_task(group.online_readers())
    async with asyncio.timeout(DEADLINE_S):
        await asked.wait()
    monkeypatch.setattr(limits, "READER_GROUP_TURN_S", 0.01)
    with pytest.raises(UnavailableError, match="the state of reader group s/g is in use"):
        await group.online_readers()
    monkeypatch.setattr(limits, "READER_GROUP_TURN_S", DEADLINE_S)
    waiting = [asyncio.create_task(group.online_readers()) for _ in range(2)]
    await asyncio.sleep(0)  # they wait for the first one
    waiting[0].cancel()
    store.rules.clear()
    first.cancel()
    await asyncio.wait([first, waiting[0]])
    async with asyncio.timeout(DEADLINE_S):
        assert await waiting[1] == ["r1"]


async def test_threads_share_a_blocking_handle(controller: Any) -> None:
    controller.begin((0, 0.0, 1.0))
    client = await asyncio.to_thread(BlockingClient, LocalTransport(controller.handle))

    def use() -> Any:
        groups = client.reader_groups("s")
        groups.create("g", group_config({STREAM: None}, automatic_checkpoint_ms=-1))
        return groups.open("g")

    def read(name: str) -> None:
        with client.reader("s", "g", name):
            pass

    async def look() -> None:
        while not done.is_set():
            await asyncio.to_thread(group.online_readers)
            await asyncio.to_thread(group.positions)

    done = asyncio.Event()
    try:
        group = await asyncio.to_thread(use)
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(look())
            for number in range(10):
                await asyncio.to_thread(read, f"r{number % 2}")
            done.set()
        assert await asyncio.to_thread(group.online_readers) == []
    finally:
        await asyncio.to_thread(client.close)
