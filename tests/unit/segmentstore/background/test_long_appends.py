"""An append that is longer than an object may be becomes several objects, of which one is in memory at a time."""

from __future__ import annotations

import asyncio
import random

import pytest

from tailrace.common import limits
from tailrace.common.errors import MemoryDamageError, UnavailableError
from tailrace.segmentstore.container.container import Container
from tailrace.storage.port import Buffer

from ..conftest import World, eventually

NAME = "scope/stream/0.#epoch.0"
OBJECT_BYTES = 1 << 20
DATA = random.Random(1).randbytes(3 * OBJECT_BYTES + 12_345)


@pytest.fixture(autouse=True)
def small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLUSH_OBJECT_MAX_BYTES", OBJECT_BYTES)
    monkeypatch.setattr(limits, "FLUSH_THRESHOLD_BYTES", OBJECT_BYTES)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MIN_S", 0.01)


async def opened(world: World) -> Container:
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"before"])
    return container


async def whole(container: Container) -> bytes:
    """The segment's bytes as the cache or Tier 2 has them."""
    segment = container.state.by_name[NAME]
    found = await container.storage.reader.read_range(
        segment, segment.start_offset, segment.length, container.core.is_live
    )
    return bytes(found)


async def test_it_is_written_in_pieces_and_read_back(world: World) -> None:
    container = await opened(world)
    sizes: list[int] = []
    put = world.objects.put

    async def noted(key: str, data: list[Buffer], *, if_absent: bool = False) -> None:
        sizes.append(sum(map(len, data)))
        await put(key, data, if_absent=if_absent)

    world.objects.put = noted  # type: ignore[method-assign, assignment]
    await container.append(NAME, [DATA])
    await container.append(NAME, [b"behind"])
    await container.flush_to_storage()
    assert len(sizes) >= 4
    assert max(sizes) <= OBJECT_BYTES + OBJECT_BYTES // 10
    segment = container.state.by_name[NAME]
    assert not segment.pending
    assert [ref.length for ref in segment.chunks if ref.length == OBJECT_BYTES] == [OBJECT_BYTES] * 3
    world.cache.drop_all(segment.read_index)
    assert await whole(container) == b"before" + DATA + b"behind"


async def test_a_truncation_meanwhile_leaves_the_rest_to_the_next_pass(world: World) -> None:
    container = await opened(world)
    put, begun, go_on = world.objects.put, asyncio.Event(), asyncio.Event()

    async def held(key: str, data: list[Buffer], *, if_absent: bool = False) -> None:
        if begun.is_set() and not go_on.is_set():
            await go_on.wait()
        begun.set()
        await put(key, data, if_absent=if_absent)

    world.objects.put = held  # type: ignore[method-assign, assignment]
    await container.append(NAME, [DATA])
    await begun.wait()
    cut = 6 + 2 * OBJECT_BYTES + 100
    await container.truncate(NAME, cut)
    go_on.set()
    await container.flush_to_storage()
    segment = container.state.by_name[NAME]
    assert not segment.pending
    world.cache.drop_all(segment.read_index)
    assert await whole(container) == (b"before" + DATA)[cut:]


async def test_pieces_of_an_upload_that_failed_are_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 0.02)
    monkeypatch.setattr(limits, "SNAPSHOT_INTERVAL_S", 0.02)
    container = await opened(world)
    put, puts, failed = world.objects.put, list[str](), set[str]()

    second_piece = f"/{6 + OBJECT_BYTES:016x}-"

    async def failing(key: str, data: list[Buffer], *, if_absent: bool = False) -> None:
        if key.startswith("c"):
            puts.append(key)
            if second_piece in key and not failed:
                failed.update(key for key in puts if f"/{6:016x}-" in key or second_piece in key)
                raise UnavailableError("the second piece of the first attempt")
        await put(key, data, if_absent=if_absent)

    world.objects.put = failing  # type: ignore[method-assign, assignment]
    await container.append(NAME, [DATA])
    segment = container.state.by_name[NAME]
    await eventually(lambda: not segment.pending)
    assert len(failed) == 2, "the piece that was written, and the one that was not"

    # A snapshot may move the chunk of the append before to another object at any time.
    def kept() -> set[str]:
        return {ref.object_key for ref in segment.chunks}

    async def there() -> set[str]:
        return {item.key async for item in world.objects.list("c7")}

    assert not kept() & failed
    for _ in range(6000):
        found = await there()
        if found == kept():
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail(f"not only {kept()} are left: {await there()}")
    assert not found & failed


async def test_damage_in_memory_is_found_before_it_counts(world: World) -> None:
    world.objects.outage = True
    container = await opened(world)
    await container.append(NAME, [DATA])
    segment = container.state.by_name[NAME]
    items = list(segment.pending)
    segment.pending.clear()
    for item in items:
        segment.pending.add(*item._replace(crc=item.crc ^ 1) if item.length > OBJECT_BYTES else item)
    world.objects.outage = False
    cause = await asyncio.wait_for(container.wait_stopped(), 60)
    assert isinstance(cause, MemoryDamageError)
    assert f"segment {NAME} at 6" in str(cause)
    assert all(ref.segment_offset < 6 for ref in segment.chunks)
