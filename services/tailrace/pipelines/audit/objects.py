"""Reads and verifies objects in executors: structure, checksums, and the references to them (docs/spark-audit.md).

The rules are those of `tailrace inspect verify`. Needs no Spark.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NotFoundError
from tailrace.common.task_groups import run_all
from tailrace.pipelines.audit.classify import unreferenced_status
from tailrace.pipelines.audit.outcome import Outcome, finding_row, object_row
from tailrace.pipelines.audit.replaced import ReplacedObjects, end_in_object, ignore
from tailrace.pipelines.audit.rows import Row, Status, to_batch
from tailrace.pipelines.audit.stores import AuditStore, WatchedStore
from tailrace.pipelines.audit.work import Work
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.verify.chunk_bytes import ChunkReader
from tailrace.segmentstore.verify.sections import SectionReader, StructureError, section_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.pipelines.direct.store_location import StoreLocation
    from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore


class ObjectAudit:
    """Verifies objects of one cluster. ``now_ms`` is when the audit began, in ms since 1970."""

    def __init__(self, store: ReadOnlyStore, cluster_id: uuid.UUID, containers: int, now_ms: int) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._containers = containers
        self._now_ms = now_ms
        self._replaced = ReplacedObjects(store, cluster_id)

    async def verify(self, works: Sequence[Work]) -> list[Row]:
        """Return the rows of objects: each object, a chunk for each reference, and the findings.

        Some are read at a time. Those that are missing come last, by container.

        Raises:
            UnavailableError: the store does not answer.
        """
        gate = asyncio.Semaphore(limits.AUDIT_OBJECTS_MAX)

        async def one(work: Work) -> list[Row] | None:
            async with gate:
                return await (self._referenced(work) if work.references else self._unreferenced(work))

        rows: list[Row] = []
        missing: dict[int, list[Work]] = {}
        for work, found in zip(works, await run_all(*map(one, works)), strict=True):
            if found is None:
                missing.setdefault(work.container, []).append(work)
            else:
                rows += found
        for container, some in sorted(missing.items()):
            rows += await self._replaced.verify(container, some)
        return rows

    async def _referenced(self, work: Work) -> list[Row] | None:
        """Verify the sections of an object, and each reference to it. None: it does not exist."""
        if work.length is None and not await self._exists(work.key):
            return None
        store, outcome = WatchedStore(self._store), Outcome(work)
        sections = None
        # An object that a list lacked and that is there nonetheless has the length that its references say.
        length = max(end_in_object(each.ref) for each in work.references) if work.length is None else work.length
        reader = ChunkReader(store, {work.key: length}, outcome.report, ignore)
        if work.length is not None:
            try:
                sections = await SectionReader(store, self._cluster_id.bytes).sections(work.key, work.length)
            except StructureError as error:
                outcome.problem(str(error), error.position)
        users: dict[int, str] = {}
        for reference in work.references:
            ref, before = reference.ref, outcome.count
            if sections is not None:
                reason = section_problem(ref, sections.get(ref.data_offset))
                if not reason and ref.data_offset in users:
                    reason = f"segment {users[ref.data_offset]} has the same section"
                if reason:
                    outcome.reference_problem(reference, reason)
            users[ref.data_offset] = reference.name
            verified = await reader.verify(reference.name, ref)
            outcome.chunk(reference, verified, Status.VERIFIED if outcome.count == before else Status.DAMAGED)
        return None if work.key in store.missing else outcome.rows()

    async def _exists(self, key: str) -> bool:
        try:
            await self._store.get_range(key, 0, 1)
        except NotFoundError:
            return False
        except CorruptionError:
            pass  # it is empty, or cannot be read
        return True

    async def _unreferenced(self, work: Work) -> list[Row]:
        status = unreferenced_status(
            work.key,
            work.modified_ms,
            work.newest,
            containers=self._containers,
            pending=work.pending,
            now_ms=self._now_ms,
        )
        if status is Status.UNACCOUNTED and work.length is not None:
            return await self._unaccounted(work, work.length)
        rows = [object_row(work, status)]
        if status is Status.ORPHAN:
            rows.append(finding_row(work, status, "no reference names the object"))
        return rows

    async def _unaccounted(self, work: Work, length: int) -> list[Row]:
        """Verify an object by its own headers: any of its bytes may be needed."""
        store, outcome = WatchedStore(self._store), Outcome(work)
        try:
            sections = await SectionReader(store, self._cluster_id.bytes).sections(work.key, length)
        except StructureError as error:
            outcome.problem(str(error), error.position)
            sections = {}
        reader = ChunkReader(store, {work.key: length}, outcome.report, ignore)
        for position, section in sections.items():
            ref = ChunkRef(work.key, position, section.start_offset, section.length)
            await reader.verify(section.segment_name, ref)
        if work.key in store.missing:
            return []  # it was deleted meanwhile
        reason = "no readable snapshot of its container says whether the object is needed"
        return [*outcome.rows(Status.UNACCOUNTED), finding_row(work, Status.UNACCOUNTED, reason)]


@dataclass(frozen=True)
class VerifyObjects:
    """Turns batches of work into rows, for `mapInArrow`: some objects at a time."""

    location: StoreLocation
    identity: ClusterIdentity
    now_ms: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises UnavailableError, StartError."""
        with asyncio.Runner() as runner:
            store = AuditStore(self.location.open())
            audit = ObjectAudit(store, uuid.UUID(self.identity.cluster_id), self.identity.containers, self.now_ms)
            try:
                for batch in batches:
                    for start in range(0, batch.num_rows, limits.AUDIT_BATCH_OBJECTS):
                        some = batch.slice(start, limits.AUDIT_BATCH_OBJECTS).to_pylist()
                        yield to_batch(runner.run(audit.verify([Work.from_row(row) for row in some])))
            finally:
                runner.run(store.close())
