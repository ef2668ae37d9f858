"""A recovery gathers attributes of appends and ends with what the operations left one by one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.segmentstore.api import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata import operation_log

from ..conftest import World

REPLACE = AttributeUpdateType.REPLACE
NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(4)]


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def one_by_one(
    self: operation_log.Assembler, frame_sequence: int, payload: memoryview, place: str, **_: object
) -> Iterator[operation_log.Placed]:
    """Do what `feed_runs` does, without runs: each append is applied alone, and nothing is gathered."""
    return self.feed(frame_sequence, payload, place)


async def attributes_of(container: Container) -> dict[str, Any]:
    """All values, and which ones the index lacks, with the numbers of their updates."""
    found: dict[str, Any] = {}
    for name, segment in container.state.by_name.items():
        lacking = segment.dirty.oldest(10**9)
        sequences = [sequence for _, sequence in lacking.items]
        assert sequences == sorted(sequences), "in the order of their updates"
        values = await container.get_attributes(name, [key_of(key) for key in range(60)])
        found[name] = (values, segment.core, sorted(lacking.items), lacking.flushed_through)
    return found


async def change(container: Container, rng: random.Random, value: int) -> None:
    """Many changes at once, so that frames hold several kinds."""
    work: list[Coroutine[Any, Any, Any]] = []
    for _ in range(rng.randrange(1, 30)):
        name = rng.choice(NAMES)
        keys = rng.sample(range(60), rng.randrange(1, 12))
        updates = [AttributeUpdate(key_of(key), REPLACE, value) for key in keys]
        if rng.random() < 0.8:
            updates.append(AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1))
            work.append(container.append(name, [b"x" * rng.randrange(1, 50)], updates))
        else:
            work.append(container.update_attributes(name, updates))
    await asyncio.gather(*work)


async def flush_some(container: Container, name: str) -> None:
    """Move some of the attributes of a segment to its index."""
    segment, store = container.state.by_name[name], container.storage.attributes
    flushed = await store.build_update(segment)
    if flushed is not None:
        await container.core.commit_control(flushed.operation)
        store.flushed(segment, flushed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gathered_max", [0, 30, 100_000])
async def test_a_recovery_ends_with_the_same_attributes(
    world: World,
    reopen: Callable[[], Awaitable[Container]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    gathered_max: int,
) -> None:
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 1_000_000)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_AGED_THRESHOLD", 1_000_000)
    monkeypatch.setattr(limits, "REPLAYED_ATTRIBUTES_MAX", gathered_max)
    monkeypatch.setattr(limits, "REPLAYED_BYTES_PER_COUNT", 1)
    rng = random.Random(seed)
    container = await world.open()
    for name in NAMES:
        await container.create_segment(name)
    for value in range(40):
        await change(container, rng, value)
        name, what = rng.choice(NAMES), rng.random()
        if what < 0.2:
            monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_BATCH_MAX", rng.choice([10, 1000]))
            await flush_some(container, name)
        elif what < 0.3:
            await container.delete(name)
            await container.create_segment(name)
        elif what < 0.4:
            source = "scope/stream/9.#epoch.0"
            await container.create_segment(source)
            await container.append(source, [b"merged"], [AttributeUpdate(key_of(7), REPLACE, value)])
            await container.seal(source)
            await container.merge(name, source, [AttributeUpdate(key_of(3), REPLACE, value)])
        elif what < 0.5:
            await container.background.checkpointer.run_if_due(force=True)
        if value % 10 == 9:
            with monkeypatch.context() as patch:
                patch.setattr(operation_log.Assembler, "feed_runs", one_by_one)
                one_by_one_left = await attributes_of(await reopen())
            container = await reopen()
            assert await attributes_of(container) == one_by_one_left
