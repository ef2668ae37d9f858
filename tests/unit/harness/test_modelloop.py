"""The loop of tests without I/O: time passes by what is scheduled, not by the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from harness.modelloop import TURN_S, ModelLoop

HOUR_S = 3600.0


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=ModelLoop) as runner:
        yield runner


def test_waits_take_no_time_and_end_in_their_order(runner: asyncio.Runner) -> None:
    ended: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append((name, asyncio.get_running_loop().time()))

    async def both() -> None:
        await asyncio.gather(wait("long", 24 * HOUR_S), wait("short", HOUR_S))

    began_s = time.monotonic()
    runner.run(both())
    assert time.monotonic() - began_s < HOUR_S
    assert [name for name, _ in ended] == ["short", "long"]
    assert [at_s for _, at_s in ended] == pytest.approx([HOUR_S, 24 * HOUR_S], abs=1.0)


def test_time_passes_for_a_poll_without_a_wait_but_not_while_code_runs(runner: asyncio.Runner) -> None:
    async def poll() -> int:
        loop = asyncio.get_running_loop()
        ends_at_s, turns = loop.time() + 1.0, 0
        while loop.time() < ends_at_s:
            await asyncio.sleep(0)
            turns += 1
        before_s = loop.time()
        sum(range(100_000))
        assert loop.time() == before_s
        return turns

    assert runner.run(poll()) == pytest.approx(1.0 / TURN_S, rel=0.01)


def test_a_deadline_that_lapses_is_noticed(runner: asyncio.Runner) -> None:
    async def wait() -> None:
        async with asyncio.timeout(HOUR_S):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        runner.run(wait())


def test_threads_are_refused(runner: asyncio.Runner) -> None:
    with pytest.raises(NotImplementedError):
        runner.run(asyncio.to_thread(time.monotonic))
