"""A full disk: writes wait or fail clearly, reads go on, nothing acknowledged is lost, and space heals it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.history import Event, History, encode
from harness.objectwatch import files_in, is_part
from harness.server import Server
from harness.smalldisk import SmallDisk, small_disk
from harness.workload import create_stream, read_from_head
from tailrace.client import Client, EventWriter, ScalingPolicy, StreamConfig, StreamName
from tailrace.common.errors import UnavailableError

STREAM = StreamName("full", "events")
OTHER = StreamName("full", "other")
DISK_MIB = 600
"""The log of one container takes up to three files of 64 MiB, Tier 2 what is written in a test."""
EVENT_BYTES = 50_000
STALLED_S = 4.0
FULL_DEADLINE_S = 240.0


class Scenario:
    """One writer that keeps writing, and the outcomes of its writes."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.history = History()
        self._writer: EventWriter
        self._task: asyncio.Task[None]
        self._stop = False

    async def start(self) -> None:
        """Begin."""
        self._writer = await self.client.writer(STREAM).start()
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        number = 0
        while not self._stop:
            await self._writer.ready()
            key = f"k{number % 10}"
            numbers = self.history.write(key)
            future = self._writer.write_event(encode(Event(key, numbers[0], ""), EVENT_BYTES), key)
            future.add_done_callback(partial(self._done, key, numbers))
            number += 1
            await asyncio.sleep(0)

    def _done(self, key: str, numbers: range, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.history.acknowledge(key, numbers)

    async def stalled(self) -> int:
        """Wait until nothing more is acknowledged; how many events were."""
        async with asyncio.timeout(FULL_DEADLINE_S):
            while True:
                before = self.history.acknowledged
                await asyncio.sleep(STALLED_S)
                if before and self.history.acknowledged == before:
                    return before

    async def more(self) -> None:
        """Wait until something more is acknowledged."""
        before = self.history.acknowledged
        async with asyncio.timeout(FULL_DEADLINE_S):
            while self.history.acknowledged == before:  # noqa: ASYNC110  # the history is plain data
                await asyncio.sleep(0.05)

    async def finish(self) -> None:
        """Everything that was written is acknowledged."""
        self._stop = True
        await self._task
        await self._writer.close()

    async def abandon(self) -> None:
        """The outcome of what is under way stays unknown."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._writer.abandon()

    async def check(self) -> None:
        """A full read agrees."""
        segments = await read_from_head(self.client, STREAM)
        violations = self.history.check(segments)
        assert not violations, violations[:20]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A small file system."""
    with small_disk(tmp_path / "disk", DISK_MIB) as made:
        yield made


@pytest.fixture
async def server(disk: SmallDisk, tmp_path: Path) -> AsyncIterator[Server]:
    """A server on the small disk, whose cache is larger than it."""
    options = ("--cache", "512MiB", "--containers", "1")
    async with Server(tmp_path / "server", options=options, data_in=disk.folder / "data") as made:
        await made.start()
        yield made


async def test_full_and_room_again(server: Server, disk: SmallDisk) -> None:
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 2)
        scenario = Scenario(client)
        await scenario.start()
        await scenario.more()
        disk.fill()
        stalled_at = await scenario.stalled()
        assert stalled_at

        await scenario.check()
        with pytest.raises((UnavailableError, TimeoutError)):
            async with asyncio.timeout(STALLED_S), client.writer(STREAM) as writer:
                await writer.write_event(bytes(2_000_000))
        reported = [line["reason"] for line in server.log_events("log_disk_full")]
        assert len(reported) == 1
        assert reported[0].startswith("the log has no room for "), reported
        health = await server.ask("/v1/health")
        assert health["ready"]
        assert "No space left" in health["containers"]["0"]["reason"]

        disk.make_room()
        await scenario.more()
        await scenario.finish()
        await scenario.check()
        await server.flush()
        await healthy(server)
        assert len(server.log_events("log_disk_full")) == 1
        assert [line["refused_operations"] > 0 for line in server.log_events("log_disk_has_room")] == [True]
        closed = [line["reason"] for line in server.log_events("connection closed")]
        assert not [reason for reason in closed if "DiskFull" in reason], "a line for every refused connection"
        assert not [path for path in files_in(str(server.tier2)) if is_part(path)], "what failed was left behind"


async def healthy(server: Server) -> None:
    """Wait until the server has forgotten its trouble."""
    health: object = None
    for _ in range(100):
        health = (await server.ask("/v1/health"))["containers"]["0"]
        if health == {"state": "running", "reason": ""}:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"{health}, disk {await server.ask('/v1/containers')}")


async def test_killed_while_full(server: Server, disk: SmallDisk) -> None:
    """A start on a disk without a free byte serves what is there, and says what it cannot do; with room it writes."""
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 2)
        await client.streams.create_stream(OTHER, StreamConfig(scaling=ScalingPolicy.fixed(1)))
        scenario = Scenario(client)
        await scenario.start()
        await scenario.more()
        disk.fill()
        await scenario.stalled()
        await scenario.abandon()
    for _ in range(3):  # each start uses up some of what the log frees for it
        await server.kill()
        disk.fill()
        await server.start()
    async with Client(server.controller) as client:
        scenario.client = client
        await scenario.check()
        await refuses_writes(server, client)
        disk.make_room()
        await until_written(client)
        await scenario.check()
        await server.flush()
        await healthy(server)
    await server.kill()
    await server.verify()
    await server.start()
    async with Client(server.controller) as client:
        scenario.client = client
        await scenario.check()


async def refuses_writes(server: Server, client: Client) -> None:
    """Writes wait, and the server says why: in its health and in its log."""
    with pytest.raises((UnavailableError, TimeoutError)):
        async with asyncio.timeout(STALLED_S), client.writer(STREAM) as writer:
            await writer.write_event(bytes(2_000_000))
    health = await server.ask("/v1/health")
    assert health["ready"]
    assert "No space left" in health["containers"]["0"]["reason"]
    assert server.log_events("tier2_takes_no_objects")
    # The trouble of the start ends when a probe succeeds: a start frees some of the log's space, which Tier 2 may get.
    assert all("No space left" in trouble for trouble in health["troubles"])
    assert health["troubles"] or server.log_events("tier2_takes_objects")


async def until_written(client: Client) -> None:
    """Write one event: it is acknowledged without a restart."""
    async with asyncio.timeout(FULL_DEADLINE_S), client.writer(OTHER) as writer:
        await writer.write_event(b"with room again")


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_start_with_a_full_tier_2(disk: SmallDisk, tmp_path: Path, workers: int) -> None:
    """The log has room: the server writes there, and moves the bytes when Tier 2 has room."""
    options = ("--cache", "512MiB", "--containers", str(workers), "--tier2", f"file://{disk.folder}/tier2")
    async with Server(tmp_path / "server", options=options, workers=workers) as server:
        await server.start()
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, 2)
            await client.streams.create_stream(OTHER, StreamConfig(scaling=ScalingPolicy.fixed(1)))
            scenario = Scenario(client)
            await scenario.start()
            await scenario.more()
            disk.fill()
            await scenario.more()
            await scenario.abandon()
        await server.kill()
        await server.start()
        async with Client(server.controller) as client:
            scenario.client = client
            await scenario.check()
            await until_written(client)
        health = await server.ask("/v1/health")
        assert health["ready"]
        assert "No space left" in health["troubles"][0]
        disk.make_room()
        async with asyncio.timeout(FULL_DEADLINE_S):
            while (await server.ask("/v1/health"))["troubles"]:  # noqa: ASYNC110  # a request is its way to say so
                await asyncio.sleep(0.2)
        await server.flush()
        await healthy(server)
        assert len(server.log_events("tier2_takes_objects")) == workers
