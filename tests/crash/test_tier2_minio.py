"""The main paths with Tier 2 on a real MinIO server: crashes, cold reads, truncation, outages, wrong settings."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from harness.history import Event, History, encode
from harness.kills import Kill, between_flush_and_commit, kill_again_and_again, while_recovering, while_serving
from harness.minio import MinioProcess
from harness.ports import free_ports
from harness.server import Server, StartFailedError
from harness.workload import Workload, create_stream, read_from_head
from tailrace.client import Client, StreamName, group_config
from tailrace.common import limits

STREAM = StreamName("minio", "events")
OPTIONS = ("--cache", "64MiB", "--containers", "2")
PREFIX = "a/prefix"
EVENT_BYTES = 100_000
EVENTS = 250
"""25 MB: more than a small cache keeps for each of two segments once it is cold."""
FULL = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
OUTAGE_S = 5.0
SETTLE_DEADLINE_S = 240.0
RECLAIMED_DEADLINE_S = 300.0
RECLAIMED_SLACK_BYTES = 2_500_000
"""Of one container: `RECLAIM_SLACK_BYTES`, and its snapshots."""
CACHE_FULL_BYTES = 48 << 20
"""Of 64 MiB: appends of some 100 KB fill 4 KiB blocks, and what is reserved or shorter takes the rest."""
STILL_S = 3.0
OWN_CALLS_DEADLINE_S = 240.0
DELETED_DEADLINE_S = 240.0
"""Objects go 2 minutes after nothing refers to them."""


@pytest.fixture
async def server(minio: MinioProcess, tmp_path: Path) -> AsyncIterator[Server]:
    """A server that is not started yet, with Tier 2 in a new bucket."""
    bucket = minio.new_bucket()
    options = (*OPTIONS, "--tier2", f"s3://{bucket}/{PREFIX}", "--s3-endpoint", minio.endpoint)
    folder = tmp_path / "server"
    files = minio.files_of(bucket)
    async with Server(folder, options=options, environment=minio.credentials, objects_in=files) as made:
        yield made


def bucket_of(server: Server) -> str:
    """The bucket of a server's Tier 2."""
    return server.objects.name


async def total(server: Server, name: str) -> int:
    """A figure of all containers."""
    return sum(item.get(name, item["details"].get(name, 0)) for item in await server.ask("/v1/containers"))


async def write_all(client: Client, history: History, events: int = EVENTS) -> None:
    """Events over ten keys, all acknowledged."""
    async with client.writer(STREAM) as writer:
        for number in range(events):
            await writer.ready()
            key = f"k{number % 10}"
            numbers = history.write(key)
            writer.write_event(encode(Event(key, numbers[0], ""), EVENT_BYTES), key)
    for key, record in history.keys.items():
        history.acknowledge(key, range(record.written))


async def check(client: Client, history: History) -> None:
    """A full read agrees."""
    violations = history.check(await read_from_head(client, STREAM))
    assert not violations, violations[:20]


async def objects_of(minio: MinioProcess, server: Server, segments: list[str]) -> dict[str, int]:
    """Sizes of the objects that segments are in; every reference is to one that is there."""
    chunks: list[dict[str, Any]] = []
    for segment in segments:
        chunks += await server.ask(f"/v1/segments/{quote(segment)}/chunks")
    stored = await asyncio.to_thread(minio.objects, bucket_of(server))  # later: the server goes on to flush meanwhile
    keys = {f"{PREFIX}/{chunk['object_key']}" for chunk in chunks}
    assert all(chunk["exists"] for chunk in chunks)
    assert keys <= stored.keys()
    return {key: stored[key] for key in keys}


async def objects_of_others(minio: MinioProcess, server: Server, segment: str) -> dict[str, int]:
    """The same of all other segments: a flush of several segments may put their bytes into one object."""
    listed = await server.ask("/v1/segments?limit=1000")
    return await objects_of(minio, server, [item["name"] for item in listed if item["name"] != segment])


@pytest.mark.timeout(1800)
async def test_killed_and_read_back(server: Server, test_seed: int) -> None:
    kills: list[Kill] = [while_serving, between_flush_and_commit]
    if FULL:
        kills = [*kills, while_recovering, *kills, *kills]
    await kill_again_and_again(server, kills, test_seed)


async def test_flush_then_everything_from_a_cold_cache(minio: MinioProcess, server: Server) -> None:
    history = History()
    await server.start()
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 2)
        await write_all(client, history)
    await server.flush_until_tiered()
    segments = [STREAM.segment(number) for number in range(2)]
    stored = await objects_of(minio, server, segments)
    assert sum(stored.values()) > EVENTS * EVENT_BYTES
    await server.stop()
    assert (await server.verify())["tier2_bytes"] > EVENTS * EVENT_BYTES

    await server.start()
    fetches = await total(server, "tier2_fetches")
    async with Client(server.controller) as client:
        await check(client, history)
        assert await total(server, "tier2_fetches") - fetches >= EVENTS * EVENT_BYTES // (1 << 20)
        await write_all(client, history, 20)
        await check(client, history)


@pytest.mark.timeout(1800)
async def test_truncated_objects_go(minio: MinioProcess, server: Server) -> None:
    """At once out of reach; deleted from the bucket after the time that a reader may still be at them."""
    history = History()
    await server.start()
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 1)
        await write_all(client, history)
        await server.flush()
        before = await objects_of(minio, server, [STREAM.segment(0)])
        cut = await client.streams.tail(STREAM)
        after = History()
        truncated_s = time.monotonic()
        await client.streams.truncate_stream(STREAM, cut)
        for key, record in history.keys.items():  # numbers go on; what is cut off is forgotten
            after.write(key, record.written)
        async with client.writer(STREAM) as writer:
            await writer.write_event(encode(Event("later", after.write("later")[0], ""), EVENT_BYTES), "later")
            after.acknowledge("later", [0])
        await server.flush()
        await check(client, after)
        gone = before.keys() - (await objects_of(minio, server, [STREAM.segment(0)])).keys()
        assert len(gone) >= len(before) - 1
        gone -= (await objects_of_others(minio, server, STREAM.segment(0))).keys()
        assert gone, "objects that only the stream used"
        pending = await total(server, "pending_deletes")
        stored = await asyncio.to_thread(minio.objects, bucket_of(server))
        if time.monotonic() < truncated_s + limits.DELETE_DELAY_S:
            assert pending >= len(gone)
            assert gone <= stored.keys()
        if FULL:
            async with asyncio.timeout(DELETED_DEADLINE_S):
                while gone & stored.keys():
                    await asyncio.sleep(1)
                    await server.flush()  # what only older snapshots need goes
                    stored = await asyncio.to_thread(minio.objects, bucket_of(server))
            assert await total(server, "pending_deletes") == 0
            await check(client, after)


@pytest.mark.timeout(900)
async def test_survivors_of_a_truncation_keep_little_besides(minio: MinioProcess, server: Server) -> None:
    """100 segments share objects, and each tenth keeps half of its bytes: without moves nearly nothing would go."""
    await server.start()
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 100)
        for _ in range(3):
            async with client.writer(STREAM) as writer:
                for number in range(1000):
                    await writer.ready()
                    writer.write_event(bytes(10_000), f"key {number}")
            await server.flush_until_tiered()
        before = await held_bytes(minio, server)
        tail = await client.streams.tail(STREAM)
        stored_bytes = 8 + len(bytes(10_000))
        halves = {
            each: end // stored_bytes // 2 * stored_bytes if each % 10 == 0 else end
            for each, end in tail.positions.items()
        }
        await client.streams.truncate_stream(STREAM, dataclasses.replace(tail, positions=halves))
        truncated_s = time.monotonic()
        retained = await retained_bytes(server)
        assert before > 10 * retained
        async with asyncio.timeout(RECLAIMED_DEADLINE_S):
            while not await total(server, "tier2_bytes_moved"):  # noqa: ASYNC110
                await asyncio.sleep(1)
            if FULL:
                bound = 1.2 * retained + 2 * RECLAIMED_SLACK_BYTES
                while (held := await held_bytes(minio, server)) > bound:  # noqa: ASYNC110
                    await asyncio.sleep(1)
                print(f"{before:,} bytes, {retained:,} retained; {held:,} after {time.monotonic() - truncated_s:.0f} s")
        left = [event for events in await read_from_head(client, STREAM) for event in events]
        assert len(left) == sum(tail.positions[each] - halves[each] for each in halves) // stored_bytes


async def held_bytes(minio: MinioProcess, server: Server) -> int:
    """What the bucket holds."""
    return sum((await asyncio.to_thread(minio.objects, bucket_of(server))).values())


async def retained_bytes(server: Server) -> int:
    """What all streams retain."""
    return sum(item["retained_bytes"] for item in await server.ask("/v1/streams?limit=1000"))


async def test_an_outage_is_not_noticed_by_writers(minio: MinioProcess, server: Server, test_seed: int) -> None:
    await server.start()
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 2)
        workload = Workload(client, STREAM, History(), test_seed, abandon_probability=0)
        async with workload.running():
            await minio.stop()
            before = workload.history.acknowledged
            await asyncio.sleep(OUTAGE_S)
            workload.check_alive()
            assert workload.history.acknowledged > before
            assert await total(server, "untiered_bytes") > 0
            assert (await server.ask("/v1/health"))["ready"]
            await minio.start()
        await workload.settle()
        assert not workload.errors
        await untroubled(server)
        await server.flush_until_tiered()
        violations = workload.history.check(await read_from_head(client, STREAM))
        assert not violations, violations[:20]
    assert not server.log_events("container_stopped")


async def test_controllers_and_groups_go_on_while_writers_wait_for_tier_2(
    minio: MinioProcess, server: Server, test_seed: int
) -> None:
    """Streams and groups are made, and transactions decided, while the cache is full of what Tier 2 lacks."""
    small = StreamName(STREAM.scope, "small")
    await server.start()
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 2)
        await create_stream(client, small, 1)
        workload = Workload(client, STREAM, History(), test_seed, transactors=0, abandon_probability=0)
        async with workload.running():
            await minio.stop()
            await stopped_by_a_full_cache(server, workload)
            before = workload.history.acknowledged
            async with asyncio.timeout(OWN_CALLS_DEADLINE_S):
                for number in range(20):
                    await create_stream(client, StreamName(STREAM.scope, f"made-{number}"), 2)
                await client.reader_groups(STREAM.scope).create("made", group_config({small: None}))
                async with client.reader(STREAM.scope, "made", "r") as reader:
                    assert not await reader.read_events(10, 1000)
                async with client.transactional_writer(small) as writer:
                    for decide in ("commit", "abort"):
                        await getattr(await writer.begin(), decide)()
            assert await total(server, "untiered_bytes") >= CACHE_FULL_BYTES, "the cache has room: nothing was shown"
            await minio.start()
        await workload.settle()
        assert not workload.errors
        assert workload.history.acknowledged > before
        violations = workload.history.check(await read_from_head(client, STREAM))
        assert not violations, violations[:20]
    assert not server.log_events("container_stopped")


async def progressed(workload: Workload, acknowledged: int) -> bool:
    """Whether events are acknowledged."""
    await asyncio.sleep(STILL_S)
    return workload.history.acknowledged > acknowledged


async def stopped_by_a_full_cache(server: Server, workload: Workload) -> None:
    """Wait until no event is acknowledged any more, because Tier 2 lacks what fills the cache."""
    async with asyncio.timeout(SETTLE_DEADLINE_S):
        while await total(server, "untiered_bytes") < CACHE_FULL_BYTES or await progressed(
            workload, workload.history.acknowledged
        ):
            workload.check_alive()


async def untroubled(server: Server) -> None:
    """Wait until no container complains of Tier 2."""
    ends_at = asyncio.get_running_loop().time() + SETTLE_DEADLINE_S
    while reasons := [item["reason"] for item in await server.ask("/v1/containers") if item["reason"]]:
        assert asyncio.get_running_loop().time() < ends_at, reasons
        await asyncio.sleep(0.2)


async def test_wrong_settings_are_named_at_start(minio: MinioProcess, server: Server, tmp_path: Path) -> None:
    """One line with the bucket, the endpoint and what is wrong with them."""
    bucket, endpoint = bucket_of(server), minio.endpoint
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    place = f"Tier 2 s3://{bucket}/p at {endpoint} is not available: "
    cases = [
        (f"s3://{bucket}/p", endpoint, {"AWS_SECRET_ACCESS_KEY": "wrong"}, place, "SignatureDoesNotMatch"),
        (f"s3://{bucket}/p", endpoint, {"AWS_ACCESS_KEY_ID": "no-such-user"}, place, "InvalidAccessKeyId"),
        ("s3://no-such-bucket/p", endpoint, {}, f"Tier 2 s3://no-such-bucket/p at {endpoint} does not exist", ""),
        (
            f"s3://{bucket}/p",
            nowhere,
            {},
            f"Tier 2 s3://{bucket}/p at {nowhere} is not available: ",
            "error sending request",
        ),
        ("ftp://somewhere", endpoint, {}, "Tier 2 'ftp://somewhere' is neither file:///folder nor s3://", ""),
    ]
    for number, (tier2, address, environment, beginning, reason) in enumerate(cases):
        options = (*OPTIONS, "--tier2", tier2, "--s3-endpoint", address)
        folder = tmp_path / f"wrong-{number}"
        async with Server(folder, options=options, environment={**minio.credentials, **environment}) as wrong:
            with pytest.raises(StartFailedError) as raised:
                await wrong.start()
        assert raised.value.code == 1
        assert wrong.log_at_any_pace.count("\n") == 1, wrong.log
        assert raised.value.words.startswith(f"tailrace: {beginning}"), raised.value.words
        assert reason in raised.value.words, raised.value.words
