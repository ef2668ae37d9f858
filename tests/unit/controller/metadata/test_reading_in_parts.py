"""What a stream has many large records of is read in parts: each has room in a reply, and in memory."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from typing import Any

import msgspec
import pytest

from tailrace.common import limits
from tailrace.common.names import segment_id
from tailrace.controller.managers.retention_places import Places
from tailrace.controller.managers.sizes import SizeReader
from tailrace.controller.metadata.changes import Change
from tailrace.controller.metadata.model import Epoch, StreamSegment
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.record_cache import memory_bytes
from tailrace.controller.metadata.records import SealedRecord, StreamRecord, TruncateIntent, encode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows.change import segments_gone
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
SEGMENTS = 50
EPOCHS = 150
REPLY_BYTES = 40_000
"""A reply has room for some 20 epochs."""
DEADLINE_S = 120.0


class Stream:
    """A stream with a long history: a segment of each epoch replaces that of the first key range."""

    def __init__(self, world: Any, api: Any) -> None:
        self.world = world
        self.api = api

    @property
    def tail(self) -> dict[int, int]:
        """The beginning of the last epoch."""
        return {segment.identifier: 0 for segment in epoch(EPOCHS - 1).segments}

    async def make(self) -> None:
        """Make it, by records of its own."""
        await self.api.setup(SEGMENTS)
        context = self.context()
        root = await context.store.load(KEY)
        for number in range(1, EPOCHS):
            gone = epoch(number - 1).segments[0]
            sealed = SealedRecord(number, number, {gone.identifier: 10}, 10 * number)
            await self.write(KEY.epoch(root.incarnation, number), epoch(number))
            await self.write(KEY.sealed(root.incarnation, number), sealed)
            await self.world.segments.create_segment(f"scope/stream/{SEGMENTS + number}.#epoch.{number}")

        def decide(now: StreamRecord | None, _: Any) -> Change[None]:
            assert now is not None
            after = msgspec.structs.replace(now, active_epoch=EPOCHS - 1, next_segment_number=SEGMENTS + EPOCHS)
            return Change(None, {KEY.root: msgspec.structs.replace(after, sealed_bytes=10 * (EPOCHS - 1))})

        await context.store.change(KEY, (), decide)

    async def write(self, item: bytes, record: Any) -> None:
        """Store a record."""
        await self.world.metadata.put(KEY.table, [Put(item, encode(record), UNCONDITIONAL)])

    def context(self, **settings: Any) -> Any:
        """A controller that has read nothing."""
        return self.world.make(**settings).services.core.context


def epoch(number: int) -> Epoch:
    """An epoch of the stream."""
    first = segment_id(SEGMENTS + number, number) if number else segment_id(0, 0)
    ids = [first, *(segment_id(each, 0) for each in range(1, SEGMENTS))]
    bounds = [each / SEGMENTS for each in range(SEGMENTS + 1)]
    found = zip(ids, itertools.pairwise(bounds), strict=True)
    return Epoch(number, number, tuple(StreamSegment(identifier, *bound) for identifier, bound in found))


@pytest.fixture
async def stream(world: Any, api: Any, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """See `Stream`."""
    made = Stream(world, api)
    await made.make()
    monkeypatch.setattr(limits, "FRAME_MAX_BYTES", REPLY_BYTES)
    monkeypatch.setattr(limits, "READ_PART_BYTES", REPLY_BYTES // 4, raising=False)
    await api.controller.close()
    return made


async def test_a_stream_is_truncated_and_deleted(stream: Stream, make_api: Any) -> None:
    api = make_api(await stream.world.start(seed=2))
    async with asyncio.timeout(DEADLINE_S):
        truncated = await api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut=stream.tail))
        assert truncated.status == pb.UpdateStreamStatus.SUCCESS
        assert len(stream.world.segments.names("scope/stream/")) == SEGMENTS
        assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
        assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS
    assert stream.world.segments.names("scope/") == []
    assert [key for key in stream.world.metadata.dump_table(KEY.table) if key.startswith(b"scope/stream")] == [KEY.root]


async def test_a_stream_that_was_not_truncated_is_deleted(stream: Stream, make_api: Any) -> None:
    api = make_api(await stream.world.start(seed=2))
    async with asyncio.timeout(DEADLINE_S):
        assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
        assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS
    assert stream.world.segments.names("scope/") == []


async def test_cuts_and_sizes_of_a_long_history(stream: Stream) -> None:
    core = stream.world.make().services.core
    root = await core.context.store.load(KEY)
    head = {segment.identifier: 0 for segment in epoch(0).segments}
    assert await core.cuts.check(KEY, root, stream.tail) == await core.cuts.segments(KEY, root, stream.tail)
    found = await core.cuts.between(KEY, root, head, stream.tail)
    assert [each.identifier for each in found] == sorted({*head, *map(first_of, range(EPOCHS))})
    epochs = await core.context.store.epochs(KEY, root, 0, EPOCHS - 1)
    assert [each.segments for each in epochs] == [epoch(number).segments for number in range(EPOCHS)]
    records = await core.context.store.sealed(KEY, root, 0, EPOCHS)
    assert [record.epoch for record in records] == list(range(1, EPOCHS))
    sizes = SizeReader(core.context.store, core.context.segments)
    assert await sizes.before(KEY, root, stream.tail) == 10 * (EPOCHS - 1)


def first_of(number: int) -> int:
    """The segment of an epoch that the next one replaces."""
    return epoch(number).segments[0].identifier


async def gone(core: Any, root: StreamRecord, tail: dict[int, int]) -> Any:
    """Find what a first truncation deletes."""
    truncated = msgspec.structs.replace(root, truncation=tail)
    return await segments_gone(core.context, KEY, truncated, TruncateIntent(b"id", None), tail)


async def spanned(core: Any, root: StreamRecord, tail: dict[int, int]) -> Any:
    """Find the segments that a cut spans."""
    return await core.cuts.segments(KEY, root, tail)


async def size(core: Any, root: StreamRecord, tail: dict[int, int]) -> Any:
    """Compute the bytes before a cut."""
    return await SizeReader(core.context.store, core.context.segments).before(KEY, root, tail)


async def moved(core: Any, root: StreamRecord, tail: dict[int, int]) -> Any:
    """Move a cut at the beginning, where all is read, over every scale."""
    context = core.context
    sizes = SizeReader(context.store, context.segments)
    head = {segment.identifier: 10 for segment in epoch(0).segments}
    found = await Places(context.store, core.cuts, sizes, KEY, root).positions(head)
    assert found == {first_of(1): 0, **dict.fromkeys(range(1, SEGMENTS), 10)}
    return found


@pytest.mark.parametrize("work", [gone, spanned, size, moved])
async def test_a_long_history_is_not_in_memory_at_once(stream: Stream, work: Any) -> None:
    """By a controller that has no room to keep what it has read."""
    core = stream.world.make(records_cached_max_bytes=0).services.core
    root = await core.context.store.load(KEY)
    await work(core, root, stream.tail)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await work(core, root, stream.tail)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    whole = EPOCHS * memory_bytes(epoch(0))
    assert taken < whole / 4, (taken, whole)
