"""Write events with routing keys and read them back through a reader group."""

import asyncio
import os
import uuid

from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName, group_config

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")


async def main() -> None:
    async with Client(CONTROLLER) as client:
        await client.streams.create_scope("examples")
        stream = StreamName("examples", f"orders-{uuid.uuid4().hex[:8]}")
        await client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(4)))

        async with client.writer(stream) as writer:
            for number in range(100):
                writer.write_event(f"order {number}".encode(), routing_key=f"customer {number % 7}")
            await writer.flush()  # everything is durable now

        groups = client.reader_groups("examples")
        group = f"billing-{uuid.uuid4().hex[:8]}"
        await groups.create(group, group_config({stream: None}))
        async with client.reader("examples", group, "reader-1") as reader:
            events = [item.event async for item in reader.events(idle_ms=500)]
        await groups.delete(group)

        print(f"{len(events)} events, the first is {events[0].decode()!r}")
        assert len(events) == 100


asyncio.run(main())
