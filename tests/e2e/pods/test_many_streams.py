"""Controllers of a cluster with many streams: how fast they create and list them, start, and what memory they take."""

from __future__ import annotations

import asyncio
import math

import msgspec
import psutil
import pytest

from harness.pace import REPORT, Tries
from harness.pods import PodProcess, Pods, until
from tailrace.client import Client, RetentionPolicy, ScalingPolicy, StreamConfig, StreamName
from tailrace.client.context import ClientContext

SCOPE = "many"
STREAMS = {"ci": 300, "full": 10_000}
CREATORS = 16
LISTS = 5
READY_WITHIN_S = 5.0
PAGE_WITHIN_S = 0.05
MEMORY_BYTES_MAX = 512 << 20
CONFIG = StreamConfig(
    scaling=ScalingPolicy.fixed(1), retention=RetentionPolicy.by_size_bytes(1_000_000, 10_000_000), tags=("many",)
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]


async def test_a_controller_of_many_streams_starts_at_once_and_stays_small(whole_pods: Pods, test_profile: str) -> None:
    pods, loop = whole_pods, asyncio.get_running_loop()
    stays, restarted = pods.controllers
    names = [StreamName(SCOPE, f"s{number:06d}") for number in range(STREAMS[test_profile])]
    began_s = loop.time()
    await create(pods.address_of(stays), names)
    REPORT.append(f"{len(names)} streams: {len(names) / (loop.time() - began_s):.0f} created a second")
    bounds_s = {"ready": READY_WITHIN_S, "page of a list, p99": PAGE_WITHIN_S}
    for attempt in Tries(f"start of a controller with {len(names)} streams", bounds_s):
        await restarted.kill()
        await restarted.start()
        attempt.note("ready", await restarted.wait_ready())
        attempt.note("page of a list, p99", await page_p99_s(pods.address_of(restarted), names))
    await stays.kill()
    async with Client(pods.address_of(restarted)) as client:

        async def alone() -> bool:
            return len(await client.context.controller.controllers()) == 1

        await until("the killed controller is no longer named", alone)
        for name in (names[0], names[-1]):
            await client.streams.update_stream(name, msgspec.structs.replace(CONFIG, tags=("other",)))
    await page_p99_s(pods.address_of(restarted), names)
    used_bytes = memory_bytes(restarted)
    REPORT.append(f"memory of the one controller of {len(names)} streams: {used_bytes / 2**20:.0f} MiB")
    assert used_bytes < MEMORY_BYTES_MAX


async def create(address: str, names: list[StreamName]) -> None:
    left = iter(names)

    async def creator() -> None:
        for name in left:  # shared by all of them
            await context.controller.create_stream(name, CONFIG)

    context = ClientContext(address)
    try:
        await context.controller.create_scope(SCOPE)
        async with asyncio.TaskGroup() as group:
            for _ in range(CREATORS):
                group.create_task(creator())
    finally:
        await context.close()


async def page_p99_s(address: str, names: list[StreamName]) -> float:
    """List all streams some times; seconds within which 99 of 100 pages came. The first list only warms up."""
    loop = asyncio.get_running_loop()
    waits_s: list[float] = []
    context = ClientContext(address)
    try:
        for turn in range(LISTS + 1):
            found: set[StreamName] = set()
            began_s = loop.time()
            async for page in context.controller.stream_pages(SCOPE):
                if turn:
                    waits_s.append(loop.time() - began_s)
                found.update(page)
                began_s = loop.time()
            assert found >= set(names), "marks of streams are listed, too"
    finally:
        await context.close()
    return sorted(waits_s)[math.ceil(0.99 * len(waits_s)) - 1]


def memory_bytes(controller: PodProcess) -> int:
    """What a controller has in memory, with all its processes."""
    main = psutil.Process(controller.pid)
    return sum(one.memory_info().rss for one in (main, *main.children(recursive=True)))
