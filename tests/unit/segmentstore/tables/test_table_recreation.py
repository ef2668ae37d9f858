"""A table that is deleted and created again during requests: no request mixes the two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.segmentstore.api import SegmentContainer
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import NO_VERSION, TableEntry

TABLE = "scope/table/0"


def entries(value: bytes, count: int) -> list[TableEntry]:
    return [TableEntry(b"key%d" % number, value, NO_VERSION) for number in range(count)]


@pytest.fixture
async def tables(container: SegmentContainer) -> TableService:
    """A table with six entries of a hundred bytes."""
    service = TableService(container, EntryCache(0))
    await service.create_table(TABLE, 0)
    for entry in entries(b"old" * 33, 6):
        await service.update(TABLE, [entry])
    return service


def before_call(
    monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, number: int, event: Callable[[], Awaitable[None]]
) -> None:
    """Let something happen right before the n-th call of a coroutine method."""
    original = getattr(owner, method)
    calls = 0

    async def hooked(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            await event()
        return await original(*arguments, **more)

    monkeypatch.setattr(owner, method, hooked)


def recreation(container: SegmentContainer, value: bytes, count: int) -> Callable[[], Awaitable[None]]:
    async def recreate() -> None:
        other = TableService(container)
        await other.delete_table(TABLE, must_be_empty=False)
        await other.create_table(TABLE, 0)
        if count:
            await other.update(TABLE, entries(value, count))

    return recreate


@pytest.mark.parametrize("cached", [False, True])
async def test_an_iterator_over_a_recreated_table(
    tables: TableService, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    if cached:
        tables = TableService(tables.container)
        await tables.get(TABLE, [entry.key for entry in entries(b"", 6)])
    monkeypatch.setattr(limits, "TABLE_ITERATOR_RUN", 1)
    new = entries(b"new" * 33, 6)
    before_call(monkeypatch, tables.container, "iterate_attributes", 3, recreation(tables.container, b"new" * 33, 6))
    found, _ = await tables.iterate_entries(TABLE, 100, b"", b"", b"")
    assert sorted((entry.key, entry.value) for entry in found) == [(entry.key, entry.value) for entry in new]


@pytest.mark.parametrize("count", [0, 1, 9])
async def test_reads_of_a_recreated_table(tables: TableService, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    before_call(monkeypatch, tables.container, "read_exact", 1, recreation(tables.container, b"x" * 37, count))
    keys = [entry.key for entry in entries(b"", 6)]
    found = [entry and entry.value for entry in await tables.get(TABLE, keys)]
    known = min(count, 6)
    assert found in ([b"old" * 33] * 6, [None] * 6, [b"x" * 37] * known + [None] * (6 - known))


@pytest.mark.parametrize("count", [0, 1, 9])
async def test_a_delta_of_a_recreated_table(tables: TableService, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(limits, "TABLE_SCAN_READ_BYTES", 200)
    before_call(monkeypatch, tables.container, "read_exact", 2, recreation(tables.container, b"x" * 37, count))
    delta = await tables.delta(TABLE, 0, 100)
    assert delta.reached_end
    assert {entry.key: entry.value for entry in delta.entries} == {
        entry.key: entry.value for entry in entries(b"x" * 37, count)
    }


@pytest.mark.parametrize("count", [0, 1, 9])
async def test_an_update_of_a_recreated_table(
    tables: TableService, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    before_call(monkeypatch, tables.container, "read_exact", 1, recreation(tables.container, b"x" * 37, count))
    await tables.update(TABLE, [TableEntry(b"key0", b"mine", NO_VERSION)])
    wanted = {entry.key: entry.value for entry in entries(b"x" * 37, count)} | {b"key0": b"mine"}
    found, _ = await TableService(tables.container).iterate_entries(TABLE, 100, b"", b"", b"")
    assert {entry.key: entry.value for entry in found} == wanted


@pytest.mark.parametrize("method", ["read_exact", "get_attributes"])
@pytest.mark.parametrize("count", [0, 1, 40])
async def test_compaction_of_a_recreated_table(
    tables: TableService, monkeypatch: pytest.MonkeyPatch, method: str, count: int
) -> None:
    before_call(monkeypatch, tables.container, method, 1, recreation(tables.container, b"x" * 37, count))
    await tables.compact(TABLE)
    info = await tables.info(TABLE)
    assert (info.start_offset, info.entry_count) == (0, count)
    found, _ = await TableService(tables.container).iterate_entries(TABLE, 100, b"", b"", b"")
    assert {entry.key: entry.value for entry in found} == {
        entry.key: entry.value for entry in entries(b"x" * 37, count)
    }


async def test_compaction_does_not_truncate_a_recreated_table(
    tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def recreate() -> None:
        await tables.delete_table(TABLE, must_be_empty=False)
        await tables.create_table(TABLE, 0)
        await tables.update(TABLE, entries(b"new" * 33, 40))

    async def meanwhile() -> None:
        """As when the truncation waits for room in the pipeline."""
        recreating.append(asyncio.ensure_future(recreate()))
        await asyncio.wait(recreating, timeout=0.1)

    recreating: list[asyncio.Future[None]] = []
    before_call(monkeypatch, tables.container, "truncate", 1, meanwhile)
    await tables.compact(TABLE)
    await recreating[0]
    info = await tables.info(TABLE)
    assert (info.start_offset, info.entry_count) == (0, 40)


async def test_a_cache_that_is_still_empty_is_shared(container: SegmentContainer) -> None:
    shared = EntryCache()
    service = TableService(container, shared)
    await service.create_table(TABLE, 0)
    await service.update(TABLE, entries(b"value", 3))
    assert len(shared) == 3
