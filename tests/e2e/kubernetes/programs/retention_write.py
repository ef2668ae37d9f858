"""Writes numbered events of 64 KiB, 4 MiB a second, and publishes what it has written as what groups have read.

usage: retention_write.py CONTROLLER SCOPE/STREAM FIRST COUNT [GROUP...]
"""

from __future__ import annotations

import asyncio
import sys

from telling import tell

from tailrace.client import Client, StreamName

EVENT_BYTES = 64 * 1024
FRAMING_BYTES = 8
EVENTS_PER_S = 64
KEYS = 2


async def main() -> None:
    """Write, flush, publish; each second."""
    controller, stream, first, count, *groups = sys.argv[1:]
    name = StreamName(*stream.split("/"))
    filling = bytes(EVENT_BYTES - FRAMING_BYTES - 8)
    loop = asyncio.get_running_loop()
    async with Client(controller) as client, client.writer(name) as writer:
        readers = [await client.reader_groups(name.scope).open(group) for group in groups]
        numbers = range(int(first), int(first) + int(count))
        for begin in range(0, len(numbers), EVENTS_PER_S):
            began_s = loop.time()
            for number in numbers[begin : begin + EVENTS_PER_S]:
                await writer.ready()
                writer.write_event(number.to_bytes(8, "big") + filling, str(number % KEYS))
            await writer.flush()
            tail = await client.streams.tail(name)
            for reader in readers:
                await reader.publish_cuts({name: tail})
            tell("progress", written=begin + EVENTS_PER_S)
            await asyncio.sleep(max(0.0, began_s + 1 - loop.time()))
    tell("end", written=len(numbers))


if __name__ == "__main__":
    asyncio.run(main())
