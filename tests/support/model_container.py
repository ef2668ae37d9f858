"""A segment container in memory: the model of the `SegmentContainer` protocol that upper rooms are tested against.

Like the real one it checks conditions against staged state when an operation is submitted, and commits later and in
order: after one turn of the loop, or while `hold` is in effect only after `release`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from tailrace.common import limits
from tailrace.common.errors import (
    BadAttributeError,
    BadOffsetError,
    BadRequestError,
    ContainerStoppedError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TailraceError,
)
from tailrace.segmentstore.api import (
    NULL_ATTRIBUTE,
    AppendRequest,
    AttributeUpdate,
    AttributeUpdateType,
    Buffer,
    ChunkListing,
    ContainerStatus,
    MeasuredSegment,
    MergeResult,
    ReadResult,
    SegmentKind,
    SegmentLength,
    SegmentProperties,
    StreamBytes,
    is_core_attribute,
)
from tailrace.segmentstore.background.held_bytes import stream_of


class ModelSegment:
    """One segment: staged state, and how much of it is committed."""

    def __init__(self, name: str, segment_id: int, kind: SegmentKind, key_length: int) -> None:
        self.name = name
        self.segment_id = segment_id
        self.kind = kind
        self.key_length = key_length
        self.data = bytearray()
        self.staged_sealed = False
        self.staged_attributes: dict[bytes, int] = {}
        self.length = 0
        self.start_offset = 0
        self.sealed = False
        self.attributes: dict[bytes, int] = {}
        self.waiting: list[asyncio.Future[None]] = []

    @property
    def attribute_length(self) -> int:
        return self.key_length or 16

    def wake(self) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
        self.waiting.clear()


class ModelContainer:
    """Implements `tailrace.segmentstore.api.SegmentContainer`.

    `refuse_every` makes every n-th submission wait, and one of n + 1 looks for attributes in memory find none.
    """

    def __init__(self, container_id: int = 0, *, refuse_every: int = 0) -> None:
        self._container_id = container_id
        self.segments: dict[str, ModelSegment] = {}
        self.merged: dict[str, MergeResult] = {}
        self.reads = 0
        self.attribute_reads = 0
        self.appends = 0
        self.measured: list[MeasuredSegment] = []
        self._next_id = 1
        self._queue: deque[Callable[[], None]] = deque()
        self._held = False
        self._scheduled = False
        self._stopped = ""
        self._refuse_every = refuse_every
        self._submissions = 0
        self._looks = 0
        self._drained: list[asyncio.Future[None]] = []

    @property
    def container_id(self) -> int:
        return self._container_id

    def may_answer(self) -> bool:
        return True

    async def wait_owner(self) -> None:
        raise AssertionError("a model has no other owner")

    # -- control of the test -------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Commit nothing until `release`."""
        self._held = True

    def release(self) -> None:
        """Commit what was staged, soon and in order."""
        self._held = False
        self._schedule()

    def commit_next(self) -> None:
        """While held: commit the oldest staged operation."""
        self._queue.popleft()()

    def stop(self, reason: str = "stopped by the test") -> None:
        """Lose what is staged and refuse everything from now on."""
        self._stopped = reason
        self._queue, lost = deque(), self._queue
        for commit in lost:
            commit()
        for segment in self.segments.values():
            segment.wake()

    @property
    def staged(self) -> int:
        """Operations that are not committed yet."""
        return len(self._queue)

    # -- the pipeline --------------------------------------------------------------------------------------------

    def _stage(self, commit: Callable[[], None]) -> None:
        self._queue.append(commit)
        self._schedule()

    def _schedule(self) -> None:
        if self._queue and not self._held and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        self._scheduled = False
        for _ in range(len(self._queue)):
            if self._held or not self._queue:
                break
            self._queue.popleft()()
        self._schedule()

    async def _staged(self, apply: Callable[[], None]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def commit() -> None:
            if not self._stopped:
                apply()
            if done.done():
                return
            if self._stopped:
                done.set_exception(ContainerStoppedError(self._stopped))
            else:
                done.set_result(None)

        self._stage(commit)
        await done

    def _segment(self, name: str) -> ModelSegment:
        if self._stopped:
            raise ContainerStoppedError(self._stopped)
        try:
            return self.segments[name]
        except KeyError:
            raise NoSuchSegmentError(name) from None

    # -- appends and attributes ----------------------------------------------------------------------------------

    def submit_append(self, request: AppendRequest) -> asyncio.Future[None] | None:
        self._submissions += 1
        if self._refuse_every and self._submissions % self._refuse_every == 0:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(room.set_result, None)
            return room
        try:
            self._stage_append(request)
        except TailraceError as error:
            request.failed(request, error)
        return None

    def _stage_append(self, request: AppendRequest) -> None:
        segment = self._segment(request.segment)
        if segment.staged_sealed:
            raise SegmentSealedError(segment.name)
        offset = len(segment.data)
        if request.expected_offset not in (-1, offset):
            raise BadOffsetError(segment.name, request.expected_offset, offset)
        values = self._final_values(segment, request.updates, offset)
        data = b"".join(request.data)
        assert len(data) == request.length
        segment.data += data
        segment.staged_attributes.update(values)
        self.appends += 1
        end = len(segment.data)

        def commit() -> None:
            if self._stopped:
                request.failed(request, ContainerStoppedError(self._stopped))
                return
            segment.length = end
            _set(segment.attributes, values)
            segment.wake()
            request.offset, request.new_length = offset, end
            request.completed(request)

        self._stage(commit)

    def _final_values(self, segment: ModelSegment, updates: Sequence[AttributeUpdate], offset: int) -> dict[bytes, int]:
        values: dict[bytes, int] = {}
        for update in updates:
            identifier = update.attribute_id
            if not is_core_attribute(identifier) and len(identifier) != segment.attribute_length:
                raise BadRequestError(f"attribute id of {len(identifier)} bytes")
            current = values.get(identifier, segment.staged_attributes.get(identifier, NULL_ATTRIBUTE))
            value = update.value + (offset if update.from_offset else 0)
            if update.kind is AttributeUpdateType.REPLACE_IF_EQUALS and current != update.comparison:
                raise BadAttributeError(segment.name, identifier, update.comparison, current)
            if update.kind is AttributeUpdateType.REPLACE_IF_GREATER and current != NULL_ATTRIBUTE and value <= current:
                raise BadAttributeError(segment.name, identifier, value, current)
            if update.kind is AttributeUpdateType.ACCUMULATE and current != NULL_ATTRIBUTE:
                value += current
            values[identifier] = value
        return values

    async def append(
        self,
        segment: str,
        data: Sequence[Buffer],
        updates: Sequence[AttributeUpdate] = (),
        *,
        expected_offset: int = -1,
    ) -> tuple[int, int]:
        done: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

        def completed(request: AppendRequest) -> None:
            if not done.done():
                done.set_result((request.offset, request.new_length))

        def failed(_: AppendRequest, error: Exception) -> None:
            if not done.done():
                done.set_exception(error)

        length = sum(len(part) for part in data)
        request = AppendRequest(segment, data, length, updates, completed, failed, expected_offset)
        while (room := self.submit_append(request)) is not None:
            await room
        return await done

    async def get_attributes(
        self, segment: str, attribute_ids: Sequence[bytes], *, keep: bool = False
    ) -> dict[bytes, int]:
        self.attribute_reads += 1
        attributes = self._segment(segment).attributes
        return {identifier: attributes[identifier] for identifier in attribute_ids if identifier in attributes}

    def attributes_in_memory(self, segment: str, attribute_ids: Sequence[bytes]) -> dict[bytes, int] | None:
        self._looks += 1
        if self._refuse_every and self._looks % (self._refuse_every + 1) == 0:
            return None
        attributes = self._segment(segment).attributes
        return {identifier: attributes[identifier] for identifier in attribute_ids if identifier in attributes}

    async def update_attributes(self, segment: str, updates: Sequence[AttributeUpdate]) -> None:
        model = self._segment(segment)
        if model.staged_sealed:
            raise SegmentSealedError(segment)
        values = self._final_values(model, updates, 0)
        model.staged_attributes.update(values)
        await self._staged(lambda: _set(model.attributes, values))

    async def iterate_attributes(
        self, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        attributes = self._segment(segment).attributes
        extended = sorted(item for item in attributes.items() if not is_core_attribute(item[0]))
        return [item for item in extended if from_id <= item[0] <= to_id][:limit]

    async def writer_state(self, segment: str, writer_id: bytes) -> int:
        model = self._segment(segment)
        await self._staged(lambda: None)
        return model.attributes.get(writer_id, NULL_ATTRIBUTE)

    # -- life cycle ----------------------------------------------------------------------------------------------

    async def create_segment(
        self,
        segment: str,
        *,
        kind: SegmentKind = SegmentKind.STREAM,
        key_length: int = 0,
        attributes: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        if self._stopped:
            raise ContainerStoppedError(self._stopped)
        if segment in self.segments:
            raise SegmentExistsError(segment)
        model = ModelSegment(segment, self._next_id, kind, key_length)
        self._next_id += 1
        model.attributes = dict(attributes)
        model.staged_attributes = dict(attributes)
        self.segments[segment] = model

    async def begin_create(self, segment: str, *, attributes: Sequence[tuple[bytes, int]] = ()) -> asyncio.Future[None]:
        await self.create_segment(segment, attributes=attributes)
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        created.set_result(None)
        return created

    async def seal(self, segment: str) -> int:
        model = self._segment(segment)
        if model.staged_sealed:
            raise SegmentSealedError(segment)
        model.staged_sealed = True

        def apply() -> None:
            model.sealed = True
            model.wake()

        await self._staged(apply)
        return model.length

    async def truncate(self, segment: str, offset: int) -> None:
        model = self._segment(segment)
        if not model.start_offset <= offset <= len(model.data):
            raise SegmentTruncatedError(segment, model.start_offset)

        def apply() -> None:
            model.start_offset = max(model.start_offset, offset)

        await self._staged(apply)

    async def delete(self, segment: str) -> None:
        model = self._segment(segment)
        del self.segments[segment]
        model.wake()

    async def merge(self, target: str, source: str, updates: Sequence[AttributeUpdate] = ()) -> MergeResult:
        model = self._segment(target)
        if source in self.merged:
            return self.merged[source]
        other = self._segment(source)
        if model.staged_sealed:
            raise SegmentSealedError(target)
        values = self._final_values(model, updates, len(model.data))
        model.staged_attributes.update(values)
        offset = len(model.data)
        model.data += other.data[other.start_offset :]
        end = len(model.data)
        result = MergeResult(offset, end)
        self.merged[source] = result
        del self.segments[source]

        def apply() -> None:
            model.length = end
            _set(model.attributes, values)
            model.wake()
            other.wake()

        await self._staged(apply)
        return result

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        lengths = []
        for source in sources:
            try:
                lengths.append((await self.merge(target, source)).target_length)
            except NoSuchSegmentError as error:
                if error.segment != source:
                    raise
                lengths.append(self._segment(target).length)
        return lengths

    # -- reads ---------------------------------------------------------------------------------------------------

    async def info(self, segment: str) -> SegmentProperties:
        model = self._segment(segment)
        core = {identifier: value for identifier, value in model.attributes.items() if is_core_attribute(identifier)}
        return SegmentProperties(
            segment,
            model.segment_id,
            model.kind,
            model.key_length,
            model.length,
            model.start_offset,
            model.sealed,
            0,
            core,
        )

    def length_of(self, segment: str) -> SegmentLength:
        model = self._segment(segment)
        return SegmentLength(segment, model.segment_id, model.length)

    def available(self, segment: str, offset: int) -> int:
        model = self.segments.get(segment)
        return 0 if model is None else max(0, model.length - offset)

    async def read(self, segment: str, offset: int, max_length: int, *, wait: bool) -> ReadResult:
        model = self._segment(segment)
        self.reads += 1
        while True:
            if offset < model.start_offset:
                raise SegmentTruncatedError(segment, model.start_offset)
            if offset > model.length and model.sealed:
                raise BadRequestError(f"offset {offset} is beyond the end {model.length} of {segment}")
            if offset < model.length or model.sealed or not wait:
                break
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            model.waiting.append(waiter)
            await waiter
            self._segment(segment)
        data = bytes(model.data[offset : min(offset + max_length, model.length)])
        at_tail = offset + len(data) >= model.length
        return ReadResult(offset, [data] if data else [], len(data), at_tail, at_tail and model.sealed)

    async def read_exact(self, segment: str, offset: int, length: int) -> bytes:
        model = self._segment(segment)
        self.reads += 1
        if offset < model.start_offset:
            raise SegmentTruncatedError(segment, model.start_offset)
        if offset + length > model.length:
            raise BadRequestError(f"{segment} ends at {model.length}, before {offset + length}")
        return bytes(model.data[offset : offset + length])

    async def flush_to_storage(self) -> None:
        await self._staged(lambda: None)

    async def list_chunks(self, segment: str, after: int = 0, limit: int | None = None) -> list[ChunkListing]:
        self._segment(segment)
        return []

    async def stream_bytes(self, max_age_s: float = 0.0) -> dict[str, StreamBytes]:
        found: dict[str, StreamBytes] = {}
        for name, segment in self.segments.items():
            own = found.setdefault(stream_of(name), StreamBytes())
            own.segments += 1
            own.retained_bytes += len(segment.data)
            own.held_bytes += len(segment.data)
        return found

    def measure_rates(self, windows_ms: Sequence[int], after: int) -> tuple[list[MeasuredSegment], bool]:
        if not windows_ms:
            raise BadRequestError("0 windows")
        left = [each for each in self.measured if each.segment_id > after]
        return left[: limits.RATES_PER_REPLY_MAX], len(left) > limits.RATES_PER_REPLY_MAX

    def list_segments(self, after: int) -> tuple[list[tuple[int, str]], bool]:
        ids = sorted((each.segment_id, name) for name, each in self.segments.items() if each.segment_id > after)
        return ids[: limits.SEGMENTS_PER_REPLY_MAX], len(ids) > limits.SEGMENTS_PER_REPLY_MAX

    def segment_names(self) -> list[str]:
        return sorted(self.segments)

    def status(self) -> ContainerStatus:
        state = "stopped" if self._stopped else "running"
        return ContainerStatus(self._container_id, state, self._stopped, 1, len(self.segments), 0, 0, 0, 0)


def _set(attributes: dict[bytes, int], values: dict[bytes, int]) -> None:
    for identifier, value in values.items():
        if value == NULL_ATTRIBUTE:
            attributes.pop(identifier, None)
        else:
            attributes[identifier] = value
