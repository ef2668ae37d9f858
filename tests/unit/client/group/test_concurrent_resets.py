"""Resets of one group by several clients at the same time: each takes effect, one after the other."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.localtransport import LocalTransport
from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.model import StreamName
from tailrace.common.errors import NotFoundError, WriteConflictError
from tailrace.rpc import controller_pb2 as pb

STREAM, OTHER = StreamName("s", "t"), StreamName("s", "other")
DEADLINE_S = 120.0


@pytest.fixture
async def context(controller: Any) -> AsyncIterator[ClientContext]:
    """A client whose controller does not have the streams of ``controller.missing``."""
    controller.missing = {"typo"}

    async def handle(method: str, request: Any) -> Any:
        info = getattr(request, "streamInfo", request)
        if method in ("getSegments", "getCurrentSegments") and info.stream in controller.missing:
            raise NotFoundError(f"stream {info.scope}/{info.stream} does not exist")
        return await controller.handle(method, request)

    context = ClientContext(LocalTransport(handle))
    yield context
    await context.close()


@pytest.fixture
async def manager(controller: Any, context: ClientContext) -> ReaderGroupManager:
    """A scope with a group over one segment."""
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", group_config({STREAM: None}, automatic_checkpoint_ms=-1))
    return manager


async def test_two_resets_at_the_same_time_both_succeed(controller: Any, manager: ReaderGroupManager) -> None:
    first, second = await manager.open("g"), await manager.open("g")
    before = (await first.state()).config.generation
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(first.reset(), second.reset())
    for group in (first, second):
        state = await group.state()
        assert (state.config.generation, state.updating_config) == (before + 2, False)
    assert controller.groups["g"].generation == before + 2


async def test_a_reset_begins_again_when_another_one_completes_before_it(
    manager: ReaderGroupManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one ends between this one's look at the state and its first write."""
    group, other = await manager.open("g"), await manager.open("g")
    before = (await group.state()).config.generation
    update = group._synchronizer.update
    others = [other]

    async def late(*arguments: Any) -> Any:
        while others:
            await others.pop().reset()
        return await update(*arguments)

    monkeypatch.setattr(group._synchronizer, "update", late)
    wanted = group_config({STREAM: None}, automatic_checkpoint_ms=-1, group_refresh_ms=77)
    async with asyncio.timeout(DEADLINE_S):
        await group.reset(wanted)
    config = (await group.state()).config
    assert (config.generation, config.group_refresh_ms) == (before + 2, 77)


async def test_a_reset_to_a_stream_that_is_missing_changes_nothing(manager: ReaderGroupManager) -> None:
    group = await manager.open("g")
    before = (await group.state()).config
    with pytest.raises(NotFoundError, match="s/typo"):
        await group.reset(group_config({STREAM: None, StreamName("s", "typo"): None}))
    state = await group.state()
    assert (state.config, state.updating_config) == (before, False)
    await group.reset(group_config({STREAM: None}, group_refresh_ms=77))
    assert (await group.state()).config.group_refresh_ms == 77


async def test_a_reset_without_a_configuration_leaves_streams_that_were_deleted(
    controller: Any, manager: ReaderGroupManager
) -> None:
    group = await manager.open("g")
    await group.reset(group_config({STREAM: None, OTHER: None}))
    controller.missing.add(OTHER.stream)
    await group.reset()
    state = await group.state()
    assert (list(state.config.starting), state.updating_config) == ([str(STREAM)], False)
    controller.missing.add(STREAM.stream)
    with pytest.raises(NotFoundError, match="all streams of the group are deleted"):
        await group.reset()


async def test_a_reset_that_another_client_left_is_finished_without_a_stream_that_was_deleted(
    controller: Any, manager: ReaderGroupManager
) -> None:
    group = await manager.open("g")
    config = (await group.state()).config
    wanted = dataclasses.replace(group_config({STREAM: None, OTHER: None}), group_id=config.group_id, generation=0)
    await group._context.controller.update_reader_group("s", "g", wanted)
    controller.missing.add(OTHER.stream)
    await group.reset(group_config({STREAM: None}, group_refresh_ms=77))
    config = (await group.state()).config
    assert (config.group_refresh_ms, config.generation) == (77, 2)


async def test_a_reset_that_another_client_left_is_finished_without_another_one(manager: ReaderGroupManager) -> None:
    group = await manager.open("g")
    before = (await group.state()).config
    await group.finish_reset()
    assert (await group.state()).config == before, "there is nothing to finish"
    wanted = dataclasses.replace(before, group_refresh_ms=77)
    await group._context.controller.update_reader_group("s", "g", wanted)
    await group.finish_reset()
    state = await group.state()
    assert (state.config.group_refresh_ms, state.config.generation, state.updating_config) == (77, 1, False)


async def test_a_refused_reset_is_not_repeated_when_no_other_one_took_effect(
    controller: Any, manager: ReaderGroupManager
) -> None:
    group = await manager.open("g")
    asked = 0

    def refuse(_: object) -> object:
        nonlocal asked
        asked += 1
        return pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.INVALID_CONFIG)

    controller.answers["updateReaderGroup"] = refuse
    with pytest.raises(WriteConflictError):
        await group.reset()
    assert asked == 1
