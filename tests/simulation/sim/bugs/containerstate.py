"""Planted bugs of a container's state: recovery, merges, attributes, references to Tier 2."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import pytest

from sim.bugs.registry import bug
from sim.workloads.container import large_index_knobs
from sim.workloads.pressure import PressureWorkload, Shortage
from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.segmentstore import attributes as index
from tailrace.segmentstore.api import EVENT_COUNT, NULL_ATTRIBUTE, is_core_attribute
from tailrace.segmentstore.attributes import attribute_store
from tailrace.segmentstore.attributes.attribute_store import AttributeStore
from tailrace.segmentstore.attributes.page import PageBytes
from tailrace.segmentstore.attributes.pages import PageKey, SegmentPages
from tailrace.segmentstore.background.attribute_writer import AttributeWriter
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.container.segment_operations import BegunMerge, SegmentOperations
from tailrace.segmentstore.metadata import checkpoint, operation_log
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.dirty_attributes import DirtyAttributes, DirtyBatch
from tailrace.segmentstore.metadata.fields import Attributes
from tailrace.segmentstore.metadata.operation_log import Placed, PlacedAppends
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects, Section


def _small_frames(seed: int) -> PressureWorkload:
    return PressureWorkload(seed, Shortage.FRAMES)


def _short_lived(seed: int) -> PressureWorkload:
    """Segments with attributes are deleted and created again all the time, and all index pages stay in memory."""
    workload = PressureWorkload(seed, Shortage.ATTRIBUTES)
    workload.knobs[attribute_store, "_PAGES_MAX_BYTES"] = 100_000
    for client in workload.heavy:
        client.again_chance = 0.1
    return workload


def _thrifty(seed: int) -> PressureWorkload:
    return PressureWorkload(seed, Shortage.ATTRIBUTES)


def _large_index(seed: int) -> PressureWorkload:
    """Each attribute index is a large one, and a flush rewrites few of its leaves."""
    workload = PressureWorkload(seed, Shortage.ATTRIBUTES)
    workload.knobs |= large_index_knobs(seed, always=True)
    return workload


def _many_turns(seed: int) -> PressureWorkload:
    """A checkpoint is encoded in a turn for each segment, and others run between them."""
    workload = PressureWorkload(seed)
    workload.knobs |= {
        (limits, "CHECKPOINT_ITEMS_PER_TURN"): 1,
        (limits, "CHECKPOINT_PAUSE_S"): 0.005,
        (limits, "CHECKPOINT_INTERVAL_OPERATIONS"): 10,
    }
    return workload


# -- recovery


@bug(
    "checkpoint-of-several-moments",
    _many_turns,
    checker="checks/undamaged.py",
    words="does not fit: ",
)
def _checkpoint_of_several_moments(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is encoded in steps has a segment of when its turn came, not of when it began.

    Breaks: a checkpoint is the state as of one operation.
    """
    patch.setattr(ContainerState, "changing", lambda self, segment: None)


@bug("torn-checkpoint-as-base", _small_frames, checker="workloads/replay.py", words="replay came to other segments")
def _torn_checkpoint_as_base(patch: pytest.MonkeyPatch) -> None:
    """A recovery starts from a checkpoint whose end is missing in the log, as far as it goes.

    Breaks: a recovery comes to the state that the commits came to.
    """
    load_whole = Recovery._load_checkpoint

    async def load(self: Recovery) -> int:
        assembler = operation_log.Assembler(ops.OperationType.CHECKPOINT)
        async for frame in self._log.recover():
            for _ in assembler.feed(frame.sequence, frame.payload, "log"):
                pass
        if len(body := b"".join(assembler._parts)) < 16:
            return await load_whole(self)
        torn = ops.decode(ops.OperationType.CHECKPOINT, memoryview(body), "log")
        assert isinstance(torn, ops.Checkpoint)
        try:
            checkpoint.load(self._state, torn.as_of_sequence, torn.body, "log")
        except CorruptionError:
            self._state.committed_sequence = torn.as_of_sequence
            self._state.next_sequence = torn.as_of_sequence + 1
        return torn.as_of_sequence

    patch.setattr(Recovery, "_load_checkpoint", load)


@bug(
    "accumulate-replayed-twice",
    PressureWorkload,
    checker="workloads/replay.py",
    words="core attributes .* after replay",
)
def _accumulate_replayed_twice(patch: pytest.MonkeyPatch) -> None:
    """A recovery adds the final value of a counter to the counter.

    Breaks: the event count of a segment is exact.
    """
    apply = Recovery._apply

    def twice(self: Recovery, placed: Placed | PlacedAppends, place: str) -> None:
        operation = None if isinstance(placed, PlacedAppends) else placed.operation
        segment = self._state.segments.get(getattr(operation, "segment_id", -1))
        before = segment.committed.get(EVENT_COUNT, 0) if segment is not None else 0
        apply(self, placed, place)
        if segment is not None and isinstance(operation, ops.Append):
            segment.set_attributes(placed.sequence, [(EVENT_COUNT, before + segment.core[EVENT_COUNT])])

    patch.setattr(Recovery, "_apply", twice)


# -- merges


@bug(
    "writer-attribute-dropped-on-merge",
    PressureWorkload,
    checker="workloads/pressureclients.py",
    words="was acknowledged, the container knows|the condition of event .* failed",
)
def _writer_attribute_dropped_on_merge(patch: pytest.MonkeyPatch) -> None:
    """A merge that carries a writer's event number takes the bytes and drops the number.

    Breaks: a large event is stored exactly once.
    """
    stage = SegmentOperations._stage_merge

    def forgetful(self: SegmentOperations, into: Segment, origin: Segment, values: Attributes) -> BegunMerge:
        return stage(self, into, origin, [item for item in values if is_core_attribute(item[0])])

    patch.setattr(SegmentOperations, "_stage_merge", forgetful)


@bug(
    "flush-after-merge-unshifted",
    PressureWorkload,
    checker="workloads/container.py",
    words="no progress though nothing fails any more",
)
def _flush_after_merge_unshifted(patch: pytest.MonkeyPatch) -> None:
    """A flush that completes after a merge records the bytes at their offset in the source segment.

    Breaks: Tier 2 receives every byte of a segment at its place.
    """
    resolve = ContainerState.resolve

    def unshifted(self: ContainerState, segment_id: int) -> tuple[int, int]:
        return resolve(self, segment_id)[0], 0

    patch.setattr(ContainerState, "resolve", unshifted)


@bug(
    "merge-frees-moved-chunks",
    PressureWorkload,
    checker="workloads/container.py",
    words="needs object .*, which is deleted or will be",
)
def _merge_frees_moved_chunks(patch: pytest.MonkeyPatch) -> None:
    """The objects of a merged segment are deleted with it, though its target needs them.

    Breaks: an object stays until no segment needs it.
    """
    move = ContainerState._move_bytes

    def freeing(self: ContainerState, source: Segment, target: Segment, shift: int) -> None:
        self.pending_deletes.update(dict.fromkeys(ref.object_key for ref in source.chunks))
        move(self, source, target, shift)

    patch.setattr(ContainerState, "_move_bytes", freeing)


# -- Tier 2


@bug(
    "chunk-names-reused",
    PressureWorkload,
    checker="workloads/container.py",
    words="objects were overwritten|needs object .*, which is deleted or will be",
)
def _chunk_names_reused(patch: pytest.MonkeyPatch) -> None:
    """The key of a chunk object is only its segment's name and range, so a segment that is created again reuses it.

    Breaks: no object in Tier 2 is ever overwritten.
    """

    def key(self: ChunkObjects, kind: str, section: Section, length: int) -> str:
        name = zlib.crc32(section.segment_name.encode())
        end = section.start_offset + length
        return f"{kind}{self._container_id}/{name:016x}/{section.start_offset:016x}-{end:016x}-00000001-{0:012x}"

    patch.setattr(ChunkObjects, "_key", key)


# -- attributes


@bug("prefetch-over-newer-value", _thrifty, checker="workloads/attributeclient.py", words="it can be")
def _prefetch_over_newer_value(patch: pytest.MonkeyPatch) -> None:
    """An attribute value that was fetched replaces a newer value that was evicted during the fetch.

    Breaks: a reader gets the newest value of an attribute.
    """

    async def load(self: AttributeStore, segment: Segment, attribute_ids: Sequence[bytes]) -> None:
        wanted = sorted({key for key in attribute_ids if key not in segment.latest})
        found: dict[bytes, int] = {}
        while wanted and segment.index.root_length:
            root = segment.index
            try:
                found = await index.get_many(self._state(segment), wanted, self._reader(segment))
                break
            except CorruptionError:
                if segment.index is root:
                    raise
        for key in wanted:
            if key not in segment.latest:
                segment.latest[key] = segment.committed[key] = found.get(key, NULL_ATTRIBUTE)

    patch.setattr(AttributeStore, "load", load)


@bug(
    "attribute-evicted-in-flight",
    PressureWorkload,
    checker="workloads/attributeclient.py",
    words="it can be|a condition that holds failed",
)
def _attribute_evicted_in_flight(patch: pytest.MonkeyPatch) -> None:
    """Attributes leave memory while an operation that changes them is staged and not committed.

    Breaks: conditions are checked against the newest staged value.
    """

    def hold_nothing(self: Segment, values: Attributes) -> None:
        self.latest.update(values)

    def release(self: Segment, keys: Iterable[bytes]) -> None:
        for key in keys:
            if (count := self.held.pop(key, 1)) > 1:
                self.held[key] = count - 1

    patch.setattr(Segment, "stage_attributes", hold_nothing)
    patch.setattr(Segment, "release", release)


@bug(
    "attributes-evicted-before-root-committed",
    PressureWorkload,
    checker="workloads/attributeclient.py",
    words="it can be|a condition that holds failed",
)
def _attributes_evicted_before_root_committed(patch: pytest.MonkeyPatch) -> None:
    """Attributes leave memory when their index pages are written, before the new root is committed.

    Breaks: a reader gets the newest value of an attribute.
    """

    async def flush(self: AttributeWriter, segment: Segment) -> None:
        try:
            update = await self._attributes.build_update(segment)
        except CorruptionError:
            return
        if update is not None:
            segment.dirty.settle_items(update.items)
            self._attributes.evict(segment)
            await self._ports.commit(update.operation)
        self._queue.attributes_flushed(segment)

    patch.setattr(AttributeWriter, "_flush_segment", flush)


@bug(
    "flushed-through-past-what-waits",
    _large_index,
    checker="workloads/attributeclient.py",
    words="it can be|a condition that holds failed",
)
def _flushed_through_past_what_waits(patch: pytest.MonkeyPatch) -> None:
    """The number up to which an index holds all updates is that of the newest update in a flush.

    Breaks: a reader gets the newest value of an attribute.
    """
    batch = DirtyAttributes.batch

    def newest(self: DirtyAttributes, keys: Sequence[bytes]) -> DirtyBatch:
        items = batch(self, keys).items
        return DirtyBatch(items, max((sequence for _, sequence in items), default=0))

    patch.setattr(DirtyAttributes, "batch", newest)


@bug(
    "index-pages-cached-by-name",
    _short_lived,
    checker="workloads/attributeclient.py",
    words="it can be|a condition that holds failed",
)
def _index_pages_cached_by_name(patch: pytest.MonkeyPatch) -> None:
    """Index pages are cached by segment name, which another segment may have later.

    Breaks: a segment that is created again shows nothing of the deleted one.
    """

    async def read(self: SegmentPages, offset: int, length: int) -> PageBytes:
        by_name = PageKey(self._segment.name, offset, length)
        page = self._reads.cache.get(by_name)
        if page is None:
            ref, key = self._find(offset, length)
            page = await self._reads.read(ref, key)
            self._reads.cache.put(by_name, page)
        return page

    async def read_many(self: SegmentPages, places: Sequence[tuple[int, int]]) -> list[PageBytes]:
        return [await read(self, offset, length) for offset, length in places]

    patch.setattr(SegmentPages, "read", read)
    patch.setattr(SegmentPages, "read_many", read_many)


@bug(
    "setup-answered-from-staged-state",
    PressureWorkload,
    checker="workloads/pressureclients.py",
    words="was acknowledged, the container knows",
)
def _setup_answered_from_staged_state(patch: pytest.MonkeyPatch) -> None:
    """A writer that reconnects learns the number of an event that is staged and may still be lost.

    Breaks: An acknowledged event is never lost.
    """
    answer = Container.writer_state

    async def hasty(self: Container, segment: str, writer_id: bytes) -> int:
        staged = self.core.staged_segment(segment).latest.get(writer_id)
        return await answer(self, segment, writer_id) if staged is None else staged

    patch.setattr(Container, "writer_state", hasty)
