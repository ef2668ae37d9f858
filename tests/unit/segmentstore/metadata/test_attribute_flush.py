"""Attributes on their way to the index: bounded batches, what each covers, iterations over what is in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.segmentstore import attributes as index
from tailrace.segmentstore.api import NULL_ATTRIBUTE, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.dirty_attributes import DirtyAttributes

from ..conftest import World, eventually

NAME = "scope/stream/0.#epoch.0"
COUNT = 3_500


def key_of(number: int) -> bytes:
    """Scattered over the key space, never a core attribute."""
    return (number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(16, "big")


async def put_all(container: Container, first: int, count: int, step: int = 500) -> None:
    for start in range(first, first + count, step):
        updates = [
            AttributeUpdate(key_of(number), AttributeUpdateType.REPLACE, number)
            for number in range(start, min(start + step, first + count))
        ]
        await container.update_attributes(NAME, updates)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes each update of an index got."""
    sizes: list[int] = []
    update = index.update

    async def counted(
        state: index.IndexState, changes: list[tuple[bytes, int | None]], pages: index.PageReader, **how: Any
    ) -> index.IndexUpdate:
        sizes.append(len(changes))
        return await update(state, changes, pages, **how)

    monkeypatch.setattr(index, "update", counted)
    return sizes


async def test_a_large_set_is_flushed_in_bounded_batches(
    world: World, batches: list[int], reopen: Callable[[], Awaitable[Container]]
) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    world.objects.outage = True
    await put_all(container, 0, COUNT)
    await eventually(lambda: container.status().reason)
    world.objects.outage = False
    dirty = container.state.by_name[NAME].dirty
    await eventually(lambda: len(dirty) < limits.FLUSH_ATTRIBUTES_THRESHOLD)
    assert max(batches) <= limits.FLUSH_ATTRIBUTES_BATCH_MAX
    expected = sorted((key_of(number), number) for number in range(COUNT))
    for _ in range(2):
        assert await container.iterate_attributes(NAME, bytes(16), b"\xff" * 16, COUNT + 1) == expected
        container = await reopen()


async def test_one_operation_larger_than_a_batch_is_flushed_in_parts(
    world: World, reopen: Callable[[], Awaitable[Container]], monkeypatch: pytest.MonkeyPatch, batches: list[int]
) -> None:
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_BATCH_MAX", 100)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 250)
    container = await world.open()
    await container.create_segment(NAME)
    await put_all(container, 0, 1000, step=1000)
    dirty = container.state.by_name[NAME].dirty
    await eventually(lambda: len(dirty) < 250)
    assert batches == [100] * 8
    # Half of the operation's updates are in the index, and its number is not: an owner must not take them for flushed.
    container = await reopen()
    assert len(container.state.by_name[NAME].dirty) == 1000
    await eventually(lambda: len(container.state.by_name[NAME].dirty) < 250)
    found = await container.get_attributes(NAME, [key_of(number) for number in range(1000)])
    assert found == {key_of(number): number for number in range(1000)}


async def test_an_update_during_a_flush_stays_dirty(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await put_all(container, 0, 10)
    segment = container.state.by_name[NAME]
    flush = await container.storage.attributes.build_update(segment)
    assert flush is not None
    await put_all(container, 5, 1)
    await container.update_attributes(NAME, [AttributeUpdate(key_of(5), AttributeUpdateType.REPLACE, 55)])
    await container.core.commit_control(flush.operation)
    segment.dirty.settle_items(flush.items)
    assert segment.dirty.between(bytes(16), b"\xff" * 16, 10) == [key_of(5)]
    assert (await container.get_attributes(NAME, [key_of(5)]))[key_of(5)] == 55


async def test_an_iteration_joins_memory_and_index_in_bounded_steps(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await put_all(container, 0, COUNT)
    await eventually(lambda: len(container.state.by_name[NAME].dirty) < limits.FLUSH_ATTRIBUTES_THRESHOLD)
    removed = list(range(0, COUNT, 7))
    await container.update_attributes(
        NAME, [AttributeUpdate(key_of(number), AttributeUpdateType.REPLACE, NULL_ATTRIBUTE) for number in removed]
    )
    await put_all(container, COUNT, 300)
    gone = set(removed)
    expected = sorted((key_of(number), number) for number in range(COUNT + 300) if number not in gone)
    for run in (1, 64, 10_000):
        found: list[tuple[bytes, int]] = []
        position = bytes(16)
        while part := await container.iterate_attributes(NAME, position, b"\xff" * 16, run):
            assert len(part) <= run
            found += part
            position = (int.from_bytes(part[-1][0], "big") + 1).to_bytes(16, "big")
        assert found == expected


async def test_eviction_looks_at_a_bounded_number_of_values(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", 100)
    monkeypatch.setattr(limits, "ATTRIBUTES_EVICTION_SCAN_MAX", 50)
    container = await world.open()
    await container.create_segment(NAME)
    await put_all(container, 0, COUNT)
    segment = container.state.by_name[NAME]
    await eventually(lambda: len(segment.dirty) < limits.FLUSH_ATTRIBUTES_THRESHOLD)
    store = container.storage.attributes
    before = len(segment.latest)
    for _ in range(2 * before // 50 + 2):
        store.evict(segment)
    assert before - len(segment.latest) > COUNT // 2
    assert all(key in segment.latest for key in segment.dirty.between(bytes(16), b"\xff" * 16, COUNT))
    assert len(await container.get_attributes(NAME, [key_of(number) for number in range(COUNT)])) == COUNT


@pytest.mark.parametrize("indexed", [False, True])
async def test_writers_that_only_ask_for_their_state_leave_little(
    world: World, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", 50)
    if indexed:
        monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 20)
    container = await world.open()
    await container.create_segment(NAME)
    await put_all(container, 0, 30)
    segment = container.state.by_name[NAME]
    await eventually(lambda: bool(segment.index.root_length) == indexed)
    for number in range(1000, 3000):
        assert await container.writer_state(NAME, key_of(number)) == NULL_ATTRIBUTE
        assert len(segment.latest) < 200
        assert len(segment.committed) < 200
    for number in range(30):
        assert await container.writer_state(NAME, key_of(number)) == number


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 12)),
            st.tuples(st.just("flush"), st.integers(1, 5)),
            st.tuples(st.just("range"), st.integers(0, 12)),
        ),
        max_size=60,
    )
)
def test_dirty_attributes_against_a_plain_model(steps: list[tuple[str, int]]) -> None:
    """What a batch says to be flushed through covers no update that is outside of it and was not flushed before."""
    dirty, model, sequence = DirtyAttributes(), dict[bytes, int](), 0
    replayed = DirtyAttributes()  # sees only operations and their "flushed through", as an owner that recovers does
    for step, number in steps:
        key = bytes([number])
        if step == "put":
            sequence += number % 2  # several updates of one operation
            dirty.put(key, sequence)
            replayed.put(key, sequence)
            model[key] = sequence
        elif step == "flush" and model:
            batch = dirty.oldest(number)
            assert len(batch.items) == min(number, len(model))
            dirty.settle(batch.flushed_through)
            dirty.settle_items(batch.items)
            replayed.settle(batch.flushed_through)
            for item, _ in batch.items:
                del model[item]
        elif step == "range":
            high = bytes([number + 4])
            assert dirty.between(key, high, 3) == sorted(item for item in model if key <= item <= high)[:3]
        assert len(dirty) == len(model)
        assert all(item in dirty for item in model)
        assert all(item in replayed for item in model)
