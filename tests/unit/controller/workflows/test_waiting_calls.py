"""Calls end with the reason when their workflow cannot get on, and the workflow goes on without them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from harness.interception import Call, EachSegment, Intercepted
from tailrace.common import call_deadline
from tailrace.common.errors import DeadlineError, NoSuchStreamError, UnavailableError
from tailrace.controller.workflows.entities import READER_GROUP, Entity
from tailrace.rpc import controller_pb2 as pb

GENEROUS_S = 30.0


class Away(EachSegment):
    """Segments of which some cannot be reached; notes which deadline each request has."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.words = ""
        self.deadlines: list[tuple[str, float]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(segment: Any, *args: Any, **keywords: Any) -> Any:
            self.deadlines.append((f"{name} {segment}", call_deadline.deadline_s()))
            if self.words and isinstance(segment, str) and self.words in segment:
                raise UnavailableError("container 3 stopped: damaged")
            return await method(segment, *args, **keywords)

        return call


@pytest.fixture
async def away(world: Any) -> Away:
    return Away(world.segments)


@pytest.fixture
async def controller(world: Any, away: Away) -> Any:
    world.segments, kept = away, world.segments
    controller = world.make(blocking_deadline_s=3600.0)
    world.segments = kept
    await controller.start()
    return controller


@contextlib.contextmanager
def calls_end_early(controller: Any) -> Iterator[None]:
    """Give the requests of calls less time; only where they are to fail, because it is too short on a slow machine."""
    config = controller.services.core.context.config
    usual_s = config.requests_deadline_s
    object.__setattr__(config, "requests_deadline_s", 0.2)
    try:
        yield
    finally:
        object.__setattr__(config, "requests_deadline_s", usual_s)


def group(scope: str, name: str, streams: Sequence[str]) -> pb.ReaderGroupConfiguration:
    cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream=each)) for each in streams]
    identity = "00000000-0000-0000-0000-000000000001"
    return pb.ReaderGroupConfiguration(
        scope=scope, readerGroupName=name, readerGroupId=identity, startingStreamCuts=cuts, endingStreamCuts=cuts
    )


async def test_a_group_whose_segment_cannot_be_made(make_api: Any, controller: Any, away: Away) -> None:
    api = make_api(controller)
    await api.setup(1)
    away.words = "_RGgroup"
    async with asyncio.timeout(GENEROUS_S):
        for _ in range(2):  # the second one waits for the workflow of the first
            with (
                calls_end_early(controller),
                pytest.raises(UnavailableError, match=r"group scope/group waits.*container 3 stopped: damaged"),
            ):
                await api.call("createReaderGroup", group("scope", "group", ["stream"]))
        away.words = ""
        created = await api.call("createReaderGroup", group("scope", "group", ["stream"]))
    assert created.status == pb.CreateReaderGroupResponse.SUCCESS


async def test_a_stream_whose_segment_cannot_be_made(
    make_api: Any, controller: Any, away: Away, wait_until: Any
) -> None:
    api = make_api(controller)
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    away.words = "scope/stream/"
    async with asyncio.timeout(GENEROUS_S):
        with (
            calls_end_early(controller),
            pytest.raises(UnavailableError, match=r"stream scope/stream waits.*container 3 stopped: damaged"),
        ):
            await api.call("createStream", api.config(1))
    away.words = ""

    async def exists() -> bool:
        try:
            return bool(await api.current())
        except NoSuchStreamError:
            return False

    await wait_until(exists)


async def test_workflows_do_not_end_with_the_call_that_began_them(make_api: Any, controller: Any, away: Away) -> None:
    api = make_api(controller)
    await api.setup(1)
    await api.call("createReaderGroup", group("scope", "group", ["stream"]))
    table = pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=1, primaryKeyLength=4)
    await api.call("createKeyValueTable", table)
    made = [each for each in away.deadlines if each[0].startswith("create")]
    assert len(made) >= 5
    assert {deadline for _, deadline in made} == {math.inf}, made
    away.deadlines.clear()
    await api.begin()
    assert [deadline < math.inf for name, deadline in away.deadlines if "#transaction" in name] == [True]


async def test_the_wait_for_another_workflow_does_not_count(
    make_api: Any, world: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    """A call that has waited for longer than its requests may take has all their time for what follows."""
    loop, opened = asyncio.get_running_loop(), asyncio.Event()
    holding, skipped_s, real_time = asyncio.Event(), 0.0, loop.time

    async def timely(name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if call_deadline.deadline_s() <= loop.time():
            raise DeadlineError(f"{name}: no reply within 0 s")
        return await call()

    async def held(name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if name == "create_segment" and "_RGgroup" in arguments[0]:
            holding.set()
            await opened.wait()
        return await call()

    world.metadata, world.segments = Intercepted(world.metadata, timely), Intercepted(world.segments, held)
    controller = await world.start(blocking_deadline_s=3600.0)
    api = make_api(controller)
    await api.setup(1)
    both = []
    for _ in range(2):
        request = group("scope", "group", ["stream"])
        both.append(asyncio.create_task(api.call("createReaderGroup", request)))
        await asyncio.wait_for(holding.wait(), GENEROUS_S)
    entity = Entity(READER_GROUP, "scope", "group")

    async def both_wait() -> bool:
        return len(controller.services.core.groups._entities._callers.get(entity, ())) == 2

    await wait_until(both_wait)
    monkeypatch.setattr(loop, "time", lambda: real_time() + skipped_s)
    skipped_s = 2 * controller.services.core.context.config.requests_deadline_s
    opened.set()
    answers = await asyncio.gather(*both)
    assert [answer.status for answer in answers] == [pb.CreateReaderGroupResponse.SUCCESS] * 2
