"""The checkers find what they are for: each test plants a bug and expects a violation within some seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.disk import AttachedDisk, SimFile
from sim.violations import Violation
from sim.workloads.container import ContainerWorkload
from sim.workloads.log import LogWorkload
from sim.workloads.segment_model import SoleClient
from tailrace.common import limits
from tailrace.common.errors import DataError
from tailrace.log import frames
from tailrace.log.file import FileLog
from tailrace.log.frames import Verdict
from tailrace.segmentstore import operations as ops
from tailrace.segmentstore import storagewriter
from tailrace.segmentstore.checkpointer import Checkpointer
from tailrace.segmentstore.container import Container
from tailrace.segmentstore.recovery import Recovery
from tailrace.segmentstore.state import ContainerState

SEEDS_MAX = 300


def expect_violation(workload: Callable[[int], Any], seeds: int = SEEDS_MAX) -> None:
    """Run seeds until one breaks a promise."""
    for seed in range(seeds):
        try:
            workload(seed).run()
        except (Violation, DataError):
            return
    pytest.fail(f"{seeds} seeds did not find the planted bug")


def test_acknowledging_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sync(self: SimFile) -> None:
        """Returns at once, nothing is on the platter."""

    monkeypatch.setattr(SimFile, "sync", sync)
    expect_violation(LogWorkload)


def test_forgetting_to_sync_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sync_directory(self: AttachedDisk, directory: str) -> None:
        """Returns at once, entries are not on the platter."""

    monkeypatch.setattr(AttachedDisk, "sync_directory", sync_directory)
    expect_violation(LogWorkload)


def test_trusting_the_page_cache_after_a_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rewrite(self: FileLog, *_: object) -> None:
        """What was found is not written again."""

    monkeypatch.setattr(FileLog, "_rewrite", rewrite)

    def failing(seed: int) -> LogWorkload:
        workload = LogWorkload(seed)
        workload.world.disk.sync_error_chance = 0.02
        workload.power_cuts = True
        return workload

    expect_violation(failing)


def test_taking_damage_for_a_torn_write(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = frames.judge_frame

    def lenient(header: frames.FrameHeader, image: memoryview) -> Verdict:
        verdict = judge(header, image)
        return verdict if verdict is frames.COMPLETE else frames.TORN

    monkeypatch.setattr(frames, "judge_frame", lenient)
    expect_violation(LogWorkload)


def test_serving_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "judge_frame", lambda header, image: frames.COMPLETE)
    expect_violation(LogWorkload)


def test_truncating_the_log_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    truncate = Checkpointer._truncate_log

    async def further(self: Checkpointer) -> None:
        self._keep_from = min(self._keep_from + 1, self._log.next_sequence)
        await truncate(self)
        if self._log.log_start < self._committer.last_frame.sequence:  # type: ignore[union-attr]
            await self._log.truncate(self._log.log_start + 1)

    monkeypatch.setattr(Checkpointer, "_truncate_log", further)
    expect_violation(ContainerWorkload)


def test_answering_a_writer_without_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    async def writer_state(self: Container, segment: str, writer_id: bytes) -> int:
        return 0

    monkeypatch.setattr(Container, "writer_state", writer_state)
    expect_violation(ContainerWorkload)


def test_forgetting_merged_sources_at_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    reset = ContainerState.reset_staged

    def forgetful(self: ContainerState) -> None:
        self.merged.clear()
        reset(self)

    monkeypatch.setattr(ContainerState, "reset_staged", forgetful)
    expect_violation(ContainerWorkload)


def test_losing_the_appends_before_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_early_operation", lambda self, operation, places: None)
    expect_violation(ContainerWorkload)


def test_deleting_an_object_whose_first_user_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    add = ContainerState._add_chunks

    def one_after_the_other(self: ContainerState, operation: ops.AddChunks) -> None:
        """Takes the objects of an operation for objects of one segment each."""
        for ref in operation.refs:
            add(self, ops.AddChunks([ref]))
        self.pending_deletes.update(dict.fromkeys(operation.orphans))

    def sharing(seed: int) -> ContainerWorkload:
        workload = ContainerWorkload(seed)
        workload.sole = [SoleClient(number, workload.random) for number in range(3)]
        workload.knobs |= {
            (limits, "FLUSH_INTERVAL_S"): 0.05,
            (limits, "FLUSH_TICK_S"): 0.02,
            (storagewriter, "_SHARED_MAX_BYTES"): 1_000_000,
        }
        return workload

    monkeypatch.setattr(ContainerState, "_add_chunks", one_after_the_other)
    expect_violation(sharing)
