"""Measure a large attribute index in a container: random updates at a fixed rate, beside a writer of bytes.

The index is loaded in the order of its keys (docs/cli.md#measuring). Then a writer appends bytes to another segment,
alone and beside the updates: a flush of bytes must not wait for one of attributes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tempfile
import time
from array import array
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.cli.bench.pacing import Pace
from tailrace.cli.bench.result import Row, resident_bytes, row
from tailrace.cli.output import progress_bar
from tailrace.common import limits
from tailrace.common.errors import DataLossError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.task_groups import run_all
from tailrace.kernel import BlockCache
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.attributes import IndexState, update
from tailrace.segmentstore.attributes.attribute_store import root_of
from tailrace.segmentstore.attributes.pages import PageCache, PageReads, SegmentPages
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.metadata.operations import CommitIndex
from tailrace.segmentstore.tier2.chunk_objects import Section
from tailrace.storage.obstores import open_object_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from tailrace.storage.port import Buffer, ObjectInfo

SYSTEM: Final = "tailrace"
KEYS: Final = "bench/index/keys.#epoch.0"
BYTES: Final = "bench/index/bytes.#epoch.0"
APPEND_BYTES: Final = 16 * limits.KIB
APPENDS_PER_S: Final = 256
APPENDS_IN_FLIGHT_MAX: Final = 64
LOAD_BATCH: Final = 250_000
"""Attributes that are loaded at once: 6 MB of pages."""
TICK_S: Final = 0.01
"""Updates that fall due within it are one operation."""
LOOKUPS: Final = 1000
COLD_OWNERS: Final = 5
_REPLACE: Final = AttributeUpdateType.REPLACE
_SEED: Final = 1
_INDEX_KIND: Final = "a"


@dataclass(slots=True)
class _Lookup:
    """Reads of Tier 2 for one lookup."""

    reads: int = 0


_lookup: ContextVar[_Lookup | None] = ContextVar("lookup", default=None)
"""The lookup for which a task reads: flushes read, too."""


class _CountedStore:
    """A folder as Tier 2 that counts what is read and written of attribute indexes."""

    def __init__(self, folder: str) -> None:
        self._store = open_object_store(f"file://{folder}")
        self.reads = 0
        self.read_bytes = 0
        self.written_bytes = 0

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See ObjectStore.put."""
        if key.startswith(_INDEX_KIND):
            self.written_bytes += sum(map(len, data))
        await self._store.put(key, data, if_absent=if_absent)

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return await self._store.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        if key.startswith(_INDEX_KIND):
            self.reads += 1
            self.read_bytes += length
            if (lookup := _lookup.get()) is not None:
                lookup.reads += 1
        return await self._store.get_range(key, offset, length)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        return self._store.list(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        await self._store.delete(keys)

    async def close(self) -> None:
        """See ObjectStore.close."""
        await self._store.close()


class _World:
    """One container: its log in files, its Tier 2 in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._disk = RealDisk()
        self._epochs = itertools.count(1)
        self.store = _CountedStore(f"{folder}/tier2")
        self.container: Container

    async def open(self) -> None:
        """Start the next owner."""
        ports = ContainerPorts(
            log=FileLog(self._disk, f"{self._folder}/log", 1),
            store=self.store,
            cache=CacheManager(BlockCache(limits.CACHE_MIN_BYTES)),
            clock=SystemClock(),
            entropy=SystemEntropy(),
            cluster_id=bytes(16),
        )
        self.container = Container(1, next(self._epochs), ports)
        await self.container.start(os.urandom(16))

    async def close(self) -> None:
        """End everything."""
        await self.container.close()
        await self.store.close()
        self._disk.close()


@dataclass(slots=True)
class _Figures:
    """What a phase did. ``flush_delay_s``: the longest time from when bytes were due until Tier 2 held them."""

    updates: int = 0
    flush_delay_s: float = 0.0
    cpu_s: float = 0.0
    elapsed_s: float = 0.0
    middle_bytes: int = 0


class _Lookups(NamedTuple):
    """Reads of Tier 2 for each lookup."""

    mean: float
    most: int


async def measure_large_index(
    folder: Path | None, keys: int, rate_per_s: float, seconds: float, note: Callable[[str], None]
) -> list[Row]:
    """Return the rows of an index of `keys` attributes that gets `rate_per_s` updates for so many seconds.

    Raises:
        DataLossError: an attribute does not have its last value.
    """
    # A put that the end of the container interrupts may still make a file.
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder, ignore_cleanup_errors=True) as name:
        world = _World(name)
        await world.open()
        try:
            return await _Measurement(world, keys, rate_per_s, seconds, note).rows()
        finally:
            await world.close()


class _Measurement:
    """The phases, and the last value of each attribute."""

    def __init__(
        self, world: _World, keys: int, rate_per_s: float, seconds: float, note: Callable[[str], None]
    ) -> None:
        self._world = world
        self._count = keys
        self._rate_per_s = rate_per_s
        self._seconds = seconds
        self._note = note
        self._values = array("i", bytes(4 * keys))
        self._number = 0
        self._random = random.Random(_SEED)
        self._case = f"{keys:,} keys, {rate_per_s:,.0f} updates/s"

    async def rows(self) -> list[Row]:
        """Run all phases."""
        self._note(f"{self._case}: build")
        built_s = await self._build()
        self._note(f"{self._case}: bytes alone")
        alone = await self._phase(self._seconds / 4, updates=False)
        self._note(f"{self._case}: updates")
        await self._phase(self._seconds / 4, updates=True)
        store = self._world.store
        before, reads, read_bytes, start_bytes = (
            store.written_bytes,
            store.reads,
            store.read_bytes,
            resident_bytes(),
        )
        beside = await self._phase(self._seconds, updates=True)
        end_bytes = resident_bytes()
        page_bytes = self._world.container.storage.attributes.cached_page_bytes
        written, reads, read_bytes = store.written_bytes - before, store.reads - reads, store.read_bytes - read_bytes
        self._note(f"{self._case}: lookups")
        warm = await self._lookups(LOOKUPS)
        await self._check()
        cold = await self._cold_lookups()
        segment = self._world.container.state.by_name[KEYS]
        own_cpu_s = beside.cpu_s - alone.cpu_s * beside.elapsed_s / alone.elapsed_s
        figures: list[tuple[str, float, str]] = [
            ("build", self._count / built_s, "keys/s"),
            ("live pages", segment.index.live_bytes / 1e6, "MB"),
            ("updates", beside.updates / beside.elapsed_s, "updates/s"),
            ("written for each update", written / beside.updates / 1e3, "KB"),
            ("read for each update", read_bytes / beside.updates / 1e3, "KB"),
            ("requests of reads for each update", reads / beside.updates, "requests"),
            ("processor time for each update", own_cpu_s / beside.updates * 1e6, "us"),
            ("resident memory at the start", start_bytes / 1e6, "MB"),
            ("resident memory in the middle", beside.middle_bytes / 1e6, "MB"),
            ("resident memory at the end", end_bytes / 1e6, "MB"),
            ("pages in memory", page_bytes / 1e6, "MB"),
            ("longest delay of a byte flush, alone", alone.flush_delay_s * 1e3, "ms"),
            ("longest delay of a byte flush, beside updates", beside.flush_delay_s * 1e3, "ms"),
            ("reads of a warm lookup, mean", warm.mean, "reads"),
            ("reads of a warm lookup, most", warm.most, "reads"),
            ("reads of a cold lookup, most", cold.most, "reads"),
        ]
        return [row(SYSTEM, self._case, metric, value, unit) for metric, value, unit in figures]

    # -- phases --------------------------------------------------------------------------------------------------

    async def _build(self) -> float:
        """Load all keys in their order, each with the value 0; return the time taken.

        They take the way of a flush from the index update on, in batches as large as an object may be.
        """
        container = self._world.container
        await container.create_segment(KEYS)
        await container.create_segment(BYTES)
        began_s = time.perf_counter()
        segment, tier2 = container.state.by_name[KEYS], container.storage.tier2
        pages = SegmentPages(segment, PageReads(PageCache(limits.ATTRIBUTE_PAGES_CACHED_MAX_BYTES), tier2))
        state = IndexState()
        with progress_bar("loading", self._count) as bar:
            for first in range(0, self._count, LOAD_BATCH):
                numbers = range(first, min(self._count, first + LOAD_BATCH))
                loaded = await update(state, [(_key(number), 0) for number in numbers], pages)
                section = Section(segment.segment_id, f"{KEYS}$attributes.index", state.length, loaded.data)
                refs = [ref for _, ref in await tier2.write([section], kind=_INDEX_KIND)]
                state = loaded.state
                await container.core.commit_control(CommitIndex(segment.segment_id, root_of(state, 0), refs))
                bar.advance(len(numbers))
        return time.perf_counter() - began_s

    async def _phase(self, seconds: float, *, updates: bool) -> _Figures:
        """Append bytes, and update attributes beside, for some time."""
        figures = _Figures()
        began_s, cpu_s = time.perf_counter(), time.process_time()
        work = [self._append(began_s, seconds, figures)]
        if updates:
            work.append(self._update(began_s, seconds, figures))
        await run_all(*work)
        figures.elapsed_s, figures.cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        return figures

    async def _update(self, began_s: float, seconds: float, figures: _Figures) -> None:
        pace = Pace(began_s, self._rate_per_s)
        with progress_bar("updating", seconds) as bar:
            while (now_s := time.perf_counter() - began_s) < seconds:
                bar.set(now_s, seconds)
                if not figures.middle_bytes and now_s > seconds / 2:
                    figures.middle_bytes = resident_bytes()
                due = min(pace.due_by(began_s + now_s) - figures.updates, limits.ATTRIBUTE_UPDATES_PER_OPERATION_MAX)
                if due > 0:
                    await self._put(due)
                    figures.updates += due
                await asyncio.sleep(TICK_S)

    async def _put(self, count: int) -> None:
        numbers = self._random.sample(range(self._count), min(count, self._count))
        self._number += 1
        await self._world.container.update_attributes(KEYS, [_update(number, self._number) for number in numbers])
        for number in numbers:
            self._values[number] = self._number

    async def _append(self, began_s: float, seconds: float, figures: _Figures) -> None:
        """Append at a fixed rate; note how long a flush is due before Tier 2 holds the bytes."""
        pace, done, data = Pace(began_s, APPENDS_PER_S), 0, os.urandom(APPEND_BYTES)
        container = self._world.container
        pending = container.state.by_name[BYTES].pending
        due_since_s = 0.0
        while (now_s := time.perf_counter()) < began_s + seconds:
            due = min(pace.due_by(now_s) - done, APPENDS_IN_FLIGHT_MAX)
            await asyncio.gather(*(container.append(BYTES, [data]) for _ in range(due)))
            done += due
            now_s = time.perf_counter()
            if pending.length_bytes < limits.FLUSH_THRESHOLD_BYTES:
                due_since_s = 0.0
            else:
                due_since_s = due_since_s or now_s
                figures.flush_delay_s = max(figures.flush_delay_s, now_s - due_since_s)
            await asyncio.sleep(TICK_S / 2)

    # -- lookups -------------------------------------------------------------------------------------------------

    async def _lookups(self, count: int) -> _Lookups:
        """Look up random attributes one after the other."""
        counts = []
        for number in self._random.sample(range(self._count), min(count, self._count)):
            lookup = _Lookup()
            token = _lookup.set(lookup)
            try:
                await self._compare([number])
            finally:
                _lookup.reset(token)
            counts.append(lookup.reads)
        return _Lookups(sum(counts) / len(counts), max(counts))

    async def _cold_lookups(self) -> _Lookups:
        """Look up one attribute with each of some owners, which have no page in memory."""
        counts = []
        for _ in range(COLD_OWNERS):
            await self._world.container.close()
            await self._world.open()
            counts.append((await self._lookups(1)).most)
        return _Lookups(sum(counts) / len(counts), max(counts))

    async def _check(self) -> None:
        """Compare many attributes with their last values."""
        numbers = self._random.sample(range(self._count), min(self._count, 20 * LOOKUPS))
        for first in range(0, len(numbers), LOOKUPS):
            await self._compare(numbers[first : first + LOOKUPS])

    async def _compare(self, numbers: Sequence[int]) -> None:
        found = await self._world.container.get_attributes(KEYS, [_key(number) for number in numbers])
        for number in numbers:
            if found.get(_key(number)) != self._values[number]:
                raise DataLossError(f"attribute {number} is {found.get(_key(number))}, not {self._values[number]}")


def _key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _update(number: int, value: int) -> AttributeUpdate:
    return AttributeUpdate(_key(number), _REPLACE, value)
