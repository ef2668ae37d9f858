"""Write watermarks for the streams in the buckets of this controller, each period (docs/controller.md#watermarks).

A round does not wait for slow streams, most likely those that need a container that is away: the next rounds leave them
out until they end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import call_deadline
from tailrace.common.errors import TailraceError, WriteConflictError
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
        self._retry_slots = StepSlots(limits.WATERMARK_STREAMS_CONCURRENT_MAX)
        """For streams that failed the last time, so that the others do not wait for them."""
        self._failing: set[StreamKey] = set()
        self._under_way: dict[StreamKey, asyncio.Task[None]] = {}
        self._retrying: set[StreamKey] = set()
        """Those under way that failed the last time."""
        self._room = asyncio.Semaphore(limits.WATERMARK_STREAMS_UNDER_WAY_MAX)
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
        under_way = list(self._under_way.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

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
        """Begin to look at each stream, and wait for those that are not slow."""
        metadata, token = self._context.store.metadata, b""
        before, unlisted = set(self._under_way.values()), self._failing.copy()
        while True:
            entries, token = await metadata.entries(MARKED_TABLE, limits.METADATA_TABLE_PAGE_ENTRIES, token)
            if not entries:
                break
            for entry in entries:
                record = readable(MarkedStream, MARKED_TABLE, entry)
                if record is not None and bucket_of(record.scope, record.stream) in buckets:
                    key = StreamKey(record.scope, record.stream)
                    unlisted.discard(key)
                    await self._begin(watermarks, key, entry, record)
        self._failing -= unlisted  # they are listed no more, or another controller has them now
        begun = set(self._under_way.values()) - before
        if begun:
            await asyncio.wait(begun, timeout=limits.WORKFLOW_STEP_SLOW_S)

    async def _begin(self, watermarks: WatermarkManager, key: StreamKey, entry: Stored, record: MarkedStream) -> None:
        """Begin to look at a stream, unless the look of an earlier round is under way.

        Streams that failed the last time take half of the room at most: the rest of them waits for a later round.
        """
        retries = key in self._failing
        has_no_room = len(self._retrying) >= limits.WATERMARK_STREAMS_UNDER_WAY_MAX // 2
        if key in self._under_way or (retries and has_no_room):
            return
        await self._room.acquire()
        if retries:
            self._retrying.add(key)
        look = self._apply(watermarks, key, entry, record)
        task = self._under_way[key] = asyncio.get_running_loop().create_task(look, name=f"watermark of {key}")
        task.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: StreamKey) -> None:
        del self._under_way[key]
        self._retrying.discard(key)
        self._room.release()

    async def _apply(self, watermarks: WatermarkManager, key: StreamKey, entry: Stored, record: MarkedStream) -> None:
        """Write a stream's next watermark; take a stream without writers from the list.

        A failure is logged when it is the first one in a row: other streams go on, and the next round tries again.
        """
        config = self._context.config
        slots = self._retry_slots if key in self._failing else self._slots
        try:
            async with slots.slot(), asyncio.timeout(config.blocking_deadline_s):
                with call_deadline(config.requests_deadline_s):
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
