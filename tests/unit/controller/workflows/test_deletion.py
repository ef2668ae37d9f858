"""The deletion of streams that remember many transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from harness.interception import Call, Intercepted
from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError, CorruptionError, NoSuchStreamError
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
TRANSACTIONS = 40


@pytest.fixture
async def sealed(api: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls to a controller with a sealed stream that remembers many chunks of transactions."""
    monkeypatch.setattr(limits, "COMPLETED_TRANSACTIONS_PER_CHUNK", 2)
    monkeypatch.setattr(limits, "WORKFLOW_BACKOFF_INITIAL_S", 0.001)
    monkeypatch.setattr(limits, "WORKFLOW_BACKOFF_MAX_S", 0.002)
    await api.setup(1)
    begun = [await api.begin() for _ in range(TRANSACTIONS)]
    await asyncio.gather(*(api.commit(each.txnId) for each in begun))
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    return api


def records(world: Any) -> list[bytes]:
    """The keys of the stream's records."""
    return [key for key in world.metadata.dump_table(KEY.table) if key == KEY.root or key.startswith(KEY.root + b"/")]


async def test_a_step_that_fails_loses_no_progress(sealed: Any, world: Any) -> None:
    """Each third removal of transactions fails, as each step did that had no time for all of them."""
    removals = 0
    real = world.metadata.remove

    async def remove(table: str, keys: Sequence[tuple[bytes, int]]) -> None:
        nonlocal removals
        if any(key.startswith(b"scope/stream/t/") for key, _ in keys):
            removals += 1
            if removals % 3 == 0:
                raise ConnectionLostError("call lost")
        await real(table, keys)

    world.metadata.remove = remove
    deleted = await sealed.call("deleteStream", sealed.info)
    assert deleted.status == pb.DeleteStreamStatus.SUCCESS
    assert records(world) == [KEY.root]


async def test_two_controllers_delete_it_together(sealed: Any, world: Any, make_api: Any) -> None:
    other = make_api(await world.start(seed=2))
    answers = await asyncio.gather(*(api.call("deleteStream", api.info) for api in (sealed, other)))
    assert [answer.status for answer in answers] == [pb.DeleteStreamStatus.SUCCESS] * 2
    assert records(world) == [KEY.root]
    root = await other.controller.services.core.context.store.load(KEY)
    assert (root.completed_first, root.completed_next) == (0, 0)


async def test_calls_about_a_stream_whose_records_are_gone_find_no_stream(world: Any, make_api: Any) -> None:
    """The root still says that the stream is being deleted, or the caller has read it before."""
    removed, opened = asyncio.Event(), asyncio.Event()

    async def held(name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if name == "put" and KEY.root in [put.key for put in arguments[1]] and removed.is_set():
            await opened.wait()
        result = await call()
        if name == "remove" and KEY.epoch(0, 0) in [key for key, _ in arguments[1]]:
            removed.set()
        return result

    first, stored = Intercepted(world.metadata, held), world.metadata
    world.metadata = first
    api = make_api(await world.start())
    world.metadata = stored
    await api.setup(1)
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    deletion = asyncio.create_task(api.call("deleteStream", api.info))
    await asyncio.wait_for(removed.wait(), 120.0)
    other = make_api(await world.start(seed=2))
    root = await other.controller.services.core.context.store.load(KEY)
    segment = pb.SegmentId(streamInfo=api.info, segmentId=0)
    for rpc, request in (
        ("getSegments", pb.GetSegmentsRequest(streamInfo=api.info)),
        ("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=api.info, epoch=0)),
        ("isSegmentValid", segment),
        ("getSegmentsImmediatelyFollowing", segment),
    ):
        with pytest.raises(NoSuchStreamError, match="scope/stream"):
            await other.call(rpc, request)
    opened.set()
    assert (await deletion).status == pb.DeleteStreamStatus.SUCCESS
    store = other.controller.services.core.context.store
    with pytest.raises(NoSuchStreamError):
        await store.active_epoch(KEY, root)
    await api.setup(1)
    with pytest.raises(NoSuchStreamError):
        await store.active_epoch(KEY, root)


async def test_an_epoch_that_is_missing_from_a_stream_is_a_corruption(world: Any, api: Any, make_api: Any) -> None:
    await api.setup(1)
    other = make_api(await world.start(seed=2))
    store = other.controller.services.core.context.store
    await store.remove(KEY, [KEY.epoch(0, 0)])
    with pytest.raises(CorruptionError, match="an epoch of the stream is missing"):
        await store.active_epoch(KEY, await store.load(KEY))
