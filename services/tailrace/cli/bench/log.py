"""Measure one container's log: one frame at a time, and as many in flight as a container has.

See docs/design.md#tier-1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.result import Row, latency_rows, row
from tailrace.cli.output import note
from tailrace.common import limits
from tailrace.common.errors import DataLossError, UnavailableError
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.log.object import ObjectLog
from tailrace.log.probe import probe_conditions
from tailrace.storage.obstores import open_object_store

if TYPE_CHECKING:
    from tailrace.log.port import DurableLog
    from tailrace.storage.port import ObjectStore

SMALL_FRAME_BYTES: Final = 4096
TRUNCATE_EVERY_BYTES: Final = 64 * limits.MIB
"""Frames between truncations, as in a container whose checkpoints and flushes keep up."""
EMPTY_DEADLINE_S: Final = 60.0
PAGE_OBJECTS: Final = 1000
"""Objects of one call to delete, the maximum of S3."""


@dataclass(frozen=True, slots=True)
class LogLoad:
    """The load of one case: frames of `frame_bytes`, `in_flight` of them not acknowledged."""

    name: str
    frame_bytes: int
    in_flight: int


LOADS: Final = (
    LogLoad("4 KiB, one at a time", SMALL_FRAME_BYTES, 1),
    LogLoad("64 KiB, 32 under way", 64 * limits.KIB, 32),
    LogLoad("1 MiB, 16 under way", limits.MIB, 16),
    LogLoad("4 MiB, 12 under way", 4 * limits.MIB, 12),
)


async def measure_log(
    folder: Path | None,
    tier2: str,
    s3_endpoint: str | None,
    *,
    seconds: float,
    warm_up_s: float,
    report: Callable[[str], None],
) -> list[Row]:
    """Return the rows of the file log and, with `tier2`, of an object log in a new folder there.

    Raises:
        StartError: the store cannot be used. DataLossError: a log does not hold exactly the acknowledged frames.
    """
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(own_folder(tier2, s3_endpoint)) if tier2 else None
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder))
        disk = RealDisk()
        stack.callback(disk.close)
        make = partial(FileLog, disk, f"{name}/log", 1)
        rows = await _measure("tailrace file log", make, seconds, warm_up_s, report)
        if store is not None:
            rows += await _measure("tailrace object log", partial(ObjectLog, store, 1), seconds, warm_up_s, report)
        return rows


@contextlib.asynccontextmanager
async def own_folder(tier2: str, s3_endpoint: str | None) -> AsyncIterator[ObjectStore]:
    """Open a store below `tier2` and empty it afterwards, also after a failure."""
    nonce = os.urandom(8).hex()
    place = f"{tier2.rstrip('/')}/bench-{nonce}"
    store = open_object_store(place, s3_endpoint=s3_endpoint)
    writes = ThreadPoolExecutor()
    asyncio.get_running_loop().set_default_executor(writes)
    try:
        await probe_conditions(store, nonce, tier2)
        try:
            yield store
        finally:
            await _empty(store, place, writes)
    finally:
        await store.close()


async def _empty(store: ObjectStore, place: str, writes: ThreadPoolExecutor) -> None:
    """Delete all objects; standard error says when some may be left."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor())
    try:
        async with asyncio.timeout(EMPTY_DEADLINE_S):
            await loop.run_in_executor(None, writes.shutdown)  # cancelled writes into a folder go on in threads
            while await _delete_listed(store):
                pass  # until nothing is left: a cancelled write may have arrived behind the list
    except (TimeoutError, UnavailableError) as error:
        reason = str(error) or f"no answer within {EMPTY_DEADLINE_S:g} s"
        note(f"tailrace: objects of the benchmark may be left in {place}: {reason}")


async def _delete_listed(store: ObjectStore) -> bool:
    """List and delete a page at a time; return whether there were objects."""
    page: list[str] = []
    found = False
    async for info in store.list(""):
        found = True
        page.append(info.key)
        if len(page) == PAGE_OBJECTS:
            await store.delete(page)
            page = []
    await store.delete(page)
    return found


async def _measure(
    system: str, make: Callable[[], DurableLog], seconds: float, warm_up_s: float, report: Callable[[str], None]
) -> list[Row]:
    rows: list[Row] = []
    acknowledged = 0
    for epoch, load in enumerate(LOADS, start=1):
        report(f"{system}, {load.name}")
        log = make()
        await log.open(epoch, os.urandom(16))
        if log.next_sequence != acknowledged:
            raise DataLossError(f"{system} holds {log.next_sequence} frames, {acknowledged} were acknowledged")
        try:
            rows += await _run(system, log, load, seconds, warm_up_s)
            acknowledged = log.next_sequence
        finally:
            await log.close()
    return rows


async def _run(system: str, log: DurableLog, load: LogLoad, seconds: float, warm_up_s: float) -> list[Row]:
    loop = asyncio.get_running_loop()
    appends = _Appends(log, load)
    await appends.until(loop.time() + warm_up_s)
    appends.latencies = LatencyHistogram()
    cpu_s, started_s = time.process_time(), loop.time()
    await appends.until(started_s + seconds)
    elapsed_s = loop.time() - started_s
    frames = appends.latencies.count
    return [
        row(system, load.name, "frames", frames / elapsed_s, "frames/s"),
        row(system, load.name, "payload", frames * load.frame_bytes / elapsed_s / 1e6, "MB/s"),
        *latency_rows(system, load.name, appends.latencies, (0.5, 0.99)),
        row(system, load.name, "CPU", (time.process_time() - cpu_s) / elapsed_s, "cores"),
    ]


class _Appends:
    """A bounded window of appends, with regular truncations."""

    def __init__(self, log: DurableLog, load: LogLoad) -> None:
        self._log = log
        self._load = load
        self._payload = os.urandom(load.frame_bytes)
        self._keep_frames = max(load.in_flight, TRUNCATE_EVERY_BYTES // load.frame_bytes)
        self._truncated = log.next_sequence
        self.latencies = LatencyHistogram()

    async def until(self, ends_at_s: float) -> None:
        """Append until the deadline, and wait until everything is acknowledged."""
        loop = asyncio.get_running_loop()
        under_way: deque[asyncio.Future[int]] = deque()
        while under_way or loop.time() < ends_at_s:
            while len(under_way) < self._load.in_flight and loop.time() < ends_at_s:
                under_way.append(self._append(loop.time()))
            if under_way:
                await self._acknowledged(await under_way.popleft())

    def _append(self, now_s: float) -> asyncio.Future[int]:
        future = self._log.append([self._payload])
        future.add_done_callback(lambda done: self._note(done, now_s))
        return future

    def _note(self, future: asyncio.Future[int], sent_s: float) -> None:
        if not future.cancelled() and future.exception() is None:
            self.latencies.record(asyncio.get_running_loop().time() - sent_s)

    async def _acknowledged(self, sequence: int) -> None:
        if sequence - self._truncated >= self._keep_frames:
            self._truncated = sequence
            await self._log.truncate(sequence)
