"""Aborts, truncations and deletions of more segments than a step has time for: each step goes on after the last one."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError
from tailrace.controller.metadata.records import StreamRecord, TruncateIntent
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows import steps
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
PART = 4
"""Segments that a step has time for."""
WIDE = 10
"""Segments of an epoch: more than two parts."""
STEPS_MAX = 40
"""More than any work here takes whose steps go on after each other."""
RANGES = [(number / WIDE, (number + 1) / WIDE) for number in range(WIDE)]


class Bench:
    """A controller that ends before it changes any segment, and the steps that remain.

    In each step the stores serve PART deletions and truncations of segments. Those after them fail, as they do at the
    deadline of a step.
    """

    def __init__(self, world: Any, controller: Any) -> None:
        self._world = world
        self._controller = controller
        self._has_failed = asyncio.Event()
        self.left: float = math.inf
        """Calls that the stores still serve."""
        self.calls: list[str] = []
        """The segments that were deleted or truncated, also those that did not exist any more."""
        for name in ("delete_segment", "truncate_segment"):
            setattr(world.segments, name, self._served(getattr(world.segments, name)))

    def _served(self, real: Any) -> Any:
        async def served(segment: str, *arguments: Any) -> Any:
            if self.left < 1:
                self._has_failed.set()
                raise ConnectionLostError("the step has no time left")
            self.left -= 1
            self.calls.append(segment)
            return await real(segment, *arguments)

        return served

    async def leave(self, is_due: Callable[[StreamRecord], bool], *calls: Coroutine[Any, Any, Any]) -> None:
        """Make calls, and end the controller when their work is due, before it changes a segment."""
        self.calls.clear()
        self.left = 0
        acting = [asyncio.ensure_future(call) for call in calls]
        await self._has_failed.wait()
        left = self.steps()
        while not is_due(await left.root()):  # noqa: ASYNC110 - the stores are plain data
            await asyncio.sleep(0)
        await self._controller.close()
        await asyncio.gather(*acting, return_exceptions=True)

    def context(self) -> Any:
        """The stores of another controller."""
        return self._world.make(seed=2 + len(self._world.controllers)).services.core.context

    def steps(self) -> Steps:
        """The steps of a controller that resumes the work."""
        return Steps(self, self.context())


class Steps:
    """The steps of a stream that one controller runs."""

    def __init__(self, bench: Bench, context: Any) -> None:
        self._bench = bench
        self._context = context
        self._turns = steps.Turns()

    async def root(self) -> StreamRecord:
        """The present root of the stream."""
        root: StreamRecord | None = await self._context.store.load(KEY)
        assert root is not None
        return root

    async def one(self) -> bool:
        """Run a step; return False when no work is left."""
        root = await self.root()
        if root.is_idle:
            return False
        self._bench.left = PART
        with contextlib.suppress(ConnectionLostError):
            await steps.advance(self._context, KEY, root, self._turns)
        return True

    async def all(self) -> int:
        """Run steps until no work is left; return how many."""
        for count in range(STEPS_MAX):
            if not await self.one():
                return count
        raise AssertionError(f"work is left after {STEPS_MAX} steps with {len(self._bench.calls)} calls")


@pytest.fixture
def bench(world: Any, controller: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """See `Bench`."""
    monkeypatch.setattr(limits, "WORKFLOW_STEP_SEGMENTS_MAX", PART)
    return Bench(world, controller)


async def aborting(api: Any, bench: Bench, segments: int, transactions: int) -> list[pb.TxnId]:
    """Transactions of a stream of so many segments, which are to be aborted."""
    await api.setup(segments)
    begun = [(await api.begin()).txnId for _ in range(transactions)]
    await bench.leave(
        lambda root: len(root.abort_queue) == transactions,
        *(api.abort(txn) for txn in begun),
    )
    return begun


async def make_history(api: Any) -> dict[int, int]:
    """A stream whose second epoch has no segment of the first one; return the beginning of the second one."""
    await api.setup(WIDE)
    return dict.fromkeys(await api.scaled(await api.current(), RANGES), 0)


def truncation(api: Any, cut: dict[int, int]) -> Coroutine[Any, Any, Any]:
    """Truncate at a cut."""
    call: Coroutine[Any, Any, Any] = api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut=cut))
    return call


def epoch_names(epoch: int) -> set[str]:
    """Segments of an epoch of `make_history`."""
    first = epoch * WIDE
    return {f"scope/stream/{number}.#epoch.{epoch}" for number in range(first, first + WIDE)}


@pytest.mark.parametrize(("segments", "transactions"), [(WIDE, 2), (2, 9)], ids=["wide", "many"])
async def test_aborts_end(api: Any, bench: Bench, world: Any, make_api: Any, segments: int, transactions: int) -> None:
    begun = await aborting(api, bench, segments, transactions)
    await bench.steps().all()
    names = [name for name in bench.calls if "#transaction" in name]
    assert len(names) == len(set(names)) == segments * transactions
    assert [name for name in world.segments.names("scope/stream/") if "#transaction" in name] == []
    other = make_api(await world.start(seed=9))
    assert [await other.state(txn) for txn in begun] == [pb.TxnState.ABORTED] * transactions


async def test_a_truncation_ends(api: Any, bench: Bench, world: Any) -> None:
    cut = await make_history(api)
    await bench.leave(lambda root: isinstance(root.intent, TruncateIntent), truncation(api, cut))
    assert await bench.steps().all() == math.ceil(2 * WIDE / PART)
    assert len(bench.calls) == len(set(bench.calls)) == 2 * WIDE
    assert set(world.segments.names("scope/stream/")) == epoch_names(1)
