"""Run the demo: write and read a stream, kill and restart the server midway, check the events."""

from __future__ import annotations

import asyncio
import datetime
import functools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import httpx

from tailrace.cli.demo.check import DeliveryCheck
from tailrace.cli.demo.flights import Flight
from tailrace.cli.demo.report import Figures, Tiers, percentile
from tailrace.cli.demo.server import ServerProcess
from tailrace.cli.session import tidy_up
from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig
from tailrace.common.task_groups import run_all, running
from tailrace.storage.folder_objects import FolderObjects

SCOPE: Final = "demo"
SEGMENTS: Final = 4
READERS: Final = 2
BURST_EVENTS: Final = 100
"""Events written between two checks of the buffer."""
UNACKNOWLEDGED_EVENTS_MAX: Final = 2048
"""More events would only wait in queues, and their acknowledgement times would measure the queues."""
READ_TIMEOUT_MS: Final = 500
READ_BATCH_EVENTS: Final = 1000
QUIET_S: Final = 2.0
"""Wait for duplicates after all events arrived."""
STALL_S: Final = 120.0
"""After this time without an arrival, missing events count as lost."""
SHOW_INTERVAL_S: Final = 0.1
ADMIN_DEADLINE_S: Final = 10.0


class Display(Protocol):
    """Shows the progress of the run."""

    def stage(self, text: str) -> None:
        """Show the present step."""
        ...

    def progress(self, acknowledged: int, read: Sequence[int]) -> None:
        """Show the events acknowledged, and read by each reader."""
        ...


@dataclass(slots=True)
class _Progress:
    """The state of the run."""

    check: DeliveryCheck
    total: int
    acknowledged: int = 0
    read: list[int] = field(default_factory=lambda: [0] * READERS)
    last_arrival_s: float = 0.0
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    half_way: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    unacknowledged: int = 0

    def sent(self) -> None:
        """Count an event in flight."""
        self.unacknowledged += 1
        if self.unacknowledged >= UNACKNOWLEDGED_EVENTS_MAX:
            self.room.clear()

    def done(self, sent_s: float, future: asyncio.Future[None]) -> None:
        """Record that an event is acknowledged or has failed."""
        self.unacknowledged -= 1
        if self.unacknowledged <= UNACKNOWLEDGED_EVENTS_MAX // 2:
            self.room.set()
        if future.cancelled() or future.exception() is not None:
            return  # the writer's flush raises the error
        self.latencies_s.append(asyncio.get_running_loop().time() - sent_s)
        self.acknowledged += 1
        if self.acknowledged >= self.total // 2:
            self.half_way.set()

    def arrived(self, reader: int, events: Sequence[bytes]) -> None:
        """Check events that a reader returned."""
        for event in events:
            self.check.arrive(event)
        self.read[reader] += len(events)
        self.last_arrival_s = asyncio.get_running_loop().time()

    def finished(self) -> bool:
        """Return whether no more events are expected."""
        quiet_s = asyncio.get_running_loop().time() - self.last_arrival_s
        return quiet_s > (QUIET_S if self.check.distinct == self.total else STALL_S)


async def run_demo(events: Sequence[Flight], server: ServerProcess, data: Path, display: Display) -> Figures:
    """Start the server over the folder `data` and run the demo; the server still runs at the end."""
    display.stage("starting the server")
    endpoints = await server.start()
    context = ClientContext(endpoints.controller)
    try:
        loop = asyncio.get_running_loop()
        stream = StreamName(SCOPE, f"flights-{datetime.datetime.now():%Y%m%d-%H%M%S}")
        progress = _Progress(DeliveryCheck(events), len(events), last_arrival_s=loop.time())
        progress.room.set()
        readers = await _prepare(context, stream)
        display.stage(f"streaming through {stream}")
        started_s = loop.time()
        async with running(_watch(progress, display)):
            outage, written_s, *_ = await run_all(
                _kill_midway(server, progress, display),
                _write(context, stream, events, progress),
                *(_read(reader, number, progress) for number, reader in enumerate(readers)),
            )
        display.stage("done")
        display.progress(progress.acknowledged, progress.read)
        assert server.endpoints is not None
        tiers = await _tiers(server.endpoints.admin, data)
        return _figures(
            str(stream),
            events,
            progress,
            writing_s=written_s - started_s,
            started_s=started_s,
            outage=outage,
            tiers=tiers,
        )
    finally:
        await context.close()


def _figures(
    stream: str,
    events: Sequence[Flight],
    progress: _Progress,
    *,
    writing_s: float,
    started_s: float,
    outage: tuple[int, float],
    tiers: Tiers,
) -> Figures:
    ordered = sorted(progress.latencies_s)
    return Figures(
        stream=stream,
        events=len(events),
        payload_bytes=sum(len(event.data) for event in events),
        writing_s=writing_s,
        reading_s=progress.last_arrival_s - started_s,
        acknowledgement_p50_ms=percentile(ordered, 0.5) * 1000,
        acknowledgement_p99_ms=percentile(ordered, 0.99) * 1000,
        read_by=tuple(progress.read),
        killed_after=outage[0],
        outage_s=outage[1],
        tiers=tiers,
        verdict=progress.check.verdict(),
    )


async def _tiers(admin: str, data: Path) -> Tiers:
    """Return the bytes of the server's log, and of the objects in the folder of Tier 2."""
    async with httpx.AsyncClient(base_url=admin, timeout=ADMIN_DEADLINE_S) as client:
        reply = await client.get("/v1/containers")
    containers = reply.raise_for_status().json()
    objects = [info.length_bytes async for info in FolderObjects(data / "tier2").list("")]
    return Tiers(
        log_bytes=sum(container["log_bytes"] for container in containers),
        untiered_bytes=sum(container["untiered_bytes"] for container in containers),
        tier2_objects=len(objects),
        tier2_bytes=sum(objects),
    )


async def _prepare(context: ClientContext, stream: StreamName) -> list[EventReader]:
    """Create the stream and two readers of a group. Both join before they acquire segments, so they share them."""
    await context.controller.create_scope(stream.scope)
    await context.controller.create_stream(stream, StreamConfig(scaling=ScalingPolicy.fixed(SEGMENTS)))
    group = f"{stream.stream}-readers"
    await ReaderGroupManager(context, stream.scope).create(group, group_config({stream: None}))
    readers = [EventReader(context, stream.scope, group, f"reader-{number + 1}") for number in range(READERS)]
    for reader in readers:
        await reader.start()
    return readers


async def _watch(progress: _Progress, display: Display) -> None:
    while True:
        display.progress(progress.acknowledged, progress.read)
        await asyncio.sleep(SHOW_INTERVAL_S)


async def _write(context: ClientContext, stream: StreamName, events: Sequence[Flight], progress: _Progress) -> float:
    """Write all events; return the time of the last acknowledgement by the loop's clock."""
    loop = asyncio.get_running_loop()
    async with EventWriter(context, stream) as writer:
        for start in range(0, len(events), BURST_EVENTS):
            await progress.room.wait()
            await writer.ready()
            sent_s = loop.time()
            for event in events[start : start + BURST_EVENTS]:
                future = writer.write_event(event.data, event.key)
                progress.sent()
                future.add_done_callback(functools.partial(progress.done, sent_s))
        await writer.flush()
    return loop.time()


async def _read(reader: EventReader, number: int, progress: _Progress) -> None:
    try:
        while not progress.finished():
            batch = await reader.read_batch(READ_BATCH_EVENTS, READ_TIMEOUT_MS)
            if batch is not None:
                progress.arrived(number, batch.events)
    finally:
        await tidy_up(reader.close())


async def _kill_midway(server: ServerProcess, progress: _Progress, display: Display) -> tuple[int, float]:
    """Kill the server when half of the events are acknowledged, and start it again.

    Return how many were acknowledged then, and how long the server was down.
    """
    await progress.half_way.wait()
    loop = asyncio.get_running_loop()
    killed_after, killed_s = progress.acknowledged, loop.time()
    display.stage("the server was killed; starting it again")
    await server.kill()
    await server.start()
    display.stage("the server is back; streaming")
    return killed_after, loop.time() - killed_s
