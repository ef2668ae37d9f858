"""Writers that each wait for every acknowledgement: how long none came, and what was stored in the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from harness.pods import until
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName

PAUSE_S = 0.01


@dataclass
class SteadyWriter:
    """One stream of one segment, one event at a time."""

    stream: StreamName
    sent: int = 0
    acknowledged_at_s: list[float] = field(default_factory=list)

    async def write(self, client: Client) -> None:
        """Write numbers until cancelled."""
        loop = asyncio.get_running_loop()
        async with client.writer(self.stream) as writer:
            while True:
                number, self.sent = self.sent, self.sent + 1
                await writer.write_event(str(number).encode(), "key")
                self.acknowledged_at_s.append(loop.time())
                await asyncio.sleep(PAUSE_S)

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """The longest time without an acknowledgement."""
        times = [since_s, *(at for at in self.acknowledged_at_s if since_s <= at <= until_s), until_s]
        return max(after - before for before, after in itertools.pairwise(times))


@dataclass
class SteadyWriters:
    """As many streams as are wanted, over all containers."""

    client: Client
    writers: list[SteadyWriter]

    @classmethod
    async def create(cls, client: Client, streams: int) -> SteadyWriters:
        """Make the streams, in a scope of their own."""
        scope = f"steady-{uuid.uuid4().hex[:8]}"
        await client.streams.create_scope(scope)
        made = []
        for number in range(streams):
            stream = StreamName(scope, f"s{number}")
            await client.streams.create_stream(stream, StreamConfig(scaling=ScalingPolicy.fixed(1)))
            made.append(SteadyWriter(stream))
        return cls(client, made)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[SteadyWriters]:
        """Write while the block runs; fails when a writer fails."""
        tasks = [asyncio.ensure_future(writer.write(self.client)) for writer in self.writers]
        try:
            await self.progress()
            yield self
            await self.progress()
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            assert end is None or isinstance(end, asyncio.CancelledError), repr(end)

    async def progress(self, within_s: float = 60.0) -> None:
        """Wait until every writer heard of another event."""
        before = [len(writer.acknowledged_at_s) for writer in self.writers]
        await until(
            "every writer hears of another event",
            lambda: all(len(w.acknowledged_at_s) > count for w, count in zip(self.writers, before, strict=True)),
            within_s,
        )

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time without an acknowledgement of any writer since then."""
        now_s = asyncio.get_running_loop().time()
        return max(writer.longest_gap_s(since_s, now_s) for writer in self.writers)

    async def check(self, client: Client) -> None:
        """Everything that was acknowledged is there once and in order; what was under way last may be, too."""
        for writer in self.writers:
            pieces = await client.slices(writer.stream)
            found = [int(e) for piece in pieces async for events in client.read_slice(piece) for e in events]
            acknowledged = len(writer.acknowledged_at_s)
            assert found == list(range(len(found))), f"{writer.stream}: lost, doubled or reordered: {_odd(found)}"
            assert acknowledged <= len(found) <= writer.sent, (
                f"{writer.stream}: {acknowledged} of {writer.sent} acknowledged, {len(found)} stored"
            )


def _odd(found: list[int]) -> list[int]:
    """Where a sequence first is none."""
    at = next(index for index, number in enumerate(found) if number != index)
    return found[max(0, at - 3) : at + 5]
