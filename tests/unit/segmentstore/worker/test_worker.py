"""The worker: it retries to open a container that lost its log until that succeeds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tailrace.common import limits
from tailrace.common.budgets import budgets_for
from tailrace.common.errors import ContainerStoppedError, DiskFullError, MemoryDamageError, StartError, UnavailableError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.log.port import Buffer, RecoveredFrame
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.worker.backoff import Backoff
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.obstores import open_object_store

from ..conftest import eventually

NAME = "scope/stream/0.#epoch.0"
CONTENT = bytes(range(1, 251)) * 400


class Faults:
    """What goes wrong, and how often still."""

    def __init__(self) -> None:
        self.appends = self.recoveries = self.epochs = 0
        self.locked = False
        self.epoch = 0
        self.log = MemoryLogStore()

        self.full = False

    async def next_epoch(self, container_id: int, floor: int) -> int:
        if self.full:
            raise DiskFullError("epoch file 0.json cannot be written: No space left on device")
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
    log = faults.log
    store = open_object_store("memory://")
    ports = WorkerPorts(
        store, lambda _: FaultyLog(log, faults), faults.next_epoch, SystemClock(), SystemEntropy(), b"c" * 16
    )
    worker = Worker(1, (0,), budgets_for(64 * limits.MIB, 1), ports)
    await worker.start()
    await worker.container_by_id(0).create_segment(NAME)
    await worker.container_by_id(0).append(NAME, [CONTENT])
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
    assert await container.read_exact(NAME, 0, 100_000) == CONTENT
    assert worker.cache.cache.available_blocks == before


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a write failed"), ValueError("an unexpected one")])
async def test_a_container_whose_closing_fails_is_opened_again(
    worker: Worker, faults: Faults, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    log = worker.container_by_id(0).core.log
    close, errors = log.close, [error]

    async def faulty() -> None:
        await close()
        if errors:
            raise errors.pop()

    monkeypatch.setattr(log, "close", faulty)
    before = worker.cache.cache.available_blocks
    faults.appends = 1
    with capture_logs() as logs:
        with pytest.raises(UnavailableError):
            await worker.container_by_id(0).append(NAME, [b"lost"])
        await eventually(lambda: not errors and worker.containers() != [])
    assert await worker.container_by_id(0).read_exact(NAME, 0, 100_000) == CONTENT
    assert worker.cache.cache.available_blocks == before
    (entry,) = (entry for entry in logs if entry["event"] == "container_not_closed")
    assert (entry["container"], entry["reason"]) == (0, repr(error))


async def test_operations_that_a_recovery_cannot_apply_stop_the_container_by_name(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overlap(*_: object) -> bool:
        raise ValueError("read index entry at 0 overlaps")

    with monkeypatch.context() as patch:
        patch.setattr(CacheManager, "insert_untiered", overlap)
        worker.container_by_id(0).core.stop(UnavailableError("stopped by the test"))
        reason = "corruption in log of container 0, frame 2: its operations do not fit: read index entry at 0 overlaps"
        await eventually(lambda: worker.status()[0].reason == reason)
    for _ in range(20):
        await asyncio.sleep(limits.CONTAINER_RESTART_MAX_S)
        assert not worker.containers()
    assert worker.status()[0].state == "stopped"


async def test_a_start_on_a_disk_without_room_for_an_epoch(worker: Worker, faults: Faults) -> None:
    """A known folder: the container is reported as stopped, and opened when there is room. A new one is refused."""
    await worker.close()
    faults.full = True
    ports = WorkerPorts(
        worker._shared.ports.store,
        lambda _: FaultyLog(faults.log, faults),
        faults.next_epoch,
        SystemClock(),
        SystemEntropy(),
        b"c" * 16,
    )
    later = Worker(1, (0,), budgets_for(64 * limits.MIB, 1), ports)
    with pytest.raises(DiskFullError):
        await later.start()
    await later.close()
    later = Worker(1, (0,), budgets_for(64 * limits.MIB, 1), ports)
    await later.start(on_full_disks=True)
    (status,) = later.status()
    assert (status.state, "No space left" in status.reason) == ("stopped", True)
    with pytest.raises(ContainerStoppedError, match="No space left"):
        later.container_by_id(0)
    faults.full = False
    await eventually(later.containers)
    assert later.status()[0].state == "running"
    assert await later.container_by_id(0).read_exact(NAME, 0, len(CONTENT)) == CONTENT
    await later.close()


def flip_cached_bit(container: Container, at: int) -> None:
    """Damage one byte of NAME in the block cache, as failing memory does."""
    entry = container.state.by_name[NAME].read_index.find(at)
    assert entry is not None
    with container.core.cache.pin(entry) as view:
        skip, buffers = at - entry.offset, iter(view.buffers)
        while skip >= len(block := next(buffers)):
            skip -= len(block)
        memory: Any = block.obj
        wanted, place = bytes(block), -1
        while True:  # the memory of blocks that were freed has the same bytes
            place = memory.find(wanted, place + 1)
            memory[place + skip] ^= 1
            if bytes(block) != wanted:
                return
            memory[place + skip] ^= 1


async def stopped_by_damage(worker: Worker) -> Container:
    """Let the storage writer find what is damaged; return the container that stopped."""
    container = worker.container_by_id(0)
    container.core.flush_queue.flush_now()
    await eventually(lambda: container.core.stop_cause is not None)
    assert isinstance(container.core.stop_cause, MemoryDamageError)
    return container


async def replaced(worker: Worker, container: Container) -> None:
    """Wait until a container is open that is not the given one."""
    await eventually(lambda: worker.containers() not in ([], [container]))


async def test_a_container_with_damaged_memory_is_recovered_from_its_log(worker: Worker) -> None:
    for damages in (1, 2):
        offset, _ = await worker.container_by_id(0).append(NAME, [CONTENT])
        with capture_logs() as logs:
            flip_cached_bit(worker.container_by_id(0), offset + 5)
            await replaced(worker, await stopped_by_damage(worker))
        (line,) = [line for line in logs if line["event"] == "container_memory_damaged"]
        assert (line["container"], line["place"]) == (0, f"segment {NAME} at {offset}")
        container = worker.container_by_id(0)
        assert await container.read_exact(NAME, 0, (damages + 1) * len(CONTENT)) == CONTENT * (damages + 1)
        await container.flush_to_storage()
        assert worker.status()[0].untiered_bytes == 0
        assert worker.status()[0].details["memory_damages"] == damages
        assert worker.status()[0].reason == ""


async def test_health_names_the_damage_until_the_container_is_recovered(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "next_s", lambda self: 3600.0)
    flip_cached_bit(worker.container_by_id(0), 5)
    await stopped_by_damage(worker)
    await eventually(lambda: worker.status()[0].state == "stopped")
    assert worker.status()[0].reason == (
        f"corruption in segment {NAME} at 0: {len(CONTENT)} cached bytes differ from those that were written;"
        " the container is recovered from its log"
    )


async def test_damage_that_a_recovery_does_not_heal_stops_the_container(worker: Worker, faults: Faults) -> None:
    """The log has the wrong bytes, too: a memory log has no checksum of its own."""
    container = worker.container_by_id(0)
    flip_cached_bit(container, 5)
    for number, (epoch, payload) in enumerate(faults.log.frames):
        at = payload.find(CONTENT)
        if at >= 0:
            faults.log.frames[number] = epoch, payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
    await replaced(worker, await stopped_by_damage(worker))
    await stopped_by_damage(worker)
    await eventually(lambda: worker.status()[0].state == "stopped")
    for _ in range(20):
        await asyncio.sleep(limits.CONTAINER_RESTART_MAX_S)
        assert not worker.containers()
    status = worker.status()[0]
    assert status.reason.startswith(f"corruption in segment {NAME} at 0: ")
    assert "recovered from its log" not in status.reason
    assert status.details["memory_damages"] == 1


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
