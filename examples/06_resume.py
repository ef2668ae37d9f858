"""A reader fails; another process declares it offline and continues after the last event that it handled."""

import asyncio
import os
import uuid

from tailrace.client import Client, EventReader, Position, StreamName, group_config

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")


async def die_in_the_middle(reader: EventReader) -> tuple[list[bytes], Position]:
    """Handle some events and return them with the position, without closing the reader."""
    await reader.start()
    items = await reader.read_events(40, timeout_ms=5000)
    return [item.event for item in items], reader.position


async def main() -> None:
    async with Client(CONTROLLER) as client:
        await client.streams.create_scope("examples")
        stream = StreamName("examples", f"jobs-{uuid.uuid4().hex[:8]}")
        await client.streams.create_stream(stream)
        async with client.writer(stream) as writer:
            writer.write_events([b"job %d" % number for number in range(100)], routing_key="jobs")
        groups = client.reader_groups("examples")
        group = f"workers-{uuid.uuid4().hex[:8]}"
        await groups.create(group, group_config({stream: None}))

        async with Client(CONTROLLER) as doomed:
            handled, position = await die_in_the_middle(doomed.reader("examples", group, "worker-1"))

        await (await groups.open(group)).reader_offline("worker-1", position)
        async with client.reader("examples", group, "worker-2") as reader:
            handled += [item.event async for item in reader.events(idle_ms=500)]
        await groups.delete(group)
        print(f"{len(handled)} jobs, each handled once")
        assert handled == [b"job %d" % number for number in range(100)]


asyncio.run(main())
