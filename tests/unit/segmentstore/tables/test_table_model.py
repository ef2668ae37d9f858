"""Random histories of a table against a dict with versions."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import TableKeyBadVersionError, TableKeyNotExistsError
from tailrace.segmentstore.api import TABLE_ENTRY_COUNT, TABLE_TOTAL_ENTRY_COUNT
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

TABLE = "scope/table/0"
EXPECTED = st.sampled_from(["any", "absent", "current", "stale"])
BATCH = st.lists(st.tuples(st.integers(0, 7), st.binary(max_size=4), EXPECTED), max_size=5)


@dataclasses.dataclass(frozen=True)
class Update:
    batch: list[tuple[int, bytes, str]]


@dataclasses.dataclass(frozen=True)
class Remove:
    batch: list[tuple[int, bytes, str]]


@dataclasses.dataclass(frozen=True)
class Compact:
    pass_bytes: int


@dataclasses.dataclass(frozen=True)
class Restart:
    pass


Step: TypeAlias = Update | Remove | Compact | Restart
STEPS = st.lists(
    st.one_of(
        st.builds(Update, BATCH),
        st.builds(Update, BATCH),
        st.builds(Remove, BATCH),
        st.builds(Compact, st.sampled_from([60, 150, 10_000])),
        st.builds(Restart),
    ),
    max_size=25,
)


class Reference:
    """What the table must hold."""

    def __init__(self) -> None:
        self.entries: dict[bytes, TableEntry] = {}

    def version(self, key: bytes, expected: str) -> int:
        found = self.entries.get(key)
        if expected == "any":
            return NO_VERSION
        if expected == "absent":
            return NOT_EXISTS
        current = found.version if found is not None else 0
        return current if expected == "current" else current + 1

    def refusal(self, keys: list[TableKey]) -> type[Exception] | None:
        """What the first condition that fails raises."""
        for key in keys:
            found = self.entries.get(key.key)
            if found is None and key.version >= 0:
                return TableKeyNotExistsError
            if found is not None and key.version not in (NO_VERSION, found.version):
                return TableKeyBadVersionError
        return None


class Run:
    """One history over one container."""

    def __init__(self, tables: TableService, key_length: int) -> None:
        self.tables = tables
        self.key_length = key_length
        self.reference = Reference()
        self.highest = -1

    def key(self, number: int) -> bytes:
        return number.to_bytes(self.key_length or 2, "big")

    async def apply(self, step: Step) -> None:
        match step:
            case Update(batch):
                await self.update(batch)
            case Remove(batch):
                await self.remove(batch)
            case Compact(pass_bytes):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(limits, "TABLE_COMPACTION_PASS_BYTES", pass_bytes)
                    await self.tables.compact(TABLE)
            case Restart():
                self.tables = TableService(self.tables.container, hash_function=self.tables._access.hash_function)

    async def update(self, batch: list[tuple[int, bytes, str]]) -> None:
        entries = [
            TableEntry(self.key(number), value, self.reference.version(self.key(number), expected))
            for number, value, expected in batch
        ]
        refusal = self.reference.refusal([TableKey(item.key, item.version) for item in entries])
        if refusal is not None:
            with pytest.raises(refusal):
                await self.tables.update(TABLE, entries)
            return
        versions = await self.tables.update(TABLE, entries)
        assert len(versions) == len(entries)
        for item, version in zip(entries, versions, strict=True):
            assert version > self.highest
            self.highest = version
            self.reference.entries[item.key] = TableEntry(item.key, item.value, version)

    async def remove(self, batch: list[tuple[int, bytes, str]]) -> None:
        keys = [
            TableKey(self.key(number), self.reference.version(self.key(number), expected))
            for number, _, expected in batch
        ]
        refusal = self.reference.refusal(keys)
        if refusal is not None:
            with pytest.raises(refusal):
                await self.tables.remove(TABLE, keys)
            return
        await self.tables.remove(TABLE, keys)
        for key in keys:
            self.reference.entries.pop(key.key, None)

    async def check(self) -> None:
        expected = self.reference.entries
        keys = [self.key(number) for number in range(8)]
        assert await self.tables.get(TABLE, keys) == [expected.get(key) for key in keys]
        cold = TableService(self.tables.container, hash_function=self.tables._access.hash_function)
        assert await cold.get(TABLE, keys) == [expected.get(key) for key in keys]
        found, _ = await self.tables.iterate_entries(TABLE, 100, b"", b"", b"")
        assert sorted(found, key=lambda item: item.key) == sorted(expected.values(), key=lambda item: item.key)
        core = (await self.tables.container.info(TABLE)).core_attributes
        assert core[TABLE_ENTRY_COUNT] == len(expected)
        assert core[TABLE_TOTAL_ENTRY_COUNT] >= len(expected)
        if not self.key_length:
            delta = await self.tables.delta(TABLE, 0, 100)
            assert {item.key: item for item in delta.entries} == expected


def weak_hash(key: bytes) -> bytes:
    return bytes([key[-1] % 3]) * 16


@pytest.mark.parametrize(("key_length", "weak"), [(0, False), (0, True), (3, False), (16, False)])
@given(steps=STEPS)
@settings(max_examples=60)
def test_table_is_a_dict_with_versions(open_container, key_length: int, weak: bool, steps: list[Step]) -> None:
    async def scenario() -> None:
        async with open_container() as container:
            tables = TableService(container, hash_function=weak_hash) if weak else TableService(container)
            await tables.create_table(TABLE, key_length)
            run = Run(tables, key_length)
            for step in steps:
                await run.apply(step)
                await run.check()

    asyncio.run(scenario())
