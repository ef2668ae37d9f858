"""Writes so many numbered events of some routing keys, waits until they are durable, and tells it.

usage: write_some.py CONTROLLER SCOPE/STREAM NAME KEYS EVENTS EVENT_BYTES
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from history import Event, encode
from telling import tell

from tailrace.client import Client, StreamName


async def main() -> None:
    """Write, flush, tell."""
    controller, stream, name, keys, events, length = sys.argv[1:]
    written = Counter[str]()
    async with Client(controller) as client, client.writer(StreamName(*stream.split("/"))) as writer:
        for number in range(int(events)):
            key = f"{name}-{number % int(keys)}"
            await writer.ready()
            writer.write_event(encode(Event(key, written[key], ""), int(length)), key)
            written[key] += 1
        await writer.flush()
    tell("end", keys=dict(written))


if __name__ == "__main__":
    asyncio.run(main())
