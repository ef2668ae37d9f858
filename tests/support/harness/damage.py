"""Streams that are written and read exactly while stored data of their server are damaged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.pods import until
from harness.server import Server
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName
from tailrace.cluster.segment_mapping import container_of
from tailrace.common.errors import TailraceError, UnavailableError

BESIDE_BYTES = 100
"""Of an event of the other streams, which are read again and again."""
WITHIN_S = 600.0
"""For everything that is waited for; the machine may be busy."""
PAUSE_S = 0.03
"""Between two events of a stream, and two reads of it: other tests share the machine."""


@dataclass
class Traffic:
    """A stream of one segment, whose writer numbers its events; ``rounds`` counts whole reads of it that were exact."""

    stream: StreamName
    event_bytes: int = BESIDE_BYTES
    acknowledged: int = 0
    rounds: int = 0

    @property
    def segment(self) -> str:
        return self.stream.segment(0)

    def event(self, number: int) -> bytes:
        head = f"{self.stream.stream}:{number};".encode()
        return (head * self.event_bytes)[: self.event_bytes]

    def number_of(self, data: bytes) -> int:
        number = int(data[: data.index(b";")].partition(b":")[2])
        assert data == self.event(number), "these bytes were never an event of this stream"
        return number

    async def create(self, client: Client) -> None:
        await client.streams.create_stream(self.stream, StreamConfig(scaling=ScalingPolicy.fixed(1)))

    async def write(self, client: Client, stopping: asyncio.Event) -> None:
        async with client.writer(self.stream) as writer:
            while not stopping.is_set():
                await writer.write_event(self.event(self.acknowledged), "key")
                self.acknowledged += 1
                await asyncio.sleep(PAUSE_S)

    async def read(self, client: Client, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            before = self.acknowledged
            with contextlib.suppress(UnavailableError):  # the server is not there for a moment
                found = await self.numbers(client)
                assert found == list(range(len(found))), f"{self.stream}: lost, doubled or reordered"
                assert len(found) >= before, f"{self.stream}: {before} were acknowledged, {len(found)} are there"
                self.rounds += 1
            await asyncio.sleep(PAUSE_S)

    async def numbers(self, client: Client) -> list[int]:
        """All events from the head on."""
        pieces = await client.slices(self.stream)
        batches = [events for piece in pieces async for events in client.read_slice(piece)]
        return [self.number_of(each) for events in batches for each in events]


@dataclass
class Bench:
    """A server, the stream whose data are damaged, and those beside it."""

    server: Server
    containers: int
    rng: random.Random
    victim: Traffic
    beside: list[Traffic] = field(default_factory=list)
    is_victim_stuck: bool = False
    """Whether the writer of the damaged stream waits until the damage is gone, or what it wrote is given up."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def objects(self) -> Path:
        """Tier 2."""
        return self.server.folder / "objects"

    @property
    def container(self) -> int:
        return container_of(self.victim.segment, self.containers)

    @contextlib.asynccontextmanager
    async def load(self, client: Client) -> AsyncIterator[None]:
        """Write to all streams and read those beside; fails when one of them fails. All is acknowledged at the end."""
        self._stopping.clear()
        every = (self.victim, *self.beside)
        work = [traffic.write(client, self._stopping) for traffic in every]
        work += [traffic.read(client, self._stopping) for traffic in self.beside]
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            await self.progress(*every)
            yield
            await self.progress()
            self._stopping.set()
            async with asyncio.timeout(WITHIN_S):
                await asyncio.gather(*tasks[self.is_victim_stuck :])
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            assert end is None or isinstance(end, asyncio.CancelledError), repr(end)

    async def progress(self, *writers: Traffic) -> None:
        """Each writer (those beside the damage, if none is named) hears of an event, each stream beside is read."""
        writers = writers or tuple(self.beside)
        events = [each.acknowledged for each in writers]
        rounds = [each.rounds for each in self.beside]
        await until(
            "writers and readers go on",
            lambda: (
                all(each.acknowledged > count for each, count in zip(writers, events, strict=True))
                and all(each.rounds > count for each, count in zip(self.beside, rounds, strict=True))
            ),
            WITHIN_S,
        )

    async def health(self) -> dict[str, Any]:
        """State and reason of the container."""
        found: dict[str, Any] = (await self.server.ask("/v1/health"))["containers"][str(self.container)]
        return found

    async def wait_for_health(self, *reasons: str) -> None:
        """Wait until health gives a reason with these words, and the metric counts one segment; without: neither."""

        async def is_shown() -> bool:
            reason = (await self.health())["reason"]
            (status,) = [each for each in await self.containers_listed() if each["container_id"] == self.container]
            shown = all(each in reason for each in reasons) if reasons else not reason
            return shown and status["details"]["damaged_segments"] == bool(reasons)

        await until(f"health says {reasons or 'nothing'}", is_shown, WITHIN_S)

    async def containers_listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.server.ask("/v1/containers")
        return found

    async def chunks(self, segment: str) -> list[dict[str, Any]]:
        """What `tailrace inspect chunks` lists."""
        words = ("inspect", "chunks", segment, "--admin", self.server.admin, "--json")
        found: list[dict[str, Any]] = json.loads(await self.command(*words))
        return found

    async def command(self, *arguments: str, code: int = 0) -> str:
        """Standard output of a command, or standard error of one that fails."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tailrace.cli", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == code, f"{arguments}: {err.decode()}{out.decode()[:20_000]}"
        return (out if out.strip() else err).decode()

    async def verify(self) -> list[dict[str, Any]]:
        """The problems of a folder that is damaged."""
        words = ("inspect", "verify", "--data", str(self.server.data), "--json")
        problems: list[dict[str, Any]] = json.loads(await self.command(*words, code=1))["problems"]
        assert problems
        return problems

    def reported(self, segment: str, place: str) -> None:
        """The log names the place, and requests of no other segment met damage."""
        lines = self.server.log_events("data damaged")
        assert {line["segment"] for line in lines} == {segment}
        assert all(place in line["reason"] for line in lines), lines


async def refusal(call: Callable[[], Awaitable[object]], place: str) -> None:
    """Wait until a call fails with an error that names a place. Fails when it succeeds."""

    async def is_named() -> bool:
        try:
            answer = await call()
        except TailraceError as error:
            return place in str(error)
        raise AssertionError(f"{place} is damaged, and its bytes were served: {answer!r:.200}")

    await until(f"an error names {place}", is_named, WITHIN_S)


def flip(path: Path, offset: int, bit: int = 3) -> None:
    """Change one bit of a file; the same call takes it back."""
    with path.open("r+b") as file:
        file.seek(offset)
        (value,) = file.read(1)
        file.seek(offset)
        file.write(bytes([value ^ 1 << bit]))
