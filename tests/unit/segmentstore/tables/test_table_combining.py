"""Changes of a table that come together share an append, and each has its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import (
    BadOffsetError,
    ConditionFailedError,
    FormatVersionError,
    OverloadedError,
    SegmentSealedError,
    TableKeyBadVersionError,
    TableKeyNotExistsError,
    TailraceError,
)
from tailrace.segmentstore.api import AppendRequest
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.layout import sha256_bucket
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

from .conftest import TABLE, turns


def put(tables: TableService, key: bytes, value: bytes, version: int = NO_VERSION) -> asyncio.Task[list[int]]:
    return asyncio.create_task(tables.update(TABLE, [TableEntry(key, value, version)]))


async def values(tables: TableService, *keys: bytes) -> list[bytes | None]:
    return [None if entry is None else entry.value for entry in await tables.get(TABLE, keys)]


async def busy(model: Any, tables: TableService) -> asyncio.Task[list[int]]:
    """A change that is in flight until the model is released: those that come now wait for each other."""
    model.hold()
    first = put(tables, b"first", b"v")
    await turns()
    assert model.staged == 1
    return first


async def test_they_share_an_append_and_have_versions_of_their_own(model: Any, tables: TableService) -> None:
    first = await busy(model, tables)
    changes = [put(tables, b"k%d" % number, b"v%d" % number) for number in range(100)]
    await turns()
    assert model.staged == 2
    model.release()
    versions = [version for (version,) in await asyncio.gather(first, *changes)]
    assert versions == sorted(set(versions))
    found = await tables.get(TABLE, [b"first", *(b"k%d" % number for number in range(100))])
    assert [entry.version for entry in found if entry is not None] == versions
    assert (await tables.info(TABLE)).entry_count == 101
    assert tables._access.tables_in_use == 0


async def test_each_sees_those_before_it(model: Any, tables: TableService) -> None:
    first = await busy(model, tables)
    inserts = [put(tables, b"k", b"%d" % number, NOT_EXISTS) for number in range(3)]
    removal = asyncio.create_task(tables.remove(TABLE, [TableKey(b"k")]))
    again = put(tables, b"k", b"again", NOT_EXISTS)
    gone = asyncio.create_task(tables.remove(TABLE, [TableKey(b"other", 7)]))
    at_offset = asyncio.create_task(tables.update(TABLE, [TableEntry(b"j", b"4")], 0))
    nothing = asyncio.create_task(tables.remove(TABLE, [TableKey(b"absent")]))
    await turns()
    assert model.staged == 2
    changes = [*inserts, removal, again, gone, at_offset, nothing]
    assert not any(change.done() for change in changes), "also a refusal rests on what is in flight"
    model.release()
    await first
    found = await asyncio.gather(*changes, return_exceptions=True)
    refused = (TableKeyBadVersionError, TableKeyNotExistsError, BadOffsetError)
    assert [next((kind for kind in refused if isinstance(each, kind)), None) for each in found] == [
        *(None, TableKeyBadVersionError, TableKeyBadVersionError),
        *(None, None, TableKeyNotExistsError, BadOffsetError, None),
    ]
    assert await values(tables, b"k", b"j", b"absent") == [b"again", None, None]
    assert (await tables.info(TABLE)).entry_count == 2


async def test_a_long_queue_takes_several_appends(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TABLE_COMBINED_MAX_BYTES", 1000)
    monkeypatch.setattr(limits, "TABLE_TURNS_MAX", 8)
    first = await busy(model, tables)
    changes = [put(tables, b"k%d" % number, bytes(300)) for number in range(20)]
    large = put(tables, b"large", bytes(5000))
    await turns(200)
    assert model.staged > 8
    model.release()
    versions = [version for (version,) in await asyncio.gather(first, *changes, large)]
    assert versions == sorted(set(versions))
    assert await values(tables, b"k19", b"large") == [bytes(300), bytes(5000)]


async def test_one_that_needs_a_read_delays_no_other(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tables.update(TABLE, [TableEntry(b"cold", b"1")])
    tables._access.reader._cache = EntryCache()
    read, reading = model.read_exact, asyncio.Event()

    async def slow(*arguments: Any) -> bytes:
        await reading.wait()
        data: bytes = await read(*arguments)
        return data

    monkeypatch.setattr(model, "read_exact", slow)
    first = await busy(model, tables)
    cold = put(tables, b"cold", b"2")
    others = [put(tables, b"k%d" % number, b"v") for number in range(10)]
    await turns()
    assert model.staged == 2
    model.release()
    await asyncio.gather(first, *others)
    assert not cold.done()
    reading.set()
    await cold
    assert await values(tables, b"cold") == [b"2"]


def full_at(model: Any, patch: pytest.MonkeyPatch, number: int) -> tuple[asyncio.Future[None], list[AppendRequest]]:
    """From now on the submission of that number waits for room: until the future is done. Also all submissions."""
    submit, room = model.submit_append, asyncio.get_running_loop().create_future()
    asked: list[AppendRequest] = []

    def submit_unless_full(request: AppendRequest) -> Any:
        asked.append(request)
        return room if len(asked) == number else submit(request)

    patch.setattr(model, "submit_append", submit_unless_full)
    return room, asked


async def queued(tables: TableService) -> tuple[Any, list[asyncio.Task[list[int]]]]:
    """Changes that wait for the table's lock, the first one to lead them."""
    (staged,) = tables._access._staged.values()
    await staged.lock.__aenter__()
    changes = [put(tables, b"k%d" % number, b"v") for number in range(5)]
    await turns()
    assert len(staged.waiting._changes) == 5
    return staged, changes


@pytest.mark.parametrize("gone", [(0,), (0, 1), (2,), (0, 1, 2, 3, 4), (4,)])
async def test_a_caller_that_gives_up_leaves_the_others_to_finish(
    model: Any, tables: TableService, gone: tuple[int, ...]
) -> None:
    first = await busy(model, tables)
    staged, changes = await queued(tables)
    for number in gone:
        changes[number].cancel()
    await turns()
    await staged.lock.__aexit__(None, None, None)
    later = put(tables, b"later", b"v")
    await turns()
    model.release()
    left = [change for number, change in enumerate(changes) if number not in gone]
    await asyncio.gather(first, *left, later)
    assert all(changes[number].cancelled() for number in gone)
    found = await values(tables, *(b"k%d" % number for number in range(5)), b"later")
    assert found == [None if number in gone else b"v" for number in range(6)]
    assert tables._access.tables_in_use == 0


async def test_the_caller_of_the_change_before_them_gives_up(model: Any, tables: TableService) -> None:
    """A removal that changes nothing rests on it, and so does a refusal."""
    first = await busy(model, tables)
    first.cancel()
    await turns()
    nothing = asyncio.create_task(tables.remove(TABLE, [TableKey(b"absent")]))
    refused = put(tables, b"first", b"w", NOT_EXISTS)
    await turns()
    assert not nothing.done()
    model.release()
    await nothing
    with pytest.raises(TableKeyBadVersionError):
        await refused


async def test_a_leader_that_gives_up_while_it_waits_for_room(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await busy(model, tables)
    _, asked = full_at(model, monkeypatch, 1)
    changes = [put(tables, b"k%d" % number, b"v") for number in range(5)]
    await turns()
    assert len(asked) == 1
    changes[0].cancel()
    await turns()
    model.release()
    await asyncio.gather(first, *changes[1:])
    assert await values(tables, *(b"k%d" % number for number in range(5))) == [None, *[b"v"] * 4]
    assert tables._access.tables_in_use == 0


async def test_a_leader_waits_for_no_append_but_its_own(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second group finds no room: the leader of the first one is answered."""
    monkeypatch.setattr(limits, "TABLE_COMBINED_MAX_BYTES", 1000)
    first = await busy(model, tables)
    room, _ = full_at(model, monkeypatch, 2)
    changes = [put(tables, b"k%d" % number, bytes(400)) for number in range(4)]
    await turns()
    model.release()
    await asyncio.gather(first, *changes[:2])
    assert not any(change.done() for change in changes[2:])
    room.set_result(None)
    await asyncio.gather(*changes)


async def test_a_leader_that_needs_a_read_waits_for_no_other(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tables.update(TABLE, [TableEntry(b"cold", b"1")])
    tables._access.reader._cache = EntryCache()
    submit, room, is_full = model.submit_append, asyncio.get_running_loop().create_future(), True
    first = await busy(model, tables)
    monkeypatch.setattr(
        model, "submit_append", lambda request: room if is_full and request.length < 500 else submit(request)
    )
    leader = put(tables, b"cold", bytes(1000))
    other = put(tables, b"k", b"v")
    await turns(100)
    model.release()
    await first
    await turns(100)
    assert not other.done()
    is_full = False
    room.set_result(None)
    await asyncio.gather(leader, other)


async def test_damage_that_one_meets_is_the_error_of_that_one(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory, get = model.attributes_in_memory, model.get_attributes
    layout = sha256_bucket(b"damaged")

    def of_newer_format(segment: str, ids: Any) -> Any:
        if layout in ids:
            raise FormatVersionError("page of version 9")
        return in_memory(segment, ids)

    async def get_of_newer_format(segment: str, ids: Any, **more: Any) -> Any:
        if layout in ids:
            raise FormatVersionError("page of version 9")
        return await get(segment, ids, **more)

    first = await busy(model, tables)
    monkeypatch.setattr(model, "attributes_in_memory", of_newer_format)
    monkeypatch.setattr(model, "get_attributes", get_of_newer_format)
    changes = [put(tables, key, b"v") for key in (b"a", b"damaged", b"b")]
    await turns()
    model.release()
    await first
    found = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(each) for each in found] == [list, FormatVersionError, list]


async def test_without_room_all_of_them_say_so(
    model: Any, tables: TableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_DEADLINE_S", 0.05)
    first = await busy(model, tables)
    monkeypatch.setattr(model, "submit_append", lambda _: asyncio.get_running_loop().create_future())
    changes = [put(tables, b"k%d" % number, b"v") for number in range(5)]
    found = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(each) for each in found] == [OverloadedError] * 5
    monkeypatch.undo()
    model.release()
    await first
    await tables.update(TABLE, [TableEntry(b"k", b"v")])


async def seal(model: Any) -> None:
    await model.seal(TABLE)


async def create_again(model: Any) -> None:
    await model.delete(TABLE)
    await TableService(model).create_table(TABLE, 0)


@pytest.mark.parametrize(
    ("meanwhile", "error"), [(seal, SegmentSealedError), (create_again, None)], ids=["sealed", "created again"]
)
async def test_what_happens_to_the_table_meanwhile_happens_to_each(
    model: Any, tables: TableService, meanwhile: Callable[[Any], Awaitable[None]], error: type[TailraceError] | None
) -> None:
    first = await busy(model, tables)
    staged, changes = await queued(tables)
    model.release()
    await first
    await meanwhile(model)
    await staged.lock.__aexit__(None, None, None)
    found = await asyncio.gather(*changes, return_exceptions=True)
    assert all(isinstance(each, list) if error is None else isinstance(each, error) for each in found)
    if error is None:
        assert await values(tables, b"k0", b"k4", b"first") == [b"v", b"v", None]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "insert", "replace", "remove", "remove version"]), st.integers(0, 3), st.integers(0, 5)
    ),
    max_size=30,
)


@given(operations=OPERATIONS, pauses=st.sets(st.integers(0, 29), max_size=4), key_length=st.sampled_from([0, 2]))
def test_they_do_what_they_do_one_after_the_other(
    model_container: Any, operations: list[tuple[str, int, int]], pauses: set[int], key_length: int
) -> None:
    """In the order in which they came: all of them find what they need in memory."""
    asyncio.run(run_together(model_container(), operations, pauses, key_length))


async def run_together(model: Any, operations: list[tuple[str, int, int]], pauses: set[int], key_length: int) -> None:
    tables = TableService(model)
    await tables.create_table(TABLE, key_length)
    versions: list[int] = []

    async def run(kind: str, key: bytes, value: bytes, expected: int) -> object:
        try:
            if kind.startswith("remove"):
                await tables.remove(TABLE, [TableKey(key, expected)])
                return None
            return (await tables.update(TABLE, [TableEntry(key, value, expected)]))[0]
        except ConditionFailedError as error:
            return type(error)

    changes: list[tuple[bytes, bytes, int, asyncio.Task[object]]] = []
    for number, (kind, which, version) in enumerate(operations):
        if number in pauses:
            found = await asyncio.gather(*(task for _, _, _, task in changes))
            versions = [each for each in found if isinstance(each, int)][-6:]
        known = versions[version] if version < len(versions) else 10**6
        expected = {"put": NO_VERSION, "insert": NOT_EXISTS, "remove": NO_VERSION}.get(kind, known)
        key, value = b"k%d" % which, b"v%d" % number
        changes.append((key, value, expected, asyncio.create_task(run(kind, key, value, expected))))
    await asyncio.gather(*(task for _, _, _, task in changes))
    state: dict[bytes, TableEntry] = {}
    for (kind, _, _), (key, value, expected, task) in zip(operations, changes, strict=True):
        present, outcome = state.get(key), task.result()
        if expected != NO_VERSION and expected != (NOT_EXISTS if present is None else present.version):
            missing = present is None and expected != NOT_EXISTS
            assert outcome is (TableKeyNotExistsError if missing else TableKeyBadVersionError)
        elif kind.startswith("remove"):
            assert outcome is None
            state.pop(key, None)
        else:
            assert isinstance(outcome, int)
            state[key] = TableEntry(key, value, outcome)
    entries = await tables.get(TABLE, [b"k%d" % which for which in range(4)])
    assert {entry.key: entry for entry in entries if entry is not None} == state
    assert (await tables.info(TABLE)).entry_count == len(state)
    assert tables._access.tables_in_use == 0
