"""Calls that wait for each other become batches; failures and cancellations stay where they belong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tailrace.common.call_deadline import call_deadline
from tailrace.common.errors import UnavailableError
from tailrace.controller.managers.combined_calls import CombinedCalls


class Work:
    """Notes its batches, and ends each one when it is let go."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.gate = asyncio.Semaphore(0)
        self.failing = False

    async def __call__(self, key: str, arguments: Sequence[int]) -> list[int]:
        self.batches.append((key, list(arguments)))
        await self.gate.acquire()
        if self.failing:
            raise UnavailableError("the store does not answer")
        return [10 * each for each in arguments]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_while_a_batch_runs_is_in_the_next_one() -> None:
    work = Work()
    calls = CombinedCalls(work, 3)
    first = asyncio.create_task(calls.call("a", 0))
    await turns()
    others = [asyncio.create_task(calls.call("a", number)) for number in range(1, 6)]
    await turns()
    assert work.batches == [("a", [0])]
    for _ in range(3):
        work.gate.release()
        await turns()
    assert work.batches == [("a", [0]), ("a", [1, 2, 3]), ("a", [4, 5])]
    assert [await first, *[await one for one in others]] == [0, 10, 20, 30, 40, 50]
    work.gate.release()
    assert await calls.call("a", 7) == 70
    assert calls._waiting == {}


async def test_keys_do_not_wait_for_each_other() -> None:
    work = Work()
    calls = CombinedCalls(work, 3)
    both = [asyncio.create_task(calls.call(key, 1)) for key in ("a", "b")]
    await turns()
    assert work.batches == [("a", [1]), ("b", [1])]
    work.gate.release()
    work.gate.release()
    assert await asyncio.gather(*both) == [10, 10]


async def test_a_failure_is_that_of_its_batch_alone() -> None:
    work = Work()
    work.failing = True
    calls = CombinedCalls(work, 3)
    first = asyncio.create_task(calls.call("a", 0))
    await turns()
    second = asyncio.create_task(calls.call("a", 1))
    work.gate.release()
    with pytest.raises(UnavailableError):
        await first
    work.failing = False
    work.gate.release()
    assert await second == 10


async def test_a_cancelled_caller_takes_nothing_from_the_others() -> None:
    work = Work()
    calls = CombinedCalls(work, 3)
    tasks = [asyncio.create_task(calls.call("a", 0))]
    await turns()
    tasks += [asyncio.create_task(calls.call("a", number)) for number in (1, 2, 3)]
    await turns()
    for number in (0, 2):
        tasks[number].cancel()
    await turns()
    work.gate.release()
    await turns()
    assert work.batches == [("a", [0]), ("a", [1, 3])]
    tasks[3].cancel()
    work.gate.release()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in results] == [
        asyncio.CancelledError,
        int,
        asyncio.CancelledError,
        asyncio.CancelledError,
    ]
    assert results[1] == 10
    assert calls._waiting == {}


async def test_callers_are_cancelled_with_the_batch() -> None:
    work = Work()
    calls = CombinedCalls(work, 3)
    tasks = [asyncio.create_task(calls.call("a", 0))]
    await turns()
    tasks.append(asyncio.create_task(calls.call("a", 1)))
    await turns()
    for task in calls._tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in results] == [asyncio.CancelledError] * 2
    assert calls._waiting == {}


async def test_a_call_waits_for_others_no_longer_than_its_deadline() -> None:
    """What has not begun when its caller has gone is left out; the batch that runs goes on for the others."""
    work = Work()
    calls = CombinedCalls(work, 3)
    patient = asyncio.create_task(calls.call("a", 0))
    await turns()
    with call_deadline(0.01), pytest.raises(UnavailableError, match="others"):
        await asyncio.wait_for(calls.call("a", 1), 60)
    work.gate.release()
    work.gate.release()
    assert await patient == 0
    assert await calls.call("a", 2) == 20
    assert work.batches == [("a", [0]), ("a", [2])]
    assert calls._waiting == {}
