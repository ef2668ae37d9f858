"""Measure a server with many streams: create, write, list, start, and apply retention policies.

See docs/performance.md#many-streams.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.ingest import SCOPE, SYSTEM
from tailrace.cli.bench.result import Row, latency_rows, row
from tailrace.cli.bench.target import Target, bench_target, metric_value
from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common.errors import DataLossError, UnavailableError
from tailrace.common.stream_policies import RetentionPolicy, ScalingPolicy, StreamConfig
from tailrace.common.task_groups import run_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    Report = Callable[[str], None]

WORKERS: Final = 16
EVENT_BYTES: Final = 100
TAG: Final = "tenth"
TAGGED_EVERY: Final = 10
LISTS: Final = 5
"""Lists of all streams, and of those with the tag, that are measured."""
PERIOD_S: Final = 15
"""Of the rounds of retention, while they are measured."""
ROUNDS: Final = ("retention, first round", "retention, nothing new")
ROUND_DEADLINE_S: Final = 600.0
POLL_S: Final = 0.1
POLICY: Final = StreamConfig(
    scaling=ScalingPolicy.fixed(1), retention=RetentionPolicy.by_size_bytes(1_000_000, 10_000_000)
)


async def measure_streams(folder: Path | None, options: Sequence[str], count: int, report: Report) -> list[Row]:
    """Return the rows of all cases for `count` streams of one segment with a retention policy, on a server of its own.

    Raises:
        DataLossError: a list is not complete.
    """
    names = [StreamName(SCOPE, f"s{number:06d}") for number in range(count)]
    async with bench_target(None, folder, options) as target:
        rows = await _with_client(target, lambda context: _fill(context, target, names, report))
        rows += await _start(target, names[count // 2], report)
        rows += await _retention(target, count, report)
    return rows


async def _with_client(target: Target, work: Callable[[ClientContext], Awaitable[list[Row]]]) -> list[Row]:
    context = ClientContext(target.controller)
    try:
        return await work(context)
    finally:
        await context.close()


async def _fill(context: ClientContext, target: Target, names: Sequence[StreamName], report: Report) -> list[Row]:
    """Create the streams, write an event to each, and list them."""
    event = os.urandom(EVENT_BYTES)

    async def create(number: int) -> None:
        tags = (TAG,) if number % TAGGED_EVERY == 0 else ()
        await context.controller.create_stream(names[number], msgspec.structs.replace(POLICY, tags=tags))

    async def write(number: int) -> None:
        async with EventWriter(context, names[number]) as writer:
            await writer.write_event(event)

    await context.controller.create_scope(SCOPE)
    report("create")
    rows = await _for_each("create", len(names), create, target)
    report("first event")
    rows += await _for_each("first event", len(names), write, target)
    report("list")
    rows += await _lists(context, "list", None, set(names))
    rows += await _lists(context, "list by tag", TAG, set(names[::TAGGED_EVERY]))
    return rows


async def _for_each(case: str, count: int, work: Callable[[int], Awaitable[None]], target: Target) -> list[Row]:
    """Do the work for each number, some at a time; return the rate, the latencies and what it cost the server."""
    loop = asyncio.get_running_loop()
    latencies = LatencyHistogram()
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:  # shared by the workers
            began_s = loop.time()
            await work(number)
            latencies.record(loop.time() - began_s)

    started_s, cpu_s = loop.time(), target.cpu_s() or 0.0
    await run_all(*(worker() for _ in range(WORKERS)))
    elapsed_s, used_s = loop.time() - started_s, (target.cpu_s() or 0.0) - cpu_s
    return [
        row(SYSTEM, case, "streams", count / elapsed_s, "streams/s"),
        *latency_rows(SYSTEM, case, latencies, (0.5, 0.99)),
        row(SYSTEM, case, "server CPU per stream", 1000 * used_s / count, "ms"),
        _memory(case, target),
    ]


async def _lists(context: ClientContext, case: str, tag: str | None, expected: set[StreamName]) -> list[Row]:
    """List all streams some times; the first time is not measured: it may be the one that checks an index."""
    loop = asyncio.get_running_loop()
    latencies = LatencyHistogram()
    for turn in range(LISTS + 1):
        found: set[StreamName] = set()
        began_s = loop.time()
        async for page in context.controller.stream_pages(SCOPE, tag=tag):
            if turn:
                latencies.record(loop.time() - began_s)
            found.update(page)
            began_s = loop.time()
        if missing := expected - found:
            raise DataLossError(f"{len(missing)} of {len(expected)} streams are not listed, such as {min(missing)}")
    pages = latencies.count / LISTS
    return [*latency_rows(SYSTEM, case, latencies, (0.5, 0.99)), row(SYSTEM, case, "pages of a list", pages, "pages")]


async def _start(target: Target, stream: StreamName, report: Report) -> list[Row]:
    """Start the server again, and ask for a stream's segments."""
    case = "start"
    report(case)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    start_s = await target.restart(("--retention-period", f"{PERIOD_S}s"))
    stop_s = loop.time() - began_s - start_s
    began_s = loop.time()

    async def ask(context: ClientContext) -> list[Row]:
        await context.controller.current_segments(stream)
        return [row(SYSTEM, case, "first answer", 1000 * (loop.time() - began_s), "ms")]

    answered = await _with_client(target, ask)
    return [
        row(SYSTEM, case, "orderly stop before it", stop_s, "s"),
        row(SYSTEM, case, "until it is ready", start_s, "s"),
        *answered,
        row(SYSTEM, case, "server CPU", target.cpu_s() or 0.0, "s"),
        _memory(case, target),
    ]


async def _retention(target: Target, count: int, report: Report) -> list[Row]:
    """Return what the first two rounds of retention after a start cost the server, with what it does besides."""
    rows: list[Row] = []
    for done, case in enumerate(ROUNDS):
        report(case)
        cpu_s = target.cpu_s() or 0.0
        await _rounds(target, done + 1)
        used_s = (target.cpu_s() or 0.0) - cpu_s
        rows += [
            row(SYSTEM, case, "server CPU", used_s, "s"),
            row(SYSTEM, case, "server CPU per stream", 1000 * used_s / count, "ms"),
            _memory(case, target),
        ]
    return rows


async def _rounds(target: Target, wanted: int) -> None:
    """Wait until so many rounds of retention have ended since the start. Raises UnavailableError."""
    import httpx

    assert target.process is not None
    assert target.process.endpoints is not None
    base = target.process.endpoints.rest
    try:
        async with (
            asyncio.timeout(ROUND_DEADLINE_S),
            httpx.AsyncClient(base_url=base, timeout=60.0, trust_env=False) as client,
        ):
            while True:
                text = (await client.get("/prometheus")).raise_for_status().text
                if metric_value(text, "tailrace_controller_retention_rounds_total") >= wanted:
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise UnavailableError(f"a round of retention takes longer than {ROUND_DEADLINE_S:g} s") from error


def _memory(case: str, target: Target) -> Row:
    return row(SYSTEM, case, "server memory", (target.resident_bytes() or 0) / 2**20, "MiB")
