"""A creation takes its stream for a new one, and reads what exists when a write fails."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.common.names import MARK_PREFIX
from tailrace.common.stream_policies import StreamConfig
from tailrace.controller.managers.streams import OtherIncarnationError
from tailrace.controller.metadata.metadata_store import scope_table
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
MARK = StreamKey("scope", f"{MARK_PREFIX}stream")
SCOPE = pb.ScopeInfo(scope="scope")
IDLE_S = 60.0
Status = pb.CreateStreamStatus


async def state_of(controller: Any, key: StreamKey) -> tuple[int, StreamState]:
    root = await controller.services.core.context.store.load(key)
    return root.incarnation, root.state


async def test_another_controller_finds_that_the_stream_exists(world: Any, make_api: Any) -> None:
    first, second = await world.start(idle_s=IDLE_S), await world.start(idle_s=IDLE_S, seed=2)
    await make_api(first).setup(2)
    api = make_api(second)
    assert (await api.call("createStream", api.config(2))).status == Status.STREAM_EXISTS
    assert (await api.call("createStream", api.config(3))).status == Status.STREAM_EXISTS
    assert await state_of(second, KEY) == (0, StreamState.ACTIVE)


async def test_a_mark_stream_that_was_there_before_its_stream_is_created_again(world: Any, make_api: Any) -> None:
    first, second = await world.start(idle_s=IDLE_S), await world.start(idle_s=IDLE_S, seed=2)
    earlier = make_api(first, stream=MARK.stream)
    await earlier.setup()
    await earlier.call("sealStream", earlier.info)
    await earlier.call("deleteStream", earlier.info)
    api = make_api(second)
    assert (await api.call("createStream", api.config())).status == Status.SUCCESS
    assert await state_of(second, KEY) == (0, StreamState.ACTIVE)
    assert await state_of(second, MARK) == (1, StreamState.ACTIVE)


async def test_a_scope_whose_table_was_never_made_gets_it(world: Any, make_api: Any) -> None:
    controller = await world.start(idle_s=IDLE_S)
    api = make_api(controller)
    await api.call("createScope", SCOPE)
    owner = await controller.services.core.context.scopes.require("scope")
    await world.metadata.delete_table(scope_table("scope", owner.nonce))
    assert (await api.call("createStream", api.config())).status == Status.SUCCESS
    assert sorted(world.metadata.dump_table(scope_table("scope", owner.nonce))) == [
        f"s/{MARK.stream}".encode(),
        b"s/stream",
    ]


async def test_only_the_wanted_incarnation_is_created(world: Any, make_api: Any) -> None:
    first, second = await world.start(idle_s=IDLE_S), await world.start(idle_s=IDLE_S, seed=2)
    api = make_api(first)
    await api.setup()
    await api.call("sealStream", api.info)
    await api.call("deleteStream", api.info)
    streams = second.services.core.streams
    with pytest.raises(OtherIncarnationError, match=r"its next incarnation is 1, not 0"):
        await streams.create(KEY, StreamConfig(), incarnation=0)
    assert await streams.create(KEY, StreamConfig(), incarnation=1)
    assert await state_of(second, KEY) == (1, StreamState.ACTIVE)
