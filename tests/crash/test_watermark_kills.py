"""Watermarks of a real server that is killed again and again: what they say of the events before and after them.

See docs/controller.md#watermarks, docs/client.md#time-windows.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import suppress
from pathlib import Path

import pytest

from harness.server import Server
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName, TimeWindow, group_config
from tailrace.client.group.watermarks import WATERMARK
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.revisioned import open_revisioned
from tailrace.common import limits
from tailrace.common.errors import TailraceError, UnavailableError
from tailrace.common.watermarks import Watermark

STREAM, MARKS = StreamName("timed", "s"), StreamName("timed", "_MARKs")
CONFIG = StreamConfig(ScalingPolicy.fixed(1), timestamp_aggregation_timeout_ms=3_600_000)
OPTIONS = ("--watermark-period", "100ms", "--cache", "64MiB")
EVENT_BYTES = 92
STORED_BYTES = 8 + EVENT_BYTES
KILLS = {"ci": 4, "full": 60}
DEADLINE_S = 300.0


class Writer:
    """Writes event 0, 1, 2, ..., and notes the number of each one as the time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.written = 0
        self.stopped = False

    async def run(self) -> None:
        """Write until it is stopped."""
        async with self._client.writer(STREAM) as writer:
            while not self.stopped:
                writer.write_event(str(self.written).rjust(EVENT_BYTES).encode(), routing_key="key")
                await writer.flush()
                await writer.note_time(self.written)
                self.written += 1


class Reader:
    """Reads the events, each of which must lie in the time window before and after it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.read = 0
        self.lower: set[int] = set()

    async def run(self) -> None:
        """Read; fails on the first event that is not the next one, or not in its window."""
        async with self._client.reader(STREAM.scope, "group", "reader") as reader:
            while True:
                before = await self._window(reader)
                item = await reader.read_event(200)
                if item is None or item.checkpoint is not None:
                    continue
                assert int(item.event) == self.read, f"event {self.read} is lost or doubled"
                after = await self._window(reader)
                assert before.lower is None or before.lower < self.read, f"{before} at event {self.read}"
                assert after.upper is None or after.upper >= self.read, f"{after} after event {self.read}"
                self.read += 1

    async def _window(self, reader: EventReader) -> TimeWindow:
        while True:
            with suppress(UnavailableError):
                found = await reader.time_window(STREAM)
                break
        if found.lower is not None:
            assert found.lower >= max(self.lower, default=found.lower), "the window went back"
            self.lower.add(found.lower)
        return found


async def watermarks(client: Client) -> list[Watermark]:
    marks = await open_revisioned(client.context, MARKS)
    return [WATERMARK.decode(entry.payload) for entry in await marks.read_from(await marks.oldest())]


async def until_more(client: Client, count: int, tasks: list[asyncio.Task[None]]) -> int:
    """Wait until there are more watermarks than `count`; return how many."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for task in tasks:
                if task.done():
                    await task
            with suppress(TailraceError):
                found = len(await watermarks(client))
                if found > count:
                    return found
            await asyncio.sleep(0.05)


async def until_read(reader: Reader, count: int, tasks: list[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while reader.read < count or not reader.lower:
            if tasks[1].done():
                await tasks[1]
            await asyncio.sleep(0.05)


@pytest.mark.timeout(3600)
async def test_watermarks_hold_through_kills(
    tmp_path: Path, test_profile: str, test_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATERMARK_READ_S", 0.05)
    chance = random.Random(test_seed)
    async with Server(tmp_path, OPTIONS) as server:
        await server.start()
        async with Client(server.controller) as client:
            await client.streams.create_scope(STREAM.scope)
            await client.streams.create_stream(STREAM, CONFIG)
            await client.reader_groups(STREAM.scope).create("group", group_config({STREAM: None}))
            writer, reader = Writer(client), Reader(client)
            tasks = [asyncio.create_task(writer.run()), asyncio.create_task(reader.run())]
            found = 0
            for _ in range(KILLS[test_profile]):
                found = await until_more(client, found, tasks)
                await asyncio.sleep(chance.uniform(0, 0.5))
                await server.kill()
                await server.start()
            await until_more(client, found, tasks)
            writer.stopped = True
            await tasks[0]
            await until_read(reader, writer.written, tasks)
            tasks[1].cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [end for end in ends if isinstance(end, Exception)] == []
            every = await watermarks(client)
        await server.stop()
        await server.verify()
    print(f"{KILLS[test_profile]} kills, {writer.written} events, {len(every)} watermarks, {len(reader.lower)} windows")
    assert len(every) > KILLS[test_profile]
    assert reader.lower <= {watermark.lower for watermark in every}
    assert all(before.lower < after.lower for before, after in itertools.pairwise(every))
    for watermark in every:
        (offset,) = watermark.positions.values()
        assert watermark.lower == watermark.upper < writer.written
        assert offset % STORED_BYTES == 0
        assert offset >= (watermark.lower + 1) * STORED_BYTES, "an event of the lower bound lies behind"
        assert offset <= writer.written * STORED_BYTES
