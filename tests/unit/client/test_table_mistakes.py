"""What a key-value table says about keys, values and versions that it cannot take."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.tables import KeyValueTable, TableKeyParts
from tailrace.common.errors import BadRequestError, TableKeyBadVersionError, TableKeyNotExistsError
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

KEY = TableKeyParts(b"aa", b"1")
OTHER = TableKeyParts(b"aa", b"2")


@pytest.fixture
async def table(controller: Any, context: ClientContext) -> KeyValueTable:
    """A table with keys of two bytes and one byte."""
    part = controller.segment(0, 0.0, 1.0, create=False)
    controller.answers["getCurrentSegmentsKeyValueTable"] = lambda _: pb.SegmentRanges(segmentRanges=[part])
    controller.answers["getKeyValueTableConfiguration"] = lambda _: pb.KeyValueTableConfigResponse(
        config=pb.KeyValueTableConfig(partitionCount=1, primaryKeyLength=2, secondaryKeyLength=1)
    )
    return await KeyValueTable(context, "s", "prices").start()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (TableKeyParts("aa", b"1"), b"x", "the primary key is of type str, not bytes"),  # type: ignore[arg-type]
        (TableKeyParts(b"aa", 1), b"x", "the secondary key is of type int, not bytes"),  # type: ignore[arg-type]
        (b"aa1", b"x", "a key is of type bytes, not TableKeyParts"),
        (KEY, "x", "a value is of type str, not bytes"),
        (KEY, 5, "a value is of type int, not bytes"),
        (KEY, None, "a value is of type NoneType, not bytes"),
    ],
)
async def test_wrong_types_are_named(table: KeyValueTable, key: Any, value: Any, message: str) -> None:
    with pytest.raises(BadRequestError, match=rf"^{message}$"):
        await table.put(key, value)


@pytest.mark.parametrize("key", [b"aa1", ("aa", b"1"), TableKeyParts(b"aa", "1")])  # type: ignore[arg-type]
async def test_so_they_are_by_reads_and_removals(table: KeyValueTable, key: Any) -> None:
    with pytest.raises(BadRequestError, match=r"is of type \w+, not"):
        await table.get(key)
    with pytest.raises(BadRequestError, match=r"is of type \w+, not"):
        await table.remove(key)


async def test_other_buffers_are_taken_as_values(table: KeyValueTable, store: Any) -> None:
    store.answer(c.UpdateTableEntries, lambda request: c.TableEntriesUpdated(request, [1, 2]))
    entries: list[Any] = [(KEY, bytearray(b"x"), None), (OTHER, memoryview(b"y"), None)]
    assert await table.put_all(entries) == [1, 2]
    (sent,) = [each for each in store.seen if isinstance(each, c.UpdateTableEntries)]
    assert [bytes(entry.value) for entry in sent.entries] == [b"x", b"y"]


async def test_a_refused_version_is_named_with_key_and_table(table: KeyValueTable, store: Any) -> None:
    def refuse(kind: type[c.Command]) -> None:
        store.answer(kind, lambda request: c.TableKeyBadVersion(request, "s/prices_kvtable/0.#epoch.0", ""))

    refuse(c.UpdateTableEntries)
    with pytest.raises(TableKeyBadVersionError, match=r"^key b'aa' b'1' of table s/prices is not at version 7$"):
        await table.put(KEY, b"x", version=7)
    refuse(c.UpdateTableEntries)
    with pytest.raises(TableKeyBadVersionError, match=r"^key b'aa' b'1' of table s/prices exists already$"):
        await table.insert(KEY, b"x")
    refuse(c.UpdateTableEntries)
    several = r"^a key of table s/prices is not as expected: b'aa' b'1' at version 7, b'aa' b'2' absent$"
    with pytest.raises(TableKeyBadVersionError, match=several):
        await table.put_all([(KEY, b"x", 7), (OTHER, b"y", -1)])
    refuse(c.RemoveTableKeys)
    with pytest.raises(TableKeyBadVersionError, match=r"^key b'aa' b'1' of table s/prices is not at version 7$"):
        await table.remove(KEY, version=7)


async def test_a_missing_key_is_named(table: KeyValueTable, store: Any) -> None:
    def refuse(kind: type[c.Command]) -> None:
        store.answer(kind, lambda request: c.TableKeyDoesNotExist(request, "s/prices_kvtable/0.#epoch.0", ""))

    refuse(c.UpdateTableEntries)
    with pytest.raises(TableKeyNotExistsError, match=r"^key b'aa' b'1' of table s/prices does not exist$"):
        await table.put(KEY, b"x", version=7)
    refuse(c.RemoveTableKeys)
    with pytest.raises(TableKeyNotExistsError, match=r"^key b'aa' b'1' of table s/prices does not exist$"):
        await table.remove(KEY, version=7)
