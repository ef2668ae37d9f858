"""A container whose log is in an object store."""

from __future__ import annotations

import pytest

from tailrace.common import limits
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.object import ObjectLog
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts

from ..conftest import Objects, eventually

NAME = "scope/stream/0.#epoch.0"


async def opened(objects: Objects, epoch: int) -> tuple[Container, ObjectLog]:
    log = ObjectLog(objects, 7)
    cache = CacheManager(BlockCache(32 << 20))
    ports = ContainerPorts(
        log=log, store=objects, cache=cache, clock=SystemClock(), entropy=SystemEntropy(), cluster_id=b"c" * 16
    )
    container = Container(7, epoch, ports)
    await container.start(b"nonce-of-16-byte")
    return container, log


async def test_many_small_frames_lead_to_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening costs a request for each frame, so their number is bounded, whatever their bytes are."""
    monkeypatch.setattr(limits, "LOG_OBJECT_CHECKPOINT_FRAMES", 50)
    monkeypatch.setattr(limits, "FLUSH_INTERVAL_S", 0.01)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    objects = Objects()
    container, log = await opened(objects, 1)
    await container.create_segment(NAME)
    for number in range(300):
        await container.append(NAME, [b"%03d" % number])
    await eventually(lambda: log.next_sequence - log.log_start < 150)
    await container.close()
    container, log = await opened(objects, 2)
    assert await container.read_exact(NAME, 0, 900) == b"".join(b"%03d" % number for number in range(300))
    await container.close()
    await objects.close()


async def test_small_frames_go_long_before_a_flush_is_due_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that Tier 2 does not hold keep their frames: they are flushed when the frames become too many."""
    monkeypatch.setattr(limits, "LOG_OBJECT_CHECKPOINT_FRAMES_MIN", 50)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    objects = Objects()
    container, log = await opened(objects, 1)
    await container.create_segment(NAME)
    for number in range(300):
        await container.append(NAME, [b"%03d" % number])
    await eventually(lambda: log.next_sequence - log.log_start < 100)
    flushes = container.status().details["flushes"]
    assert 1 <= flushes <= 6
    await container.close()
    container, log = await opened(objects, 2)
    assert await container.read_exact(NAME, 0, 900) == b"".join(b"%03d" % number for number in range(300))
    await container.close()
    await objects.close()


async def test_many_segments_are_flushed_for_many_frames_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets a chunk, which costs a request later: so it should take the place of several frames."""
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    objects = Objects()
    container, log = await opened(objects, 1)
    names = [f"scope/stream/{number}.#epoch.0" for number in range(20)]
    for name in names:
        await container.create_segment(name)
    monkeypatch.setattr(limits, "LOG_OBJECT_CHECKPOINT_FRAMES_MIN", 10)  # now: one checkpoint follows, of all of them
    await eventually(lambda: log.next_sequence - container.background.checkpointer._frames <= 2)
    begin = log.next_sequence
    for name in names:
        await container.append(name, [b"event"])
    while log.next_sequence < begin + 60:
        assert not container.background.checkpointer.wants_flush()
        await container.append(names[0], [b"event"])
    assert container.status().details["flushes"] == 0
    while log.next_sequence < begin + 100:
        await container.append(names[0], [b"event"])
    await eventually(lambda: container.status().details["flushes"])
    await eventually(lambda: log.log_start > begin)
    await container.close()
    await objects.close()


@pytest.mark.parametrize(("worth", "frames"), [(0, 256), (256, 256), (1000, 1000), (1 << 30, 4096)])
async def test_a_dear_checkpoint_is_due_later(worth: int, frames: int) -> None:
    assert ObjectLog(Objects(), 7).frames_per_checkpoint(worth) == frames


async def test_a_container_that_dies_soon_after_each_opening_can_be_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A START frame has room for so many epochs. Neither the log's length nor a flush's delay would ever shorten it."""
    monkeypatch.setattr(limits, "LOG_START_RECORD_MAX_BYTES", 500)  # 20 epochs
    monkeypatch.setattr(limits, "LOG_EPOCHS_PER_CHECKPOINT", 8)
    objects = Objects()
    for epoch in range(1, 41):
        container, log = await opened(objects, epoch)
        if epoch == 1:
            await container.create_segment(NAME)
        await container.append(NAME, [b"%02d" % epoch])
        if log.epochs_at_opening >= 8:
            await eventually(lambda log=log: log.log_start >= log.next_sequence - 8)  # type: ignore[misc]
        await container.close()
    container, log = await opened(objects, 41)
    assert log.epochs_at_opening < 10
    assert await container.read_exact(NAME, 0, 80) == b"".join(b"%02d" % epoch for epoch in range(1, 41))
    await container.close()
    await objects.close()
