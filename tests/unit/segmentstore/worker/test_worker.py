"""The worker: it retries to open a container that lost its log until that succeeds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence

import pytest

from tailrace.common import limits
from tailrace.common.budgets import budgets_for
from tailrace.common.errors import StartError, UnavailableError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.log.port import Buffer, RecoveredFrame
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.obstores import open_object_store

from ..conftest import eventually

NAME = "scope/stream/0.#epoch.0"


class Faults:
    """What goes wrong, and how often still."""

    def __init__(self) -> None:
        self.appends = self.recoveries = self.epochs = 0
        self.locked = False
        self.epoch = 0

    async def next_epoch(self, container_id: int, floor: int) -> int:
        if self.epochs:
            self.epochs -= 1
            raise OSError(errno.ENOSPC, "no space left")
        self.epoch = max(self.epoch, floor) + 1
        return self.epoch


class FaultyLog(MemoryLog):
    """A memory log that is locked while it is open, and fails when the test asks for it."""

    def __init__(self, store: MemoryLogStore, faults: Faults) -> None:
        super().__init__(store)
        self._faults = faults
        self._holds = False

    async def open(self, epoch: int, nonce: bytes) -> None:
        if self._faults.locked:
            raise StartError("the log is in use")
        self._holds = self._faults.locked = True
        await super().open(epoch, nonce)

    async def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        async for frame in super().recover(first_sequence):
            yield frame
        if self._faults.recoveries:
            self._faults.recoveries -= 1
            raise OSError(errno.EIO, "a read failed")

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        if self._faults.appends:
            self._faults.appends -= 1
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(UnavailableError("a sync failed"))
            return failed
        return super().append(payload)

    async def close(self) -> None:
        await super().close()
        if self._holds:
            self._holds = self._faults.locked = False


@pytest.fixture
async def faults() -> Faults:
    return Faults()


@pytest.fixture
async def worker(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """A worker with one container that has a segment of 100 kB in its log."""
    monkeypatch.setattr(limits, "CONTAINER_RESTART_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_RESTART_MAX_S", 0.05)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 0.01)
    monkeypatch.setattr(limits, "TABLE_COMPACTION_INTERVAL_S", 0.02)
    log = MemoryLogStore()
    store = open_object_store("memory://")
    ports = WorkerPorts(
        store, lambda _: FaultyLog(log, faults), faults.next_epoch, SystemClock(), SystemEntropy(), b"c" * 16
    )
    worker = Worker(1, (0,), budgets_for(64 * limits.MIB, 1), ports)
    await worker.start()
    await worker.container_by_id(0).create_segment(NAME)
    await worker.container_by_id(0).append(NAME, [b"x" * 100_000])
    yield worker
    await worker.close()
    await store.close()


@pytest.mark.parametrize("fault", ["appends", "recoveries", "epochs"])
async def test_a_container_is_opened_again_until_it_stays(worker: Worker, faults: Faults, fault: str) -> None:
    before = worker.cache.cache.available_blocks
    faults.appends = 1  # the log is lost
    setattr(faults, fault, getattr(faults, fault) + 3)
    with pytest.raises(UnavailableError):
        await worker.container_by_id(0).append(NAME, [b"lost"])
    await eventually(lambda: worker.containers() and worker.containers()[0].status().state == "running")
    assert (faults.appends, faults.recoveries, faults.epochs) == (0, 0, 0)
    container = worker.container_by_id(0)
    assert await container.read_exact(NAME, 0, 100_000) == b"x" * 100_000
    assert worker.cache.cache.available_blocks == before


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a read failed"), ValueError("an unexpected one")])
async def test_compaction_goes_on_after_a_pass_that_failed(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls = 0

    async def compact_due(self: TableService) -> int:
        nonlocal calls
        calls += 1
        raise error

    monkeypatch.setattr(TableService, "compact_due", compact_due)
    await eventually(lambda: calls >= 3)
