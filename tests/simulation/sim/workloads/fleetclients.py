"""Clients of a simulated cluster: they write, read, count in a table, and ask every worker for what it knows."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict

from harness.history import Event, History, encode
from sim.violations import require
from sim.workloads.fleetledger import REFUSED, Growth, KeyHistory, Update
from sim.workloads.fleetnodes import patiently
from tailrace.client import Client, EventWriter, StreamName
from tailrace.client.control.tables import TableConfig
from tailrace.client.hashing import key_position
from tailrace.client.model import SegmentRange, owner_of
from tailrace.client.reader.batch import SegmentReader, SegmentSlice, read_slice
from tailrace.client.tables import KeyValueTable, TableKeyParts
from tailrace.client.types import NOT_EXISTS
from tailrace.common.errors import (
    TableKeyBadVersionError,
    TableKeyNotExistsError,
    TailraceError,
)
from tailrace.common.names import TABLE_SUFFIX
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig

SCOPE = "scope"
EVENT_HEADER_BYTES = 8
KEY_BYTES = 4
TIMEOUT_S = 8.0
WAITING_S = 10.0
NEWS_MAX_S = 8.0
"""So long may a reader wait at the tail of an owner that has a successor and can reach everything."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class Clients:
    """Writers, tail readers and table users through controllers. They go on until `stop`, whatever happens."""

    def __init__(self, client: Client, rng: random.Random, segments: int, keys: int) -> None:
        self.client = client
        self.history = History()
        self.growth = Growth()
        self.tables: dict[str, KeyHistory] = {f"k{number:03}": KeyHistory() for number in range(keys)}
        # Their names decide which containers they are in.
        self.stream = StreamName(SCOPE, f"stream{rng.randrange(1000)}")
        self.table = f"table{rng.randrange(1000)}"
        self.segments: list[SegmentRange] = []
        self.tail: defaultdict[str, list[bytes]] = defaultdict(list)
        self.table_segment = ""
        self.steps = 0
        self._random = rng
        self._count = segments
        self._bytes: defaultdict[str, int] = defaultdict(int)
        self._tail_bytes: defaultdict[str, int] = defaultdict(int)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []

    # -- the scenario

    async def create(self) -> None:
        """Make a stream and a table."""
        controller, config = self.client.context.controller, StreamConfig(scaling=ScalingPolicy.fixed(self._count))
        await patiently(lambda: self.client.streams.create_scope(SCOPE))
        await patiently(lambda: self.client.streams.create_stream(self.stream, config))
        await patiently(lambda: controller.create_table(SCOPE, self.table, TableConfig(1, KEY_BYTES)))
        self.segments = await patiently(lambda: controller.current_segments(self.stream))
        partitions = await patiently(lambda: controller.table_segments(SCOPE, self.table))
        self.table_segment = StreamName(SCOPE, self.table + TABLE_SUFFIX).segment(partitions[0].identifier)

    def start(self, writers: int, users: int) -> None:
        """Begin to work."""
        spawn = asyncio.get_running_loop().create_task
        self._tasks += [spawn(self._write(f"w{number}")) for number in range(writers)]
        self._tasks += [spawn(self._count_up(f"u{number}")) for number in range(users)]
        self._readers += [spawn(self._follow(self.stream.segment(item.identifier))) for item in self.segments]

    def check_alive(self) -> None:
        """Fails when one of them ended early."""
        for task in (*self._tasks, *self._readers):
            if task.done():
                task.result()

    async def stop(self) -> None:
        """Let them end what they are at: everything is acknowledged then, and read at the tail."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        while any(self._tail_bytes[name] < size for name, size in self._bytes.items()):
            self.check_alive()
            await asyncio.sleep(0.2)
        for task in self._readers:
            task.cancel()
        await asyncio.wait(self._readers)
        self._readers.clear()

    # -- writers

    async def _write(self, name: str) -> None:
        rng = random.Random(f"{self._random.random()} {name}")
        pause_s = rng.choice([0.1, 0.5, 1.0])
        generation = 0
        writer = await patiently(lambda: self.client.writer(self.stream).start())
        while not self._stopping:
            key = f"{name}.{generation}.{rng.randrange(2)}"
            await writer.ready()
            self._write_some(writer, key, rng)
            await asyncio.sleep(rng.random() * pause_s)
            if rng.random() < 0.01:
                await writer.abandon()
                generation += 1
                writer = await patiently(lambda: self.client.writer(self.stream).start())
        await writer.close()

    def _write_some(self, writer: EventWriter, key: str, rng: random.Random) -> None:
        numbers = self.history.write(key, rng.choice((1, 1, 3, 10)))
        length = rng.choice((20, 100, 3000))
        events = [encode(Event(key, number, ""), length) for number in numbers]
        segment = self.stream.segment(owner_of(self.segments, key_position(key)).identifier)
        size = sum(len(event) + EVENT_HEADER_BYTES for event in events)

        def answered(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.history.acknowledge(key, numbers)
                self._bytes[segment] += size
                self.growth.note(segment, _now_s(), self._bytes[segment])
                self.steps += 1

        writer.write_events(events, key).add_done_callback(answered)

    # -- readers at the tail

    async def _follow(self, segment: str) -> None:
        """Read a segment to its tail and on; what is read is what a full read finds later."""
        offset = 0
        found = self.tail[segment]
        while True:
            async with SegmentReader(self.client.context, segment, offset) as reader:
                try:
                    while events := await reader.read():
                        found += events
                        offset = self._tail_bytes[segment] = reader.offset
                except TailraceError:
                    await asyncio.sleep(0.5)

    async def check_events(self) -> None:
        """Compare a full read with the answers that writers got and with what readers at the tail saw."""
        stored = []
        for name in sorted(self.stream.segment(item.identifier) for item in self.segments):
            length = (await self.client.context.segments.segment_info(name)).length
            pieces = read_slice(self.client.context, SegmentSlice(name, 0, length))
            events = [event async for piece in pieces for event in piece]
            seen = self.tail[name]
            require(events[: len(seen)] == seen, f"a reader at the tail of {name} saw what is not stored")
            stored.append(events)
        broken = self.history.check(stored)
        require(not broken, f"{Counter(item.kind.value for item in broken)}: {broken[:5]}")

    # -- table users

    async def _count_up(self, name: str) -> None:
        """Count in a table's keys by conditional updates."""
        rng = random.Random(f"{self._random.random()} {name}")
        table = await patiently(lambda: self.client.table(SCOPE, self.table).start())
        number = 0
        while not self._stopping:
            number += 1
            key = rng.choice(list(self.tables))
            try:
                await self._count_once(table, key, f"{name}.{number}")
                self.steps += 1
            except TailraceError:
                await asyncio.sleep(rng.random())
            await asyncio.sleep(rng.random() * 0.5)

    async def _count_once(self, table: KeyValueTable, key: str, who: str) -> None:
        parts, name = TableKeyParts(key.encode()), f"key {key}"
        asked_at_s = _now_s()
        found = await table.get(parts)
        version = NOT_EXISTS if found is None else found.version
        count = 0 if found is None else int(found.value.split(b":")[0])
        self.growth.check_seen(name, asked_at_s, count, "a read")
        update = Update(version, count + 1, f"{count + 1}:{who}".encode(), _now_s())
        self.tables[key].updates.append(update)
        try:
            update.version = await table.put(parts, update.value, version=version)
        except (TableKeyBadVersionError, TableKeyNotExistsError):
            update.version = REFUSED
            return
        update.ended_at_s = _now_s()
        self.growth.note(name, update.ended_at_s, update.count)

    async def check_tables(self) -> None:
        """Compare what the table holds with the answers that its users got."""
        async with self.client.table(SCOPE, self.table) as table:
            for key, history in self.tables.items():
                found = await table.get(TableKeyParts(key.encode()))
                value, version = (None, NOT_EXISTS) if found is None else (found.value, found.version)
                history.check(f"key {key}", value, version)
