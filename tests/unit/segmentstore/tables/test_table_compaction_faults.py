"""Compaction while some tables cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.segmentstore.api import SegmentContainer
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import NO_VERSION, TableEntry


async def test_a_table_that_cannot_be_read_keeps_back_no_other_one(
    container: SegmentContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TABLE_COMPACTION_MIN_BYTES", 0)
    service = TableService(container)
    names = ["scope/broken/0", "scope/whole/0"]
    for name in names:
        await service.create_table(name, 0)
        for number in range(10):
            await service.update(name, [TableEntry(b"key", b"value%d" % number, NO_VERSION)])
    read_exact = container.read_exact
    outage = True

    async def failing(segment: str, *arguments: Any) -> bytes:
        if outage and segment == names[0]:
            raise UnavailableError("Tier 2 does not answer")
        return await read_exact(segment, *arguments)

    monkeypatch.setattr(container, "read_exact", failing)
    with pytest.raises(UnavailableError):
        await service.compact_due()
    starts = [(await service.info(name)).start_offset for name in names]
    assert starts[0] == 0
    assert starts[1] > 0
    outage = False
    await service.compact_due()
    assert (await service.info(names[0])).start_offset > 0


@pytest.mark.parametrize("error", [ValueError("an unexpected one"), asyncio.CancelledError()])
async def test_no_table_is_forgotten_when_a_pass_ends_unexpectedly(
    container: SegmentContainer, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(limits, "TABLE_COMPACTION_MIN_BYTES", 0)
    service = TableService(container)
    names = [f"scope/table/{number}" for number in range(3)]
    for name in names:
        await service.create_table(name, 0)
        for number in range(10):
            await service.update(name, [TableEntry(b"key", b"value%d" % number, NO_VERSION)])
    read_exact = container.read_exact

    async def failing(segment: str, *arguments: Any) -> bytes:
        if segment == names[1]:
            raise error
        return await read_exact(segment, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(container, "read_exact", failing)
        with pytest.raises(type(error)):
            await service.compact_due()
        with pytest.raises(type(error)):
            await service.compact_due()
        assert (await service.info(names[2])).start_offset > 0, "it kept back another one"
    await service.compact_due()
    assert all([(await service.info(name)).start_offset for name in names])
