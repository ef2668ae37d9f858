"""Write a number of events per routing key, wait until they are durable, and report it.

With ``java`` they have the form that the Java program knows.

usage: write_some.py CONTROLLER SCOPE/STREAM NAME KEYS EVENTS EVENT_BYTES [java]
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from history import Event, encode
from telling import tell

from tailrace.client import Client, StreamName


def java_event(key: str, number: int, length_bytes: int) -> bytes:
    """``KEY:NUMBER:`` and filling."""
    return f"{key}:{number}:".ljust(length_bytes, "~").encode()


async def main() -> None:
    """Write, flush, tell."""
    controller, stream, name, keys, events, length, *form = sys.argv[1:]
    written = Counter[str]()
    async with Client(controller) as client, client.writer(StreamName(*stream.split("/"))) as writer:
        for number in range(int(events)):
            key = f"{name}-{number % int(keys)}"
            await writer.ready()
            event = (
                java_event(key, written[key], int(length))
                if form
                else encode(Event(key, written[key], ""), int(length))
            )
            writer.write_event(event, key)
            written[key] += 1
        await writer.flush()
    tell("end", keys=dict(written))


if __name__ == "__main__":
    asyncio.run(main())
