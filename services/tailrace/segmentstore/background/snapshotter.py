"""Writes a container's snapshots, and decides which objects no restore needs any more (docs/design.md#snapshots).

An object that the newest snapshot references stays until a newer snapshot is stored: a dereferenced object is deleted
only after this owner has stored a later snapshot. Bytes that are in the log alone are pinned in the cache at the moment
of the snapshot and written beside it. Their keys are committed to the pending deletes before the snapshot exists, so
that any later owner deletes them once the snapshot is superseded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FencedError, MemoryDamageError, TailraceError, UnavailableError
from tailrace.kernel import crc32c
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.pending_appends import PendingAppends
from tailrace.segmentstore.tier2.chunk_objects import Section
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName, folder, parse_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from tailrace.common.ports import Clock, Entropy
    from tailrace.kernel import CacheView
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState
    from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects
    from tailrace.storage.port import ObjectStore

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPorts:
    """What snapshots are written with.

    ``commit`` puts an operation through the log and returns after its commit. ``confirm_owner`` raises FencedError when
    the log has a later owner. ``upload_slots`` bounds the objects that the process holds in memory to write them.
    """

    state: ContainerState
    epoch: int
    store: ObjectStore
    tier2: ChunkObjects
    cache: CacheManager
    clock: Clock
    entropy: Entropy
    cluster_id: bytes
    upload_slots: asyncio.Semaphore
    commit: Callable[[ops.ControlOperation], Awaitable[None]]
    confirm_owner: Callable[[], Awaitable[None]]


class Snapshotter:
    """Takes the snapshots of one owner of a container."""

    def __init__(self, ports: SnapshotPorts) -> None:
        self._ports = ports
        self._taking = asyncio.Lock()
        self._superseded: dict[str, None] = {}
        self._tail: frozenset[str] = frozenset()  # objects of the newest snapshot alone
        self.sequence = -1
        """The last operation in this owner's newest snapshot; -1: it has none."""
        self.last_error = ""

    def may_delete(self, key: str) -> bool:
        """Return whether no restore needs a dereferenced object: it was dereferenced before the newest snapshot."""
        return key in self._superseded

    async def run(self) -> None:
        """Take snapshots until cancelled. While Tier 2 is unavailable the last one stays the newest."""
        wait_s = limits.SNAPSHOT_FIRST_S
        while True:
            await self._wait(wait_s)
            try:
                taken = await self.take()
                self.last_error = ""
            except FencedError:
                raise
            except UnavailableError as error:
                if not self.last_error:
                    container = self._ports.state.container_id
                    _logger.warning("snapshot_not_stored", container=container, reason=str(error))
                self.last_error = str(error)
                taken = False
            wait_s = limits.SNAPSHOT_INTERVAL_S if taken else limits.SNAPSHOT_RETRY_S

    async def _wait(self, wait_s: float) -> None:
        """Wait for the next snapshot: less than `wait_s` when objects have waited long to be deleted after it."""
        loop = asyncio.get_running_loop()
        due = loop.time() + wait_s
        waiting_since: float | None = None
        while (now := loop.time()) < due:
            pending = self._ports.state.pending_deletes
            newest = next((key for key in reversed(pending) if key not in self._tail), None)
            if newest is None or self.may_delete(newest):
                waiting_since = None
            elif waiting_since is None:
                waiting_since = now
            elif self.sequence >= 0 and now - waiting_since >= limits.SNAPSHOT_DELETES_WAIT_S:
                return
            await asyncio.sleep(min(limits.SNAPSHOT_TICK_S, due - now))

    async def check_newest(self) -> list[SnapshotName]:
        """Verify that no later owner stored a snapshot; return the names of all snapshots, newest last.

        Raises:
            FencedError: the log has a later owner. CorruptionError: it has none, so the cluster was restored elsewhere.
            UnavailableError: Tier 2 or the log does not answer.
        """
        names = await self._names()
        if not names or names[-1].epoch <= self._ports.epoch:
            return names
        await self._ports.confirm_owner()
        container, newest = self._ports.state.container_id, names[-1]
        raise CorruptionError(
            f"object {newest.key(container)}",
            f"written by epoch {newest.epoch}, and the log's owner is epoch {self._ports.epoch}:"
            " the container was restored elsewhere",
        )

    async def check_newest_if_reachable(self) -> None:
        """Run `check_newest`; log an unavailable Tier 2 and continue."""
        try:
            await self.check_newest()
        except FencedError:
            raise
        except UnavailableError as error:
            _logger.info("snapshots_not_listed", container=self._ports.state.container_id, reason=str(error))

    async def take_last(self, barrier: Callable[[], Awaitable[None]]) -> None:
        """Take the snapshot of a container that closes, within a deadline; log a failure and continue.

        ``barrier`` waits until every staged operation is committed: acknowledged data must be in the snapshot.
        """
        try:
            async with asyncio.timeout(limits.SNAPSHOT_LEAVE_DEADLINE_S):
                await barrier()
                await self.take()
        except (TailraceError, OSError, TimeoutError) as error:
            reason = str(error) or f"the snapshot was not stored within {limits.SNAPSHOT_LEAVE_DEADLINE_S:g} s"
            _logger.warning("last_snapshot_not_stored", container=self._ports.state.container_id, reason=reason)

    async def _names(self) -> list[SnapshotName]:
        """Return the names of all snapshots, newest last."""
        container = self._ports.state.container_id
        listed = [parse_key(info.key) async for info in self._ports.store.list(folder(container))]
        return sorted(found[1] for found in listed if found is not None and found[0] == container)

    async def take(self) -> bool:
        """Store a snapshot of the committed state, unless it is stored already.

        Returns False when the snapshot must wait for a flush: recovery left bytes in the log alone.

        Raises:
            FencedError, CorruptionError, UnavailableError: see `check_newest`. CorruptionError also for cached bytes
                that differ from the bytes written.
        """
        async with self._taking:
            state = self._ports.state
            if state.committed_sequence == self.sequence:
                await self.check_newest()
                return True
            await self.check_newest()
            time_ms = self._ports.clock.now_ms()  # of the state: what is committed during the upload is later
            runs = capture(state, self._ports.cache)
            if runs is None:
                return False
            body, sequence, gone = checkpoint.encode(state), state.committed_sequence, dict(state.pending_deletes)
            try:
                tail = await self._write_tail(runs)
            finally:
                for run in runs:
                    run.release(self._ports.cache)
            await self._store(sequence, time_ms, body, tail)
            # A restore that began from the previous snapshot needs its objects; a restore that begins now checks for
            # this snapshot at its end (docs/adr/0012).
            names = await self.check_newest()
            self.sequence, self._superseded = sequence, gone
            self._tail = frozenset(ref.object_key for _, ref in tail)
            await self._remove_older(names)
            return True

    async def _write_tail(self, runs: Sequence[TailRun]) -> list[tuple[int, ChunkRef]]:
        tail: list[tuple[int, ChunkRef]] = []
        tier2 = self._ports.tier2
        try:
            for batch in _batches(runs):
                async with self._ports.upload_slots:
                    tail += await tier2.write([run.section() for run in batch])
                for run in batch:
                    run.release(self._ports.cache)
        except Exception:
            # No snapshot will name them: the next one, or the next flush, puts them on the pending-delete list.
            tier2.remember_unreferenced(ref.object_key for _, ref in tail)
            raise
        # Only the snapshot needs the objects of its tail. Once committed here, every later owner knows of them too.
        pending = [*dict.fromkeys(ref.object_key for _, ref in tail), *tier2.take_unreferenced()]
        if pending:
            await self._ports.commit(ops.AddChunks([], pending))
        return tail

    async def _store(self, sequence: int, time_ms: int, body: bytes, tail: Sequence[tuple[int, ChunkRef]]) -> None:
        ports, container, epoch = self._ports, self._ports.state.container_id, self._ports.epoch
        key = SnapshotName(epoch, sequence, ports.entropy.token(6).hex()).key(container)
        snapshot = Snapshot(
            cluster_id=ports.cluster_id,
            container=container,
            epoch=epoch,
            sequence=sequence,
            time_ms=time_ms,
            body=body,
            tail=tail,
        )
        await ports.store.put(key, snapshot.encode(key))

    async def _remove_older(self, names: Sequence[SnapshotName]) -> None:
        """Delete all but the newest few. A failed deletion is retried after the next snapshot."""
        container = self._ports.state.container_id
        older = names[: -limits.SNAPSHOTS_KEPT]
        try:
            await self._ports.store.delete([name.key(container) for name in older[: limits.DELETE_BATCH_MAX]])
        except UnavailableError as error:
            _logger.info("older_snapshots_not_deleted", container=container, reason=str(error))


@dataclass(slots=True)
class TailRun:
    """Un-tiered bytes of a segment at one moment, pinned in the cache, and the CRCs to verify them with."""

    segment_id: int
    name: str
    start: int
    end: int
    items: PendingAppends = field(default_factory=PendingAppends)
    pieces: list[tuple[int, CacheView]] = field(default_factory=list)
    begins_event: bool = False

    def pin(self, segment: Segment, cache: CacheManager) -> bool:
        """Pin the cached bytes; return False when the cache lacks some."""
        position = self.start
        for entry in segment.read_index.run(self.start, self.end - self.start):
            if entry.address < 0:
                return False
            self.pieces.append((entry.offset, cache.pin(entry)))
            position = entry.end
        return position >= self.end

    def release(self, cache: CacheManager) -> None:
        """Unpin the cache blocks."""
        for _, view in self.pieces:
            cache.unpin(view)
        self.pieces.clear()

    def section(self) -> Section:
        """Return the bytes, each append verified. Raises MemoryDamageError."""
        content = bytearray()
        for offset, view in self.pieces:
            content += view.tobytes()[max(self.start - offset, 0) : self.end - offset]
        data = memoryview(content)
        for item in self.items:
            if crc32c(data[item.offset - self.start : item.end - self.start]) != item.crc:
                raise MemoryDamageError(
                    f"segment {self.name} at {item.offset}",
                    f"{item.length} cached bytes differ from those that were written",
                )
        return Section(self.segment_id, self.name, self.start, data, begins_event=self.begins_event)


def capture(state: ContainerState, cache: CacheManager) -> list[TailRun] | None:
    """Pin and return everything that Tier 2 lacks; None, with nothing pinned, when some of it is in the log alone."""
    runs: list[TailRun] = []
    for segment in state.segments.values():
        for run in _runs(segment):
            runs.append(run)
            if not run.pin(segment, cache):
                for pinned in runs:
                    pinned.release(cache)
                return None
    return runs


def _runs(segment: Segment) -> Iterator[TailRun]:
    """Yield the un-tiered ranges of a segment in pieces, split between appends."""
    if not segment.pending:
        return
    for start, end in segment.chunks.gaps(segment.start_offset, segment.length):
        run = TailRun(segment.segment_id, segment.name, start, start)
        for item in segment.pending:
            if item.end <= start or item.offset >= end:
                continue
            stop = min(item.end, end)
            if run.end > run.start and stop - run.start > limits.FLUSH_OBJECT_MAX_BYTES:
                yield run
                run = TailRun(segment.segment_id, segment.name, run.end, run.end)
            run.end = stop
            if item.offset == run.start:
                run.begins_event = segment.event_starts.is_start(run.start)
            if item.offset >= run.start and item.end <= end:
                run.items.add(*item)
        yield run


def _batches(runs: Sequence[TailRun]) -> Iterator[list[TailRun]]:
    """Yield runs that share an object."""
    batch: list[TailRun] = []
    size = 0
    for run in runs:
        if batch and size + run.end - run.start > limits.FLUSH_THRESHOLD_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(run)
        size += run.end - run.start
    if batch:
        yield batch
