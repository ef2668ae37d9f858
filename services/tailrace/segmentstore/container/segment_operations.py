"""Operations on segments other than appends: each is checked against the staged state, then staged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits
from tailrace.common.errors import (
    BadAttributeError,
    BadRequestError,
    NoSuchSegmentError,
    OverloadedError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TailraceError,
)
from tailrace.common.names import check_segment_name, is_internal_segment
from tailrace.segmentstore.api import (
    CREATION_TIME,
    EVENT_COUNT,
    AttributeUpdate,
    AttributeUpdateType,
    MergeResult,
    SegmentKind,
)
from tailrace.segmentstore.metadata import attribute_stage
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.segment import shared_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.attributes.attribute_store import AttributeStore
    from tailrace.segmentstore.container.core import ContainerCore
    from tailrace.segmentstore.container.rates import RateSampler
    from tailrace.segmentstore.metadata.fields import Attributes
    from tailrace.segmentstore.metadata.segment import Segment


class BegunMerge(NamedTuple):
    """A merge that is staged, or was merged before; ``committed`` is done when it is committed, None when it was."""

    result: MergeResult
    committed: asyncio.Future[None] | None


class SegmentOperations:
    """Creates, changes and deletes the segments of one container."""

    def __init__(self, core: ContainerCore, attributes: AttributeStore, rates: RateSampler) -> None:
        self._core = core
        self._state = core.state
        self._clock = core.clock
        self._attributes = attributes
        self._rates = rates

    async def begin_create(
        self,
        segment: str,
        kind: SegmentKind,
        key_length: int,
        attributes: Sequence[tuple[bytes, int]],
    ) -> asyncio.Future[None]:
        """See `SegmentContainer.begin_create`."""
        check_segment_name(segment)
        if not 0 <= key_length <= limits.ATTRIBUTE_KEY_MAX_BYTES:
            raise BadRequestError(f"key length {key_length} is not between 0 and {limits.ATTRIBUTE_KEY_MAX_BYTES}")
        await self._core.admit_control()
        if segment in self._state.staged_by_name:
            await self._core.barrier()
            raise SegmentExistsError(segment)
        if (count := len(self._state.staged_by_name)) >= limits.ACTIVE_SEGMENTS_PER_CONTAINER_MAX:
            raise OverloadedError(f"container {self._core.container_id} has {count} segments, the limit of a container")
        now = self._clock.now_ms()
        identifier = self._core.processor.next_sequence
        values = [(CREATION_TIME, now), (EVENT_COUNT, 0), *((shared_key(key), value) for key, value in attributes)]
        created = self._state.new_segment(identifier, segment, kind, key_length, now)
        created.stage_attributes(values)
        self._state.staged_by_name[segment] = self._state.staged_creates[identifier] = created
        return self._core.processor.stage_control(ops.Create(identifier, segment, kind, key_length, now, values))

    async def seal(self, segment: str) -> int:
        """See `SegmentContainer.seal`."""
        await self._core.admit_control()
        target = await self._settled_segment(segment)
        if target.staged_sealed:
            await self._core.barrier()
            raise SegmentSealedError(segment)
        target.staged_sealed = True
        await self._core.processor.stage_control(ops.Seal(target.segment_id, self._clock.now_ms()))
        return target.length

    async def truncate(self, segment: str, offset: int) -> None:
        """See `SegmentContainer.truncate`."""
        await self._core.admit_control(gives_space=True)
        target = await self._settled_segment(segment)
        if not target.staged_start <= offset <= target.staged_length:
            start = target.staged_start
            await self._core.barrier()
            raise SegmentTruncatedError(segment, start)
        if offset == target.staged_start:
            await self._core.barrier()
            return
        target.staged_start = offset
        await self._core.processor.stage_control(ops.Truncate(target.segment_id, offset))

    async def delete(self, segment: str) -> None:
        """See `SegmentContainer.delete`."""
        await self._core.admit_control(gives_space=True)
        target = await self._settled_segment(segment)
        del self._state.staged_by_name[segment]
        target.staged_gone = target.staged_sealed = True
        await self._core.processor.stage_control(ops.Delete(target.segment_id))

    async def _settled_segment(self, name: str) -> Segment:
        """Return a segment as of the last staged operation.

        Raises NoSuchSegmentError only once it is durable that there is none: a deletion that is not may be undone. Else
        it does not suspend.
        """
        segment = self._state.staged_by_name.get(name)
        if segment is None:
            await self._core.barrier()
            raise NoSuchSegmentError(name)
        return segment

    async def merge(self, target: str, source: str, updates: Sequence[AttributeUpdate]) -> MergeResult:
        """See `SegmentContainer.merge`."""
        merged = await self._begin_merge(target, source, updates)
        if merged.committed is not None:
            await merged.committed
        return merged.result

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """See `SegmentContainer.merge_batch`."""
        lengths: list[int] = []
        last: asyncio.Future[None] | None = None
        for number, source in enumerate(sources, 1):
            if number % limits.MERGE_SOURCES_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                merged = await self._begin_merge(target, source, ())
            except NoSuchSegmentError as error:
                if error.segment != source:
                    raise
                lengths.append(self._core.committed_segment(target).length)  # all before it are committed
                continue
            except TailraceError:
                self._core.check_running()
                await self._core.barrier()  # the sources before it are merged
                raise
            last = merged.committed
            lengths.append(merged.result.target_length)
        if last is not None:
            await last  # operations commit in order
        return lengths

    async def _begin_merge(self, target: str, source: str, updates: Sequence[AttributeUpdate]) -> BegunMerge:
        """Stage a merge, or return the result of an earlier one of the same source. Raises as `merge`."""
        await self._core.admit_control()
        while True:
            into = await self._settled_segment(target)
            origin = self._state.staged_by_name.get(source)
            if origin is None:
                return BegunMerge(await self._merged_before(into, source), None)
            if origin is into:
                raise BadRequestError("a segment cannot be merged into itself")
            if into.kind.is_table or origin.kind.is_table:
                raise BadRequestError(f"{source} and {target} cannot be merged: one is a table segment")
            attribute_stage.check_updates(into, updates)
            added = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, self._state.merge_event_count(origin))
            if attribute_stage.is_missing_any(into, updates):
                await self._attributes.load(into, attribute_stage.needed(updates))
                await self._core.admit_control()
                continue
            break
        if into.staged_sealed:
            await self._core.barrier()
            raise SegmentSealedError(target)
        if start := origin.staged_start:
            await self._core.barrier()
            raise SegmentTruncatedError(source, start)
        own = [update for update in updates if update.attribute_id != EVENT_COUNT]
        values = await self._final_values(into, [*own, added])
        self._rates.merged(into, origin, added.value, self._clock.now_ms())
        return self._stage_merge(into, origin, values)

    def _stage_merge(self, into: Segment, origin: Segment, values: Attributes) -> BegunMerge:
        offset, length = into.staged_length, origin.staged_length
        self._core.cache.stage_merge(into.read_index, into.length)
        into.staged_length += length
        into.stage_attributes(values)
        into.inflight += 1
        del self._state.staged_by_name[origin.name]
        origin.staged_gone = origin.staged_sealed = True
        operation = ops.Merge(into.segment_id, origin.segment_id, offset, length, self._clock.now_ms(), values)
        committed = self._core.processor.stage_control(operation)
        return BegunMerge(MergeResult(offset, offset + length), committed)

    async def _merged_before(self, target: Segment, source: str) -> MergeResult:
        """Return the result of an earlier merge of the same source; it may be staged and not committed yet."""
        await self._core.barrier()
        known = self._state.merged.get(source)
        if known is None or known.target_id != target.segment_id:
            raise NoSuchSegmentError(source)
        return MergeResult(known.target_offset, target.length)

    async def _final_values(self, segment: Segment, updates: Sequence[AttributeUpdate]) -> Attributes:
        """Return the final values of updates for an operation at the segment's staged end.

        Raises BadAttributeError only once the values that do not fit are durable: those that are not may never exist.
        Else it does not suspend.
        """
        try:
            return attribute_stage.final_values(segment, updates, segment.staged_length)
        except (BadAttributeError, BadRequestError):
            await self._core.barrier()
            raise

    async def update_attributes(self, segment: str, updates: Sequence[AttributeUpdate]) -> None:
        """See `SegmentContainer.update_attributes`."""
        internal = is_internal_segment(segment)
        await self._core.admit_control(internal=internal)
        while True:
            target = await self._settled_segment(segment)
            attribute_stage.check_updates(target, updates)
            if not attribute_stage.is_missing_any(target, updates):
                break
            await self._attributes.load(target, attribute_stage.needed(updates))
            await self._core.admit_control(internal=internal)
        if target.staged_sealed:
            await self._core.barrier()
            raise SegmentSealedError(segment)
        values = await self._final_values(target, updates)
        target.stage_attributes(values)
        target.inflight += 1
        await self._core.processor.stage_control(ops.UpdateAttributes(target.segment_id, values))
