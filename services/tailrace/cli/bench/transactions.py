"""Measure transactions of ten events: begin, write, commit, one after the other and sixteen at a time."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.ingest import KEYS, SCOPE, SYSTEM, CpuMeter, temporary_stream
from tailrace.cli.bench.java import PEER_SYSTEM
from tailrace.cli.bench.result import Row, latency_rows, row
from tailrace.cli.bench.target import Target
from tailrace.client.context import ClientContext
from tailrace.client.writer.transactions import TransactionalWriter
from tailrace.common import limits
from tailrace.common.errors import DataLossError
from tailrace.common.task_groups import gather_bounded, run_all

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncIterator, Callable

    from tailrace.client.model import StreamName
    from tailrace.client.writer.transactions import Transaction

SEGMENTS: Final = 4
EVENTS: Final = 10
EVENT_BYTES: Final = 100
STORED_EVENT_BYTES: Final = 8 + EVENT_BYTES
CASES: Final = {"sequential": 1, "concurrent-16": 16}
LEASE_MS: Final = limits.TRANSACTION_LEASE_MAX_MS
"""Of the transactions that are kept open: the longest, so that their pings cost little beside what is measured."""
VISIBLE_DEADLINE_S: Final = 120.0


async def measure_transactions(
    target: Target,
    *,
    seconds: float,
    warm_up_s: float,
    open_count: int,
    peer: str | None,
    report: Callable[[str], None],
) -> list[Row]:
    """Return the rows of all cases, each measured at the target and then at the peer, when there is one.

    Raises:
        DataLossError: afterwards a stream does not hold exactly the events of all transactions.
    """
    systems = {SYSTEM: target}
    if peer is not None:
        systems[PEER_SYSTEM] = Target(peer)
    rows: list[Row] = []
    for case, workers in CASES.items():
        for system, measured in systems.items():
            report(case if system == SYSTEM else f"{case}, {system}")
            context = ClientContext(measured.controller)
            try:
                created = await context.controller.create_scope(SCOPE)
                async with temporary_stream(context, SEGMENTS) as stream, held_open(context, stream, open_count):
                    load = _Load(context, stream, workers)
                    await load.run(warm_up_s)
                    cpu = CpuMeter(measured)
                    run = await load.run(seconds)
                    rows += run.rows(system, case, cpu)
                    await load.check()
                if created:
                    await context.controller.delete_scope(SCOPE)
            finally:
                await context.close()
    return rows


@asynccontextmanager
async def held_open(context: ClientContext, stream: StreamName, count: int) -> AsyncIterator[None]:
    """Keep so many transactions of the stream open; abort them afterwards."""

    async def begin(_: int) -> uuid.UUID:
        return (await context.controller.create_transaction(stream, LEASE_MS)).transaction

    async def ping(transaction_id: uuid.UUID) -> None:
        await context.controller.ping_transaction(stream, transaction_id, LEASE_MS)

    async def abort(transaction_id: uuid.UUID) -> None:
        await context.controller.abort_transaction(stream, transaction_id)

    begun = await gather_bounded(range(count), begin)

    async def keep() -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 1000 / limits.TRANSACTION_PINGS_PER_LEASE)
            await gather_bounded(begun, ping)

    keeping = asyncio.create_task(keep(), name="keep transactions open")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await gather_bounded(begun, abort)


@dataclass(frozen=True, slots=True)
class _Run:
    """What one run took."""

    latencies: LatencyHistogram
    elapsed_s: float

    def rows(self, system: str, case: str, cpu: CpuMeter) -> list[Row]:
        """Return the rate, the time from the begin of a transaction to the answer of its commit, and the processors."""
        count = self.latencies.count
        rows = [
            row(system, case, "transactions", count / self.elapsed_s, "transactions/s"),
            *latency_rows(system, case, self.latencies, (0.5, 0.99)),
        ]
        used = cpu.rows(system, case, self.elapsed_s)
        for each in used:
            per_transaction_ms = 1000 * each["value"] * self.elapsed_s / count
            rows += [each, row(system, case, f"{each['metric']} per transaction", per_transaction_ms, "ms")]
        return rows


class _Load:
    """Transactions by some workers that each begin the next one when the commit of the last was answered."""

    def __init__(self, context: ClientContext, stream: StreamName, workers: int) -> None:
        self._context = context
        self._stream = stream
        self._writers = [TransactionalWriter(context, stream) for _ in range(workers)]
        self._events = [os.urandom(EVENT_BYTES) for _ in range(EVENTS)]
        self._committed = 0

    async def run(self, seconds: float) -> _Run:
        """Run for some seconds, and until the last transaction of each worker is COMMITTED."""
        loop = asyncio.get_running_loop()
        latencies = LatencyHistogram()
        started_s = loop.time()

        async def work(writer: TransactionalWriter) -> None:
            last: Transaction | None = None
            while last is None or loop.time() < started_s + seconds:
                begun_s = loop.time()
                last = await self._one(writer)
                latencies.record(loop.time() - begun_s)
            await last.wait_until_visible(VISIBLE_DEADLINE_S)

        await run_all(*(work(writer) for writer in self._writers))
        return _Run(latencies, loop.time() - started_s)

    async def _one(self, writer: TransactionalWriter) -> Transaction:
        transaction = await writer.begin()
        first = self._committed % len(KEYS)
        for number, event in enumerate(self._events):
            transaction.write_event(event, routing_key=KEYS[(first + number) % len(KEYS)])
        await transaction.commit()  # when all of them are durable
        self._committed += 1
        return transaction

    async def check(self) -> None:
        """Raise DataLossError unless the stream holds the bytes of every transaction once."""
        await run_all(*(writer.close() for writer in self._writers))
        segments = await self._context.controller.current_segments(self._stream)
        names = [self._stream.segment(segment.identifier) for segment in segments]
        found = await gather_bounded(names, self._context.segments.segment_info)
        stored, expected = sum(info.length for info in found), self._committed * EVENTS * STORED_EVENT_BYTES
        if stored != expected:
            raise DataLossError(f"{self._committed} transactions left {stored} bytes in {self._stream}, not {expected}")
