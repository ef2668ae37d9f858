"""Work that ends together, whatever ends it."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.common import limits
from tailrace.common.task_groups import gather_bounded, run_all, run_until_first, running


class Work:
    """Runs until it is cancelled, and records the cancellation."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = False

    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended = True


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail(after: Work) -> None:
    await after.begun.wait()
    raise ValueError("first")


async def test_results_are_in_order() -> None:
    assert await run_all(give(1), give(2), give(3)) == [1, 2, 3]
    assert await run_all() == []


async def test_a_failure_ends_the_others_and_leaves_the_caller_alive() -> None:
    work = Work()
    with pytest.raises(ValueError, match="first"):
        await run_all(work.run(), fail(work), give(1))
    assert work.ended
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_failure_while_ending_does_not_hide_the_first_one() -> None:
    work = Work()

    async def fails_when_cancelled() -> None:
        try:
            await work.run()
        finally:
            raise OSError("later")

    with pytest.raises(ValueError, match="first"):
        await run_all(fails_when_cancelled(), fail(work))


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_is_cancelled_although_something_fails_at_the_same_time(fails: bool) -> None:
    work, go = Work(), asyncio.Event()

    async def other() -> None:
        await go.wait()
        if fails:
            raise ValueError("at the same time")

    caller = asyncio.ensure_future(run_all(work.run(), other()))
    await work.begun.wait()
    go.set()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended


async def test_what_goes_on_beside_ends_with_the_block() -> None:
    work = Work()
    async with running(work.run()):
        await work.begun.wait()
    assert work.ended


async def block(work: Work, other: Work) -> None:
    async with running(work.run()):
        await work.begun.wait()
        await fail(other)


async def test_what_goes_on_beside_ends_with_a_block_that_fails() -> None:
    work, other = Work(), Work()
    other.begun.set()
    with pytest.raises(ValueError, match="first"):
        await block(work, other)
    assert work.ended


async def some_turns(failing: Work) -> None:
    async with running(fail(failing)):
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_a_failure_beside_is_raised() -> None:
    failing = Work()
    failing.begun.set()
    with pytest.raises(ValueError, match="first"):
        await some_turns(failing)


async def test_the_first_that_ends_counts_whatever_it_ends_with() -> None:
    work = Work()
    assert await run_until_first(work.run(), give(2)) == 2
    assert work.ended or not work.begun.is_set()
    work = Work()
    with pytest.raises(ValueError, match="first"):
        await run_until_first(work.run(), fail(work))
    assert work.ended


# -- calls for many items


AT_ONCE = limits.SEGMENT_CALLS_CONCURRENT_MAX


async def test_calls_for_many_items_have_bounded_tasks_and_ordered_results() -> None:
    before, tasks, running_now, most = len(asyncio.all_tasks()), 0, 0, 0

    async def call(item: int) -> int:
        nonlocal tasks, running_now, most
        running_now += 1
        tasks, most = max(tasks, len(asyncio.all_tasks()) - before), max(most, running_now)
        for _ in range(item % 3):
            await asyncio.sleep(0)
        running_now -= 1
        return 10 * item

    assert await gather_bounded(range(1000), call) == [10 * each for each in range(1000)]
    assert await gather_bounded((each for each in range(3)), call) == [0, 10, 20]
    assert await gather_bounded([], call) == []
    assert (tasks, most) == (AT_ONCE, AT_ONCE)


async def test_calls_without_a_pause_are_one_after_the_other() -> None:
    begun: list[int] = []

    async def call(item: int) -> None:
        begun.append(item)

    await gather_bounded(range(100), call)
    assert begun == list(range(100))


async def test_the_first_failure_in_the_order_of_the_items_is_raised_and_no_call_begins_after_one() -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    async def call(item: int) -> None:
        begun.append(item)
        if item in (2, 5):
            await gate.wait()
            raise ValueError(f"item {item}")
        if item == AT_ONCE - 1:
            gate.set()
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="item 2"):
        await gather_bounded(range(1000), call)
    assert begun == list(range(AT_ONCE))


async def test_a_cancelled_caller_ends_all_calls() -> None:
    work = [Work() for _ in range(3 * AT_ONCE)]
    task = asyncio.create_task(gather_bounded(work, Work.run))
    await work[AT_ONCE - 1].begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [each.ended for each in work] == [True] * AT_ONCE + [False] * (2 * AT_ONCE)


async def test_a_call_that_is_cancelled_by_itself_cancels_the_caller() -> None:
    async def call(item: int) -> int:
        if item == 1:
            raise asyncio.CancelledError
        return await give(item)

    with pytest.raises(asyncio.CancelledError):
        await gather_bounded(range(40), call)


async def test_an_end_that_is_no_exception_is_raised_and_not_the_cancellation_of_the_others() -> None:
    class Ended(BaseException):
        pass

    async def call(item: int) -> None:
        if item:
            raise Ended
        await asyncio.Event().wait()

    with pytest.raises(Ended):
        await gather_bounded([0, 1], call)


async def test_a_single_call_runs_in_the_task_of_its_caller() -> None:
    async def own_task(_: int) -> asyncio.Task[None] | None:
        return asyncio.current_task()

    assert await gather_bounded([1], own_task) == [asyncio.current_task()]


async def test_calls_that_wait_for_nothing_take_two_turns_of_the_loop() -> None:
    loop, turns, is_over = asyncio.get_running_loop(), 0, False

    def turn() -> None:
        nonlocal turns
        if not is_over:
            turns += 1
            loop.call_soon(turn)

    async def double(number: int) -> int:
        return 2 * number

    loop.call_soon(turn)
    assert await gather_bounded(range(8), double) == [0, 2, 4, 6, 8, 10, 12, 14]
    is_over = True
    assert turns <= 2
