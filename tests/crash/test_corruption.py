"""Damage on disk: a torn last frame recovers, a flipped bit is reported with its place, never served, never skipped."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.damage import flip
from harness.history import Event, History, encode
from harness.localobjects import LocalObjects
from harness.server import Server
from harness.workload import create_stream
from tailrace.client import NO_VERSION, Client, StreamName, TableEntry, group_config
from tailrace.client.control.tables import TableConfig
from tailrace.client.control.transport import GrpcTransport
from tailrace.client.hashing import key_position
from tailrace.client.reader.batch import SegmentSlice
from tailrace.client.tables import TableKeyParts
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.cluster.segment_mapping import container_of
from tailrace.common import names
from tailrace.common.errors import TailraceError, UnavailableError
from tailrace.common.real_ports import SystemClock
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.log.disk import RealDisk
from tailrace.log.frames import SECTOR_BYTES, FrameIdentity, FrameKind, decode_header, encode_frame
from tailrace.log.recovery import FileScan
from tailrace.log.scan import scan_directory
from tailrace.rpc import controller_pb2 as pb
from tailrace.storage.chunks import BLOCK_BYTES, BLOCK_STRIDE
from tailrace_operator.connections.controllers import Controllers
from tailrace_operator.kube.objects import STREAMS
from tailrace_operator.reconcile.outcome import READY, Condition, Status
from tailrace_operator.stream.reconcile import StreamReconciler

STREAM = StreamName("damage", "events")
SEGMENTS = 8
CONTAINERS = 4
EVENTS = 400
EVENT_BYTES = 5000
EVENT_HEADER_BYTES = 8
DAMAGED_READ_TIMEOUT_S = 5.0
HEALTHY_READ_DEADLINE_S = 120.0
ONE_CALL_S = 110.0
"""Less than what two requests one after the other took that were each repeated for a minute."""


class Written(NamedTuple):
    """A server that was killed after it acknowledged some events, and what it acknowledged."""

    server: Server
    history: History

    def container(self, number: int = 0) -> int:
        """The container of a segment of the stream."""
        return container_of(STREAM.segment(number), CONTAINERS)

    def container_without_metadata(self) -> int:
        """A container with segments of the stream, but without the controller's records of the stream."""
        records = container_of(StreamKey(*STREAM).table, CONTAINERS)
        return next(found for number in range(SEGMENTS) if (found := self.container(number)) != records)


async def write_events(client: Client, history: History) -> None:
    """Events of many keys, all acknowledged."""
    async with client.writer(STREAM) as writer:
        for number in range(EVENTS):
            await writer.ready()
            key = f"k{number % 20}"
            numbers = history.write(key)
            writer.write_event(encode(Event(key, numbers[0], ""), EVENT_BYTES), key)
            history.acknowledge(key, numbers)  # in a moment: the end of the block waits for all
            if number % 10 == 0:
                await writer.flush()  # so that there are many frames


@pytest.fixture
async def written(tmp_path: Path) -> AsyncIterator[Written]:
    """Events in every container's log; the server is dead."""
    async with Server(tmp_path, options=("--cache", "128MiB")) as server:
        await server.start()
        history = History()
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, SEGMENTS)
            await write_events(client, history)
        await server.kill()
        yield Written(server, history)


async def scans(server: Server, container: int) -> list[FileScan]:
    """The files of a container's log, in order of their frames."""
    found = await scan_directory(RealDisk(), str(server.data / "log" / str(container)), container)
    return sorted(found, key=lambda scan: (scan.first_sequence, scan.epoch))


def overwrite_zeros(path: Path, offset: int, data: bytes) -> None:
    """Write where nothing was written before."""
    with path.open("r+b") as file:
        file.seek(offset)
        assert not any(file.read(len(data))), "the log is not over where its last frame ends"
        file.seek(offset)
        file.write(data)


async def read_segments(client: Client) -> dict[str, list[bytes] | str]:
    """The events of each segment, or the error that its reader got."""
    found: dict[str, list[bytes] | str] = {}
    for piece in await client.slices(STREAM):
        found[piece.segment] = await read_piece(client, piece)
    return found


async def read_piece(client: Client, piece: SegmentSlice) -> list[bytes] | str:
    """The events of a slice; an error, or silence, ends it."""
    events: list[bytes] = []
    try:
        async with asyncio.timeout(DAMAGED_READ_TIMEOUT_S):
            async for batch in client.read_slice(piece):
                events += batch
    except (TailraceError, TimeoutError) as error:
        return f"{type(error).__name__} after {len(events)} events: {error}"
    return events


async def check_all(written: Written) -> None:
    """Everything that was acknowledged is there."""
    async with Client(written.server.controller) as client:
        segments = await read_segments(client)
        assert not [events for events in segments.values() if isinstance(events, str)]
        violations = written.history.check([events for events in segments.values() if not isinstance(events, str)])
        assert not violations, violations[:20]


# -- a torn last frame ------------------------------------------------------------------------------------------------


def torn_image(scan: FileScan, at: int, tear: str) -> bytes:
    """A frame that follows the last one of a file and was written in part."""
    raw = Path(scan.name).read_bytes()
    last = scan.sectors[-1] * SECTOR_BYTES
    header = decode_header(raw[last : last + SECTOR_BYTES], last)
    identity = FrameIdentity(header.container, header.epoch, header.nonce)  # type: ignore[union-attr]
    payload = bytes(range(1, 256)) * 20
    buffers, _ = encode_frame(
        identity,
        FrameKind.DATA,
        [memoryview(payload)],
        sequence=scan.next_sequence,
        acknowledged_through=scan.next_sequence - 1,
        log_start=0,
        offset=at,
    )
    image = bytearray(b"".join(bytes(buffer) for buffer in buffers))
    if tear == "end":
        image[-2 * SECTOR_BYTES - 100 :] = bytes(2 * SECTOR_BYTES + 100)
    elif tear == "middle":
        image[3 * SECTOR_BYTES : 5 * SECTOR_BYTES] = bytes(2 * SECTOR_BYTES)
    elif tear == "first sector":
        image[:SECTOR_BYTES] = bytes(SECTOR_BYTES)
    else:
        image[70:] = bytes(len(image) - 70)
    return bytes(image)


async def test_a_torn_last_frame_recovers(written: Written) -> None:
    server = written.server
    for tear in ("end", "middle", "first sector", "header"):
        scan = (await scans(server, written.container()))[-1]
        image = torn_image(scan, scan.end_offset, tear)
        overwrite_zeros(Path(scan.name), scan.end_offset, image)
        await server.start()
        assert (await server.ask("/v1/health"))["ready"], tear
        await check_all(written)
        await server.kill()


# -- a flipped bit in a frame ------------------------------------------------------------------------------------------


def inspect(server: Server, *arguments: str) -> Any:
    """What `tailrace inspect` prints with ``--json``."""
    ended = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "inspect", *arguments, "--admin", server.admin, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


async def test_a_flipped_bit_in_a_frame_stops_its_container(written: Written, test_seed: int) -> None:
    """It names file and offset; the other containers serve; with the bit back, everything is there."""
    server, rng = written.server, random.Random(test_seed)
    damaged = written.container_without_metadata()
    scan = next(scan for scan in await scans(server, damaged) if len(scan.sectors) > 4)
    index = rng.randrange(1, len(scan.sectors) - 1)
    start, end = (scan.sectors[at] * SECTOR_BYTES for at in (index, index + 1))
    place = rng.randrange(start, end)
    flip(Path(scan.name), place)

    await server.start()
    health = await server.ask("/v1/health")
    assert not health["ready"]
    stopped = {name: state for name, state in health["containers"].items() if state["state"] != "running"}
    assert list(stopped) == [str(damaged)], health
    reason = stopped[str(damaged)]["reason"]
    assert scan.name in reason, reason
    assert f"offset {start}" in reason, reason
    listed = {item["container_id"]: item for item in inspect(server, "containers")}
    assert listed[damaged]["state"] == "stopped"
    assert listed[damaged]["reason"] == reason
    assert [line["reason"] for line in server.log_events("container_stopped")] == [reason]
    await check_others(written, damaged)
    await server.kill()

    flip(Path(scan.name), place)
    await server.start()
    await check_all(written)


async def check_others(written: Written, damaged: int) -> None:
    """Segments of the other containers are read whole and written to, those of the damaged one are not served."""
    async with Client(written.server.controller) as client:
        segments = await client.context.controller.current_segments(STREAM)
        healthy = History()
        found: list[list[bytes]] = []
        for segment in segments:
            name = STREAM.segment(segment.identifier)
            if container_of(name, CONTAINERS) == damaged:
                with pytest.raises((TailraceError, TimeoutError)):
                    async with asyncio.timeout(DAMAGED_READ_TIMEOUT_S):
                        await client.context.segments.segment_info(name)
                continue
            low, high = segment.key_range
            keys = [key for key in written.history.keys if low <= key_position(key) < high]
            for key in keys:
                await write_one(client, written.history, key)
                healthy.keys[key] = written.history.keys[key]
            length = (await client.context.segments.segment_info(name)).length
            events = await read_piece(client, SegmentSlice(name, 0, length))
            assert isinstance(events, list), events
            found.append(events)
        assert healthy.keys
        assert len(healthy.keys) < len(written.history.keys)
        assert not healthy.check(found)


async def write_one(client: Client, history: History, key: str) -> None:
    """One more event of a key, acknowledged."""
    async with client.writer(STREAM) as writer:
        numbers = history.write(key)
        await writer.write_event(encode(Event(key, numbers[0], ""), EVENT_BYTES), key)
        history.acknowledge(key, numbers)


async def test_calls_and_writes_that_need_a_damaged_container_end_with_the_reason(written: Written) -> None:
    """Groups on a healthy stream: made, or refused in the time that a call has; the command line says what waits."""
    server, damaged = written.server, written.container_without_metadata()
    scan = next(scan for scan in await scans(server, damaged) if len(scan.sectors) > 4)
    place = scan.sectors[2] * SECTOR_BYTES + 1000
    flip(Path(scan.name), place)
    await server.start()
    transport = GrpcTransport(server.controller)
    names = [f"group{number}" for number in range(2 * CONTAINERS)]
    answers = await asyncio.gather(*(attempt(transport, name) for name in names))
    await transport.close()
    refused = [answer for answer in answers if answer]
    assert refused
    reasons = ("its workflow continues", "is not served by this segment store")  # which one: the scope's table decides
    ends = ("is not available", "no reply within")  # the latter when the time ends during the last retry
    explained = [any(end in each for end in ends) and any(reason in each for reason in reasons) for each in refused]
    assert all(explained), "\n".join(refused)
    reported = "Worker w: container 2 cannot be opened: damaged."
    unexplained, condition = await asyncio.gather(stream_condition(server, ""), stream_condition(server, reported))
    assert unexplained is None, "what no worker explains is retried"
    assert condition is not None
    assert (condition.status, condition.reason) == (Status.FALSE, "ContainersNotOpen")
    assert condition.message.startswith("The stream does not answer: ")
    assert condition.message.endswith(f". {reported}")
    key = next(key for key in written.history.keys if key_container(key) == damaged)
    line = await waiting_write(server, key)
    assert f"tailrace: write waits: segment={STREAM.scope}/{STREAM.stream}/" in line
    await server.kill()

    flip(Path(scan.name), place)
    await server.start()
    async with Client(server.controller) as client:  # what was refused was going on, and is done now
        groups = client.reader_groups(STREAM.scope)
        for name in names:
            await groups.create(name, group_config({STREAM: None}))
    await check_all(written)


def key_container(key: str) -> int:
    """The container of the segment that takes a key."""
    return container_of(STREAM.segment(int(key_position(key) * SEGMENTS)), CONTAINERS)


async def attempt(transport: GrpcTransport, group: str) -> str:
    """Create a group with one call; the reason why not."""
    cut = pb.StreamCut(streamInfo=pb.StreamInfo(scope=STREAM.scope, stream=STREAM.stream))
    request = pb.ReaderGroupConfiguration(
        scope=STREAM.scope,
        readerGroupName=group,
        readerGroupId=str(uuid.uuid4()),
        startingStreamCuts=[cut],
        endingStreamCuts=[cut],
    )
    try:
        await transport.call("createReaderGroup", request, pb.CreateReaderGroupResponse, ONE_CALL_S)
    except TailraceError as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def stream_condition(server: Server, not_open: str) -> Condition | None:
    """Condition Ready that the operator finds for the stream; None when it fails, and will try again.

    ``not_open``: what the StreamCluster says of containers that workers cannot open.
    """
    objects = LocalObjects()
    cluster = objects.make(STREAM_CLUSTERS, "main", {})
    if not_open:
        status = {"type": "ContainersOpen", "status": "False", "reason": "ContainersNotOpen", "message": not_open}
        await objects.merge_status(STREAM_CLUSTERS, cluster, {"conditions": [status]})
    spec = {"cluster": "main", "scope": STREAM.scope, "streamName": STREAM.stream, "scaling": {"minSegments": SEGMENTS}}
    manifest = objects.make(STREAMS, "s", spec)
    controllers = Controllers(objects, uri=lambda _: server.controller)
    try:
        outcome = await StreamReconciler(objects, controllers, SystemClock()).reconcile(manifest)
    except UnavailableError:
        return None
    finally:
        await controllers.close()
    return next(found for found in outcome.conditions if found.type == READY)


async def waiting_write(server: Server, key: str) -> str:
    """The first line of standard error of a command that writes to the damaged container; the command ends then."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace.cli", "write", str(STREAM), "--key", "k", "--controller", server.controller),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(json.dumps({"k": key}).encode() + b"\n")
    process.stdin.close()
    try:
        async with asyncio.timeout(ONE_CALL_S):
            return (await process.stderr.readline()).decode()
    finally:
        process.kill()
        await process.wait()


# -- a flipped bit in a chunk ------------------------------------------------------------------------------------------


async def test_a_flipped_bit_in_a_chunk_is_never_served(written: Written, test_seed: int) -> None:
    """Its reader gets nothing of the damaged block, the log names object and position, all else is served."""
    server, rng = written.server, random.Random(test_seed)
    await server.start()
    name = STREAM.segment(0)
    await server.flush()
    (chunk,) = inspect(server, "chunks", name)
    await server.kill()
    path = server.tier2 / chunk["object_key"]
    begin = path.read_bytes().index(encode(Event(first_key(written, 0), 0, ""), EVENT_BYTES)[:30])
    place = begin + rng.randrange(chunk["length_bytes"] - EVENT_BYTES)
    offset = (place - begin + EVENT_HEADER_BYTES) // BLOCK_STRIDE * BLOCK_BYTES
    flip(path, place)

    await server.start()
    async with Client(server.controller) as client:
        segments = await read_segments(client)
        damaged = segments.pop(name)
        assert isinstance(damaged, str), "the damaged chunk was read to its end"
        client.context.segments._deadline_s = 3.0  # it stops trying soon, and says why
        with pytest.raises(UnavailableError, match=chunk["object_key"]):
            await client.context.segments.read(name, offset, 1000)
        assert not [events for events in segments.values() if isinstance(events, str)], segments
    reported = [line for line in server.log.splitlines() if chunk["object_key"] in line and "CRC32C" in line]
    assert reported, server.log[-3000:]
    await server.kill()

    flip(path, place)
    await server.start()
    await check_all(written)


def first_key(written: Written, number: int) -> str:
    """The key whose first event is the first of a segment."""
    low, high = number / SEGMENTS, (number + 1) / SEGMENTS
    return next(key for key in written.history.keys if low <= key_position(key) < high)


# -- flipped bits in an attribute index --------------------------------------------------------------------------------

TABLE_KEYS = 2000
ASKED = range(0, TABLE_KEYS, 200)
FLUSH_DEADLINE_S = 240.0


async def test_a_damaged_attribute_index_refuses_its_segment_only(written: Written) -> None:
    """Here the index of a table's keys: the log names object and offset, all else is served, also by its container."""
    server = written.server
    await server.start()
    async with Client(server.controller) as client:
        table, segment = await beside_the_stream(client)
        for first in range(0, TABLE_KEYS, 500):
            rows = [TableEntry(table_key(number), b"value", NO_VERSION) for number in range(first, first + 500)]
            await client.context.segments.table_update(segment, rows)
    container = container_of(segment, CONTAINERS)
    indexes = server.tier2 / f"a{container}"
    async with asyncio.timeout(FLUSH_DEADLINE_S):
        while not [path for path in indexes.rglob("*") if path.is_file()]:  # noqa: ASYNC110 - the server writes it
            await asyncio.sleep(0.1)
    await server.flush_until_tiered()  # and a checkpoint, so that the next start has no value of the index in memory
    await server.kill()
    for path in indexes.rglob("*"):
        if path.is_file():
            flip_many(path)

    await server.start()
    refused = await refused_keys(server, table)
    assert set(refused) >= {number for number in ASKED if number < 1000}, "a flush takes 1000, the oldest first"
    (line,) = server.log_events("attribute_index_damaged")
    assert line["segment"] == segment
    assert f"object a{container}/" in line["place"]
    assert " at " in line["place"]
    health = await server.ask("/v1/health")
    assert health["ready"]
    assert segment in health["containers"][str(container)]["reason"]
    async with Client(server.controller) as client:
        await write_events(client, written.history)
    await server.kill()

    for path in indexes.rglob("*"):
        if path.is_file():
            flip_many(path)  # and so undone
    await server.start()
    assert not await refused_keys(server, table, HEALTHY_READ_DEADLINE_S)
    await check_all(written)


async def beside_the_stream(client: Client) -> tuple[str, str]:
    """A new table and its segment, which is in a container with a segment of the stream."""
    containers = {container_of(STREAM.segment(number), CONTAINERS) for number in range(SEGMENTS)}
    for table in map("table{}".format, range(100)):
        await client.context.controller.create_table(STREAM.scope, table, TableConfig(1, 8))
        (part,) = await client.context.controller.table_segments(STREAM.scope, table)
        segment = StreamName(STREAM.scope, table + names.TABLE_SUFFIX).segment(part.identifier)
        if container_of(segment, CONTAINERS) in containers:
            return table, segment
    raise AssertionError(f"no table is in one of the containers {containers}")


def table_key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def flip_many(path: Path) -> None:
    """Change a bit in each 500 bytes but the first; the same call takes it back."""
    for offset in range(500, path.stat().st_size, 500):
        flip(path, offset)


async def refused_keys(server: Server, name: str, within_s: float = DAMAGED_READ_TIMEOUT_S) -> list[int]:
    """Those of some keys whose values cannot be read in time; the others have the right ones."""
    async with Client(server.controller) as client, client.table(STREAM.scope, name) as table:

        async def is_refused(number: int) -> bool:
            try:
                async with asyncio.timeout(within_s):
                    found = await table.get(TableKeyParts(table_key(number), b""))
            except (TailraceError, TimeoutError):
                return True
            assert found is not None, number
            assert found.value == b"value"
            return False

        refused = await asyncio.gather(*map(is_refused, ASKED))
        return [number for number, no_value in zip(ASKED, refused, strict=True) if no_value]
