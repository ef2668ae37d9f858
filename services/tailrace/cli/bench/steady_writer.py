"""A writer beside a measurement: single events at a steady rate, in a process of its own (docs/performance.md#scales).

It runs as a program with the arguments CONTROLLER STREAM EVENTS_PER_S CORES (separated by commas). For each line on
its standard input it prints one line of JSON, the latencies since the line before; it ends with its input, and with a
line that has the number of all events, which are durable then.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.pacing import Pace
from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

RATE_PER_S: Final = 500
EVENT_BYTES: Final = 100
END_DEADLINE_S: Final = 30.0
_PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds from when an event was due until it was durable, and how many there were."""

    events: int
    ms: dict[str, float]
    """By the names of percentiles (p50, p99, p99.9) and "max"; empty when there was no event."""


class SteadyWriter:
    """The program, as its parent sees it: a context manager, in which it writes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.written = 0
        """How many events it has written, once it has ended."""

    @classmethod
    def start(cls, controller: str, stream: StreamName, cores: Collection[int]) -> Self:
        """Start it on these cores."""
        arguments = (controller, str(stream), str(RATE_PER_S), ",".join(map(str, sorted(cores))))
        command = (sys.executable, "-m", __name__, *arguments)
        return cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and raise IllegalStateError when one of its writes failed."""
        try:
            last, _ = self._process.communicate(timeout=END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            last, _ = self._process.communicate()
        if kind is None:
            if self._process.returncode:
                raise IllegalStateError(f"the steady writer failed with exit code {self._process.returncode}")
            self.written = json.loads(last)["written"]

    def latencies(self) -> Latencies:
        """Return the latencies since the last call. Raises IllegalStateError when it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            return Latencies(**json.loads(self._process.stdout.readline()))
        except (BrokenPipeError, json.JSONDecodeError) as error:
            raise IllegalStateError("the steady writer has ended") from error


class _Load:
    """Events that are due at a steady rate, whatever became of those before."""

    def __init__(self, writer: EventWriter, rate_per_s: int) -> None:
        self._writer = writer
        self._rate_per_s = rate_per_s
        self._event = os.urandom(EVENT_BYTES)
        self._latencies = LatencyHistogram()
        self.written = 0

    async def write(self) -> None:
        """Write until cancelled."""
        loop = asyncio.get_running_loop()
        pace = Pace(loop.time(), self._rate_per_s)
        while True:
            for index in range(self.written, pace.due_by(loop.time())):
                due_s = pace.due_at_s(index)
                self._writer.write_event(self._event).add_done_callback(partial(self._done, due_s))
                self.written = index + 1
            await self._writer.ready()
            await asyncio.sleep(max(0.0, pace.due_at_s(self.written) - loop.time()))

    def _done(self, due_s: float, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() is None:  # the flush at the end raises it
            self._latencies.record(asyncio.get_running_loop().time() - due_s)

    def taken(self) -> Latencies:
        """Return what was measured since the last call."""
        found, self._latencies = self._latencies, LatencyHistogram()
        ms = {name: found.percentile_s(share) * 1000 for name, share in _PERCENTILES.items()} if found.count else {}
        if found.count:
            ms["max"] = found.maximum_s * 1000
        return Latencies(found.count, ms)


async def _run(controller: str, stream: StreamName, rate_per_s: int) -> None:
    asked = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    context = ClientContext(controller)
    try:
        async with EventWriter(context, stream) as writer:
            load = _Load(writer, rate_per_s)
            writing = asyncio.create_task(load.write(), name="steady writer")
            while await asked.readline():
                taken = load.taken()
                print(json.dumps({"events": taken.events, "ms": taken.ms}), flush=True)
            writing.cancel()
            await asyncio.wait([writing])
            await writer.flush()
            print(json.dumps({"written": load.written}), flush=True)
    finally:
        await context.close()


if __name__ == "__main__":
    address, name, rate, cores = sys.argv[1:]
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    asyncio.run(_run(address, StreamName.parse(name), int(rate)))
