"""Retention by a real server that is killed again and again: what stays, what goes, and what a subscriber has read.

See docs/controller.md#retention.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from harness.server import Server
from tailrace.client import (
    Client,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfig,
    StreamDataRetention,
    StreamName,
    group_config,
)
from tailrace.client.control.owners import Holder
from tailrace.common.errors import SegmentTruncatedError, TailraceError
from tailrace.common.quantities import size_text

STREAM = StreamName("kept", "s")
MINIMUM, MAXIMUM = 200_000, 2_000_000
CONFIG = StreamConfig(ScalingPolicy.fixed(1), RetentionPolicy.by_size_bytes(MINIMUM, MAXIMUM))
OPTIONS = ("--retention-period", "500ms", "--cache", "64MiB")
EVENT_BYTES = 1000
STORED_BYTES = 8 + EVENT_BYTES
KILLS = {"ci": 4, "full": 60}
DEADLINE_S = 300.0


def event(number: int) -> bytes:
    return b"%010d" % number + b"." * (EVENT_BYTES - 10)


async def until(what: str, condition: Callable[[], object]) -> None:
    """Wait for a condition, which may also be awaitable."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = condition()
                if asyncio.iscoroutine(found):
                    with suppress(TailraceError):
                        if await found:
                            return
                elif found:
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"not within {DEADLINE_S:g} s: {what}")


class Writer:
    """Writes numbered events at a steady pace until it is stopped."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.written = 0
        """Events that are acknowledged."""
        self.stopped = False

    async def run(self, pause_s: float = 0.01, limit: int = 2**62) -> None:
        """Write, 20 events at a time."""
        async with self._client.writer(STREAM) as writer:
            while not self.stopped and self.written < limit:
                for number in range(self.written, self.written + 20):
                    writer.write_event(event(number), routing_key="k")
                await writer.flush()
                self.written += 20
                await asyncio.sleep(pause_s)


class Reader:
    """Reads all events in order; publishes what it has read by automatic checkpoints."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.read = 0

    async def run(self) -> None:
        """Read; fails on the first event that is not the next one."""
        async with self._client.reader(STREAM.scope, "subscriber", "reader") as reader:
            while True:
                for item in await reader.read_events(100, 500):
                    if item.event:
                        assert int(item.event[:10]) == self.read, f"event {self.read} is lost or doubled"
                        self.read += 1


async def head_bytes(client: Client) -> int:
    """Bytes before the head."""
    return sum((await client.streams.head(STREAM)).positions.values())


async def published_bytes(client: Client) -> int:
    """Bytes before the position that the controller has of the subscriber."""
    return sum((await client.context.controller.subscriber_cut(STREAM, f"{STREAM.scope}/subscriber")).values())


async def is_short_after_more(client: Client, writer: Writer) -> bool:
    """Write a little more, and return whether less than twice the minimum is kept.

    What is written between two cuts goes or stays as a whole. With little between them some cut is near the minimum,
    however much the machine wrote between two cuts before.
    """
    writer.stopped = False
    await writer.run(limit=writer.written + 20)
    await asyncio.sleep(1)
    return writer.written * STORED_BYTES - await head_bytes(client) < 2 * MINIMUM


async def begin(client: Client) -> None:
    await client.streams.create_scope(STREAM.scope)
    await client.streams.create_stream(STREAM, CONFIG)
    config = group_config(
        {STREAM: None}, automatic_checkpoint_ms=300, retention=StreamDataRetention.AUTOMATIC_AT_LAST_CHECKPOINT
    )
    await client.reader_groups(STREAM.scope).create("subscriber", config)


@pytest.mark.timeout(3600)
async def test_a_subscriber_that_keeps_up_loses_nothing_over_kills(
    tmp_path: Path, test_profile: str, test_seed: int
) -> None:
    chance = random.Random(test_seed)
    async with Server(tmp_path, OPTIONS) as server:
        await server.start()
        async with Client(server.controller) as client:
            await begin(client)
            writer, reader = Writer(client), Reader(client)
            tasks = [asyncio.ensure_future(work) for work in (writer.run(), reader.run())]
            try:
                truncated = 0
                for _ in range(KILLS[test_profile]):
                    before = await head_bytes(client)

                    async def has_moved(before: int = before) -> bool:
                        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
                        return await head_bytes(client) > before

                    await until("the head moves", has_moved)
                    truncated += 1
                    await asyncio.sleep(chance.uniform(0, 1))
                    await server.kill()
                    await server.start()
                writer.stopped = True
                await tasks[0]
                await until("only what the policy keeps is left", partial(is_short_after_more, client, writer))
                await until("all events are read", lambda: reader.read == writer.written or tasks[1].done())
            finally:
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [end for end in ends if isinstance(end, Exception)] == []
            kept = writer.written * STORED_BYTES - await head_bytes(client)
            print(f"{truncated} kills, {writer.written} events, {kept} bytes kept of {writer.written * STORED_BYTES}")
            assert kept >= MINIMUM
            assert reader.read == writer.written
        await server.stop()
        report = await server.verify()
        assert report["segment_bytes"] < writer.written * STORED_BYTES


def shown_by_command(controller: str) -> str:
    words = ("stream", "info", str(STREAM), "--controller", controller)
    command = [sys.executable, "-m", "tailrace.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def read_on(client: Client) -> None:
    """Read where the group is, with another reader, until it fails."""
    async with client.reader(STREAM.scope, "subscriber", "late") as reader:
        while True:
            await reader.read_events(100, 500)


@pytest.mark.timeout(1800)
async def test_a_subscriber_that_stopped_holds_no_more_than_the_maximum(tmp_path: Path) -> None:
    async with Server(tmp_path, OPTIONS) as server:
        await server.start()
        async with Client(server.controller) as client:
            await begin(client)
            writer = Writer(client)
            await writer.run(limit=100)
            group = await client.reader_groups(STREAM.scope).open("subscriber")
            async with client.reader(STREAM.scope, "subscriber", "reader") as reader:
                seen = 0
                while seen < 60:
                    seen += sum(item.event is not None for item in await reader.read_events(60 - seen, 500))
                    await asyncio.sleep(0.1)

                async def has_published() -> bool:
                    await reader.read_events(1, 100)
                    return await published_bytes(client) > 0

                await until("it has published", has_published)
            held = await published_bytes(client)
            await writer.run(limit=MAXIMUM * 3 // 4 // STORED_BYTES)
            await asyncio.sleep(2)  # rounds that could truncate more than they may
            assert await head_bytes(client) <= held
            assert await group.positions()
            writer_end = 2 * MAXIMUM // STORED_BYTES
            await writer.run(limit=writer_end)

            async def is_cut() -> bool:
                return await head_bytes(client) > held

            await until("the maximum is enforced", is_cut)

            async def is_within() -> bool:
                return writer.written * STORED_BYTES - await head_bytes(client) <= MAXIMUM

            await until("at most the maximum is kept", is_within)
            head = await head_bytes(client)
            assert writer.written * STORED_BYTES - head >= MINIMUM
            assert head % STORED_BYTES == 0, "the head is between two events"
            found = await client.context.controller.describe_stream(STREAM)
            assert found.truncated is not None
            assert found.truncated.reason == "MaxLimit"
            assert found.head_bytes == head
            subscriber = f"{STREAM.scope}/subscriber"
            (holder,) = found.holders
            published_ms, before_ms = holder.published_ms, holder.unread_before_ms
            assert holder == Holder(subscriber, found.tail_bytes - head, head - held, published_ms, before_ms)
            assert 0 < published_ms < found.applied_ms
            assert 0 < before_ms <= found.applied_ms
            assert 0 < found.oldest_ms <= found.applied_ms
            shown = await asyncio.to_thread(shown_by_command, server.controller)
            assert "by MaxLimit" in shown
            held_text = f"{subscriber} has {size_text(found.tail_bytes - head)} unread, {size_text(head - held)} lost"
            assert held_text in " ".join(shown.split())
            with pytest.raises(SegmentTruncatedError):
                await read_on(client)
