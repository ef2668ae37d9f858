"""Checks of object stores in threads: what one endpoint can take of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace_operator.cluster.check_threads import CheckThreads

SHORT_S = 0.2
DEADLINE_S = 120.0


@pytest.fixture
def threads() -> Iterator[CheckThreads]:
    made = CheckThreads()
    yield made
    made.close()


async def test_a_thread_that_does_not_end_in_time_counts_until_it_ends(
    threads: CheckThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver of names knows no deadline of ours, so its threads could otherwise use up all."""
    let_go = threading.Event()
    try:
        for _ in range(limits.TIER2_ENDPOINT_CHECKS_MAX):
            with pytest.raises(TimeoutError):
                await threads.run("slow", let_go.wait, SHORT_S)
        with monkeypatch.context() as patch:
            patch.setattr(limits, "TIER2_CHECK_QUEUE_S", SHORT_S)
            with pytest.raises(UnavailableError):
                await threads.run("slow", int, DEADLINE_S)
        assert await threads.run("other", int, DEADLINE_S) == 0
    finally:
        let_go.set()
    assert await threads.run("slow", int, DEADLINE_S) == 0


async def test_an_endpoint_that_is_not_asked_is_not_remembered(threads: CheckThreads) -> None:
    def fail() -> None:
        raise ValueError("no")

    for number in range(3):
        assert await threads.run(f"endpoint {number}", int, DEADLINE_S) == 0
        with pytest.raises(ValueError, match="no"):
            await threads.run(f"endpoint {number}", fail, DEADLINE_S)
    assert not threads.endpoints


async def test_a_cancelled_check_gives_its_place_back(threads: CheckThreads) -> None:
    let_go = threading.Event()
    try:
        runs = [
            asyncio.ensure_future(threads.run("slow", let_go.wait, DEADLINE_S))
            for _ in range(limits.TIER2_ENDPOINT_CHECKS_MAX + 1)
        ]
        await asyncio.sleep(0)
        for run in runs:
            run.cancel()
        ends = await asyncio.gather(*runs, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}
    finally:
        let_go.set()
    assert await threads.run("slow", int, DEADLINE_S) == 0
