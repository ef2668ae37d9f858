"""Creations of reader groups that fail or are interrupted, and the creations after them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.model import StreamName
from tailrace.common.errors import AlreadyExistsError, NotFoundError
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
CONFIG = group_config({STREAM: None})
OTHER = group_config({STREAM: None}, group_refresh_ms=10)
STEPS = ("getSegments", "createReaderGroup", "getCurrentSegments", "getURI")


@pytest.fixture
def manager(controller: Any, context: ClientContext) -> ReaderGroupManager:
    """The groups of a scope with a stream of one segment."""
    controller.begin((0, 0.0, 1.0))
    return ReaderGroupManager(context, "s")


def missing(_: object) -> object:
    raise NotFoundError("stream s/t does not exist")


def cancel(_: object) -> object:
    raise asyncio.CancelledError


async def test_an_unknown_stream_leaves_no_group(controller: Any, manager: ReaderGroupManager) -> None:
    controller.answers["getSegments"] = missing
    with pytest.raises(NotFoundError):
        await manager.create("g", CONFIG)
    assert controller.groups == {}
    assert "s/_RGg/0.#epoch.0" not in controller.store.segments
    del controller.answers["getSegments"]
    assert await manager.create("g", OTHER)
    assert (await (await manager.open("g")).state()).config.group_refresh_ms == 10


async def test_a_stream_deleted_during_the_creation_leaves_no_group(
    controller: Any, manager: ReaderGroupManager
) -> None:
    def create(request: Any) -> object:
        controller.answers["getSegments"] = missing
        controller.groups["g"] = request
        controller.store.create("s/_RGg/0.#epoch.0")
        return pb.CreateReaderGroupResponse(config=request)

    controller.answers["createReaderGroup"] = create
    with pytest.raises(NotFoundError):
        await manager.create("g", CONFIG)
    assert controller.groups == {}


@pytest.mark.parametrize("again", [CONFIG, OTHER], ids=["same settings", "other settings"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_creation_cancelled_at_a_call_can_be_made_again(
    controller: Any, manager: ReaderGroupManager, step: str, again: Any
) -> None:
    controller.answers[step] = cancel
    with pytest.raises(asyncio.CancelledError):
        await manager.create("g", CONFIG)
    del controller.answers[step]
    assert await manager.create("g", again)
    state = await (await manager.open("g")).state()
    assert state.config.same_settings(again)
    assert controller.groups["g"].groupRefreshTimeMillis == again.group_refresh_ms
    assert controller.groups["g"].generation == state.config.generation
    assert not await manager.create("g", again)


async def test_an_interrupted_replacement_can_be_made_again(controller: Any, manager: ReaderGroupManager) -> None:
    controller.answers["getCurrentSegments"] = cancel
    with pytest.raises(asyncio.CancelledError):
        await manager.create("g", CONFIG)
    del controller.answers["getCurrentSegments"]
    controller.answers["updateReaderGroup"] = cancel
    with pytest.raises(asyncio.CancelledError):
        await manager.create("g", OTHER)
    del controller.answers["updateReaderGroup"]
    assert await manager.create("g", OTHER)
    assert (await (await manager.open("g")).state()).config.generation == controller.groups["g"].generation == 1


async def test_a_group_with_a_state_keeps_its_settings(controller: Any, manager: ReaderGroupManager) -> None:
    assert await manager.create("g", CONFIG)
    with pytest.raises(AlreadyExistsError):
        await manager.create("g", OTHER)
    assert controller.groups["g"].groupRefreshTimeMillis == CONFIG.group_refresh_ms


async def test_an_existing_group_is_found_after_its_stream_was_deleted(
    controller: Any, manager: ReaderGroupManager
) -> None:
    assert await manager.create("g", CONFIG)
    controller.answers["getSegments"] = missing
    assert not await manager.create("g", CONFIG)


@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
@pytest.mark.parametrize("kind", [c.GetStreamSegmentInfo, c.SetupAppend, c.ConditionalAppend, c.ConditionalBlockEnd])
async def test_a_connection_lost_at_a_call_leaves_a_group_that_opens(
    controller: Any, manager: ReaderGroupManager, kind: type[c.Command], after: bool
) -> None:
    controller.store.cut(kind, after=after)
    await manager.create("g", CONFIG)
    assert (await (await manager.open("g")).state()).config.same_settings(CONFIG)
    assert not await manager.create("g", CONFIG)
