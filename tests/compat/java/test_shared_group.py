"""Readers of the published Java client and our own in one reader group, which our client made.

See docs/design.md#reader-groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.client import Client, EventReader, ReaderGroup, ScalingPolicy, StreamConfig, StreamName, group_config

KEYS = [f"key{number}" for number in range(16)]
TURNS = 50
TURN_S = 0.2
LIMIT_S = 300.0


@contextlib.asynccontextmanager
async def java_readers(class_path: str, output: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Two Java readers that print what they read; they end after their standard input, when nothing more comes."""
    with output.open("wb") as sink:
        child = await asyncio.create_subprocess_exec(
            *("java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", class_path),
            *("io.tailrace.compat.Main", "verifiable-reader", *arguments, "2", "3000"),
            stdin=asyncio.subprocess.PIPE,
            stdout=sink,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def until_online(group: ReaderGroup, count: int) -> None:
    """Wait until the group has so many readers: the group's state is the only place where that shows."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if len(await group.online_readers()) >= count:
                return
            await asyncio.sleep(0.1)


async def read(reader: EventReader, got: list[str], stop: asyncio.Event) -> None:
    """Read until asked to stop, then leave the group."""
    async with reader:
        while not stop.is_set():
            got.extend(item.event.decode()[:-2] for item in await reader.read_events(1000, 100) if item.event)


async def write_while_things_change(
    client: Client, stream: StreamName, group: ReaderGroup, leave: asyncio.Event
) -> None:
    """Turns of one event per key, through a split, a checkpoint, compactions, a merge and a reader that leaves."""
    async with client.writer(stream) as writer:
        for turn in range(TURNS):
            for key in KEYS:
                writer.write_event(f"{key}:{turn}:x".encode(), routing_key=key)
            await asyncio.sleep(TURN_S)
            if turn == 10:
                await client.streams.scale_to(stream, 6)
            elif turn == 15:
                checkpoint = await group.checkpoint("asked", deadline_s=LIMIT_S)
                assert checkpoint.cuts[str(stream)].positions
            elif turn in (20, 30):
                while not await group.compact():
                    continue
            elif turn == 25:
                await client.streams.update_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))
                assert len((await client.streams.info(stream)).segments) == 2
            elif turn == 35:
                leave.set()


async def until_read(got: list[list[str]], count: int) -> None:
    """Wait until our readers have read so many events together."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if sum(map(len, got)) >= count:
                return
            await asyncio.sleep(0.05)


@pytest.mark.timeout(600)
async def test_java_and_our_readers_share_a_group(java_class_path: str, server: Any, tmp_path: Path) -> None:
    stream = StreamName(f"shared-{secrets.token_hex(4)}", "stream")
    output = tmp_path / "java"
    got: list[list[str]] = [[], []]
    async with Client(server.controller) as client:
        await client.streams.create_scope(stream.scope)
        await client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(4)))
        groups = client.reader_groups(stream.scope)
        # The Java program asks for the same configuration, so it joins the group instead of making it.
        assert await groups.create(
            "group", group_config({stream: None}, automatic_checkpoint_ms=1000, group_refresh_ms=500)
        )
        group = await groups.open("group")
        leave, stop = asyncio.Event(), asyncio.Event()
        arguments = (server.controller, stream.scope, stream.stream, "group")
        async with java_readers(java_class_path, output, *arguments) as java, asyncio.TaskGroup() as readers:
            for name, heard, end in (("ours-1", got[0], stop), ("ours-2", got[1], leave)):
                readers.create_task(read(client.reader(stream.scope, "group", name), heard, end))
            await until_online(group, 4)
            await write_while_things_change(client, stream, group, leave)
            assert java.stdin is not None
            java.stdin.close()
            async with asyncio.timeout(LIMIT_S):
                assert await java.wait() == 0, output.read_text()
            by_java = output.read_text().splitlines()
            assert by_java.pop() == f"end {len(by_java)}"
            # Our readers get the rest, also what the Java readers left behind on leaving.
            await until_read(got, len(KEYS) * TURNS - len(by_java))
            await asyncio.sleep(2 * TURN_S)  # what comes doubled comes now
            stop.set()
        await groups.delete("group")
    assert all([by_java, *got]), "every reader had its share"
    together = [*by_java, *got[0], *got[1]]
    assert sorted(together) == sorted(f"{key}:{turn}" for key in KEYS for turn in range(TURNS))
    for events in (by_java, *got):
        order: dict[str, list[int]] = defaultdict(list)
        for event in events:
            key, turn_text = event.split(":")
            order[key].append(int(turn_text))
        assert all(turns == sorted(turns) for turns in order.values())
