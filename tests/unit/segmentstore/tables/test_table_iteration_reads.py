"""Iterations over large entries read what they return, not much more."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.common import limits
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import TableEntry

TABLE = "scope/table/0"


async def iterated(tables: TableService) -> dict[bytes, int]:
    """The lengths of all values by key, each seen once."""
    seen: dict[bytes, int] = {}
    token = b""
    while True:
        page, token = await tables.iterate_entries(TABLE, 1000, token, b"", b"")
        if not page:
            return seen
        assert not seen.keys() & {entry.key for entry in page}
        seen.update((entry.key, len(entry.value)) for entry in page)


@pytest.mark.parametrize("value_bytes", [100_000, 400_000, limits.TABLE_VALUE_MAX_BYTES])
async def test_large_entries_are_read_about_once(
    model_container: Any, value_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_container()
    writing = TableService(model)
    await writing.create_table(TABLE, 0)
    lengths = {b"key%02d" % number: value_bytes - number for number in range(40)}
    for key, length in lengths.items():
        await writing.update(TABLE, [TableEntry(key, bytes(length))])
    read_exact, read_bytes = model.read_exact, 0

    async def counted(name: str, offset: int, length: int) -> bytes:
        nonlocal read_bytes
        read_bytes += length
        return bytes(await read_exact(name, offset, length))

    monkeypatch.setattr(model, "read_exact", counted)
    assert await iterated(TableService(model)) == lengths
    assert read_bytes < 1.3 * sum(lengths.values())
