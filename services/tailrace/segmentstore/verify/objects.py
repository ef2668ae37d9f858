"""Accounts for the objects of Tier 2, and verifies the structure of referenced ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.cluster.cluster_identity import CLUSTER_KEY
from tailrace.common.errors import CorruptionError, FormatVersionError, NotFoundError
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.verify.report import Orphan
from tailrace.storage import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState
    from tailrace.segmentstore.verify.chunk_bytes import ChunkReader
    from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore
    from tailrace.segmentstore.verify.report import ContainerReport, Report
    from tailrace.storage.port import ObjectStore

KINDS: Final = ("c", "a")
"""First letters of keys: bytes of segments, pages of attribute indexes."""
_KEY: Final = re.compile(r"(?:[acs]|log/)(\d+)/")
_HEADER_READ_BYTES: Final = 4096
"""Holds a footer and the header behind it: names are at most ``limits.SEGMENT_NAME_MAX_BYTES`` long."""


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
        self._cluster_id = cluster_id
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
                    sections = await self._sections(info.key, place)
                except _StructureError as error:
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
            sections = await self._sections(key, place)
        except _StructureError as error:
            self._report.problem(str(error), place=place, position=error.position)
            return
        users: dict[int, str] = {}
        for segment, ref in refs:
            section = sections.get(ref.data_offset)
            reason = self._misuse(segment, ref, section) if section is not None else "no section begins there"
            if not reason and ref.data_offset in users:
                reason = f"segment {users[ref.data_offset]} has the same section"
            users[ref.data_offset] = segment.name
            if reason:
                self._report.problem(
                    reason, segment=segment.name, offset=ref.segment_offset, place=place, position=ref.data_offset
                )

    def _misuse(self, segment: Segment, ref: ChunkRef, section: chunks.SectionHeader) -> str:
        """Return what is wrong with a reference to a section; empty: nothing. A merge shifts all references equally."""
        if section.length != ref.length:
            return f"the section there has {section.length} bytes, not {ref.length}"
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

    async def _sections(self, key: str, place: str) -> dict[int, chunks.SectionHeader]:
        """Return the header of each section, by the position of its data. Raises _StructureError."""
        sections: dict[int, chunks.SectionHeader] = {}
        size = self.sizes[key]
        position = 0
        raw = memoryview(await self._read(key, 0, size))
        while True:
            try:
                header, header_bytes = chunks.decode_header(raw, place)
            except (CorruptionError, FormatVersionError) as error:
                raise _StructureError(position, error) from error
            if header.cluster_id != self._cluster_id:
                raise _StructureError(position, f"written by another cluster, {header.cluster_id.hex()}")
            data = position + header_bytes
            sections[data] = header
            footer = data + chunks.stored_length(header.length)
            end = footer + chunks.FOOTER_BYTES
            if end > size:
                raise _StructureError(size, f"the object ends {end - size} bytes early")
            header_crc = int.from_bytes(raw[header_bytes - 4 : header_bytes], "big")
            raw = memoryview(await self._read(key, footer, size))
            try:
                chunks.decode_footer(raw, header_crc, header.length, place)
            except CorruptionError as error:
                raise _StructureError(footer, error) from error
            if end == size:
                return sections
            raw, position = raw[chunks.FOOTER_BYTES :], end

    async def _read(self, key: str, position: int, size: int) -> bytes:
        try:
            return await self._store.get_range(key, position, min(_HEADER_READ_BYTES, size - position))
        except (NotFoundError, CorruptionError) as error:
            raise _StructureError(position, error) from error


class _StructureError(Exception):
    """A section is damaged; the verification of the object ends."""

    def __init__(self, position: int, reason: object) -> None:
        super().__init__(reason.reason if isinstance(reason, CorruptionError) else str(reason))
        self.position = position


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
    """Report objects of no container of the cluster, and files of interrupted uploads, as orphans."""
    async for info in store.list(""):
        if info.key == CLUSTER_KEY:
            continue
        if info.key.startswith("log/") and not object_logs:
            report.add_orphan(Orphan(container_of_key(info.key), info.key, info.length_bytes))
            continue
        container = container_of_key(info.key)
        if container is None or container >= container_count:
            report.add_orphan(Orphan(container, info.key, info.length_bytes))
    for info in store.unfinished():
        report.add_orphan(Orphan(container_of_key(info.key), info.key, info.length_bytes))
