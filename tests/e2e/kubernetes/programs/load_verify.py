"""Reads everything that is in a stream now, segment by segment from the head, without a reader group, and judges it.

usage: load_verify.py CONTROLLER SCOPE/STREAM
"""

from __future__ import annotations

import asyncio
import sys

from judging import judge
from sequences import Sequences
from telling import tell

from tailrace.client import Client, StreamName


async def main() -> None:
    """Read, judge, tell."""
    controller, stream = sys.argv[1:]
    read = Sequences()
    async with Client(controller) as client:
        # Segments come older ones first, and those made by a scale hold the later events of a key.
        for piece in await client.slices(StreamName(*stream.split("/"))):
            async for events in client.read_slice(piece):
                for event in events:
                    judge(event, read)
    tell("end", **read.report())


if __name__ == "__main__":
    asyncio.run(main())
