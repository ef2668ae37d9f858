"""Compaction of tables: copies keep versions, removed keys stay removed, utilisation returns.

See docs/design.md#table-segments, docs/protocol/server.md#table-compaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tailrace.common import limits
from tailrace.common.errors import TableKeyBadVersionError
from tailrace.segmentstore.api import (
    TABLE_COMPACTION_OFFSET,
    TABLE_ENTRY_COUNT,
    TABLE_TOTAL_ENTRY_COUNT,
    SegmentContainer,
)
from tailrace.segmentstore.tables import reader
from tailrace.segmentstore.tables.compaction import needs_compaction
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import TableEntry, TableKey

TABLE = "scope/table/0"
T = TypeVar("T")


def two_buckets(key: bytes) -> bytes:
    """A hash that puts half of the keys into one bucket."""
    return bytes([key[-1] & 1]) * 16


@pytest.fixture(params=["sha256", "two buckets", "fixed"])
async def tables(request: pytest.FixtureRequest, container: SegmentContainer) -> TableService:
    weak = request.param == "two buckets"
    service = TableService(container, hash_function=two_buckets) if weak else TableService(container)
    await service.create_table(TABLE, 4 if request.param == "fixed" else 0)
    return service


def key_of(number: int) -> bytes:
    return number.to_bytes(4, "big")


async def fill(tables: TableService, count: int, value: bytes = b"v") -> dict[bytes, TableEntry]:
    entries = [TableEntry(key_of(number), value + b"%d" % number) for number in range(count)]
    versions = await tables.update(TABLE, entries)
    return {
        item.key: TableEntry(item.key, item.value, version) for item, version in zip(entries, versions, strict=True)
    }


async def contents(tables: TableService) -> dict[bytes, TableEntry]:
    """Everything an iterator finds, and the proof that lookups find the same."""
    found: list[TableEntry] = []
    fixed = (await tables.info(TABLE)).key_length > 0
    token = b""
    while True:
        first = (int.from_bytes(token, "big") + 1).to_bytes(4, "big") if fixed and token else b""
        page, token = await tables.iterate_entries(TABLE, 1000, b"" if fixed else token, first, b"")
        if not page:
            break
        found.extend(page)
    assert await tables.get(TABLE, [item.key for item in found]) == found
    return {item.key: item for item in found}


async def test_copies_keep_their_versions_and_the_beginning_is_truncated(tables: TableService) -> None:
    expected = await fill(tables, 30)
    end = (await tables.info(TABLE)).length
    for number in range(0, 30, 2):
        (version,) = await tables.update(TABLE, [TableEntry(key_of(number), b"new")])
        expected[key_of(number)] = TableEntry(key_of(number), b"new", version)
    for number in range(20, 25):
        await tables.remove(TABLE, [TableKey(key_of(number))])
        del expected[key_of(number)]
    assert await tables.compact(TABLE)
    info = await tables.info(TABLE)
    assert info.start_offset >= end
    assert info.entry_count == len(expected)
    assert await contents(tables) == expected
    cold = TableService(tables.container, hash_function=tables._access.hash_function)
    assert await contents(cold) == expected
    assert await cold.get(TABLE, [key_of(20)]) == [None]
    (version,) = await tables.update(TABLE, [TableEntry(key_of(1), b"next", expected[key_of(1)].version)])
    with pytest.raises(TableKeyBadVersionError):
        await tables.update(TABLE, [TableEntry(key_of(1), b"again", expected[key_of(1)].version)])


async def test_counters_follow(tables: TableService) -> None:
    await fill(tables, 20)
    await fill(tables, 10)
    await tables.remove(TABLE, [TableKey(key_of(number)) for number in range(5)])
    for _ in range(3):
        await tables.compact(TABLE)
        core = (await tables.container.info(TABLE)).core_attributes
        assert core[TABLE_ENTRY_COUNT] == core[TABLE_TOTAL_ENTRY_COUNT] == 15
        info = await tables.info(TABLE)
        assert info.start_offset == core[TABLE_COMPACTION_OFFSET]


async def test_nothing_to_compact(tables: TableService) -> None:
    assert not await tables.compact(TABLE)
    await tables.update(TABLE, [TableEntry(key_of(1), b"v")])
    await tables.remove(TABLE, [TableKey(key_of(1))])
    assert await tables.compact(TABLE)
    info = await tables.info(TABLE)
    assert (info.start_offset, info.entry_count) == (info.length, 0)
    assert not await tables.compact(TABLE)


async def test_due_tables_are_compacted_until_they_are_used_enough(tables: TableService) -> None:
    value = bytes(2000)
    for _ in range(12):
        expected = await fill(tables, 100, value)
    assert needs_compaction(await tables.container.info(TABLE))
    assert await tables.compact_due() >= 1
    properties = await tables.container.info(TABLE)
    assert not needs_compaction(properties)
    assert properties.length - properties.start_offset < 2 * 100 * 2100
    assert await contents(tables) == expected
    assert await tables.compact_due() == 0


async def test_deleted_tables_are_not_due(tables: TableService) -> None:
    await fill(tables, 10, bytes(20_000))
    await tables.delete_table(TABLE, False)
    assert await tables.compact_due() == 0


async def test_small_and_well_used_tables_are_not_due(tables: TableService) -> None:
    await fill(tables, 10)
    await fill(tables, 10)
    assert not needs_compaction(await tables.container.info(TABLE))
    await fill(tables, 1000, bytes(1000))
    assert not needs_compaction(await tables.container.info(TABLE))
    assert await tables.compact_due() == 0


async def test_pass_is_bounded(tables: TableService, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await fill(tables, 300, bytes(10_000))
    monkeypatch.setattr(limits, "TABLE_COMPACTION_PASS_BYTES", 256 * limits.KIB)
    before = await tables.info(TABLE)
    passes = 0
    while (await tables.info(TABLE)).start_offset < before.length:
        start = (await tables.info(TABLE)).start_offset
        assert await tables.compact(TABLE)
        passes += 1
        assert (await tables.info(TABLE)).start_offset - start <= 256 * limits.KIB
    assert passes >= 12
    assert await contents(tables) == expected


async def test_compaction_amid_changes_and_reads_loses_nothing(tables: TableService) -> None:
    expected: dict[bytes, bytes] = {}

    async def write(worker: int) -> None:
        for step in range(25):
            key, value = key_of(worker * 10 + step % 5), b"%d-%d" % (worker, step)
            await tables.update(TABLE, [TableEntry(key, value)])
            expected[key] = value
            if step % 7 == 6:
                await tables.remove(TABLE, [TableKey(key)])
                del expected[key]

    async def read() -> None:
        while not done:
            found = await tables.get(TABLE, [key_of(number) for number in range(0, 50, 3)])
            assert all(item is None or item.key == key_of(3 * at) for at, item in enumerate(found))
            await tables.iterate_keys(TABLE, 100, b"", b"", b"")
            await asyncio.sleep(0)

    async def compact() -> None:
        while not done:
            await tables.compact(TABLE)
            await asyncio.sleep(0)

    done = False
    others = [asyncio.create_task(read()), asyncio.create_task(compact())]
    await asyncio.gather(*(write(worker) for worker in range(5)))
    done = True
    await asyncio.gather(*others)
    assert {key: item.value for key, item in (await contents(tables)).items()} == expected
    core = (await tables.container.info(TABLE)).core_attributes
    assert core[TABLE_ENTRY_COUNT] == len(expected)


async def test_delta_after_compaction(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    expected = await fill(tables, 10)
    removed = key_of(3)
    await tables.remove(TABLE, [TableKey(removed)])
    del expected[removed]
    await tables.compact(TABLE)
    info = await tables.info(TABLE)
    for position, should_clear in ((0, True), (info.start_offset - 1, True), (info.start_offset, False)):
        delta = await tables.delta(TABLE, position, 100)
        assert {item.key: item for item in delta.entries} == expected
        assert (delta.should_clear, delta.reached_end, delta.last_position) == (should_clear, True, info.length)


async def test_a_follower_of_a_table_that_became_empty_is_cleared_once(container: SegmentContainer) -> None:
    """Behind its position there is nothing left to scan: the removals went with the compaction."""
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    await fill(tables, 10)
    position = (await tables.delta(TABLE, 0, 100)).last_position
    await tables.remove(TABLE, [TableKey(key_of(number)) for number in range(10)])
    await tables.compact(TABLE)
    info = await tables.info(TABLE)
    assert position < info.start_offset == info.length
    delta = await tables.delta(TABLE, position, 100)
    assert (delta.entries, delta.should_clear, delta.reached_end) == ((), True, True)
    assert delta.last_position == info.length
    again = await tables.delta(TABLE, delta.last_position, 100)
    assert (again.entries, again.should_clear, again.reached_end, again.last_position) == ((), False, True, 0)
    await tables.update(TABLE, [TableEntry(key_of(1), b"v")])
    later = await tables.delta(TABLE, delta.last_position, 100)
    assert ([entry.key for entry in later.entries], later.should_clear) == ([key_of(1)], False)


async def test_removed_key_never_returns_in_deltas(container: SegmentContainer, monkeypatch: Any) -> None:
    """Passes that end between an entry, its copies and its tombstone."""
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    monkeypatch.setattr(limits, "TABLE_COMPACTION_PASS_BYTES", 100)
    for number in range(6):
        await tables.update(TABLE, [TableEntry(key_of(number), b"v")])
    await tables.compact(TABLE)
    await tables.remove(TABLE, [TableKey(key_of(0)), TableKey(key_of(4))])
    for _ in range(12):
        await tables.compact(TABLE)
        delta = await tables.delta(TABLE, 0, 100)
        assert {item.key for item in delta.entries} == {key_of(number) for number in (1, 2, 3, 5)}


async def test_pass_that_ends_within_a_bucket_moves_all_of_it(
    container: SegmentContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = TableService(container, hash_function=lambda _: bytes(16))
    await tables.create_table(TABLE, 0)
    (version,) = await tables.update(TABLE, [TableEntry(b"a", b"1")])
    (other,) = await tables.update(TABLE, [TableEntry(b"b", b"2")])  # writes a copy of a, then b
    monkeypatch.setattr(limits, "TABLE_COMPACTION_PASS_BYTES", other + 5)
    assert await tables.compact(TABLE)
    assert (await tables.info(TABLE)).start_offset == other
    cold = TableService(container, hash_function=lambda _: bytes(16))
    assert await cold.get(TABLE, [b"a", b"b"]) == [TableEntry(b"a", b"1", version), TableEntry(b"b", b"2", other)]


async def test_buckets_beyond_the_pass_are_left_alone(container: SegmentContainer, monkeypatch: Any) -> None:
    tables = TableService(container, hash_function=lambda _: bytes(16))
    await tables.create_table(TABLE, 0)
    await tables.update(TABLE, [TableEntry(b"a", b"1")])
    await tables.update(TABLE, [TableEntry(b"b", b"2")])
    monkeypatch.setattr(limits, "TABLE_COMPACTION_PASS_BYTES", (await tables.info(TABLE)).length)
    await tables.update(TABLE, [TableEntry(b"b", b"3")])
    length = (await tables.info(TABLE)).length
    assert await tables.compact(TABLE)
    assert (await tables.info(TABLE)).length == length, "nothing in the pass was alive"


async def test_pass_that_loses_a_race_can_be_repeated(model_container: Any) -> None:
    model = model_container()
    tables = TableService(model)
    await tables.create_table(TABLE, 0)
    expected = await fill(tables, 10)
    model.hold()
    compaction = asyncio.create_task(tables.compact(TABLE))
    for _ in range(20):
        await asyncio.sleep(0)
    foreign = TableService(model)  # does not know what is in flight
    update = asyncio.create_task(foreign.update(TABLE, [TableEntry(key_of(1), b"w")]))
    for _ in range(20):
        await asyncio.sleep(0)
    model.release()
    await compaction
    (version,) = await update
    expected[key_of(1)] = TableEntry(key_of(1), b"w", version)
    assert await contents(tables) == expected
    await tables.compact(TABLE)
    assert await contents(tables) == expected


class PerTurn:
    """Counts calls in each turn of the event loop."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self._turn = 0

    def counted(self, function: Callable[..., T]) -> Callable[..., T]:
        def call(*args: Any) -> T:
            self.calls[self._turn] += 1
            return function(*args)

        return call

    async def count_turns(self) -> None:
        while True:
            self._turn += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize("work", ["delta", "compact"])
async def test_reads_of_many_records_leave_turns_to_others(
    container: SegmentContainer, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setattr(limits, "TABLE_RECORDS_PER_TURN", 10)
    decoded, hashed = PerTurn(), PerTurn()
    monkeypatch.setattr(reader, "decode_record", decoded.counted(reader.decode_record))
    service = TableService(container, hash_function=hashed.counted(lambda key: key.ljust(16)))
    await service.create_table(TABLE, 0)
    for _ in range(2):
        await fill(service, 200)
    counting = [asyncio.create_task(each.count_turns()) for each in (decoded, hashed)]
    await asyncio.sleep(0)
    hashed.calls.clear()
    if work == "delta":
        assert len((await service.delta(TABLE, 0, 1000)).entries) == 200
    else:
        assert await service.compact(TABLE)
        assert sum(hashed.calls.values()) == 400
    for each in counting:
        each.cancel()
    assert sum(decoded.calls.values()) >= 400
    assert max(decoded.calls.values()) <= 10
    assert max(hashed.calls.values(), default=0) <= 10


async def test_delta_of_long_records_leaves_turns_to_others(
    container: SegmentContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TABLE_SCAN_READ_BYTES", 1000)
    decoded = PerTurn()
    monkeypatch.setattr(reader, "decode_record", decoded.counted(reader.decode_record))
    service = TableService(container)
    await service.create_table(TABLE, 0)
    await fill(service, 50, value=bytes(200))
    counting = asyncio.create_task(decoded.count_turns())
    await asyncio.sleep(0)
    assert len((await service.delta(TABLE, 0, 1000)).entries) == 50
    counting.cancel()
    assert max(decoded.calls.values()) <= 4
