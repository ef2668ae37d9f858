"""Verifies what took the place of objects that are missing: compaction and truncation delete objects meanwhile.

See docs/spark-audit.md#while-the-cluster-works.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import DataError
from tailrace.pipelines.audit.outcome import Outcome, damaged_row
from tailrace.pipelines.audit.rows import CHUNK, INDEX_PAGE, Row, Status
from tailrace.pipelines.audit.stores import WatchedStore
from tailrace.pipelines.direct.references import newest_snapshot
from tailrace.segmentstore.verify.chunk_bytes import ChunkReader
from tailrace.storage import chunks

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from tailrace.pipelines.audit.work import Reference, Work
    from tailrace.segmentstore.metadata.coverage import Coverage
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.tier2.snapshot import Snapshot
    from tailrace.storage.port import ObjectStore

_end: Final = attrgetter("end")


@dataclass
class _View:
    """What the newest snapshot says of some objects: which ones it names, and where the bytes of their segments are.

    ``starts`` are by segment id, ``references`` by segment id and kind.
    """

    key: str
    named: set[str] = field(default_factory=set)
    starts: dict[int, int] = field(default_factory=dict)
    references: dict[tuple[int, str], tuple[Coverage, list[ChunkRef]]] = field(default_factory=dict)


class ReplacedObjects:
    """Verifies the bytes of objects that did not exist when they were read."""

    def __init__(self, store: ObjectStore, cluster_id: uuid.UUID) -> None:
        self._store = store
        self._cluster_id = cluster_id

    async def verify(self, container: int, works: Sequence[Work]) -> list[Row]:
        """Return the rows of missing objects of one container.

        An object that the newest snapshot names is lost: objects are deleted only after a snapshot without them. One
        snapshot is in memory at a time.

        Raises:
            UnavailableError: the store does not answer.
        """
        rows: list[Row] = []
        last = ""
        for _ in range(limits.DIRECT_REREADS_MAX):
            try:
                newest = await newest_snapshot(self._store, self._cluster_id, container)
                view = None if newest is None else _view(*newest, works)
                del newest
            except DataError as error:
                reason = "the newest snapshot, which would say what took its place, cannot be read"
                return [*rows, damaged_row(container, error), *_unsettled(works, reason)]
            again: list[Work] = []
            for work in works:
                if view is None or view.key == work.snapshot or work.key in view.named:
                    rows += await self._lost(work)
                    continue
                outcome, missing = await self._replaced(view, work)
                if missing and view.key != last:
                    again.append(work)  # those may have been replaced, too
                else:
                    rows += outcome.rows(Status.GONE, missing)
            if view is None or not again:
                return rows
            works, last = again, view.key
        reason = f"it was replaced {limits.DIRECT_REREADS_MAX} times during the audit"
        return [*rows, *_unsettled(works, reason)]

    async def _lost(self, work: Work) -> list[Row]:
        outcome = Outcome(work)
        reader = ChunkReader(self._store, {}, outcome.report, ignore)
        for reference in work.references:
            await reader.verify(reference.name, reference.ref)
            outcome.chunk(reference, 0, Status.MISSING)
        return outcome.rows(Status.MISSING, {work.key})

    async def _replaced(self, view: _View, work: Work) -> tuple[Outcome, set[str]]:
        """Verify the newer references to the bytes of each reference; return the objects that are missing as well."""
        store, outcome = WatchedStore(self._store), Outcome(work)
        for reference in work.references:
            await self._reference(store, outcome, view, reference)
        return outcome, store.missing

    async def _reference(self, store: WatchedStore, outcome: Outcome, view: _View, reference: Reference) -> None:
        start_offset = view.starts.get(reference.segment_id)
        if start_offset is None:
            outcome.chunk(reference, 0, Status.GONE, "the segment was deleted or merged during the audit")
            return
        old, verified, before = reference.ref, 0, outcome.count
        coverage, refs = view.references[reference.segment_id, reference.kind]
        for ref in refs[bisect_right(refs, old.segment_offset, key=_end) :]:
            if ref.segment_offset >= old.end:
                break
            within = max(ref.segment_offset, old.segment_offset), min(ref.end, old.end)
            reader = ChunkReader(store, {ref.object_key: end_in_object(ref)}, outcome.report, ignore)
            verified += await reader.verify(reference.name, ref, within=within)
        if reference.kind == CHUNK:  # pages of an index are replaced without a trace
            for start, end in coverage.gaps(max(start_offset, old.segment_offset), old.end):
                outcome.gap(reference, view.key, start, end)
        if outcome.count > before:
            outcome.chunk(reference, verified, Status.DAMAGED)
        elif verified == old.length:
            outcome.chunk(reference, verified, Status.VERIFIED, "read from newer objects")
        elif reference.kind == CHUNK:
            outcome.chunk(reference, verified, Status.GONE, f"truncated to {start_offset} during the audit")
        else:
            outcome.chunk(reference, verified, Status.GONE, "replaced by newer pages during the audit")


def _view(key: str, snapshot: Snapshot, works: Sequence[Work]) -> _View:
    """Return what concerns some objects. Raises CorruptionError, FormatVersionError."""
    view = _View(key)
    keys = {work.key for work in works}
    wanted = {reference.segment_id for work in works for reference in work.references}
    for segment, _ in snapshot.covered_segments(key):
        view.named.update(
            ref.object_key for ref in chain(segment.chunks, segment.index_pages) if ref.object_key in keys
        )
        if segment.segment_id in wanted:
            view.starts[segment.segment_id] = segment.start_offset
            for kind, refs in ((CHUNK, segment.chunks), (INDEX_PAGE, segment.index_pages)):
                view.references[segment.segment_id, kind] = refs, list(refs)
    return view


def _unsettled(works: Sequence[Work], reason: str) -> list[Row]:
    rows: list[Row] = []
    for work in works:
        outcome = Outcome(work)
        for reference in work.references:
            outcome.chunk(reference, 0, Status.UNSETTLED, reason)
        rows += outcome.rows(Status.UNSETTLED)
    return rows


def end_in_object(ref: ChunkRef) -> int:
    """Return where the bytes of a reference end in its object."""
    return ref.data_offset + chunks.stored_length(ref.length)


def ignore(_: int) -> None:
    """Ignore progress: Spark shows that of tasks."""
