"""Writes to many streams in turn, at a steady rate of all together, until SIGTERM; then reports what is durable.

usage: write_spread.py CONTROLLER SCOPE PREFIX STREAMS EVENTS_PER_SECOND EVENT_BYTES
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from telling import report_for_ever, stop_on_sigterm, tell

from tailrace.client import Client, EventWriter, StreamName

PACE_S = 0.02
FLUSH_DEADLINE_S = 180.0


@dataclass
class Spread:
    """What was written, and what became of it."""

    written: int = 0
    acknowledged: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    async def write(self, writers: list[EventWriter], rate: float, length: int, stopping: asyncio.Event) -> None:
        """Until it is to stop."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not stopping.is_set():
            for _ in range(int((loop.time() - began_s) * rate) - self.written):
                writer = writers[self.written % len(writers)]
                await writer.ready()
                self.written += 1
                writer.write_event(b"x" * length).add_done_callback(self._done)
            await asyncio.sleep(PACE_S)

    def _done(self, done: asyncio.Future[None]) -> None:
        if done.cancelled() or (error := done.exception()) is not None:
            self.failed["cancelled" if done.cancelled() else type(error).__name__] += 1
        else:
            self.acknowledged += 1

    def progress(self) -> dict[str, Any]:
        """For the line of every second."""
        return {"written": self.written, "acknowledged": self.acknowledged, "failed": dict(self.failed)}


async def main() -> None:
    """Write, flush, tell."""
    controller, scope, prefix, count, rate, length = sys.argv[1:]
    spread, stopping = Spread(), stop_on_sigterm()
    async with Client(controller) as client:
        writers = [await client.writer(StreamName(scope, f"{prefix}{number}")).start() for number in range(int(count))]
        reporting = asyncio.create_task(report_for_ever(spread.progress))
        try:
            await spread.write(writers, float(rate), int(length), stopping)
            async with asyncio.timeout(FLUSH_DEADLINE_S):
                for writer in writers:
                    await writer.flush()
        finally:
            reporting.cancel()
        tell("end", **spread.progress())
        for writer in writers:
            await writer.abandon()


if __name__ == "__main__":
    asyncio.run(main())
