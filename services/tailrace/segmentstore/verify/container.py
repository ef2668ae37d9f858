"""Verifies one container: its log, the state that recovery makes of it, and all objects that the state names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tailrace.common.errors import DataError
from tailrace.segmentstore.attributes.attribute_store import AttributeStore
from tailrace.segmentstore.cache.segment_reader import SegmentReader
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.metadata.missing_bytes import missing_bytes
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.verify.chunk_bytes import ChunkReader
from tailrace.segmentstore.verify.container_log import LostLog
from tailrace.segmentstore.verify.indexes import IndexWalk
from tailrace.segmentstore.verify.log_bytes import LogBytes
from tailrace.segmentstore.verify.objects import ObjectWalk
from tailrace.segmentstore.verify.snapshots import SnapshotWalk
from tailrace.segmentstore.verify.tables import TableWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects
    from tailrace.segmentstore.verify.container_log import VerifiedLog
    from tailrace.segmentstore.verify.report import ContainerReport
    from tailrace.storage.port import ObjectStore


class ContainerVerification:
    """Verifies one container whose log no server has open. Reports progress by ``advance(bytes)``."""

    def __init__(
        self,
        log: VerifiedLog,
        store: ObjectStore,
        tier2: ChunkObjects,
        cluster_id: bytes,
        cache: CacheManager,
        report: ContainerReport,
        advance: Callable[[int], None],
    ) -> None:
        self._log = log
        self._store = store
        self._tier2 = tier2
        self._cache = cache
        self._report = report
        self._advance = advance
        self._state = ContainerState(report.container)
        self._objects = ObjectWalk(store, cluster_id, self._state, report, advance)
        self._chunks = ChunkReader(store, self._objects.sizes, report, advance)
        self._log_bytes = LogBytes(log, self._state, report)
        self._snapshots = SnapshotWalk(store, cluster_id, report, advance)
        self._prefetches: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Verify everything.

        Raises:
            StartError: the log is in use. UnavailableError: Tier 2 does not answer.
        """
        self._report.report.containers += 1
        try:
            if await self._recover():
                await self._objects.account()
                await self._verify_segments()
                await self._objects.walk()
                await self._snapshots.walk(self._state, self._objects.lengths, self._chunks)
            else:
                await self._objects.verify_unowned(self._chunks)
                await self._snapshots.walk(None, {}, self._chunks)
        finally:
            if self._prefetches:
                await asyncio.wait(self._prefetches)
            for segment in self._state.segments.values():
                self._cache.drop_all(segment.read_index)
            self._log.close()

    # -- the log -------------------------------------------------------------------------------------------------

    async def _recover(self) -> bool:
        """Recover the state from the log, as the next owner would; return False when that is not possible."""
        report = self._report.report
        try:
            await self._log.open()
        except DataError as error:
            await self._log_problems(error)
            return False
        except OSError as error:
            self._report.problem(f"the log cannot be read: {error.strerror}", place=self._log.directory)
            return False
        report.log_bytes += self._log.stored_bytes
        report.log_frames += self._log.frame_count
        if isinstance(self._log, LostLog):
            return await self._from_snapshot()
        if not self._log.has_begun:
            return await self._never_began()
        recovery = Recovery(self._log, self._state, self._cache)
        try:
            await recovery.replay()
            await self._log_bytes.walk(self._advance)
            self._advance(self._log.held_bytes - self._log_bytes.walked_bytes)
        except DataError as error:
            await self._log_problems(error)
            return False
        except ValueError as error:
            self._report.problem(str(error))
            return False
        report.operations += recovery.operations
        for segment, start, end in missing_bytes(self._state):
            self._report.problem(
                f"{end - start} bytes are neither in the log nor in Tier 2", segment=segment.name, offset=start
            )
        return True

    async def _from_snapshot(self) -> bool:
        """Load the state as a restore would; return False when that is not possible."""
        try:
            key = await self._snapshots.load_newest(self._state)
        except DataError:
            return False  # the verification of the snapshots reports it
        if key is None and await self._objects.any():
            self._report.problem("Tier 2 holds objects of the container and no snapshot")
            return False
        self._report.report.from_snapshots += 1
        return True

    async def _log_problems(self, error: DataError) -> None:
        """Report why recovery fails, and all other damage of the log."""
        for place, position, reason in await self._log.damage(error):
            self._report.problem(reason, place=place, position=position)

    async def _never_began(self) -> bool:
        """Report objects of a container whose log is empty: an owner writes objects only after its log has begun."""
        if await self._objects.any():
            self._report.problem("Tier 2 holds objects of the container, and its log holds nothing")
            return False
        if await self._snapshots.any():
            self._report.problem("Tier 2 holds snapshots of the container, and its log holds nothing")
            return False
        return True

    # -- segments ------------------------------------------------------------------------------------------------

    async def _verify_segments(self) -> None:
        attributes = AttributeStore(self._tier2, self._state.values)
        reader = SegmentReader(self._cache, self._log, self._tier2, self._prefetch)
        for segment in sorted(self._state.segments.values(), key=lambda segment: segment.name):
            self._count(segment)
            for ref in segment.chunks:
                await self._chunks.verify(segment.name, ref, self._log_bytes.runs(segment))
            for ref in segment.index_pages:
                await self._chunks.verify(f"{segment.name}$attributes.index", ref)
            index = IndexWalk(segment, self._store, self._report)
            await index.verify()
            if segment.kind.is_table and index.intact:
                await TableWalk(segment, attributes, reader, self._report).verify()

    def _count(self, segment: Segment) -> None:
        report = self._report.report
        length = segment.length - segment.start_offset
        log_only = sum(end - start for start, end in segment.chunks.gaps(segment.start_offset, segment.length))
        report.segments += 1
        report.segment_bytes += length
        report.log_only_bytes += log_only
        report.tier2_bytes += length - log_only

    def _prefetch(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._prefetches.add(task)
        task.add_done_callback(self._prefetches.discard)
        return task
