"""Creations of reader groups that fail or are interrupted, against a whole server: nothing stays in the way."""

from __future__ import annotations

import asyncio
import random
import secrets
import sys

import pytest

from tailrace.client import Client, StreamName, group_config
from tailrace.client.model import ReaderGroupConfig
from tailrace.common.errors import AlreadyExistsError, NoSuchReaderGroupError, NotFoundError

DEADLINE_S = 120.0
KILLS = 12
CREATOR = """
import asyncio, sys
from tailrace.client import Client, StreamName, group_config

async def main(controller, scope, group):
    async with Client(controller) as client:
        print("connected", flush=True)
        await client.reader_groups(scope).create(group, group_config({StreamName(scope, "first"): None}))

asyncio.run(main(*sys.argv[1:]))
"""


async def make_scope(client: Client, *streams: str) -> str:
    scope = f"groups-{secrets.token_hex(4)}"
    await client.streams.create_scope(scope)
    for each in streams:
        stream = StreamName(scope, each)
        await client.streams.create_stream(stream)
        async with client.writer(stream) as writer:
            await writer.write_event(each.encode(), "k")
    return scope


async def read_one(client: Client, scope: str, group: str) -> bytes | None:
    async with client.reader(scope, group, "reader") as reader, asyncio.timeout(DEADLINE_S):
        while True:
            for item in await reader.read_events(1, 500):
                if item.checkpoint is None:
                    return item.event


async def listed(client: Client, scope: str) -> list[str]:
    return await client.reader_groups(scope).list()


async def test_a_creation_over_an_unknown_stream_leaves_nothing(controller: str) -> None:
    async with Client(controller) as client:
        scope = await make_scope(client, "known")
        known, unknown = StreamName(scope, "known"), StreamName(scope, "unknown")
        groups = client.reader_groups(scope)
        for streams in ([unknown], [known, unknown]):
            with pytest.raises(NotFoundError, match="unknown"):
                await groups.create("g", group_config(dict.fromkeys(streams)))
            assert await listed(client, scope) == []
            with pytest.raises(NoSuchReaderGroupError):
                await groups.open("g")
        left = await client.streams.list_streams(scope, internal=True)
        assert {each.stream for each in left} == {"known", "_MARKknown"}
        await client.streams.create_stream(unknown)
        assert await groups.create("g", group_config({known: None, unknown: None}))
        assert await read_one(client, scope, "g") == b"known"
        await groups.delete("g")


async def test_a_creation_is_made_over_one_that_was_killed(controller: str, test_seed: int) -> None:
    """Each creation is killed at another moment; then one with other settings is made under the same name, and read."""
    rng = random.Random(test_seed)
    async with Client(controller) as client:
        scope = await make_scope(client, "first", "second")
        second = group_config({StreamName(scope, "second"): None}, automatic_checkpoint_ms=60_000)
        for number in range(KILLS):
            group = f"g{number}"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CREATOR, controller, scope, group), stdout=asyncio.subprocess.PIPE
            )
            try:
                assert process.stdout is not None
                async with asyncio.timeout(DEADLINE_S):
                    assert await process.stdout.readline()
                    await asyncio.sleep(rng.random() * 0.06)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.communicate()
            if process.returncode == 0:
                await client.reader_groups(scope).delete(group)  # it was faster
            async with asyncio.timeout(DEADLINE_S):
                await create(client, scope, group, second)
                assert await read_one(client, scope, group) == b"second"


async def create(client: Client, scope: str, group: str, config: ReaderGroupConfig) -> None:
    """Create the group over whatever the killed process left."""
    groups = client.reader_groups(scope)
    try:
        await groups.create(group, config)
    except AlreadyExistsError:  # it was complete when the process was killed
        await groups.delete(group)
        assert await groups.create(group, config)


async def test_a_creation_that_stopped_between_controller_and_state(controller: str) -> None:
    """The controller has the group, its state stream is empty: what a process leaves that dies in between."""
    async with Client(controller) as client:
        scope = await make_scope(client, "first", "second")
        first = group_config({StreamName(scope, "first"): None})
        await client.context.controller.create_reader_group(scope, "g", first)
        assert await listed(client, scope) == ["g"]
        second = group_config({StreamName(scope, "second"): None}, automatic_checkpoint_ms=60_000)
        assert await client.reader_groups(scope).create("g", second)
        assert await read_one(client, scope, "g") == b"second"
