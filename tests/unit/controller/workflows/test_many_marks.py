"""Marks of many writers of a stream with many segments: more than one reply has room for."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tailrace.common import limits
from tailrace.common.watermarks import Watermark
from tailrace.controller.managers.watermarks import WatermarkManager
from tailrace.controller.metadata.changes import Change
from tailrace.controller.metadata.records import StreamRecord, WriterMark
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
SEGMENTS = 24
WRITERS = 60
REPLY_BYTES = 10_000
"""A reply has room for half of the marks."""
DEADLINE_S = 120.0
IDLE_MS = limits.WRITER_MARK_IDLE_MAX_MS


def offset(writer: int, segment: int) -> int:
    """How far a writer has come in a segment: no one is ahead in all of them."""
    return 100_000 + (segment * 31 + writer * 17) % WRITERS


class MarkSegment:
    """The segment of a mark stream, in memory."""

    def __init__(self) -> None:
        self.written: list[Watermark] = []

    async def newest(self) -> Watermark | None:
        """The newest one."""
        return self.written[-1] if self.written else None

    async def append(self, watermark: Watermark) -> bool:
        """Append."""
        self.written.append(watermark)
        return True


class Marked:
    """A stream that has marks of as many writers as it keeps."""

    def __init__(self, world: Any, api: Any) -> None:
        self._world = world
        self._api = api
        self.context = api.controller.services.core.context
        self.segment = MarkSegment()
        self.manager = WatermarkManager(self.context, lambda _: self.segment)

    async def make(self, idle: int) -> None:
        """Make the marks; the first `idle` writers have noted no time for long."""
        now_ms = self._world.clock.now_ms()
        marks = {
            f"w{writer}": WriterMark(
                1000 + writer,
                {segment: offset(writer, segment) for segment in range(SEGMENTS)},
                now_ms - (2 * IDLE_MS if writer < idle else 0),
            )
            for writer in range(WRITERS)
        }

        def decide(root: StreamRecord | None, _: Any) -> Change[None]:
            assert root is not None
            listed = msgspec.structs.replace(root, writers=tuple(marks))
            return Change(None, {KEY.root: listed, **{KEY.writer(name): mark for name, mark in marks.items()}})

        await self.context.store.change(KEY, (), decide)

    async def writers(self) -> list[str]:
        """Those that the stream knows."""
        root = await self.context.store.load(KEY)
        stored = self._world.metadata.dump_table(KEY.table)
        assert {KEY.writer(name) for name in root.writers} == {key for key in stored if key.startswith(KEY.writer(""))}
        return list(root.writers)


@pytest.fixture
async def marked(world: Any, api: Any, monkeypatch: pytest.MonkeyPatch) -> Marked:
    """See `Marked`."""
    monkeypatch.setattr(limits, "WRITER_MARKS_PER_STREAM_MAX", WRITERS)
    monkeypatch.setattr(limits, "FRAME_MAX_BYTES", REPLY_BYTES)
    monkeypatch.setattr(limits, "READ_PART_BYTES", REPLY_BYTES // 4)
    await api.setup(SEGMENTS)
    return Marked(world, api)


async def test_a_commit_with_a_time_makes_room(marked: Marked, api: Any) -> None:
    await marked.make(idle=WRITERS - 2)
    begun = await api.begin()
    assert await api.commit(begun.txnId, writerId="late", timestamp=7) == pb.TxnStatus.SUCCESS
    async with asyncio.timeout(DEADLINE_S):
        await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    assert await marked.writers() == [f"w{WRITERS - 2}", f"w{WRITERS - 1}", "late"]


async def test_a_watermark_is_behind_all_writers(marked: Marked) -> None:
    await marked.make(idle=0)
    found = await marked.manager.apply(KEY)
    assert found is not None
    assert (found.lower, found.upper) == (1000, 1000 + WRITERS - 1)
    furthest = {each: max(offset(writer, each) for writer in range(WRITERS)) for each in range(SEGMENTS)}
    assert {segment.identifier: end for segment, end in found.positions.items()} == furthest
    assert len(await marked.writers()) == WRITERS


async def test_writers_that_are_gone_are_forgotten(marked: Marked, world: Any) -> None:
    """All of them but the last one, which alone is beyond the last watermark."""
    await marked.make(idle=0)
    first = await marked.manager.apply(KEY)
    assert first is not None
    lower = 1000 + WRITERS - 2
    marked.segment.written.append(Watermark(lower, lower, first.positions))
    marked.manager = WatermarkManager(marked.context, lambda _: marked.segment)
    found = await marked.manager.apply(KEY)
    assert found is not None
    assert found.lower == lower + 1
    assert await marked.writers() == [f"w{WRITERS - 1}"]
