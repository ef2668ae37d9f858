"""What Tier 2 should hold, by the newest snapshots, and what it holds: rows of executors (docs/spark-audit.md).

Needs no Spark: each class is a function from record batches to record batches.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import DataError, NotFoundError
from tailrace.pipelines.audit.outcome import damaged_row, gap_row
from tailrace.pipelines.audit.rows import CHUNK, INDEX_PAGE, Row, What, to_batch
from tailrace.pipelines.audit.stores import AuditStore
from tailrace.pipelines.direct.references import newest_snapshot
from tailrace.segmentstore.tier2.snapshot import Snapshot, folder, parse_key
from tailrace.segmentstore.verify.objects import container_of_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator

    import pyarrow as pa

    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.pipelines.direct.store_location import StoreLocation
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore


class SnapshotInventory:
    """Reads the snapshots of containers, one at a time."""

    def __init__(self, store: ReadOnlyStore, cluster_id: uuid.UUID) -> None:
        self._store = store
        self._cluster_id = cluster_id

    async def rows(self, container: int) -> AsyncGenerator[Row, None]:
        """Yield what the newest snapshot has: segments, references, objects that wait for deletion; last the container.

        A container without a readable snapshot has no epoch. Raises UnavailableError: the store does not answer.
        """
        found = [parse_key(info.key) async for info in self._store.list(folder(container))]
        names = sorted(name[1] for name in found if name is not None and name[0] == container)
        for name in names[:-1]:
            async for row in self._older(container, name.key(container)):
                yield row
        try:
            newest = await newest_snapshot(self._store, self._cluster_id, container)
            if newest is None:
                yield Row(What.CONTAINER, container, refs=0, reason="no snapshot")
                return
            key, snapshot = newest
            segments = 0
            for segment, gaps in snapshot.covered_segments(key):
                segments += 1
                for row in _segment_rows(container, key, segment, gaps):
                    yield row
            for pending in snapshot.pending_deletes(key):
                yield Row(What.PENDING, container, object=pending)
        except DataError as error:
            finding = damaged_row(container, error, names[-1].key(container) if names else None)
            yield finding
            yield Row(What.CONTAINER, container, object=finding.object, refs=0, reason=finding.reason)
            return
        yield Row(What.CONTAINER, container, object=key, refs=segments, epoch=snapshot.epoch, time_ms=snapshot.time_ms)

    async def _older(self, container: int, key: str) -> AsyncIterator[Row]:
        """Yield a finding when an older snapshot cannot be read. One that was replaced meanwhile is none."""
        try:
            Snapshot.decode(key, await self._store.get(key))
        except NotFoundError:
            return
        except DataError as error:
            yield damaged_row(container, error, key)


def _segment_rows(container: int, key: str, segment: Segment, gaps: list[tuple[int, int]]) -> Iterator[Row]:
    chunks = 0
    for start, end in gaps:
        yield gap_row(container, key, segment.name, segment.segment_id, start, end)
    for kind, refs in ((CHUNK, segment.chunks), (INDEX_PAGE, segment.index_pages)):
        for ref in refs:
            chunks += kind == CHUNK
            yield Row(
                What.REFERENCE, container, segment.name, segment.segment_id, ref.object_key, ref.data_offset,
                ref.segment_offset, ref.length, status=kind,
            )  # fmt: skip
    yield Row(
        What.SEGMENT, container, segment.name, segment.segment_id, offset=segment.start_offset,
        length_bytes=segment.length - segment.start_offset, refs=chunks,
    )  # fmt: skip


@dataclass(frozen=True)
class ReadSnapshots:
    """Turns batches with a column ``container`` into the rows of `SnapshotInventory`, for `mapInArrow`."""

    location: StoreLocation
    identity: ClusterIdentity

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises UnavailableError, StartError."""
        with asyncio.Runner() as runner:
            store = AuditStore(self.location.open())
            inventory = SnapshotInventory(store, uuid.UUID(self.identity.cluster_id))
            try:
                for batch in batches:
                    for container in batch.column("container").to_pylist():
                        yield from _batches(runner, inventory.rows(container))
            finally:
                runner.run(store.close())


async def list_objects(store: ReadOnlyStore) -> AsyncGenerator[Row, None]:
    """Yield an object row for everything below the prefix, also for files of interrupted uploads in a folder."""
    async for info in store.list(""):
        yield Row(
            What.OBJECT, container_of_key(info.key), object=info.key, length_bytes=info.length_bytes,
            time_ms=info.modified_ms,
        )  # fmt: skip
    for info in store.unfinished():
        yield Row(
            What.OBJECT, container_of_key(info.key), object=info.key, length_bytes=info.length_bytes,
            time_ms=info.modified_ms,
        )  # fmt: skip


@dataclass(frozen=True)
class ListObjects:
    """Lists the store page by page, in one task: for each row of the input once."""

    location: StoreLocation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `list_objects`. Raises UnavailableError, StartError."""
        for _ in itertools.chain.from_iterable(batch.to_pylist() for batch in batches):
            with asyncio.Runner() as runner:
                store = AuditStore(self.location.open())
                try:
                    yield from _batches(runner, list_objects(store))
                finally:
                    runner.run(store.close())


def _batches(runner: asyncio.Runner, rows: AsyncGenerator[Row, None]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of bounded size."""
    try:
        while found := runner.run(_take(rows, limits.AUDIT_BATCH_ROWS)):
            yield to_batch(found)
    finally:
        runner.run(rows.aclose())


async def _take(rows: AsyncGenerator[Row, None], count: int) -> list[Row]:
    taken: list[Row] = []
    async for row in rows:
        taken.append(row)
        if len(taken) >= count:
            break
    return taken
