"""Measure the engine alone: one container in this process, without connections, disk or Tier 2.

100 producers keep 100 single-event appends each in flight, as in "Streaming Cache" (docs/cli.md#measuring).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.result import Row, latency_rows, row
from tailrace.common import limits
from tailrace.common.errors import DataLossError, NotFoundError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.segmentstore.api import EVENT_COUNT, AppendRequest, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from tailrace.storage.port import Buffer, ObjectInfo

SYSTEM: Final = "tailrace"
PRODUCERS: Final = 100
IN_FLIGHT: Final = 100
EVENT_BYTES: Final = {"100B": 100, "1KB": 1000, "10KB": 10_000}
SEGMENTS: Final = (1, 10)
_WRITER: Final = AttributeUpdateType.REPLACE
_COUNT: Final = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1)


class _Discarding:
    """An object store that takes everything and keeps nothing: the engine's own work is what is measured."""

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See ObjectStore.put."""

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        raise NotFoundError(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        raise NotFoundError(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        nothing: tuple[ObjectInfo, ...] = ()
        for found in nothing:
            yield found

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""

    async def close(self) -> None:
        """See ObjectStore.close."""


@dataclass
class _Figures:
    """What is acknowledged, and after how long since `latencies` was begun."""

    latencies: LatencyHistogram
    acknowledged: int = 0


class _Producer:
    """A writer of one segment with so many appends in flight, each with its number, as the server stores it."""

    def __init__(self, container: Container, segment: str, number: int, event: bytes, figures: _Figures) -> None:
        self._container = container
        self._segment = segment
        self._id = number.to_bytes(16, "big")
        self._event = event
        self._figures = figures
        self._sent: deque[float] = deque()
        self._next = 0
        self._failure: Exception | None = None
        self._woken: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self, ends_at_s: float) -> None:
        """Write until a time of the loop, then wait until all is acknowledged."""
        while self._loop.time() < ends_at_s or self._sent:
            while len(self._sent) < IN_FLIGHT and self._loop.time() < ends_at_s:
                if (again := self._submit()) is not None:
                    await again
            self._woken = self._loop.create_future()
            if self._sent:
                await self._woken
            if self._failure is not None:
                raise self._failure

    def _submit(self) -> asyncio.Future[None] | None:
        updates = (AttributeUpdate(self._id, _WRITER, self._next), _COUNT)
        request = AppendRequest(self._segment, (self._event,), len(self._event), updates, self._completed, self._failed)
        self._sent.append(self._loop.time())
        if (again := self._container.submit_append(request)) is not None:
            self._sent.pop()
            return again
        self._next += 1
        return None

    def _completed(self, _: AppendRequest) -> None:
        self._figures.acknowledged += 1
        self._figures.latencies.record(self._loop.time() - self._sent.popleft())
        self._wake()

    def _failed(self, _: AppendRequest, error: Exception) -> None:
        self._sent.popleft()
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


async def measure_in_process(*, seconds: float, warm_up_s: float, report: Callable[[str], None]) -> list[Row]:
    """Return the rows of each length of events and number of segments.

    Raises:
        DataLossError: a segment does not hold what was acknowledged.
    """
    rows: list[Row] = []
    for count in SEGMENTS:
        for name, length in EVENT_BYTES.items():
            case = f"{name}-{count}-segment{'s' if count > 1 else ''}"
            report(case)
            rows += await _measure(case, length, count, seconds, warm_up_s)
    return rows


async def _measure(case: str, event_bytes: int, segments: int, seconds: float, warm_up_s: float) -> list[Row]:
    ports = ContainerPorts(
        log=MemoryLog(MemoryLogStore()),
        store=_Discarding(),
        cache=CacheManager(BlockCache(limits.CACHE_DEFAULT_BYTES)),
        clock=SystemClock(),
        entropy=SystemEntropy(),
        cluster_id=bytes(16),
    )
    container = Container(1, 1, ports)
    await container.start(os.urandom(16))
    try:
        names = [f"bench/engine/{number}.#epoch.0" for number in range(segments)]
        for name in names:
            await container.create_segment(name)
        figures, event = _Figures(LatencyHistogram()), os.urandom(event_bytes)
        producers = [
            _Producer(container, names[number % segments], number, event, figures) for number in range(PRODUCERS)
        ]
        loop = asyncio.get_running_loop()
        await _run(producers, loop.time() + warm_up_s)
        before, figures.latencies = figures.acknowledged, LatencyHistogram()
        started_s, cpu_s = loop.time(), time.process_time()
        await _run(producers, started_s + seconds)
        elapsed_s, used_s = loop.time() - started_s, time.process_time() - cpu_s
        await _check(container, names, figures.acknowledged * event_bytes)
    finally:
        await container.close()
    events = figures.acknowledged - before
    return [
        row(SYSTEM, case, "payload", events * event_bytes / elapsed_s / 1e6, "MB/s"),
        row(SYSTEM, case, "events", events / elapsed_s, "events/s"),
        *latency_rows(SYSTEM, case, figures.latencies),
        row(SYSTEM, case, "CPU", used_s / elapsed_s, "cores"),
    ]


async def _run(producers: Sequence[_Producer], ends_at_s: float) -> None:
    await asyncio.gather(*(producer.run(ends_at_s) for producer in producers))


async def _check(container: Container, names: Sequence[str], expected_bytes: int) -> None:
    infos = [await container.info(name) for name in names]
    length = sum(info.length for info in infos)
    if length != expected_bytes:
        raise DataLossError(f"the segments hold {length} bytes, {expected_bytes} were acknowledged")
