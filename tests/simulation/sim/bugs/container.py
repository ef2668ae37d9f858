"""Planted bugs of the segment container."""

from __future__ import annotations

import pytest

from sim.bugs.registry import bug
from sim.workloads.container import ContainerWorkload
from sim.workloads.pressure import PressureWorkload
from sim.workloads.segment_model import SoleClient
from sim.workloads.streams import SharedStream
from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.segmentstore.attributes.attribute_store import AttributeStore
from tailrace.segmentstore.background import storage_writer
from tailrace.segmentstore.background.attribute_writer import AttributeWriter
from tailrace.segmentstore.container.checkpointer import Checkpointer
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.container.operation_processor import Frame, OperationProcessor
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.dirty_attributes import DirtyAttributes
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.metadata.untiered_room import UntieredRoom


def _sharing(seed: int) -> ContainerWorkload:
    """Several small segments whose bytes go to Tier 2 at once, in one object."""
    workload = ContainerWorkload(seed)
    workload.sole = [SoleClient(number, workload.random) for number in range(3)]
    workload.knobs |= {
        (limits, "FLUSH_INTERVAL_S"): 0.05,
        (limits, "FLUSH_TICK_S"): 0.02,
        (storage_writer, "_SHARED_MAX_BYTES"): 1_000_000,
    }
    return workload


def _merging(seed: int) -> ContainerWorkload:
    """Nothing but writers with transactions."""
    workload = ContainerWorkload(seed)
    workload.sole = []
    workload.streams = [SharedStream(number, workload.random, 1) for number in range(2)]
    return workload


@bug(
    "log-truncated-too-far",
    ContainerWorkload,
    checker="checks/undamaged.py",
    words="a recovery.* reports DataLossError",
)
def _log_truncated_too_far(patch: pytest.MonkeyPatch) -> None:
    """The container truncates its log past appends that are not in Tier 2.

    Breaks: An acknowledged event is never lost.
    """
    truncate = Checkpointer._truncate_log

    async def further(self: Checkpointer) -> None:
        self._keep_from = min(self._keep_from + 1, self._log.next_sequence)
        await truncate(self)
        if self._log.log_start < self._committer.last_frame.sequence:  # type: ignore[union-attr]
            await self._log.truncate(self._log.log_start + 1)

    patch.setattr(Checkpointer, "_truncate_log", further)


@bug(
    "writer-answered-without-barrier",
    ContainerWorkload,
    checker="workloads/streams.py",
    words="was acknowledged, the container knows",
)
def _writer_answered_without_barrier(patch: pytest.MonkeyPatch) -> None:
    """A writer that reconnects learns that none of its events are stored.

    Breaks: a writer that reconnects neither loses nor repeats events.
    """

    async def writer_state(self: Container, segment: str, writer_id: bytes) -> int:
        return 0

    patch.setattr(Container, "writer_state", writer_state)


@bug(
    "merged-sources-forgotten-at-recovery",
    _merging,
    checker="workloads/streams.py",
    words="was merged or is there, and the container knows of neither",
)
def _merged_sources_forgotten_at_recovery(patch: pytest.MonkeyPatch) -> None:
    """A recovery forgets which source segments were merged into their targets.

    Breaks: a merge that is asked for again gets the same answer.
    """
    reset = ContainerState.reset_staged

    def forgetful(self: ContainerState) -> None:
        self.merged.clear()
        reset(self)

    patch.setattr(ContainerState, "reset_staged", forgetful)


@bug(
    "appends-before-checkpoint-lost",
    ContainerWorkload,
    checker="checks/undamaged.py",
    words="a recovery.* reports DataLossError",
)
def _appends_before_checkpoint_lost(patch: pytest.MonkeyPatch) -> None:
    """A recovery skips appends before the checkpoint that are not in Tier 2.

    Breaks: An acknowledged event is never lost.
    """
    patch.setattr(Recovery, "_early_operation", lambda self, operation, places: None)


@bug(
    "shared-object-deleted-with-first-user",
    _sharing,
    checker="checks/tidy.py",
    words="needs object .*, which is deleted",
)
def _shared_object_deleted_with_first_user(patch: pytest.MonkeyPatch) -> None:
    """An object that holds bytes of several segments is deleted with the first of them.

    Breaks: an object stays until no segment needs it.
    """
    add = ContainerState._add_chunks

    def one_after_the_other(self: ContainerState, operation: ops.AddChunks) -> None:
        """Takes the objects of an operation for objects of one segment each."""
        for ref in operation.refs:
            add(self, ops.AddChunks([ref]))
        self.pending_deletes.update(dict.fromkeys(operation.orphans))

    patch.setattr(ContainerState, "_add_chunks", one_after_the_other)


@bug(
    "damaged-index-stops-its-container",
    ContainerWorkload,
    checker="checks/damaged_index.py",
    words="a damaged index of .* stops the container",
)
def _damaged_index_stops_its_container(patch: pytest.MonkeyPatch) -> None:
    """A flush that meets a damaged page of an attribute index ends the storage writer.

    Breaks: a damaged attribute index refuses what needs it, and all other segments go on.
    """

    async def flush_segment(self: AttributeWriter, segment: Segment) -> None:
        flush = await self._attributes.build_update(segment)
        if flush is not None:
            await self._ports.commit(flush.operation)
            segment.dirty.settle_items(flush.items)
        self._queue.attributes_flushed(segment)

    patch.setattr(AttributeWriter, "_flush_segment", flush_segment)


@bug(
    "damaged-index-taken-for-empty",
    ContainerWorkload,
    checker="checks/damaged_index.py",
    words="has other attributes than before .* was damaged",
)
def _damaged_index_taken_for_empty(patch: pytest.MonkeyPatch) -> None:
    """A lookup in a damaged attribute index finds nothing.

    Breaks: damage is never served.
    """
    iterate_once, look_up = AttributeStore._iterate_once, AttributeStore._look_up

    async def found(self: AttributeStore, segment: Segment, wanted: list[bytes]) -> dict[bytes, int]:
        try:
            return await look_up(self, segment, wanted)
        except CorruptionError:
            return {}

    async def listed(
        self: AttributeStore, segment: Segment, from_id: bytes, to_id: bytes, limit: int
    ) -> tuple[list[tuple[bytes, int]], bool, bytes]:
        try:
            return await iterate_once(self, segment, from_id, to_id, limit)
        except CorruptionError:
            return [], True, to_id

    patch.setattr(AttributeStore, "_look_up", found)
    patch.setattr(AttributeStore, "_iterate_once", listed)


# -- memory of what Tier 2 lacks


@bug(
    "records-of-a-deleted-segment-stay-counted",
    ContainerWorkload,
    checker="checks/memory.py",
    words="bytes of attributes are counted, there are",
)
def _records_of_a_deleted_segment_stay_counted(patch: pytest.MonkeyPatch) -> None:
    """A segment that is deleted or merged leaves its dirty attributes in the room of its worker.

    Breaks: operations wait for room only while Tier 2 lacks what fills it.
    """

    def stay(self: DirtyAttributes) -> None:
        self._counted = False

    def remove(self: ContainerState, segment: Segment) -> None:
        with pytest.MonkeyPatch.context() as once:
            once.setattr(DirtyAttributes, "leave_room", stay)
            whole(self, segment)

    whole = ContainerState._remove
    patch.setattr(ContainerState, "_remove", remove)


@bug(
    "nothing-wakes-who-waits-for-records",
    ContainerWorkload,
    checker="workloads/container.py",
    words="no progress though nothing fails any more",
)
def _nothing_wakes_who_waits_for_records(patch: pytest.MonkeyPatch) -> None:
    """A flush makes room for records, and the operations that wait for it are not woken.

    Breaks: an operation that waits for room goes on once there is some.
    """
    patch.setattr(UntieredRoom, "_wake", lambda _: None)


@bug(
    "frame-buffer-reused-too-early",
    PressureWorkload,
    checker="workloads/container.py",
    words="differ from those that were written",
)
def _frame_buffer_reused_too_early(patch: pytest.MonkeyPatch) -> None:
    """The buffer of a durable frame is reused although an append that ends in a later frame still reads it.

    Breaks: an acknowledged event is never changed.
    """

    def recycle(self: OperationProcessor, frame: Frame) -> None:
        frame.waiting = 0
        whole(self, frame)

    whole = OperationProcessor._recycle
    patch.setattr(OperationProcessor, "_recycle", recycle)
