"""What a table answers while changes are on their way, and what it never answers before they are durable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import (
    BadOffsetError,
    BadRequestError,
    ContainerStoppedError,
    DiskFullError,
    OverloadedError,
    TableKeyBadVersionError,
    TableNotEmptyError,
    WriteConflictError,
)
from tailrace.segmentstore.api import AppendRequest, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.record import HEADER_BYTES, NO_CHAIN, OWN_OFFSET, Record, encode_record
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import NOT_EXISTS, TableEntry, TableKey

from .conftest import TABLE, turns


async def test_changes_are_pipelined(model: Any, tables: TableService) -> None:
    model.hold()
    updates = [asyncio.create_task(tables.update(TABLE, [TableEntry(b"k%d" % n, b"v")])) for n in range(50)]
    await turns(200)
    records = [encode_record(b"k%d" % n, b"v", OWN_OFFSET, NO_CHAIN, shared=False) for n in range(50)]
    assert model.segments[TABLE].data == b"".join(records), "all are staged, none waits for the commit of another"
    assert not any(update.done() for update in updates)
    model.release()
    versions = [version for (version,) in await asyncio.gather(*updates)]
    assert versions == sorted(set(versions))


async def test_conditions_see_what_is_in_flight(model: Any, tables: TableService) -> None:
    model.hold()
    first = asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"1", NOT_EXISTS)]))
    await turns()
    second = asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"2", 0)]))
    third = asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"3", 0)]))
    at_offset = asyncio.create_task(tables.update(TABLE, [TableEntry(b"j", b"4")], 0))
    await turns()
    assert await tables.get(TABLE, [b"k"]) == [None], "reads see committed entries only"
    assert not third.done()
    assert not at_offset.done()
    model.release()
    assert await first == [0]
    (version,) = await second
    with pytest.raises(TableKeyBadVersionError):
        await third
    with pytest.raises(BadOffsetError):
        await at_offset
    assert await tables.get(TABLE, [b"k"]) == [TableEntry(b"k", b"2", version)]


async def test_commit_of_an_earlier_change_does_not_hide_a_later_one(model: Any, tables: TableService) -> None:
    model.hold()
    updates = []
    for number in range(2):
        updates.append(asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"%d" % number)])))
        await turns()
    model.commit_next()
    last = asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"2", HEADER_BYTES + 2)]))
    await turns()
    assert model.staged == 2, "the third builds on the second, which is still on its way"
    model.release()
    assert (await tables.get(TABLE, [b"k"]))[0] is not None
    versions = [version for (version,) in await asyncio.gather(*updates, last)]
    assert versions == sorted(set(versions))


async def test_refusals_and_no_ops_wait_until_what_they_rest_on_is_durable(model: Any, tables: TableService) -> None:
    await tables.update(TABLE, [TableEntry(b"k", b"v")])
    model.hold()
    removal = asyncio.create_task(tables.remove(TABLE, [TableKey(b"k")]))
    await turns()
    again = asyncio.create_task(tables.remove(TABLE, [TableKey(b"k")]))
    insert = asyncio.create_task(tables.update(TABLE, [TableEntry(b"x", b"v")]))
    refused = asyncio.create_task(tables.update(TABLE, [TableEntry(b"x", b"w", NOT_EXISTS)]))
    await turns()
    assert not any(task.done() for task in (removal, again, insert, refused))
    model.stop()
    for task in (removal, again, insert, refused):
        with pytest.raises(ContainerStoppedError):
            await task


async def test_a_refused_change_leaves_later_ones_on_those_in_flight(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, full = model.submit_append, False

    def submit_unless_full(request: AppendRequest) -> asyncio.Future[None] | None:
        if not full:
            future: asyncio.Future[None] | None = submit(request)
            return future
        request.failed(request, DiskFullError("the log's disk is full"))
        return None

    monkeypatch.setattr(model, "submit_append", submit_unless_full)
    model.hold()
    first = asyncio.create_task(tables.update(TABLE, [TableEntry(b"a", b"1")]))
    await turns()
    full = True
    with pytest.raises(DiskFullError):
        await tables.update(TABLE, [TableEntry(b"b", b"2")])
    full = False
    last = asyncio.create_task(tables.update(TABLE, [TableEntry(b"c", b"3")]))
    await turns()
    assert model.staged == 2, "the last one does not wait for the first one's commit"
    model.release()
    assert await first == [0]
    assert (await last)[0] > 0
    assert [entry is not None for entry in await tables.get(TABLE, [b"a", b"b", b"c"])] == [True, False, True]


async def test_a_change_that_finds_no_room_in_time_gives_its_place_up(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of what waits for room once kept it, with up to 8 MiB, until Tier 2 was back."""
    rooms: list[asyncio.Future[None]] = []

    def without_room(_: AppendRequest) -> asyncio.Future[None]:
        rooms.append(asyncio.get_running_loop().create_future())
        return rooms[-1]

    monkeypatch.setattr(model, "submit_append", without_room)
    monkeypatch.setattr(limits, "REQUEST_DEADLINE_S", 0.05)
    with pytest.raises(OverloadedError):
        await tables.update(TABLE, [TableEntry(b"k", b"v")])
    assert [room.cancelled() for room in rooms] == [True]


async def test_cancelled_caller_leaves_the_change_to_finish(model: Any, tables: TableService) -> None:
    model.hold()
    update = asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"v")]))
    await turns()
    waiting = asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"w", NOT_EXISTS)]))
    await turns()
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    model.release()
    with pytest.raises(TableKeyBadVersionError):
        await waiting
    assert await tables.get(TABLE, [b"k"]) == [TableEntry(b"k", b"v", 0)]
    assert tables._access.tables_in_use == 0, "nothing is kept for an idle table"


async def test_delete_if_empty_counts_what_is_in_flight(model: Any, tables: TableService) -> None:
    model.hold()
    update = asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"v")]))
    await turns()
    deletion = asyncio.create_task(tables.delete_table(TABLE, True))
    await turns()
    model.release()
    with pytest.raises(TableNotEmptyError):
        await deletion
    assert await update == [0]


async def test_foreign_append_is_noticed_and_the_change_repeated(model: Any, tables: TableService) -> None:
    await tables.update(TABLE, [TableEntry(b"k", b"1")])
    model.hold()
    other = TableService(model)  # another writer of the same segment, unknown to this one
    mine = [asyncio.create_task(tables.update(TABLE, [TableEntry(b"k", b"a%d" % n)])) for n in range(2)]
    foreign = [asyncio.create_task(other.update(TABLE, [TableEntry(b"k", b"b%d" % n)])) for n in range(2)]
    await turns()
    model.release()
    versions = [version for (version,) in await asyncio.gather(*mine, *foreign)]
    (found,) = await tables.get(TABLE, [b"k"])
    assert found is not None
    assert found.version == max(versions)
    assert len(set(versions)) == 4
    assert (await tables.info(TABLE)).entry_count == 1


async def test_endless_conflicts_give_up(model: Any, tables: TableService) -> None:
    await tables.update(TABLE, [TableEntry(b"k", b"1")])
    bucket = next(iter(await model.iterate_attributes(TABLE, bytes(16), b"\xff" * 16, 1)))[0]
    model.hold()  # committed and staged state stay apart for ever
    foreign = asyncio.create_task(
        model.update_attributes(TABLE, [AttributeUpdate(bucket, AttributeUpdateType.REPLACE, 10**6)])
    )
    await turns()
    with pytest.raises(WriteConflictError):
        await tables.update(TABLE, [TableEntry(b"k", b"2")])
    model.release()
    await foreign


# -- the cache of hot entries ----------------------------------------------------------------------------------------


async def test_hot_entries_cost_no_segment_read(model: Any, tables: TableService) -> None:
    await tables.update(TABLE, [TableEntry(b"k%d" % n, b"v" * 50) for n in range(100)])
    before = model.reads
    for _ in range(3):
        assert None not in await tables.get(TABLE, [b"k%d" % n for n in range(100)])
    (entry,) = await tables.get(TABLE, [b"k5"])
    assert entry is not None
    await tables.update(TABLE, [TableEntry(b"k5", b"w", entry.version)])
    assert model.reads == before
    cold = TableService(model)
    await cold.get(TABLE, [b"k7"])
    assert model.reads == before + 1
    await cold.get(TABLE, [b"k7"])
    assert model.reads == before + 1


def test_cache_keeps_its_bound_and_the_recently_used() -> None:
    cache = EntryCache(10 * (1000 + limits.TABLE_ENTRY_CACHE_OVERHEAD_BYTES))
    records = [Record(b"k" * 471, b"v" * 500, n, n, -1, False) for n in range(20)]
    assert records[0].length == 1000
    for record in records[:10]:
        cache.put(0, 1, record)
    assert cache.get(0, 1, 0) is records[0]
    cache.put(0, 1, records[0])
    for record in records[10:]:
        cache.put(0, 1, record)
        assert cache.get(0, 1, 0) is records[0]
        assert cache.used_bytes <= 10 * (1000 + limits.TABLE_ENTRY_CACHE_OVERHEAD_BYTES)
    assert len(cache) == 10
    assert cache.get(0, 1, 1) is None
    assert cache.get(0, 2, 0) is None
    assert cache.get(1, 1, 0) is None
    cache.put(0, 1, Record(b"k", b"v" * limits.TABLE_ENTRY_CACHED_MAX_BYTES, 99, 99, -1, False))
    assert cache.get(0, 1, 99) is None


async def test_puts_that_look_up_the_index_share_frames(real_container: Container) -> None:
    """Keys that are new, or whose values were evicted, are looked up without losing the turn of the loop."""
    before = 2 * limits.ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX
    container = real_container
    service = TableService(container, EntryCache())
    await service.create_table(TABLE, 0)
    for first in range(0, before + 500, 500):
        await service.update(TABLE, [TableEntry(b"k%d" % number, b"v") for number in range(first, first + 500)])
    await container.flush_to_storage()
    segment = container.state.by_name[TABLE]
    container.storage.attributes.make_room(segment)
    assert segment.index.root_length
    assert len(segment.latest) < before, "the oldest were evicted"
    await service.update(TABLE, [TableEntry(b"pages are read", b"")])
    log, count = container.core.log, 256
    frames = log.next_sequence
    keys = [b"new %d" % number for number in range(count // 2)] + [b"k%d" % number for number in range(count // 2)]
    puts = [service.update(TABLE, [TableEntry(key, b"w")]) for key in keys]
    versions = [version for (version,) in await asyncio.gather(*puts)]
    # Not always in the order of the calls: one whose index page was just replaced reads it before it takes a turn.
    assert len(set(versions)) == count
    assert log.next_sequence - frames <= count // 8
    found = await service.get(TABLE, keys)
    assert [entry.version for entry in found if entry is not None] == versions


async def test_a_get_of_more_than_a_reply_may_have_is_refused_at_the_group_that_exceeds_it(
    tables: TableService, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that group is the last one."""
    keys = [b"%d" % number for number in range(8)]
    await tables.update(TABLE, [TableEntry(key, bytes(200)) for key in keys])
    monkeypatch.setattr(limits, "TABLE_ENTRY_READS_MAX", 4)
    monkeypatch.setattr(limits, "FRAME_MAX_BYTES", 1000)
    assert len(await TableService(model).get(TABLE, keys[:4])) == 4
    with pytest.raises(BadRequestError, match="more than 1000 bytes"):
        await TableService(model).get(TABLE, keys)
