"""Give pending work that no live controller runs to the drivers (docs/controller.md#several-controllers)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import OverloadedError
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.metadata.metadata_store import PENDING_TABLE
from tailrace.controller.metadata.reading import readable
from tailrace.controller.metadata.records import PendingRecord
from tailrace.controller.workflows.pending_mark import STREAM

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.controller.metadata.ports import Stored
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver
    from tailrace.controller.workflows.entities import EntityDriver

_LOG = structlog.get_logger(__name__)


class PendingWork:
    """The table of pending work, with the drivers that resume it."""

    def __init__(self, context: WorkflowContext, driver: StreamDriver, entities: EntityDriver) -> None:
        self._metadata = context.store.metadata
        self._driver = driver
        self._entities = entities

    async def adopt(self, is_chosen: Callable[[PendingRecord], bool], *, marks_end: bool) -> None:
        """Resume all pending work that is chosen. What has no room now stays pending for a later call.

        `marks_end`: the controllers of those marks live no more, so their marks are removed when the work has ended. A
        living one may be about to write what its mark is for.

        Raises:
            UnavailableError: the table cannot be read or written in time.
        """
        token = b""
        while True:
            entries, token = await self._metadata.entries(PENDING_TABLE, limits.METADATA_TABLE_PAGE_ENTRIES, token)
            if not entries:
                return
            found = [(entry, readable(PendingRecord, PENDING_TABLE, entry)) for entry in entries]
            chosen = [(entry, record) for entry, record in found if record is not None and is_chosen(record)]
            try:
                await gather_bounded(chosen, lambda each: self._adopt(*each, marks_end=marks_end))
            except OverloadedError as error:
                _LOG.warning("pending work waits for room", reason=str(error))
                return

    async def _adopt(self, entry: Stored, record: PendingRecord, *, marks_end: bool) -> None:
        if record.what == STREAM:
            await self._driver.adopt(record)
        else:
            self._entities.adopt(record, entry if marks_end else None)
