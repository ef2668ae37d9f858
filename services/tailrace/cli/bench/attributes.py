"""Measure size and speed of the attribute index in memory."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from tailrace.cli.bench.result import Row
from tailrace.segmentstore.attributes import IndexState, get_many, update

BATCHES = (10, 100, 1000)
ENTRIES = 1_000_000


class _MemorySegment:
    """Attribute segment in memory, truncated after every batch."""

    place = "benchmark"

    def __init__(self) -> None:
        self.state = IndexState()
        self.written_bytes = 0
        self._data = bytearray()
        self._start = 0

    async def read(self, offset: int, length: int) -> bytes:
        return bytes(memoryview(self._data)[offset - self._start : offset - self._start + length])

    async def apply(self, changes: Sequence[tuple[bytes, int | None]]) -> None:
        result = await update(self.state, changes, self)
        self._data += result.data
        self.written_bytes += len(result.data)
        self.state = result.state
        del self._data[: self.state.start_offset - self._start]
        self._start = self.state.start_offset

    @property
    def index_bytes(self) -> int:
        return self.state.length - self.state.start_offset


def _key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _row(case: str, metric: str, value: float, unit: str) -> Row:
    return Row(system="tailrace", case=case, metric=metric, value=round(value, 3), unit=unit)


def _figures(case: str, segment: _MemorySegment, seconds: float, operation: str) -> list[Row]:
    return [
        _row(case, "index size", segment.index_bytes / 1e6, "MB"),
        _row(case, "live pages", segment.state.live_bytes / 1e6, "MB"),
        _row(case, "written", segment.written_bytes / 1e6, "MB"),
        _row(case, operation, seconds * 1000, "ms"),
    ]


async def _sorted_inserts(count: int, batch: int) -> list[Row]:
    segment = _MemorySegment()
    case = f"sorted inserts, batch {batch}"
    begin = time.perf_counter()
    for first in range(0, count, batch):
        await segment.apply([(_key(number), number) for number in range(first, min(count, first + batch))])
    rows = _figures(case, segment, time.perf_counter() - begin, "insert")
    begin = time.perf_counter()
    for first in range(0, count, batch):
        keys = [_key(number) for number in range(first, min(count, first + batch))]
        if len(await get_many(segment.state, keys, segment)) != len(keys):
            raise AssertionError(f"keys from {first} are missing")
    rows.append(_row(case, "get", (time.perf_counter() - begin) * 1000, "ms"))
    return rows


async def _random_updates(count: int, batch: int) -> list[Row]:
    segment = _MemorySegment()
    await segment.apply([(_key(number), number) for number in range(count)])
    segment.written_bytes = 0
    numbers = random.Random(1).sample(range(count), count)
    begin = time.perf_counter()
    for first in range(0, count, batch):
        await segment.apply(sorted((_key(number), -number) for number in numbers[first : first + batch]))
    return _figures(f"random updates, batch {batch}", segment, time.perf_counter() - begin, "update")


async def rows(count: int = ENTRIES, batches: Sequence[int] = BATCHES) -> list[Row]:
    """Return the rows of both tables for `count` attributes."""
    result: list[Row] = []
    for batch in batches:
        result += await _sorted_inserts(count, batch)
    for batch in batches:
        result += await _random_updates(count, batch)
    return result
