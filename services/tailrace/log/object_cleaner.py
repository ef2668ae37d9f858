"""Deletes objects that no owner of an object log will read: truncated frames, old marks, left-overs.

See docs/design.md#object-log, docs/design.md#deletion.

Claims are never deleted. Before a deletion the caller stores a frame which says that these objects are not valid, and
then finds no later owner. A later owner sees that frame, so a deletion that is carried out late does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from tailrace.common.errors import UnavailableError
from tailrace.log.object_keys import LogKeys, ObjectKind, ObjectName, kept_marks

if TYPE_CHECKING:
    from tailrace.log.frame_index import FrameIndex
    from tailrace.log.object_requests import ObjectRequests

_LOG = structlog.get_logger(__name__)


class ObjectCleaner:
    """Deletes objects of one log."""

    def __init__(self, calls: ObjectRequests, keys: LogKeys) -> None:
        self._requests = calls
        self._keys = keys

    async def delete_frames(self, places: Sequence[tuple[int, int, int]]) -> None:
        """Delete frames by epoch, sequence and length, without a deadline."""
        await self._requests.delete([self._keys.frame(epoch, sequence) for epoch, sequence, _ in places])

    async def supersede_marks(self, epoch: int, last: int) -> None:
        """Delete the marks that a search for mark `last` does not need."""
        superseded = sorted(kept_marks(last - 1) - kept_marks(last))
        await self._requests.delete([self._keys.mark(epoch, number) for number in superseded])

    async def sweep(self, counted: FrameIndex, epoch: int) -> None:
        """Delete objects of epochs below `epoch` that its START frame does not list.

        When the list fails or is outdated, some objects remain for the next owner.
        """
        try:
            names = await self._requests.persist(lambda: self._requests.list(self._keys))
        except UnavailableError as error:
            _LOG.warning("log_not_swept", log=self._keys.folder, reason=str(error))
            return
        await self._requests.delete([self._keys.of(name) for name in names if _is_garbage(name, counted, epoch)])


def _is_garbage(name: ObjectName, counted: FrameIndex, epoch: int) -> bool:
    if name.epoch >= epoch:
        return False
    return name.kind is not ObjectKind.FRAME or counted.epoch_of(name.number) != name.epoch
