"""Key-value tables through the whole product: controller, segment store, client."""

from __future__ import annotations

import secrets

import pytest

from tailrace.client import NOT_EXISTS, Client, TableConfig, TableKeyParts
from tailrace.common.errors import NotFoundError, TableKeyBadVersionError, TableKeyNotExistsError


async def test_a_table_from_creation_to_deletion(controller: str) -> None:
    scope = f"tables-{secrets.token_hex(4)}"
    async with Client(controller) as client:
        await client.streams.create_scope(scope)
        calls = client.context.controller
        assert await calls.create_table(scope, "t", TableConfig(3, 4, 4))
        assert not await calls.create_table(scope, "t", TableConfig(3, 4, 4))
        assert [name async for name in calls.list_tables(scope)] == ["t"]
        async with client.table(scope, "t") as table:
            keys = [TableKeyParts(b"%04d" % i, b"%04d" % j) for i in range(20) for j in range(5)]
            versions = {key: await table.insert(key, key.primary + b"!") for key in keys}
            found = await table.get(keys[7])
            assert found is not None
            assert (found.value, found.version) == (b"0001!", versions[keys[7]])
            with pytest.raises(TableKeyBadVersionError):
                await table.put(keys[7], b"x", version=NOT_EXISTS)
            newer = await table.put(keys[7], b"second", version=versions[keys[7]])
            assert newer > versions[keys[7]]
            with pytest.raises(TableKeyBadVersionError):
                await table.remove(keys[7], version=versions[keys[7]])
            assert sorted([entry.key async for entry in table.entries()]) == keys
            mine = [entry async for entry in table.entries(b"0001")]
            assert [entry.key.secondary for entry in mine] == [b"%04d" % j for j in range(5)]
            assert mine[2].value == b"second"
            await table.remove(keys[7], version=newer)
            assert await table.get(keys[7]) is None
            with pytest.raises(TableKeyNotExistsError):
                await table.put(keys[7], b"x", version=newer)
            pair = [(TableKeyParts(b"pair", b"left"), b"1", None), (TableKeyParts(b"pair", b"rght"), b"2", None)]
            assert len(set(await table.put_all(pair))) == 2
        assert await calls.delete_table(scope, "t")
        with pytest.raises(NotFoundError):
            await client.table(scope, "t").start()
        assert await client.streams.delete_scope(scope)
