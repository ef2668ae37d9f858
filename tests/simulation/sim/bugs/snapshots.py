"""Planted bugs of the snapshots in Tier 2."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sim.bugs.registry import bug
from sim.workloads.snapshots import SnapshotWorkload
from tailrace.common import limits
from tailrace.segmentstore.background import snapshotter
from tailrace.segmentstore.background.snapshot_tail import SnapshotTail
from tailrace.segmentstore.background.snapshotter import Snapshotter
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.state import ContainerState


def _sweeping(seed: int) -> SnapshotWorkload:
    """Snapshots early in an owner's life, and sweeps of the next owner before it has taken one."""
    workload = SnapshotWorkload(seed)
    workload.zombie_chance = workload.store_failure_chance = workload.store_loss_chance = 0.0
    workload.idle_max_s = 60.0
    workload.knobs |= {
        (limits, "FLUSH_INTERVAL_S"): 5.0,
        (limits, "SNAPSHOT_FIRST_S"): 15.0,
        (limits, "SNAPSHOT_INTERVAL_S"): 300.0,
        (limits, "SNAPSHOT_COPY_MAX_BYTES"): limits.MIB,
        (limits, "SWEEP_FIRST_AFTER_S"): 0.1,
        (limits, "SWEEP_INTERVAL_S"): 0.5,
    }
    return workload


@bug(
    "snapshot-needs-deleted-objects",
    SnapshotWorkload,
    checker="workloads/snapshots.py",
    words="the newest snapshot, .*, needs .*, which was deleted",
)
def _snapshot_needs_deleted_objects(patch: pytest.MonkeyPatch) -> None:
    """Objects are deleted some time after their last reference, although the newest snapshot still needs them.

    Breaks: the newest snapshot can always be restored.
    """

    def may_delete(self: Snapshotter, key: str) -> bool:
        return True

    patch.setattr(Snapshotter, "may_delete", may_delete)


@bug(
    "snapshot-lacks-unflushed-bytes",
    SnapshotWorkload,
    checker="workloads/snapshots.py",
    words="the newest snapshot cannot be restored: .* are not in Tier 2",
)
def _snapshot_lacks_unflushed_bytes(patch: pytest.MonkeyPatch) -> None:
    """A snapshot leaves out bytes that are only in the log.

    Breaks: a restored container has everything up to its snapshot.
    """

    def nothing(state: ContainerState, cache: CacheManager) -> SnapshotTail:
        return SnapshotTail(state, cache, [])

    patch.setattr(snapshotter, "capture", nothing)


@bug(
    "snapshot-bytes-swept-as-orphans",
    _sweeping,
    checker="workloads/snapshots.py",
    words="the newest snapshot, .*, needs .*, which was deleted",
)
def _snapshot_bytes_swept_as_orphans(patch: pytest.MonkeyPatch) -> None:
    """No list of the container names the objects written for a snapshot, so a later owner sweeps them.

    Breaks: the newest snapshot can always be restored.
    """
    write = Snapshotter._write_left

    async def unlisted(self: Snapshotter, tail: SnapshotTail, flush_wait_s: float) -> list[tuple[int, ChunkRef]]:
        ports = self._ports

        async def commit(operation: ops.ControlOperation) -> None:
            """Commits nothing."""

        self._ports = dataclasses.replace(ports, commit=commit)
        try:
            return await write(self, tail, flush_wait_s)
        finally:
            self._ports = ports

    patch.setattr(Snapshotter, "_write_left", unlisted)


@bug(
    "snapshot-of-two-moments",
    SnapshotWorkload,
    checker="workloads/snapshots.py",
    words="the newest snapshot cannot be restored: .* are not in Tier 2",
)
def _snapshot_of_two_moments(patch: pytest.MonkeyPatch) -> None:
    """A snapshot takes its metadata after its bytes, when the container holds more bytes.

    Breaks: the newest snapshot can always be restored.
    """

    async def store(self: Snapshotter, sequence: int, time_ms: int, body: bytes, tail: Any) -> None:
        later = self._ports.state.committed_sequence
        await original(self, later, time_ms, checkpoint.encode(self._ports.state), tail)

    original = Snapshotter._store
    patch.setattr(Snapshotter, "_store", store)


@bug(
    "snapshot-forgets-flushed-bytes",
    SnapshotWorkload,
    checker="workloads/snapshots.py",
    words="the newest snapshot cannot be restored: .* are not in Tier 2",
)
def _snapshot_forgets_flushed_bytes(patch: pytest.MonkeyPatch) -> None:
    """A snapshot neither writes nor names bytes that were flushed while it waited.

    Breaks: a restored container has everything up to its snapshot.
    """
    take_flushed = SnapshotTail.take_flushed

    def forgetful(self: SnapshotTail) -> None:
        take_flushed(self)
        self.flushed.clear()

    patch.setattr(SnapshotTail, "take_flushed", forgetful)


@bug(
    "snapshot-supersedes-what-it-names",
    SnapshotWorkload,
    checker="workloads/snapshots.py",
    words="the newest snapshot, .*, needs .*, which was deleted",
)
def _snapshot_supersedes_what_it_names(patch: pytest.MonkeyPatch) -> None:
    """What was dereferenced while a snapshot waited for the flush counts as superseded by it, although it names that.

    Breaks: the newest snapshot can always be restored.
    """
    take = Snapshotter._take

    async def hasty(self: Snapshotter, *, flush_wait_s: float) -> bool:
        taken = await take(self, flush_wait_s=flush_wait_s)
        if taken:
            self._superseded = dict(self._ports.state.pending_deletes)
        return taken

    patch.setattr(Snapshotter, "_take", hasty)
