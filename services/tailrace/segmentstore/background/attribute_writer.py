"""The attribute writer: moves a container's dirty attributes to the indexes in Tier 2 (docs/design.md#attributes).

It works beside the storage writer, so that neither delays the other. Indexes of several segments are written at a time,
the ones with most to write first. A segment is due when many of its attributes are dirty, when fewer of them are for
some time, and with any when all attributes together take much of the room for records of what Tier 2 lacks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tailrace.segmentstore.attributes.attribute_store import AttributeStore
    from tailrace.segmentstore.background.flush_queue import FlushQueue
    from tailrace.segmentstore.metadata import operations as ops
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributePorts:
    """What the attribute writer works with.

    ``commit`` puts an operation through the log and returns after its commit. ``index_slots`` and ``upload_slots``
    bound the pages that the process holds in memory to write them; the first leaves some of the second to bytes.
    """

    state: ContainerState
    queue: FlushQueue
    attributes: AttributeStore
    index_slots: asyncio.Semaphore
    upload_slots: asyncio.Semaphore
    commit: Callable[[ops.ControlOperation], Awaitable[None]]


class AttributeWriter:
    """Flushes the attributes of one container in the background."""

    def __init__(self, ports: AttributePorts) -> None:
        self._ports = ports
        self._state = ports.state
        self._queue = ports.queue
        self._attributes = ports.attributes
        self._turn = asyncio.Lock()
        self.flushes = 0
        self.last_error = ""

    async def run(self) -> None:
        """Flush until cancelled. Retry without end while Tier 2 is unavailable; operations wait for room meanwhile."""
        retry_s = limits.STORAGE_RETRY_MIN_S
        while True:
            try:
                if not await self.flush_due():
                    await self._queue.wait_attributes()
                retry_s = limits.STORAGE_RETRY_MIN_S
                self.last_error = ""
            except UnavailableError as error:
                if not self.last_error:
                    _log.warning("attributes_not_flushed", container=self._state.container_id, reason=str(error))
                self.last_error = str(error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, limits.STORAGE_RETRY_MAX_S)

    async def flush_due(self) -> bool:
        """Flush the segments that are due, once; return whether there were any. Raises UnavailableError."""
        async with self._turn:
            due = self._due()
            await self._flush(due)
            return bool(due)

    def _due(self) -> list[Segment]:
        excess = self._state.untiered.excess_attributes
        due = self._queue.due_attributes(self._state.segments, excess)
        due.sort(key=lambda segment: -len(segment.dirty))
        return due[: limits.FLUSH_INDEXES_PER_PASS_MAX]

    async def _flush(self, segments: Sequence[Segment]) -> None:
        """Flush all of them, then raise an error: one that a retry does not mend comes first.

        None is cancelled because another one failed: a flush that ended between the staging and the commit of its root
        would be followed by one that writes the same range of the index again.
        """
        outcomes = await asyncio.gather(*map(self._flush_segment, segments), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        errors.sort(key=lambda error: isinstance(error, UnavailableError))
        if errors:
            raise errors[0]

    async def _flush_segment(self, segment: Segment) -> None:
        ports = self._ports
        try:
            async with ports.index_slots, ports.upload_slots:
                flush = await self._attributes.build_update(segment)
        except CorruptionError:
            return  # of this segment only, which keeps its values in memory; or it was deleted meanwhile
        if flush is not None:
            await ports.commit(flush.operation)
            self._attributes.flushed(segment, flush)
            self.flushes += 1
        self._queue.attributes_flushed(segment)
        self._attributes.evict(segment)
