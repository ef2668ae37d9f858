"""Put streams on lists of the controllers that have lost them (docs/controller.md#lists-that-a-restore-took-back).

What a stream's root says decides what is to be done for it. The lists only save looks at all streams: those of pending
work, of streams with retention policies, and of streams with writers' times. After a restore of containers as of
different moments a list may be older than the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.controller.metadata.metadata_store import MARKED_TABLE, PENDING_TABLE, RETENTION_TABLE
from tailrace.controller.metadata.model import EXISTING_STATES, StreamState
from tailrace.controller.metadata.records import PendingRecord
from tailrace.controller.workflows import marked, retained
from tailrace.controller.workflows.pending_mark import STREAM, PendingMark

if TYPE_CHECKING:
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver

_LOG = structlog.get_logger(__name__)


class LostListings:
    """Looks whether streams are on the lists that they belong on. An entry too many does no harm."""

    def __init__(self, context: WorkflowContext, driver: StreamDriver) -> None:
        self._context = context
        self._driver = driver
        self._looked_at: set[StreamKey] = set()
        self.restored = 0
        """Entries that were missing."""

    def begin_round(self) -> None:
        """Look at each stream again, once."""
        self._looked_at.clear()

    async def look(self, key: StreamKey, root: StreamRecord | None) -> None:
        """List a stream where its root demands it. Raises UnavailableError, OverloadedError."""
        if root is None or root.state is StreamState.DELETED or key in self._looked_at:
            return
        exists = root.state in EXISTING_STATES and root.state is not StreamState.DELETING
        if exists and root.config.retention is not None and await self._lacks(RETENTION_TABLE, key.root):
            await retained.note(self._context, key, root)
            self._report(key, "retention")
        if exists and root.writers and await self._lacks(MARKED_TABLE, key.root):
            await marked.note(self._context, key)
            self._report(key, "writers")
        if not root.is_idle and await self._lacks(PENDING_TABLE, PendingMark(self._context, STREAM, *key).key):
            now = await self._context.store.load(key)
            if now is not None and not now.is_idle:  # else it has ended, and its mark was removed
                await self._driver.adopt(PendingRecord(STREAM, *key))
                self._report(key, "pending work")
        if len(self._looked_at) < limits.SEGMENT_SWEEP_REMEMBERED_MAX:
            self._looked_at.add(key)

    async def _lacks(self, table: str, item: bytes) -> bool:
        (found,) = await self._context.store.metadata.get(table, [item])
        return found is None

    def _report(self, key: StreamKey, what: str) -> None:
        self.restored += 1
        _LOG.warning("stream_listed_again", stream=str(key), list=what)
