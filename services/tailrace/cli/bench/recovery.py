"""Measure the recovery of a container from its log alone, without Tier 2 or a checkpoint (docs/design.md#tier-1)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.cli.bench.log import own_folder
from tailrace.cli.bench.result import Row, peak_resident_bytes, reset_peak_resident_bytes, resident_bytes, row
from tailrace.common import limits
from tailrace.common.errors import DataLossError, UnavailableError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.closed import ClosedLog
from tailrace.log.closed_object import ClosedObjectLog
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.log.object import ObjectLog
from tailrace.log.port import DurableLog
from tailrace.segmentstore.api import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import TableEntry
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import Buffer, ObjectInfo, ObjectStore

SYSTEM: Final = "tailrace"
OBJECT_LOG: Final = "tailrace object log"
SEGMENTS: Final = 8
IN_FLIGHT_BYTES: Final = 16 * limits.MIB
IN_FLIGHT_MAX: Final = 1000
OPERATIONS_MAX: Final = 200_000
"""Appends or table entries of one case at most, unless a call says otherwise: small ones take long to write."""
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


class _CountedStore:
    """Counts the requests to an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests = 0

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See ObjectStore.put."""
        self.requests += 1
        await self._store.put(key, data, if_absent=if_absent)

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        self.requests += 1
        return await self._store.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        self.requests += 1
        return await self._store.get_range(key, offset, length)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        self.requests += 1
        return self._store.list(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        self.requests += 1
        await self._store.delete(keys)

    async def close(self) -> None:
        """See ObjectStore.close."""
        await self._store.close()


class _Took(NamedTuple):
    """Elapsed time and processor time of a start. The difference is waiting for the disk or other programs.

    ``memory_bytes``: most resident memory meanwhile, beyond that before, which includes the cache.
    ``requests``: to the store of an object log.
    """

    elapsed_s: float
    cpu_s: float
    memory_bytes: int
    requests: int


class _World:
    """One container's log: in a folder, or below a prefix of an object store."""

    def __init__(self, folder: str, disk: RealDisk, cache_bytes: int, store: ObjectStore | None = None) -> None:
        self._folder = folder
        self._disk = disk
        self._cache_bytes = cache_bytes
        self._store = None if store is None else _CountedStore(store)
        self._epochs = itertools.count(1)

    def _log(self) -> DurableLog:
        return FileLog(self._disk, self._folder, 1) if self._store is None else ObjectLog(self._store, 1)

    async def open(self) -> tuple[Container, _Took]:
        """Start the container; return it and what that took."""
        cache = CacheManager(BlockCache(self._cache_bytes))
        ports = ContainerPorts(
            log=self._log(),
            store=_Unreachable(),
            cache=cache,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            cluster_id=bytes(16),
        )
        container = Container(1, next(self._epochs), ports)
        requests, memory_bytes = self._requests, resident_bytes()
        reset_peak_resident_bytes()
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        await container.start(os.urandom(16))
        elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        most_bytes = max(peak_resident_bytes() - memory_bytes, 0)
        return container, _Took(elapsed_s, cpu_s, most_bytes, self._requests - requests)

    @property
    def _requests(self) -> int:
        return 0 if self._store is None else self._store.requests

    async def payload_bytes(self) -> int:
        """Return the bytes of the frames' payloads, while no container runs."""
        log = ClosedLog(self._disk, self._folder, 1) if self._store is None else ClosedObjectLog(self._store, 1)
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
    *,
    tier2: str = "",
    s3_endpoint: str | None = None,
    operations_max: int = OPERATIONS_MAX,
) -> list[Row]:
    """Return the rows of each shape: a log of about `log_bytes`, the best of `repeats` recoveries.

    With `tier2` also those of an object log in a new folder there.

    Raises:
        DataLossError: the recovered state differs from the written one. StartError: the store cannot be used.
    """
    rows: list[Row] = []
    load = _Load(log_bytes, operations_max, repeats)
    # Without Tier 2 the cache must hold all written and recovered data.
    cache_bytes = 2 * log_bytes + limits.CACHE_MIN_BYTES
    with contextlib.closing(RealDisk()) as disk:
        for shape in shapes:
            report(shape.name)
            with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder) as name:
                rows += await _measure(SYSTEM, _World(f"{name}/log", disk, cache_bytes), shape, load)
            if tier2:
                report(f"{shape.name}, object log")
                async with own_folder(tier2, s3_endpoint) as store:
                    rows += await _measure(OBJECT_LOG, _World("", disk, cache_bytes, store), shape, load)
    return rows


@dataclass(frozen=True, slots=True)
class _Load:
    log_bytes: int
    operations_max: int
    repeats: int

    def count(self, operation_bytes: int) -> int:
        """Return how many operations of that length, with 100 bytes more for each, are written."""
        return min(self.operations_max, self.log_bytes // (operation_bytes + 100))


async def _measure(system: str, world: _World, shape: LogShape, load: _Load) -> list[Row]:
    container, _ = await world.open()
    await (_append if shape.append_bytes else _update_table)(container, shape, load)
    lengths, operations = _lengths(container), container.status().last_sequence
    await container.close()
    del container  # its memory is not that of a recovery
    payload_bytes = await world.payload_bytes()
    took: list[_Took] = []
    for _ in range(load.repeats):
        container, each = await world.open()
        found = _lengths(container)
        await container.close()
        del container
        if found != lengths:
            raise DataLossError(f"{shape.name}: the recovered state differs from the written one")
        took.append(each)
    best = min(took)
    rows = [
        row(system, shape.name, "recovered", payload_bytes / best.elapsed_s / 1e6, "MB/s"),
        row(system, shape.name, "operations", operations / best.elapsed_s, "operations/s"),
        row(system, shape.name, "log", payload_bytes / 1e6, "MB"),
        row(system, shape.name, "recovery", best.elapsed_s * 1000, "ms"),
        row(system, shape.name, "CPU", best.cpu_s / best.elapsed_s, "cores"),
        row(system, shape.name, "memory beside the cache", max(each.memory_bytes for each in took) / 1e6, "MB"),
    ]
    if best.requests:
        rows.append(row(system, shape.name, "requests", best.requests, "requests"))
    return rows


def _lengths(container: Container) -> dict[str, int]:
    return {name: segment.length for name, segment in container.state.by_name.items()}


async def _append(container: Container, shape: LogShape, load: _Load) -> None:
    """Append to each segment as one writer, with the attributes that the server sets."""
    names = [f"bench/recovery/{number}.#epoch.0" for number in range(SEGMENTS)]
    for name in names:
        await container.create_segment(name)
    data = os.urandom(shape.append_bytes)
    in_flight = max(2, min(IN_FLIGHT_MAX, IN_FLIGHT_BYTES // shape.append_bytes))
    count = load.count(shape.append_bytes)
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


async def _update_table(container: Container, _: LogShape, load: _Load) -> None:
    """Put batches of entries, again and again with the same keys."""
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    value = os.urandom(TABLE_VALUE_BYTES)
    count = load.count(TABLE_VALUE_BYTES)
    for first in range(0, count, TABLE_BATCH):
        numbers = range(first, min(first + TABLE_BATCH, count))
        await tables.update(TABLE, [TableEntry(b"key %d" % (number % TABLE_KEYS), value) for number in numbers])
