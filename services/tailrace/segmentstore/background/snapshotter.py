"""Writes a container's snapshots, and decides which objects no restore needs any more (docs/design.md#snapshots).

An object that the newest snapshot references stays until a newer snapshot is stored: a dereferenced object is deleted
only after this owner has stored a later snapshot. Bytes that are in the log alone are pinned in the cache at the moment
of the snapshot. Most of them the storage writer moves to Tier 2 soon after, so the snapshot waits for it, and names
them there. What is left is written beside the snapshot. The keys of that are committed to the pending deletes before
the snapshot exists, so that any later owner deletes them once the snapshot is superseded.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FencedError, TailraceError, UnavailableError
from tailrace.segmentstore.background.snapshot_tail import capture
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.checkpoint_encoding import CheckpointEncoding
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName, folder, parse_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tailrace.common.ports import Clock, Entropy
    from tailrace.segmentstore.background.snapshot_tail import SnapshotTail
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.fields import ChunkRef
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
        self._hurries = 0
        """How many callers wait for a snapshot, or for one that is taken to end."""
        self._hurry = asyncio.Event()
        self._moment_s = 0.0
        """When the state of the last snapshot was the present one, on the loop's clock."""
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
        loop = asyncio.get_running_loop()
        wait_s, taken = limits.SNAPSHOT_FIRST_S, False
        while True:
            # Since the moment of the last snapshot; but if that took long, the next one is not due at once.
            longest_s = limits.SNAPSHOT_DELETES_WAIT_S - limits.SNAPSHOT_RETRY_S
            await self._wait(wait_s, max(self._moment_s, loop.time() - longest_s) if taken else loop.time())
            try:
                taken = await self._take(flush_wait_s=limits.SNAPSHOT_FLUSH_WAIT_S)
                self.last_error = ""
            except FencedError:
                raise
            except UnavailableError as error:
                if not self.last_error:
                    container = self._ports.state.container_id
                    _logger.warning("snapshot_not_stored", container=container, reason=str(error))
                self.last_error = str(error)
                taken = False
            wait_s = limits.SNAPSHOT_RETRY_S
            if taken:
                left_s = self._moment_s + limits.SNAPSHOT_INTERVAL_S - loop.time()
                wait_s = max(left_s, min(limits.SNAPSHOT_RETRY_S, limits.SNAPSHOT_INTERVAL_S))

    async def _wait(self, wait_s: float, since_s: float) -> None:
        """Wait for the next snapshot: less than `wait_s` when objects have waited long to be deleted after it.

        Those that wait now do so at most since `since_s`, on the loop's clock.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + wait_s
        waiting_since: float | None = since_s
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
        """Store a snapshot of the committed state now, unless it is stored already.

        Returns False when the snapshot must wait for a flush: recovery left bytes in the log alone.

        Raises:
            FencedError, CorruptionError, UnavailableError: see `check_newest`. CorruptionError also for cached bytes
                that differ from the bytes written.
        """
        self._hurries += 1
        self._hurry.set()
        try:
            return await self._take(flush_wait_s=0.0)
        finally:
            self._hurries -= 1
            if not self._hurries:
                self._hurry.clear()

    async def _take(self, *, flush_wait_s: float) -> bool:
        """Do the same, but let the storage writer move first what the state has in the log alone, or nearly all of it.

        The wait ends after `flush_wait_s`, or when `take` is called.
        """
        async with self._taking:
            state = self._ports.state
            if state.committed_sequence == self.sequence:
                await self.check_newest()
                self._moment_s = asyncio.get_running_loop().time()
                return True
            await self.check_newest()
            time_ms = self._ports.clock.now_ms()  # of the state: what is committed during the upload is later
            moment_s = asyncio.get_running_loop().time()
            tail = capture(state, self._ports.cache)
            if tail is None:
                return False
            try:
                with CheckpointEncoding(state) as encoding:
                    for _ in encoding.steps():
                        await asyncio.sleep(limits.CHECKPOINT_PAUSE_S)
                body, sequence, gone = encoding.body(), encoding.as_of_sequence, encoding.pending_deletes
                written = await self._write_left(tail, flush_wait_s)
            finally:
                tail.release()
            await self._store(sequence, time_ms, body, _in_order([*tail.flushed, *written]))
            # A restore that began from the previous snapshot needs its objects; a restore that begins now checks for
            # this snapshot at its end (docs/adr/0012).
            names = await self.check_newest()
            self.sequence, self._superseded, self._moment_s = sequence, gone, moment_s
            self._tail = frozenset(ref.object_key for _, ref in written)
            await self._remove_older(names)
            return True

    async def _write_left(self, tail: SnapshotTail, flush_wait_s: float) -> list[tuple[int, ChunkRef]]:
        """Write what the storage writer does not move to objects of the snapshot alone; return references to it."""
        written: list[tuple[int, ChunkRef]] = []
        tier2 = self._ports.tier2
        try:
            await self._wait_for_flush(tail, flush_wait_s, written)
            while tail.left_ranges:
                written += await self._write_batch(tail, awaited_too=True)
        except Exception:
            # No snapshot will name them: the next one, or the next flush, puts them on the pending-delete list.
            tier2.remember_unreferenced(ref.object_key for _, ref in written)
            raise
        # Only the snapshot needs these objects. Once committed here, every later owner knows of them too.
        pending = [*dict.fromkeys(ref.object_key for _, ref in written), *tier2.take_unreferenced()]
        if pending:
            await self._ports.commit(ops.AddChunks([], pending))
        return written

    async def _wait_for_flush(self, tail: SnapshotTail, wait_s: float, written: list[tuple[int, ChunkRef]]) -> None:
        """Wait until the storage writer has moved nearly all that it will move.

        Add references to what is written meanwhile: a batch of what it will not move, when no upload waits for that.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + wait_s
        while tail.awaited_bytes > limits.SNAPSHOT_COPY_MAX_BYTES and loop.time() < due and not self._hurries:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_tick_s(tail)):
                    await self._hurry.wait()
            tail.take_flushed()
            waits = self._ports.upload_slots.locked() or self._ports.tier2.window_full
            if tail.passed_bytes >= limits.FLUSH_THRESHOLD_BYTES and not waits:
                written += await self._write_batch(tail, awaited_too=False)

    async def _write_batch(self, tail: SnapshotTail, *, awaited_too: bool) -> list[tuple[int, ChunkRef]]:
        """Write one object; return the references to it. What is flushed while it waits for a slot is unpinned then."""
        async with self._slot(tail):
            if not (batch := tail.next_batch(awaited_too=awaited_too)):
                return []
            written = await self._ports.tier2.write([run.section() for run in batch])
            tail.written(batch)
            return written

    @contextlib.asynccontextmanager
    async def _slot(self, tail: SnapshotTail) -> AsyncIterator[None]:
        slots = self._ports.upload_slots
        acquiring = asyncio.ensure_future(slots.acquire())
        try:
            while not (await asyncio.wait([acquiring], timeout=_tick_s(tail)))[0]:
                tail.take_flushed()
        except BaseException:
            if not acquiring.cancel():
                slots.release()
            raise
        try:
            yield
        finally:
            slots.release()

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
        await ports.tier2.put(key, snapshot.encode(key))

    async def _remove_older(self, names: Sequence[SnapshotName]) -> None:
        """Delete all but the newest few. A failed deletion is retried after the next snapshot."""
        container = self._ports.state.container_id
        older = names[: -limits.SNAPSHOTS_KEPT]
        try:
            await self._ports.store.delete([name.key(container) for name in older[: limits.DELETE_BATCH_MAX]])
        except UnavailableError as error:
            _logger.info("older_snapshots_not_deleted", container=container, reason=str(error))


def _in_order(refs: Sequence[tuple[int, ChunkRef]]) -> list[tuple[int, ChunkRef]]:
    return sorted(refs, key=lambda each: (each[0], each[1].segment_offset))


def _tick_s(tail: SnapshotTail) -> float:
    """Return how long to wait before the next look at the flush: it costs some microseconds for each range."""
    ticks = max(1.0, tail.awaited_ranges / limits.SNAPSHOT_RANGES_PER_TICK)
    return min(ticks * limits.SNAPSHOT_FLUSH_TICK_S, limits.SNAPSHOT_FLUSH_TICK_MAX_S)
