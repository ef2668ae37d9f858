"""Measure the recovery of a container from its log alone, without Tier 2 or a checkpoint (docs/design.md#tier-1)."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.cli.bench.result import Row, row
from tailrace.common import limits
from tailrace.common.errors import DataLossError, UnavailableError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.closed import ClosedLog
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.segmentstore.api import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import TableEntry
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import Buffer, ObjectInfo, ObjectStore

SYSTEM: Final = "tailrace"
SEGMENTS: Final = 8
IN_FLIGHT_BYTES: Final = 16 * limits.MIB
IN_FLIGHT_MAX: Final = 1000
OPERATIONS_MAX: Final = 200_000
"""Maximum of appends or table entries in one case, because small ones take long to write."""
TABLE: Final = "_system/_tables/bench"
TABLE_BATCH: Final = 100
TABLE_VALUE_BYTES: Final = 100
TABLE_KEYS: Final = 20_000
"""Without Tier 2 nothing makes room for the attributes of many more (docs/design.md#memory-budgets)."""


@dataclass(frozen=True, slots=True)
class LogShape:
    """The contents of a case's log: appends of `append_bytes`, or with 0 updates of a table."""

    name: str
    append_bytes: int


SHAPES: Final = (
    LogShape("appends of 1 MB", 1_000_000),
    LogShape("appends of 64 KB", 64_000),
    LogShape("appends of 4 KB", 4_000),
    LogShape("appends of 100 B", 100),
    LogShape("updates of a table", 0),
)


class _Unreachable:
    """An object store that refuses writes, so that everything stays in the log."""

    def __init__(self) -> None:
        self._empty = open_object_store("memory://")

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        raise UnavailableError("this store refuses all writes")

    async def get(self, key: str) -> bytes:
        return await self._empty.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return await self._empty.get_range(key, offset, length)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._empty.list(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._empty.delete(keys)

    async def close(self) -> None:
        await self._empty.close()


class _Took(NamedTuple):
    """Elapsed time and processor time of a start. The difference is waiting for the disk or other programs."""

    elapsed_s: float
    cpu_s: float


class _World:
    """One container's log on a disk."""

    def __init__(self, directory: str, disk: RealDisk, cache_bytes: int) -> None:
        self._directory = directory
        self._disk = disk
        self._cache_bytes = cache_bytes
        self._epochs = itertools.count(1)

    async def open(self) -> tuple[Container, _Took]:
        """Start the container; return it and the time taken."""
        store: ObjectStore = _Unreachable()
        log = FileLog(self._disk, self._directory, 1)
        cache = CacheManager(BlockCache(self._cache_bytes))
        ports = ContainerPorts(
            log=log, store=store, cache=cache, clock=SystemClock(), entropy=SystemEntropy(), cluster_id=bytes(16)
        )
        container = Container(1, next(self._epochs), ports)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        await container.start(os.urandom(16))
        return container, _Took(time.perf_counter() - begin_s, time.process_time() - begin_cpu_s)

    async def payload_bytes(self) -> int:
        """Return the bytes of the frames' payloads, while no container runs."""
        log = ClosedLog(self._disk, self._directory, 1)
        await log.open()
        try:
            return sum([len(frame.payload) async for frame in log.recover()])
        finally:
            log.close()


async def measure_recovery(
    folder: Path | None,
    log_bytes: int,
    repeats: int,
    report: Callable[[str], None],
    shapes: Sequence[LogShape] = SHAPES,
) -> list[Row]:
    """Return the rows of each shape: a log of about `log_bytes`, the best of `repeats` recoveries.

    Raises:
        DataLossError: the recovered state differs from the written one.
    """
    rows: list[Row] = []
    disk = RealDisk()
    try:
        for shape in shapes:
            report(shape.name)
            with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder) as name:
                # Without Tier 2 the cache must hold all written and recovered data.
                world = _World(f"{name}/log", disk, 2 * log_bytes + limits.CACHE_MIN_BYTES)
                rows += await _measure(world, shape, log_bytes, repeats)
    finally:
        disk.close()
    return rows


async def _measure(world: _World, shape: LogShape, log_bytes: int, repeats: int) -> list[Row]:
    container, _ = await world.open()
    await (_append if shape.append_bytes else _update_table)(container, shape, log_bytes)
    lengths, operations = _lengths(container), container.status().last_sequence
    await container.close()
    payload_bytes = await world.payload_bytes()
    best = _Took(float("inf"), float("inf"))
    for _ in range(repeats):
        container, took = await world.open()
        found = _lengths(container)
        await container.close()
        if found != lengths:
            raise DataLossError(f"{shape.name}: the recovered state differs from the written one")
        best = min(best, took)
    return [
        row(SYSTEM, shape.name, "recovered", payload_bytes / best.elapsed_s / 1e6, "MB/s"),
        row(SYSTEM, shape.name, "operations", operations / best.elapsed_s, "operations/s"),
        row(SYSTEM, shape.name, "log", payload_bytes / 1e6, "MB"),
        row(SYSTEM, shape.name, "recovery", best.elapsed_s * 1000, "ms"),
        row(SYSTEM, shape.name, "CPU", best.cpu_s / best.elapsed_s, "cores"),
    ]


def _lengths(container: Container) -> dict[str, int]:
    return {name: segment.length for name, segment in container.state.by_name.items()}


async def _append(container: Container, shape: LogShape, log_bytes: int) -> None:
    """Append to each segment as one writer, with the attributes that the server sets."""
    names = [f"bench/recovery/{number}.#epoch.0" for number in range(SEGMENTS)]
    for name in names:
        await container.create_segment(name)
    data = os.urandom(shape.append_bytes)
    in_flight = max(2, min(IN_FLIGHT_MAX, IN_FLIGHT_BYTES // shape.append_bytes))
    count = min(OPERATIONS_MAX, log_bytes // (shape.append_bytes + 100))
    for first in range(0, count, in_flight):
        numbers = range(first, min(first + in_flight, count))
        await asyncio.gather(
            *(container.append(names[number % SEGMENTS], [data], _updates(number)) for number in numbers)
        )


def _updates(number: int) -> tuple[AttributeUpdate, ...]:
    return (
        AttributeUpdate((number % SEGMENTS).to_bytes(16, "big"), AttributeUpdateType.REPLACE, number),
        AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1),
    )


async def _update_table(container: Container, _: LogShape, log_bytes: int) -> None:
    """Put batches of entries, again and again with the same keys."""
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    value = os.urandom(TABLE_VALUE_BYTES)
    count = min(OPERATIONS_MAX, log_bytes // (TABLE_VALUE_BYTES + 100))
    for first in range(0, count, TABLE_BATCH):
        numbers = range(first, min(first + TABLE_BATCH, count))
        await tables.update(TABLE, [TableEntry(b"key %d" % (number % TABLE_KEYS), value) for number in numbers])
