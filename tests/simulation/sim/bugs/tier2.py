"""Planted bugs of Tier 2: the orphan sweep, small-chunk compaction, reclamation, references through merges."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sim.bugs.registry import bug
from sim.workloads.tier2 import SlowClient, Tier2Workload
from tailrace.common import limits
from tailrace.segmentstore.background import storage_writer
from tailrace.segmentstore.background.orphan_sweep import OrphanSweep
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.tier2.chunk_objects import writer_of_key


def _slow_store(seed: int) -> Tier2Workload:
    """Compactions that take long, of segments that are truncated, merged and deleted meanwhile."""
    workload = Tier2Workload(seed)
    workload.sole = [SlowClient(number, workload.random) for number in range(4)]
    workload.streams = []
    workload.zombie_chance = workload.store_failure_chance = workload.store_loss_chance = 0.0
    workload.work = 60
    workload.idle_max_s = 0.1
    workload.knobs |= {
        (limits, "FLUSH_INTERVAL_S"): 0.05,
        (limits, "FLUSH_TICK_S"): 0.02,
        (limits, "COMPACT_TICK_S"): 0.02,
        (limits, "COMPACT_LOOK_SEGMENTS"): 500,
        (limits, "COMPACT_GROWTH_MIN"): 1,
        (limits, "COMPACT_SMALL_MAX_BYTES"): limits.MIB,
        (limits, "COMPACT_FLOOR_BYTES_PER_S"): limits.MIB,
    }
    workload.world.store.slow_chance = 0.3
    workload.world.store.slow_max_s = 0.4
    return workload


def _idle_zombies(seed: int) -> Tier2Workload:
    """Owners without requests, which therefore never learn of their successors."""
    workload = Tier2Workload(seed)
    workload.zombie_chance = 1.0
    workload.asked_chance = 0.0
    workload.idle_max_s = 60.0
    workload.store_failure_chance = workload.store_loss_chance = 0.0
    workload.knobs |= {
        (limits, "DELETE_DELAY_S"): 10.0,
        (limits, "SNAPSHOT_FIRST_S"): 300.0,
        (limits, "SWEEP_FIRST_AFTER_S"): 0.1,
        (limits, "SWEEP_INTERVAL_S"): 0.5,
        (limits, "FLUSH_INTERVAL_S"): 0.05,
    }
    return workload


@bug(
    "zombie-deletes-chunks", _idle_zombies, checker="checks/undamaged.py", words="a read of .* reports CorruptionError"
)
def _zombie_deletes_chunks(patch: pytest.MonkeyPatch) -> None:
    """A sweep deletes objects of any epoch that it does not know, without a barrier in its log.

    Breaks: an owner that was replaced deletes nothing that its successor needs.
    """

    def of_another_owner(self: OrphanSweep, key: str) -> bool:
        writer = writer_of_key(key)
        return writer is not None and writer[1] != self._tier2.epoch

    async def delete(self: OrphanSweep, keys: Sequence[str], listed_after: int) -> None:
        await self._tier2.delete([key for key in keys if self._is_orphan(key)])

    patch.setattr(OrphanSweep, "_is_of_earlier_owner", of_another_owner)
    patch.setattr(OrphanSweep, "_delete", delete)


@bug(
    "sweep-of-later-references",
    Tier2Workload,
    checker="workloads/container.py",
    words="needs object .*, which is deleted or will be",
)
def _sweep_of_later_references(patch: pytest.MonkeyPatch) -> None:
    """A sweep deletes objects that were unreferenced when it listed them, although references were committed since.

    Breaks: a referenced object is never deleted.
    """

    def up_to_own_epoch(self: OrphanSweep, key: str) -> bool:
        writer = writer_of_key(key)
        return writer is not None and writer[1] <= self._tier2.epoch

    async def delete(self: OrphanSweep, keys: Sequence[str], listed_after: int) -> None:
        await self._commit(ops.SweepBarrier(self._tier2.epoch, listed_after))
        await self._tier2.delete(keys)

    patch.setattr(OrphanSweep, "_is_of_earlier_owner", up_to_own_epoch)
    patch.setattr(OrphanSweep, "_delete", delete)


@bug(
    "compaction-without-comparison",
    _slow_store,
    checker="workloads/container.py",
    words="(stopped without a fault|nothing fails any more): .*SWAP_CHUNKS",
)
def _compaction_without_comparison(patch: pytest.MonkeyPatch) -> None:
    """A compacted chunk replaces whatever lies in its range at that time.

    Breaks: compaction changes no byte that readers get.
    """

    def swap(self: ContainerState, operation: ops.SwapChunks) -> None:
        segment_id, shift = self.resolve(operation.segment_id)
        segment = self.segments.get(segment_id)
        for ref in operation.new:
            self._use(ref.object_key)
        if segment is None:
            self._release(list(operation.new))
            return
        (new,) = operation.new
        moved = new.shifted(shift)
        kept = [ref for ref in segment.chunks if ref.end <= moved.segment_offset or ref.segment_offset >= moved.end]
        segment.chunks.__init__([*kept, moved])  # type: ignore[misc]
        self._release(list(operation.old))

    patch.setattr(ContainerState, "_swap_chunks", swap)


@bug(
    "compaction-after-truncation",
    _slow_store,
    checker="workloads/container.py",
    words="(stopped without a fault|nothing fails any more): .*SWAP_CHUNKS",
)
def _compaction_after_truncation(patch: pytest.MonkeyPatch) -> None:
    """A compaction is swapped in when its last chunk is still there, though a truncation released others.

    Breaks: a released object is never referenced again.
    """

    def swap(self: ContainerState, operation: ops.SwapChunks) -> None:
        for ref in operation.new:
            self._use(ref.object_key)
        segment = self.segments.get(operation.segment_id)
        if segment is None or not segment.chunks.holds(operation.old[-1:]):
            self._release(list(operation.new))
            return
        kept = [ref for ref in segment.chunks if ref not in operation.old]
        segment.chunks.__init__([*kept, *operation.new])  # type: ignore[misc]
        self._release(list(operation.old))

    patch.setattr(ContainerState, "_swap_chunks", swap)


def _shared_objects(seed: int) -> Tier2Workload:
    """Many segments share objects, which are rewritten slowly while the segments are truncated, merged and deleted."""
    workload = _slow_store(seed)
    clients = [SlowClient(number, workload.random) for number in range(12)]
    for client in clients:
        client.append_max_bytes, client.pause_max_s = 3_000, 0.5
    workload.sole = [*clients]
    workload.world.store.slow_chance, workload.world.store.slow_max_s = 0.7, 1.0
    workload.knobs |= {
        (limits, "FLUSH_INTERVAL_S"): 0.5,
        (limits, "FLUSH_THRESHOLD_BYTES"): 100_000,
        (storage_writer, "_SHARED_MAX_BYTES"): 100_000,
        (limits, "DELETE_DELAY_S"): 10.0,
        (limits, "COMPACT_TICK_S"): 1.0,
        (limits, "RECLAIM_FIRST_AFTER_S"): 0.1,
        (limits, "RECLAIM_TICK_S"): 0.02,
        (limits, "RECLAIM_SLACK_BYTES"): 0,
        (limits, "RECLAIM_DEAD_MIN_BYTES"): 1,
        (limits, "RECLAIM_MOVES_MAX"): 1000,
        (limits, "RECLAIM_BYTES_PER_S"): limits.MIB,
        (limits, "SNAPSHOT_FIRST_S"): 1000.0,  # the rule is broken before anything is deleted
    }
    return workload


@bug(
    "shared-object-released-between-moves",
    _shared_objects,
    checker="workloads/container.py",
    words="needs object .*, which is deleted or will be",
)
def _shared_object_released_between_moves(patch: pytest.MonkeyPatch) -> None:
    """The moves to a shared object are counted one by one, so one that does not apply lets go of the object.

    Breaks: a referenced object is never deleted.
    """

    def move_chunks(self: ContainerState, operation: ops.MoveChunks) -> None:
        for segment_id, old, new in operation.moves:
            self._use(new.object_key)
            segment = self.segments.get(segment_id)
            self._release([old if segment is not None and segment.chunks.move(old, new) else new])

    patch.setattr(ContainerState, "_move_chunks", move_chunks)


@bug(
    "moved-without-comparison",
    _shared_objects,
    checker="workloads/container.py",
    words="(stopped without a fault|nothing fails any more): .*MOVE_CHUNKS",
)
def _moved_without_comparison(patch: pytest.MonkeyPatch) -> None:
    """A moved chunk is put in wherever it fits, though the reference that it replaces was released meanwhile.

    Breaks: a released object is never referenced again.
    """

    def move_chunks(self: ContainerState, operation: ops.MoveChunks) -> None:
        for move in operation.moves:
            self._use(move.new.object_key)
        for segment_id, old, new in operation.moves:
            segment = self.segments.get(segment_id)
            if segment is None:
                self._release([new])
                continue
            kept = [r for r in segment.chunks if r.end <= new.segment_offset or r.segment_offset >= new.end]
            segment.chunks.__init__([*kept, new])  # type: ignore[misc]
            self._release([old])

    patch.setattr(ContainerState, "_move_chunks", move_chunks)
