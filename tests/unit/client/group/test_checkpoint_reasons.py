"""A checkpoint that is not complete says which readers hold it up."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.common import names
from tailrace.common.errors import DeadlineError, OverloadedError


@pytest.fixture
async def group(controller: Any, context: ClientContext) -> ReaderGroup:
    """A group with two readers that make no read calls."""
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    config = group_config({StreamName("s", "t"): None}, automatic_checkpoint_ms=-1, max_outstanding_checkpoints=2)
    await manager.create("g", config)
    for name in ("r1", "r2"):
        await EventReader(context, "s", "g", name, dead_after_s=None).start()
    return await manager.open("g")


async def test_readers_that_have_not_answered_are_named(group: ReaderGroup) -> None:
    with pytest.raises(DeadlineError, match=r"^checkpoint noon is not complete after 0\.01 s: .* have not: r1, r2$"):
        await group.checkpoint("noon", deadline_s=0.01)
    with pytest.raises(DeadlineError, match=r"^the cut is not complete after [-\d.e]+ s: .* have not: r1, r2$"):
        await group.stream_cuts(deadline_s=0.01)


async def test_checkpoints_that_leave_no_room_are_named(group: ReaderGroup) -> None:
    for name in ("one", "two"):
        with pytest.raises(DeadlineError):
            await group.checkpoint(name, deadline_s=0)
    with pytest.raises(OverloadedError, match=r"^2 checkpoints are not complete yet, .* maximum: one, two$"):
        await group.checkpoint("three", deadline_s=0)


def test_a_message_names_some_of_many() -> None:
    assert names.some_of([]) == ""
    assert names.some_of(["a", "b"]) == "a, b"
    assert names.some_of(list("abcdefg")) == "a, b, c, d, e and 2 more"
