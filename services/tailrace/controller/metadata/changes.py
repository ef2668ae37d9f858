"""Read records, decide, and write under the versions read.

See docs/design.md#controller-metadata, docs/controller.md#how-a-change-happens.

On a conflict the change starts again. The decision is a pure function of the records, so a repeated change finds the
result of an attempt with unknown outcome, or makes it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from tailrace.common import limits
from tailrace.common.errors import TailraceError, WriteConflictError
from tailrace.controller.metadata.ports import NOT_EXISTS, UNCONDITIONAL, MetadataStore, Put, Stored
from tailrace.controller.metadata.records import (
    CompletedTransaction,
    Record,
    TransactionRecord,
    decode,
    encode,
    kind_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tailrace.common.ports import Entropy
    from tailrace.controller.metadata.recent_records import RecentRecords

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)


class NotReadError(Exception):
    """A decision needs a record that was not read: it is read, and the decision made again."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key


class UnsteadyReadError(Exception):
    """A decision found records that do not belong together: all are read, and the decision made again."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Records that were read together. A key that was not read raises NotReadError."""

    table: str
    stored: Mapping[bytes, Stored | None]
    used: set[bytes] = field(default_factory=set)
    """The keys that were looked at."""

    @property
    def size_bytes(self) -> int:
        """Return the length of the values."""
        return sum(len(found.value) for found in self.stored.values() if found is not None)

    def get(self, kind: type[R], key: bytes) -> R | None:
        """Return the record under a key that was read; None when it is missing."""
        found = self._found(key)
        return None if found is None else decode(kind, found.value, f"{self.table}[{key!r}]")

    def transaction(self, key: bytes) -> TransactionRecord | CompletedTransaction | None:
        """Return the open or completed transaction under a key that was read."""
        found = self._found(key)
        if found is None:
            return None
        if kind_of(found.value) is CompletedTransaction:
            return self.get(CompletedTransaction, key)
        return self.get(TransactionRecord, key)

    def _found(self, key: bytes) -> Stored | None:
        if key not in self.stored:
            raise NotReadError(key)
        self.used.add(key)
        return self.stored[key]

    def version(self, key: bytes) -> int:
        """Return the version to write under; UNCONDITIONAL for a key that was not read."""
        if key not in self.stored:
            return UNCONDITIONAL
        found = self.stored[key]
        return NOT_EXISTS if found is None else found.version


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The result of a decision, and the records to write, if any."""

    result: T
    puts: Mapping[bytes, Record] = field(default_factory=dict)


class RecordReader:
    """Read records for decisions: those that are known to be needed, and then those that the decision asks for."""

    def __init__(
        self, metadata: MetadataStore, table: str, keys: Sequence[bytes], recent: RecentRecords | None = None
    ) -> None:
        self._metadata = metadata
        self._table = table
        self._keys = dict.fromkeys(keys)
        self._recent = recent
        self.snapshot: Snapshot | None = None

    async def read(self, more: Iterable[bytes] = ()) -> Snapshot:
        """Read all records, and `more`."""
        self._keys.update(dict.fromkeys(more))
        self.snapshot = Snapshot(self._table, await self._get(list(self._keys)))
        return self.snapshot

    async def decide(self, decide: Callable[[Snapshot], T]) -> T:
        """Return what `decide` makes of the records.

        Raises:
            WriteConflictError: the records change too often while they are read. Errors of `decide`.
        """
        snapshot = self.snapshot or await self.read()
        for _ in range(limits.METADATA_READS_ADDED_MAX):
            try:
                return decide(snapshot)
            except NotReadError as missing:
                snapshot = await self._add(missing.key, snapshot)
            except UnsteadyReadError:
                snapshot = await self.read()
        raise WriteConflictError(f"table {self._table}: records changed again and again while they were read; retry")

    async def decide_by_memory(self, decide: Callable[[Snapshot], Change[T]]) -> Change[T] | None:
        """Return what `decide` makes of the records as they are remembered; None when they cannot decide it.

        They can when all that the decision looked at is also written: then each write is under the version remembered,
        and fails when another controller has written since.
        """
        known = self._recent.get(self._table, list(self._keys)) if self._recent is not None else None
        if known is None:
            return None
        snapshot = Snapshot(self._table, dict(known))
        for _ in range(limits.METADATA_READS_ADDED_MAX):
            try:
                change = decide(snapshot)
            except NotReadError as missing:
                snapshot = await self._add(missing.key, snapshot)
            except (UnsteadyReadError, TailraceError):
                return None
            else:
                self.snapshot = snapshot
                return change if change.puts and snapshot.used <= change.puts.keys() else None
        return None

    def note(self, written: Mapping[bytes, bytes], versions: Sequence[int]) -> None:
        """Remember what was written."""
        if self._recent is not None:
            for (key, value), version in zip(written.items(), versions, strict=True):
                self._recent.note(self._table, key, Stored(key, value, version))

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remember nothing of these keys."""
        if self._recent is not None:
            for key in keys:
                self._recent.forget(self._table, key)

    async def _add(self, key: bytes, snapshot: Snapshot) -> Snapshot:
        self._keys[key] = None
        known = self._recent.get(self._table, [key]) if self._recent is not None and self.snapshot is None else None
        found = known if known is not None else await self._get([key])
        more = Snapshot(self._table, {**snapshot.stored, **found})
        if self.snapshot is not None:
            self.snapshot = more
        return more

    async def _get(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        found = dict(zip(keys, await self._metadata.get(self._table, keys), strict=True))
        if self._recent is not None:
            for key, stored in found.items():
                self._recent.note(self._table, key, stored)
        return found


async def change_records(
    metadata: MetadataStore,
    entropy: Entropy,
    table: str,
    keys: Sequence[bytes],
    decide: Callable[[Snapshot], Change[T]],
    recent: RecentRecords | None = None,
    *,
    by_memory: bool = False,
    first: Snapshot | None = None,
) -> T:
    """Read, decide and write under the versions read; start again on a conflict.

    What is read and written is remembered in `recent`. With `by_memory` it may decide the first attempt; with `first`,
    records that were read before decide it.

    Raises:
        WriteConflictError: too many conflicts in a row. Errors of `decide`, with nothing written.
    """
    reader = RecordReader(metadata, table, keys, recent)
    change = await reader.decide_by_memory(decide) if by_memory else None
    if change is None:
        if first is None:
            await reader.read()
        else:
            reader.snapshot = first
        change = await reader.decide(decide)
    for attempt in range(limits.METADATA_CONFLICTS_MAX):
        if not change.puts:
            return change.result
        snapshot = reader.snapshot or await reader.read()
        intended = {key: encode(record) for key, record in change.puts.items()}
        try:
            versions = await metadata.put(
                table, [Put(key, value, snapshot.version(key)) for key, value in intended.items()]
            )
        except WriteConflictError:
            await asyncio.sleep(_pause_s(attempt, entropy))
        except BaseException:
            reader.forget(intended)  # it may be written or not
            raise
        else:
            reader.note(intended, versions)
            return change.result
        if _is_written(await reader.read(intended), intended):
            return change.result  # the conflict was with our own write, whose reply was lost
        change = await reader.decide(decide)
    raise WriteConflictError(f"table {table}: {limits.METADATA_CONFLICTS_MAX} conflicting changes in a row; retry")


def _is_written(snapshot: Snapshot, intended: Mapping[bytes, bytes]) -> bool:
    """Return whether our own write is stored. Random ids in records tell it from another writer's equal change."""
    found = {key: snapshot.stored[key] for key in intended}
    return all(stored is not None and stored.value == intended[key] for key, stored in found.items())


def _pause_s(attempt: int, entropy: Entropy) -> float:
    longest: float = min(0.001 * 2.0**attempt, limits.METADATA_CONFLICT_BACKOFF_MAX_S)
    return entropy.uniform() * longest
