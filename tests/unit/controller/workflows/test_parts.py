"""Aborts, truncations and deletions of more segments than a step has time for: each step goes on after the last one."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError, WriteConflictError
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import StreamRecord, TruncateIntent
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows import steps
from tailrace.controller.workflows.delete import delete_mark
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
MARK = StreamKey("scope", "_MARKstream")
PART = 4
"""Segments that a step has time for."""
WIDE = 10
"""Segments of an epoch: more than two parts."""
DEADLINE_S = 120.0
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
        left = self.steps()
        async with asyncio.timeout(DEADLINE_S):
            await self._has_failed.wait()
            while not is_due(await left.root()):  # noqa: ASYNC110 - the stores are plain data
                await asyncio.sleep(0)
        await self._controller.close()
        await asyncio.gather(*acting, return_exceptions=True)

    def context(self, **settings: Any) -> Any:
        """The stores of another controller."""
        return self._world.make(seed=2 + len(self._world.controllers), **settings).services.core.context

    def steps(self, **settings: Any) -> Steps:
        """The steps of a controller that resumes the work."""
        return Steps(self, self.context(**settings))


class Steps:
    """The steps of a stream that one controller runs. It reads the root before each, unless it remembers it."""

    def __init__(self, bench: Bench, context: Any) -> None:
        self._bench = bench
        self._context = context
        self._turns = steps.Turns()
        self._seen_by: Steps | None = None
        self.stale = 0
        """Steps that began by a remembered root that was not the present one."""

    async def remember(self) -> None:
        """Read the root, and begin each step by the root that this controller read or wrote last, as `StreamDriver`."""
        self._seen_by = self._bench.steps()
        await self.root()

    async def root(self) -> StreamRecord:
        """The present root of the stream."""
        root: StreamRecord | None = await self._context.store.load(KEY)
        assert root is not None
        return root

    async def one(self) -> bool:
        """Run a step; return False when no work is left."""
        root = await (self.root() if self._seen_by is None else self._context.store.latest(KEY))
        if root.is_idle:
            return False
        self.stale += self._seen_by is not None and root != await self._seen_by.root()
        self._bench.left = PART
        try:
            await steps.advance(self._context, KEY, root, self._turns)
        except (ConnectionLostError, WriteConflictError):
            await self.root()  # as `StreamDriver` after a step that failed
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


async def make_deleting(api: Any, bench: Bench) -> None:
    """A sealed stream that is to be deleted."""
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    await bench.leave(lambda root: root.state is StreamState.DELETING, api.call("deleteStream", api.info))


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


@pytest.mark.parametrize("epochs_per_read", [1, limits.RECORDS_PER_READ_MAX])
async def test_a_deletion_ends(
    api: Any, bench: Bench, world: Any, monkeypatch: pytest.MonkeyPatch, epochs_per_read: int
) -> None:
    await make_history(api)
    monkeypatch.setattr(limits, "RECORDS_PER_READ_MAX", epochs_per_read)
    await make_deleting(api, bench)
    taken = bench.steps()
    await taken.all()
    assert (await taken.root()).state is StreamState.DELETED
    assert len(bench.calls) == len(set(bench.calls)) == 2 * WIDE + 1  # that of the mark stream
    assert world.segments.names("scope/") == []


@pytest.mark.parametrize(("ahead", "reads"), [(limits.TRUNCATED_SEGMENTS_AHEAD_MAX, 1), (2 * PART, 3)])
async def test_parts_of_a_truncation_share_what_was_read_of_its_epochs(
    api: Any, bench: Bench, world: Any, monkeypatch: pytest.MonkeyPatch, ahead: int, reads: int
) -> None:
    """By a controller that has no room to keep them."""
    monkeypatch.setattr(limits, "TRUNCATED_SEGMENTS_AHEAD_MAX", ahead)
    await leave_truncation(api, bench)
    get, read = world.metadata.get, Counter[bytes]()

    async def counted(table: str, keys: Any) -> Any:
        read.update(key for key in keys if b"/e/" in key)
        return await get(table, keys)

    monkeypatch.setattr(world.metadata, "get", counted)
    assert await bench.steps(records_cached_max_bytes=0).all() == math.ceil(2 * WIDE / PART)
    assert read == {KEY.epoch(0, number): reads for number in range(2)}
    assert set(world.segments.names("scope/stream/")) == epoch_names(1)


async def test_a_deletion_leaves_out_what_a_truncation_deleted(api: Any, bench: Bench, world: Any) -> None:
    cut = await make_history(api)
    assert (await truncation(api, cut)).status == pb.UpdateStreamStatus.SUCCESS
    await make_deleting(api, bench)
    await bench.steps().all()
    assert not epoch_names(0) & set(bench.calls)
    assert world.segments.names("scope/") == []


async def test_a_mark_stream_is_deleted_whose_truncation_has_not_ended(
    api: Any, bench: Bench, world: Any, make_api: Any
) -> None:
    await api.setup(1)
    mark = make_api(api.controller, stream=MARK.stream)
    cut = dict.fromkeys(await mark.scaled(await mark.current(), [(0.0, 1.0)]), 0)
    await bench.leave(lambda root: True, truncation(mark, cut))
    context = bench.context()
    before = await context.store.load(MARK)
    assert isinstance(before.intent, TruncateIntent)
    bench.left = math.inf
    await delete_mark(context, MARK, before)
    assert world.segments.names("scope/_MARK") == []


async def test_a_task_goes_on_where_its_last_step_ended(
    api: Any, bench: Bench, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that the stream's own task runs, from the call to its answer."""
    advance = steps.advance

    async def with_time(*arguments: Any, **keywords: Any) -> bool:
        bench.left = PART
        return await advance(*arguments, **keywords)

    monkeypatch.setattr(steps, "advance", with_time)
    monkeypatch.setattr(limits, "WORKFLOW_BACKOFF_INITIAL_S", 0.001)
    cut = await make_history(api)
    begun = (await api.begin()).txnId
    await api.abort(begun)
    await api.until_state(begun, pb.TxnState.ABORTED)
    assert (await truncation(api, cut)).status == pb.UpdateStreamStatus.SUCCESS
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS
    assert world.segments.names("scope/") == []


async def leave_aborts(api: Any, bench: Bench) -> None:
    """Two wide transactions that are to be aborted."""
    await aborting(api, bench, WIDE, 2)


async def leave_truncation(api: Any, bench: Bench) -> None:
    """A truncation."""
    await bench.leave(lambda root: isinstance(root.intent, TruncateIntent), truncation(api, await make_history(api)))


async def leave_deletion(api: Any, bench: Bench) -> None:
    """A deletion."""
    await make_history(api)
    await make_deleting(api, bench)


@pytest.mark.parametrize("remembers", [False, True], ids=["by the present root", "by a remembered root"])
@pytest.mark.parametrize("ahead", range(7))
@pytest.mark.parametrize(
    ("leave", "segments"),
    [
        (leave_aborts, [f"scope/stream/{number}.#epoch.0" for number in range(WIDE)]),
        (leave_truncation, sorted(epoch_names(1))),
        (leave_deletion, []),
    ],
)
async def test_two_controllers_take_the_same_steps(
    api: Any, bench: Bench, world: Any, leave: Any, segments: list[str], ahead: int, remembers: bool
) -> None:
    """One of them begins some steps later, as does one that resumes the work of another."""
    await leave(api, bench)
    first, second = bench.steps(), bench.steps()
    if remembers:
        await first.remember()
        await second.remember()
    for _ in range(ahead):
        await first.one()
    for _ in range(STEPS_MAX):
        if not (await second.one() and await first.one()):
            break
    assert (await second.root()).is_idle
    assert world.segments.names("scope/stream/") == segments
    assert (first.stale + second.stale > 0) == remembers
