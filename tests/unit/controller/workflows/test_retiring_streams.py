"""A stream's task ends after a time without work; errors of its last calls cost the stream no later work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from harness.interception import Call, Intercepted
from tailrace.common.errors import PermissionDeniedError
from tailrace.controller.metadata.metadata_store import PENDING_TABLE
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
MARK = b"stream/scope/stream"
DEADLINE_S = 120.0
ERRORS = [PermissionDeniedError("the token was refused"), RuntimeError("unforeseen")]
each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


class Refusing:
    """Refuses one call that matches, when that is allowed to go on."""

    def __init__(self, match: Callable[[str, tuple[Any, ...]], bool], error: Exception) -> None:
        self._match = match
        self._error = error
        self.reached, self.goes_on, self.marked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.goes_on.set()

    def wrap(self, target: Any) -> Any:
        """The store with the refusal in front of it."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if not self.reached.is_set() and self._match(name, arguments):
            self.reached.set()
            await self.goes_on.wait()
            raise self._error
        result = await call()
        if self.reached.is_set() and name == "put" and arguments[0] == PENDING_TABLE and arguments[1][0].key == MARK:
            self.marked.set()
        return result


def removes_mark(name: str, arguments: tuple[Any, ...]) -> bool:
    return name == "remove" and arguments[0] == PENDING_TABLE and arguments[1][0][0] == MARK


async def sealed(api: Any) -> bool:
    async with asyncio.timeout(DEADLINE_S):
        return bool((await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS)


@each_error
async def test_a_mark_that_cannot_be_removed_costs_no_later_work(world: Any, make_api: Any, error: Exception) -> None:
    refusing = Refusing(removes_mark, error)
    api = make_api(await world.start(refusing, blocking_deadline_s=DEADLINE_S))
    with structlog.testing.capture_logs() as logs:
        await api.setup()
        async with asyncio.timeout(DEADLINE_S):
            await refusing.reached.wait()
        assert await sealed(api)
    (logged,) = [line for line in logs if line["event"] == "finished work stays pending"]
    assert str(error) in logged["error"]


@each_error
async def test_a_call_that_comes_while_the_removal_fails_is_carried_out(
    world: Any, make_api: Any, error: Exception
) -> None:
    refusing = Refusing(removes_mark, error)
    refusing.goes_on.clear()
    api = make_api(await world.start(refusing, blocking_deadline_s=DEADLINE_S))
    await api.setup()
    async with asyncio.timeout(DEADLINE_S):
        await refusing.reached.wait()
        sealing = asyncio.ensure_future(sealed(api))
        await refusing.marked.wait()
    refusing.goes_on.set()
    assert await sealing


async def test_an_idle_stream_that_cannot_be_read_costs_no_later_work(world: Any, make_api: Any) -> None:
    def looks(name: str, arguments: tuple[Any, ...]) -> bool:
        """Whether the task looks if it may end: steps before that go by the root that this controller wrote last."""
        if name != "get" or arguments[0] != KEY.table or KEY.root not in arguments[1]:
            return False
        worker = controller._driver._workers.get(KEY)
        return worker is not None and worker.reads_root

    refusing = Refusing(looks, RuntimeError("unforeseen"))
    controller = await world.start(refusing, blocking_deadline_s=DEADLINE_S)
    api = make_api(controller)
    with structlog.testing.capture_logs() as logs:
        await api.setup()
        async with asyncio.timeout(DEADLINE_S):
            await refusing.reached.wait()
        assert await sealed(api)
    (logged,) = [line for line in logs if line["event"] == "idle stream could not be read"]
    assert "unforeseen" in logged["error"]
