"""Steps that wait for a container that is away take no place from the steps of other streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.controller.metadata.metadata_store import bucket_of, bucket_table
from tailrace.controller.metadata.records import PendingRecord
from tailrace.controller.workflows.pending_mark import STREAM
from tailrace.controller.workflows.slots import StepSlots
from tailrace.rpc import controller_pb2 as pb

DEADLINE_S = 120.0


class Hanging:
    """A metadata store in which calls about one table hang."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.table = ""
        self.waiting = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(table: str, *args: Any) -> Any:
            if table == self.table:
                self.waiting += 1
                await asyncio.Event().wait()
            return await method(table, *args)

        return call


def stream(name: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope="scope", stream=name)


async def test_streams_of_a_container_that_is_away_do_not_stop_others(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WORKFLOW_STEPS_CONCURRENT_MAX", 4)
    monkeypatch.setattr(limits, "WORKFLOW_STEP_SLOW_S", 0.02)
    hanging, kept = Hanging(world.metadata), world.metadata
    world.metadata = hanging
    controller = world.make(idle_s=60.0)
    world.metadata = kept
    await controller.start()
    await controller.services.call("createScope", pb.ScopeInfo(scope="scope"))
    away_bucket = bucket_of("scope", "s0")
    alike = [f"s{n}" for n in range(3000) if bucket_of("scope", f"s{n}") == away_bucket][:12]
    other = next(f"t{n}" for n in range(100) if bucket_of("scope", f"t{n}") != away_bucket)
    policy = pb.ScalingPolicy(minNumSegments=1)
    for name in alike:
        await controller.services.call("createStream", pb.StreamConfig(streamInfo=stream(name), scalingPolicy=policy))
    hanging.table = bucket_table(away_bucket)
    for name in alike:
        # The stream's task reads its root, as always when another controller left work.
        await controller.services.core.driver.adopt(PendingRecord(STREAM, "scope", name, "another"))
    async with asyncio.timeout(DEADLINE_S):
        while hanging.waiting < len(alike):  # noqa: ASYNC110 - the stores are plain data
            await asyncio.sleep(0.005)
        config = pb.StreamConfig(streamInfo=stream(other), scalingPolicy=policy)
        created = await controller.services.call("createStream", config)
    assert created.status == pb.CreateStreamStatus.SUCCESS


async def test_slow_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKFLOW_STEPS_CONCURRENT_MAX", 2)
    monkeypatch.setattr(limits, "WORKFLOW_STEP_SLOW_S", 0.01)
    monkeypatch.setattr(limits, "WORKFLOW_SLOW_STEPS_MAX", 3)
    slots, go, began = StepSlots(), asyncio.Event(), 0

    async def step() -> None:
        nonlocal began
        async with slots.slot():
            began += 1
            await go.wait()

    tasks = [asyncio.ensure_future(step()) for _ in range(10)]
    async with asyncio.timeout(DEADLINE_S):
        while began < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    assert (began, slots.slow) == (5, 3), "three without a slot, and two with one"
    go.set()
    await asyncio.gather(*tasks)
    assert (began, slots.slow) == (10, 0)
