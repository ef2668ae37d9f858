"""A reader process that is killed: another reader of the group takes over by itself."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys

from tailrace.client import Client, StreamName, group_config

DEADLINE_S = 120.0
READER = """
import asyncio, os, signal, sys
from tailrace.client import Client

async def main(controller, scope):
    async with Client(controller) as client:
        async with client.reader(scope, "g", "killed", dead_after_s=3.0) as reader:
            while True:
                for item in await reader.read_events(3, 1000):
                    print(item.event.decode(), flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)  # at once: later its position would be in the group's state

asyncio.run(main(*sys.argv[1:]))
"""


async def test_another_reader_takes_over_from_a_killed_process(controller: str) -> None:
    scope = f"dead-{secrets.token_hex(4)}"
    stream = StreamName(scope, "t")
    events = [b"%03d" % number for number in range(50)]
    async with Client(controller) as client:
        await client.streams.create_scope(scope)
        await client.streams.create_stream(stream)
        async with client.writer(stream) as writer:
            for event in events:
                writer.write_event(event, routing_key="k")
            await writer.flush()
        await client.reader_groups(scope).create("g", group_config({stream: None}))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", READER, controller, scope, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(DEADLINE_S):
                assert (await process.stdout.readline()).strip() == events[0]
                assert await process.wait() == -signal.SIGKILL
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        found: list[bytes] = []
        async with client.reader(scope, "g", "heir", dead_after_s=3.0) as reader, asyncio.timeout(DEADLINE_S):
            while len(found) < len(events):
                found += [item.event for item in await reader.read_events(100, 500) if item.checkpoint is None]
        assert found == events  # from the last position in the state, in order
