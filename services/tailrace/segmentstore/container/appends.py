"""The append path: checks conditions, takes room in log and cache, stages the append.

See docs/design.md#admit, docs/design.md#stage.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    BadAttributeError,
    BadOffsetError,
    CorruptionError,
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
from tailrace.segmentstore.container.operation_processor import StagedAppend
from tailrace.segmentstore.metadata import attribute_stage
from tailrace.segmentstore.metadata import operations as ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.attributes.attribute_store import AttributeStore
    from tailrace.segmentstore.container.core import ContainerCore
    from tailrace.segmentstore.metadata.segment import Segment


_logger = structlog.get_logger()


class AppendPath:
    """Takes the appends of one container."""

    def __init__(self, core: ContainerCore, attributes: AttributeStore) -> None:
        self._core = core
        self._cache = core.cache
        self._attributes = attributes
        self._loading: dict[tuple[int, bytes], asyncio.Future[None]] = {}

    def submit(self, request: AppendRequest) -> asyncio.Future[None] | None:
        """See `SegmentContainer.submit_append`."""
        try:
            return self._stage(request)
        except TailraceError as error:
            request.failed(request, error)
            return None

    def _stage(self, request: AppendRequest) -> asyncio.Future[None] | None:
        core = self._core
        segment = core.staged_segment(request.segment)
        if segment.staged_sealed:
            raise SegmentSealedError(segment.name)
        attribute_stage.check_updates(segment, request.updates)
        offset = segment.staged_length
        if request.expected_offset >= 0 and request.expected_offset != offset:
            raise BadOffsetError(segment.name, request.expected_offset, offset)
        try:
            values = attribute_stage.final_values(segment, request.updates, offset)
        except attribute_stage.AttributesMissingError as missing:
            if not self._attributes.load_cached(segment, missing.attribute_ids):
                self._attributes.check_readable(segment)
                return core.waits.behind(self._load_attributes(segment, missing.attribute_ids))
            try:
                values = attribute_stage.final_values(segment, request.updates, offset)
            except BadAttributeError:
                self._attributes.make_room(segment)  # no flush evicts what was loaded for it
                raise
        internal = segment.internal
        body_bytes = ops.append_body_max(request.length, len(values))
        if (again := core.admission.check(body_bytes, internal=internal)) is not None:
            return core.waits.behind(again)
        if request.length:
            cache = self._cache
            if (admitted := cache.throttle.ask(request, internal=internal)) is not None:
                return core.waits.join(admitted)
            first = request.turn < 0
            if not cache.stage_append(segment.read_index, segment.length, request.length, internal=first):
                return core.waits.join(cache.throttle.wait_room(request))
        crc = 0
        for part in request.data:
            crc = crc32c(part, crc)
        item = StagedAppend(request, segment, offset, crc, values)
        header = ops.append_header(segment.segment_id, offset, request.length, crc, values)
        segment.staged_length = offset + request.length
        segment.stage_attributes(values)
        segment.inflight += 1
        core.processor.stage_append(item, header, request.data)
        return None

    async def append(
        self,
        segment: str,
        data: Sequence[Buffer],
        updates: Sequence[AttributeUpdate],
        expected_offset: int,
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
        while (wait := self.submit(request)) is not None:
            await wait
        await done
        return request.offset, request.new_length

    # -- attributes that conditions need -------------------------------------------------------------------------

    def _load_attributes(self, segment: Segment, attribute_ids: list[bytes]) -> asyncio.Future[None]:
        key = (segment.segment_id, attribute_ids[0])
        loaded = self._loading.get(key)
        if loaded is None:
            # Not the task itself: a stop cancels the task, and must not cancel those that wait for it.
            loaded = self._loading[key] = asyncio.get_running_loop().create_future()
            running = self._core.spawn(self._load_until_there(segment, attribute_ids))
            running.add_done_callback(lambda _: self._loaded(key))
        return loaded

    def _loaded(self, key: tuple[int, bytes]) -> None:
        loaded = self._loading.pop(key)
        if not loaded.done():
            loaded.set_result(None)

    async def _load_until_there(self, segment: Segment, attribute_ids: list[bytes]) -> None:
        """Load attributes; retry while Tier 2 is unavailable, so that the append waits and does not fail."""
        delay_s = limits.STORAGE_RETRY_MIN_S
        while True:
            try:
                await self._attributes.load(segment, attribute_ids)
                return
            except CorruptionError:
                return  # the append is refused when it is submitted again
            except UnavailableError as error:
                container = self._core.container_id
                _logger.warning("attributes_not_loaded", container=container, segment=segment.name, reason=str(error))
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, limits.STORAGE_RETRY_MAX_S)
