"""Large requests run while they fit together, in their order; others wait for none of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.controller.grpc.large_requests import LargeRequests

MOST = limits.RPC_LARGE_REQUESTS_MAX_BYTES


class Request:
    """One that runs until its end is asked for."""

    def __init__(self, requests: LargeRequests, length_bytes: int) -> None:
        self.runs = False
        self.then: Callable[[], object] = bool
        """Called in the turn in which it ended."""
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._run(requests, length_bytes))

    async def _run(self, requests: LargeRequests, length_bytes: int) -> None:
        async with requests.room(length_bytes):
            self.runs = True
            await self._end.wait()
        self.then()

    async def end(self) -> None:
        """End it as it would by itself."""
        self._end.set()
        await self.task

    async def cancel(self) -> None:
        """End it as a client does that goes away."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def running(*requests: Request) -> list[bool]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [request.runs for request in requests]


async def test_requests_wait_for_room_in_their_order_and_small_ones_for_nothing() -> None:
    room = LargeRequests()
    first, second, third = (Request(room, length) for length in (MOST // 2, MOST, limits.RPC_LARGE_REQUEST_BYTES + 1))
    small = Request(room, limits.RPC_LARGE_REQUEST_BYTES)
    assert await running(first, second, third, small) == [True, False, False, True]
    await first.end()
    assert await running(second, third) == [True, False]
    await second.end()
    assert await running(third) == [True]
    await third.end()
    await small.end()
    whole = Request(room, MOST)
    assert await running(whole) == [True], "all room is free again"
    await whole.end()


async def test_who_goes_away_leaves_its_turn_to_the_next() -> None:
    room = LargeRequests()
    first, second, third = (Request(room, MOST) for _ in range(3))
    assert await running(first, second, third) == [True, False, False]
    await second.cancel()
    assert await running(third) == [False]
    await first.cancel()
    assert await running(third) == [True]
    fourth, fifth = (Request(room, MOST) for _ in range(2))
    assert await running(fourth) == [False]
    third.then = fourth.task.cancel  # whose turn has come then, which it does not know yet
    await third.end()
    assert await running(fourth, fifth) == [False, True]
    await fifth.end()


async def test_too_many_bytes_that_wait_are_refused() -> None:
    room = LargeRequests()
    fits = limits.RPC_LARGE_REQUESTS_WAITING_MAX_BYTES // MOST
    requests = [Request(room, MOST) for _ in range(1 + fits)]
    assert (await running(*requests)).count(True) == 1
    with pytest.raises(UnavailableError):
        await Request(room, MOST).task
    await requests.pop().cancel()
    requests.append(Request(room, MOST))
    for request in requests:
        await request.end()


async def test_one_that_waits_for_long_holds_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    room = LargeRequests()
    monkeypatch.setattr(limits, "RPC_REQUESTS_DEADLINE_S", 0.01)
    first = Request(room, MOST)
    assert await running(first) == [True]
    monkeypatch.setattr(limits, "RPC_REQUESTS_DEADLINE_S", 3600.0)
    second, third = (Request(room, MOST) for _ in range(2))
    async with asyncio.timeout(120):
        while not second.runs:  # noqa: ASYNC110 - of the timer's making
            await asyncio.sleep(0.001)
    await first.end()
    assert await running(third) == [False], "the first one's room was given back once"
    await second.end()
    await third.end()
