"""Watermarks of a real server that is killed again and again: what they say of the events before and after them.

See docs/controller.md#watermarks.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import suppress
from pathlib import Path

import pytest

from harness.server import Server
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName
from tailrace.client.group.watermarks import WATERMARK
from tailrace.client.revisioned import open_revisioned
from tailrace.common.errors import TailraceError
from tailrace.common.watermarks import Watermark

STREAM, MARKS = StreamName("timed", "s"), StreamName("timed", "_MARKs")
CONFIG = StreamConfig(ScalingPolicy.fixed(1), timestamp_aggregation_timeout_ms=3_600_000)
OPTIONS = ("--watermark-period", "100ms", "--cache", "64MiB")
EVENT_BYTES = 92
STORED_BYTES = 8 + EVENT_BYTES
KILLS = {"ci": 4, "full": 60}
DEADLINE_S = 300.0


async def write(client: Client, stopped: asyncio.Event) -> int:
    """Write event 0, 1, 2, ..., and note the number of each one as the time; return how many were written."""
    number = 0
    async with client.writer(STREAM) as writer:
        while not stopped.is_set():
            writer.write_event(str(number).rjust(EVENT_BYTES).encode(), routing_key="key")
            await writer.flush()
            await writer.note_time(number)
            number += 1
    return number


async def watermarks(client: Client) -> list[Watermark]:
    marks = await open_revisioned(client.context, MARKS)
    return [WATERMARK.decode(entry.payload) for entry in await marks.read_from(await marks.oldest())]


async def until_more(client: Client, count: int, writing: asyncio.Task[int]) -> int:
    """Wait until there are more watermarks than `count`; return how many."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if writing.done():
                await writing
            with suppress(TailraceError):
                found = len(await watermarks(client))
                if found > count:
                    return found
            await asyncio.sleep(0.05)


@pytest.mark.timeout(3600)
async def test_watermarks_hold_through_kills(tmp_path: Path, test_profile: str, test_seed: int) -> None:
    chance = random.Random(test_seed)
    stopped = asyncio.Event()
    async with Server(tmp_path, OPTIONS) as server:
        await server.start()
        async with Client(server.controller) as client:
            await client.streams.create_scope(STREAM.scope)
            await client.streams.create_stream(STREAM, CONFIG)
            writing = asyncio.create_task(write(client, stopped))
            found = 0
            for _ in range(KILLS[test_profile]):
                found = await until_more(client, found, writing)
                await asyncio.sleep(chance.uniform(0, 0.5))
                await server.kill()
                await server.start()
            await until_more(client, found, writing)
            stopped.set()
            written = await writing
            every = await watermarks(client)
        await server.stop()
        await server.verify()
    print(f"{KILLS[test_profile]} kills, {written} events, {len(every)} watermarks")
    assert len(every) > KILLS[test_profile]
    assert all(before.lower < after.lower for before, after in itertools.pairwise(every))
    for watermark in every:
        (offset,) = watermark.positions.values()
        assert watermark.lower == watermark.upper < written
        assert offset % STORED_BYTES == 0
        assert offset >= (watermark.lower + 1) * STORED_BYTES, "an event before the lower bound lies behind"
        assert offset <= written * STORED_BYTES
