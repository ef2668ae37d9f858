"""Reads a stream from its head with a reader group, and judges the order and number of each key's events on the way.

With ``join`` the group exists already: another client created it.

usage: load_reader.py CONTROLLER SCOPE/STREAM GROUP READERS [join]
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from judging import judge
from sequences import Sequences
from telling import report_for_ever, stop_on_sigterm, tell

from tailrace.client import Client, EventReader, StreamName, group_config
from tailrace.common.errors import DataError, TailraceError

READ_MS = 500
BATCH_EVENTS = 500
RETRY_S = 0.2
CLOSE_DEADLINE_S = 120.0


async def joined(client: Client, stream: StreamName, group: str, name: str, *, join: bool) -> EventReader:
    """A reader of the group, as soon as there is such a stream."""
    while True:
        try:
            if not join:
                await client.reader_groups(stream.scope).create(group, group_config({stream: None}))
            return await client.reader(stream.scope, group, name).start()
        except TailraceError as error:
            tell("waiting", error=f"{type(error).__name__}: {error}"[:300])
            await asyncio.sleep(RETRY_S)


async def read(reader: EventReader, read_so_far: Sequences, errors: Counter[str], stopping: asyncio.Event) -> None:
    """Until it is to stop. Errors that may pass are counted, and the next call tries again."""
    while not stopping.is_set():
        try:
            batch = await reader.read_batch(BATCH_EVENTS, READ_MS)
        except DataError as error:
            read_so_far.violate("data", f"{type(error).__name__}: {error}")
            return
        except TailraceError as error:
            errors[type(error).__name__] += 1
            tell("error", error=f"{type(error).__name__}: {error}"[:300])
            await asyncio.sleep(RETRY_S)
            continue
        for event in batch.events if batch is not None else ():
            judge(event, read_so_far)


async def main() -> None:
    """Read, judge, tell."""
    controller, stream_name, group, readers, *join = sys.argv[1:]
    stream = StreamName(*stream_name.split("/"))
    stopping = stop_on_sigterm()
    read_so_far, errors = Sequences(), Counter[str]()
    async with Client(controller) as client:
        members = [
            await joined(client, stream, group, f"reader-{number}", join=bool(join)) for number in range(int(readers))
        ]
        reporting = asyncio.create_task(
            report_for_ever(
                lambda: {
                    "events": read_so_far.events,
                    "violations": dict(read_so_far.violations),
                    "errors": dict(errors),
                }
            )
        )
        try:
            async with asyncio.TaskGroup() as group_of_readers:
                for member in members:
                    group_of_readers.create_task(read(member, read_so_far, errors, stopping))
        finally:
            reporting.cancel()
        tell("end", **read_so_far.report(), errors=dict(errors))
        async with asyncio.timeout(CLOSE_DEADLINE_S):
            for member in members:
                await member.close()


if __name__ == "__main__":
    asyncio.run(main())
