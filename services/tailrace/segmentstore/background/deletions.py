"""Deletes the objects that nothing references any more (docs/design.md#deletion).

A task of its own: a store that writes objects and deletes none delays neither flushes nor checkpoints. The objects stay
recorded in the container's state, and so in its checkpoints, until a commit says that they were deleted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.segmentstore.background.refused_deletions import RefusedDeletions
from tailrace.segmentstore.metadata import operations as ops

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.segmentstore.metadata.state import ContainerState
    from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects

_log = structlog.get_logger()


class Deletions:
    """Deletes dereferenced objects of one container.

    ``commit`` puts an operation through the log and returns after its commit. ``may_delete`` says whether no restore
    needs an object.
    """

    def __init__(
        self,
        state: ContainerState,
        tier2: ChunkObjects,
        *,
        commit: Callable[[ops.ControlOperation], Awaitable[None]],
        may_delete: Callable[[str], bool],
    ) -> None:
        self._state = state
        self._tier2 = tier2
        self._commit = commit
        self._may_delete = may_delete
        self._delete_after: dict[str, float] = {}
        self._error = ""
        self.refused = RefusedDeletions(tier2, state.container_id)

    @property
    def last_error(self) -> str:
        """Say why objects are not deleted; empty when all are that may be."""
        return self._error or self.refused.summary()

    async def run(self) -> None:
        """Delete until cancelled. Retry without end while Tier 2 deletes nothing."""
        retry_s = limits.STORAGE_RETRY_MIN_S
        while True:
            try:
                await self._delete()
            except UnavailableError as error:
                if not self._error:
                    _log.warning("objects_not_deleted", container=self._state.container_id, reason=str(error))
                self._error = str(error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, limits.STORAGE_RETRY_MAX_S)
                continue
            self._error = ""
            retry_s = limits.STORAGE_RETRY_MIN_S
            await asyncio.sleep(limits.FLUSH_TICK_S)

    async def _delete(self) -> None:
        """Delete some objects that neither a reader nor a restore can still need."""
        pending = self._state.pending_deletes
        now = asyncio.get_running_loop().time()
        for key in pending:
            self._delete_after.setdefault(key, now + limits.DELETE_DELAY_S)
        may_delete, is_due = self._may_delete, self.refused.is_due
        ready = [key for key in pending if self._delete_after[key] <= now and may_delete(key) and is_due(key)]
        deleted = await self.refused.delete(ready[: limits.DELETE_BATCH_MAX])
        if not deleted:
            return
        await self._commit(ops.ObjectsDeleted(deleted))
        for key in deleted:
            del self._delete_after[key]
