"""Tables over a real container: what a restart and Tier 2 keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tailrace.common import limits
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.segmentstore import attributes
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import TableEntry, TableKey
from tailrace.storage.obstores import open_object_store

from ..conftest import eventually


class Owners:
    """Successive owners of one container."""

    def __init__(self) -> None:
        self._log = MemoryLogStore()
        self.store = open_object_store("memory://")
        self._epoch = 0
        self._container: Container | None = None

    async def next(self) -> Container:
        await self.close()
        self._epoch += 1
        cache = CacheManager(BlockCache(8 * limits.MIB))
        ports = ContainerPorts(
            log=MemoryLog(self._log),
            store=self.store,
            cache=cache,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            cluster_id=b"c" * 16,
        )
        self._container = Container(0, self._epoch, ports)
        await self._container.start(b"n" * 16)
        return self._container

    async def close(self) -> None:
        if self._container is not None:
            await self._container.close()


@pytest.fixture
async def owners() -> AsyncIterator[Owners]:
    owners = Owners()
    yield owners
    await owners.close()


@pytest.mark.parametrize("key_length", [0, 3, 16])
async def test_tables_survive_flushes_compaction_and_restarts(owners: Owners, key_length: int) -> None:
    expected: dict[bytes, TableEntry] = {}
    table = "scope/table/0"
    container = await owners.next()
    await TableService(container).create_table(table, key_length)
    for round_number in range(6):
        tables = TableService(container)
        for first in range(0, 600, 200):
            entries = [
                TableEntry(number.to_bytes(key_length or 4, "big"), b"%d" % (number + round_number))
                for number in range(first, first + 200)
                if (number + round_number) % 3
            ]
            versions = await tables.update(table, entries)
            for item, version in zip(entries, versions, strict=True):
                expected[item.key] = TableEntry(item.key, item.value, version)
        gone = list(expected)[round_number::7]
        await tables.remove(table, [TableKey(key) for key in gone])
        for key in gone:
            del expected[key]
        if round_number % 2:
            await container.flush_to_storage()
        if round_number % 3 == 2:
            await tables.compact(table)
        if round_number != 3:
            container = await owners.next()
        tables = TableService(container)
        keys = [number.to_bytes(key_length or 4, "big") for number in range(600)]
        assert await tables.get(table, keys) == [expected.get(key) for key in keys]
        found, _ = await tables.iterate_entries(table, 1000, b"", b"", b"")
        assert {item.key: item for item in found} == expected
        assert (await tables.info(table)).entry_count == len(expected)


@pytest.mark.parametrize("at_once", [1, 20])
async def test_a_change_looks_its_key_up_once(owners: Owners, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value that the plan needs is still in memory when the change is staged."""
    table, keys = "scope/table/0", [number.to_bytes(4, "big") for number in range(at_once)]
    container = await owners.next()
    tables = TableService(container)
    await tables.create_table(table, 0)
    await tables.update(table, [TableEntry(key, b"old") for key in keys])
    segment = container.state.by_name[table]
    update = await container.storage.attributes.build_update(segment)
    assert update is not None
    await container.core.commit_control(update.operation)
    await container.flush_to_storage()
    container = await owners.next()
    tables = TableService(container)
    lookups: list[int] = []
    get_many = attributes.get_many

    async def counted(
        state: attributes.IndexState, wanted: Sequence[bytes], pages: attributes.PageReader
    ) -> dict[bytes, int]:
        lookups.append(len(wanted))
        return await get_many(state, wanted, pages)

    monkeypatch.setattr(attributes, "get_many", counted)
    await asyncio.gather(*(tables.update(table, [TableEntry(key, b"new")]) for key in keys))
    assert lookups == [1] * at_once
    await tables.update(table, [TableEntry(keys[0], b"newer")])
    assert len(lookups) == at_once, "it is in memory"
    assert [found and found.value for found in await tables.get(table, keys)] == [b"newer", *[b"new"] * (at_once - 1)]


async def test_a_cold_entry_is_read_without_what_lies_far_from_it(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, entries = (
        "scope/table/0",
        [TableEntry(b"%04d" % number, bytes([number % 256]) * 8000) for number in range(400)],
    )
    container = await owners.next()
    tables = TableService(container)
    await tables.create_table(table, 0)
    for first in range(0, 400, 50):
        await tables.update(table, entries[first : first + 50])
    await container.flush_to_storage()
    tables = TableService(await owners.next())
    get_range, lengths = owners.store.get_range, []

    async def counted(key: str, offset: int, length: int) -> bytes:
        lengths.append(length)
        return await get_range(key, offset, length)

    monkeypatch.setattr(owners.store, "get_range", counted)
    (found,) = await tables.get(table, [b"0123"])
    assert found is not None
    assert found.value == entries[123].value
    assert 8000 <= sum(lengths) <= 2 * limits.TABLE_READ_ALIGNMENT_BYTES
    found_all = await tables.get(table, [entry.key for entry in entries])
    assert [each and each.value for each in found_all] == [entry.value for entry in entries]


@pytest.mark.parametrize("value_bytes", [100, 8000, 100_000])
async def test_a_cold_entry_across_a_boundary_of_reads_causes_no_read_ahead(
    owners: Owners, monkeypatch: pytest.MonkeyPatch, value_bytes: int
) -> None:
    """Its rest is read behind its beginning, as a reader of a stream would go on; nothing follows for a get."""
    table, step = "scope/table/0", limits.TABLE_READ_ALIGNMENT_BYTES
    entries = [TableEntry(b"%06d" % number, bytes(value_bytes)) for number in range(2_000_000 // value_bytes)]
    container = await owners.next()
    tables = TableService(container)
    await tables.create_table(table, 0)
    versions: list[int] = []
    for first in range(0, len(entries), 500):
        versions += await tables.update(table, entries[first : first + 500])
    await container.flush_to_storage()
    container = await owners.next()
    tables = TableService(container)
    first_read = min(limits.TABLE_ENTRY_READ_BYTES, value_bytes)
    number = next(number for number, at in enumerate(versions) if at > step and at % step + first_read > step)
    get_range, lengths = owners.store.get_range, []

    async def counted(key: str, offset: int, length: int) -> bytes:
        lengths.append(length)
        return await get_range(key, offset, length)

    monkeypatch.setattr(owners.store, "get_range", counted)
    (found,) = await tables.get(table, [entries[number].key])
    assert found is not None
    assert found.value == entries[number].value
    shared = container.storage.tier2.shared
    await eventually(lambda: not len(shared))  # what the get began and did not wait for
    assert sum(lengths) <= 6 * step, "the entry and pages of the index, each in one or two blocks or steps"
