"""A server says what each stream holds in Tier 2: what the files of its chunks add up to."""

from __future__ import annotations

import asyncio
from pathlib import Path

from harness.filesizes import bytes_in_files
from harness.server import Server
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName

LARGE, SMALL = StreamName("held", "large"), StreamName("held", "small")
DEADLINE_S = 180.0


async def held_bytes(client: Client, stream: StreamName) -> int:
    """What the description of a stream says, once it says something."""
    async with asyncio.timeout(DEADLINE_S):
        while (found := (await client.context.controller.describe_stream(stream)).held_bytes) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return found


async def test_the_description_has_what_the_files_have(tmp_path: Path) -> None:
    async with Server(tmp_path / "server") as server:
        await server.start()
        async with Client(server.controller) as client:
            await client.streams.create_scope("held")
            for stream, count in ((LARGE, 3000), (SMALL, 3)):
                await client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))
                async with client.writer(stream) as writer:
                    for number in range(count):
                        await writer.ready()
                        writer.write_event(b"x" * 1000, routing_key=str(number))
                    await writer.flush()
            await server.flush_until_tiered()
            found = {stream: await held_bytes(client, stream) for stream in (LARGE, SMALL)}
        assert 3_000_000 < found[LARGE] < 3_100_000
        assert 3_000 < found[SMALL] < 5_000
        chunks = sum(bytes_in_files(folder) for folder in server.tier2.glob("c*"))
        assert sum(found.values()) <= chunks
