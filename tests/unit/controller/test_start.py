"""Controllers start although a part of their tables is away, or a first attempt fails for any reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.controller.app import Controller
from tailrace.controller.metadata.metadata_store import (
    CONTROLLERS_TABLE,
    OWN_TABLES,
    PENDING_TABLE,
    SCOPES_TABLE,
    bucket_of,
    bucket_table,
)
from tailrace.controller.rest.app import create_app
from tailrace.rpc import controller_pb2 as pb

DEADLINE_S = 120.0
SCOPE = pb.ScopeInfo(scope="scope")


class Failing:
    """A metadata store: calls about some tables hang or fail."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.hanging: set[str] = set()
        self.failure: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(table: str, *args: Any) -> Any:
            if table in self.hanging:
                await asyncio.Event().wait()
            if self.failure is not None:
                raise self.failure
            return await method(table, *args)

        return call


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONTROLLER_START_TIMEOUT_S", 0.05)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the stores are plain data
            await asyncio.sleep(0.005)


def over(world: Any, failing: Failing) -> Controller:
    world.metadata, kept = failing, world.metadata
    controller: Controller = world.make()
    world.metadata = kept
    return controller


def stream(name: str) -> pb.StreamConfig:
    info = pb.StreamInfo(scope="scope", stream=name)
    return pb.StreamConfig(streamInfo=info, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))


async def test_a_container_that_is_away_stops_its_own_streams_only(world: Any, short_timeout: None) -> None:
    healthy, away = "a", next(f"s{n}" for n in range(100) if bucket_of("scope", f"s{n}") != bucket_of("scope", "a"))
    failing = Failing(world.metadata)
    failing.hanging = {bucket_table(bucket_of("scope", away))}
    controller = over(world, failing)
    controller.start_when_possible()
    await eventually(lambda: controller.ready)
    await controller.services.call("createScope", SCOPE)
    created: Any = await controller.services.call("createStream", stream(healthy))
    assert created.status == pb.CreateStreamStatus.SUCCESS
    failing.hanging.clear()


@pytest.mark.parametrize("table", [SCOPES_TABLE, PENDING_TABLE, CONTROLLERS_TABLE])
async def test_a_controller_starts_without_any_one_table(world: Any, short_timeout: None, table: str) -> None:
    failing = Failing(world.metadata)
    failing.hanging = {table}
    controller = over(world, failing)
    controller.start_when_possible()
    await eventually(lambda: controller.ready)


async def test_without_any_table_it_is_not_ready(world: Any, short_timeout: None) -> None:
    failing = Failing(world.metadata)
    failing.hanging = set(OWN_TABLES)
    controller = over(world, failing)
    controller.start_when_possible()
    await asyncio.sleep(10 * limits.CONTROLLER_START_TIMEOUT_S)
    assert not controller.ready


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (UnavailableError("container 3 is not open"), "container 3 is not open"),
        (ValueError("something unforeseen"), "ValueError: something unforeseen"),
    ],
    ids=["expected", "unexpected"],
)
async def test_any_error_is_reported_and_repeated(world: Any, failure: Exception, words: str) -> None:
    failing = Failing(world.metadata)
    failing.failure = failure
    controller = over(world, failing)
    controller.start_when_possible()
    await eventually(lambda: words in controller.trouble)
    app = create_app(controller)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://controller") as rest:
        health = (await rest.get("/v1/health")).json()
    assert (health["status"], words in health["details"]["trouble"]) == ("STARTING", True)
    failing.failure = None
    await eventually(lambda: controller.ready and not controller.trouble)
    assert world.metadata.dump().keys() >= set(OWN_TABLES)


async def test_work_without_room_is_adopted_when_there_is_room(world: Any) -> None:
    first = await world.start(idle_s=60.0)  # idle streams stay pending
    await first.services.call("createScope", SCOPE)
    for number in range(4):
        await first.services.call("createStream", stream(f"s{number}"))
    await first.close()
    assert len(world.metadata.dump_table(PENDING_TABLE)) == 4
    await world.start(seed=2, sole=True, look_s=0.01, rescan_s=0.02, streams_max=2)
    await eventually(lambda: not world.metadata.dump_table(PENDING_TABLE))
