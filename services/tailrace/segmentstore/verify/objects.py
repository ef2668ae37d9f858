"""Accounts for the objects of Tier 2, and verifies the structure of referenced ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.cluster.cluster_identity import CLUSTER_KEY
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.verify.report import Orphan
from tailrace.segmentstore.verify.sections import SectionReader, StructureError, section_problem
from tailrace.storage.probe_objects import is_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState
    from tailrace.segmentstore.verify.chunk_bytes import ChunkReader
    from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore
    from tailrace.segmentstore.verify.report import ContainerReport, Report
    from tailrace.storage.chunks import SectionHeader
    from tailrace.storage.port import ObjectStore

KINDS: Final = ("c", "a")
"""First letters of keys: bytes of segments, pages of attribute indexes."""
_KEY: Final = re.compile(r"(?:[acs]|log/)(\d+)/")


def container_of_key(key: str) -> int | None:
    """Return the container that writes under a key; None for other keys."""
    match = _KEY.match(key)
    return int(match[1]) if match else None


class ObjectWalk:
    """The objects of one container: ``sizes`` of referenced ones, and of those ``waiting`` for deletion."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: bytes,
        state: ContainerState,
        report: ContainerReport,
        advance: Callable[[int], None],
    ) -> None:
        self._store = store
        self._reader = SectionReader(store, cluster_id)
        self._state = state
        self._report = report
        self._advance = advance
        self.sizes: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        self._shifts: dict[tuple[int, int], int] = {}

    @property
    def lengths(self) -> dict[str, int]:
        """Return the lengths of all objects that are referenced or wait for deletion, by key."""
        return {**self.waiting, **self.sizes}

    async def any(self) -> bool:
        """Return whether the container has an object."""
        for kind in KINDS:
            async for _ in self._store.list(f"{kind}{self._state.container_id}"):
                return True
        return False

    async def account(self) -> None:
        """List the objects: each is referenced, waits for deletion, or is an orphan."""
        container, report = self._state.container_id, self._report.report
        for kind in KINDS:
            async for info in self._store.list(f"{kind}{container}"):
                if info.key in self._state.object_uses:
                    self.sizes[info.key] = info.length_bytes
                    report.objects += 1
                    report.object_bytes += info.length_bytes
                    continue
                self._advance(info.length_bytes)
                if info.key in self._state.pending_deletes:
                    report.pending_deletes += 1
                    self.waiting[info.key] = info.length_bytes
                else:
                    report.add_orphan(Orphan(container, info.key, info.length_bytes))

    async def walk(self) -> None:
        """Verify header and footer of each section of the referenced objects, without their data."""
        for key, refs in sorted(_refs_by_object(self._state).items()):
            if key in self._state.pending_deletes:
                self._report.problem("it is referenced and waits for deletion", place=f"object {key}")
            if key in self.sizes:
                await self._walk(key, refs)

    async def verify_unowned(self, reader: ChunkReader) -> None:
        """Read all objects whole of a container whose metadata is lost: any of them may be needed."""
        for kind in KINDS:
            async for info in self._store.list(f"{kind}{self._state.container_id}"):
                self._report.report.unaccounted_objects += 1
                self.sizes[info.key] = info.length_bytes
                place = f"object {info.key}"
                try:
                    sections = await self._reader.sections(info.key, info.length_bytes)
                except StructureError as error:
                    self._report.problem(str(error), place=place, position=error.position)
                    self._advance(info.length_bytes)
                    continue
                for position, section in sections.items():
                    ref = ChunkRef(info.key, position, section.start_offset, section.length)
                    await reader.verify(section.segment_name, ref)
                del self.sizes[info.key]

    async def _walk(self, key: str, refs: list[tuple[Segment, ChunkRef]]) -> None:
        place = f"object {key}"
        try:
            sections = await self._reader.sections(key, self.sizes[key])
        except StructureError as error:
            self._report.problem(str(error), place=place, position=error.position)
            return
        users: dict[int, str] = {}
        for segment, ref in refs:
            section = sections.get(ref.data_offset)
            reason = section_problem(ref, section)
            if not reason and section is not None:
                reason = self._misplaced(segment, ref, section)
            if not reason and ref.data_offset in users:
                reason = f"segment {users[ref.data_offset]} has the same section"
            users[ref.data_offset] = segment.name
            if reason:
                self._report.problem(
                    reason, segment=segment.name, offset=ref.segment_offset, place=place, position=ref.data_offset
                )

    def _misplaced(self, segment: Segment, ref: ChunkRef, section: SectionHeader) -> str:
        """Return why a section's bytes are not those of the reference; empty: they are. A merge shifts all equally."""
        shift = ref.segment_offset - section.start_offset
        source = section.segment_id
        expected = (segment.segment_id, 0) if source == segment.segment_id else self._state.moves.get(source)
        if expected is not None and self._state.resolve(source) != (segment.segment_id, shift):
            there, by = self._state.resolve(source)
            return f"segment number {source} is number {there} by {by} bytes, its section is here by {shift}"
        known = self._shifts.setdefault((segment.segment_id, source), shift)
        if known != shift:
            return f"sections of segment number {source} are here by {known} bytes, and by {shift}"
        return ""


def _refs_by_object(state: ContainerState) -> dict[str, list[tuple[Segment, ChunkRef]]]:
    """Return the references to each object, with their segments."""
    found: dict[str, list[tuple[Segment, ChunkRef]]] = {}
    for segment, ref in _all_refs(state):
        found.setdefault(ref.object_key, []).append((segment, ref))
    return found


def _all_refs(state: ContainerState) -> Iterator[tuple[Segment, ChunkRef]]:
    for segment in state.segments.values():
        for ref in (*segment.chunks, *segment.index_pages):
            yield segment, ref


async def account_for_others(store: ReadOnlyStore, container_count: int, report: Report, *, object_logs: bool) -> None:
    """Report objects of no container of the cluster, and files of interrupted uploads, as orphans; count probes."""
    async for info in store.list(""):
        if info.key == CLUSTER_KEY:
            continue
        if is_probe(info.key):
            report.probe_objects += 1
            continue
        if info.key.startswith("log/") and not object_logs:
            report.add_orphan(Orphan(container_of_key(info.key), info.key, info.length_bytes))
            continue
        container = container_of_key(info.key)
        if container is None or container >= container_count:
            report.add_orphan(Orphan(container, info.key, info.length_bytes))
    for info in store.unfinished():
        if is_probe(info.key):
            report.probe_objects += 1
            continue
        report.add_orphan(Orphan(container_of_key(info.key), info.key, info.length_bytes))
