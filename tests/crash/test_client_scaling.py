"""Our client over a stream that is scaled up and down while its server is killed: writers, readers, cancelled calls."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from harness.history import Event, History, decode, encode
from harness.server import Server
from harness.workload import create_stream
from tailrace.client import Client, EventReader, EventWriter, StreamName, group_config
from tailrace.common import names

STREAM = StreamName("scaling", "events")
COUNTS = (4, 1, 3, 2)
KEYS = 6
LARGE_BYTES = 9 * 1024 * 1024
MAX_EVENT_BYTES = 8 * 1024 * 1024
WRITTEN_DEADLINE_S = 240.0
END_DEADLINE_S = 240.0
OPTIONS = ("--cache", "128MiB")


class Writer:
    """Writes to a few keys until asked to stop; waits for some events, and gives some waits up."""

    def __init__(self, client: Client, history: History, name: str, seed: int) -> None:
        self._client = client
        self._history = history
        self._name = name
        self._rng = random.Random(f"{seed} {name}")
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        async with self._client.writer(STREAM) as writer:
            await self._write(writer, LARGE_BYTES)
            await self._write(writer, MAX_EVENT_BYTES)
            while not self.stopping.is_set():
                await self._write(writer, self._rng.choice((30, 200, 200, 2000, 100_000)))
                if self._rng.random() < 0.1:
                    flushing = asyncio.create_task(writer.flush())
                    await asyncio.sleep(self._rng.random() * 0.01)
                    flushing.cancel()
                await asyncio.sleep(0.002)
            await self._write(writer, LARGE_BYTES)

    async def _write(self, writer: EventWriter, length_bytes: int) -> None:
        key = f"{self._name}.{self._rng.randrange(KEYS)}"
        await writer.ready()
        numbers = self._history.write(key)
        future = writer.write_event(encode(Event(key, numbers[0], ""), length_bytes), key)
        future.add_done_callback(lambda done: self._written(key, numbers, done))
        if self._rng.random() < 0.1:
            future.cancel()  # the waiter goes away; the event does not

    def _written(self, key: str, numbers: range, done: asyncio.Future[None]) -> None:
        if not done.cancelled():
            done.result()
            self._history.acknowledge(key, numbers)


async def read(reader: EventReader, got: list[bytes], wanted: asyncio.Event, rng: random.Random) -> None:
    """Read until everything came; read calls are cancelled now and then."""

    async def on_and_on() -> None:
        while True:
            got.extend(item.event for item in await reader.read_events(500, 100) if item.checkpoint is None)

    while not wanted.is_set():
        task = asyncio.create_task(on_and_on())
        await asyncio.wait([task], timeout=rng.random() * 2)
        if task.done():
            task.result()  # it only ends by an error
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.timeout(1800)
async def test_scaling_under_kills(tmp_path: Path, test_seed: int) -> None:
    rng = random.Random(test_seed)
    history = History()
    got: list[bytes] = []
    wanted = asyncio.Event()
    async with Server(tmp_path, options=OPTIONS) as server:
        await server.start()
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, 1)
            config = group_config({STREAM: None}, group_refresh_ms=300, automatic_checkpoint_ms=500)
            await client.reader_groups(STREAM.scope).create("g", config)
            writers = [Writer(client, history, f"w{number}", test_seed) for number in range(2)]
            async with (
                client.reader(STREAM.scope, "g", "r1") as one,
                client.reader(STREAM.scope, "g", "r2") as two,
                asyncio.TaskGroup() as tasks,
            ):
                for reader in (one, two):
                    tasks.create_task(read(reader, got, wanted, rng))
                writing = [tasks.create_task(writer.run()) for writer in writers]
                await scale_and_kill(client, server, rng)
                for writer in writers:
                    writer.stopping.set()
                await asyncio.wait(writing)
                total = sum(record.written for record in history.keys.values())
                async with asyncio.timeout(END_DEADLINE_S):
                    while len(got) < total:  # noqa: ASYNC110  # the readers append
                        await asyncio.sleep(0.05)
                wanted.set()
            await check(client, history, got)
            assert len((await client.streams.info(STREAM)).segments) == COUNTS[-1]


async def scale_and_kill(client: Client, server: Server, rng: random.Random) -> None:
    """One scale after the other, each with a kill at some moment of it."""
    for count in COUNTS:
        scaling = asyncio.create_task(client.streams.scale_to(STREAM, count))
        await asyncio.sleep(rng.random() * 0.4)
        await server.kill()
        await server.start()
        await scaling
        await asyncio.sleep(1)
        await written_everywhere(client)


async def written_everywhere(client: Client) -> None:
    """Wait until every active segment holds data: how soon writers are back after a kill is up to the machine."""
    active = {STREAM.segment(segment.identifier) for segment in (await client.streams.info(STREAM)).segments}
    async with asyncio.timeout(WRITTEN_DEADLINE_S):
        while not active <= {piece.segment for piece in await client.slices(STREAM)}:  # noqa: ASYNC110  # others write
            await asyncio.sleep(0.1)


async def check(client: Client, history: History, got: list[bytes]) -> None:
    """What is stored, and what the group was given, is what was written."""
    for record in history.keys.values():
        record.acknowledged.update(range(record.written))  # `close` of the writers waits for all
    pieces = sorted(await client.slices(STREAM), key=lambda piece: names.parse_segment_name(piece.segment).identifier)
    stored = [[event async for events in client.read_slice(piece) for event in events] for piece in pieces]
    assert history.check(stored) == []
    assert history.check([got]) == [], "the group's readers"
    assert all(decode(event) is not None for event in got)
    assert len(stored) >= sum(COUNTS), "the first segment may be empty, none of those that followed is"
