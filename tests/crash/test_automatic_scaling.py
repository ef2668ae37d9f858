"""Streams that scale by their rate, by a real server that is killed meanwhile: each key stays in order.

See docs/controller.md#automatic-scaling.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.history import Event, History, decode, encode
from harness.server import Server
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName, group_config
from tailrace.common import names
from tailrace.common.errors import TailraceError

STREAM = StreamName("automatic", "events")
FACTOR = "0.003"
"""Ten minutes are 1.8 seconds."""
OPTIONS = ("--cache", "64MiB", "--scaling-time-factor", FACTOR)
TARGET_PER_S = 5
"""Of events and segment: so few that the writer is far above it on any machine."""
KEYS = 12
KILLS = {"ci": 2, "full": 25}
SEGMENTS = 6
DEADLINE_S = 300.0


async def until(what: str, condition: Callable[[], Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if await condition():
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {DEADLINE_S:g} s: {what}")


async def segment_count(client: Client) -> int:
    """Active segments; 0 while the server does not answer."""
    try:
        return len((await client.streams.info(STREAM)).segments)
    except TailraceError:
        return 0


async def shows_rates(client: Client) -> bool:
    """Whether the description has a rate above the target, and has rates of active segments alone."""
    before = {identifier for identifier, _ in (await client.streams.info(STREAM)).segments}
    found = (await client.context.controller.describe_stream(STREAM)).rates
    rates = {} if found is None else found.per_s
    after = {identifier for identifier, _ in (await client.streams.info(STREAM)).segments}
    assert before != after or rates.keys() <= after
    return max(rates.values(), default=0) > TARGET_PER_S


async def write(client: Client, history: History, stopping: asyncio.Event) -> None:
    async with client.writer(STREAM) as writer:
        turn = 0
        while not stopping.is_set():
            key = f"k{turn % KEYS}"
            numbers = history.write(key)
            writer.write_event(encode(Event(key, numbers[0], ""), 100), key)
            turn += 1
            if turn % 5 == 0:
                await writer.flush()
                await asyncio.sleep(0.01)


async def read(client: Client, name: str, got: dict[str, list[int]]) -> None:
    async with client.reader(STREAM.scope, "g", name) as reader:
        while True:
            for item in await reader.read_events(500, 100):
                if item.event:
                    event = decode(item.event)
                    assert event is not None
                    got.setdefault(event.key, []).append(event.number)


@pytest.mark.timeout(3600)
async def test_a_stream_follows_its_load_over_kills(tmp_path: Path, test_seed: int, test_profile: str) -> None:
    chance = random.Random(test_seed)
    history, stopping = History(), asyncio.Event()
    got: dict[str, list[int]] = {}
    async with Server(tmp_path, options=OPTIONS) as server:
        await server.start()
        async with Client(server.controller) as client:
            await client.streams.create_scope(STREAM.scope)
            policy = ScalingPolicy.by_events(TARGET_PER_S, 2, 1)
            await client.streams.create_stream(STREAM, StreamConfig(policy))
            # Readers leave a sealed segment at a checkpoint.
            config = group_config({STREAM: None}, automatic_checkpoint_ms=300, group_refresh_ms=300)
            await client.reader_groups(STREAM.scope).create("g", config)
            writing = asyncio.ensure_future(write(client, history, stopping))
            reading = [asyncio.ensure_future(read(client, name, got)) for name in ("r1", "r2")]
            tasks = [writing, *reading]
            try:

                async def is_split(wanted: int) -> bool:
                    assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
                    return await segment_count(client) >= wanted

                await until("the stream is split", lambda: is_split(2))
                await until("its description has rates", lambda: shows_rates(client))
                for _ in range(KILLS[test_profile]):
                    await asyncio.sleep(chance.uniform(0, 4))
                    await server.kill()
                    await server.start()
                await until("the stream is split further", lambda: is_split(SEGMENTS))
                stopping.set()
                await writing

                async def is_read() -> bool:
                    assert not any(task.done() for task in reading), [task for task in reading if task.done()]
                    return all(len(got.get(key, ())) >= each.written for key, each in history.keys.items())

                async def is_merged() -> bool:
                    return await segment_count(client) == 1

                await until("all events are read", is_read)
                await until("the stream has its minimum again", is_merged)
            finally:
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [end for end in ends if isinstance(end, Exception)] == []
            for key, each in history.keys.items():
                assert got[key] == list(range(each.written)), f"{key} is not in order"
            epoch = max(names.segment_epoch(each.identifier) for each in (await client.streams.info(STREAM)).segments)
        await server.stop()
        scales = server.log_events("stream_scales")
        print(f"{sum(each.written for each in history.keys.values())} events, {epoch} epochs, {len(scales)} scales")
        assert any(each["splits"] for each in scales)
        assert any(each["merges"] for each in scales)
        await server.verify()


@pytest.mark.timeout(1800)
async def test_the_minimum_stays_and_a_fixed_stream_is_left_alone(tmp_path: Path) -> None:
    async with Server(tmp_path, options=OPTIONS) as server:
        await server.start()
        async with Client(server.controller) as client:
            await client.streams.create_scope(STREAM.scope)
            fixed = StreamName(STREAM.scope, "fixed")
            await client.streams.create_stream(fixed, StreamConfig(ScalingPolicy.fixed(3)))
            await client.streams.create_stream(STREAM, StreamConfig(ScalingPolicy.by_events(TARGET_PER_S, 2, 2)))
            await client.streams.scale_to(STREAM, 5)

            async def is_at_minimum() -> bool:
                return await segment_count(client) == 2

            await until("the stream has its minimum", is_at_minimum)
            await asyncio.sleep(3)  # ten rounds, in which it could fall below
            assert await segment_count(client) == 2
            info = await client.streams.info(fixed)
            assert [each.identifier for each in info.segments] == [0, 1, 2], "those of its creation"
