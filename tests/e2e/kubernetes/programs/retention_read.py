"""Reads what retention has left of a stream that retention_write.py wrote, and what is no longer there.

usage: retention_read.py CONTROLLER SCOPE/STREAM
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from telling import tell

from tailrace.client import Client, SegmentSlice, StreamName
from tailrace.common.errors import SegmentTruncatedError

EVENT_BYTES = 64 * 1024


async def main() -> None:
    """Read all segments from their heads, then one from its beginning."""
    controller, stream = sys.argv[1:]
    kept: list[list[int]] = []
    refused = ""
    async with Client(controller) as client:
        pieces = await client.slices(StreamName(*stream.split("/")))
        for piece in pieces:
            numbers = [
                int.from_bytes(event[:8], "big") async for events in client.read_slice(piece) for event in events
            ]
            kept.append(numbers)
        try:
            async for _ in client.read_slice(SegmentSlice(pieces[0].segment, 0, EVENT_BYTES)):
                pass
        except SegmentTruncatedError as error:
            refused = type(error).__name__
    steps = sorted({after - before for numbers in kept for before, after in itertools.pairwise(numbers)})
    count = sum(map(len, kept))
    tell("end", count=count, bytes=count * EVENT_BYTES, steps=steps, last=max(map(max, kept)), refused=refused)


if __name__ == "__main__":
    asyncio.run(main())
