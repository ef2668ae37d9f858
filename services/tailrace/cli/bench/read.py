"""Measure reads: at the tail during writes, and in catch-up from the cache and from Tier 2."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.ingest import SCOPE, SYSTEM, CpuMeter, new_stream, temporary_stream
from tailrace.cli.bench.pacing import Pace
from tailrace.cli.bench.result import Row, latency_rows, row
from tailrace.cli.bench.target import flush_all
from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common.errors import DataLossError, DeadlineError
from tailrace.common.task_groups import run_all

if TYPE_CHECKING:
    from tailrace.cli.bench.target import Target

EVENT_BYTES: Final = 100
CATCH_UP_EVENT_BYTES: Final = 1000
CATCH_UP_BATCH: Final = 500
READ_EVENTS: Final = 1000
TICK_S: Final = 0.001
TAIL_DEADLINE_S: Final = 30.0
"""Deadline for the last events to arrive."""
_DUE: Final = struct.Struct("<dI")


async def measure_read(
    target: Target,
    *,
    seconds: float,
    warm_up_s: float,
    rate_per_s: int,
    catch_up_bytes: int,
    report: Callable[[str], None],
) -> list[Row]:
    """Return the rows of all cases. Reading from Tier 2 needs the benchmark's own server, which it restarts."""
    rows: list[Row] = []
    context = ClientContext(target.controller)
    try:
        created = await context.controller.create_scope(SCOPE)
        case = f"{EVENT_BYTES} B, tail, {rate_per_s:,} events/s"
        report(case)
        async with temporary_stream(context, 1) as stream:
            rows += await _tail(
                context, target, stream, case, rate_per_s=rate_per_s, seconds=seconds, warm_up_s=warm_up_s
            )
        report("catch-up from the cache")
        stream, events = await _fill(context, catch_up_bytes)
        rows += await _catch_up(context, target, stream, events, "1 KB, catch-up from the cache")
        if target.process is not None and target.admin is not None:
            report("catch-up from Tier 2")
            await flush_all(target.admin)
            await context.close()
            await target.restart()
            context = ClientContext(target.controller)
            rows += await _catch_up(context, target, stream, events, "1 KB, catch-up from Tier 2")
        await context.controller.seal_stream(stream)
        await context.controller.delete_stream(stream)
        if created:
            await context.controller.delete_scope(SCOPE)
    finally:
        await context.close()
    return rows


# -- tail -------------------------------------------------------------------------------------------------------


class _Tail:
    """Check that every event arrives once and in order, and record its latency since its due time."""

    def __init__(self, warm_up_events: int) -> None:
        self._warm_up_events = warm_up_events
        self.expected = 0
        self.latencies = LatencyHistogram()

    def arrive(self, event: bytes, now_s: float) -> None:
        due_s, index = _DUE.unpack_from(event)
        if index != self.expected:
            raise DataLossError(f"event {index} arrived where {self.expected} was expected")
        self.expected += 1
        if index >= self._warm_up_events:
            self.latencies.record(now_s - due_s)


async def _tail(
    context: ClientContext,
    target: Target,
    stream: StreamName,
    case: str,
    *,
    rate_per_s: int,
    seconds: float,
    warm_up_s: float,
) -> list[Row]:
    loop = asyncio.get_running_loop()
    total = round(rate_per_s * (warm_up_s + seconds))
    tail = _Tail(round(rate_per_s * warm_up_s))
    group = f"{stream.stream}-tail"
    manager = ReaderGroupManager(context, stream.scope)
    await manager.create(group, group_config({stream: None}))
    async with EventReader(context, stream.scope, group, "reader") as reader:
        await reader.read_batch(1, 200)  # join and acquire the segment, so that the first events do not wait for it
        cpu = CpuMeter(target)
        started_s = loop.time()
        writing_s, _ = await run_all(
            _write_paced(context, stream, Pace(started_s, rate_per_s), total), _read_tail(reader, tail, total)
        )
        elapsed_s = loop.time() - started_s
    await manager.delete(group)
    return [
        row(SYSTEM, case, "events", total / writing_s, "events/s"),
        *latency_rows(SYSTEM, case, tail.latencies),
        *cpu.rows(SYSTEM, case, elapsed_s),
    ]


async def _write_paced(context: ClientContext, stream: StreamName, pace: Pace, total: int) -> float:
    """Write every event when it is due or as soon as possible; return the seconds taken."""
    loop = asyncio.get_running_loop()
    filler = os.urandom(EVENT_BYTES - _DUE.size)
    sent = 0
    async with EventWriter(context, stream) as writer:
        while sent < total:
            await writer.ready()
            due = min(total, pace.due_by(loop.time()))
            for index in range(sent, due):
                writer.write_event(_DUE.pack(pace.due_at_s(index), index) + filler, "key")
            sent = due
            await asyncio.sleep(TICK_S)
        await writer.flush()
    return loop.time() - pace.start_s


async def _read_tail(reader: EventReader, tail: _Tail, total: int) -> None:
    loop = asyncio.get_running_loop()
    last_s = loop.time()
    while tail.expected < total:
        batch = await reader.read_batch(READ_EVENTS, 500)
        now_s = loop.time()
        if batch is not None and batch.events:
            last_s = now_s
            for event in batch.events:
                tail.arrive(event, now_s)
        elif now_s - last_s > TAIL_DEADLINE_S:
            raise DeadlineError(f"{total - tail.expected} events did not arrive within {TAIL_DEADLINE_S:g} s")


# -- catch-up ---------------------------------------------------------------------------------------------------


async def _fill(context: ClientContext, total_bytes: int) -> tuple[StreamName, int]:
    """Write a stream of that many bytes; return it and its number of events."""
    stream = await new_stream(context, 1)
    batch = [os.urandom(CATCH_UP_EVENT_BYTES) for _ in range(CATCH_UP_BATCH)]
    count = max(1, total_bytes // (CATCH_UP_EVENT_BYTES * CATCH_UP_BATCH))
    async with EventWriter(context, stream) as writer:
        for _ in range(count):
            await writer.ready()
            writer.write_events(batch, "key")
        await writer.flush()
    return stream, count * CATCH_UP_BATCH


async def _catch_up(context: ClientContext, target: Target, stream: StreamName, events: int, case: str) -> list[Row]:
    loop = asyncio.get_running_loop()
    group = f"{stream.stream}-{case.rsplit(maxsplit=1)[-1]}"
    manager = ReaderGroupManager(context, stream.scope)
    await manager.create(group, group_config({stream: None}))
    read = length_bytes = 0
    cpu = CpuMeter(target)
    started_s = last_s = loop.time()
    async with EventReader(context, stream.scope, group, "reader") as reader:
        while read < events:
            batch = await reader.read_batch(READ_EVENTS, 500)
            if batch is not None and batch.events:
                read += len(batch.events)
                length_bytes += sum(map(len, batch.events))
                last_s = loop.time()
            elif loop.time() - last_s > TAIL_DEADLINE_S:
                raise DeadlineError(f"{events - read} events did not arrive within {TAIL_DEADLINE_S:g} s")
        elapsed_s = loop.time() - started_s
        rows = [
            row(SYSTEM, case, "events", read / elapsed_s, "events/s"),
            row(SYSTEM, case, "payload", length_bytes / elapsed_s / 1e6, "MB/s"),
            *cpu.rows(SYSTEM, case, elapsed_s),
        ]
    await manager.delete(group)
    return rows
