"""Delete the objects that the store deletes, when it refuses to delete some of them (docs/design.md#deletion).

An object may be under retention or legal hold, or a policy may protect its key. It keeps no other object, and is tried
again at intervals that rise up to an hour.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import ObjectNotDeletedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects

_log = structlog.get_logger()


@dataclass(slots=True)
class _Refused:
    """An object that the store refuses to delete; ``again_s`` is on the loop's clock."""

    reason: str
    wait_s: float
    again_s: float


class RefusedDeletions:
    """Objects of one container that the store refuses to delete."""

    def __init__(self, tier2: ChunkObjects, container_id: int) -> None:
        self._tier2 = tier2
        self._container_id = container_id
        self._refused: dict[str, _Refused] = {}

    def __len__(self) -> int:
        """Return how many objects the store refused the last time."""
        return len(self._refused)

    def is_due(self, key: str) -> bool:
        """Return whether to try to delete an object now."""
        refused = self._refused.get(key)
        return refused is None or refused.again_s <= asyncio.get_running_loop().time()

    def summary(self) -> str:
        """Name one of the objects and count the others; empty: there are none."""
        first = next(iter(self._refused.values()), None)
        if first is None:
            return ""
        more = f"; {len(self) - 1} more objects" if len(self) > 1 else ""
        return f"{first.reason}{more}"

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete objects; return those that are deleted. The store refuses the others one by one.

        Raises:
            UnavailableError: it deletes nothing, or refuses many objects in turn.
        """
        left = list(keys)
        for _ in range(limits.DELETE_REFUSALS_AT_ONCE_MAX):
            if not left:
                return []
            try:
                await self._tier2.delete(left)
            except ObjectNotDeletedError as error:
                if error.key not in left:
                    raise
                self._refuse(error)
                left.remove(error.key)
                continue
            for key in left:
                self._refused.pop(key, None)
            return left
        raise UnavailableError(
            f"{limits.DELETE_REFUSALS_AT_ONCE_MAX} objects in turn cannot be deleted: {self.summary()}"
        )

    def _refuse(self, error: ObjectNotDeletedError) -> None:
        """Let an object wait, and name it in the log the first time."""
        before = self._refused.pop(error.key, None)
        wait_s = limits.DELETE_REFUSED_RETRY_MIN_S
        if before is None:
            _log.warning(
                "object_not_deleted", container=self._container_id, object=error.key, reason=str(error), retry_s=wait_s
            )
        else:
            wait_s = min(before.wait_s * 2, limits.DELETE_REFUSED_RETRY_MAX_S)
        if len(self._refused) >= limits.DELETE_REFUSED_REMEMBERED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[error.key] = _Refused(str(error), wait_s, asyncio.get_running_loop().time() + wait_s)
