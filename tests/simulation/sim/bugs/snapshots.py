"""Planted bugs of the snapshots in Tier 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from sim.bugs.registry import bug
from sim.workloads.snapshots import SnapshotWorkload
from tailrace.common import limits
from tailrace.segmentstore.background import snapshotter
from tailrace.segmentstore.background.snapshotter import Snapshotter, TailRun
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.fields import ChunkRef


def _sweeping(seed: int) -> SnapshotWorkload:
    """Snapshots early in an owner's life, and sweeps of the next owner before it has taken one."""
    workload = SnapshotWorkload(seed)
    workload.zombie_chance = workload.store_failure_chance = workload.store_loss_chance = 0.0
    workload.idle_max_s = 60.0
    workload.knobs |= {
        (limits, "FLUSH_INTERVAL_S"): 5.0,
        (limits, "SNAPSHOT_FIRST_S"): 15.0,
        (limits, "SNAPSHOT_INTERVAL_S"): 300.0,
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

    def nothing(*_: object) -> list[TailRun]:
        return []

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
    write = Snapshotter._write_tail

    async def unlisted(self: Snapshotter, runs: Sequence[TailRun]) -> list[tuple[int, ChunkRef]]:
        ports = self._ports

        async def commit(operation: ops.ControlOperation) -> None:
            """Commits nothing."""

        self._ports = dataclasses.replace(ports, commit=commit)
        try:
            return await write(self, runs)
        finally:
            self._ports = ports

    patch.setattr(Snapshotter, "_write_tail", unlisted)


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
