"""Appends while Tier 2 is slower than the writers: slowed down to its rate, in order, without long stalls."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import SimWorld
from tailrace.common import limits
from tailrace.kernel import BlockCache
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.segmentstore.api import AppendRequest
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.cache.throttle import Throttle, admitted_bytes_per_s
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.storage.port import Buffer

MIB = limits.MIB
NAME = "scope/stream/0.#epoch.0"
CAPACITY = 64 * MIB


@given(st.integers(0, CAPACITY), st.integers(0, CAPACITY))
def test_the_rate_falls_steadily(less: int, more: int) -> None:
    less, more = sorted((less, more))
    assert admitted_bytes_per_s(less, CAPACITY) >= admitted_bytes_per_s(more, CAPACITY) > 0
    assert (admitted_bytes_per_s(less, CAPACITY) == math.inf) == (less <= CAPACITY * limits.THROTTLE_TARGET)


def simulated(main: Callable[[SimWorld], Coroutine[Any, Any, None]]) -> None:
    with SimWorld(1) as world:
        world.run(main(world))


def appending(length_bytes: int) -> AppendRequest:
    return AppendRequest(NAME, (), length_bytes, (), lambda _: None, lambda _, error: None)


class SlowStore:
    """Tier 2 that takes so many bytes a second, one object after another."""

    def __init__(self, store: object, bytes_per_s: float) -> None:
        self._store = store
        self._bytes_per_s = bytes_per_s
        self._turn = asyncio.Lock()
        self.stored_bytes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        async with self._turn:
            length = sum(map(len, data))
            await asyncio.sleep(length / self._bytes_per_s)
            self.stored_bytes += length


class Writers:
    """Writers that each append as fast as they are acknowledged, and how long each append took."""

    def __init__(self, container: Container, append_bytes: int, segment: str = NAME) -> None:
        self._container = container
        self._segment = segment
        self._data = bytes(append_bytes)
        self.latencies_s: list[float] = []
        self.acknowledged_bytes = 0

    async def write(self, until_s: float, pause_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        while (began_s := loop.time()) < until_s:
            await self._container.append(self._segment, [self._data])
            self.latencies_s.append(loop.time() - began_s)
            self.acknowledged_bytes += len(self._data)
            await asyncio.sleep(pause_s)


async def open_container(world: SimWorld, tier2_bytes_per_s: float) -> tuple[Container, SlowStore]:
    process = world.process("store")
    store = SlowStore(world.store.attach(process), tier2_bytes_per_s)
    log = MemoryLog(MemoryLogStore(1 << 40), delay_s=0.001)
    ports = ContainerPorts(
        log=log,
        store=store,  # type: ignore[arg-type]
        cache=CacheManager(BlockCache(CAPACITY)),
        clock=world.clock(),
        entropy=world.entropy("store"),
        cluster_id=bytes(16),
    )
    container = Container(1, 1, ports)
    await container.start(bytes(16))
    await container.create_segment(NAME)
    return container, store


SECONDS = 15.0
TIER2_BYTES_PER_S = 16 * MIB
WRITERS = 4
APPEND_BYTES = 64 * 1024
STALL_S = 0.1


async def overload(world: SimWorld) -> tuple[Writers, SlowStore]:
    container, store = await open_container(world, TIER2_BYTES_PER_S)
    writers = Writers(container, APPEND_BYTES)
    until_s = asyncio.get_running_loop().time() + SECONDS
    await asyncio.gather(*(writers.write(until_s) for _ in range(WRITERS)))
    await container.close()
    return writers, store


def test_a_tier_2_that_lags_slows_writers_without_long_stalls() -> None:
    async def main(world: SimWorld) -> None:
        writers, store = await overload(world)
        assert max(writers.latencies_s) < STALL_S
        assert store.stored_bytes > 0.9 * SECONDS * TIER2_BYTES_PER_S, "Tier 2 was idle while writers waited"
        # Half of the appends in the long run, when all of them wait for Tier 2, take about the same time.
        settled = sorted(writers.latencies_s[len(writers.latencies_s) // 2 :])
        assert settled[-1] < 10 * settled[len(settled) // 2]

    simulated(main)


def test_without_it_writers_stand_still_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured above is the policy's merit."""
    monkeypatch.setattr(limits, "THROTTLE_TARGET", 1.0)

    async def main(world: SimWorld) -> None:
        writers, _ = await overload(world)
        assert max(writers.latencies_s) > STALL_S

    simulated(main)


def test_writers_that_tier_2_keeps_up_with_are_never_held() -> None:
    async def main(world: SimWorld) -> None:
        container, _ = await open_container(world, TIER2_BYTES_PER_S)
        writers = Writers(container, APPEND_BYTES)
        until_s = asyncio.get_running_loop().time() + SECONDS
        await asyncio.gather(*(writers.write(until_s, pause_s=0.05) for _ in range(WRITERS)))
        assert container.core.cache.throttle.throttled == 0
        assert max(writers.latencies_s) < 0.02
        await container.close()

    simulated(main)


@pytest.mark.parametrize("tier2_bytes_per_s", [4 * MIB, 16 * MIB])
def test_many_small_appends_do_not_starve_a_large_one(tier2_bytes_per_s: int) -> None:
    """At such rates the room in the cache settles below the length of the large append."""

    async def main(world: SimWorld) -> None:
        container, store = await open_container(world, tier2_bytes_per_s)
        throttle = container.core.cache.throttle
        large, small = Writers(container, 8 * MIB - 64), Writers(container, APPEND_BYTES)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SECONDS
        writing = [asyncio.ensure_future(small.write(until_s)) for _ in range(400)]
        writing.append(asyncio.ensure_future(large.write(until_s)))
        await asyncio.wait(writing)
        # Each in turn: one large append and 400 small ones.
        turn_s = (8 * MIB + 400 * APPEND_BYTES) / tier2_bytes_per_s
        assert max(large.latencies_s) < 1.5 * turn_s
        assert max(small.latencies_s) < 1.5 * turn_s
        assert len(large.latencies_s) > SECONDS / turn_s
        assert store.stored_bytes > 0.9 * SECONDS * tier2_bytes_per_s, "Tier 2 was idle while writers waited"
        await container.flush_to_storage()
        throttled, began_s = throttle.throttled, loop.time()
        await container.append(NAME, [bytes(8 * MIB - 64)])
        await asyncio.gather(*(container.append(NAME, [bytes(APPEND_BYTES)]) for _ in range(100)))
        assert (throttle.throttled, throttle.waiting) == (throttled, 0), "Tier 2 has caught up"
        assert loop.time() - began_s < 0.1
        await container.close()

    simulated(main)


@pytest.mark.parametrize("segments", [1, 100])
def test_a_snapshot_while_tier_2_lags_does_not_stop_writers(monkeypatch: pytest.MonkeyPatch, segments: int) -> None:
    """What Tier 2 lacks at its moment fills the cache: it takes 4 s to write."""

    async def slowest_s(world: SimWorld, *, with_snapshot: bool) -> float:
        monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 5.0 if with_snapshot else 1000.0)
        container, store = await open_container(world, TIER2_BYTES_PER_S)
        names = [f"scope/stream/{number}.#epoch.0" for number in range(segments)]
        for name in names[1:]:
            await container.create_segment(name)
        writers = [Writers(container, APPEND_BYTES, name) for name in names]
        until_s = asyncio.get_running_loop().time() + SECONDS
        await asyncio.gather(*(each.write(until_s) for each in writers * max(1, WRITERS // segments)))
        taken, stored_bytes = container.background.snapshotter.sequence >= 0, store.stored_bytes
        await container.close()
        latency_s = max(max(each.latencies_s) for each in writers)
        print(f"slowest append {latency_s:.3f} s, with a snapshot: {taken}, to Tier 2 {stored_bytes >> 20} MiB")
        assert taken == with_snapshot
        assert stored_bytes < sum(each.acknowledged_bytes for each in writers), "bytes went to Tier 2 twice"
        return latency_s

    async def main(world: SimWorld) -> None:
        without_s = await slowest_s(world, with_snapshot=False)
        assert await slowest_s(world, with_snapshot=True) < 1.5 * without_s

    simulated(main)


@pytest.mark.parametrize("internal", ["_system/_tables/streams", "scope/_RGgroup/0.#epoch.0"])
def test_internal_segments_do_not_wait_behind_writers(internal: str) -> None:
    """Controllers' tables and states of groups once waited in the same queue, and stopped for an outage of Tier 2."""

    async def main(world: SimWorld) -> None:
        container, _ = await open_container(world, 1.0)  # as good as away
        await container.create_segment(internal)
        cache, loop = container.core.cache, asyncio.get_running_loop()
        writers = Writers(container, APPEND_BYTES)
        writing = [asyncio.ensure_future(writers.write(math.inf)) for _ in range(100)]
        acknowledged = -1
        while acknowledged != writers.acknowledged_bytes:
            acknowledged = writers.acknowledged_bytes
            await asyncio.sleep(10)
        assert cache.throttle.waiting == len(writing), "the cache is full"
        own = Writers(container, 500, internal)
        began_s = loop.time()
        await own.write(began_s + 10, pause_s=0.01)
        assert max(own.latencies_s) < STALL_S
        assert own.acknowledged_bytes > 400_000
        assert writers.acknowledged_bytes == acknowledged, "writers cannot take that room"
        flood = asyncio.ensure_future(Writers(container, APPEND_BYTES, internal).write(math.inf))
        await asyncio.sleep(10)
        assert cache.throttle.waiting == len(writing) + 1, "its room has an end, too"
        assert cache.cache.used_bytes <= cache.cache.max_bytes
        for task in (*writing, flood):
            task.cancel()
        await asyncio.wait([*writing, flood])
        await container.close()

    simulated(main)


def test_waiting_appends_are_admitted_in_order_and_all_of_them() -> None:
    async def main(world: SimWorld) -> None:
        kept = CAPACITY - MIB
        throttle = Throttle(CAPACITY, lambda: kept, lambda: None)
        order: list[int] = []
        waited_s: list[float] = []
        now = asyncio.get_running_loop().time

        async def append(number: int) -> None:
            began_s = now()
            request = appending(100_000)
            while (turn := throttle.ask(request)) is not None:
                await turn
            order.append(number)
            waited_s.append(now() - began_s)

        appends = [asyncio.ensure_future(append(number)) for number in range(30)]
        await asyncio.sleep(0.1)
        assert 0 < len(order) < 30
        assert throttle.waiting == 30 - len(order)
        appends[len(order) + 3].cancel()
        await asyncio.sleep(0.2)
        kept = 0  # everything went to Tier 2: all go on at once
        await asyncio.sleep(0.02)
        assert len(order) == 29
        assert order == sorted(order)
        assert throttle.ask(appending(1 << 30)) is None
        assert throttle.waiting == 0
        assert throttle.waited_s > 1.0
        assert throttle.waited_s == pytest.approx(sum(waited_s), abs=0.01)
        await asyncio.wait(appends)

    simulated(main)


class Data(bytearray):
    """Bytes of which the test can see whether anything holds them."""


def test_appends_that_are_given_up_keep_no_memory_and_take_no_credit() -> None:
    """Their queue once held them with all their data, for hours without Tier 2, and then let them go before others."""

    async def main(world: SimWorld) -> None:
        container, _ = await open_container(world, TIER2_BYTES_PER_S)
        throttle = Throttle(CAPACITY, lambda: CAPACITY - MIB // 4, lambda: None)  # admits 1 MiB a second
        container.core.cache.throttle = throttle
        seen: list[weakref.ref[Data]] = []

        async def give_up() -> None:
            data = Data(MIB)
            seen.append(weakref.ref(data))
            async with asyncio.timeout(0.001):
                await container.append(NAME, [data])

        await container.append(NAME, [bytes(MIB // 4)])  # uses the credit up
        found = await asyncio.gather(*(give_up() for _ in range(40)), return_exceptions=True)
        assert [type(each) for each in found] == [TimeoutError] * 40
        del found
        await asyncio.sleep(0)
        assert throttle.waiting == 0
        gc.collect()
        assert not any(data() for data in seen)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await container.append(NAME, [bytes(1000)])
        assert loop.time() - began_s < 1.0
        await container.close()

    simulated(main)


def test_appends_without_room_that_are_given_up_leave_their_place() -> None:
    """Those behind one that waits on were once kept until it had room."""

    async def main(world: SimWorld) -> None:
        throttle = Throttle(CAPACITY, lambda: CAPACITY, lambda: None)
        first = throttle.wait_room(appending(100))
        gone: list[weakref.ref[asyncio.Future[None]]] = []
        for _ in range(100):
            room = throttle.wait_room(appending(100))
            gone.append(weakref.ref(room))
            room.cancel()
        del room
        last = throttle.wait_room(appending(100))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert throttle.waiting == 2
        gc.collect()
        assert sum(room() is not None for room in gone) == 0
        await asyncio.wait_for(first, 1)
        await asyncio.wait_for(last, 1)
        assert throttle.waiting == 0

    simulated(main)


@pytest.mark.parametrize("append_bytes", [APPEND_BYTES, MIB])
def test_a_flood_of_internal_appends_leaves_writers_their_share(append_bytes: int) -> None:
    """Beyond their credit they queue like all others; once they could take all that Tier 2 freed."""

    async def main(world: SimWorld) -> None:
        internal = "scope/_RGgroup/0.#epoch.0"
        container, _ = await open_container(world, TIER2_BYTES_PER_S)
        await container.create_segment(internal)
        writers, flood = Writers(container, append_bytes), Writers(container, APPEND_BYTES, internal)
        until_s = asyncio.get_running_loop().time() + SECONDS
        await asyncio.gather(*(each.write(until_s) for each in (*[writers] * WRITERS, *[flood] * WRITERS)))
        print(f"writers {writers.acknowledged_bytes >> 20} MiB, internal {flood.acknowledged_bytes >> 20} MiB")
        fair = append_bytes / (append_bytes + APPEND_BYTES)
        beyond_fair_bytes = (SECONDS + 1) * limits.THROTTLE_INTERNAL_BYTES_PER_S
        total_bytes = writers.acknowledged_bytes + flood.acknowledged_bytes
        assert writers.acknowledged_bytes > 0.8 * fair * (total_bytes - beyond_fair_bytes)
        await container.close()

    simulated(main)


def test_internal_appends_without_room_are_the_first_to_go_on() -> None:
    async def main(world: SimWorld) -> None:
        room = 0
        throttle = Throttle(CAPACITY, lambda: CAPACITY - room, lambda: None)
        order: list[int] = []

        async def append(number: int, *, internal: bool) -> None:
            nonlocal room
            request = appending(100)
            assert not internal or throttle.ask(request, internal=True) is None
            while room < 100:
                await throttle.wait_room(request)
            room -= 100
            order.append(number)

        appends = [asyncio.ensure_future(append(number, internal=number % 3 == 2)) for number in range(9)]
        await asyncio.sleep(0.1)
        for _ in appends:
            room += 100
            await asyncio.sleep(0.02)
        assert order == [2, 5, 8, 0, 1, 3, 4, 6, 7]
        await asyncio.wait(appends)

    simulated(main)


def test_appends_without_room_go_on_in_their_order_and_before_all_others() -> None:
    async def main(world: SimWorld) -> None:
        room = 0
        throttle = Throttle(CAPACITY, lambda: CAPACITY - room, lambda: None)
        order: list[int] = []

        async def append(number: int, length_bytes: int) -> None:
            nonlocal room
            request = appending(length_bytes)
            while True:
                if (turn := throttle.ask(request)) is None:
                    if length_bytes <= room:
                        break
                    turn = throttle.wait_room(request)
                await turn
            room -= length_bytes
            order.append(number)

        lengths = [100, 5000, 20, 300, 4000, *[1] * 20]
        appends = [asyncio.ensure_future(append(number, length)) for number, length in enumerate(lengths)]
        gone = asyncio.ensure_future(append(99, 10_000))
        await asyncio.sleep(1)
        assert throttle.waiting == len(lengths) + 1
        gone.cancel()
        while len(order) < len(lengths):
            before = list(order)
            room += 50
            await asyncio.sleep(0.02)
            assert order[: len(before)] == before
        assert order == sorted(order)
        await asyncio.wait(appends)
        assert throttle.waiting == 0

    simulated(main)
