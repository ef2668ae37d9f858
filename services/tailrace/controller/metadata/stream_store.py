"""Read and change a stream's records (docs/design.md#controller-metadata, docs/design.md#controller)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NotFoundError
from tailrace.controller.metadata.changes import Change, RecordReader, Snapshot, change_records
from tailrace.controller.metadata.keyed_locks import KeyedLocks
from tailrace.controller.metadata.metadata_store import bucket_of, bucket_table
from tailrace.controller.metadata.model import Epoch
from tailrace.controller.metadata.ports import UNCONDITIONAL, MetadataStore
from tailrace.controller.metadata.recent_records import RecentRecords
from tailrace.controller.metadata.record_cache import Cacheable, RecordCache
from tailrace.controller.metadata.records import RetentionCut, SealedRecord, StreamRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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

    def open_shard(self, number: int) -> bytes:
        """Key of an `OpenShard`."""
        return f"{self}/o/{number}".encode()

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


class StreamStore:
    """Read and change the records of all streams in a metadata store."""

    def __init__(
        self,
        metadata: MetadataStore,
        entropy: Entropy,
        cached_max_bytes: int = limits.IMMUTABLE_RECORDS_CACHED_MAX_BYTES,
    ) -> None:
        self.metadata = metadata
        self._entropy = entropy
        self._locks = KeyedLocks()
        self._immutable = RecordCache(cached_max_bytes)
        self._recent = RecentRecords(limits.RECENT_RECORDS_MAX_BYTES)

    async def read(self, key: StreamKey, keys: Sequence[bytes], *, remember: bool = False) -> Snapshot:
        """Read records of one stream; with `remember` the next change may be decided by them."""
        stored = dict(zip(keys, await self.metadata.get(key.table, keys), strict=True))
        if remember:
            for item, found in stored.items():
                self._recent.note(key.table, item, found)
        return Snapshot(key.table, stored)

    async def load(self, key: StreamKey) -> StreamRecord | None:
        """Return the stream's present root; None when no stream of the name ever existed."""
        return (await self.read(key, [key.root], remember=True)).get(StreamRecord, key.root)

    async def latest(self, key: StreamKey) -> StreamRecord | None:
        """Return the root that this controller read or wrote last; the present one when it remembers none.

        What is decided by it must be written by `change`, which finds out when it is an old one.
        """
        known = self._recent.get(key.table, [key.root])
        return await self.load(key) if known is None else Snapshot(key.table, known).get(StreamRecord, key.root)

    def remembered(self, key: StreamKey, keys: Sequence[bytes]) -> Snapshot | None:
        """Return records as this controller read or wrote them last; None unless it remembers all of them."""
        known = self._recent.get(key.table, keys)
        return None if known is None else Snapshot(key.table, known)

    async def look(self, key: StreamKey, keys: Sequence[bytes], decide: Callable[[Snapshot], T]) -> T:
        """Return what `decide` makes of records that are read for it, and of those that it asks for."""
        return await RecordReader(self.metadata, key.table, keys).decide(decide)

    async def change(
        self,
        key: StreamKey,
        extra_keys: Sequence[bytes],
        decide: Callable[[StreamRecord | None, Snapshot], Change[T]],
        *,
        by_memory: bool = False,
        first: Snapshot | None = None,
    ) -> T:
        """Change the stream's records with `decide`, which gets the root and the records under `extra_keys`.

        With `by_memory` it first gets them as this controller read or wrote them last, with `first` as they were read
        before (`change_records`).

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
                self._recent,
                by_memory=by_memory,
                first=first,
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
        return await self.chosen_epochs(key, root, range(first, last + 1))

    async def chosen_epochs(self, key: StreamKey, root: StreamRecord, numbers: Iterable[int]) -> list[Epoch]:
        """Return the epochs of these numbers, which the stream must have."""
        wanted = [key.epoch(root.incarnation, number) for number in numbers]
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
            elif (written := self.remembered(key, [item])) is not None and (its := written.get(kind, item)) is not None:
                found[item] = its
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
