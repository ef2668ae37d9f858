"""Write many small events fast: lists of events, as many in flight as the writer's buffer allows."""

import asyncio
import os
import time
import uuid

from tailrace.client import Client, StreamName

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")
EVENTS = int(os.environ.get("EVENTS", "1000000"))
BATCH = 500


async def main() -> None:
    async with Client(CONTROLLER) as client:
        await client.streams.create_scope("examples")
        stream = StreamName("examples", f"ticks-{uuid.uuid4().hex[:8]}")
        await client.streams.create_stream(stream)
        begun = time.perf_counter()
        async with client.writer(stream) as writer:
            for first in range(0, EVENTS, BATCH):
                await writer.ready()  # waits while the writer's buffer is full
                batch = [b"%0100d" % number for number in range(first, min(first + BATCH, EVENTS))]
                writer.write_events(batch, routing_key="ticks")
        print(f"{EVENTS / (time.perf_counter() - begun):,.0f} durable events/s")

        count = 0
        for piece in await client.slices(stream):
            async for events in client.read_slice(piece):
                assert events[0] == b"%0100d" % count
                count += len(events)
        assert count == EVENTS


asyncio.run(main())
