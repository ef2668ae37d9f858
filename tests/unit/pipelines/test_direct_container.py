"""Direct reads of a real container's Tier 2: merges, compaction, truncation and new owners under the read."""

from __future__ import annotations

import array
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tailrace.common import limits
from tailrace.common.errors import (
    CorruptionError,
    NotFoundError,
    SegmentGoneError,
    SegmentTruncatedError,
    UnavailableError,
)
from tailrace.kernel import pack_events
from tailrace.pipelines.direct import DirectEvents, SegmentReferences
from tailrace.segmentstore.container.container import Container
from tailrace.storage.port import ObjectStore

from .conftest import Owned

A, B = "scope/a/0.#epoch.0", "scope/b/0.#epoch.0"
KIB, MIB = 1024, 1024 * 1024


def events_of_any_size(seed: int, count: int, max_bytes: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, rng.randrange(64), rng.randrange(max_bytes)])) for _ in range(count)]


async def write(container: Container, events: list[bytes], segment: str = A) -> None:
    """Append events in blocks, as writers do."""
    rng, position = random.Random(len(events)), 0
    while position < len(events):
        count = rng.randrange(1, 40)
        await container.append(segment, [pack_events(events[position : position + count])])
        position += count


async def read(reader: DirectEvents) -> list[bytes]:
    return [event async for batch in reader.batches() for event in batch.events()]


async def first_batch(reader: DirectEvents) -> int:
    """Read one batch and drop the rest; return the number of its events."""
    batches = reader.batches()
    try:
        return (await anext(batches)).count
    finally:
        await batches.aclose()


@pytest.mark.parametrize("seed", range(5))
async def test_all_events_from_flushed_chunks_and_from_a_snapshots_tail(owned: Owned, seed: int) -> None:
    container = await owned.open()
    await container.create_segment(A)
    sent = [*events_of_any_size(seed, 300, 60 * KIB), random.Random(seed).randbytes(8 * MIB), b""]
    await write(container, sent[:150])
    await container.flush_to_storage()
    await write(container, sent[150:200])
    await container.flush_to_storage()
    await write(container, sent[200:])
    await owned.snapshot()
    found = await owned.references(A)
    assert (found.start_offset, found.length) == (0, sum(8 + len(event) for event in sent))
    assert len(found.chunks) > 2
    assert await read(DirectEvents(owned.tier2, found, 0, found.length)) == sent
    # Ranges that begin and end anywhere between events, read from the references that a partition is given.
    rng = random.Random(seed)
    starts = [0]
    for event in sent:
        starts.append(starts[-1] + 8 + len(event))
    for _ in range(10):
        first, last = sorted(rng.sample(range(len(starts)), 2))
        stop = starts[last] - rng.randrange(8)
        reader = DirectEvents(owned.tier2, found.within(starts[first], stop), starts[first], stop)
        offsets: list[int] = []
        async for batch in reader.batches():
            offsets += array.array("q", batch.offsets)
        assert offsets == starts[first:last]
        assert reader.offset == starts[last]


async def test_transactions_that_were_merged(owned: Owned) -> None:
    container = await owned.open()
    await container.create_segment(A)
    sent: list[bytes] = []
    for number in range(6):
        transaction = f"{A}#transaction.{number:032x}"
        part = events_of_any_size(number, 50, 30 * KIB)
        await container.create_segment(transaction)
        await write(container, part, transaction)
        if number % 2:
            await container.flush_to_storage()
        await write(container, [b"between"])
        await container.seal(transaction)
        await container.merge(A, transaction)
        sent += [b"between", *part]
    await owned.snapshot()
    found = await owned.references(A)
    assert await read(DirectEvents(owned.tier2, found, 0, found.length)) == sent


async def test_what_is_newer_than_the_snapshot_is_left_to_the_store(owned: Owned) -> None:
    container = await owned.open()
    await container.create_segment(A)
    await write(container, [b"one"] * 100)
    await container.append(A, [pack_events([b"cut in two"])[:12]])  # a snapshot may end within what is one event
    await owned.snapshot()
    await container.append(A, [pack_events([b"cut in two"])[12:]])
    await write(container, [b"two"] * 100)
    length = (await container.info(A)).length
    found = await owned.references(A)
    assert found.split(0, length) == ((0, 1112), (1112, length))
    reader = DirectEvents(owned.tier2, found, 0, length)
    assert await read(reader) == [b"one"] * 100
    assert reader.offset == 1100
    assert B not in await owned.tier2.references([A, B])


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects go when a newer snapshot lets them; small chunks are joined at once; reads ask for little ahead."""
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    monkeypatch.setattr(limits, "COMPACT_TICK_S", 0.01)
    monkeypatch.setattr(limits, "DIRECT_READ_AHEAD_BYTES", 128 * KIB)
    monkeypatch.setattr(limits, "DIRECT_READ_BYTES", 64 * KIB)
    monkeypatch.setattr(limits, "DIRECT_READS_MAX", 2)


async def small_chunks(container: Container, count: int = 130) -> list[bytes]:
    """Write a segment of many small chunks."""
    await container.create_segment(A)
    sent: list[bytes] = []
    for number in range(count):
        part = events_of_any_size(number, 5, 3 * KIB)
        sent += part
        await write(container, part)
        await container.background.writer.flush_all(container.core.log.next_sequence - 1)
    return sent


async def is_gone(store: ObjectStore, found: SegmentReferences) -> bool:
    """Whether the objects of all references are deleted."""
    for ref in found.chunks:
        try:
            await store.get_range(ref.object_key, 0, 1)
        except NotFoundError:
            continue
        return False
    return True


async def until_gone(owned: Owned, container: Container, found: SegmentReferences) -> None:
    """Take snapshots and flush, as a container does, until no object of the references is left."""
    for number in range(400):
        await container.create_segment(f"scope/other/{number}.#epoch.0")
        await owned.snapshot()
        await container.flush_to_storage()
        if await is_gone(owned.store, found):
            return
    pytest.fail("objects that nothing references are still there")


@pytest.mark.usefixtures("eager")
async def test_small_chunks_are_compacted_under_the_read(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 0)  # not yet
    container = await owned.open()
    sent = await small_chunks(container)
    await owned.snapshot()
    old = await owned.references(A)
    assert len(old.chunks) == 130
    reader = DirectEvents(owned.tier2, old, 0, old.length)
    got: list[bytes] = []
    async for batch in reader.batches():
        if not got:
            monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 32 * MIB)
            await until_compacted(owned, container, old)
        got += batch.events()
    assert got == sent
    assert reader.rereads == 1


async def until_compacted(owned: Owned, container: Container, old: SegmentReferences) -> None:
    """Take snapshots and flush until few chunks are left, and the objects of the others are deleted."""
    for number in range(400):
        await container.create_segment(f"scope/other/{number}.#epoch.0")
        await container.flush_to_storage()
        await owned.snapshot()
        found = await owned.references(A)
        dropped = tuple(ref for ref in old.chunks if ref not in found.chunks)
        if len(dropped) > 100 and await is_gone(owned.store, replace(old, chunks=dropped)):
            return
    pytest.fail("small chunks are still there")


@pytest.mark.usefixtures("eager")
async def test_a_range_that_is_truncated_under_the_read_is_named(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 0)  # the first batch is to end far from the last chunks
    container = await owned.open()
    sent = await small_chunks(container, 40)
    await owned.snapshot()
    old = await owned.references(A)
    assert len(old.chunks) == 40
    reader = DirectEvents(owned.tier2, old, 0, old.length)
    await first_batch(reader)
    start = reader.offset
    assert 0 < start < old.length
    middle = sum(8 + len(event) for event in sent[: len(sent) - 2])
    await container.truncate(A, middle)
    await until_gone(owned, container, replace(old, chunks=old.chunks[:-5]))
    with pytest.raises(SegmentTruncatedError, match=rf"{A}: .* bytes from offset {start} to {middle} were truncated"):
        await read(DirectEvents(owned.tier2, old, start, old.length))
    new = await owned.references(A)
    with pytest.raises(SegmentTruncatedError, match=f"to {middle} were truncated before"):
        DirectEvents(owned.tier2, new, 0, new.length)
    assert await read(DirectEvents(owned.tier2, new, middle, new.length)) == sent[-2:]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("again", [False, True])
async def test_a_segment_that_is_deleted_under_the_read_is_named(owned: Owned, again: bool) -> None:
    container = await owned.open()
    await small_chunks(container, 40)
    await owned.snapshot()
    old = await owned.references(A)
    await container.delete(A)
    await container.create_segment(B)
    if again:  # another one of the same name: its bytes must not be taken for those of the old one
        await container.create_segment(A)
        await write(container, [b"new"] * 100_000)
    else:
        await container.create_segment(A)
    await until_gone(owned, container, old)
    with pytest.raises(SegmentGoneError, match=rf"segment {A} was dropped before it was read .* to offset 0"):
        await read(DirectEvents(owned.tier2, old, 0, old.length))


async def test_new_owners_change_nothing_of_what_is_read(owned: Owned) -> None:
    container = await owned.open()
    sent = await small_chunks(container, 20)
    await owned.snapshot()
    old = await owned.references(A)
    reader = DirectEvents(owned.tier2, old, 0, old.length)
    got: list[bytes] = []
    async for batch in reader.batches():
        got += batch.events()
        container = await owned.open()
        await write(container, [b"more"])
        await owned.snapshot()
    assert got == sent
    assert (await owned.references(A)).length > old.length


async def damaged(owned: Owned, change: Callable[[bytearray], None]) -> tuple[SegmentReferences, str]:
    container = await owned.open()
    await small_chunks(container, 3)
    await owned.snapshot()
    found = await owned.references(A)
    key = found.chunks[1].object_key
    data = bytearray(await owned.store.get(key))
    change(data)
    await owned.store.delete([key])
    if data:
        await owned.store.put(key, [bytes(data)])
    return found, key


async def test_damage_is_named_and_nothing_of_the_block_is_returned(owned: Owned) -> None:
    def flip(data: bytearray) -> None:
        data[len(data) // 2] ^= 1

    found, key = await damaged(owned, flip)
    position = found.chunks[1].data_offset
    reader = DirectEvents(owned.tier2, found, 0, found.length)
    with pytest.raises(CorruptionError, match=rf"object {key} at {position}: block CRC32C does not match; bytes \d+"):
        await read(reader)
    assert reader.offset <= found.chunks[1].segment_offset


async def test_an_object_that_ends_early_is_named(owned: Owned) -> None:
    def shorten(data: bytearray) -> None:
        del data[len(data) // 2 :]

    found, key = await damaged(owned, shorten)
    with pytest.raises(CorruptionError, match=f"object {key}"):
        await read(DirectEvents(owned.tier2, found, 0, found.length))


async def test_an_object_that_the_newest_snapshot_needs_and_that_is_missing_is_damage(owned: Owned) -> None:
    found, key = await damaged(owned, bytearray.clear)
    reader = DirectEvents(owned.tier2, found, 0, found.length)
    with pytest.raises(CorruptionError, match=rf"object {key}: it does not exist, and snapshot s0/\w+-\w+-\w+ ref"):
        await read(reader)
    assert reader.rereads == 2


async def test_a_damaged_snapshot_and_one_of_another_cluster_are_named(owned: Owned) -> None:
    container = await owned.open()
    await container.create_segment(A)
    await owned.snapshot()
    key = (await owned.references(A)).snapshot
    data = bytearray(await owned.store.get(key))
    data[40] ^= 1
    await owned.store.put(key, [bytes(data)])
    with pytest.raises(CorruptionError, match=f"object {key}"):
        await owned.references(A)


async def test_snapshots_that_vanish_while_they_are_read_are_unavailable(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await owned.open()
    await container.create_segment(A)
    await owned.snapshot()
    calls = 0

    async def gone(key: str) -> bytes:
        nonlocal calls
        calls += 1
        raise NotFoundError(f"object {key} does not exist")

    monkeypatch.setattr(owned.store, "get", gone)
    with pytest.raises(UnavailableError, match="each of 5 snapshots of container 0"):
        await owned.references(A)
    assert calls == limits.DIRECT_SNAPSHOT_ATTEMPTS
