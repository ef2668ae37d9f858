"""Completed transactions are forgotten a day later, also when a clock that was wrong has recorded some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tailrace.common import limits
from tailrace.controller.metadata.changes import Change
from tailrace.controller.metadata.records import CompletedChunk, CompletedTransaction, StreamRecord
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows.completed import Oldest, forget_completed

KEY = StreamKey("scope", "stream")
SIZE = limits.COMPLETED_TRANSACTIONS_PER_CHUNK
DAY_MS = limits.TRANSACTION_REMEMBERED_MS
YEAR_MS = 365 * DAY_MS
OLD = -DAY_MS
"""As everything here, in milliseconds after now."""


class History:
    """A stream that remembers transactions, and the controller that forgets them."""

    def __init__(self, world: Any) -> None:
        self._clock = world.clock
        self._context = world.make().services.core.context
        self._oldest = Oldest()

    async def record(self, ended_ms: Sequence[int]) -> None:
        """Record transactions that completed at these times."""
        begun_ms = self._clock.now_ms()
        done = [
            CompletedTransaction(number.to_bytes(16, "big"), True, begun_ms + after_ms)
            for number, after_ms in enumerate(ended_ms)
        ]
        chunks = [CompletedChunk(tuple(done[first : first + SIZE])) for first in range(0, len(done), SIZE)]

        def decide(root: StreamRecord | None, _: Any) -> Change[None]:
            assert root is not None
            changed = msgspec.structs.replace(root, completed_next=len(done))
            records = {KEY.completed(root.incarnation, number): chunk for number, chunk in enumerate(chunks)}
            return Change(None, {KEY.root: changed, **records})

        await self._context.store.change(KEY, (), decide)

    async def forget(self, after_ms: int = 0) -> int:
        """Do what a stream's turns do, `after_ms` from now; return how many chunks were forgotten."""
        self._clock.ms += after_ms
        count = 0
        while await forget_completed(self._context, KEY, await self._context.store.load(KEY), self._oldest):
            count += 1
        return count


@pytest.fixture
async def history(world: Any, api: Any) -> History:
    """See `History`."""
    await api.setup()
    await api.controller.close()
    return History(world)


@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 1])
async def test_one_time_of_the_future_keeps_no_chunk(history: History, at: int) -> None:
    ended_ms = [OLD] * (SIZE + 1)
    ended_ms[at] = YEAR_MS
    await history.record(ended_ms)
    assert await history.forget() == 1


async def test_what_follows_says_when_a_chunk_of_wrong_times_had_ended(history: History) -> None:
    await history.record([*[OLD] * (SIZE - 1), *[YEAR_MS] * 100, *[0] * SIZE])
    assert await history.forget() == 0
    assert await history.forget(DAY_MS - 1) == 0
    assert await history.forget(1) == 2


async def test_many_chunks_of_wrong_times_are_forgotten_together(history: History) -> None:
    await history.record([*[YEAR_MS] * (9 * SIZE), *[0] * (8 * SIZE + 1)])
    assert await history.forget() == 0
    assert await history.forget(DAY_MS) == 17


async def test_nothing_is_forgotten_early_because_a_clock_was_a_little_ahead(history: History) -> None:
    ahead_ms = 50
    await history.record([*[OLD] * (SIZE - 1), ahead_ms, OLD])
    assert await history.forget() == 0
    assert await history.forget(DAY_MS + ahead_ms - 1) == 0
    assert await history.forget(1) == 1


async def test_wrong_times_count_until_a_right_one_follows(history: History) -> None:
    await history.record([YEAR_MS] * (SIZE + 1))
    assert await history.forget() == 0
    assert await history.forget(2 * DAY_MS) == 0
    await history.record([*[YEAR_MS] * (SIZE + 1), OLD])
    assert await history.forget(DAY_MS) == 1
