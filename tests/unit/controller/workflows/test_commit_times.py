"""Times that commits carry: their order over a scale, and the end of a writer whose commits still wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.common.names import segment_id
from tailrace.controller.calls.transactions import NO_TIMESTAMP
from tailrace.controller.metadata.records import WriterMark, decode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows import commits, steps
from tailrace.controller.workflows.writer_marks import advanced
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
HALVES = [(0.0, 0.5), (0.5, 1.0)]
COMMITTED = pb.TxnState.COMMITTED
REMOVED, UNKNOWN = pb.RemoveWriterResponse.SUCCESS, pb.RemoveWriterResponse.UNKNOWN_WRITER


def mark(world: Any, writer: str = "w") -> WriterMark | None:
    """The mark of a writer."""
    found = world.metadata.dump_table(KEY.table).get(KEY.writer(writer))
    return None if found is None else decode(WriterMark, found, "test")


def state(world: Any, writer: str = "w") -> tuple[int, bool] | None:
    """The time of a writer's mark, and whether the writer has not left."""
    found = mark(world, writer)
    return None if found is None else (found.timestamp, found.alive)


class Held:
    """Holds up the merges of commit passes while `open` is not set."""

    def __init__(self, world: Any) -> None:
        self.open = asyncio.Event()
        self.merging = asyncio.Event()
        self._merge = world.segments.merge_batch
        world.segments.merge_batch = self._wait

    async def _wait(self, *arguments: Any) -> Any:
        self.merging.set()
        await self.open.wait()
        return await self._merge(*arguments)


@pytest.fixture
def held(world: Any) -> Held:
    return Held(world)


async def commit(api: Any, time: int | None, writer: str = "w") -> Any:
    begun = await api.begin()
    timestamp = NO_TIMESTAMP if time is None else time
    assert await api.commit(begun.txnId, writerId=writer, timestamp=timestamp) == pb.TxnStatus.SUCCESS
    return begun.txnId


async def remove(api: Any, writer: str = "w") -> int:
    return int((await api.call("removeWriter", pb.RemoveWriterRequest(writer=writer, stream=api.info))).result)


# -- the end of a writer


@pytest.mark.parametrize("earlier", [True, False])
async def test_a_writer_that_leaves_after_its_commit_stays_away(
    api: Any, world: Any, held: Held, earlier: bool
) -> None:
    """Its last commit is merged later, and no watermark waits for the writer after that."""
    await api.setup(1)
    if earlier:
        held.open.set()
        await api.until_state(await commit(api, 1), COMMITTED)
        assert state(world) == (1, True)
        held.open.clear()
    last = await commit(api, 2)
    removing = asyncio.create_task(remove(api))
    await asyncio.sleep(0.05)
    assert state(world) == ((1, True) if earlier else None), "a watermark waits for the last commit"
    held.open.set()
    assert await removing == REMOVED
    await api.until_state(last, COMMITTED)
    assert state(world) == (2, False)


async def test_a_writer_that_comes_back_with_a_commit_counts_again(api: Any, world: Any) -> None:
    await api.setup(1)
    for time in (1, 2):
        await api.until_state(await commit(api, time), COMMITTED)
        assert state(world) == (time, True)
        assert await remove(api) == REMOVED
        assert state(world) == (time, False)


async def test_a_writer_leaves_beside_commits_of_others_that_wait(api: Any, world: Any, held: Held) -> None:
    await api.setup(1)
    held.open.set()
    await api.until_state(await commit(api, 1), COMMITTED)
    held.open.clear()
    waiting = [await commit(api, 2, "other"), await commit(api, None)]
    await held.merging.wait()
    assert await remove(api) == REMOVED
    assert await remove(api, "unknown") == UNKNOWN
    assert state(world) == (1, False)
    held.open.set()
    for each in waiting:
        await api.until_state(each, COMMITTED)
    assert (state(world), state(world, "other")) == ((1, False), (2, True))


async def test_the_wait_for_commits_of_a_writer_that_leaves_ends(
    api: Any, world: Any, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITER_REMOVAL_COMMITS_S", 0.02)
    await api.setup(1)
    last = await commit(api, 2)
    with pytest.raises(UnavailableError, match="commits of writer w on stream scope/stream are not merged"):
        await remove(api)
    held.open.set()
    await api.until_state(last, COMMITTED)
    assert await remove(api) == REMOVED, "the call is made again"


async def test_the_wait_ends_with_the_stream(api: Any, world: Any, held: Held) -> None:
    await api.setup(1)
    last = await commit(api, 2)
    removing = asyncio.create_task(remove(api))
    await asyncio.sleep(0.05)
    held.open.set()
    await api.until_state(last, COMMITTED)
    await api.call("sealStream", api.info)
    await api.call("deleteStream", api.info)
    assert await removing in (REMOVED, pb.RemoveWriterResponse.STREAM_DOES_NOT_EXIST)
    assert await remove(api) == pb.RemoveWriterResponse.STREAM_DOES_NOT_EXIST


# -- the order of times


def test_an_earlier_time_moves_the_position_on_and_not_the_time() -> None:
    before = WriterMark(100, {segment_id(0, 2): 50}, 1_000)
    after = advanced(before, 90, {segment_id(1, 3): 7, segment_id(2, 3): 8}, 2_000)
    assert after == WriterMark(100, {segment_id(1, 3): 7, segment_id(2, 3): 8}, 1_000)
    assert advanced(after, 80, {segment_id(1, 3): 9, segment_id(2, 3): 6}, 3_000).position == {
        segment_id(1, 3): 9,
        segment_id(2, 3): 8,
    }


def test_a_commit_that_rolls_over_moves_no_position_back() -> None:
    """The writer noted a position in the active epoch before the pass ended, which merges into the epoch before."""
    before = WriterMark(100, {segment_id(0, 0): 5, segment_id(1, 3): 7}, 1_000)
    after = advanced(before, 110, {segment_id(0, 2): 50}, 2_000)
    assert after == WriterMark(110, {segment_id(0, 2): 50, segment_id(1, 3): 7}, 2_000)
    kept = WriterMark(100, {segment_id(4, 1): 9}, 1_000)
    assert advanced(kept, 110, {segment_id(4, 1): 8, segment_id(0, 2): 50}, 2_000).position == {
        segment_id(4, 1): 9,
        segment_id(0, 2): 50,
    }


async def test_a_commit_that_rolls_over_does_not_pass_earlier_ones_of_its_writer(api: Any, world: Any) -> None:
    """The pass merges the transaction of the old epoch first, though its commit came last."""
    await api.setup(1)
    await api.until_state(await commit(api, 50), COMMITTED)
    old = await api.begin()
    await api.scaled([0], HALVES)
    new = [await api.begin() for _ in range(2)]
    for name in world.segments.names("scope/stream/"):
        if "#transaction" in name:
            world.segments.append(name, b"12345")
    checked, infos = asyncio.Event(), world.segments.segment_info

    async def waiting(name: str) -> Any:
        await checked.wait()
        return await infos(name)

    world.segments.segment_info = waiting
    await api.commit((await api.begin()).txnId)  # its pass is being checked meanwhile
    await asyncio.sleep(0.05)
    for begun, time in (*zip(new, (80, 90), strict=True), (old, 100)):
        await api.commit(begun.txnId, writerId="w", timestamp=time)
    await api.commit((await api.begin()).txnId, writerId="other", timestamp=95)
    merged, merge = asyncio.Event(), world.segments.merge_batch

    async def merge_last(target: str, sources: Any) -> Any:
        if ".#epoch.3" in target:
            await merged.wait()
        return await merge(target, sources)

    world.segments.merge_batch = merge_last
    checked.set()
    await api.until_state(old.txnId, COMMITTED)
    await asyncio.sleep(0.05)
    assert [await api.state(each.txnId) for each in new] == [pb.TxnState.COMMITTING] * 2
    assert state(world) == (50, True), "its commits of 80 and 90 are not merged"
    assert state(world, "other") is None
    merged.set()
    for each in new:
        await api.until_state(each.txnId, COMMITTED)
    found = mark(world)
    assert found is not None
    assert found.timestamp == 100
    assert found.position == {segment_id(1, 3): 10, segment_id(2, 3): 10}
    assert state(world, "other") == (95, True)


async def test_the_last_of_several_epochs_notes_the_time(api: Any, world: Any) -> None:
    """Each pass over a scale leaves the time to a commit of the writer that a later pass merges."""
    await api.setup(1)
    begun = [await api.begin()]
    (first, second) = await api.scaled([0], HALVES)
    begun.append(await api.begin())
    await api.scaled([first, second], [(0.0, 1.0)])
    begun.append(await api.begin())
    checked, infos = asyncio.Event(), world.segments.segment_info

    async def waiting(name: str) -> Any:
        await checked.wait()
        return await infos(name)

    world.segments.segment_info = waiting
    await api.commit((await api.begin()).txnId)
    await asyncio.sleep(0.05)
    for each, time in zip(begun[::-1], (85, 90, 100), strict=True):
        await api.commit(each.txnId, writerId="w", timestamp=time)
    seen: list[tuple[int, bool] | None] = []
    merge = world.segments.merge_batch

    async def noting(target: str, sources: Any) -> Any:
        seen.append(state(world))
        return await merge(target, sources)

    world.segments.merge_batch = noting
    checked.set()
    for each in begun:
        await api.until_state(each.txnId, COMMITTED)
    assert set(seen) == {None}, "an earlier commit of the writer was not merged"
    assert state(world) == (100, True)


async def test_a_time_that_another_controller_left_on_a_commit_counts(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller that ends the commit's pass remembers its record from before the other one's pass over a scale."""
    first = make_api(await world.start(seed=1, idle_s=10.0))
    await first.setup(1)
    old = await first.begin(600_000)
    await first.scaled([0], HALVES)
    new = await first.begin(600_000)
    second = make_api(await world.start(seed=2, idle_s=10.0))

    async def no_step(*_: Any, **__: Any) -> bool:
        return False

    async def end_pass(api: Any) -> None:
        context = api.controller.services.core.context
        await commits.commit_pass(context, KEY, await context.store.load(KEY))
        while (root := await context.store.load(KEY)).commit_batch:
            await commits.commit_pass(context, KEY, root)

    monkeypatch.setattr(steps, "advance", no_step)  # the passes run here, each by the controller that is chosen
    for begun, time in ((new, 50), (old, 100)):
        assert await first.commit(begun.txnId, writerId="w", timestamp=time) == pb.TxnStatus.SUCCESS
    await end_pass(second)
    assert [await first.state(each.txnId) for each in (old, new)] == [COMMITTED, pb.TxnState.COMMITTING]
    assert state(world) is None, "the commit of the new epoch notes the time"
    await end_pass(first)
    assert await first.state(new.txnId) == COMMITTED
    assert state(world) == (100, True)
