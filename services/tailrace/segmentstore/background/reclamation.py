"""Reclamation: frees objects of which only a part is still retained (docs/design.md#reclamation, docs/adr/0032).

Segments share objects, and a truncation may end within a chunk. Reclamation finds the objects that hold too many dead
bytes (`reclaim_policy`), reads and verifies what is live in them, writes it as new objects, and commits MOVE_CHUNKS: it
names each reference that goes and the one that takes its place. A reference that was truncated away, merged, compacted
or deleted meanwhile is not replaced. An old object that no reference names any more is deleted like every other: after
``DELETE_DELAY_S``, and once a newer snapshot is stored.

References say how long a section is, not what else its object holds. So the lengths of shared objects are remembered
when they are written; those of earlier owners are listed, once after the container opened and then at intervals.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, UnavailableError
from tailrace.segmentstore.background.reclaim_policy import ObjectUse, choose
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects, Section
from tailrace.storage.chunks import section_length

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState

_log = structlog.get_logger()


class Placed(NamedTuple):
    """A reference and the segment that holds it."""

    segment: Segment
    ref: ChunkRef

    @property
    def live_from(self) -> int:
        """Segment offset of the first byte that is not truncated."""
        return max(self.ref.segment_offset, self.segment.start_offset)

    @property
    def live_length(self) -> int:
        """Bytes that are not truncated."""
        return max(self.ref.end - self.live_from, 0)


class Reclamation:
    """Frees dead bytes in the objects of one container.

    ``commit`` puts an operation through the log and returns after its commit. ``may_work`` says whether work that can
    wait may run now.
    """

    def __init__(
        self,
        state: ContainerState,
        tier2: ChunkObjects,
        *,
        commit: Callable[[ops.ControlOperation], Awaitable[None]],
        upload_slots: asyncio.Semaphore,
        may_work: Callable[[], bool],
    ) -> None:
        self._state = state
        self._tier2 = tier2
        self._commit = commit
        self._slots = upload_slots
        self._may_work = may_work
        self._list_at_s = 0.0
        self._refused: dict[str, str] = {}  # damaged objects, until the container opens again
        self.stored_bytes = 0
        """Length of all objects with chunks, as of the last survey."""
        self.live_bytes = 0
        """Bytes of them that segments need, as of the last survey."""
        self.moved_bytes = 0
        self.last_error = ""

    async def run(self) -> None:
        """Free dead bytes until cancelled. While Tier 2 is unavailable nothing changes."""
        await asyncio.sleep(limits.RECLAIM_FIRST_AFTER_S)
        surveyed, complete = -1, False
        retry_s = limits.STORAGE_RETRY_MIN_S
        while True:
            if self._may_work() and not (complete and self._state.releases == surveyed and not self._must_list()):
                surveyed, moved_bytes = self._state.releases, self.moved_bytes
                try:
                    complete = not await self.reclaim()
                    self.last_error, retry_s = "", limits.STORAGE_RETRY_MIN_S
                    if self.moved_bytes > moved_bytes:
                        continue
                except UnavailableError as error:
                    self.last_error, complete = str(error), False
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, limits.STORAGE_RETRY_MAX_S)
                    continue
            await asyncio.sleep(limits.RECLAIM_TICK_S)

    async def reclaim(self) -> bool:
        """Move what is live out of the objects that hold the most dead bytes; return False when there are too few.

        Raises:
            UnavailableError: Tier 2 does not answer, or the container stopped. FencedError: it has a later owner.
        """
        if self._must_list():
            await self._list_lengths()
            self._list_at_s = asyncio.get_running_loop().time() + limits.SWEEP_INTERVAL_S
        objects = await self._survey()
        self.stored_bytes = sum(use.stored_bytes for use in objects.values())
        self.live_bytes = sum(use.live_bytes for use in objects.values())
        chosen = choose(objects, self._refused)
        for batch in _batches(await self._references(chosen)):
            moved = await self._move(batch)
            await asyncio.sleep(moved / limits.RECLAIM_BYTES_PER_S)
        return bool(chosen)

    def _must_list(self) -> bool:
        return asyncio.get_running_loop().time() >= self._list_at_s

    # -- what ----------------------------------------------------------------------------------------------------

    async def _list_lengths(self) -> None:
        """Remember the lengths of the objects of earlier owners that segments may share."""
        known = self._tier2.shared_bytes
        # As of the survey: references may go while objects are listed.
        shared = {key for key, uses in self._state.object_uses.items() if uses > 1}
        alone = await self._survey()
        count = 0
        async for info in self._tier2.list_objects("c"):
            count += 1
            if count % limits.SWEEP_PAGE_OBJECTS == 0:
                await asyncio.sleep(limits.SWEEP_PAUSE_S)
            use = alone.get(info.key)
            if use is not None and (info.key in shared or info.length_bytes > use.stored_bytes):
                known[info.key] = info.length_bytes

    async def _survey(self) -> dict[str, ObjectUse]:
        """Return what each object of the container's chunks holds, and what of it is live."""
        objects: dict[str, ObjectUse] = {}

        def count(placed: Placed) -> None:
            name, use = placed.segment.name, objects.setdefault(placed.ref.object_key, ObjectUse())
            use.stored_bytes += section_length(name, placed.ref.length)
            if placed.live_length:
                use.live_bytes += section_length(name, placed.live_length)

        await self._look_at_all(count)
        for key, length in self._tier2.shared_bytes.items():
            if key in objects:  # else it is written and not committed yet, or waits to be deleted
                objects[key].stored_bytes = length
        return objects

    async def _references(self, keys: Sequence[str]) -> list[Placed]:
        """Return the references to some objects, those of one object in a row."""
        found: dict[str, list[Placed]] = {key: [] for key in keys}

        def find(placed: Placed) -> None:
            if (places := found.get(placed.ref.object_key)) is not None:
                places.append(placed)

        if found:
            await self._look_at_all(find)
        return [placed for places in found.values() for placed in places]

    async def _look_at_all(self, look: Callable[[Placed], None]) -> None:
        """Pass all references to `look`, with pauses; what changes meanwhile may be missing."""
        count = 0
        for segment in list(self._state.segments.values()):
            for ref in list(segment.chunks):
                look(Placed(segment, ref))
                count += 1
                if count % limits.RECLAIM_SURVEY_REFS == 0:
                    await asyncio.sleep(0)

    # -- how -----------------------------------------------------------------------------------------------------

    async def _wait_for_slot(self) -> None:
        """Let the storage writer go first: wait until an upload slot is free, within a bound."""
        deadline_s = asyncio.get_running_loop().time() + limits.COMPACT_DEFER_MAX_S
        while self._waits() and asyncio.get_running_loop().time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(limits.FLUSH_TICK_S)

    def _waits(self) -> bool:
        return self._slots.locked() or self._tier2.window_full

    async def _move(self, batch: Sequence[Placed]) -> int:
        """Write what is live of some references as one object and commit the moves; return the bytes written."""
        await self._wait_for_slot()
        async with self._slots:
            sections = await self._read(batch)
            held = [(placed, section) for placed, section in sections if self._holds(placed)]
            if not held:
                return 0  # truncated, merged or deleted meanwhile
            written = await self._tier2.write([section for _, section in held])
        length = sum(len(section.data) for _, section in held)
        self.moved_bytes += length
        moves = [
            ops.ChunkMove(segment_id, placed.ref, new)
            for (placed, _), (segment_id, new) in zip(held, written, strict=True)
        ]
        await self._commit(ops.MoveChunks(moves))
        return length

    def _holds(self, placed: Placed) -> bool:
        segment, ref = placed
        return self._state.segments.get(segment.segment_id) is segment and segment.chunks.holds([ref])

    async def _read(self, batch: Sequence[Placed]) -> list[tuple[Placed, Section]]:
        """Return the live bytes of references, verified block by block; without those of damaged objects.

        Raises:
            UnavailableError: Tier 2 does not answer. FencedError: a later owner may have deleted an object.
        """
        sections: list[tuple[Placed, Section]] = []
        waiting = deque(batch)

        async def lane() -> None:
            while waiting:
                placed = waiting.popleft()
                section = await self._section(placed)
                if section is not None:
                    sections.append((placed, section))

        lanes = (lane() for _ in range(limits.COMPACT_READS_MAX))
        for result in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return sections

    async def _section(self, placed: Placed) -> Section | None:
        """Read one reference; None when nothing of it is live, or its object is damaged and stays."""
        segment, ref = placed
        start, length = placed.live_from, placed.live_length
        if not length or not self._holds(placed):
            return None
        try:
            data = await self._tier2.read_exact(ref, start, length)
            if len(data) != length:
                raise CorruptionError(f"object {ref.object_key}", f"{len(data)} bytes where {length} should be")
        except CorruptionError as error:
            if self._holds(placed):
                self._refused[ref.object_key] = str(error)
                _log.error("object_not_reclaimed", object=ref.object_key, segment=segment.name, reason=str(error))
            return None
        return Section(segment.segment_id, segment.name, start, data)


def _batches(places: Sequence[Placed]) -> Iterator[list[Placed]]:
    """Yield references that share a new object."""
    batch: list[Placed] = []
    size = 0
    for placed in places:
        length = placed.live_length
        if batch and (size + length > limits.FLUSH_THRESHOLD_BYTES or len(batch) == limits.RECLAIM_MOVES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(placed)
        size += length
    if batch:
        yield batch
