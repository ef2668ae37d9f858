"""Measure size and speed of the attribute index in memory, beside a tree of SQLite and RocksDB (docs/cli.md#measuring).

The cases are those of "Segment Attributes": attributes are inserted in the order of their keys, or loaded at once and
then all updated in random order, in batches. A compacted index moves its oldest page with each batch, and what lies
before the oldest live page is truncated; a plain one does neither.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.cli.bench.result import Row, row
from tailrace.segmentstore.attributes import IndexState, PageReader, get_many, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.segmentstore.attributes.update import IndexUpdate

BATCHES: Final = (10, 100, 1000)
ENTRIES: Final = 1_000_000
SORTED: Final = "sorted"
RANDOM: Final = "random"
_CHECKED_BATCH: Final = 1000
_SEED: Final = 1

Changes = list[tuple[bytes, int]]


class System(Protocol):
    """A system under test."""

    kind: str
    """The last part of the names of its cases."""

    async def apply(self, changes: Changes) -> None:
        """Set attributes, in the order of their keys."""
        ...

    async def get(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Return the values of attributes."""
        ...

    def size_bytes(self) -> int:
        """Return how long the index is now."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class OwnIndex(PageReader):
    """Our index over a segment in memory. Of a plain one, which may get 30 GB long, it keeps the live pages, too."""

    def __init__(self, *, compact: bool) -> None:
        self.kind = "compacted" if compact else "plain"
        self._compact = compact
        self._state = IndexState()
        self._pages: dict[int, bytes] = {}
        self._read: set[int] = set()

    @property
    def place(self) -> str:
        """See PageReader.place."""
        return "benchmark"

    async def read(self, offset: int, length: int) -> bytes:
        """See PageReader.read."""
        self._read.add(offset)
        page = self._pages[offset]
        assert len(page) == length
        return page

    async def apply(self, changes: Changes) -> None:
        """See System.apply."""
        self._read.clear()
        result = await update(self._state, changes, self, move_lowest=self._compact)
        self._replace(result)
        self._state = result.state

    def _replace(self, result: IndexUpdate) -> None:
        """Keep the written pages in place of those that were read: all of these change or move."""
        removed = sum(len(self._pages.pop(offset)) for offset in self._read)
        assert removed == result.obsolete_bytes
        first = self._state.length
        for page in result.pages:
            at = page.offset - first
            self._pages[page.offset] = result.data[at : at + page.length]

    async def get(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """See System.get."""
        return await get_many(self._state, keys, self)

    def size_bytes(self) -> int:
        """Return the length up to the end: of a compacted index from its oldest live page on."""
        return self._state.length - (self._state.start_offset if self._compact else 0)

    def close(self) -> None:
        """See System.close."""


class SqliteTable:
    """A table of SQLite in a file, without syncs: each batch is a transaction."""

    kind = "compacted"

    def __init__(self) -> None:
        import sqlite3

        self._folder = TemporaryDirectory(prefix="tailrace-bench-")
        self._file = Path(self._folder.name) / "index.db"
        self._database = sqlite3.connect(self._file, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE attribute (key BLOB PRIMARY KEY, value INTEGER) WITHOUT ROWID")

    async def apply(self, changes: Changes) -> None:
        """See System.apply."""
        self._database.execute("BEGIN")
        self._database.executemany("INSERT OR REPLACE INTO attribute VALUES (?, ?)", changes)
        self._database.execute("COMMIT")

    async def get(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """See System.get."""
        query = "SELECT value FROM attribute WHERE key = ?"
        found = ((key, self._database.execute(query, (key,)).fetchone()) for key in keys)
        return {key: value[0] for key, value in found if value is not None}

    def size_bytes(self) -> int:
        """See System.size_bytes."""
        return self._file.stat().st_size

    def close(self) -> None:
        """See System.close."""
        self._database.close()
        self._folder.cleanup()


class RocksStore:
    """RocksDB in a folder, with its own compaction: each batch is a WriteBatch. It needs the package rocksdict."""

    kind = "compacted"

    def __init__(self) -> None:
        import rocksdict

        self._rocks: Any = rocksdict
        self._folder = TemporaryDirectory(prefix="tailrace-bench-")
        self._database: Any = rocksdict.Rdict(self._folder.name, rocksdict.Options(raw_mode=True))

    async def apply(self, changes: Changes) -> None:
        """See System.apply."""
        batch = self._rocks.WriteBatch(raw_mode=True)
        for key, value in changes:
            batch.put(key, _packed(value))
        self._database.write(batch)

    async def get(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """See System.get."""
        found = ((key, self._database.get(key)) for key in keys)
        return {key: int.from_bytes(value, "big", signed=True) for key, value in found if value is not None}

    def size_bytes(self) -> int:
        """Return the length of its files after a full compaction."""
        self._database.flush()
        self._database.compact_range(None, None)
        return sum(entry.stat().st_size for entry in os.scandir(self._folder.name))

    def close(self) -> None:
        """See System.close."""
        self._database.close()
        self._folder.cleanup()


def systems() -> dict[str, Callable[[], System]]:
    """Return the other systems that this machine has, by name. Images have none of them."""
    known: dict[str, tuple[str, Callable[[], System]]] = {
        "sqlite": ("sqlite3", SqliteTable),
        "rocksdb": ("rocksdict", RocksStore),
    }
    return {name: make for name, (module, make) in known.items() if find_spec(module) is not None}


def _key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _packed(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _sorted_batches(count: int, batch: int) -> Iterator[Changes]:
    for first in range(0, count, batch):
        yield [(_key(number), number) for number in range(first, min(count, first + batch))]


def _random_batches(count: int, batch: int) -> Iterator[Changes]:
    numbers = random.Random(_SEED).sample(range(count), count)
    for first in range(0, count, batch):
        yield sorted((_key(number), -number) for number in numbers[first : first + batch])


async def _check(system: System, count: int, sign: int) -> None:
    """Raise AssertionError unless the system has the last value of every attribute."""
    for first in range(0, count, _CHECKED_BATCH):
        wanted = {_key(number): sign * number for number in range(first, min(count, first + _CHECKED_BATCH))}
        if await system.get(list(wanted)) != wanted:
            raise AssertionError(f"the index has wrong values for keys from {first} on")


async def _measure(name: str, make: Callable[[], System], order: str, count: int, batch: int) -> list[Row]:
    system = make()
    try:
        if order == RANDOM:
            await system.apply([(_key(number), number) for number in range(count)])
        batches = _random_batches(count, batch) if order == RANDOM else _sorted_batches(count, batch)
        seconds = 0.0
        for changes in batches:
            began_s = time.perf_counter()
            await system.apply(changes)
            seconds += time.perf_counter() - began_s
        await _check(system, count, -1 if order == RANDOM else 1)
        case = f"{order}-{batch}-{system.kind}"
        return [
            row(name, case, "size", system.size_bytes() / 1e6, "MB"),
            row(name, case, "time", seconds * 1000, "ms"),
        ]
    finally:
        system.close()


async def rows(
    count: int = ENTRIES, batches: Sequence[int] = BATCHES, note: Callable[[str], None] = lambda case: None
) -> list[Row]:
    """Return the size in MB and the time in ms of each case, order and batch, for `count` attributes.

    ``note`` gets the name of each case before it is measured. Every value is checked at the end of its case.
    """
    found: list[Row] = []
    ours: tuple[Callable[[], System], ...] = (partial(OwnIndex, compact=True), partial(OwnIndex, compact=False))
    for order in (SORTED, RANDOM):
        for batch in batches:
            for name, make in [*(("tailrace", each) for each in ours), *systems().items()]:
                note(f"{order}, batches of {batch}: {name}")
                found += await _measure(name, make, order, count, batch)
    return found
