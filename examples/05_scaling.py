"""Scale a stream during writes and reads: writers and readers follow, and the order per key stays."""

import asyncio
import os
import uuid

from tailrace.client import Client, EventReader, StreamName, group_config

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")
KEYS = [f"key-{number}" for number in range(8)]
TURNS = 200


async def read(reader: EventReader, seen: dict[str, list[int]]) -> None:
    while sum(map(len, seen.values())) < TURNS * len(KEYS):
        for item in await reader.read_events(1000, timeout_ms=200):
            if item.checkpoint is None:
                key, turn = item.event.decode().split()
                seen[key].append(int(turn))


async def main() -> None:
    async with Client(CONTROLLER) as client:
        await client.streams.create_scope("examples")
        stream = StreamName("examples", f"sensors-{uuid.uuid4().hex[:8]}")
        await client.streams.create_stream(stream)
        groups = client.reader_groups("examples")
        group = f"monitor-{uuid.uuid4().hex[:8]}"
        # Readers move to new segments at checkpoints, which are frequent here so that the example is quick.
        await groups.create(group, group_config({stream: None}, automatic_checkpoint_ms=300, group_refresh_ms=200))

        seen: dict[str, list[int]] = {key: [] for key in KEYS}
        async with (
            client.reader("examples", group, "reader-1") as first,
            client.reader("examples", group, "reader-2") as second,
            client.writer(stream) as writer,
        ):
            readers = [asyncio.create_task(read(reader, seen)) for reader in (first, second)]
            for turn in range(TURNS):
                for key in KEYS:
                    writer.write_event(f"{key} {turn}".encode(), routing_key=key)
                if turn == TURNS // 2:
                    await client.streams.scale_to(stream, 4)
            await asyncio.gather(*readers)
        await groups.delete(group)
        segments = (await client.streams.info(stream)).segments
        print(f"{len(segments)} segments; all events in order per key")
        assert all(turns == list(range(TURNS)) for turns in seen.values())


asyncio.run(main())
