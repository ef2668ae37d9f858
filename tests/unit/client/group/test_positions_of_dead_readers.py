"""What a dead reader's heirs read again is unread: positions and the report must not count it as read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group import report as module
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.group.view import view_of
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.kernel import pack_events

STREAM = StreamName("s", "t")
SEGMENT = STREAM.segment(0)
EVENTS = [b"e1", b"e2", b"e3"]


async def test_events_that_a_dead_reader_leaves_to_be_read_again_are_unread(
    store: Any, controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> Any:
        return module.NOTHING_UNREAD

    async def no_cut(*_: Any) -> Any:
        return None

    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)
    monkeypatch.setattr(module, "_lag", nothing)  # calls that the tiny controller does not answer
    monkeypatch.setattr(module, "published_cut", no_cut)
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1))
    group = await manager.open("g")
    store.segments[SEGMENT].data += pack_events(EVENTS)
    length = len(store.segments[SEGMENT].data)
    reader = await EventReader(context, "s", "g", "r1").start()
    async with asyncio.timeout(120):
        while (await group.state()).last_read != {SEGMENT: length}:  # it has read and reported all
            await reader.read_events(10, 20)
    assert reader._member is not None
    assert reader._member._heart is not None
    await reader._member._heart.stop()  # its process dies
    await group.reader_offline("r1")
    state = await group.state()
    cut = (await group.positions())["s/t"].positions
    unread = (await module.report(context, "s/g", view_of(state))).unread_bytes
    again: list[bytes] = []
    async with EventReader(context, "s", "g", "r2") as heir, asyncio.timeout(120):
        while len(again) < len(EVENTS):
            again += [item.event for item in await heir.read_events(10, 20)]
    assert again == EVENTS
    assert (cut, unread) == ({0: 0}, length)
