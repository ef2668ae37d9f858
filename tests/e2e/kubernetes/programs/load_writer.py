"""Writes numbered events of some routing keys at a steady rate until SIGTERM, then reports what is durable.

usage: load_writer.py CONTROLLER SCOPE/STREAM NAME KEYS EVENTS_PER_SECOND EVENT_BYTES
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from history import Event, encode
from sequences import Pauses
from telling import report_for_ever, stop_on_sigterm, tell

from tailrace.client import Client, EventWriter, StreamName
from tailrace.common.errors import TailraceError

PACE_S = 0.02
FLUSH_DEADLINE_S = 180.0
START_RETRY_S = 0.2


@dataclass
class Load:
    """The events of one writer."""

    name: str
    keys: int
    rate: float
    """Events per second; 0: as many as are taken."""
    length_bytes: int
    written: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    pauses: Pauses = field(default_factory=Pauses)
    first_s: float = 0.0

    async def write(self, writer: EventWriter, stopping: asyncio.Event) -> None:
        """Until it is to stop."""
        loop = asyncio.get_running_loop()
        began_s, sent, batch = loop.time(), 0, 100
        while not stopping.is_set():
            if self.rate:
                batch = int((loop.time() - began_s) * self.rate) - sent
            for _ in range(batch):
                await writer.ready()
                self._one(writer, f"{self.name}-{sent % self.keys}")
                sent += 1
            await asyncio.sleep(PACE_S if self.rate else 0)

    def _one(self, writer: EventWriter, key: str) -> None:
        number = self.written[key]
        self.written[key] += 1
        done = writer.write_event(encode(Event(key, number, ""), self.length_bytes), key)
        done.add_done_callback(lambda future: self._done(key, future))

    def _done(self, key: str, done: asyncio.Future[None]) -> None:
        if done.cancelled() or (error := done.exception()) is not None:
            self.failed["cancelled" if done.cancelled() else type(error).__name__] += 1
            return
        now_s = time.time()
        self.first_s = self.first_s or now_s
        self.acknowledged[key] += 1
        self.pauses.acknowledged(key, now_s)

    async def all_done(self) -> None:
        """Everything handed over was acknowledged or failed; a flush ends a little before the last callbacks run."""
        while self.acknowledged.total() + self.failed.total() < self.written.total():  # noqa: ASYNC110  # few, at the end
            await asyncio.sleep(PACE_S)

    def progress(self) -> dict[str, Any]:
        """For the line of every second."""
        return {
            "written": self.written.total(),
            "acknowledged": self.acknowledged.total(),
            "failed": dict(self.failed),
            "first": round(self.first_s, 3),
        }


async def started(client: Client, stream: StreamName) -> EventWriter:
    """A writer, as soon as there is such a stream."""
    while True:
        try:
            return await client.writer(stream).start()
        except TailraceError as error:
            tell("waiting", error=f"{type(error).__name__}: {error}"[:300])
            await asyncio.sleep(START_RETRY_S)


async def main() -> None:
    """Write, flush, tell."""
    controller, stream, name, keys, rate, length = sys.argv[1:]
    load = Load(name, int(keys), float(rate), int(length))
    stopping = stop_on_sigterm()
    async with Client(controller) as client:
        writer = await started(client, StreamName(*stream.split("/")))
        reporting = asyncio.create_task(report_for_ever(load.progress))
        try:
            await load.write(writer, stopping)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_DEADLINE_S):
                    await writer.flush()
                    await load.all_done()
        finally:
            reporting.cancel()
        tell(
            "end",
            **load.progress(),
            keys=dict(load.written),
            acknowledged_of=dict(load.acknowledged),
            pauses=load.pauses.report(),
        )
        await writer.abandon()


if __name__ == "__main__":
    asyncio.run(main())
