"""Checkpoint a group of readers, and start another group from the checkpoint."""

import asyncio
import os
import uuid

from tailrace.client import Client, EventReader, ScalingPolicy, StreamConfig, StreamName, group_config

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")


async def read_until(reader: EventReader, done: asyncio.Event) -> list[bytes]:
    """Return the events before the checkpoint. The next read call acknowledges the checkpoint."""
    events: list[bytes] = []
    passed = False
    while not done.is_set():
        for item in await reader.read_events(10, timeout_ms=100):
            passed = passed or item.checkpoint is not None
            if not passed:
                events.append(item.event)
    return events


async def main() -> None:
    async with Client(CONTROLLER) as client:
        await client.streams.create_scope("examples")
        stream = StreamName("examples", f"clicks-{uuid.uuid4().hex[:8]}")
        await client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))
        async with client.writer(stream) as writer:
            for number in range(1000):
                writer.write_event(b"%d" % number, routing_key=str(number % 20))
        groups = client.reader_groups("examples")
        first, second = (f"counting-{uuid.uuid4().hex[:8]}" for _ in range(2))
        await groups.create(first, group_config({stream: None}, group_refresh_ms=100))

        done = asyncio.Event()
        async with client.reader("examples", first, "r1") as one, client.reader("examples", first, "r2") as two:
            reading = [asyncio.create_task(read_until(reader, done)) for reader in (one, two)]
            checkpoint = await (await groups.open(first)).checkpoint("noon", deadline_s=30)
            done.set()
            before = [event for task in reading for event in await task]

        cut = checkpoint.cuts[str(stream)]
        print(f"checkpoint after {len(before)} events; as text: {cut.to_text()}")
        await groups.create(second, group_config({stream: cut}))
        async with client.reader("examples", second, "r3") as reader:
            after = [item.event async for item in reader.events(idle_ms=500)]
        assert sorted(before + after, key=int) == [b"%d" % number for number in range(1000)]
        await groups.delete(first)
        await groups.delete(second)


asyncio.run(main())
