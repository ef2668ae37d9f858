"""Streams that lists of the controllers have lost, as after a restore: a round of the sweep puts them back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from tailrace.controller.metadata.metadata_store import MARKED_TABLE, PENDING_TABLE, RETENTION_TABLE
from tailrace.controller.metadata.ports import UNCONDITIONAL
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

from .test_sweep_job import ModelListing

KEY = StreamKey("scope", "stream")
LISTS = (PENDING_TABLE, RETENTION_TABLE, MARKED_TABLE)
POLICY = pb.RetentionPolicy(retentionType=pb.RetentionPolicy.SIZE, retentionParam=5)


async def begin(world: Any, make_api: Any, seed: int = 1) -> Any:
    """A controller; only the test makes rounds of the sweep."""
    settings = {"sole": True, "sweep_period_s": 3600.0, "retention_period_s": 10_000.0, "watermark_period_s": 3600.0}
    api = make_api(await world.start(seed=seed, listing=ModelListing(world), **settings))
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    return api


async def round_(api: Any) -> None:
    await api.controller.sweep.round(api.controller.sweep._source)


async def lose_lists(world: Any) -> None:
    for table in LISTS:
        await world.metadata.remove(table, [(key, UNCONDITIONAL) for key in world.metadata.dump_table(table)])


async def note_time(api: Any) -> None:
    segment = (await api.current())[0]
    time = pb.TimestampFromWriter(writer="w", timestamp=5, position=pb.StreamCut(streamInfo=api.info, cut={segment: 0}))
    assert (await api.call("noteTimestampFromWriter", time)).result == pb.TimestampResponse.SUCCESS


async def test_streams_with_policies_and_with_writers_are_listed_again(world: Any, make_api: Any) -> None:
    api = await begin(world, make_api)
    await api.setup(3, retentionPolicy=POLICY)
    await note_time(api)
    plain = make_api(api.controller, stream="plain")
    await plain.setup(1)
    before = {table: set(world.metadata.dump_table(table)) for table in (RETENTION_TABLE, MARKED_TABLE)}
    assert list(before.values()) == [{KEY.root}, {KEY.root}]
    await api.controller.close()
    await lose_lists(world)
    api = await begin(world, make_api, seed=2)
    with structlog.testing.capture_logs() as logs:
        await round_(api)
        await round_(api)
    assert {table: set(world.metadata.dump_table(table)) for table in before} == before
    listed = [line["list"] for line in logs if line["event"] == "stream_listed_again"]
    assert sorted(listed) == ["retention", "writers"]
    assert api.controller.sweep.lists.restored == 2


async def test_work_that_is_not_listed_is_resumed(
    world: Any, make_api: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale and an open transaction of a controller whose marks are lost."""
    api = await begin(world, make_api)
    await api.setup(1)
    held, real = asyncio.Event(), world.segments.create_segment

    async def hold(name: str, **fields: Any) -> None:
        if ".#epoch.1" in name and "#transaction" not in name:
            held.set()
            await asyncio.Event().wait()
        await real(name, **fields)

    monkeypatch.setattr(world.segments, "create_segment", hold)
    begun = await api.begin(lease_ms=10_000)
    assert (await api.scale([0], [(0.0, 0.5), (0.5, 1.0)])).status == pb.ScaleResponse.STARTED
    async with asyncio.timeout(120):
        await held.wait()
    await api.controller.close()
    monkeypatch.setattr(world.segments, "create_segment", real)
    await lose_lists(world)
    api = await begin(world, make_api, seed=2)
    store = api.controller.services.core.context.store
    assert (await store.load(KEY)).intent is not None
    await round_(api)

    async def is_scaled() -> bool:
        return (await store.load(KEY)).intent is None

    await wait_until(is_scaled)
    assert len(await api.current()) == 2
    assert api.controller.services.core.driver.open_transactions == 1, "its lease is watched"
    assert KEY.root in {key.removeprefix(b"stream/") for key in world.metadata.dump_table(PENDING_TABLE)}
    assert await api.abort(begun.txnId) == pb.TxnStatus.SUCCESS


async def test_a_deleted_stream_is_not_listed_again(world: Any, make_api: Any) -> None:
    api = await begin(world, make_api)
    await api.setup(1, retentionPolicy=POLICY)
    await note_time(api)
    await api.call("sealStream", api.info)
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS
    await world.segments.create_segment("scope/stream/0.#epoch.0")
    await lose_lists(world)
    await round_(api)
    assert not any(world.metadata.dump_table(table) for table in (RETENTION_TABLE, MARKED_TABLE))
    assert api.controller.sweep.lists.restored == 0
