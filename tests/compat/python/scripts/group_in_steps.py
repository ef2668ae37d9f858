"""A reader group of the published client, one step for each line on standard input: made, joined and read, left.

``group_in_steps.py EVENTS``: prints scope and stream when the group is made, and a word after each further step.
"""

from __future__ import annotations

import asyncio
import sys

import harness


async def _main(count: int) -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    for _ in range(count):
        writer.write_event_bytes(b"0123456789", routing_key="k")
    writer.flush()
    group = client.create_reader_group("group", scope, "stream")
    print(scope, flush=True)
    sys.stdin.readline()
    reader = group.create_reader("reader")
    seen = 0
    while seen < count:
        piece = await harness.read_slice(reader)
        seen += len(list(piece))
        reader.release_segment(piece)
    print("joined", flush=True)
    sys.stdin.readline()
    reader.reader_offline()
    print("left", flush=True)


asyncio.run(_main(int(sys.argv[1])))
