"""Verification of a data folder: a healthy one verifies clean, and each kind of damage is found and named."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.folderservice import served_folder
from tailrace.common import limits
from tailrace.common.errors import CorruptionError, IllegalStateError, StartError, UnavailableError
from tailrace.common.real_ports import SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.closed import ClosedLog, ReadOnlyDisk
from tailrace.log.frames import SECTOR_BYTES
from tailrace.log.recovery import FileScan
from tailrace.log.scan import scan_directory
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.tables.types import TableEntry, TableKey
from tailrace.segmentstore.verify.folder import verify_folder
from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore
from tailrace.segmentstore.verify.report import Problem, Report
from tailrace.segmentstore.worker.worker import Worker
from tailrace.storage import chunks
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore

STREAM, ATTRIBUTES = "scope/stream/0.#epoch.0", "scope/attributes/0.#epoch.0"
HASH_TABLE, FIXED_TABLE = "scope/_tables/hash", "scope/_tables/fixed"
BLOCK = chunks.BLOCK_BYTES
CONTENT = random.Random(1).randbytes(40 * BLOCK)


class Folder:
    """A data folder without a server. ``states``: container and committed state of segments, as it was filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states: dict[str, tuple[int, Segment]] = {}

    async def serve(self, work: Callable[[Worker], object]) -> None:
        """Open it, do something with its containers, and close it."""
        try:
            async with served_folder(self.path, 2) as worker:
                await work(worker)  # type: ignore[misc]  # a coroutine function
        finally:
            for spare in self.path.glob("log/*/spare-*.log"):
                spare.unlink()
            async with asyncio.timeout(120):
                while list(self.path.rglob("*#*")):  # noqa: ASYNC110 - threads still write or remove an upload's file
                    await asyncio.sleep(0.01)

    @property
    def tier2(self) -> Path:
        return self.path / "tier2"

    async def verify(self) -> Report:
        """Verify it, and see that nothing changed."""
        before = self.fingerprint()
        progress: list[tuple[int, int]] = []
        report = await verify_folder(
            self.path, entropy=SystemEntropy(), progress=lambda done, total: progress.append((done, total))
        )
        assert self.fingerprint() == before
        assert all(0 <= done <= total for done, total in progress)
        return report

    def fingerprint(self) -> list[tuple[str, int, str]]:
        """Every file with its time of change and its content; every folder with its time of change."""
        return sorted(
            (
                str(path),
                path.stat().st_mtime_ns,
                hashlib.blake2b(path.read_bytes()).hexdigest() if path.is_file() else "",
            )
            for path in [self.path, *self.path.rglob("*")]
        )

    async def problems(self) -> list[Problem]:
        """What is wrong with it."""
        report = await self.verify()
        assert report.problem_count == len(report.problems)
        assert report.healthy == (not report.problems)
        return report.problems

    async def scans(self, container: int) -> list[FileScan]:
        """The files of a container's log."""
        disk = ReadOnlyDisk()
        try:
            return await scan_directory(disk, str(self.path / "log" / str(container)), container)
        finally:
            disk.close()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (value,) = file.read(1)
        file.seek(offset)
        file.write(bytes([value ^ 4]))


async def append(container: Container, name: str, data: bytes) -> None:
    for start in range(0, len(data), 50_000):
        await container.append(name, [data[start : start + 50_000]])


async def set_attributes(container: Container, name: str, first: int, end: int) -> None:
    for start in range(first, end, 1000):
        updates = [
            AttributeUpdate(
                hashlib.sha256(number.to_bytes(8, "big")).digest()[:16], AttributeUpdateType.REPLACE, number
            )
            for number in range(start, min(start + 1000, end))
        ]
        await container.update_attributes(name, updates)


async def fill(worker: Worker) -> None:
    """All kinds of things: bytes in Tier 2, in the log, in both; merged, truncated and deleted segments; tables."""
    container = worker.container_for(STREAM)
    await container.create_segment(STREAM)
    await append(container, STREAM, CONTENT)
    for number in range(6):
        part = f"{STREAM}#transaction.{number:032x}"
        await container.create_segment(part)
        await append(container, part, CONTENT[: 70_000 * number])
        await append(container, STREAM, CONTENT[:1000])
        if number % 2:
            await container.flush_to_storage()
        await append(container, part, b"the end")
        if number < 4:
            await container.merge(STREAM, part)
        elif number == 4:
            await container.delete(part)
    await container.truncate(STREAM, 3 * BLOCK + 77)
    await fill_attributes(worker)
    await fill_tables(worker)
    await flush_by_size(container)
    await append(container, STREAM, CONTENT[:300_000])


async def flush_by_size(container: Container) -> None:
    """So much that it goes to Tier 2 by itself, without a checkpoint: the log keeps it."""
    segment = container.state.by_name[STREAM]
    before = len(segment.chunks)
    for _ in range(2):
        await append(container, STREAM, CONTENT)
    async with asyncio.timeout(120):
        while len(segment.chunks) == before:  # noqa: ASYNC110  # background work
            await asyncio.sleep(0.01)


async def fill_attributes(worker: Worker) -> None:
    container = worker.container_for(ATTRIBUTES)
    await container.create_segment(ATTRIBUTES)
    for first in range(0, 9000, 3000):
        await set_attributes(container, ATTRIBUTES, first, first + 3000)
        await append(container, ATTRIBUTES, b"x" * 100)
        for _ in range(3):
            await append(container, ATTRIBUTES, b"y")
            await container.flush_to_storage()


async def fill_tables(worker: Worker) -> None:
    for name, key_length in ((HASH_TABLE, 0), (FIXED_TABLE, 8)):
        container = worker.container_for(name)
        tables = worker.table_service(container)
        await tables.create_table(name, key_length)
        for first in range(0, 4000, 500):
            numbers = range(first, first + 500)
            entries = [TableEntry(number.to_bytes(8, "big"), b"value %d" % number * 9) for number in numbers]
            await tables.update(name, entries)
        await tables.remove(name, [TableKey(number.to_bytes(8, "big")) for number in range(100, 200)])
        await container.flush_to_storage()
        await tables.update(name, [TableEntry(bytes(8), b"again")])
        await container.flush_to_storage()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder with everything in it, opened twice."""
    folder = Folder(tmp_path_factory.mktemp("filled") / "data")

    async def again(worker: Worker) -> None:
        await append(worker.container_for(STREAM), STREAM, CONTENT[:200_000])

    asyncio.run(folder.serve(fill))
    asyncio.run(folder.serve(again))
    asyncio.run(settle(folder))
    return folder


async def settle(folder: Folder) -> None:
    """Make the folder small, and the same in every run: an upload may have been under way when it was closed."""
    for container in range(2):
        for scan in await folder.scans(container):
            os.truncate(scan.name, scan.end_offset)  # as the next owner does
    for orphan in (await folder.verify()).orphans:
        (folder.tier2 / orphan.key).unlink()
    for container in range(2):
        state = await recovered(folder, container)
        folder.states.update({name: (container, segment) for name, segment in state.by_name.items()})


async def recovered(folder: Folder, container: int) -> ContainerState:
    """The state that a container's log leads to."""
    disk = ReadOnlyDisk()
    log = ClosedLog(disk, str(folder.path / "log" / str(container)), container)
    try:
        await log.open()
        state = ContainerState(container)
        await Recovery(log, state, CacheManager(BlockCache(limits.VERIFY_CACHE_BYTES))).replay()
    finally:
        log.close()
        disk.close()
    return state


@pytest.fixture
def folder(filled: Folder, tmp_path: Path) -> Iterator[Folder]:
    """A copy of it."""
    copy = Folder(tmp_path / "data")
    shutil.copytree(filled.path, copy.path)
    copy.states = filled.states
    yield copy
    shutil.rmtree(copy.path)


async def test_a_healthy_folder(folder: Folder) -> None:
    report = await folder.verify()
    assert not report.problems
    assert report.healthy
    assert report.containers == 2
    assert report.segments == 5, "one of the transactions is open"
    assert report.tier2_bytes > len(CONTENT)
    assert report.log_only_bytes >= 500_000
    assert report.tier2_bytes + report.log_only_bytes == report.segment_bytes
    assert report.compared_bytes > len(CONTENT), "the log still holds what is in Tier 2"
    assert report.index_pages > 6
    assert report.table_entries == 2 * 3900
    objects = [path for path in folder.tier2.rglob("*") if path.is_file() and path.name != "cluster.json"]
    assert report.objects == len(objects) - report.pending_deletes - report.snapshots
    assert report.snapshots > 2
    assert report.pending_deletes
    assert report.orphans == []
    assert report.log_frames > 10
    assert report.operations > 10


async def test_a_bit_in_a_log_frame(folder: Folder, test_seed: int) -> None:
    """The container's objects are still read; the other container is verified."""
    container, _ = folder.states[STREAM]
    scan = max(await folder.scans(container), key=lambda scan: scan.epoch)
    index = random.Random(test_seed).randrange(len(scan.sectors))
    start = scan.sectors[index] * SECTOR_BYTES
    end = scan.sectors[index + 1] * SECTOR_BYTES if index + 1 < len(scan.sectors) else scan.end_offset
    flip(Path(scan.name), random.Random(test_seed).randrange(start, end - 8))
    report = await folder.verify()
    (problem,) = report.problems
    assert (problem.container, problem.place, problem.position) == (container, scan.name, start)
    assert f"frame {scan.first_sequence + index}" in problem.reason
    assert report.unaccounted_objects
    assert report.orphans == []
    assert report.segments, "of the other container"


async def test_a_frame_that_is_gone(folder: Folder) -> None:
    container, _ = folder.states[STREAM]
    scan = min(await folder.scans(container), key=lambda scan: scan.epoch)
    Path(scan.name).unlink()  # noqa: ASYNC240  # a test
    (problem,) = await folder.problems()
    assert problem.container == container
    assert "is missing" in problem.reason


@pytest.mark.parametrize("part", ["data", "header", "footer"])
async def test_a_bit_in_a_chunk(folder: Folder, part: str, test_seed: int) -> None:
    container, segment = folder.states[STREAM]
    rng = random.Random(test_seed)
    ref = max(segment.chunks, key=lambda ref: ref.length)
    path = folder.tier2 / ref.object_key
    block = rng.randrange(ref.length // BLOCK)
    block_position = ref.data_offset + block * chunks.BLOCK_STRIDE
    end = ref.data_offset + chunks.stored_length(ref.length)
    position = {"data": block_position + rng.randrange(BLOCK), "header": 30, "footer": end + 5}[part]
    flip(path, position)
    (problem,) = await folder.problems()
    assert (problem.container, problem.place) == (container, f"object {ref.object_key}")
    if part == "data":
        assert problem.segment == STREAM
        assert problem.offset == ref.segment_offset + block * BLOCK
        assert problem.position == block_position
        assert "CRC32C" in problem.reason
    else:
        assert problem.position == {"header": 0, "footer": end}[part]


async def test_a_missing_object(folder: Folder) -> None:
    container, segment = folder.states[STREAM]
    ref = list(segment.chunks)[1]
    (folder.tier2 / ref.object_key).unlink()
    found = await folder.problems()
    assert {problem.place for problem in found} == {f"object {ref.object_key}"}
    mine = [problem for problem in found if problem.segment == STREAM and problem.offset == ref.segment_offset]
    assert len(mine) == 1
    assert mine[0].container == container
    assert "does not exist" in mine[0].reason


async def test_a_truncated_object(folder: Folder) -> None:
    container, segment = folder.states[STREAM]
    ref = max(segment.chunks, key=lambda ref: ref.length)
    length = ref.data_offset + 2 * chunks.BLOCK_STRIDE + 1000
    os.truncate(folder.tier2 / ref.object_key, length)
    found = await folder.problems()
    first = found[0]
    assert (first.container, first.segment, first.place) == (container, STREAM, f"object {ref.object_key}")
    assert (first.offset, first.position) == (ref.segment_offset + 2 * BLOCK, length)
    assert f"{ref.length - 2 * BLOCK} bytes of the segment are missing" in first.reason
    assert {problem.place for problem in found} == {first.place}


async def test_objects_that_nothing_needs_are_no_damage(folder: Folder) -> None:
    container, segment = folder.states[STREAM]
    source = folder.tier2 / next(iter(segment.chunks)).object_key
    extra = source.with_name("0000000000000000-0000000000000001-00000001-aaaaaaaaaaaa")
    shutil.copy(source, extra)
    foreign = folder.tier2 / "elsewhere" / "file"
    foreign.parent.mkdir()
    foreign.write_bytes(b"12345")
    unfinished = extra.with_name("0000000000000000-0000000000000001-00000001-bbbbbbbbbbbb#123000000001")
    unfinished.write_bytes(b"123")
    report = await folder.verify()
    assert report.healthy
    assert {(orphan.container, orphan.key, orphan.length_bytes) for orphan in report.orphans} == {
        (container, str(extra.relative_to(folder.tier2)), source.stat().st_size),
        (None, "elsewhere/file", 5),
        (container, str(unfinished.relative_to(folder.tier2)), 3),
    }
    assert report.orphan_count == 3
    assert report.orphan_bytes == source.stat().st_size + 8


@pytest.mark.parametrize("name", [ATTRIBUTES, HASH_TABLE])
async def test_a_bit_in_an_index_page(folder: Folder, name: str) -> None:
    container, segment = folder.states[name]
    ref = segment.index_pages.find(segment.index.root_offset)
    assert ref is not None
    inside = segment.index.root_offset - ref.segment_offset
    position = ref.data_offset + inside + 4 * (inside // BLOCK)
    flip(folder.tier2 / ref.object_key, position + 50)
    found = await folder.problems()
    page = [problem for problem in found if "attribute index: page at" in problem.reason]
    assert [(problem.container, problem.segment, problem.place, problem.position) for problem in page] == [
        (container, name, f"object {ref.object_key}", position)
    ]
    assert {problem.place for problem in found} == {f"object {ref.object_key}"}


async def test_other_bytes_than_the_log_holds(folder: Folder) -> None:
    """A chunk whose checksums are right and whose bytes are others."""
    container, segment = folder.states[STREAM]
    ref = list(segment.chunks)[-1]
    path = folder.tier2 / ref.object_key
    raw = path.read_bytes()
    header, header_bytes = chunks.decode_header(raw[: ref.data_offset], "here")
    assert header_bytes == ref.data_offset
    end = ref.data_offset + chunks.stored_length(ref.length)
    blocks = chunks.decode_blocks(ref.object_key, ref.data_offset, raw[ref.data_offset : end])
    data = bytearray(b"".join(blocks))
    data[-1] ^= 1
    buffers, _, length = chunks.encode_section(ref.object_key, 0, header, data)
    path.write_bytes(b"".join(buffers) + raw[length:])
    (problem,) = await folder.problems()
    assert (problem.container, problem.segment, problem.place) == (container, STREAM, f"object {ref.object_key}")
    assert problem.offset is not None
    assert ref.segment_offset <= problem.offset < ref.end
    assert f"to {ref.end} differ from those in the log" in problem.reason


@pytest.mark.parametrize("epoch", ["known", "unknown"])
async def test_a_log_that_is_gone(folder: Folder, epoch: str) -> None:
    container, _ = folder.states[STREAM]
    directory = folder.path / "log" / str(container)
    shutil.rmtree(directory)
    if epoch == "unknown":
        (folder.path / "epochs" / f"{container}.json").unlink()
    (problem,) = await folder.problems()
    assert problem.container == container
    if epoch == "known":
        assert f"{directory} is empty or missing, but had one of epoch 2" in problem.reason
    else:
        assert "its log holds nothing" in problem.reason


async def test_the_mark_of_the_cluster(folder: Folder) -> None:
    mark = folder.tier2 / "cluster.json"
    content = mark.read_text()
    mark.write_text("no JSON")
    assert [(problem.place, problem.position) for problem in await folder.problems()] == [("object cluster.json", 0)]
    mark.unlink()
    (problem,) = await folder.problems()
    assert str(problem) == "object cluster.json: it does not exist"
    mark.write_text(content.replace('"cluster": "', '"cluster": "another-'))
    with pytest.raises(StartError, match="belongs to cluster another-"):
        await folder.verify()


async def test_a_table_index_that_leads_to_other_places(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")

    async def work(worker: Worker) -> None:
        await fill_tables(worker)
        container = worker.container_for(HASH_TABLE)
        ((attribute_id, value),) = await container.iterate_attributes(HASH_TABLE, bytes(16), b"\xff" * 16, 1)
        await container.update_attributes(
            HASH_TABLE, [AttributeUpdate(attribute_id, AttributeUpdateType.REPLACE, value + 1)]
        )

    await folder.serve(work)
    (problem,) = await folder.problems()
    assert problem.segment == HASH_TABLE
    assert problem.reason.startswith("table index: 1 pointers do not lead to an entry")


async def test_a_damaged_epoch_file_and_many_damages_at_once(folder: Folder) -> None:
    container, segment = folder.states[STREAM]
    refs = [ref for ref in segment.chunks if ref.length > 2 * BLOCK]
    for ref in refs:
        flip(folder.tier2 / ref.object_key, ref.data_offset + 10)
        flip(folder.tier2 / ref.object_key, ref.data_offset + chunks.BLOCK_STRIDE + 10)
    (folder.path / "epochs" / "1.json").write_text("{}")
    found = await folder.problems()
    assert next(problem for problem in found if "epoch file" in problem.reason).container == 1
    places = {(problem.container, problem.offset) for problem in found if problem.segment == STREAM}
    assert places == {(container, ref.segment_offset + at) for ref in refs for at in (0, BLOCK)}


class BadSectors:
    """A store of which some objects cannot be read."""

    def __init__(self, store: ObjectStore, bad: set[str]) -> None:
        self._store = store
        self._bad = bad

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        if key in self._bad:
            raise UnavailableError(f"get {key}: Input/output error")
        return await self._store.get_range(key, offset, length)


async def test_objects_that_cannot_be_read() -> None:
    """One is damaged; many in a row are an outage."""
    store = open_object_store("memory://")
    keys = [f"c0/{number}" for number in range(8)]
    for key in keys:
        await store.put(key, [b"data"])
    reading = ReadOnlyStore(BadSectors(store, set(keys[1::2])))
    for key in keys[::2]:
        assert await reading.get_range(key, 0, 4) == b"data"
        with pytest.raises(CorruptionError, match=r"cannot be read: get c0/.: Input/output error"):
            await reading.get_range(f"c0/{int(key[3:]) + 1}", 0, 4)
    gone = ReadOnlyStore(BadSectors(store, set(keys)))
    for key in keys[: limits.VERIFY_FAILED_READS_MAX]:
        with pytest.raises(CorruptionError):
            await gone.get_range(key, 0, 4)
    with pytest.raises(UnavailableError):
        await gone.get_range(keys[-1], 0, 4)
    with pytest.raises(IllegalStateError):
        await reading.put("c0/new", [b""])
    with pytest.raises(IllegalStateError):
        await reading.delete(keys)
    assert [await store.get(key) for key in keys] == [b"data"] * len(keys)


async def test_lists_are_bounded(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VERIFY_LISTED_MAX", 3)
    shutil.rmtree(folder.tier2)
    folder.tier2.mkdir()
    report = await folder.verify()
    assert len(report.problems) == 3
    assert report.problem_count > 10


async def test_what_cannot_be_verified(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="not a data folder"):
        await verify_folder(tmp_path / "none", entropy=SystemEntropy(), progress=lambda *_: None)

    async def while_served(_: Worker) -> None:
        with pytest.raises(StartError, match="in use by another process"):
            await verify_folder(folder.path, entropy=SystemEntropy(), progress=lambda *_: None)

    await folder.serve(while_served)
    with pytest.raises(StartError, match="Tier 2 is in the folder, not"):
        await verify_folder(folder.path, tier2="file:///x", entropy=SystemEntropy(), progress=lambda *_: None)
    shutil.rmtree(folder.tier2)
    with pytest.raises(StartError, match="does not exist"):
        await folder.verify()
