"""One deadline for the requests that a call makes one after the other."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.retry import Attempts, with_retries
from tailrace.client.types import Endpoint
from tailrace.common.call_deadline import (
    call_deadline,
    deadline_s,
    request_deadline,
    restart_deadline,
    without_deadline,
)
from tailrace.common.errors import DeadlineError, UnavailableError, WrongHostError
from tailrace.common.real_ports import SystemEntropy
from tailrace.wire import commands as c

CALL_S = 0.3
REQUEST_S = 60.0
GENEROUS_S = 30.0


@pytest.fixture
def segments(store: Any, pool: ConnectionPool) -> SegmentClient:
    async def locate(_: str) -> Endpoint:
        endpoint: Endpoint = store.endpoint
        return endpoint

    return SegmentClient(pool, locate, deadline_s=REQUEST_S)


async def fail_each(segments: SegmentClient, count: int) -> float:
    """Requests one after the other that all fail; the seconds that they took together."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(count):
        with pytest.raises(UnavailableError):
            await segments.segment_info("s/t/0.#epoch.0")
    return loop.time() - began_s


async def test_requests_share_the_deadline_of_their_call(store: Any, segments: SegmentClient) -> None:
    store.rules.append(
        lambda command: (
            [c.WrongHost(command.request_id, "", "", "")] if isinstance(command, c.GetStreamSegmentInfo) else None
        )
    )
    with call_deadline(CALL_S):
        async with asyncio.timeout(GENEROUS_S):
            assert await fail_each(segments, 20) < REQUEST_S / 4
            with pytest.raises((WrongHostError, DeadlineError)):
                await segments.segment_info("s/t/0.#epoch.0")


async def test_a_silent_store_ends_with_the_call(store: Any, segments: SegmentClient) -> None:
    store.rules.append(lambda command: [] if isinstance(command, c.GetStreamSegmentInfo) else None)
    with call_deadline(CALL_S), pytest.raises(DeadlineError, match=r"within 0\.\d+ s"):
        async with asyncio.timeout(GENEROUS_S):
            await segments.segment_info("s/t/0.#epoch.0")


async def test_tasks_of_the_call_share_it_unless_they_outlive_it(store: Any, segments: SegmentClient) -> None:
    store.rules.append(lambda command: [] if isinstance(command, c.GetStreamSegmentInfo) else None)

    async def bound() -> str:
        try:
            await segments.segment_info("s/t/0.#epoch.0")
        except DeadlineError:
            return "ended"
        return "answered"

    async def free() -> str:
        without_deadline()
        return await bound()

    with call_deadline(CALL_S):
        inside, outside = asyncio.ensure_future(bound()), asyncio.ensure_future(free())
        async with asyncio.timeout(GENEROUS_S):
            assert await inside == "ended"
        assert not outside.done()
        outside.cancel()
        await asyncio.gather(outside, return_exceptions=True)


async def test_it_begins_again_after_a_wait_that_has_its_own_bound(store: Any, segments: SegmentClient) -> None:
    name = "s/t/0.#epoch.0"
    store.create(name)
    restart_deadline()  # without a call it does nothing
    with call_deadline(CALL_S):
        await asyncio.sleep(CALL_S + 0.05)
        with pytest.raises(DeadlineError):
            await segments.segment_info(name)
        restart_deadline()
        assert (await segments.segment_info(name)).length == 0
    assert (await segments.segment_info(name)).length == 0


async def test_each_request_has_its_own_bound_and_that_of_the_call() -> None:
    with call_deadline(3600.0), request_deadline(1.0):
        before_s = deadline_s()
        await asyncio.sleep(0.01)
        assert deadline_s() > before_s, "a request that begins later ends later"
        assert deadline_s() <= asyncio.get_running_loop().time() + 1.0
        without_deadline()
        assert deadline_s() == math.inf
    with call_deadline(1.0), request_deadline(3600.0):
        before_s = deadline_s()
        await asyncio.sleep(0.01)
        assert deadline_s() == before_s
    with request_deadline(1.0):
        assert deadline_s() <= asyncio.get_running_loop().time() + 1.0


async def test_an_attempt_that_the_deadline_cuts_short_keeps_the_reason_of_the_one_before() -> None:
    attempts = 0

    async def operation(_: Attempts) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise UnavailableError("segment s is not served by this segment store")
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlineError, match=r"^no reply within 2 s; before: segment s is not served"):
        await with_retries(operation, SystemEntropy(), 2.0)
    assert attempts == 2


async def test_a_request_that_begins_after_the_end_of_its_call_says_so() -> None:
    async def operation(_: Attempts) -> None:
        await asyncio.get_running_loop().create_future()

    with call_deadline(0.001):
        await asyncio.sleep(0.01)
        with pytest.raises(DeadlineError, match=r"^the time of the call was over before this request began$"):
            await with_retries(operation, SystemEntropy(), 2.0)
