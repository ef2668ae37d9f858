"""Times that commits carry: the end of a writer whose commits still wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.controller.calls.transactions import NO_TIMESTAMP
from tailrace.controller.metadata.records import WriterMark, decode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
COMMITTED = pb.TxnState.COMMITTED
REMOVED, UNKNOWN = pb.RemoveWriterResponse.SUCCESS, pb.RemoveWriterResponse.UNKNOWN_WRITER


def mark(world: Any, writer: str = "w") -> WriterMark | None:
    """The mark of a writer."""
    found = world.metadata.dump()[KEY.table].get(KEY.writer(writer))
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
