"""Write watermarks for the streams in the buckets of this controller, each period (docs/controller.md#watermarks)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import TailraceError, WriteConflictError
from tailrace.common.task_groups import run_all
from tailrace.controller.metadata.metadata_store import MARKED_TABLE, bucket_of
from tailrace.controller.metadata.reading import readable
from tailrace.controller.metadata.records import MarkedStream
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows.slots import StepSlots

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace.controller.instances.membership import Membership
    from tailrace.controller.managers.watermarks import WatermarkManager
    from tailrace.controller.metadata.ports import Stored
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)


class WatermarkJob:
    """A task that writes watermarks until it is closed; without a manager it does nothing."""

    def __init__(self, context: WorkflowContext, membership: Membership, watermarks: WatermarkManager | None) -> None:
        self._context = context
        self._membership = membership
        self._watermarks = watermarks
        self._slots = StepSlots(limits.WATERMARK_STREAMS_CONCURRENT_MAX)
        self._failing: set[StreamKey] = set()
        self._task: asyncio.Task[None] | None = None
        self.rounds = 0
        self.written = 0
        self.failures = 0
        """Streams for which a round failed, counted in each round."""

    def start(self) -> None:
        """Begin. The first round begins after one period."""
        if self._watermarks is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._watermarks), name="watermarks")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, watermarks: WatermarkManager) -> None:
        while True:
            await asyncio.sleep(self._context.config.watermark_period_s)
            try:
                buckets = self._membership.own_buckets
                if buckets:
                    await self._round(watermarks, buckets)
                    self.rounds += 1
                else:
                    self._failing.clear()
            except Exception as error:  # any error is repeated: without this task there are no watermarks
                known = isinstance(error, TailraceError | TimeoutError)
                reason = f"{type(error).__name__}: {error}"
                _LOG.warning("watermark_round_failed", reason=reason, exc_info=not known)

    async def _round(self, watermarks: WatermarkManager, buckets: Collection[int]) -> None:
        metadata, token = self._context.store.metadata, b""
        failing: set[StreamKey] = set()
        while True:
            entries, token = await metadata.entries(MARKED_TABLE, limits.METADATA_TABLE_PAGE_ENTRIES, token)
            if not entries:
                self._failing = failing  # without those that are listed no more, or that another controller has now
                return
            found = [(entry, readable(MarkedStream, MARKED_TABLE, entry)) for entry in entries]
            chosen = [
                (StreamKey(record.scope, record.stream), entry, record)
                for entry, record in found
                if record is not None and bucket_of(record.scope, record.stream) in buckets
            ]
            await run_all(*(self._apply(watermarks, *each) for each in chosen))
            failing |= {key for key, _, _ in chosen if key in self._failing}

    async def _apply(self, watermarks: WatermarkManager, key: StreamKey, entry: Stored, record: MarkedStream) -> None:
        """Write a stream's next watermark; take a stream without writers from the list.

        A failure is logged when it is the first one in a row: other streams go on, and the next round tries again.
        """
        try:
            async with self._slots.slot(), asyncio.timeout(self._context.config.blocking_deadline_s):
                if not await self._has_writers(key):
                    await self._unlist(entry, record)
                elif await watermarks.apply(key) is not None:
                    self.written += 1
            self._failing.discard(key)
        except Exception as error:  # any error concerns this stream only
            self.failures += 1
            known = isinstance(error, TailraceError | TimeoutError)
            reason = f"{type(error).__name__}: {error}"
            if key not in self._failing:
                _LOG.warning("watermark_failed", stream=str(key), reason=reason, exc_info=not known)
            self._failing.add(key)

    async def _has_writers(self, key: StreamKey) -> bool:
        root = await self._context.store.load(key)
        return root is not None and bool(root.writers)

    async def _unlist(self, entry: Stored, record: MarkedStream) -> None:
        """Take a stream from the list, unless a writer may be about to join it."""
        if self._context.clock.now_ms() - record.listed_ms < limits.MARKED_WITHOUT_WRITERS_MS:
            return
        with contextlib.suppress(WriteConflictError):
            await self._context.store.metadata.remove(MARKED_TABLE, [(entry.key, entry.version)])
