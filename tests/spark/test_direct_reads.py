"""Streams of a real server, read from its Tier 2 alone: in a folder, and in MinIO; also while the server is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from harness.minio import MinioProcess
from harness.server import Server
from harness.workload import create_stream
from tailrace.client import Client
from tailrace.client.model import StreamName
from tailrace.client.reader.batch import SegmentSlice
from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.common import limits
from tailrace.common.errors import CorruptionError, SegmentTruncatedError, StartError
from tailrace.pipelines.direct import BlockingEvents, SegmentRange, SegmentReferences, StoreLocation, TierTwo
from tailrace.pipelines.direct.same_cluster import checked_references

STREAM = StreamName("scope", "stream")
KIB, MIB = 1024, 1024 * 1024
SMALL = ("--cache", "128MiB", "--containers", "2")
SNAPSHOT_DEADLINE_S = 180.0
SCENARIO_DEADLINE_S = 900


@dataclass
class Place:
    """A server, and where its Tier 2 is."""

    server: Server
    options: dict[str, str]
    files: Path

    @property
    def location(self) -> StoreLocation:
        """What executors are given."""
        found = StoreLocation.from_options(self.options)
        assert found is not None
        return found

    async def tier2(self) -> TierTwo:
        """Its Tier 2, opened."""
        store = self.location.open()
        identity = await self.location.identity(store)
        return TierTwo(store, uuid.UUID(identity.cluster_id), identity.containers)

    async def events(self, references: SegmentReferences, start: int, stop: int) -> tuple[list[bytes], BlockingEvents]:
        """Read as an executor's task does; return the events and the reader."""
        tier2 = await self.tier2()
        identity = ClusterIdentity(str(tier2.cluster_id), tier2.containers)
        reader = BlockingEvents(self.location, identity, references.within(start, stop), start, stop)
        batches = await asyncio.to_thread(lambda: list(reader))
        events: list[bytes] = []
        for batch in batches:
            column = [None, pa.py_buffer(batch.ends), pa.py_buffer(batch.payloads)]
            array = pa.Array.from_buffers(pa.binary(), batch.count, column)
            array.validate(full=True)
            events += array.to_pylist()
        return events, reader


@pytest.fixture(params=["folder", "minio"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A server that is not started."""
    if request.param == "folder":
        server = Server(tmp_path / "server", options=SMALL)
        made = Place(server, {"tier2": str(server.tier2)}, server.tier2)
    else:
        minio: MinioProcess = request.getfixturevalue("minio_server")
        bucket = minio.new_bucket()
        url = f"s3://{bucket}/a/prefix"
        options = (*SMALL, "--tier2", url, "--s3-endpoint", minio.endpoint)
        server = Server(tmp_path / "server", options=options, environment=minio.credentials)
        keys = minio.credentials
        location = {
            "tier2": url,
            "tier2Endpoint": minio.endpoint,
            "tier2Region": "us-east-1",
            "tier2AccessKeyId": keys["AWS_ACCESS_KEY_ID"],
            "tier2SecretAccessKey": keys["AWS_SECRET_ACCESS_KEY"],
        }
        made = Place(server, location, minio.files_of(bucket) / "a/prefix")
    async with server:
        yield made


async def write(client: Client, rng: random.Random, count: int) -> None:
    """Write events of all sizes with random keys."""
    async with client.writer(STREAM) as writer:
        for number in range(count):
            size = rng.choice([0, rng.randrange(64), rng.randrange(4 * KIB), rng.randrange(256 * KIB)])
            await writer.write_event(rng.randbytes(size), str(number % 50))


async def commit(client: Client, rng: random.Random) -> None:
    """Write a transaction, and wait until it can be read."""
    async with client.transactional_writer(STREAM) as writer:
        transaction = await writer.begin()
        for number in range(50):
            await transaction.write_event(rng.randbytes(rng.randrange(20 * KIB)), str(number))
        await transaction.commit()
        await transaction.wait_until_visible(60.0)


async def read(client: Client, piece: SegmentSlice) -> list[bytes]:
    return [event async for events in client.read_slice(piece) for event in events]


async def server_bytes(client: Client, piece: SegmentSlice) -> bytes:
    data = bytearray()
    while len(data) < piece.end - piece.start:
        data += (await client.context.segments.read(piece.segment, piece.start + len(data), MIB)).data
    return bytes(data[: piece.end - piece.start])


async def direct_bytes(tier2: TierTwo, references: SegmentReferences, piece: SegmentSlice) -> bytes:
    data = b""
    async for blocks in SegmentRange(tier2, references).pieces(piece.start, piece.end):
        data += b"".join(blocks)
    return data


async def fill(client: Client, rng: random.Random) -> None:
    """Write a stream with scales, transactions, and the largest events of one append and of more."""
    await create_stream(client, STREAM, 2)
    await write(client, rng, 150)
    await commit(client, rng)
    await client.streams.scale_to(STREAM, 3)
    async with client.writer(STREAM) as writer:
        for size in (8 * MIB - 8, 8 * MIB, 9 * MIB + 5):
            await writer.write_event(rng.randbytes(size), "large")
    await commit(client, rng)
    await write(client, rng, 100)


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_all_bytes_are_those_of_the_server(place: Place, test_seed: int) -> None:
    rng = random.Random(test_seed)
    await place.server.start()
    async with Client(place.server.controller) as client:
        await fill(client, rng)
        pieces = await client.slices(STREAM)
        events = {piece: await read(client, piece) for piece in pieces}
        raw = {piece: await server_bytes(client, piece) for piece in pieces}
    assert len(pieces) == 5
    assert max(len(event) for found in events.values() for event in found) == 9 * MIB + 5
    await place.server.stop()  # stores snapshots of everything

    tier2 = await place.tier2()
    found = await tier2.references([piece.segment for piece in pieces])
    for piece in pieces:
        references = found[piece.segment]
        assert references.split(piece.start, piece.end) == ((piece.start, piece.end), None)
        assert await direct_bytes(tier2, references, piece) == raw[piece]
        got, reader = await place.events(references, piece.start, piece.end)
        assert got == events[piece]
        assert reader.offset == piece.end
    await place.server.start()
    await place.server.kill()  # what is stored is read without the server, however it ended
    for piece in pieces:
        assert (await place.events(found[piece.segment], piece.start, piece.end))[0] == events[piece]


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_a_running_server_and_its_tier_2_have_all_events_together(place: Place, test_seed: int) -> None:
    """What the newest snapshot has is read directly, what came later from the server, and no event twice."""
    rng = random.Random(test_seed)
    await place.server.start()
    async with Client(place.server.controller) as client:
        await create_stream(client, STREAM, 2)
        await write(client, rng, 100)
        tier2, names = await place.tier2(), [piece.segment for piece in await client.slices(STREAM)]
        deadline_s = time.monotonic() + SNAPSHOT_DEADLINE_S
        while len(found := await tier2.references(names)) < len(names):  # the first snapshot comes after 30 s
            assert time.monotonic() < deadline_s
            await write(client, rng, 5)
            await asyncio.sleep(0.5)
        await write(client, rng, 100)
        found = await checked_references(client.context.segments, tier2, "Tier 2", names)
        assert set(found) == set(names)
        for piece in await client.slices(STREAM):
            direct, store = found[piece.segment].split(piece.start, piece.end)
            assert direct is not None
            assert store is not None
            got, reader = await place.events(found[piece.segment], piece.start, piece.end)
            assert got
            got += await read(client, SegmentSlice(piece.segment, reader.offset, piece.end))
            assert got == await read(client, piece)

        # A stream of the same name, made since the snapshot, is not that of the snapshot.
        await client.streams.seal_stream(STREAM)
        await client.streams.delete_stream(STREAM)
        assert await checked_references(client.context.segments, tier2, "Tier 2", names) == {}
        await create_stream(client, STREAM, 2)
        again = await tier2.references(names)
        if all(again[name].created_ms == found[name].created_ms for name in names):  # no snapshot came meanwhile
            assert await checked_references(client.context.segments, tier2, "Tier 2", names) == {}


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_a_truncated_range_is_an_error_that_names_it(place: Place, test_seed: int) -> None:
    rng = random.Random(test_seed)
    await place.server.start()
    async with Client(place.server.controller) as client:
        await create_stream(client, STREAM, 1)
        await write(client, rng, 100)
        (piece,) = await client.slices(STREAM)
        cut = await client.streams.tail(STREAM)
        await write(client, rng, 100)
        await client.streams.truncate_stream(STREAM, cut)
        (rest,) = await client.slices(STREAM)
        expected = await read(client, rest)
    await place.server.stop()
    found = (await (await place.tier2()).references([piece.segment]))[piece.segment]
    assert rest.start == piece.end
    words = rf"segment {piece.segment}: {piece.end} bytes from offset 0 to {piece.end} were truncated before they were"
    with pytest.raises(SegmentTruncatedError, match=words):
        await place.events(found, piece.start, rest.end)
    assert (await place.events(found, rest.start, rest.end))[0] == expected


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_a_damaged_chunk_is_named(tmp_path: Path, test_seed: int) -> None:
    rng = random.Random(test_seed)
    async with Server(tmp_path / "server", options=SMALL) as server:
        place = Place(server, {"tier2": str(server.tier2)}, server.tier2)
        await server.start()
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, 1)
            await write(client, rng, 100)
            (piece,) = await client.slices(STREAM)
        await server.stop()
        found = (await (await place.tier2()).references([piece.segment]))[piece.segment]
        ref = rng.choice(found.chunks)
        at = ref.data_offset + rng.randrange(ref.length)
        with (place.files / ref.object_key).open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
        with pytest.raises(CorruptionError, match=rf"object {ref.object_key} at \d+: block CRC32C does not match"):
            await place.events(found, piece.start, piece.end)


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_another_clusters_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DIRECT_CLOCK_SKEW_MAX_MS", 0)  # one clock: that of this machine
    async with contextlib.AsyncExitStack() as stack:
        places = []
        for name in ("one", "two"):
            server = await stack.enter_async_context(Server(tmp_path / name, options=SMALL))
            places.append(Place(server, {"tier2": str(server.tier2)}, server.tier2))
            await server.start()
            if name == "one":
                async with Client(server.controller) as client:
                    await create_stream(client, STREAM, 4)
            await server.stop()
        one, two = places
        await one.server.start()
        client = await stack.enter_async_context(Client(one.server.controller))
        names = [STREAM.segment(segment.identifier) for segment in (await client.streams.info(STREAM)).segments]
        found = await checked_references(client.context.segments, await one.tier2(), "Tier 2", names)
        assert list(found) == names
        with pytest.raises(StartError, match=r"Tier 2 two holds cluster \S+, which is not the server's"):
            await checked_references(client.context.segments, await two.tier2(), "Tier 2 two", names)


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_errors_of_a_store_show_no_secret(minio_server: MinioProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    options = {
        "tier2": f"s3://{minio_server.new_bucket()}/a",
        "tier2Endpoint": minio_server.endpoint,
        "tier2AccessKeyId": "tailrace-tests",
        "tier2SecretAccessKey": "not-the-secret-key",
    }
    location = StoreLocation.from_options(options)
    assert location is not None
    with pytest.raises(Exception, match=r"cluster\.json") as raised:
        await location.identity(location.open())
    assert "not-the-secret-key" not in f"{raised.value!r} {raised.value.__cause__!r}"
