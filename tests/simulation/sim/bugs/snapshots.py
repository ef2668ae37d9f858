"""Planted bugs of the snapshots in Tier 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sim.bugs.registry import bug
from sim.workloads.snapshots import SnapshotWorkload
from tailrace.common import limits
from tailrace.segmentstore import checkpoint, snapshotter
from tailrace.segmentstore import operations as ops
from tailrace.segmentstore.fields import ChunkRef
from tailrace.segmentstore.snapshotter import Snapshots, TailRun


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

    def may_delete(self: Snapshots, key: str) -> bool:
        return True

    patch.setattr(Snapshots, "may_delete", may_delete)


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
    write = Snapshots._write_tail

    async def unlisted(self: Snapshots, runs: Sequence[TailRun]) -> list[tuple[int, ChunkRef]]:
        host = self._host

        class Silent:
            state = host.state
            epoch = host.epoch
            confirm_owner = host.confirm_owner

            async def commit_control(self, operation: ops.ControlOperation) -> None:
                """Says nothing."""

        self._host = Silent()
        try:
            return await write(self, runs)
        finally:
            self._host = host

    patch.setattr(Snapshots, "_write_tail", unlisted)


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

    async def store(self: Snapshots, sequence: int, body: bytes, tail: Any) -> None:
        later = self._host.state.committed_sequence
        await original(self, later, checkpoint.encode(self._host.state), tail)

    original = Snapshots._store
    patch.setattr(Snapshots, "_store", store)
