"""Reads and verifies objects in executors: structure, checksums, and the references to them (docs/spark-audit.md).

The rules are those of `tailrace inspect verify`. Needs no Spark.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.common import limits
from tailrace.common.errors import NotFoundError
from tailrace.common.task_groups import run_all
from tailrace.pipelines.audit.classify import Newest, unreferenced_status
from tailrace.pipelines.audit.rows import INDEX_PAGE, Row, Status, What, to_batch
from tailrace.pipelines.direct.references import newest_snapshot
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.verify.chunk_bytes import ChunkReader
from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore
from tailrace.segmentstore.verify.report import ContainerReport, Report
from tailrace.segmentstore.verify.sections import SectionReader, StructureError, section_problem
from tailrace.storage import chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.pipelines.direct.store_location import StoreLocation
    from tailrace.storage.port import ObjectStore


@dataclass(frozen=True)
class Reference:
    """A reference to an object, as a snapshot has it. ``kind`` is `rows.CHUNK` or `rows.INDEX_PAGE`."""

    segment: str
    segment_id: int
    kind: str
    ref: ChunkRef

    @property
    def name(self) -> str:
        """Return what findings call the segment."""
        return f"{self.segment}$attributes.index" if self.kind == INDEX_PAGE else self.segment


@dataclass(frozen=True)
class Work:
    """An object to verify. ``length`` is None when the list lacks it; ``snapshot`` is the key of the references."""

    key: str
    container: int
    length: int | None
    modified_ms: int
    snapshot: str
    newest: Newest | None
    pending: bool
    references: tuple[Reference, ...]

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Work:
        """Return the work of a row that the driver made (`job.WORK_COLUMNS`)."""
        key = row["object"]
        return cls(
            key,
            row["container"] if row["container"] is not None else -1,
            row["length_bytes"],
            row["time_ms"] or 0,
            row["snapshot"] or "",
            None if row["snapshot_epoch"] is None else Newest(row["snapshot_epoch"], row["snapshot_ms"]),
            bool(row["pending"]),
            tuple(
                Reference(
                    each["segment"],
                    each["segment_id"],
                    each["kind"],
                    ChunkRef(key, each["position"], each["offset"], each["length_bytes"]),
                )
                for each in row["references"] or ()
            ),
        )


@dataclass
class _Outcome:
    """What one verification of an object found. It is void when an object was missing that was replaced."""

    report: ContainerReport
    rows: list[Row] = field(default_factory=list)

    def chunk(self, work: Work, reference: Reference, verified: int, status: Status, reason: str | None = None) -> None:
        ref = reference.ref
        self.rows.append(
            Row(
                What.CHUNK,
                work.container,
                reference.name,
                reference.segment_id,
                work.key,
                ref.data_offset,
                ref.segment_offset,
                ref.length,
                verified,
                status=status,
                reason=reason,
            )
        )


class ObjectAudit:
    """Verifies objects of one cluster. ``now_ms`` is when the audit began, in ms since 1970."""

    def __init__(self, store: ReadOnlyStore, cluster_id: uuid.UUID, containers: int, now_ms: int) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._containers = containers
        self._now_ms = now_ms

    async def verify(self, work: Work) -> list[Row]:
        """Return the rows of an object: the object, a chunk for each reference, and the findings.

        Raises:
            UnavailableError: the store does not answer.
        """
        if not work.references:
            return await self._unreferenced(work)
        if work.length is not None:
            store = _WatchedStore(self._store)
            outcome = await self._referenced(store, work, work.length)
            if work.key not in store.missing:
                return self._finished(work, outcome)
        return await self._missing(work)

    async def _referenced(self, store: _WatchedStore, work: Work, length: int) -> _Outcome:
        """Verify the sections of an object, and each reference to it."""
        outcome = _new_outcome(work)
        reader = ChunkReader(store, {work.key: length}, outcome.report, _ignore)
        users: dict[int, str] = {}
        sections = None
        try:
            sections = await SectionReader(store, self._cluster_id.bytes).sections(work.key, length)
        except StructureError as error:
            outcome.report.problem(str(error), place=_place(work), position=error.position)
        for reference in work.references:
            ref, before = reference.ref, outcome.report.report.problem_count
            if sections is not None:
                reason = section_problem(ref, sections.get(ref.data_offset))
                if not reason and ref.data_offset in users:
                    reason = f"segment {users[ref.data_offset]} has the same section"
                if reason:
                    _report_reference(outcome, work, reference, reason)
            users[ref.data_offset] = reference.name
            verified = await reader.verify(reference.name, ref)
            intact = outcome.report.report.problem_count == before
            outcome.chunk(work, reference, verified, Status.VERIFIED if intact else Status.DAMAGED)
        return outcome

    async def _missing(self, work: Work) -> list[Row]:
        """Verify what has taken the place of an object that is missing: compaction and truncation delete objects.

        An object that the newest snapshot names is lost.
        """
        for _ in range(limits.DIRECT_REREADS_MAX):
            newest = await newest_snapshot(self._store, self._cluster_id, work.container)
            if newest is None or newest[0] == work.snapshot:
                break
            key, snapshot = newest
            wanted = {reference.segment_id for reference in work.references}
            found = {
                segment.segment_id: (segment.start_offset, list(segment.chunks), list(segment.index_pages))
                for segment, _ in snapshot.covered_segments(key)
                if segment.segment_id in wanted
            }
            if any(ref.object_key == work.key for _, *both in found.values() for refs in both for ref in refs):
                break
            store = _WatchedStore(self._store)
            outcome = _new_outcome(work)
            for reference in work.references:
                await self._replaced(store, outcome, work, reference, found.get(reference.segment_id))
            if not store.missing:
                return self._finished(work, outcome, Status.GONE)
        outcome = _new_outcome(work)
        reader = ChunkReader(self._store, {}, outcome.report, _ignore)
        for reference in work.references:
            await reader.verify(reference.name, reference.ref)
            outcome.chunk(work, reference, 0, Status.MISSING)
        return self._finished(work, outcome, Status.MISSING)

    async def _replaced(
        self,
        store: _WatchedStore,
        outcome: _Outcome,
        work: Work,
        reference: Reference,
        found: tuple[int, list[ChunkRef], list[ChunkRef]] | None,
    ) -> None:
        """Verify the newer references to the bytes of an older one."""
        if found is None:
            outcome.chunk(work, reference, 0, Status.GONE, "the segment was deleted or merged during the audit")
            return
        start_offset, data, pages = found
        old, verified, before = reference.ref, 0, outcome.report.report.problem_count
        for ref in pages if reference.kind == INDEX_PAGE else data:
            overlap = min(ref.end, old.end) - max(ref.segment_offset, old.segment_offset)
            if overlap > 0:
                sizes = {ref.object_key: ref.data_offset + chunks.stored_length(ref.length)}
                reader = ChunkReader(store, sizes, outcome.report, _ignore)
                verified += min(await reader.verify(reference.name, ref), overlap)
        intact = outcome.report.report.problem_count == before
        status = Status.DAMAGED if not intact else Status.VERIFIED if verified == old.length else Status.GONE
        reason = f"truncated to {start_offset} during the audit" if status is Status.GONE else "read from newer objects"
        outcome.chunk(work, reference, verified, status, reason)

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
        rows = [self._object(work, status)]
        if status is Status.ORPHAN:
            rows.append(self._finding(work, status, "no reference names the object"))
        return rows

    async def _unaccounted(self, work: Work, length: int) -> list[Row]:
        """Verify an object by its own headers: any of its bytes may be needed."""
        store = _WatchedStore(self._store)
        outcome = _new_outcome(work)
        try:
            sections = await SectionReader(store, self._cluster_id.bytes).sections(work.key, length)
        except StructureError as error:
            outcome.report.problem(str(error), place=_place(work), position=error.position)
            sections = {}
        reader = ChunkReader(store, {work.key: length}, outcome.report, _ignore)
        for position, section in sections.items():
            await reader.verify(
                section.segment_name, ChunkRef(work.key, position, section.start_offset, section.length)
            )
        if work.key in store.missing:
            return []  # it was deleted meanwhile
        reason = "no readable snapshot of its container says whether the object is needed"
        rows = self._finished(work, outcome, Status.UNACCOUNTED)
        return [*rows, self._finding(work, Status.UNACCOUNTED, reason)]

    def _finished(self, work: Work, outcome: _Outcome, status: Status | None = None) -> list[Row]:
        """Return the rows of an outcome; without a status it is what the problems say."""
        report = outcome.report.report
        lost = status is Status.MISSING
        found = Status.MISSING if lost else Status.DAMAGED
        rows = [
            Row(
                What.FINDING,
                work.container,
                problem.segment or None,
                object=problem.place.removeprefix("object ") or work.key,
                position=problem.position,
                offset=problem.offset,
                status=found,
                reason=problem.reason,
            )
            for problem in report.problems
        ]
        if status is None:
            status = Status.DAMAGED if report.problem_count else Status.VERIFIED
        return [self._object(work, status, outcome), *outcome.rows, *rows]

    @staticmethod
    def _object(work: Work, status: Status, outcome: _Outcome | None = None) -> Row:
        verified = None if outcome is None else sum(row.verified_bytes or 0 for row in outcome.rows)
        return Row(
            What.OBJECT,
            work.container if work.container >= 0 else None,
            object=work.key,
            length_bytes=work.length,
            verified_bytes=verified,
            refs=len(work.references),
            status=status,
            time_ms=work.modified_ms or None,
        )

    @staticmethod
    def _finding(work: Work, status: Status, reason: str) -> Row:
        container = work.container if work.container >= 0 else None
        return Row(What.FINDING, container, object=work.key, length_bytes=work.length, status=status, reason=reason)


class _WatchedStore(ReadOnlyStore):
    """Remembers which objects did not exist when they were read."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.missing: set[str] = set()

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ReadOnlyStore.get_range."""
        try:
            return await self._store.get_range(key, offset, length)  # which counts failures of the store, for all
        except NotFoundError:
            self.missing.add(key)
            raise


def _new_outcome(work: Work) -> _Outcome:
    return _Outcome(ContainerReport(Report(), work.container))


def _report_reference(outcome: _Outcome, work: Work, reference: Reference, reason: str) -> None:
    ref = reference.ref
    outcome.report.problem(
        reason, segment=reference.name, offset=ref.segment_offset, place=_place(work), position=ref.data_offset
    )


def _place(work: Work) -> str:
    return f"object {work.key}"


def _ignore(_: int) -> None:
    """Ignore progress: Spark shows that of tasks."""


@dataclass(frozen=True)
class VerifyObjects:
    """Turns batches of work into rows, for `mapInArrow`: some objects at a time."""

    location: StoreLocation
    identity: ClusterIdentity
    now_ms: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises UnavailableError, StartError."""
        with asyncio.Runner() as runner:
            store = ReadOnlyStore(self.location.open())
            audit = ObjectAudit(store, uuid.UUID(self.identity.cluster_id), self.identity.containers, self.now_ms)
            try:
                for batch in batches:
                    for start in range(0, batch.num_rows, limits.AUDIT_BATCH_OBJECTS):
                        some = batch.slice(start, limits.AUDIT_BATCH_OBJECTS).to_pylist()
                        yield to_batch(runner.run(_verify(audit, some)))
            finally:
                runner.run(store.close())


async def _verify(audit: ObjectAudit, rows: list[dict[str, Any]]) -> list[Row]:
    gate = asyncio.Semaphore(limits.AUDIT_OBJECTS_MAX)

    async def one(row: dict[str, Any]) -> list[Row]:
        async with gate:
            return await audit.verify(Work.from_row(row))

    return [row for found in await run_all(*map(one, rows)) for row in found]
