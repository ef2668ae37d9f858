"""Uploads to Tier 2 over a link that is too slow for all of them at a time (docs/design.md#faults-of-the-log)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from harness.slowlink import SlowLink
from sim import SimWorld
from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, NotFoundError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.log.object import ObjectLog
from tailrace.log.object_requests import frame_window
from tailrace.log.port import DurableLog
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.storage.port import Buffer, ObjectInfo
from tailrace.storage.put_window import PutWindow
from tailrace.storage.request_deadline import request_deadline

CONTAINERS = 4
NAME = "scope/stream/0.#epoch.0"
PIECE = limits.MIB
PIECES = 16
"""Of each container."""


class SlowObjects:
    """Objects in a dictionary, behind a slow link."""

    def __init__(self, link: SlowLink) -> None:
        self.objects: dict[str, bytes] = {}
        self._link = link

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        content = b"".join(data)
        async with request_deadline(key, limits.STORAGE_CALL_DEADLINE_S):
            await self._link.carry(len(content))
        if if_absent and key in self.objects:
            raise AlreadyExistsError(key)
        self.objects[key] = content

    async def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise NotFoundError(key)
        return self.objects[key]

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return (await self.get(key))[offset : offset + length]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(self.objects[key]))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def close(self) -> None:
        """Nothing is open."""


class Containers:
    """Containers of one process."""

    def __init__(self, store: SlowObjects) -> None:
        self._store = store
        self._cache = CacheManager(BlockCache(256 * limits.MIB))
        self._upload_slots = asyncio.Semaphore(limits.UPLOADS_MAX)
        self._upload_window = PutWindow(limits.UPLOADS_MAX)

    async def open(self, container_id: int, log: DurableLog) -> Container:
        ports = ContainerPorts(
            log=log,
            store=self._store,
            cache=self._cache,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            cluster_id=b"cluster-id-of-16",
            upload_slots=self._upload_slots,
            upload_window=self._upload_window,
        )
        container = Container(container_id, 1, ports)
        await container.start(b"nonce-of-16-byte")
        await container.create_segment(NAME)
        return container


def stored_after_s(bytes_per_s: float, *, object_log: bool) -> float:
    """Write to four containers at once over a slow link; return after how many seconds Tier 2 holds everything."""
    with SimWorld(1) as world:

        async def main() -> float:
            loop = asyncio.get_running_loop()
            link = SlowLink(bytes_per_s)
            carrying = loop.create_task(link.run())
            store = SlowObjects(link)
            containers = Containers(store)
            window = frame_window()
            opened = []
            for number in range(CONTAINERS):
                log = ObjectLog(store, number, put_window=window) if object_log else MemoryLog(MemoryLogStore())
                opened.append(await containers.open(number, log))
            began_s = loop.time()
            appends = [each.append(NAME, [bytes(PIECE)]) for each in opened for _ in range(PIECES)]
            async with asyncio.timeout(3600):
                await asyncio.gather(*appends)
                for each in opened:
                    while each.state.by_name[NAME].pending:  # noqa: ASYNC110 - nothing else to wait for
                        await asyncio.sleep(1)
            took_s = loop.time() - began_s
            for each in opened:
                assert sum(chunk.length_bytes for chunk in await each.list_chunks(NAME)) == PIECES * PIECE
                await each.close()
            carrying.cancel()
            return took_s

        return world.run(main())


def test_uploads_that_a_slow_link_cannot_take_together_all_end() -> None:
    """Four of 8 MiB at a time would all miss their deadline, start again, and never end."""
    assert stored_after_s(0.7 * limits.MIB, object_log=False) < 5 * CONTAINERS * PIECES / 0.7


@pytest.mark.parametrize("mib_per_s", [0.55, 0.7, 2.0])
def test_frames_and_uploads_share_a_slow_link(mib_per_s: float) -> None:
    """Every byte goes over it twice."""
    assert stored_after_s(mib_per_s * limits.MIB, object_log=True) < 5 * 2 * CONTAINERS * PIECES / mib_per_s
