"""A reader with a fixed name crashed, and no other one declares it dead: its next start joins the group again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError
from tailrace.kernel import pack_events

STREAM = StreamName("s", "t")
EVENTS = [b"e1", b"e2"]
DEAD_AFTER_S = 1.0
DEADLINE_S = 120.0


@pytest.fixture
async def group(controller: Any, context: ClientContext, store: Any, monkeypatch: pytest.MonkeyPatch) -> ReaderGroup:
    """A group over a segment with two events."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1))
    store.segments[STREAM.segment(0)].data += pack_events(EVENTS)
    return await manager.open("g")


def reader_of(context: ClientContext, dead_after_s: float | None = DEAD_AFTER_S) -> EventReader:
    return EventReader(context, "s", "g", "consumer", dead_after_s=dead_after_s)


async def read_all(reader: EventReader) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < len(EVENTS):
            found += [item.event for item in await reader.read_events(1, 20)]
    return found


async def crash(reader: EventReader) -> None:
    """The process ends: nothing is written from here."""
    assert reader._member is not None
    assert reader._member._heart is not None
    await reader._member._heart.stop()


async def joined(context: ClientContext) -> EventReader:
    """Start until it works: on a machine that stops for long the silence is not certain at the first time."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await reader_of(context).start()
            except AlreadyExistsError:
                continue


async def test_the_only_reader_joins_again_after_its_crash(group: ReaderGroup, context: ClientContext) -> None:
    dead = await reader_of(context).start()
    assert await read_all(dead) == EVENTS
    await crash(dead)
    again = await joined(context)
    assert await read_all(again) == EVENTS, "from the last checkpoint"
    await again.close()


async def test_a_living_reader_keeps_its_name(group: ReaderGroup, context: ClientContext) -> None:
    async with reader_of(context) as living:
        with pytest.raises(AlreadyExistsError, match="consumer is online"):
            async with asyncio.timeout(DEADLINE_S):
                await reader_of(context).start()
        assert await read_all(living) == EVENTS


@pytest.mark.parametrize("own_s", [DEAD_AFTER_S, None])
async def test_a_reader_without_heartbeats_is_never_declared_dead(
    group: ReaderGroup, context: ClientContext, own_s: float | None
) -> None:
    await group._synchronizer.update(lambda _: [r.AddReader("consumer")])
    with pytest.raises(AlreadyExistsError, match="consumer is online"):
        await reader_of(context, own_s).start()


async def test_a_reader_that_declares_no_other_dead_watches_none(group: ReaderGroup, context: ClientContext) -> None:
    await crash(await reader_of(context).start())
    with pytest.raises(AlreadyExistsError, match="consumer is online"):
        await reader_of(context, None).start()


async def test_one_that_joins_meanwhile_under_the_name_keeps_it(group: ReaderGroup, context: ClientContext) -> None:
    """Two start at the same time after the crash; one of them gets the name."""
    await crash(await reader_of(context).start())
    starting = [asyncio.ensure_future(reader_of(context).start()) for _ in range(2)]
    async with asyncio.timeout(DEADLINE_S):
        outcomes = await asyncio.gather(*starting, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, AlreadyExistsError)]
    readers = [each for each in outcomes if isinstance(each, EventReader)]
    assert refused
    assert len(readers) + len(refused) == 2
    for reader in readers:
        assert await read_all(reader) == EVENTS
        await reader.close()


async def test_the_watch_is_bounded_when_this_process_stops_now_and_then(
    group: ReaderGroup, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence counts only while this process looks; then it cannot tell."""
    await crash(await reader_of(context, limits.READER_DEAD_AFTER_MIN_S).start())
    monkeypatch.setattr(limits, "READER_HEARTBEATS_PER_DEAD_AFTER", 1)  # looks are too far from each other
    with pytest.raises(AlreadyExistsError, match="consumer is online"):
        async with asyncio.timeout(DEADLINE_S):
            await reader_of(context).start()
