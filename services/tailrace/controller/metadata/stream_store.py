"""Read and change a stream's records (docs/design.md#controller-metadata, docs/design.md#controller).

Every change reads, decides and writes under the versions read; on a conflict it starts again. The decision is a pure
function of the records, so a repeated change finds the result of an attempt with unknown outcome, or makes it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NotFoundError, WriteConflictError
from tailrace.controller.metadata.keyed_locks import KeyedLocks
from tailrace.controller.metadata.metadata_store import bucket_of, bucket_table
from tailrace.controller.metadata.model import Epoch
from tailrace.controller.metadata.ports import NOT_EXISTS, UNCONDITIONAL, MetadataStore, Put, Stored
from tailrace.controller.metadata.record_cache import Cacheable, RecordCache
from tailrace.controller.metadata.records import (
    CompletedTransaction,
    Record,
    RetentionCut,
    SealedRecord,
    StreamRecord,
    TransactionRecord,
    decode,
    encode,
    kind_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tailrace.common.ports import Entropy

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)


class StreamKey(NamedTuple):
    """A stream's full name and the keys of its records in the table of its bucket."""

    scope: str
    stream: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}"

    @property
    def table(self) -> str:
        """Return the table that holds the stream's records."""
        return bucket_table(bucket_of(self.scope, self.stream))

    @property
    def root(self) -> bytes:
        """Key of the `StreamRecord`."""
        return str(self).encode()

    @property
    def subscribers(self) -> bytes:
        """Key of the `SubscribersRecord`."""
        return f"{self}/s".encode()

    def subscriber(self, incarnation: int, name: str) -> bytes:
        """Key of the `Subscriber` of the group ``scope/group``."""
        return f"{self}/s/{incarnation}/{name}".encode()

    def epoch(self, incarnation: int, epoch: int) -> bytes:
        """Key of an `Epoch`."""
        return f"{self}/e/{incarnation}/{epoch}".encode()

    def sealed(self, incarnation: int, epoch: int) -> bytes:
        """Key of a `SealedRecord`."""
        return f"{self}/z/{incarnation}/{epoch}".encode()

    def transaction(self, transaction_id: bytes) -> bytes:
        """Key of a `TransactionRecord`, later a `CompletedTransaction`."""
        return f"{self}/t/{transaction_id.hex()}".encode()

    def completed(self, incarnation: int, chunk: int) -> bytes:
        """Key of a `CompletedChunk`."""
        return f"{self}/c/{incarnation}/{chunk}".encode()

    def retention(self, incarnation: int) -> bytes:
        """Key of a `RetentionRecord`."""
        return f"{self}/r/{incarnation}".encode()

    def retention_cut(self, incarnation: int, number: int) -> bytes:
        """Key of a `RetentionCut`."""
        return f"{self}/r/{incarnation}/{number}".encode()

    def writer(self, writer: str) -> bytes:
        """Key of a `WriterMark`."""
        return f"{self}/w/{writer}".encode()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Records that were read together."""

    table: str
    stored: Mapping[bytes, Stored | None]

    def get(self, kind: type[R], key: bytes) -> R | None:
        """Return the record under a key that was read; None when it is missing."""
        found = self.stored[key]
        return None if found is None else decode(kind, found.value, f"{self.table}[{key!r}]")

    def transaction(self, key: bytes) -> TransactionRecord | CompletedTransaction | None:
        """Return the open or completed transaction under a key that was read."""
        found = self.stored[key]
        if found is None:
            return None
        if kind_of(found.value) is CompletedTransaction:
            return self.get(CompletedTransaction, key)
        return self.get(TransactionRecord, key)

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


class StreamStore:
    """Read and change the records of all streams in a metadata store."""

    def __init__(self, metadata: MetadataStore, entropy: Entropy) -> None:
        self.metadata = metadata
        self._entropy = entropy
        self._locks = KeyedLocks()
        self._immutable = RecordCache(limits.IMMUTABLE_RECORDS_CACHED_MAX_BYTES)

    async def read(self, key: StreamKey, keys: Sequence[bytes]) -> Snapshot:
        """Read records of one stream."""
        stored = await self.metadata.get(key.table, keys)
        return Snapshot(key.table, dict(zip(keys, stored, strict=True)))

    async def load(self, key: StreamKey) -> StreamRecord | None:
        """Return the stream's present root; None when no stream of the name ever existed."""
        return (await self.read(key, [key.root])).get(StreamRecord, key.root)

    async def change(
        self, key: StreamKey, extra_keys: Sequence[bytes], decide: Callable[[StreamRecord | None, Snapshot], Change[T]]
    ) -> T:
        """Change the stream's records with `decide`, which gets the root and the records under `extra_keys`.

        Raises:
            WriteConflictError: too many conflicts in a row. Errors of `decide`, with nothing written.
        """
        async with self._locks.hold(key):
            return await change_records(
                self.metadata,
                self._entropy,
                key.table,
                (key.root, *extra_keys),
                lambda snapshot: decide(snapshot.get(StreamRecord, key.root), snapshot),
            )

    async def remove(self, key: StreamKey, keys: Sequence[bytes]) -> None:
        """Remove records that no other record names."""
        for start in range(0, len(keys), limits.EPOCHS_PER_READ_MAX):
            part = keys[start : start + limits.EPOCHS_PER_READ_MAX]
            await self.metadata.remove(key.table, [(item, UNCONDITIONAL) for item in part])

    # -- immutable records are cached

    async def epoch(self, key: StreamKey, root: StreamRecord, epoch: int) -> Epoch:
        """Return one epoch. Raises NotFoundError when the stream does not have it."""
        if not 0 <= epoch <= root.active_epoch:
            raise NotFoundError(f"stream {key} has no epoch {epoch}; the active epoch is {root.active_epoch}")
        return (await self.epochs(key, root, epoch, epoch))[0]

    async def active_epoch(self, key: StreamKey, root: StreamRecord) -> Epoch:
        """Return the active epoch of a root."""
        return await self.epoch(key, root, root.active_epoch)

    async def epochs(self, key: StreamKey, root: StreamRecord, first: int, last: int) -> list[Epoch]:
        """Return the epochs from `first` to `last`, inclusive, which the stream must have."""
        wanted = [key.epoch(root.incarnation, number) for number in range(first, last + 1)]
        found = await self._load_immutable(key, Epoch, wanted)
        for item, epoch in zip(wanted, found, strict=True):
            if epoch is None:
                raise CorruptionError(f"{key.table}[{item!r}]", "an epoch of the stream is missing")
        return [epoch for epoch in found if epoch is not None]

    async def sealed(self, key: StreamKey, root: StreamRecord, first: int, last: int) -> list[SealedRecord]:
        """Return the sealed sizes recorded for the epochs from `first` to `last`, inclusive."""
        wanted = [key.sealed(root.incarnation, number) for number in range(first, last + 1)]
        return [record for record in await self._load_immutable(key, SealedRecord, wanted) if record is not None]

    async def retention_cut(self, key: StreamKey, incarnation: int, number: int) -> RetentionCut | None:
        """Return a cut of the stream's retention set; None when it was removed."""
        return (await self._load_immutable(key, RetentionCut, [key.retention_cut(incarnation, number)]))[0]

    async def _load_immutable(self, key: StreamKey, kind: type[R], wanted: Sequence[bytes]) -> list[R | None]:
        found: dict[bytes, R] = {}
        for item in wanted:
            cached = self._immutable.get((key.table, item))
            if isinstance(cached, kind):
                found[item] = cached
        missing = [item for item in wanted if item not in found]
        for start in range(0, len(missing), limits.EPOCHS_PER_READ_MAX):
            part = missing[start : start + limits.EPOCHS_PER_READ_MAX]
            snapshot = await self.read(key, part)
            for item in part:
                record = snapshot.get(kind, item)
                if record is None:
                    continue
                found[item] = record
                if isinstance(record, Cacheable):
                    self._immutable.put((key.table, item), record)
        return [found.get(item) for item in wanted]


async def change_records(
    metadata: MetadataStore,
    entropy: Entropy,
    table: str,
    keys: Sequence[bytes],
    decide: Callable[[Snapshot], Change[T]],
) -> T:
    """Read, decide and write under the versions read; start again on a conflict.

    Raises:
        WriteConflictError: too many conflicts in a row. Errors of `decide`, with nothing written.
    """
    intended: dict[bytes, bytes] = {}
    change: Change[T] | None = None
    for attempt in range(limits.METADATA_CONFLICTS_MAX):
        stored = await metadata.get(table, keys)
        snapshot = Snapshot(table, dict(zip(keys, stored, strict=True)))
        if change is not None and _is_written(snapshot, intended):
            return change.result  # the conflict was with our own write, whose reply was lost
        change = decide(snapshot)
        if not change.puts:
            return change.result
        intended = {key: encode(record) for key, record in change.puts.items()}
        try:
            await metadata.put(table, [Put(key, value, snapshot.version(key)) for key, value in intended.items()])
        except WriteConflictError:
            await asyncio.sleep(_pause_s(attempt, entropy))
            continue
        return change.result
    raise WriteConflictError(f"table {table}: {limits.METADATA_CONFLICTS_MAX} conflicting changes in a row; retry")


def _is_written(snapshot: Snapshot, intended: Mapping[bytes, bytes]) -> bool:
    """Return whether our own write is stored. Random ids in records tell it from another writer's equal change."""
    for key, value in intended.items():
        if key in snapshot.stored:
            found = snapshot.stored[key]
            if found is None or found.value != value:
                return False
    return True


def _pause_s(attempt: int, entropy: Entropy) -> float:
    longest: float = min(0.001 * 2.0**attempt, limits.METADATA_CONFLICT_BACKOFF_MAX_S)
    return entropy.uniform() * longest
