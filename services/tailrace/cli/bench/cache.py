"""Compare the streaming cache, native and in pure Python, with a plain dictionary.

Sequential: entries of 10 KB are inserted, read, grown by appends of 2 KB and deleted. Random: 60 % inserts, 40 %
removals, lengths uniform from 0 to the maximum, and one read of a random entry after each. For fairness, every system
copies entries in and out. Each test runs several times on the same data, and the best time counts. Figures are per
operation.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tailrace.cli.bench.result import Row
from tailrace.kernel import BUFFER_BYTES, _cache, _cache_py, blocks_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ENTRY_BYTES = 10 * 1024
APPEND_BYTES = 2 * 1024
RANDOM_ENTRY_BYTES_MAX = (10 * 1024, 100 * 1024)
INSERT_SHARE = 0.6
USABLE_BLOCKS_PER_BUFFER = 511


class System(Protocol):
    """A system under test: each call copies."""

    def insert(self, data: memoryview) -> int: ...

    def append(self, handle: int, length: int, data: memoryview) -> int: ...

    def read(self, handle: int, length: int, target: memoryview) -> None: ...

    def delete(self, handle: int) -> None: ...


class CacheSystem:
    """The block cache, native or pure."""

    def __init__(self, cache: _cache.BlockCache | _cache_py.BlockCache) -> None:
        self._cache = cache

    def insert(self, data: memoryview) -> int:
        return self._cache.insert(data)

    def append(self, handle: int, length: int, data: memoryview) -> int:
        return self._cache.append(handle, length, data)

    def read(self, handle: int, length: int, target: memoryview) -> None:
        self._cache.copy_into(handle, length, 0, length, target)

    def delete(self, handle: int) -> None:
        self._cache.delete(handle)


class DictionarySystem:
    """A dictionary of immutable values: an append reads, joins and stores again."""

    def __init__(self) -> None:
        self._entries: dict[int, bytes] = {}
        self._next = 0

    def insert(self, data: memoryview) -> int:
        self._next += 1
        self._entries[self._next] = bytes(data)
        return self._next

    def append(self, handle: int, length: int, data: memoryview) -> int:
        self._entries[handle] = b"".join((self._entries[handle], data))
        return handle

    def read(self, handle: int, length: int, target: memoryview) -> None:
        target[:length] = self._entries[handle]

    def delete(self, handle: int) -> None:
        del self._entries[handle]


# One random operation: the length to insert (-1 removes instead), which entry to remove, which to read.
Operation: TypeAlias = tuple[int, float, float]


def run(entries: int = 50_000, repeats: int = 3) -> list[Row]:
    """Return the rows of all systems and tests, each with that many entries or random operations."""
    if entries < 1 or repeats < 1:
        raise ValueError("entries and repeats must be at least 1")
    plans = {length_max: plan_operations(entries, length_max) for length_max in RANDOM_ENTRY_BYTES_MAX}
    blocks = max(
        entries * blocks_needed(ENTRY_BYTES + APPEND_BYTES),
        *(peak_blocks(plan) for plan in plans.values()),
    )
    max_bytes = -(-blocks // USABLE_BLOCKS_PER_BUFFER) * BUFFER_BYTES
    # One system at a time, so that memory holds one cache only.
    makers: dict[str, Callable[[], System]] = {
        "tailrace native": lambda: CacheSystem(_cache.BlockCache(max_bytes)),
        "tailrace pure Python": lambda: CacheSystem(_cache_py.BlockCache(max_bytes)),
        "dict": DictionarySystem,
    }
    rows: list[Row] = []
    for name, make in makers.items():
        system = make()
        passes = [measure(system, entries, plans) for _ in range(repeats)]
        for case, metric in passes[0]:
            best_seconds = min(times[case, metric] for times in passes)
            rows.append(
                {"system": name, "case": case, "metric": metric, "value": best_seconds / entries * 1e9, "unit": "ns/op"}
            )
    return rows


def measure(system: System, entries: int, plans: Mapping[int, Sequence[Operation]]) -> dict[tuple[str, str], float]:
    """Return the seconds of each test, by case and metric."""
    times = {("sequential 10 KB", metric): seconds for metric, seconds in run_sequential(system, entries).items()}
    for length_max, plan in plans.items():
        times[f"random up to {length_max // 1024} KB", "insert or delete, and read"] = run_random(
            system, length_max, plan
        )
    return times


def run_sequential(system: System, entries: int) -> dict[str, float]:
    """Return the seconds to insert, read, append to and delete that many entries."""
    data = memoryview(random.Random(1).randbytes(ENTRY_BYTES))
    more = data[:APPEND_BYTES]
    target = memoryview(bytearray(ENTRY_BYTES))
    times: dict[str, float] = {}
    started = time.perf_counter()
    handles = [system.insert(data) for _ in range(entries)]
    times["insert"] = time.perf_counter() - started
    started = time.perf_counter()
    for handle in handles:
        system.read(handle, ENTRY_BYTES, target)
    times["read"] = time.perf_counter() - started
    if target != data:
        raise AssertionError("the cache returned wrong bytes")
    started = time.perf_counter()
    handles = [system.append(handle, ENTRY_BYTES, more) for handle in handles]
    times["append 2 KB"] = time.perf_counter() - started
    started = time.perf_counter()
    for handle in handles:
        system.delete(handle)
    times["delete"] = time.perf_counter() - started
    return times


def plan_operations(count: int, length_max: int) -> list[Operation]:
    """Return the random operations, which are the same for every system."""
    source = random.Random(length_max)
    return [
        (source.randint(0, length_max) if source.random() < INSERT_SHARE else -1, source.random(), source.random())
        for _ in range(count)
    ]


def peak_blocks(plan: Sequence[Operation]) -> int:
    """Return the maximum of blocks that the live entries of a plan occupy."""
    live: list[int] = []
    blocks = peak = 0
    for length, remove, _ in plan:
        if length >= 0:
            live.append(blocks_needed(length))
            blocks += live[-1]
            peak = max(peak, blocks)
        elif live:
            blocks -= _take(live, remove)
    return peak


def _take(live: list[int], choice: float) -> int:
    """Remove the chosen element in constant time."""
    index = int(choice * len(live))
    live[index], live[-1] = live[-1], live[index]
    return live.pop()


def run_random(system: System, length_max: int, plan: Sequence[Operation]) -> float:
    """Return the seconds of a plan, without the deletion of the entries that remain."""
    data = memoryview(random.Random(2).randbytes(length_max))
    target = memoryview(bytearray(length_max))
    live: list[int] = []
    lengths: dict[int, int] = {}
    started = time.perf_counter()
    for length, remove, read in plan:
        if length >= 0:
            handle = system.insert(data[:length])
            live.append(handle)
            lengths[handle] = length
        elif live:
            system.delete(_take(live, remove))
        if live:
            handle = live[int(read * len(live))]
            system.read(handle, lengths[handle], target)
    seconds = time.perf_counter() - started
    for handle in live:
        system.delete(handle)
    return seconds
