"""A reader that was taken for dead wakes up after another one of its name has started: it writes nothing for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.membership import GroupMember
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.common.errors import ReinitializationRequiredError
from tailrace.kernel import pack_events

STREAM = StreamName("s", "t")
EVENTS = [b"e1", b"e2", b"e3", b"e4", b"e5"]
DEAD_AFTER_S = 0.5
DEADLINE_S = 120.0
READ_MS = 20


@pytest.fixture(autouse=True)
def _fast_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the distribution policy become hundredths."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)


@pytest.fixture
async def group(controller: Any, context: ClientContext, store: Any) -> ReaderGroup:
    """A group over one segment of five events that was replaced by another one."""
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1))
    store.segments[STREAM.segment(0)].data += pack_events(EVENTS)
    controller.scale([0], (1, 0.0, 1.0))
    return await manager.open("g")


async def begin(context: ClientContext, name: str) -> EventReader:
    return await EventReader(context, "s", "g", name, dead_after_s=DEAD_AFTER_S).start()


async def read(reader: EventReader, count: int) -> list[bytes]:
    """So many events, one at a time."""
    found: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            batch = await reader.read_batch(1, READ_MS)
            found += [] if batch is None else batch.events
    return found


async def read_to_checkpoint(reader: EventReader) -> str:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            batch = await reader.read_batch(1, READ_MS)
            if batch is not None and batch.checkpoint is not None:
                return batch.checkpoint


async def until_removed(reader: EventReader, name: str) -> None:
    """The reader looks until it has declared another one dead."""
    member = reader._member
    assert member is not None
    async with asyncio.timeout(DEADLINE_S):
        while member.state.is_online(name):
            await member.look()
            await asyncio.sleep(0.02)


async def test_the_segments_of_the_new_reader_of_its_name_stay_with_that_one(
    group: ReaderGroup, context: ClientContext
) -> None:
    old = await begin(context, "r1")
    assert await read(old, len(EVENTS)) == EVENTS
    async with asyncio.timeout(DEADLINE_S):
        while not old.ended_segments:
            await old.read_batch(1, READ_MS)
    waiting = asyncio.ensure_future(group.checkpoint("c", deadline_s=DEADLINE_S))
    assert await read_to_checkpoint(old) == "c"  # its next read acknowledges it, and leaves the segment
    assert old._member is not None
    assert old._member._heart is not None
    await old._member._heart.stop()  # the process does nothing from here
    heir = await begin(context, "r2")
    await until_removed(heir, "r1")
    await waiting
    await heir.close()
    again = await begin(context, "r1")
    assert await read(again, 1) == EVENTS[:1]
    with pytest.raises(ReinitializationRequiredError):
        await read(old, 1)
    assert await read(again, 4) == EVENTS[1:]
    await again.close()


async def test_an_earlier_session_writes_nothing(group: ReaderGroup, context: ClientContext) -> None:
    """Each of the writes of a member, also by a state that it has fetched before it was declared dead."""
    old = await begin(context, "r1")
    await read(old, 1)
    member: GroupMember | None = old._member
    assert member is not None
    assert member._heart is not None
    await member._heart.stop()
    heir = await begin(context, "r2")
    await until_removed(heir, "r1")
    await heir.close()
    again = await begin(context, "r1")
    await read(again, 1)
    segment = STREAM.segment(0)
    written: list[r.Update] = []
    write = member._synchronizer.update

    async def noted(generate: Any) -> Any:
        updates = await write(generate)
        written.extend(updates)
        return updates

    member._synchronizer.update = noted  # type: ignore[method-assign]
    member._timers.acquire_s = member._timers.release_s = member._timers.lag_s = member._timers.checkpoint_s = 0.0
    await member.answer("c", {segment: 100})
    assert not await member.complete(segment)

    async def noted_unconditionally(updates: Any) -> None:
        written.extend(updates)

    member._synchronizer.update_unconditionally = noted_unconditionally  # type: ignore[method-assign]
    await member.tell_positions(lambda: {segment: 100})
    assert await member.release_one({segment: 100}) is None
    assert await member.acquire(lambda: {segment: 100}) == []
    await member.begin_checkpoint()
    await member.leave({segment: 100})
    assert written == []
    assert await read(again, 4) == EVENTS[1:]
    await again.close()
