"""What table segments promise (docs/protocol/wire.md#tables), over the model container and the real one."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.common import limits
from tailrace.common.errors import (
    BadOffsetError,
    BadRequestError,
    ConditionFailedError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    TableKeyBadVersionError,
    TableKeyNotExistsError,
    TableNotEmptyError,
    UnsupportedError,
)
from tailrace.segmentstore.api import SegmentContainer
from tailrace.segmentstore.tables.record import HEADER_BYTES
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import NO_VERSION, NOT_EXISTS, TableEntry, TableInfo, TableKey

TABLE = "scope/group_kvtable/0.#epoch.0"


def entry(key: bytes, value: bytes = b"v", version: int = NO_VERSION) -> TableEntry:
    return TableEntry(key, value, version)


def one_bucket(_: bytes) -> bytes:
    """A hash that always collides."""
    return b"\x07" * 16


def like_core(_: bytes) -> bytes:
    """A hash that looks like the id of a core attribute."""
    return b"\x80" + bytes(7) + b"\x00\x00\x00\x00\x00\x10\x00\x01"


@pytest.fixture(params=["sha256", "one bucket", "like core"])
def tables(request: pytest.FixtureRequest, container: SegmentContainer) -> TableService:
    if request.param == "sha256":
        return TableService(container)
    return TableService(container, hash_function=one_bucket if request.param == "one bucket" else like_core)


@pytest.fixture(params=[0, 4, 16, 256])
async def layout(request: pytest.FixtureRequest, tables: TableService) -> int:
    """A table of each layout called TABLE; the value is its key length."""
    await tables.create_table(TABLE, request.param)
    return int(request.param)


def key_of(number: int, key_length: int) -> bytes:
    return number.to_bytes(key_length or 3, "big")


# -- updates and conditions ------------------------------------------------------------------------------------------


async def test_versions_are_offsets_and_rise(tables: TableService, layout: int) -> None:
    keys = [key_of(number, layout) for number in range(3)]
    first = await tables.update(TABLE, [entry(key, b"value") for key in keys])
    size = HEADER_BYTES + len(keys[0]) + 5
    assert first == [0, size, 2 * size]
    second = await tables.update(TABLE, [entry(keys[1], b"x")])
    assert second[0] >= 3 * size
    found = await tables.get(TABLE, [keys[1], keys[0], key_of(9, layout)])
    assert found == [TableEntry(keys[1], b"x", second[0]), TableEntry(keys[0], b"value", first[0]), None]
    info = await tables.info(TABLE)
    assert (info.start_offset, info.entry_count, info.key_length) == (0, 3, layout)


async def test_insert_only_if_absent(tables: TableService, layout: int) -> None:
    key = key_of(1, layout)
    (version,) = await tables.update(TABLE, [entry(key, b"a", NOT_EXISTS)])
    with pytest.raises(TableKeyBadVersionError):
        await tables.update(TABLE, [entry(key, b"b", NOT_EXISTS)])
    assert await tables.get(TABLE, [key]) == [TableEntry(key, b"a", version)]


async def test_update_with_a_version_needs_that_version(tables: TableService, layout: int) -> None:
    key, absent = key_of(1, layout), key_of(2, layout)
    (version,) = await tables.update(TABLE, [entry(key, b"a")])
    with pytest.raises(TableKeyBadVersionError):
        await tables.update(TABLE, [entry(key, b"b", version + 1)])
    with pytest.raises(TableKeyNotExistsError):
        await tables.update(TABLE, [entry(absent, b"b", version)])
    (newer,) = await tables.update(TABLE, [entry(key, b"b", version)])
    with pytest.raises(TableKeyBadVersionError):
        await tables.update(TABLE, [entry(key, b"c", version)])
    assert await tables.get(TABLE, [key]) == [TableEntry(key, b"b", newer)]


async def test_one_failed_condition_rejects_the_whole_batch(tables: TableService, layout: int) -> None:
    keys = [key_of(number, layout) for number in range(3)]
    versions = await tables.update(TABLE, [entry(key, b"old") for key in keys])
    with pytest.raises(ConditionFailedError):
        await tables.update(TABLE, [entry(keys[0], b"new"), entry(keys[1], b"new", versions[1] + 7), entry(keys[2])])
    with pytest.raises(ConditionFailedError):
        await tables.remove(TABLE, [TableKey(keys[0]), TableKey(keys[1], versions[0])])
    assert await tables.get(TABLE, keys) == [
        TableEntry(key, b"old", version) for key, version in zip(keys, versions, strict=True)
    ]


async def test_repeated_key_is_checked_against_the_state_before_and_the_last_wins(
    tables: TableService, layout: int
) -> None:
    outer, inner, other = (key_of(number, layout) for number in (6, 7, 8))
    (version,) = await tables.update(TABLE, [entry(outer, b"0")])
    versions = await tables.update(
        TABLE,
        [
            entry(inner, b"1", NOT_EXISTS),
            entry(outer, b"first", version),
            entry(inner, b"2", NOT_EXISTS),
            entry(outer, b"second", version),
            entry(other, b"3", NOT_EXISTS),
        ],
    )
    assert versions == sorted(set(versions))
    assert min(versions) > version
    assert await tables.get(TABLE, [outer, inner, other]) == [
        TableEntry(outer, b"second", versions[3]),
        TableEntry(inner, b"2", versions[2]),
        TableEntry(other, b"3", versions[4]),
    ]
    assert (await tables.info(TABLE)).entry_count == 3


async def test_removals(tables: TableService, layout: int) -> None:
    keys = [key_of(number, layout) for number in range(4)]
    versions = await tables.update(TABLE, [entry(key) for key in keys])
    await tables.remove(TABLE, [TableKey(keys[0], versions[0]), TableKey(keys[0], versions[0]), TableKey(keys[2])])
    assert [found is None for found in await tables.get(TABLE, keys)] == [True, False, True, False]
    assert (await tables.info(TABLE)).entry_count == 2
    await tables.remove(TABLE, [TableKey(keys[0]), TableKey(keys[0], NOT_EXISTS)])
    with pytest.raises(TableKeyNotExistsError):
        await tables.remove(TABLE, [TableKey(keys[0], versions[0])])
    with pytest.raises(TableKeyBadVersionError):
        await tables.remove(TABLE, [TableKey(keys[1], versions[0])])
    with pytest.raises(TableKeyBadVersionError):
        await tables.remove(TABLE, [TableKey(keys[1], NOT_EXISTS)])
    (again,) = await tables.update(TABLE, [entry(keys[0], b"again", NOT_EXISTS)])
    assert again > max(versions)
    assert (await tables.info(TABLE)).entry_count == 3


async def test_removal_appends_a_tombstone_to_hash_tables_only(tables: TableService, layout: int) -> None:
    key = key_of(1, layout)
    await tables.update(TABLE, [entry(key, b"value")])
    before = (await tables.info(TABLE)).length
    await tables.remove(TABLE, [TableKey(key)])
    grown = (await tables.info(TABLE)).length - before
    assert grown == (0 if layout else HEADER_BYTES + len(key))


async def test_table_offset_must_be_the_length(tables: TableService, layout: int) -> None:
    key = key_of(1, layout)
    await tables.update(TABLE, [entry(key)], 0)
    length = (await tables.info(TABLE)).length
    for change in (
        tables.update(TABLE, [entry(key, b"w")], length - 1),
        tables.update(TABLE, [], 0),
        tables.remove(TABLE, [TableKey(key)], length + 1),
    ):
        with pytest.raises(BadOffsetError) as failure:
            await change
        assert failure.value.actual == length
    await tables.remove(TABLE, [TableKey(key)], length)
    assert await tables.get(TABLE, [key]) == [None]


async def test_empty_batches_change_nothing(tables: TableService, layout: int) -> None:
    assert await tables.update(TABLE, []) == []
    await tables.remove(TABLE, [])
    assert await tables.info(TABLE) == TableInfo(0, 0, 0, layout)


async def test_values_may_be_empty_and_large(tables: TableService, layout: int) -> None:
    keys = [key_of(number, layout) for number in range(3)]
    values = [b"", b"x" * limits.TABLE_VALUE_MAX_BYTES, b"y" * 70_000]
    await tables.update(TABLE, [entry(key, value) for key, value in zip(keys, values, strict=True)])
    cold = TableService(tables.container, hash_function=tables._access.hash_function)
    for service in (tables, cold):
        found = await service.get(TABLE, keys)
        assert [item.value for item in found if item is not None] == values


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry(b"")], "key of 0 bytes"),
        ([entry(b"k" * 8193)], "key of 8193 bytes"),
        ([entry(b"k", bytes(limits.TABLE_VALUE_MAX_BYTES + 1))], "table value of"),
        ([entry(b"k", bytes(limits.MIB - 8192))] * 33, "table batch of"),
        ([entry(number.to_bytes(2, "big")) for number in range(1017)], "1017 keys"),
    ],
)
async def test_limits_are_checked(container: SegmentContainer, entries: list[TableEntry], message: str) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    with pytest.raises(BadRequestError, match=message):
        await tables.update(TABLE, entries)
    assert (await tables.info(TABLE)).length == 0


async def test_longest_key_and_largest_number_of_keys_are_taken(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    await tables.update(TABLE, [entry(b"k" * 8192)])
    many = [entry(number.to_bytes(2, "big")) for number in range(limits.TABLE_BATCH_KEYS_MAX)]
    assert len(await tables.update(TABLE, many)) == len(many)
    assert len(await tables.get(TABLE, [item.key for item in many])) == len(many)
    await tables.remove(TABLE, [TableKey(item.key) for item in many])
    assert (await tables.info(TABLE)).entry_count == 1


async def test_fixed_keys_have_the_tables_length(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 4)
    for call in (
        tables.update(TABLE, [entry(b"12345")]),
        tables.remove(TABLE, [TableKey(b"123")]),
        tables.get(TABLE, [b""]),
        tables.iterate_keys(TABLE, 10, b"", b"123", b""),
        tables.iterate_keys(TABLE, 10, b"", b"", b"12345"),
        tables.iterate_keys(TABLE, 10, b"1234", b"", b""),
    ):
        with pytest.raises(BadRequestError):
            await call


async def test_fixed_keys_of_16_bytes_never_touch_core_attributes(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 16)
    keys = [like_core(b""), b"\x80" + bytes(15), bytes(16), b"\xff" * 16]
    await tables.update(TABLE, [entry(key) for key in keys])
    assert await tables.info(TABLE) == TableInfo(0, 4 * (HEADER_BYTES + 17), 4, 16)
    found, _ = await tables.iterate_keys(TABLE, 10, b"", b"", b"")
    assert [key.key for key in found] == sorted(keys)


# -- life cycle ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_length", [-1, 257])
async def test_key_length_out_of_bounds_is_refused(container: SegmentContainer, key_length: int) -> None:
    with pytest.raises(BadRequestError, match="key length"):
        await TableService(container).create_table(TABLE, key_length)


async def test_existing_table_is_not_created_again(tables: TableService, layout: int) -> None:
    with pytest.raises(SegmentExistsError):
        await tables.create_table(TABLE, layout)


async def test_missing_tables_and_other_segments(container: SegmentContainer) -> None:
    tables = TableService(container)
    await container.create_segment("scope/stream/0.#epoch.0")
    for name, error in (("scope/none/0", NoSuchSegmentError), ("scope/stream/0.#epoch.0", BadRequestError)):
        for call in (
            tables.info(name),
            tables.update(name, [entry(b"k")]),
            tables.remove(name, [TableKey(b"k")]),
            tables.get(name, [b"k"]),
            tables.iterate_keys(name, 1, b"", b"", b""),
            tables.iterate_entries(name, 1, b"", b"", b""),
            tables.delta(name, 0, 1),
            tables.delete_table(name, False),
            tables.compact(name),
        ):
            with pytest.raises(error):
                await call


async def test_deleting_only_if_empty(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    await tables.update(TABLE, [entry(b"k")])
    with pytest.raises(TableNotEmptyError):
        await tables.delete_table(TABLE, True)
    await tables.remove(TABLE, [TableKey(b"k")])
    await tables.delete_table(TABLE, True)
    with pytest.raises(NoSuchSegmentError):
        await tables.info(TABLE)


async def test_deleting_only_if_empty_is_not_offered_for_fixed_keys(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 4)
    with pytest.raises(UnsupportedError):
        await tables.delete_table(TABLE, True)
    await tables.delete_table(TABLE, False)
    with pytest.raises(NoSuchSegmentError):
        await tables.info(TABLE)


async def test_recreated_table_is_empty(tables: TableService, layout: int) -> None:
    key = key_of(1, layout)
    await tables.update(TABLE, [entry(key)])
    await tables.delete_table(TABLE, False)
    await tables.create_table(TABLE, layout)
    assert await tables.get(TABLE, [key]) == [None]
    assert await tables.update(TABLE, [entry(key, b"new", NOT_EXISTS)]) == [0]
    assert await tables.get(TABLE, [key]) == [TableEntry(key, b"new", 0)]


async def test_sealed_table_is_read_only(tables: TableService, layout: int) -> None:
    key = key_of(1, layout)
    await tables.update(TABLE, [entry(key)])
    await tables.container.seal(TABLE)
    with pytest.raises(SegmentSealedError):
        await tables.update(TABLE, [entry(key)])
    with pytest.raises(SegmentSealedError):
        await tables.remove(TABLE, [TableKey(key)])
    assert await tables.get(TABLE, [key]) == [TableEntry(key, b"v", 0)]


# -- iterators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_iterating_hash_tables_visits_every_entry_once(tables: TableService, limit: int) -> None:
    await tables.create_table(TABLE, 0)
    entries = [entry(b"key%d" % number, b"%d" % number) for number in range(40)]
    versions = await tables.update(TABLE, entries)
    expected = {item.key: (item.value, version) for item, version in zip(entries, versions, strict=True)}
    seen: list[TableEntry] = []
    keys: list[TableKey] = []
    token = b""
    while True:
        page, following = await tables.iterate_entries(TABLE, limit, token, b"", b"")
        page_keys, same = await tables.iterate_keys(TABLE, limit, token, b"", b"")
        assert same == following
        if not page:
            assert not page_keys
            break
        seen.extend(page)
        keys.extend(page_keys)
        token = following
    assert len(seen) == len(keys) == 40
    assert {item.key: (item.value, item.version) for item in seen} == expected
    assert {item.key: item.version for item in keys} == {key: version for key, (_, version) in expected.items()}


async def test_iterating_an_empty_hash_table(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    assert (await tables.iterate_keys(TABLE, 10, b"", b"", b""))[0] == []


async def test_hash_iterators_take_no_bounds_and_only_their_own_tokens(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    for arguments in ((b"", b"a", b""), (b"", b"", b"z"), (b"odd", b"", b"")):
        with pytest.raises(BadRequestError):
            await tables.iterate_entries(TABLE, 10, *arguments)


async def test_fixed_keys_are_iterated_in_byte_order_with_inclusive_bounds(container: SegmentContainer) -> None:
    tables = TableService(container)
    for length in (2, 16):
        name = f"scope/fixed{length}/0"
        await tables.create_table(name, length)
        keys = [bytes([first] * length) for first in (0, 1, 127, 128, 200, 255)]
        await tables.update(name, [entry(key, key) for key in reversed(keys)])
        for first, last, expected in (
            (b"", b"", keys),
            (keys[1], keys[3], keys[1:4]),
            (keys[3], b"", keys[3:]),
            (b"", keys[0], keys[:1]),
            (keys[4], keys[2], []),
            (b"\x02" * length, b"\x70" * length, []),
        ):
            found, _ = await tables.iterate_entries(name, 100, b"", first, last)
            assert [item.key for item in found] == [item.value for item in found] == expected
        page, token = await tables.iterate_keys(name, 2, b"", keys[1], b"")
        assert ([key.key for key in page], token) == (keys[1:3], keys[2])


async def test_iterator_replies_are_bounded_in_bytes(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    for number in range(6):
        await tables.update(TABLE, [entry(b"%d" % number, bytes(900_000))])
    page, token = await tables.iterate_entries(TABLE, 100, b"", b"", b"")
    assert len(page) == 3
    rest, _ = await tables.iterate_entries(TABLE, 100, token, b"", b"")
    assert {item.key for item in page} | {item.key for item in rest} == {b"%d" % number for number in range(6)}


# -- deltas ----------------------------------------------------------------------------------------------------------


async def test_delta_gives_the_last_state_of_what_changed(tables: TableService) -> None:
    await tables.create_table(TABLE, 0)
    assert await tables.delta(TABLE, 0, 10) == await tables.delta(TABLE, 0, 1)
    nothing = await tables.delta(TABLE, 0, 10)
    assert (nothing.entries, nothing.should_clear, nothing.reached_end, nothing.last_position) == ((), False, True, 0)
    (first,) = await tables.update(TABLE, [entry(b"a", b"1")])
    middle = (await tables.info(TABLE)).length
    await tables.update(TABLE, [entry(b"b", b"2")])
    (third,) = await tables.update(TABLE, [entry(b"a", b"3")])
    await tables.remove(TABLE, [TableKey(b"b")])
    length = (await tables.info(TABLE)).length
    for position in (0, middle):
        delta = await tables.delta(TABLE, position, 10)
        assert delta.entries == (TableEntry(b"a", b"3", third),)
        assert (delta.should_clear, delta.reached_end, delta.last_position) == (False, True, length)
    page = await tables.delta(TABLE, 0, 1)
    assert page.entries == (TableEntry(b"a", b"1", first),)
    assert (page.reached_end, page.last_position) == (False, middle)
    end = await tables.delta(TABLE, length, 10)
    assert (end.entries, end.reached_end, end.last_position) == ((), True, 0)


async def test_delta_of_removed_entries_alone_reaches_the_end(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    for _ in range(20):
        await tables.update(TABLE, [entry(b"a")])
        await tables.remove(TABLE, [TableKey(b"a")])
    delta = await tables.delta(TABLE, 0, 5)
    length = (await tables.info(TABLE)).length
    assert (delta.entries, delta.reached_end, delta.last_position) == ((), True, length)


async def test_delta_arguments_are_checked(container: SegmentContainer) -> None:
    tables = TableService(container)
    await tables.create_table(TABLE, 0)
    await tables.update(TABLE, [entry(b"a", b"value")])
    for position, message in ((-1, "position -1"), (1000, "position 1000"), (5, "no entry")):
        with pytest.raises(BadRequestError, match=message):
            await tables.delta(TABLE, position, 10)
    await tables.create_table("scope/fixed/0", 4)
    with pytest.raises(UnsupportedError):
        await tables.delta("scope/fixed/0", 0, 10)


# -- concurrency -----------------------------------------------------------------------------------------------------


async def test_concurrent_conditional_updates_never_lose_one(tables: TableService, layout: int) -> None:
    """Counters raised by compare-and-set from many tasks end at the number of successes."""
    keys = [key_of(number, layout) for number in range(3)]
    await tables.update(TABLE, [entry(key, b"0") for key in keys])
    refused = 0

    async def raise_one(number: int) -> None:
        nonlocal refused
        key = keys[number % 3]
        for _ in range(1000):
            (found,) = await tables.get(TABLE, [key])
            assert found is not None
            try:
                await tables.update(TABLE, [entry(key, b"%d" % (int(found.value) + 1), found.version)])
            except TableKeyBadVersionError:
                refused += 1
            else:
                return
            await asyncio.sleep(0)
        raise AssertionError("refused 1000 times")

    await asyncio.gather(*(raise_one(number) for number in range(30)))
    found = await tables.get(TABLE, keys)
    assert [item.value for item in found if item is not None] == [b"10"] * 3
    assert refused > 0, "they did compete"
    assert (await tables.info(TABLE)).entry_count == 3


async def test_concurrent_unconditional_changes_all_succeed(tables: TableService, layout: int) -> None:
    async def change(number: int) -> None:
        key = key_of(number % 10, layout)
        if number % 4 == 3:
            await tables.remove(TABLE, [TableKey(key)])
        else:
            await tables.update(TABLE, [entry(key, b"%d" % number), entry(key_of(50 + number, layout), b"own")])

    await asyncio.gather(*(change(number) for number in range(40)))
    present = await tables.get(TABLE, [key_of(number, layout) for number in range(100)])
    assert sum(item is not None for item in present) == (await tables.info(TABLE)).entry_count
    assert all(present[50 + number] is not None for number in range(40) if number % 4 != 3)
