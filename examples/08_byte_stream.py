"""Append bytes to a stream, read any part of it, and truncate its beginning."""

import asyncio
import os
import uuid

from tailrace.client import Client, StreamName

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")


async def main() -> None:
    async with Client(CONTROLLER) as client:
        await client.streams.create_scope("examples")
        stream = StreamName("examples", f"log-{uuid.uuid4().hex[:8]}")
        await client.streams.create_stream(stream)
        async with client.byte_writer(stream) as writer:
            for number in range(1000):
                await writer.write(b"line %06d\n" % number)
            await writer.flush()
            await writer.truncate(12 * 500)
        async with client.byte_reader(stream) as reader:
            assert reader.offset == 12 * 500
            assert await reader.read_exactly(12) == b"line 000500\n"
            reader.seek(await reader.tail() - 12)
            print((await reader.read_exactly(12)).decode().strip())


asyncio.run(main())
