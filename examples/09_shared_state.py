"""Two clients share a counter: each writes on condition that no other write came first, else it reads and retries."""

import asyncio
import os
import uuid

from tailrace.client import Client, RevisionedStream, StreamName

CONTROLLER = os.environ.get("TAILRACE_CONTROLLER", "tcp://localhost:9090")


async def add(state: RevisionedStream, times: int) -> None:
    total, revision = 0, 0
    while times:
        for entry in await state.read_from(revision):
            total, revision = int(entry.payload), entry.revision
        if await state.write_conditionally(revision, b"%d" % (total + 1)) is not None:
            times -= 1


async def main() -> None:
    async with Client(CONTROLLER) as one, Client(CONTROLLER) as two:
        await one.streams.create_scope("examples")
        stream = StreamName("examples", f"counter-{uuid.uuid4().hex[:8]}")
        await one.streams.create_stream(stream)
        states = [await client.revisioned(stream) for client in (one, two)]
        await asyncio.gather(*(add(state, 25) for state in states))
        last = (await states[0].read_from(0))[-1]
        print(f"counted to {last.payload.decode()}")
        assert last.payload == b"50"


asyncio.run(main())
