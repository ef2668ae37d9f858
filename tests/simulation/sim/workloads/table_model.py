"""Models of table segments, and clients that drive tables and models side by side.

A writer owns some keys of a table, which it may share with other writers; it does one change after another, so at most
one is in doubt. An auditor owns nothing and holds every answer against what was answered before.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.violations import Violation, require
from sim.workloads.leaving import LeftError, maybe_leave, settled
from tailrace.common.errors import (
    BadOffsetError,
    NoSuchSegmentError,
    SegmentExistsError,
    TableKeyBadVersionError,
    TableKeyNotExistsError,
    TableNotEmptyError,
    TailraceError,
    UnavailableError,
    UnsupportedError,
)
from tailrace.segmentstore.tables.queries import following
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

Outcome = type[TailraceError] | None
KEYS_PER_WRITER = 6
BATCH_MAX = 3


class Held(NamedTuple):
    """What a table must hold for a key; the version is None when no client knows it."""

    value: bytes
    version: int | None


State = dict[bytes, Held] | None
"""The entries of one writer; None: the table does not exist."""


def weak_hash(key: bytes) -> bytes:
    """Four buckets for all keys, so that most of them collide."""
    return bytes([key[-1] % 4]) * 16


@dataclass(frozen=True)
class TableSpec:
    """A table: `key_length` 0 is the hash layout."""

    name: str
    key_length: int

    def key(self, writer: int, number: int) -> bytes:
        """A key of a writer; no two writers have one in common."""
        if self.key_length:
            return bytes([writer]) + number.to_bytes(self.key_length - 1, "big")
        return f"{writer}/{'long' * (number % 3)}{number}".encode()


async def iterate(service: TableService, table: TableSpec, limit: int) -> dict[bytes, TableEntry]:
    """All entries by an iterator; no key may come twice."""
    found: dict[bytes, TableEntry] = {}
    token = first = b""
    while True:
        entries, token = await service.iterate_entries(table.name, limit, token, first, b"")
        for entry in entries:
            require(entry.key not in found, f"{table.name}: an iterator returned key {entry.key!r} twice")
            found[entry.key] = entry
        if not entries:
            return found
        if table.key_length:
            after = following(token)
            if after is None:
                return found
            first, token = after, b""


@dataclass
class Replica:
    """A copy of a table that deltas keep up to date, while the table exists; outlives all crashes."""

    position: int = 0
    entries: dict[bytes, TableEntry] = field(default_factory=dict)

    async def follow(self, service: TableService, name: str, limit: int) -> None:
        """Read deltas until the end."""
        while True:
            delta = await service.delta(name, self.position, limit)
            if delta.should_clear:
                self.entries.clear()
            for entry in delta.entries:
                before = self.entries.get(entry.key)
                require(
                    before is None or before.version <= entry.version,
                    f"{name}: a delta took key {entry.key!r} back from version {before and before.version}",
                )
                self.entries[entry.key] = entry
            # "Nothing scanned" comes with the position 0, which is not to be adopted (docs/protocol/wire.md#tables).
            require(delta.last_position >= self.position or not delta.last_position, f"{name}: a delta went back")
            self.position = delta.last_position or self.position
            if delta.reached_end:
                return


class TableWriter:
    """Changes its own keys of a table; with `lives_alone` it is the only writer, and deletes and creates it too."""

    def __init__(self, table: TableSpec, number: int, rng: random.Random, *, lives_alone: bool) -> None:
        self.table = table
        self.random = rng
        self.lives_alone = lives_alone
        self.keys = [table.key(number, index) for index in range(KEYS_PER_WRITER)]
        self.absent = table.key(number, 200)
        self.candidates: list[State] = [None if lives_alone else {}]
        self.highest = -1  # the greatest version of any key so far
        self.replica = Replica()
        self.written = 0
        self.offset_given = False
        self.steps = 0

    # -- checking ------------------------------------------------------------------------------------------------

    async def reconcile(self, service: TableService) -> None:
        """The table must hold one of the states that are possible."""
        try:
            found = await service.get(self.table.name, self.keys)
        except NoSuchSegmentError:
            found = None
        for state in self.candidates:
            if self._fits(state, found):
                self.candidates = [self._adopt(state, found)]
                return
        raise Violation(f"{self.table.name}: {self._difference(found)}")

    def _fits(self, state: State, found: Sequence[TableEntry | None] | None) -> bool:
        if state is None or found is None:
            return state is None and found is None
        return all(self._is(state.get(key), entry) for key, entry in zip(self.keys, found, strict=True))

    def _is(self, held: Held | None, entry: TableEntry | None) -> bool:
        if held is None or entry is None:
            return held is None and entry is None
        version_fits = entry.version > self.highest if held.version is None else entry.version == held.version
        return held.value == entry.value and version_fits

    def _adopt(self, state: State, found: Sequence[TableEntry | None] | None) -> State:
        """The state with the versions that no client knows; a table that was deleted starts empty."""
        if state is None or found is None:
            self.highest, self.replica = -1, Replica()
            return None
        versions = [entry.version for entry in found if entry is not None]
        self.highest = max(self.highest, *versions, -1)
        return {entry.key: Held(entry.value, entry.version) for entry in found if entry is not None}

    def _difference(self, found: Sequence[TableEntry | None] | None) -> str:
        if found is None:
            return "the table is gone"
        parts = []
        for state in self.candidates:
            if state is None:
                parts.append("should not exist")
                continue
            for key, entry in zip(self.keys, found, strict=True):
                held = state.get(key)
                if not self._is(held, entry):
                    wanted = held and (held.value[:20], held.version)
                    parts.append(f"{key!r}: wanted {wanted}, found {entry and (entry.value[:20], entry.version)}")
        return f"no possible state (highest version {self.highest}): {'; '.join(parts)}"

    async def check_iterator(self, service: TableService) -> None:
        """An iterator returns each of the writer's keys exactly once, with its value."""
        state = self.candidates[0]
        if state is None:
            return
        found = await iterate(service, self.table, self.random.choice([1, 3, 100]))
        own = {key: entry for key, entry in found.items() if key in self.keys}
        require(
            {key: Held(entry.value, entry.version) for key, entry in own.items()} == state,
            f"{self.table.name}: an iterator returned {own}, the entries are {state}",
        )

    async def check_delta(self, service: TableService) -> None:
        """A replica that follows the deltas has every living entry with its value."""
        state = self.candidates[0]
        if state is None:
            return
        limit = self.random.choice([1, 5, 1000])
        if self.table.key_length:
            try:
                await service.delta(self.table.name, 0, limit)
            except UnsupportedError:
                return
            raise Violation(f"{self.table.name}: a delta of a table with keys of fixed length")
        whole = await service.delta(self.table.name, 0, 10_000)
        if whole.reached_end and whole.entries:
            found = {entry.key: Held(entry.value, entry.version) for entry in whole.entries if entry.key in self.keys}
            require(
                found == state, f"{self.table.name}: a delta of everything brought {found}, the entries are {state}"
            )
        await self.replica.follow(service, self.table.name, limit)
        for key, held in state.items():
            entry = self.replica.entries.get(key)
            require(
                entry is not None and (entry.value, entry.version) == held,
                f"{self.table.name}: deltas led to {entry} for {key!r}, the entry is {held}",
            )

    # -- changing ------------------------------------------------------------------------------------------------

    async def live(self, service: TableService, operations: int) -> None:
        """Do random operations until there were enough, or the container fails."""
        if not self.lives_alone:
            await self._create_shared(service)
        await self.reconcile(service)
        for _ in range(operations):
            await self._one(service)
            chance = self.random.random()
            if chance < 0.05:
                await self.reconcile(service)
            elif chance < 0.10:
                await self.check_iterator(service)
            elif chance < 0.15:
                await self.check_delta(service)
            elif chance < 0.17:
                await service.container.flush_to_storage()
        await self.reconcile(service)

    async def _create_shared(self, service: TableService) -> None:
        with contextlib.suppress(SegmentExistsError):
            await service.create_table(self.table.name, self.table.key_length)

    async def _one(self, service: TableService) -> None:
        before = self.candidates[0]
        self.offset_given = False
        after, call, wanted = self._choose(service, before)
        self.candidates = [before] if wanted is not None else [before, after]
        self.steps += 1
        try:
            answer = await maybe_leave(call(), self.random, 0.1)
        except (UnavailableError, LeftError):
            # A change that was handed over still comes; an answer that changes nothing waits for it.
            await self._settle(service)
            await self.reconcile(service)
            return
        except TailraceError as error:
            if isinstance(error, BadOffsetError) and self.offset_given:
                self.candidates = [before]  # others or compaction changed the table meanwhile
                return
            require(wanted is not None and isinstance(error, wanted), f"unexpected {type(error).__name__}: {error}")
            self.candidates = [before]
            return
        require(wanted is None, f"{self.table.name}: an operation succeeded that had to fail with {wanted}")
        self.candidates = [after]
        if after is None:
            self.highest, self.replica = -1, Replica()
        if answer is not None:
            self._note_versions(answer)

    def _note_versions(self, versions: dict[bytes, int]) -> None:
        state = self.candidates[0]
        assert state is not None
        highest = self.highest
        for key, version in versions.items():
            require(version > self.highest, f"{self.table.name}: version {version} after {self.highest}")
            state[key] = Held(state[key].value, version)
            highest = max(highest, version)
        self.highest = highest

    async def _settle(self, service: TableService) -> None:
        with contextlib.suppress(NoSuchSegmentError):
            await service.remove(self.table.name, [TableKey(self.absent, NO_VERSION)])
        await settled(service.container)  # the same for a creation or deletion

    def _choose(
        self, service: TableService, state: State
    ) -> tuple[State, Callable[[], Awaitable[dict[bytes, int] | None]], Outcome]:
        """Pick an operation: the state after it, the call, and the error with which it must fail."""
        chance = self.random.random()
        if self.lives_alone and state is None and chance < 0.8:
            return {}, lambda: service.create_table(self.table.name, self.table.key_length), None
        if self.lives_alone and chance < 0.04:
            return self._delete(service, state)
        if chance < 0.7:
            return self._update(service, state)
        return self._remove(service, state)

    def _delete(self, service: TableService, state: State) -> tuple[State, Callable[[], Awaitable[None]], Outcome]:
        must_be_empty = self.random.random() < 0.5
        wanted: Outcome = None
        if state is None:
            wanted = NoSuchSegmentError
        elif must_be_empty and self.table.key_length:
            wanted = UnsupportedError
        elif must_be_empty and state:
            wanted = TableNotEmptyError
        return None, lambda: service.delete_table(self.table.name, must_be_empty), wanted

    def _batch(self, state: State) -> list[TableKey]:
        """Some keys, each with a condition that holds or does not."""
        batch = []
        for key in self.random.sample(self.keys, self.random.randint(1, BATCH_MAX)):
            held = state.get(key) if state is not None else None
            version = NO_VERSION
            chance = self.random.random()
            if chance < 0.5 and held is not None and held.version is not None:
                version = held.version + (chance < 0.05)
            elif chance < 0.5:
                version = NOT_EXISTS if chance > 0.05 else 1
            elif chance < 0.53:
                version = NOT_EXISTS
            batch.append(TableKey(key, version))
        return batch

    @staticmethod
    def _refusal(state: State, batch: Sequence[TableKey]) -> Outcome:
        if state is None:
            return NoSuchSegmentError
        for key in batch:
            held = state.get(key.key)
            if held is None and key.version >= 0:
                return TableKeyNotExistsError
            if held is not None and key.version not in (NO_VERSION, held.version):
                return TableKeyBadVersionError
        return None

    def _update(
        self, service: TableService, state: State
    ) -> tuple[State, Callable[[], Awaitable[dict[bytes, int] | None]], Outcome]:
        rng = self.random
        batch = self._batch(state)
        self.written += 1
        entries = []
        for key in batch:
            padding = rng.randbytes(int(rng.random() ** 6 * 6000))
            entries.append(TableEntry(key.key, self.written.to_bytes(6, "big") + padding, key.version))
        wanted = self._refusal(state, batch)
        after = {**(state or {}), **{entry.key: Held(entry.value, None) for entry in entries}}
        self.offset_given = use_offset = rng.random() < 0.1

        async def call() -> dict[bytes, int]:
            offset = (await service.container.info(self.table.name)).length if use_offset else -1
            versions = await service.update(self.table.name, entries, offset)
            return {entry.key: version for entry, version in zip(entries, versions, strict=True)}

        return after, call, wanted

    def _remove(self, service: TableService, state: State) -> tuple[State, Callable[[], Awaitable[None]], Outcome]:
        batch = self._batch(state)
        gone = {key.key for key in batch}
        after = {key: held for key, held in (state or {}).items() if key not in gone}

        async def call() -> None:
            await service.remove(self.table.name, batch)

        return after, call, self._refusal(state, batch)


class TableAuditor:
    """Reads a table that is never deleted while others change it: no answer may be older than one before it."""

    def __init__(self, table: TableSpec, keys: Sequence[bytes], rng: random.Random) -> None:
        self.table = table
        self.keys = keys
        self.random = rng
        self.seen: dict[bytes, TableEntry] = {}
        self.length = self.start_offset = 0

    async def live(self, service: TableService, rounds: int) -> None:
        """Read again and again."""
        for _ in range(rounds):
            try:
                await self._look(service)
            except NoSuchSegmentError:
                require(not self.length, f"{self.table.name}: the table is gone")
            await asyncio.sleep(self.random.random() ** 2 * 0.2)

    async def _look(self, service: TableService) -> None:
        if self.random.random() < 0.5:
            wanted = self.random.sample(list(self.keys), 3)
            found = [entry for entry in await service.get(self.table.name, wanted) if entry is not None]
        else:
            found = list((await iterate(service, self.table, self.random.choice([2, 100]))).values())
        for entry in found:
            before = self.seen.get(entry.key)
            if before is not None:
                again = entry == before
                require(again or entry.version > before.version, f"{self.table.name}: {entry} after {before}")
            self.seen[entry.key] = entry
        info = await service.info(self.table.name)
        require(
            info.length >= self.length and info.start_offset >= self.start_offset,
            f"{self.table.name}: {info} after length {self.length} and start {self.start_offset}",
        )
        self.length, self.start_offset = info.length, info.start_offset
