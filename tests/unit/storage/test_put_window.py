"""How many puts run at a time when some have no answer in time."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.common import limits
from tailrace.common.errors import DeadlineError, UnavailableError
from tailrace.storage.put_window import PutWindow

SLOTS = 12
LARGE = limits.STORAGE_SMALL_PUT_BYTES + 1


class Puts:
    """Puts in a window, each of which a test ends."""

    def __init__(self) -> None:
        self.window = PutWindow(SLOTS)
        self.running: dict[int, asyncio.Future[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, count: int) -> list[asyncio.Task[None]]:
        """Begin puts, and let those run that may."""
        loop = asyncio.get_running_loop()
        begun = [loop.create_task(self._put(self.window.turn())) for _ in range(count)]
        self._tasks += begun
        await turns()
        return begun

    async def again(self, turn: int) -> None:
        """Begin a put of an earlier turn once more."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._put(turn)))
        await turns()

    async def _put(self, turn: int) -> None:
        async with self.window.slot(LARGE, turn):
            ended = self.running[turn] = asyncio.get_running_loop().create_future()
            try:
                await ended
            finally:
                del self.running[turn]

    async def end(self, turn: int, error: Exception | None = None) -> None:
        """End a put."""
        if error is None:
            self.running[turn].set_result(None)
        else:
            self.running[turn].set_exception(error)
        await turns()

    async def close(self) -> None:
        """Cancel all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def puts() -> Puts:
    return Puts()


LATE = DeadlineError("no answer in 10 s")


async def test_puts_that_are_late_together_halve_the_slots_once(puts: Puts) -> None:
    await puts.begin(12)
    for turn in range(12):
        await puts.end(turn, LATE)
    assert puts.window.size == 6
    await puts.begin(12)
    assert sorted(puts.running) == [12, 13, 14, 15, 16, 17]
    await puts.end(12, LATE)
    assert puts.window.size == 3
    await puts.close()


async def test_one_put_is_always_allowed(puts: Puts) -> None:
    for turn in range(6):
        await puts.begin(1)
        await puts.end(turn, LATE)
        assert puts.window.size == 1
    await puts.close()


async def test_each_put_that_ends_well_makes_one_slot_up_to_the_bound(puts: Puts) -> None:
    await puts.begin(1)
    await puts.end(0, LATE)
    await puts.begin(30)
    assert sorted(puts.running) == [1]
    await puts.end(1)
    assert sorted(puts.running) == [2, 3]
    await puts.end(2)
    await puts.end(3)
    assert sorted(puts.running) == [4, 5, 6, 7]
    for turn in range(4, 20):
        await puts.end(turn)
    assert puts.window.size == SLOTS
    await puts.close()


async def test_other_failures_change_nothing(puts: Puts) -> None:
    await puts.begin(2)
    await puts.end(0, UnavailableError("503"))
    assert puts.window.size == 12
    await puts.close()


async def test_the_oldest_frame_has_the_next_slot(puts: Puts) -> None:
    await puts.begin(3)
    for turn in (0, 1, 2):
        await puts.end(turn, LATE)
    assert puts.window.size == 1
    await puts.begin(2)
    assert sorted(puts.running) == [3]
    await puts.again(1)
    await puts.again(0)
    await puts.end(3, UnavailableError("503"))
    assert sorted(puts.running) == [0]
    await puts.close()


async def test_a_put_that_is_cancelled_leaves_its_slot_or_its_place(puts: Puts) -> None:
    await puts.begin(1)
    await puts.end(0, LATE)
    first, waiting, last = await puts.begin(3)
    waiting.cancel()
    await turns()
    puts.running[1].set_exception(UnavailableError("503"))
    first.cancel()
    await turns()
    assert sorted(puts.running) == [3]
    last.cancel()
    await turns()
    await puts.begin(1)
    assert sorted(puts.running) == [4]
    await puts.close()


async def test_a_slot_that_is_granted_to_a_put_being_cancelled_is_free_again(puts: Puts) -> None:
    await puts.begin(1)
    await puts.end(0, LATE)
    _, granted, _ = await puts.begin(3)
    puts.running[1].set_exception(UnavailableError("503"))
    while 2 in puts.window._waiting:  # noqa: ASYNC110 - turn by turn
        await asyncio.sleep(0)
    granted.cancel()
    await turns()
    assert sorted(puts.running) == [3]
    await puts.close()


async def test_small_puts_take_no_part(puts: Puts) -> None:
    await puts.begin(1)
    await puts.end(0, LATE)
    await puts.begin(2)
    assert (puts.window.size, puts.window.full) == (1, True)
    async with asyncio.timeout(60), puts.window.slot(LARGE - 1):
        assert sorted(puts.running) == [1]
    assert puts.window.size == 1
    with pytest.raises(DeadlineError):
        async with puts.window.slot(LARGE - 1):
            raise LATE
    await puts.end(1)
    assert puts.window.size == 2
    await puts.close()
