"""Write events that become visible together when their transaction is committed."""

import asyncio
import os
import uuid

from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")


async def count_events(client: Client, stream: StreamName) -> int:
    pieces = [client.read_slice(piece) for piece in await client.slices(stream)]
    return sum([len(events) for piece in pieces async for events in piece])


async def main() -> None:
    async with Client(CONTROLLER) as client:
        await client.streams.create_scope("examples")
        stream = StreamName("examples", f"ledger-{uuid.uuid4().hex[:8]}")
        await client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))

        async with client.transactional_writer(stream) as writer:
            async with await writer.begin() as transaction:
                transaction.write_event(b"-10 from a", routing_key="a")
                transaction.write_event(b"+10 to b", routing_key="b")
                await transaction.flush()
                assert await count_events(client, stream) == 0, "nothing is visible before the commit"
            await transaction.wait_until_visible(deadline_s=30)
            assert await count_events(client, stream) == 2

            dropped = await writer.begin()
            dropped.write_event(b"a mistake", routing_key="a")
            await dropped.abort()
            assert await count_events(client, stream) == 2
        print("two events of one transaction, none of the other")


asyncio.run(main())
