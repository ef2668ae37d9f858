"""Deleting what no owner of an object log will ever read: truncated frames, old marks, left-overs (design §4, §5).

Claims are never deleted. Whoever calls has stored a frame that says that these objects do not count, and has then
looked and found no later owner: a later one sees that frame, so a deletion that comes late harms nobody.
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
        self._calls = calls
        self._keys = keys

    async def delete_frames(self, places: Sequence[tuple[int, int, int]]) -> None:
        """Delete frames by epoch, sequence and length, however long it takes."""
        await self._calls.delete([self._keys.frame(epoch, sequence) for epoch, sequence, _ in places])

    async def supersede_marks(self, epoch: int, last: int) -> None:
        """Delete the marks that nobody needs any more to find mark `last`."""
        superseded = sorted(kept_marks(last - 1) - kept_marks(last))
        await self._calls.delete([self._keys.mark(epoch, number) for number in superseded])

    async def sweep(self, counted: FrameIndex, epoch: int) -> None:
        """Delete what epochs below `epoch` left and its START frame does not list.

        A list that fails or shows an old state leaves something for the next owner.
        """
        try:
            names = await self._calls.persist(lambda: self._calls.list(self._keys))
        except UnavailableError as error:
            _LOG.warning("log_not_swept", log=self._keys.folder, reason=str(error))
            return
        await self._calls.delete([self._keys.of(name) for name in names if _is_garbage(name, counted, epoch)])


def _is_garbage(name: ObjectName, counted: FrameIndex, epoch: int) -> bool:
    if name.epoch >= epoch:
        return False
    return name.kind is not ObjectKind.FRAME or counted.epoch_of(name.number) != name.epoch
