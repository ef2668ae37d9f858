"""Small frames of an object log are asked for once: the scan reads them whole, and keeps those that are sound."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.log.frame_cache import FrameCache
from tailrace.log.frame_index import Extent
from tailrace.log.object import ObjectLog
from tailrace.log.object_keys import LogKeys
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import Buffer, ObjectInfo

KEYS = LogKeys(7)
FRAMES = 200


class Store:
    """Objects in memory; counts what is read, and ``listed`` changes the lengths that lists show."""

    def __init__(self) -> None:
        self.inner = open_object_store("memory://")
        self.reads: Counter[str] = Counter()
        self.listed: Callable[[int], int | None] = lambda length: length

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self.inner.put(key, data, if_absent=if_absent)

    async def get(self, key: str) -> bytes:
        self.reads[key] += 1
        return await self.inner.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.reads[key] += 1
        return await self.inner.get_range(key, offset, length)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix):
            length = self.listed(info.length_bytes)
            if length is not None:
                yield ObjectInfo(info.key, length)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.inner.delete(keys)

    async def close(self) -> None:
        await self.inner.close()

    async def flip(self, key: str, position: int) -> None:
        """Change one bit of an object."""
        content = bytearray(await self.inner.get(key))
        content[position] ^= 8
        await self.inner.put(key, [content])


async def opened(store: Store, epoch: int) -> ObjectLog:
    log = ObjectLog(store, KEYS.container)
    await log.open(epoch, bytes(16))
    return log


async def written(store: Store, payload: bytes = b"event %d", count: int = FRAMES) -> None:
    """What an owner with epoch 1 leaves: frames of that payload, with their numbers in place of ``%d``."""
    log = await opened(store, 1)
    await asyncio.gather(*(log.append([payload.replace(b"%d", b"%d" % number)]) for number in range(count)))
    await log.close()
    store.reads.clear()


async def contents(log: ObjectLog) -> list[bytes]:
    return [bytes(frame.payload) async for frame in log.recover()]


def frame_reads(store: Store) -> list[int]:
    """How often each of the frames was read."""
    return [store.reads[KEYS.frame(1, sequence)] for sequence in range(FRAMES)]


EVENTS = [b"event %d" % number for number in range(FRAMES)]


async def test_each_small_frame_is_read_once_however_often_it_is_recovered() -> None:
    store = Store()
    await written(store)
    log = await opened(store, 2)
    assert await contents(log) == EVENTS
    assert await contents(log) == EVENTS
    assert frame_reads(store) == [1] * FRAMES
    await log.close()


async def test_nothing_is_kept_once_the_owner_writes() -> None:
    store = Store()
    await written(store)
    log = await opened(store, 2)
    await log.append([b"more"])
    assert await log.read(3, 0, 100) == b"event 3"
    assert store.reads[KEYS.frame(1, 3)] == 2
    await log.close()


@pytest.mark.parametrize("shown", [None, 0, 100, 511, 513, 5000, 1 << 40])
async def test_lengths_of_a_list_are_only_hints(shown: int | None) -> None:
    """Lists that show nothing, or objects that are shorter or longer than they are."""
    store = Store()
    await written(store)
    store.listed = lambda _: shown
    log = await opened(store, 2)
    assert await contents(log) == EVENTS
    await log.close()


async def test_large_frames_are_read_by_their_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_OBJECT_CACHE_FRAME_MAX_BYTES", 1024)
    store = Store()
    payload = bytes(range(256)) * 8
    await written(store, payload, 3)
    log = await opened(store, 2)
    assert store.reads[KEYS.frame(1, 0)] == 1
    assert await contents(log) == [payload] * 3
    assert store.reads[KEYS.frame(1, 0)] == 2
    await log.close()


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_OBJECT_CACHE_BYTES", 50 * 512)
    store = Store()
    await written(store)
    log = await opened(store, 2)
    assert await contents(log) == EVENTS
    assert sorted(frame_reads(store)) == [1] * 50 + [2] * (FRAMES - 50)
    await log.close()


@pytest.mark.parametrize("blind", [False, True])
async def test_a_damaged_payload_is_an_error_if_it_counts(blind: bool) -> None:
    store = Store()
    await written(store)
    await store.flip(KEYS.frame(1, 150), 130)
    if blind:
        store.listed = lambda _: None
    log = await opened(store, 2)
    with pytest.raises(CorruptionError, match=f"{KEYS.frame(1, 150)}: the payload does not match"):
        await contents(log)
    await log.close()


def test_room_is_given_back() -> None:
    kept, size = FrameCache(), limits.LOG_OBJECT_CACHE_FRAME_MAX_BYTES
    count = limits.LOG_OBJECT_CACHE_BYTES // size
    assert not kept.reserve(size + 1), "no frame is that large"
    for _ in range(2):
        for sequence in range(count):
            assert kept.reserve(size)
            kept.keep(1, sequence, memoryview(b"x"), size)
        assert not kept.reserve(1)
        kept.retain([Extent(1, 3, array("I", [size, size])), Extent(2, 5, array("I", [size]))])
        assert [sequence for sequence in range(count) if kept.get(1, sequence) is not None] == [3, 4]
        for _ in range(count - 2):
            assert kept.reserve(size)
        assert not kept.reserve(1)
        for _ in range(count - 2):
            kept.release(size)
        kept.clear()


def test_a_frame_that_is_read_again_takes_no_more_room() -> None:
    kept, size = FrameCache(), limits.LOG_OBJECT_CACHE_FRAME_MAX_BYTES
    for number in range(3 * limits.LOG_OBJECT_CACHE_BYTES // size):
        assert kept.reserve(size)
        kept.keep(1, 0, memoryview(b"%d" % number), size)
