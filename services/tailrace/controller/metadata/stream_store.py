"""Read and change a stream's records (docs/design.md#controller-metadata, docs/design.md#controller)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from tailrace.common import limits
from tailrace.common.errors import AnswerTooLargeError, CorruptionError, NoSuchStreamError, NotFoundError
from tailrace.controller.metadata.changes import Change, RecordReader, Snapshot, change_records
from tailrace.controller.metadata.keyed_locks import KeyedLocks
from tailrace.controller.metadata.metadata_store import bucket_of, bucket_table
from tailrace.controller.metadata.model import Epoch, StreamState
from tailrace.controller.metadata.parts import Parts
from tailrace.controller.metadata.ports import UNCONDITIONAL, MetadataStore
from tailrace.controller.metadata.recent_records import RecentRecords
from tailrace.controller.metadata.record_cache import Cacheable, RecordCache
from tailrace.controller.metadata.records import RetentionCut, SealedRecord, StreamRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from tailrace.common.ports import Entropy
    from tailrace.controller.metadata.model import StreamSegment

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

    def parts(self, key: StreamKey, keys: Sequence[bytes], *, beside: Sequence[bytes] = ()) -> Parts[bytes, Snapshot]:
        """Read many records of one stream in parts, each together with those `beside`."""
        return Parts(keys, lambda part: self.read(key, [*beside, *part]))

    async def load(self, key: StreamKey) -> StreamRecord | None:
        """Return the stream's present root; None when no stream of the name ever existed."""
        return (await self.read(key, [key.root], remember=True)).get(StreamRecord, key.root)

    async def latest(self, key: StreamKey) -> StreamRecord | None:
        """Return the root that this controller read or wrote last; the present one when it remembers none.

        What is decided by it must be written by `change`, which finds out when it is an old one.
        """
        known = self._recent.get(key.table, [key.root])
        return await self.load(key) if known is None else Snapshot(key.table, known).get(StreamRecord, key.root)

    def presumed_missing(self, key: StreamKey) -> Snapshot | None:
        """Return a snapshot without a root; None when this controller remembers one.

        What is decided by it must be written by `change`, which finds out when the root is there.
        """
        known = self._recent.get(key.table, [key.root])
        return Snapshot(key.table, {key.root: None}) if known is None else None

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
        for start in range(0, len(keys), limits.RECORDS_PER_READ_MAX):
            part = keys[start : start + limits.RECORDS_PER_READ_MAX]
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
        """Return the epochs of these numbers, which the stream must have.

        Raises:
            NoSuchStreamError: the stream is being deleted, or was since `root` was read. CorruptionError.
        """
        return [epoch async for part in self.epoch_parts(key, root, numbers) for epoch in part]

    def epoch_parts(
        self, key: StreamKey, root: StreamRecord, numbers: Iterable[int]
    ) -> Parts[bytes, ImmutableRecords[Epoch]]:
        """Return the epochs of these numbers in parts; raises as `chosen_epochs`."""

        async def check(item: bytes) -> None:
            await self._require_present(key, root)
            raise CorruptionError(f"{key.table}[{item!r}]", "an epoch of the stream is missing")

        return self._immutable_parts(key, Epoch, [key.epoch(root.incarnation, number) for number in numbers], check)

    async def _require_present(self, key: StreamKey, root: StreamRecord) -> None:
        """Check that the stream of a root still exists. Its deletion removes epochs before it writes the tombstone."""
        now = await self.load(key)
        gone = (StreamState.DELETING, StreamState.DELETED)
        if now is None or now.incarnation != root.incarnation or now.state in gone:
            raise NoSuchStreamError(f"stream {key} does not exist")

    async def segments(
        self, key: StreamKey, root: StreamRecord, numbers: Iterable[int], most: int | None = None
    ) -> dict[int, StreamSegment]:
        """Return every segment of the epochs of these numbers, by id, in order of id; raises as `chosen_epochs`.

        Most segments are in many epochs, so they take much less memory than the epochs, of which none is kept. With
        `most` there may be no more: AnswerTooLargeError.
        """
        found: dict[int, StreamSegment] = {}
        looked_at = 0
        async for part in self.epoch_parts(key, root, numbers):
            for epoch in part:
                found.update((segment.identifier, segment) for segment in epoch.segments)
                looked_at += len(epoch.segments)
                if most is not None and len(found) > most:
                    raise AnswerTooLargeError(
                        f"more than {most} segments of {key} lie between the cuts; ask for a shorter range"
                    )
                if looked_at >= limits.EPOCH_SEGMENTS_AT_ONCE:
                    looked_at = 0
                    await asyncio.sleep(0)
        return dict(sorted(found.items()))

    async def sealed(self, key: StreamKey, root: StreamRecord, first: int, last: int) -> list[SealedRecord]:
        """Return the sealed sizes recorded for the epochs from `first` to `last`, inclusive."""
        return [record async for part in self.sealed_parts(key, root, first, last) for record in part]

    def sealed_parts(
        self, key: StreamKey, root: StreamRecord, first: int, last: int
    ) -> Parts[bytes, ImmutableRecords[SealedRecord]]:
        """Return what `sealed` does, in parts."""
        wanted = [key.sealed(root.incarnation, number) for number in range(first, last + 1)]
        return self._immutable_parts(key, SealedRecord, wanted, _may_be_missing)

    async def retention_cut(self, key: StreamKey, incarnation: int, number: int) -> RetentionCut | None:
        """Return a cut of the stream's retention set; None when it was removed."""
        wanted = [key.retention_cut(incarnation, number)]
        parts = self._immutable_parts(key, RetentionCut, wanted, _may_be_missing)
        return next(iter(await anext(parts)), None)

    def _immutable_parts(
        self, key: StreamKey, kind: type[R], wanted: Sequence[bytes], check: Callable[[bytes], Awaitable[None]]
    ) -> Parts[bytes, ImmutableRecords[R]]:
        """Return immutable records in the order of their keys, in parts; `check` gets the key of a missing one."""

        async def read(part: Sequence[bytes]) -> ImmutableRecords[R]:
            known = {item: record for item in part if (record := self._known(key, kind, item)) is not None}
            unknown = [item for item in part if item not in known]
            snapshot = await self.read(key, unknown) if unknown else Snapshot(key.table, {})
            for item, stored in snapshot.stored.items():
                if stored is None:
                    await check(item)
            return ImmutableRecords(part, kind, known, snapshot, self._immutable)

        return Parts(wanted, read)

    def _known(self, key: StreamKey, kind: type[R], item: bytes) -> R | None:
        cached = self._immutable.get((key.table, item))
        if isinstance(cached, kind):
            return cached
        written = self.remembered(key, [item])
        return None if written is None else written.get(kind, item)


async def _may_be_missing(_: bytes) -> None:
    return None


class ImmutableRecords(Generic[R]):
    """Immutable records of one part. Each is decoded when its turn comes: who keeps none needs memory for one."""

    def __init__(
        self, items: Sequence[bytes], kind: type[R], known: Mapping[bytes, R], snapshot: Snapshot, cache: RecordCache
    ) -> None:
        self._items = items
        self._kind = kind
        self._known = known
        self._snapshot = snapshot
        self._cache = cache

    @property
    def size_bytes(self) -> int:
        """Return the length of the values that were read for it."""
        return self._snapshot.size_bytes

    def __iter__(self) -> Iterator[R]:
        """Yield those that are not missing."""
        for item in self._items:
            found = self._known.get(item)
            if found is None:
                found = self._snapshot.get(self._kind, item)
                if isinstance(found, Cacheable):
                    self._cache.put((self._snapshot.table, item), found)
            if found is not None:
                yield found
