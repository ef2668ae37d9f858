"""Power cuts of a whole server: strace records it while a client writes; see test_power_cut for the log alone."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
import signal
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.server import Server
from harness.workload import create_stream
from sim import SimProcess, SimWorld
from sim.knobs import silent_logs
from sim.recorded import Call, Event, Replay, events_below, read_calls, strace_command
from tailrace.client import Client, StreamName
from tailrace.cluster.segment_mapping import container_of
from tailrace.kernel import BlockCache, scan_frames
from tailrace.log.file import FileLog
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.wire import commands
from tailrace.wire.codec import decode

CUTS = {"ci": 40, "full": 1000}
STREAM = StreamName("power", "events")
EVENTS = 300
CONTAINERS = 2
SMALL_LOGS = """
from tailrace.common import limits
limits.LOG_FILE_BYTES = 512 * 1024
limits.LOG_FRAME_MAX_BYTES = 64 * 1024
limits.LOG_RESERVE_BYTES = 16 * 1024
limits.FLUSH_INTERVAL_S = 3600.0
"""
LOG: dict[str, Any] = {"file_bytes": 512 * 1024, "max_frame_bytes": 64 * 1024, "reserve_bytes": 16 * 1024}
HELLO_CODE = b"\xff\xff\xff\x81"


def event(number: int) -> bytes:
    """The events, each with a mark of its own."""
    return b"<event %06d>" % number + b"." * (number * 53 % 700)


@dataclass
class Recording:
    """A recorded server: what it did to its data folder, and when which event was acknowledged."""

    data: str
    segment: str
    events: list[Event]
    acknowledged: list[tuple[float, int]]
    """When an acknowledgement began to leave, and how many events it covers; rising."""

    def covered(self, at_s: float) -> int:
        """How many events were acknowledged before a time."""
        place = bisect_left(self.acknowledged, (at_s, 0))
        return self.acknowledged[place - 1][1] if place else 0


async def _write(client: Client) -> None:
    """Some events one at a time, some pipelined, some in batches."""
    async with client.writer(STREAM) as writer:
        for number in range(EVENTS // 3):
            await writer.write_event(event(number), routing_key="k")
        pending = [writer.write_event(event(number), routing_key="k") for number in range(EVENTS // 3, EVENTS)]
        await asyncio.gather(*pending)


async def _record(root: Path) -> Recording:
    (root / "site").mkdir()
    (root / "site" / "sitecustomize.py").write_text(SMALL_LOGS)
    output = root / "strace"
    server = Server(
        root / "server",
        options=("--containers", str(CONTAINERS)),
        environment={"PYTHONPATH": str(root / "site")},
        prefix=strace_command(output, string_bytes=80_000),
    )
    async with server:
        await server.start()
        process = json.loads((server.folder / "ready-1.json").read_text())["pid"]
        try:
            async with Client(server.controller) as client:
                await create_stream(client, STREAM, 1)
                await _write(client)
                await client.streams.tail(STREAM)  # it answers: the reply before has returned, and strace has seen so
        finally:
            os.kill(process, signal.SIGKILL)  # strace would let go of it
        await server.wait_gone()
    calls = read_calls(output)
    data = str(server.data)
    return Recording(data, STREAM.segment(0), events_below(calls, data), _acknowledgements(calls))


def _acknowledgements(calls: list[Call]) -> list[tuple[float, int]]:
    """From the DataAppended replies of the connection that has most of them."""
    streams: dict[str, list[tuple[float, bytes]]] = {}
    for call in calls:
        if call.name in ("sendto", "sendmsg", "write", "writev") and call.path.startswith("socket:"):
            streams.setdefault(call.path, []).append((call.started_s, b"".join(call.texts)[: call.result]))
    writers: dict[bytes, list[tuple[float, int]]] = {}
    for sent in streams.values():
        if not sent[0][1].startswith(HELLO_CODE):
            continue
        whole = bytearray()
        for at_s, data in sent:
            whole += data
            found, position = scan_frames(whole, 0, len(whole), 1 << 24)
            for code, start, end in found:
                if code == commands.DataAppended.CODE:
                    reply = decode(code, bytes(whole[start:end]))
                    assert isinstance(reply, commands.DataAppended)
                    writers.setdefault(bytes(reply.writer_id), []).append((at_s, reply.event_number))
            del whole[:position]
    replies = max(writers.values(), key=lambda replies: replies[-1][1])
    base = replies[0][1] - 1  # the first event was written alone; event numbers begin at 0 or 1
    return [(at_s, number - base) for at_s, number in replies]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return asyncio.run(_record(tmp_path_factory.mktemp("power")))


@pytest.mark.timeout(1800)
def test_no_acknowledgement_leaves_before_its_sync(recording: Recording) -> None:
    effects = [item for item in recording.events if not item.begins]
    writes = [item for item in effects if item.call.name.startswith("pwrite")]
    syncs = [item.call for item in effects if item.call.name == "fdatasync"]
    durable_s = {}
    for number in range(EVENTS):
        mark = event(number)
        write = next((item for item in writes if any(mark in text for text in item.call.texts)), None)
        if write is not None:  # else it lies across two frames
            path, at_s = write.call.path, write.at_s
            durable_s[number] = min(call.ended_s for call in syncs if call.path == path and call.started_s >= at_s)
    assert len(durable_s) > 0.95 * EVENTS
    assert recording.acknowledged[-1][1] == EVENTS
    for at_s, count in recording.acknowledged:
        early = [number for number, synced_s in durable_s.items() if number < count and synced_s > at_s]
        assert not early, f"{count} events were acknowledged before these were synced: {early}"


@pytest.mark.timeout(1800)
def test_directories_are_synced_after_creates_and_renames(recording: Recording) -> None:
    effects = [item for item in recording.events if not item.begins]
    first_s = recording.acknowledged[0][0]
    checked: Counter[str] = Counter()
    for item in effects:
        call = item.call
        if call.name == "mkdir" and "/log/" in call.texts[-1].decode():
            parent = str(Path(call.texts[-1].decode()).parent)
        elif call.name == "rename" and call.texts[1].endswith(b".log") and item.at_s < first_s:
            parent = str(Path(call.texts[1].decode()).parent)
        else:
            continue
        assert any(
            other.call.name == "fsync"
            and other.call.path == parent
            and item.at_s <= other.call.started_s
            and other.call.ended_s <= first_s
            for other in effects
        ), f"{parent} was not synced after {call.name}"
        checked[call.name] += 1
    print(f"synced in time: {checked}")
    assert checked["mkdir"] >= CONTAINERS, "the folder of each log"
    assert checked["rename"] >= CONTAINERS, "the first file of each log"


@pytest.mark.timeout(1800)
def test_any_power_cut_recovers_what_was_acknowledged(recording: Recording, test_seed: int, test_profile: str) -> None:
    rng = random.Random(test_seed)
    first = next(place for place, item in enumerate(recording.events) if item.at_s >= recording.acknowledged[0][0])
    cuts = sorted(rng.choices(range(first, len(recording.events)), k=CUTS[test_profile]))
    with SimWorld(test_seed) as live, silent_logs():
        replay = Replay(live.disk)
        done = 0
        for number, cut in enumerate(cuts):
            for item in recording.events[done:cut]:
                replay.apply(item)
            done = cut
            acknowledged = recording.covered(recording.events[cut].at_s)
            _check_after_cut(live, recording, test_seed + number, acknowledged)


def _check_after_cut(live: SimWorld, recording: Recording, seed: int, acknowledged: int) -> None:
    with SimWorld(seed) as world:
        world.disk.directories = copy.deepcopy(live.disk.directories)
        world.disk.cut_power()
        process = world.process("next")
        content = world.run(_in(process, _content(world, process, recording)))
    assert content[: len(event(0)) + 8] in (b"", content[:8] + event(0))
    position = 0
    for number in range(EVENTS):
        if position == len(content):
            assert number >= acknowledged, f"event {number} is lost, {acknowledged} were acknowledged"
            return
        expected = event(number)
        assert content[position + 8 : position + 8 + len(expected)] == expected
        position += 8 + len(expected)
    assert position == len(content)


async def _in(process: SimProcess, work: object) -> bytes:
    return await process.spawn(work)  # type: ignore[arg-type]


async def _content(world: SimWorld, process: SimProcess, recording: Recording) -> bytes:
    number = container_of(recording.segment, CONTAINERS)
    log = FileLog(world.disk.attach(process), f"{recording.data}/log/{number}", number, **LOG)
    store = world.store.attach(process)
    cache = CacheManager(BlockCache(8 << 20))
    ports = ContainerPorts(
        log=log, store=store, cache=cache, clock=world.clock(), entropy=world.entropy("next"), cluster_id=bytes(16)
    )
    container = Container(number, 1 << 20, ports)
    await container.start(bytes(16))
    length = (await container.info(recording.segment)).length
    content = await container.read_exact(recording.segment, 0, length) if length else b""
    await container.close()
    return content
