"""Measure Spark on a stream: tables from Tier 2 and from the segment store, a streaming query, the sink, and Parquet.

Spark runs in this process's main thread, and the event loop only between its steps. See docs/performance.md#spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import httpx

from tailrace.cli.bench.ingest import SCOPE, SYSTEM, new_stream
from tailrace.cli.bench.result import Row, row
from tailrace.cli.bench.steady_writer import Latencies, SteadyWriter
from tailrace.cli.bench.target import Target, bench_target, flush_all, metric_value
from tailrace.client import BlockingClient
from tailrace.client.context import ClientContext
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common.errors import DataLossError
from tailrace.pipelines.jobs.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.client.model import StreamName

EVENT_BYTES: Final = 1000
BATCH_EVENTS: Final = 500
HEADER_BYTES: Final = 8
CLIENT: Final = "client"
"""System of the row that reads without Spark."""
WRITER: Final = "writer"
"""System of the rows of a writer beside Spark."""
WRITER_WARM_UP_S: Final = 3.0
WRITER_ALONE_S: Final = 10.0
SETTINGS: Final = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}

TOTALS: Final = ("count(*)", "sum(length(value))")
Report = Callable[[str], None]
Frame = Any
Session = Any
"""DataFrame and SparkSession: only `pipelines` imports PySpark."""


@dataclass(frozen=True)
class Load:
    """What is measured: so many events of a stream, by Spark on so many cores; the best of some runs counts."""

    events: int
    repeats: int
    spark_cores: tuple[int, ...]
    """The machine's cores that Spark uses."""
    other_cores: tuple[int, ...]
    """Those that the server and a writer use: the rest of what this process may use; all, when Spark has all."""

    @classmethod
    def of(cls, size_bytes: int, cores: int | None, repeats: int) -> Self:
        """Return the load of about so many bytes, in whole batches; on all cores, or on some of them."""
        batches = max(1, size_bytes // (EVENT_BYTES * BATCH_EVENTS))
        every = tuple(sorted(os.sched_getaffinity(0)))
        count = min(cores or len(every), len(every))
        return cls(batches * BATCH_EVENTS, repeats, every[:count], every[count:] or every)

    @property
    def cores(self) -> int:
        """How many cores Spark has."""
        return len(self.spark_cores)

    @property
    def payload_bytes(self) -> int:
        """All events' bytes."""
        return self.events * EVENT_BYTES


def measure_spark(folder: Path | None, options: Sequence[str], load: Load, report: Report) -> list[Row]:
    """Return the rows of all cases, measured with a server of its own over a temporary folder in `folder`.

    ``options`` are those of the server's Tier 2 (`own_options`).

    Raises:
        StartError: PySpark or Java is missing. BadRequestError: Spark failed. DataLossError: a case read or wrote other
            events than there are.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        runner = stack.enter_context(asyncio.Runner())
        opened = contextlib.AsyncExitStack()
        stack.callback(lambda: runner.run(opened.aclose()))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-bench-spark-", dir=folder))
        with _on_cores(load.other_cores):
            target = runner.run(opened.enter_async_context(bench_target(None, folder, options)))
            report("a stream of events")
            streams = runner.run(_filled(target, load))
        master = f"local[{load.cores}]"
        stack.enter_context(_on_cores(load.spark_cores))
        with spark_session("bench", master, {**SETTINGS, "spark.local.dir": scratch}) as spark:
            return _Cases(spark, target, streams, load, Path(scratch), dict(_pairs(options))).rows(report)


def _pairs(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(options[::2], options[1::2], strict=True)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the measurement as an exception does, so that the server ends with it."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _on_cores(wanted: Sequence[int]) -> Iterator[None]:
    """Keep this process and what it starts on these cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class _Streams(NamedTuple):
    """The streams of a measurement."""

    source: StreamName
    """Its events are all in Tier 2 and covered by snapshots."""
    sink: StreamName
    beside: StreamName
    """What the writer beside Spark writes to."""


async def _filled(target: Target, load: Load) -> _Streams:
    """Create and fill them."""
    context = ClientContext(target.controller)
    try:
        await context.controller.create_scope(SCOPE)
        streams = _Streams(*[await new_stream(context, segments) for segments in (load.cores, load.cores, 1)])
        batch = [os.urandom(EVENT_BYTES) for _ in range(BATCH_EVENTS)]
        async with EventWriter(context, streams.source) as writer:
            for number in range(load.events // BATCH_EVENTS):
                await writer.ready()
                writer.write_events(batch, str(number))
            await writer.flush()
    finally:
        await context.close()
    assert target.admin is not None
    await flush_all(target.admin)
    await target.restart()  # each container writes a snapshot when it closes
    return streams


class _Meter:
    """Time, and processor time of Spark: of this process and its children but the server."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._sent_bytes = self._read_bytes()
        self._began = (time.perf_counter(), *self._cpu_s())

    def _cpu_s(self) -> tuple[float, float]:
        assert self._target.pid is not None
        server_s = _cpu_s(self._target.pid)
        return _cpu_s(os.getpid()) - server_s, server_s

    def _read_bytes(self) -> float:
        """Return the bytes of events that the server has sent to readers since it started."""
        assert self._target.admin is not None
        text = httpx.get(f"{self._target.admin}/metrics", timeout=60.0, trust_env=False).raise_for_status().text
        return metric_value(text, "tailrace_container_read_bytes_total")

    def stop(self) -> tuple[float, float, float, float]:
        """Return seconds, processor seconds of Spark, those of the server, and bytes of events that the server sent."""
        now = (time.perf_counter(), *self._cpu_s())
        elapsed, spark, server = (after - before for after, before in zip(now, self._began, strict=True))
        return elapsed, spark, server, self._read_bytes() - self._sent_bytes


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and of all below it, also of those that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):
        # A process that ends meanwhile is in the time of its parent.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, NotADirectoryError, ValueError):
            fields = Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()
            parents[int(name)], ticks[int(name)] = int(fields[1]), sum(int(fields[at]) for at in (11, 12, 13, 14))

    def is_below(each: int) -> bool:
        while each not in (0, pid):
            each = parents.get(each, 0)
        return each == pid

    return sum(ticks[each] for each in ticks if is_below(each)) / os.sysconf("SC_CLK_TCK")


class _Cases:
    """The cases, over one stream and one session of Spark."""

    def __init__(
        self,
        spark: Session,
        target: Target,
        streams: _Streams,
        load: Load,
        scratch: Path,
        server: dict[str, str],
    ) -> None:
        self._spark, self._target, self._load, self._scratch = spark, target, load, scratch
        self._source, self._sink, self._beside = streams
        assert target.process is not None
        self._tier2 = {
            "tier2": server.get("--tier2") or str(target.process.data / "tier2"),
            "tier2Endpoint": server.get("--s3-endpoint", ""),
        }

    def rows(self, report: Report) -> list[Row]:
        """Measure all cases."""
        report("startup")
        began = time.perf_counter()
        self._table().limit(1).collect()
        rows = [row(SYSTEM, "startup", "first row", time.perf_counter() - began, "s")]
        cases: dict[str, Callable[[int], None]] = {
            "batch-direct": lambda _: self._check(self._table(direct="always", **self._tier2)),
            "batch-store": lambda _: self._check(self._table()),
            "stream": self._stream,
            "sink": self._write,
            "parquet": lambda _: self._check(self._spark.read.parquet(self._parquet)),
        }
        for case, run in cases.items():
            if case == "sink":
                report("Parquet files to write and to read")
                self._table().select("value").write.parquet(self._parquet)
            report(case)
            rows += self._best(SYSTEM, case, run)
        report("batch-store without Spark")
        rows += self._best(CLIENT, "batch-store", lambda _: self._read_by_client())
        report("a writer alone, and beside batch-direct")
        return rows + self._writer_rows(cases["batch-direct"])

    def _writer_rows(self, read: Callable[[int], None]) -> list[Row]:
        """Return the latencies of a writer alone, and beside full reads of Tier 2 for at least as long."""
        found: dict[str, Latencies] = {}
        with SteadyWriter.start(self._target.controller, self._beside, self._load.other_cores) as writer:
            time.sleep(WRITER_WARM_UP_S)
            writer.latencies()
            time.sleep(WRITER_ALONE_S)
            found["alone"] = writer.latencies()
            began_s = time.perf_counter()
            while time.perf_counter() < began_s + WRITER_ALONE_S:
                read(0)
            found["beside batch-direct"] = writer.latencies()
        return [
            row(WRITER, case, name, value, "ms")
            for case, latencies in found.items()
            for name, value in latencies.ms.items()
        ]

    def _best(self, system: str, case: str, run: Callable[[int], None]) -> list[Row]:
        """Return the rows of the fastest run."""
        found = []
        for number in range(self._load.repeats):
            meter = _Meter(self._target)
            run(number)
            found.append(meter.stop())
        elapsed_s, spark_s, server_s, sent_bytes = min(found)
        megabytes = self._load.payload_bytes / 1e6
        return [
            row(system, case, "payload", megabytes / elapsed_s, "MB/s"),
            row(system, case, "payload for each second of a core", megabytes / max(spark_s, 0.01), "MB/s"),
            row(system, case, "cores given", self._load.cores if system == SYSTEM else 1, "cores"),
            row(system, case, f"{'Spark' if system == SYSTEM else 'client'} CPU", spark_s / elapsed_s, "cores"),
            row(system, case, "server CPU", server_s / elapsed_s, "cores"),
            row(system, case, "server sent", sent_bytes / 1e6, "MB"),
        ]

    @property
    def _parquet(self) -> str:
        return str(self._scratch / "parquet")

    def _table(self, **options: str) -> Frame:
        given = {"controller": self._target.controller, "stream": str(self._source), **options}
        return self._spark.read.format("tailrace").options(**given).load()

    def _check(self, frame: Frame) -> None:
        """Read all rows. Raises DataLossError: they are not all events, with their bytes."""
        (found,) = frame.selectExpr(*TOTALS).collect()
        self._expect(int(found[0]), int(found[1] or 0))

    def _expect(self, events: int, size: int) -> None:
        if (events, size) != (self._load.events, self._load.payload_bytes):
            raise DataLossError(
                f"{events} events of {size} bytes were found, {self._load.events} of {self._load.payload_bytes} exist"
            )

    def _stream(self, number: int) -> None:
        """Read the stream by a query from its beginning to its tail."""
        counted: list[Any] = []

        def count(batch: Frame, _: int) -> None:
            counted.extend(batch.selectExpr(*TOTALS).collect())

        source = self._spark.readStream.format("tailrace")
        query = (
            source.options(controller=self._target.controller, stream=str(self._source))
            .load()
            .writeStream.foreachBatch(count)
            .option("checkpointLocation", str(self._scratch / f"checkpoint-{number}"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self._expect(sum(each[0] for each in counted), sum(each[1] or 0 for each in counted))

    def _write(self, number: int) -> None:
        """Write the rows of Parquet files into a stream, exactly once; ends when the events can be read."""
        frame = self._spark.read.parquet(self._parquet)
        given = {"controller": self._target.controller, "stream": str(self._sink), "query": "bench"}
        frame.write.format("tailrace").options(**given, batch=number).mode("append").save()
        with BlockingClient(self._target.controller) as client:
            size = sum(client.streams.tail(self._sink).positions.values())
        expected = (number + 1) * self._load.events * (EVENT_BYTES + HEADER_BYTES)
        if size != expected:
            raise DataLossError(f"{number + 1} writes left {size} bytes in {self._sink}, not {expected}")

    def _read_by_client(self) -> None:
        """Read the stream by our client, one segment after the other."""
        events = size = 0
        with BlockingClient(self._target.controller) as client:
            for piece in client.slices(self._source):
                for found in client.read_slice(piece):
                    events += len(found)
                    size += sum(map(len, found))
        self._expect(events, size)
