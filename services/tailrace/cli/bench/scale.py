"""Measure scales of a stream: how long one takes, and how long events of a writer wait meanwhile.

See docs/performance.md#scales.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.ingest import HEADER_BYTES, SCOPE, SYSTEM, temporary_stream
from tailrace.cli.bench.result import Row, latency_rows, row
from tailrace.cli.bench.steady_writer import EVENT_BYTES, SteadyWriter
from tailrace.cli.bench.transactions import held_open
from tailrace.client.context import ClientContext
from tailrace.client.control.scale_plan import plan_changes
from tailrace.common.errors import DataLossError, DeadlineError
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.cli.bench.target import Target
    from tailrace.client.model import StreamName

WRITER: Final = "writer"
"""System of the rows of the writer beside the scales, which uses no transactions."""
SEGMENTS: Final = 4
ALONE_S: Final = 3.0
SETTLE_S: Final = 0.5
"""After each scale: events that waited for it are acknowledged, and counted with it."""
POLL_S: Final = 0.005
SCALE_DEADLINE_S: Final = 60.0


async def measure_scales(target: Target, *, scales: int, open_count: int, report: Callable[[str], None]) -> list[Row]:
    """Return the rows of the case without other transactions, and of the one beside so many open ones.

    Raises:
        DataLossError: afterwards the stream does not hold exactly the bytes that were acknowledged.
        DeadlineError: a scale took longer than SCALE_DEADLINE_S.
    """
    rows: list[Row] = []
    for count in dict.fromkeys((0, open_count)):
        case = f"open-{count}"
        report(case)
        context = ClientContext(target.controller)
        try:
            created = await context.controller.create_scope(SCOPE)
            async with temporary_stream(context, SEGMENTS) as stream:
                async with held_open(context, stream, count):
                    run = _Run(context, target.controller, stream)
                    await run.measure(scales)
                await run.check()
                rows += run.rows(case)
            if created:
                await context.controller.delete_scope(SCOPE)
        finally:
            await context.close()
    return rows


class _Run:
    """Scales of one stream, one after the other, beside a writer."""

    def __init__(self, context: ClientContext, controller: str, stream: StreamName) -> None:
        self._context, self._controller, self._stream = context, controller, stream
        self._scales = LatencyHistogram()
        self._waits = LatencyHistogram()
        """The longest wait of an event beside each scale."""
        self._alone_ms: dict[str, float] = {}
        self._written = 0

    async def measure(self, scales: int) -> None:
        """Split the first segment in two, then merge the two, and so on."""
        loop = asyncio.get_running_loop()
        cores = os.sched_getaffinity(0)
        with SteadyWriter.start(self._controller, self._stream, cores) as writer:
            await asyncio.sleep(ALONE_S)  # it starts, and its connections open
            await asyncio.to_thread(writer.latencies)
            await asyncio.sleep(ALONE_S)
            self._alone_ms = (await asyncio.to_thread(writer.latencies)).ms
            for number in range(scales):
                began_s = loop.time()
                await self._scale(splits=number % 2 == 0)
                self._scales.record(loop.time() - began_s)
                await asyncio.sleep(SETTLE_S if number + 1 < scales else ALONE_S)
                self._waits.record(await self._longest_wait_s(writer))
        self._written = writer.written

    async def _longest_wait_s(self, writer: SteadyWriter) -> float:
        """Return the longest wait since the last call; it waits until an event is acknowledged."""
        while True:
            found = await asyncio.to_thread(writer.latencies)
            if found.events:
                return found.ms["max"] / 1000
            await asyncio.sleep(SETTLE_S)

    async def _scale(self, *, splits: bool) -> None:
        control = self._context.controller
        active = await control.current_segments(self._stream)
        first, second = (each.identifier for each in active[:2])
        plan = plan_changes(active, [(first, 2)], []) if splits else plan_changes(active, [], [(first, second)])
        started = await control.start_scale(self._stream, plan.sealed, plan.ranges)
        try:
            async with asyncio.timeout(SCALE_DEADLINE_S):
                while True:
                    if await control.scale_is_done(self._stream, started.epoch):
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise DeadlineError(f"a scale takes longer than {SCALE_DEADLINE_S:g} s") from error

    async def check(self) -> None:
        """Raise DataLossError unless the stream holds the bytes of every event once."""
        control = self._context.controller
        names = [self._stream.segment(each) for each in await control.segments_between(self._stream, None, None)]
        found = await gather_bounded(names, self._context.segments.segment_info)
        stored, expected = sum(info.length for info in found), self._written * (HEADER_BYTES + EVENT_BYTES)
        if stored != expected:
            raise DataLossError(f"{self._written} events left {stored} bytes in {self._stream}, not {expected}")

    def rows(self, case: str) -> list[Row]:
        """Return the times of scales, those of events without one, and the longest wait beside each scale."""
        waits = latency_rows(WRITER, case, self._waits, (0.5, 0.99))
        return [
            *latency_rows(SYSTEM, case, self._scales, (0.5, 0.99)),
            *(row(WRITER, f"{case}, alone", name, value, "ms") for name, value in self._alone_ms.items()),
            *(
                row(WRITER, case, f"longest wait beside a scale, {each['metric']}", each["value"], "ms")
                for each in waits
            ),
        ]
