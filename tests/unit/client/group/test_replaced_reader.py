"""A reader that was replaced by another one of its name must not spin at a silent checkpoint of that one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.membership import GroupMember
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.group.state import records as r
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.common.errors import ReinitializationRequiredError

STREAM = StreamName("s", "t")
ANSWERS_MAX = 100


async def test_a_replaced_reader_ends_when_cuts_are_asked_for(
    controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1))
    group = await manager.open("g")
    old = await EventReader(context, "s", "g", "r1").start()
    await old.read_events(1, 0)
    assert old._member is not None
    assert old._member._heart is not None
    await old._member._heart.stop()
    synchronizer = group._synchronizer
    await synchronizer.update_unconditionally([r.CreateCheckpoint("1_SILENT_")])

    answers = 0
    answer = GroupMember.answer

    async def answered(member: GroupMember, checkpoint: str, positions: Any) -> None:
        nonlocal answers
        answers += 1
        if answers == 1:  # the old process was slow: meanwhile it was declared dead and started again
            await synchronizer.fetch()
            await synchronizer.update(lambda _: [r.RemoveReader("r1", {})])
            beat = r.UpdateDistanceToTail("r1", 0, None, r.Heartbeat(99, 1, 30_000))
            await synchronizer.update(lambda _: [r.AddReader("r1"), beat])
            await synchronizer.update(lambda _: [r.CreateCheckpoint("2_SILENT_")])
        if answers > ANSWERS_MAX:
            pytest.fail("the reader spins: no other task of the event loop ever runs again")
        await answer(member, checkpoint, positions)

    monkeypatch.setattr(GroupMember, "answer", answered)

    async def read_on() -> None:
        while True:
            await asyncio.sleep(0.01)
            await old.read_events(1, 0)

    with pytest.raises(ReinitializationRequiredError):
        await asyncio.wait_for(read_on(), 120)
