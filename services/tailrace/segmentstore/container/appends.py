"""Appends of a container: conditions, room, staging (design §3.2, §3.3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    BadOffsetError,
    SegmentSealedError,
    TailraceError,
    UnavailableError,
)
from tailrace.kernel import crc32c
from tailrace.segmentstore.api import (
    AppendRequest,
    AttributeUpdate,
    Buffer,
)
from tailrace.segmentstore.container.lifecycle import ContainerLife
from tailrace.segmentstore.container.operation_processor import StagedAppend
from tailrace.segmentstore.metadata import attribute_stage
from tailrace.segmentstore.metadata import operations as ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.metadata.segment import Segment


_logger = structlog.get_logger()


class SegmentAppends(ContainerLife):
    """The part of a container that takes appends."""

    def submit_append(self, request: AppendRequest) -> asyncio.Future[None] | None:
        """See `SegmentContainer.submit_append`."""
        try:
            return self._submit(request)
        except TailraceError as error:
            request.failed(request, error)
            return None

    def _submit(self, request: AppendRequest) -> asyncio.Future[None] | None:
        segment = self._staged(request.segment)
        if segment.staged_sealed:
            raise SegmentSealedError(segment.name)
        attribute_stage.check_updates(segment, request.updates)
        offset = segment.staged_length
        if request.expected_offset >= 0 and request.expected_offset != offset:
            raise BadOffsetError(segment.name, request.expected_offset, offset)
        try:
            values = attribute_stage.final_values(segment, request.updates, offset)
        except attribute_stage.AttributesMissingError as missing:
            return self._load_attributes(segment, missing.attribute_ids)
        if (again := self._space.check(ops.append_body_max(request.length, len(values)))) is not None:
            return again
        blocks = 0
        if request.length:
            if (turn := self._cache.throttle.ask(request.length)) is not None:
                return turn
            blocks = self._cache.blocks_for(request.length, 1 + request.length // limits.FRAME_PIECE_MIN_BYTES)
            if not self._cache.reserve(blocks):
                return self._cache.room()
        crc = 0
        for part in request.data:
            crc = crc32c(part, crc)
        item = StagedAppend(request, segment, offset, crc, values, blocks)
        segment.staged_length = offset + request.length
        segment.latest.update(values)
        segment.inflight += 1
        header = ops.append_header(segment.segment_id, offset, request.length, crc, values)
        self._processor.stage_append(item, header, request.data)
        return None

    async def append(
        self,
        segment: str,
        data: Sequence[Buffer],
        updates: Sequence[AttributeUpdate] = (),
        *,
        expected_offset: int = -1,
    ) -> tuple[int, int]:
        """See `SegmentContainer.append`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def completed(_: AppendRequest) -> None:
            if not done.done():
                done.set_result(None)

        def failed(_: AppendRequest, error: Exception) -> None:
            if not done.done():
                done.set_exception(error)

        length = sum(len(part) for part in data)
        request = AppendRequest(segment, data, length, updates, completed, failed, expected_offset)
        while (wait := self.submit_append(request)) is not None:
            await asyncio.shield(wait)
        await done
        return request.offset, request.new_length

    def _load_attributes(self, segment: Segment, attribute_ids: list[bytes]) -> asyncio.Future[None]:
        key = (segment.segment_id, attribute_ids[0])
        loaded = self._loading.get(key)
        if loaded is None:
            # Not the task itself: when the container stops that is cancelled, its waiters must not be.
            loaded = self._loading[key] = asyncio.get_running_loop().create_future()
            running = self._spawn(self._load_until_there(segment, attribute_ids))
            running.add_done_callback(lambda _: self._loaded(key))
        return loaded

    def _loaded(self, key: tuple[int, bytes]) -> None:
        loaded = self._loading.pop(key)
        if not loaded.done():
            loaded.set_result(None)

    async def _load_until_there(self, segment: Segment, attribute_ids: list[bytes]) -> None:
        """Load attributes; while Tier 2 does not answer the append waits, nothing is failed (design §3)."""
        delay_s = limits.STORAGE_RETRY_MIN_S
        while True:
            try:
                return await self._attributes.load(segment, attribute_ids)
            except UnavailableError as error:
                _logger.warning("attributes_not_loaded", container=self._id, segment=segment.name, reason=str(error))
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, limits.STORAGE_RETRY_MAX_S)
