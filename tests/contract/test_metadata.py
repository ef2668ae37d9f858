"""Every metadata store keeps the same contract: in memory, and in table segments of a real store.

See docs/design.md#controller-metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.types import Endpoint
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NoSuchSegmentError, WriteConflictError
from tailrace.common.http import listen
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.controller.metadata.metadata_store import MemoryMetadataStore, TableMetadataStore
from tailrace.controller.metadata.ports import NOT_EXISTS, UNCONDITIONAL, MetadataStore, Put
from tailrace.processes.standalone import OwnStorePool
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec

TABLE = "_system/_tables/b7"
SORTED = "_system/_tables/sorted"


@contextlib.asynccontextmanager
async def real_segments(folder: Path, *, in_process: bool = False) -> AsyncIterator[SegmentClient]:
    """A client of a segment store over a folder: over a connection, or as its own controller calls it."""
    spec = StoreSpec(
        data=str(folder / "data"),
        tier2=f"file://{folder / 'tier2'}",
        s3_endpoint=None,
        cluster_id="00000000-0000-4000-8000-000000000001",
        container_count=1,
        owned=(0,),
        cache_bytes=64 * limits.MIB,
    )
    (folder / "data").mkdir()
    service = StoreService(spec, SystemClock(), SystemEntropy())
    listener = listen("store", "127.0.0.1", 0)
    pool = ConnectionPool()
    host, port = listener.getsockname()

    async def locate(_: str) -> Endpoint:
        return Endpoint(host, port)

    try:
        await service.start()
        await service.listen_on(listener)
        yield SegmentClient(OwnStorePool(service.in_process, pool) if in_process else pool, locate)
    finally:
        await pool.close()
        await service.close()
        listener.close()


@pytest.fixture(params=["memory", "table segments", "table segments of this process"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    """A store with one empty table."""
    async with contextlib.AsyncExitStack() as stack:
        made: MetadataStore
        if request.param == "memory":
            made = MemoryMetadataStore()
        else:
            in_process = request.param == "table segments of this process"
            segments = await stack.enter_async_context(real_segments(tmp_path, in_process=in_process))
            made = TableMetadataStore(segments)
        await made.create_table(TABLE)
        yield made


async def values(store: MetadataStore, *keys: bytes) -> list[bytes | None]:
    return [None if found is None else found.value for found in await store.get(TABLE, keys)]


async def test_what_was_put_is_read_with_its_version(store: MetadataStore) -> None:
    versions = await store.put(TABLE, [Put(b"a", b"1", NOT_EXISTS), Put(b"b", b"2", UNCONDITIONAL)])
    found = await store.get(TABLE, [b"b", b"missing", b"a"])
    assert [None if item is None else (item.key, item.value, item.version) for item in found] == [
        (b"b", b"2", versions[1]),
        None,
        (b"a", b"1", versions[0]),
    ]


async def test_more_than_one_reply_has_room_for_is_refused(store: MetadataStore) -> None:
    value = bytes(limits.TABLE_VALUE_MAX_BYTES)
    keys = [b"%d" % number for number in range(limits.FRAME_MAX_BYTES // len(value) + 1)]
    for key in keys:
        await store.put(TABLE, [Put(key, value, NOT_EXISTS)])
    with pytest.raises(BadRequestError, match="more than"):
        await store.get(TABLE, keys)
    assert await values(store, *keys[1:]) == [value] * (len(keys) - 1)


async def test_versions_only_rise(store: MetadataStore) -> None:
    seen = []
    for value in (b"1", b"2", b"3"):
        seen += await store.put(TABLE, [Put(b"a", value, UNCONDITIONAL)])
    await store.remove(TABLE, [(b"a", seen[-1])])
    seen += await store.put(TABLE, [Put(b"a", b"4", NOT_EXISTS)])
    assert sorted(set(seen)) == seen


async def test_a_condition_that_fails_changes_nothing(store: MetadataStore) -> None:
    (version,) = await store.put(TABLE, [Put(b"a", b"1", NOT_EXISTS)])
    for wrong in (NOT_EXISTS, version + 1):
        with pytest.raises(WriteConflictError):
            await store.put(TABLE, [Put(b"b", b"x", UNCONDITIONAL), Put(b"a", b"x", wrong)])
    with pytest.raises(WriteConflictError):
        await store.put(TABLE, [Put(b"c", b"x", version)])
    with pytest.raises(WriteConflictError):
        await store.remove(TABLE, [(b"a", version + 1)])
    assert await values(store, b"a", b"b", b"c") == [b"1", None, None]


async def test_the_second_of_two_writers_under_one_version_loses(store: MetadataStore) -> None:
    (version,) = await store.put(TABLE, [Put(b"a", b"1", NOT_EXISTS)])
    (following,) = await store.put(TABLE, [Put(b"a", b"2", version)])
    with pytest.raises(WriteConflictError):
        await store.put(TABLE, [Put(b"a", b"3", version)])
    await store.put(TABLE, [Put(b"a", b"4", following)])
    assert await values(store, b"a") == [b"4"]


async def test_removal(store: MetadataStore) -> None:
    versions = await store.put(TABLE, [Put(key, b"x", NOT_EXISTS) for key in (b"a", b"b", b"c")])
    await store.remove(TABLE, [(b"a", versions[0]), (b"b", UNCONDITIONAL), (b"missing", UNCONDITIONAL)])
    assert await values(store, b"a", b"b", b"c") == [None, None, b"x"]


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_iteration_sees_every_entry_once(store: MetadataStore, limit: int) -> None:
    expected = {b"key %d" % number: b"value %d" % number for number in range(40)}
    await store.put(TABLE, [Put(key, value, NOT_EXISTS) for key, value in expected.items()])
    seen: list[tuple[bytes, bytes]] = []
    token = b""
    while True:
        page, token = await store.entries(TABLE, limit, token)
        if not page:
            break
        seen.extend((entry.key, entry.value) for entry in page)
    assert len(seen) == len(expected)
    assert dict(seen) == expected
    assert (await store.entries(TABLE, limit, token))[0] == []


async def test_an_iterated_version_can_be_written_under(store: MetadataStore) -> None:
    await store.put(TABLE, [Put(b"a", b"1", NOT_EXISTS)])
    (entry,), _ = await store.entries(TABLE, 10, b"")
    await store.put(TABLE, [Put(b"a", b"2", entry.version)])
    assert await values(store, b"a") == [b"2"]


async def test_tables_come_and_go(store: MetadataStore) -> None:
    await store.put(TABLE, [Put(b"a", b"1", NOT_EXISTS)])
    await store.create_table(TABLE)
    assert await values(store, b"a") == [b"1"]
    for _ in range(2):
        await store.delete_table(TABLE)
    with pytest.raises(NoSuchSegmentError):
        await store.get(TABLE, [b"a"])
    with pytest.raises(NoSuchSegmentError):
        await store.put(TABLE, [Put(b"a", b"1", NOT_EXISTS)])
    with pytest.raises(NoSuchSegmentError):
        await store.remove(TABLE, [(b"a", UNCONDITIONAL)])
    with pytest.raises(NoSuchSegmentError):
        await store.entries(TABLE, 10, b"")
    await store.create_table(TABLE)
    assert await values(store, b"a") == [None]


async def test_large_and_empty_values(store: MetadataStore) -> None:
    large = bytes(range(256)) * 2000
    await store.put(TABLE, [Put(b"large", large, NOT_EXISTS), Put(b"empty", b"", NOT_EXISTS)])
    assert await values(store, b"large", b"empty") == [large, b""]


async def test_the_largest_batch_and_what_is_too_large(store: MetadataStore) -> None:
    most = [Put(b"key %d" % number, b"x", NOT_EXISTS) for number in range(limits.TABLE_BATCH_KEYS_MAX)]
    assert len(await store.put(TABLE, most)) == limits.TABLE_BATCH_KEYS_MAX
    with pytest.raises(BadRequestError):
        await store.put(TABLE, [*most, Put(b"another", b"x", NOT_EXISTS)])
    with pytest.raises(BadRequestError):
        await store.put(TABLE, [Put(b"a", bytes(limits.TABLE_VALUE_MAX_BYTES + 1), UNCONDITIONAL)])
    assert await values(store, b"a", b"another") == [None, None]


async def test_a_table_with_keys_of_one_length_is_read_in_ranges(store: MetadataStore) -> None:
    for _ in range(2):
        await store.create_table(SORTED, 4)
    expected = {b"%04d" % number: b"value %d" % number for number in range(300)}
    await store.put(SORTED, [Put(key, expected[key], NOT_EXISTS) for key in sorted(expected, reverse=True)])
    assert [entry.key for entry in await store.span(SORTED, b"0010", b"0012", 10)] == [b"0010", b"0011", b"0012"]
    assert await store.span(SORTED, b"0300", b"9999", 10) == []
    seen: list[tuple[bytes, bytes]] = []
    first = b"0000"
    while page := await store.span(SORTED, first, b"\xff\xff\xff\xff", 7):
        assert len(page) <= 20, "about as many as asked for"
        seen.extend((entry.key, entry.value) for entry in page)
        first = (int.from_bytes(page[-1].key, "big") + 1).to_bytes(4, "big")
    assert seen == sorted(expected.items())
    (entry,) = await store.span(SORTED, b"0007", b"0007", 10)
    (version,) = await store.put(SORTED, [Put(b"0007", b"new", UNCONDITIONAL)])
    assert version > entry.version
    with pytest.raises(WriteConflictError):
        await store.remove(SORTED, [(b"0007", entry.version)])
    await store.remove(SORTED, [(b"0007", version)])
    with pytest.raises(WriteConflictError):
        await store.remove(SORTED, [(b"0007", version)])
    (later,) = await store.put(SORTED, [Put(b"0007", b"again", NOT_EXISTS)])
    assert later > version


async def test_what_a_table_with_keys_of_one_length_refuses(store: MetadataStore) -> None:
    await store.create_table(SORTED, 4)
    with pytest.raises(BadRequestError):
        await store.put(SORTED, [Put(b"12345", b"x", NOT_EXISTS)])
    with pytest.raises(BadRequestError):
        await store.span(SORTED, b"1", b"9999", 10)
    with pytest.raises(BadRequestError):
        await store.span(TABLE, b"0000", b"9999", 10)
    with pytest.raises(NoSuchSegmentError):
        await store.span("_system/_tables/none", b"0000", b"9999", 10)
    await store.delete_table(SORTED)
    with pytest.raises(NoSuchSegmentError):
        await store.span(SORTED, b"0000", b"9999", 10)
