"""Measure puts and gets of a key-value table, one at a time and with 256 in flight over one connection."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Final

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.ingest import SCOPE, SYSTEM, CpuMeter
from tailrace.cli.bench.java import PEER_SYSTEM, TABLE_CASES, JavaProgram, table_rows_of
from tailrace.cli.bench.java import SYSTEM as JAVA_SYSTEM
from tailrace.cli.bench.result import Row, latency_rows, row
from tailrace.client.context import ClientContext
from tailrace.client.control.tables import TableConfig
from tailrace.client.tables import KeyValueTable, TableKeyParts
from tailrace.common.errors import DataLossError
from tailrace.common.task_groups import run_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.cli.bench.target import Target

KEY_BYTES: Final = 16
VALUE_BYTES: Final = 100
IN_FLIGHT: Final = (1, 256)


async def measure_table_by_java(target: Target, peer: str, report: Callable[[str], None]) -> list[Row]:
    """Return the rows of all cases through the Java client, here and at a Pravega (docs/performance.md#pravega).

    Raises:
        UnsupportedError: the source tree is missing. IllegalStateError: the program was not built or failed.
    """
    program = await JavaProgram.build()
    rows: list[Row] = []
    for case in TABLE_CASES:
        for system, controller in ((JAVA_SYSTEM, target.controller), (PEER_SYSTEM, peer)):
            report(f"{case}, {system}")
            rows += table_rows_of(system, case, await program.measure(controller, "table-bench", case))
    return rows


async def measure_table(
    target: Target, *, seconds: float, warm_up_s: float, keys: int, report: Callable[[str], None]
) -> list[Row]:
    """Return the rows of all cases: one table of one segment with `keys` keys of 16 B, values of 100 B.

    Raises:
        DataLossError: afterwards the table does not hold every key's last acknowledged version.
    """
    rows: list[Row] = []
    context = ClientContext(target.controller)
    name = f"b{time.time_ns():x}"
    try:
        created = await context.controller.create_scope(SCOPE)
        await context.controller.create_table(SCOPE, name, TableConfig(1, KEY_BYTES))
        try:
            async with KeyValueTable(context, SCOPE, name) as table:
                load = _Load(table, keys)
                await load.fill()
                for verb, operation in (("put", load.put), ("get", load.get)):
                    for in_flight in IN_FLIGHT:
                        case = f"{verb}-{in_flight}"
                        report(case)
                        await _run(operation, in_flight, warm_up_s)
                        rows += await _measure(target, case, operation, in_flight, seconds)
                await load.check()
        finally:
            await context.controller.delete_table(SCOPE, name)
        if created:
            await context.controller.delete_scope(SCOPE)
    finally:
        await context.close()
    return rows


class _Load:
    """Puts and gets over all keys in turn, and what the table must hold after them."""

    def __init__(self, table: KeyValueTable, keys: int) -> None:
        self._table = table
        self._keys = [TableKeyParts(number.to_bytes(KEY_BYTES, "big")) for number in range(keys)]
        self._next = 0
        self._filler = os.urandom(VALUE_BYTES - 8)
        self._versions: dict[TableKeyParts, int] = {}

    async def fill(self) -> None:
        """Write every key once, so that all puts are updates and all gets find an entry."""
        keys, at_once = len(self._keys), max(IN_FLIGHT)
        for first in range(0, keys, at_once):
            await run_all(*(self.put() for _ in range(first, min(keys, first + at_once))))

    async def put(self) -> None:
        """Update the next key without a condition."""
        number, key = self._take()
        version = await self._table.put(key, number.to_bytes(8, "big") + self._filler)
        self._versions[key] = max(version, self._versions.get(key, version))

    async def get(self) -> None:
        """Read the next key. Raises DataLossError when its entry is missing."""
        _, key = self._take()
        if await self._table.get(key) is None:
            raise DataLossError(f"key {key.primary.hex()} is missing")

    def _take(self) -> tuple[int, TableKeyParts]:
        number, self._next = self._next, self._next + 1
        return number, self._keys[number % len(self._keys)]

    async def check(self) -> None:
        """Raise DataLossError unless the table holds the last acknowledged version of every key."""
        found = {entry.key: entry.version async for entry in self._table.entries()}
        wrong = sum(found.get(key) != version for key, version in self._versions.items())
        if wrong:
            raise DataLossError(f"{wrong} of {len(self._versions)} keys lack their last acknowledged version")


async def _measure(
    target: Target, case: str, operation: Callable[[], Awaitable[None]], in_flight: int, seconds: float
) -> list[Row]:
    cpu = CpuMeter(target)
    latencies, elapsed_s = await _run(operation, in_flight, seconds)
    return [
        row(SYSTEM, case, "operations", latencies.count / elapsed_s, "operations/s"),
        *latency_rows(SYSTEM, case, latencies),
        *cpu.rows(SYSTEM, case, elapsed_s),
    ]


async def _run(
    operation: Callable[[], Awaitable[None]], in_flight: int, seconds: float
) -> tuple[LatencyHistogram, float]:
    """Keep `in_flight` operations under way for some seconds; return their latencies and the time until the last.

    There are as many at least, however busy the machine is.
    """
    loop = asyncio.get_running_loop()
    latencies = LatencyHistogram()
    started_s = loop.time()
    ends_at_s = started_s + seconds

    async def work() -> None:
        begun_s = loop.time()
        while True:
            await operation()
            done_s = loop.time()
            latencies.record(done_s - begun_s)
            if done_s >= ends_at_s:
                return
            begun_s = done_s

    await run_all(*(work() for _ in range(in_flight)))
    return latencies, loop.time() - started_s
