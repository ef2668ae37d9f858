"""The orphan sweep: deletes objects of earlier owners that nothing references (docs/design.md#deletion, docs/adr/0011).

A crash between writing an object and committing its reference leaves an orphan. The sweep lists the container's
objects, waits `DELETE_DELAY_S`, commits a barrier to the log, and deletes those that

- an epoch *below* its own wrote, and
- no chunk, no index page and no pending delete names, looked up at the moment of the deletion.

*Why no state can reference such an object later.* An object's reference is committed by the owner that wrote the
object, or never: keys hold epoch and nonce and are not used twice. An owner E that serves has recovered everything that
its predecessors committed and can still commit: records that they append once E's log has begun are never read
(docs/design.md#tier-1). Its own state has every reference that it committed. A later owner starts from what E
committed, and writes objects of its own epoch. So an object of an epoch below E that E's state does not name is named
by no later state either. The barrier proves that this state was E's, and not that of an owner which had lost its log
before it began. An owner that has lost the log since gets an error from the barrier and stops; until then it deletes
only objects of earlier epochs.

*Why a stale list is harmless.* It may show objects that are gone, which are then deleted twice, and lack new ones,
which the next sweep finds. It may show objects before their references are committed: references are checked last, and
objects of the own epoch are never deleted.

*Why a delete with unknown outcome is harmless.* It may take effect at any later time; no state needs the object then
either. An upload of an earlier owner that takes effect after the deletion is found by the next sweep.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.log.object_keys import LogKeys
from tailrace.segmentstore.background.refused_deletions import RefusedDeletions
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.tier2.chunk_objects import OBJECT_KINDS, ChunkObjects, writer_of_key
from tailrace.segmentstore.tier2.snapshot import parse_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tailrace.segmentstore.metadata.state import ContainerState

_log = structlog.get_logger()


class OrphanSweep:
    """Sweeps the objects of one container for one owner.

    ``commit`` puts an operation through the log and returns after its commit. ``may_work`` says whether work that can
    wait may run now.
    """

    def __init__(
        self,
        state: ContainerState,
        tier2: ChunkObjects,
        *,
        commit: Callable[[ops.ControlOperation], Awaitable[None]],
        may_work: Callable[[], bool],
    ) -> None:
        self._state = state
        self._tier2 = tier2
        self._commit = commit
        self._may_work = may_work
        self._refused = RefusedDeletions(tier2, state.container_id)
        self.sweeps = 0
        self.deleted = 0
        self.last_error = ""

    async def run(self) -> None:
        """Sweep at intervals until cancelled. Retry later while Tier 2 is unavailable."""
        wait_s = limits.SWEEP_FIRST_AFTER_S
        retry_s = limits.STORAGE_RETRY_MIN_S
        while True:
            await asyncio.sleep(wait_s)
            if not self._may_work():
                wait_s = limits.STORAGE_RETRY_MAX_S
                continue
            try:
                complete = await self.sweep()
            except UnavailableError as error:
                if not self.last_error:
                    _log.info("sweep_interrupted", container=self._state.container_id, reason=str(error))
                self.last_error = str(error)
                wait_s, retry_s = retry_s, min(retry_s * 2, limits.STORAGE_RETRY_MAX_S)
                continue
            self.last_error = ""
            retry_s = limits.STORAGE_RETRY_MIN_S
            wait_s = limits.SWEEP_INTERVAL_S if complete else limits.SWEEP_PAUSE_S

    async def sweep(self) -> bool:
        """List, wait, and delete; return False when there are more orphans than one sweep deletes.

        Raises:
            UnavailableError: Tier 2 does not answer, or the container stopped.
        """
        listed_after = self._state.committed_sequence
        orphans, complete = await self._list()
        parts = await self._tier2.abandoned_parts(self._is_upload_of_earlier_owner)
        if orphans or parts:
            await asyncio.sleep(limits.DELETE_DELAY_S)
        before = self.deleted
        for batch in _batches(orphans):
            await self._delete(batch, listed_after)
        for batch in _batches(parts):
            self.deleted += await self._tier2.delete_parts(batch)
        if self.deleted > before:
            container = self._state.container_id
            _log.info("orphans_deleted", container=container, objects=self.deleted - before)
        self.sweeps += 1
        return complete

    async def _list(self) -> tuple[list[str], bool]:
        """Return the keys of orphans as a list shows them, and False when there are more than one sweep deletes."""
        orphans: list[str] = []
        count = 0
        complete = True
        for kind in OBJECT_KINDS:
            async for info in self._tier2.list_objects(kind):
                count += 1
                if count % limits.SWEEP_PAGE_OBJECTS == 0:
                    await asyncio.sleep(limits.SWEEP_PAUSE_S)
                if not self._is_orphan(info.key):
                    continue
                if len(orphans) < limits.SWEEP_ORPHANS_MAX:
                    orphans.append(info.key)
                else:
                    complete = False
        return orphans, complete

    async def _delete(self, keys: Sequence[str], listed_after: int) -> None:
        await self._commit(ops.SweepBarrier(self._tier2.epoch, listed_after))
        orphans = [key for key in keys if self._is_orphan(key) and self._refused.is_due(key)]
        self.deleted += len(await self._refused.delete(orphans))
        await asyncio.sleep(limits.SWEEP_PAUSE_S)

    def _is_orphan(self, key: str) -> bool:
        state = self._state
        return self._is_of_earlier_owner(key) and key not in state.object_uses and key not in state.pending_deletes

    def _is_of_earlier_owner(self, key: str) -> bool:
        """Return whether an earlier owner of this container wrote the object; False for keys of any other form."""
        return self._is_earlier(writer_of_key(key))

    def _is_upload_of_earlier_owner(self, key: str) -> bool:
        """As `_is_of_earlier_owner`, for the key that an unfinished upload was for: also of a snapshot or of the log.

        Those themselves are no orphans: the snapshotter and the log delete them (docs/design.md#snapshots).
        """
        if (epoch := LogKeys(self._state.container_id).epoch_of(key)) is not None:
            return epoch < self._tier2.epoch
        named = parse_key(key)
        return self._is_earlier(writer_of_key(key) if named is None else (named[0], named[1].epoch))

    def _is_earlier(self, writer: tuple[int, int] | None) -> bool:
        return writer is not None and writer[0] == self._state.container_id and writer[1] < self._tier2.epoch


def _batches(keys: Sequence[str]) -> list[Sequence[str]]:
    size = limits.DELETE_BATCH_MAX
    return [keys[start : start + size] for start in range(0, len(keys), size)]
