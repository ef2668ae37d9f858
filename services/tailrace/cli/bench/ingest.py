"""Measure durable appends: batches, single calls, large events, one at a time.

See docs/performance.md#goals, docs/performance.md#append-blocks.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.result import Row, latency_rows, row
from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common.errors import DataLossError
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.cli.bench.target import Target

SYSTEM: Final = "tailrace"
SCOPE: Final = "bench"
HEADER_BYTES: Final = 8
KEYS: Final = [str(number) for number in range(64)]
"""Number of routing keys, which spread over the segments."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one case."""

    name: str
    event_bytes: int
    segments: int
    batch_events: int
    window_bytes: int
    """Maximum of unacknowledged bytes; more would only wait in queues."""


def loads(batch_events: int, window_bytes: int) -> list[Load]:
    """Return the throughput cases."""
    return [
        Load("100 B, 1 segment, batches", 100, 1, batch_events, window_bytes),
        Load("100 B, 4 segments, batches", 100, 4, batch_events, window_bytes),
        Load("100 B, 1 segment, single calls", 100, 1, 1, window_bytes // 8),
        Load("10 KB, 1 segment", 10_000, 1, 25, 4 * window_bytes),
    ]


async def measure_ingest(
    target: Target,
    *,
    seconds: float,
    warm_up_s: float,
    batch_events: int,
    window_bytes: int,
    report: Callable[[str], None],
) -> list[Row]:
    """Return the rows of all cases."""
    rows: list[Row] = []
    context = ClientContext(target.controller)
    try:
        created = await context.controller.create_scope(SCOPE)
        for load in loads(batch_events, window_bytes):
            report(load.name)
            async with temporary_stream(context, load.segments) as stream:
                rows += await _throughput(context, target, stream, load, seconds=seconds, warm_up_s=warm_up_s)
        report("100 B, one at a time")
        async with temporary_stream(context, 1) as stream:
            rows += await _one_at_a_time(context, stream, seconds, warm_up_s)
        if created:
            await context.controller.delete_scope(SCOPE)
    finally:
        await context.close()
    return rows


@asynccontextmanager
async def temporary_stream(context: ClientContext, segments: int) -> AsyncIterator[StreamName]:
    """Create a stream and delete it afterwards."""
    stream = await new_stream(context, segments)
    try:
        yield stream
    finally:
        await context.controller.seal_stream(stream)
        await context.controller.delete_stream(stream)


async def new_stream(context: ClientContext, segments: int) -> StreamName:
    """Create a stream with a new name."""
    stream = StreamName(SCOPE, f"b{time.time_ns():x}")
    await context.controller.create_stream(stream, StreamConfig(scaling=ScalingPolicy.fixed(segments)))
    return stream


class _Run:
    """A bounded window of batches in flight."""

    def __init__(self, writer: EventWriter, load: Load) -> None:
        self._writer = writer
        self._load = load
        self._batch = [os.urandom(load.event_bytes) for _ in range(load.batch_events)]
        self._batch_bytes = load.batch_events * (load.event_bytes + HEADER_BYTES)
        self._outstanding_bytes = 0
        self._room = asyncio.Event()
        self._next_key = 0
        self.acknowledged = 0
        self.latencies = LatencyHistogram()

    async def write_until(self, ends_at_s: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < ends_at_s:
            while self._outstanding_bytes < self._load.window_bytes:
                self._write_batch(loop.time())
            self._room.clear()
            await self._room.wait()

    def _write_batch(self, now_s: float) -> None:
        key = KEYS[self._next_key % len(KEYS)]
        self._next_key += 1
        self._outstanding_bytes += self._batch_bytes
        if len(self._batch) == 1:
            future = self._writer.write_event(self._batch[0], key)
        else:
            future = self._writer.write_events(self._batch, key)
        future.add_done_callback(lambda done: self._done(done, now_s))

    def _done(self, future: asyncio.Future[None], sent_s: float) -> None:
        self._outstanding_bytes -= self._batch_bytes
        self._room.set()
        if future.cancelled() or future.exception() is not None:
            return  # the flush at the end raises it
        self.acknowledged += len(self._batch)
        self.latencies.record(asyncio.get_running_loop().time() - sent_s, len(self._batch))


async def _throughput(
    context: ClientContext, target: Target, stream: StreamName, load: Load, *, seconds: float, warm_up_s: float
) -> list[Row]:
    loop = asyncio.get_running_loop()
    async with EventWriter(context, stream) as writer:
        run = _Run(writer, load)
        await run.write_until(loop.time() + warm_up_s)
        await writer.flush()
        warmed_up = run.acknowledged
        run.latencies = LatencyHistogram()
        cpu = CpuMeter(target)
        started_s = loop.time()
        await run.write_until(started_s + seconds)
        await writer.flush()
        elapsed_s = loop.time() - started_s
        events = run.acknowledged - warmed_up
        rows = [
            row(SYSTEM, load.name, "events", events / elapsed_s, "events/s"),
            row(SYSTEM, load.name, "payload", events * load.event_bytes / elapsed_s / 1e6, "MB/s"),
            *latency_rows(SYSTEM, load.name, run.latencies),
            *cpu.rows(SYSTEM, load.name, elapsed_s),
        ]
    await check_length(context, stream, run.acknowledged * (load.event_bytes + HEADER_BYTES))
    return rows


async def check_length(context: ClientContext, stream: StreamName, expected_bytes: int) -> None:
    """Raise DataLossError unless the stream holds exactly the acknowledged bytes."""
    segments = await context.controller.current_segments(stream)
    infos = [await context.segments.segment_info(stream.segment(segment.identifier)) for segment in segments]
    length = sum(info.length for info in infos)
    if length != expected_bytes:
        raise DataLossError(f"{stream} holds {length} bytes, {expected_bytes} were acknowledged")


async def _one_at_a_time(context: ClientContext, stream: StreamName, seconds: float, warm_up_s: float) -> list[Row]:
    case = "100 B, one at a time"
    loop = asyncio.get_running_loop()
    event = os.urandom(100)
    async with EventWriter(context, stream) as writer:
        ends_at_s = loop.time() + warm_up_s
        while loop.time() < ends_at_s:
            await writer.write_event(event)
        latencies = LatencyHistogram()
        started_s = now_s = loop.time()
        while now_s < started_s + seconds:
            await writer.write_event(event)
            done_s = loop.time()
            latencies.record(done_s - now_s)
            now_s = done_s
    return [
        row(SYSTEM, case, "events", latencies.count / (now_s - started_s), "events/s"),
        *latency_rows(SYSTEM, case, latencies),
    ]


class CpuMeter:
    """Processor time of this process and of its own server, from the creation of the meter."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client_s = time.process_time()
        self._server_s = target.cpu_s()

    def rows(self, system: str, case: str, elapsed_s: float) -> list[Row]:
        """Return the average number of busy cores."""
        rows = [row(system, case, "client CPU", (time.process_time() - self._client_s) / elapsed_s, "cores")]
        server_s = self._target.cpu_s()
        if self._server_s is not None and server_s is not None:
            rows.append(row(system, case, "server CPU", (server_s - self._server_s) / elapsed_s, "cores"))
        return rows
