"""The container: what is acknowledged survives every owner, conditions hold, damage is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tailrace.common.errors import (
    BadAttributeError,
    BadOffsetError,
    BadRequestError,
    ContainerStoppedError,
    CorruptionError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from tailrace.segmentstore.api import (
    EVENT_COUNT,
    NULL_ATTRIBUTE,
    AttributeUpdate,
    AttributeUpdateType,
    ReadResult,
    SegmentKind,
)
from tailrace.segmentstore.container.container import Container
from tailrace.storage.chunks import BLOCK_BYTES, BLOCK_STRIDE

from ..conftest import World, eventually

NAME = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"
TRANSACTION = NAME + "#transaction." + "0" * 31 + "1"
WRITER = b"w" * 16
Reopen = Callable[[], Awaitable[Container]]


def equals(value: int, expected: int) -> AttributeUpdate:
    return AttributeUpdate(WRITER, AttributeUpdateType.REPLACE_IF_EQUALS, value, expected)


async def content(container: Container, name: str = NAME) -> bytes:
    properties = await container.info(name)
    position, parts = properties.start_offset, []
    while position < properties.length:
        result = await container.read(name, position, 1 << 20, wait=False)
        parts.append(b"".join(result.data))
        position += result.length
    return b"".join(parts)


async def test_appends_survive_owners_and_the_way_to_tier_2(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    blocks = [bytes([number]) * (number * 977 % 70_000) for number in range(1, 60)]
    await asyncio.gather(*(container.append(NAME, [block[:5], block[5:]]) for block in blocks))
    assert await content(container) == b"".join(blocks)
    container = await reopen()
    assert await content(container) == b"".join(blocks)
    await container.flush_to_storage()
    assert container.status().untiered_bytes == 0
    container = await reopen()
    assert container.status().details["cache_hits"] == 0
    assert await content(container) == b"".join(blocks)
    assert container.status().details["tier2_fetches"] > 0


async def test_an_append_longer_than_a_frame_survives(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    block = bytes(range(256)) * (9 << 12)
    await container.append(NAME, [b"before"])
    await container.append(NAME, [block])
    await container.append(NAME, [b"after"])
    assert await content(await reopen()) == b"before" + block + b"after"


async def test_writers_conditions_are_judged_on_the_staged_state(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    first = asyncio.create_task(container.append(NAME, [b"a"], [equals(1, NULL_ATTRIBUTE)]))
    second = asyncio.create_task(container.append(NAME, [b"b"], [equals(2, 1)]))
    again = asyncio.create_task(container.append(NAME, [b"a"], [equals(1, NULL_ATTRIBUTE)]))
    assert await first == (0, 1)
    assert await second == (1, 2)
    with pytest.raises(BadAttributeError):
        await again
    assert await container.writer_state(NAME, WRITER) == 2
    container = await reopen()
    assert await container.writer_state(NAME, WRITER) == 2
    assert await content(container) == b"ab"


async def test_writer_state_waits_for_what_is_staged(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    append = asyncio.create_task(container.append(NAME, [b"a"], [equals(5, NULL_ATTRIBUTE)]))
    await asyncio.sleep(0)
    assert await container.writer_state(NAME, WRITER) == 5
    await append


@pytest.mark.parametrize(
    ("kind", "value", "comparison", "present", "outcome"),
    [
        (AttributeUpdateType.REPLACE, 5, NULL_ATTRIBUTE, None, 5),
        (AttributeUpdateType.REPLACE, 5, NULL_ATTRIBUTE, 9, 5),
        (AttributeUpdateType.REPLACE_IF_GREATER, 5, NULL_ATTRIBUTE, 4, 5),
        (AttributeUpdateType.REPLACE_IF_GREATER, 5, NULL_ATTRIBUTE, 5, None),
        (AttributeUpdateType.REPLACE_IF_GREATER, 5, NULL_ATTRIBUTE, None, 5),
        (AttributeUpdateType.REPLACE_IF_EQUALS, 5, NULL_ATTRIBUTE, None, 5),
        (AttributeUpdateType.REPLACE_IF_EQUALS, 5, NULL_ATTRIBUTE, 3, None),
        (AttributeUpdateType.REPLACE_IF_EQUALS, 5, 3, 3, 5),
        (AttributeUpdateType.ACCUMULATE, 5, NULL_ATTRIBUTE, None, 5),
        (AttributeUpdateType.ACCUMULATE, 5, NULL_ATTRIBUTE, 3, 8),
    ],
)
@pytest.mark.parametrize("evicted", [False, True])
async def test_the_four_verbs(
    world: World,
    reopen: Reopen,
    kind: AttributeUpdateType,
    value: int,
    comparison: int,
    present: int | None,
    outcome: int | None,
    evicted: bool,
) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    if present is not None:
        await container.update_attributes(NAME, [AttributeUpdate(WRITER, AttributeUpdateType.REPLACE, present)])
    if evicted:  # the value is in the index only
        others = [AttributeUpdate(n.to_bytes(16, "big"), AttributeUpdateType.REPLACE, n) for n in range(1, 1001)]
        await container.update_attributes(NAME, others)
        await eventually(lambda: container.state.by_name[NAME].index.root_length)
        await container.flush_to_storage()  # the checkpoint leaves out what the index holds
        container = await reopen()
        assert WRITER not in container.state.by_name[NAME].committed
    update = AttributeUpdate(WRITER, kind, value, comparison)
    if outcome is None:
        with pytest.raises(BadAttributeError):
            await container.append(NAME, [b"x"], [update])
        assert (await container.info(NAME)).length == 0
        outcome = present
    else:
        await container.append(NAME, [b"x"], [update])
    assert await container.get_attributes(NAME, [WRITER]) == {WRITER: outcome}
    container = await reopen()
    assert await container.get_attributes(NAME, [WRITER]) == {WRITER: outcome}


async def test_attributes_in_index_and_memory_are_iterated_as_one(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    keys = [number.to_bytes(16, "big") for number in range(1, 1001)]
    await container.update_attributes(NAME, [AttributeUpdate(k, AttributeUpdateType.REPLACE, 1) for k in keys])
    await eventually(lambda: container.state.by_name[NAME].index.root_length)
    await container.flush_to_storage()
    container = await reopen()
    model = dict.fromkeys(keys, 1)
    removed = AttributeUpdate(keys[10], AttributeUpdateType.REPLACE, NULL_ATTRIBUTE)
    changed = AttributeUpdate(keys[11], AttributeUpdateType.REPLACE, 7)
    added = AttributeUpdate((5000).to_bytes(16, "big"), AttributeUpdateType.REPLACE, 8)
    await container.update_attributes(NAME, [removed, changed, added])
    del model[keys[10]]
    model |= {keys[11]: 7, added.attribute_id: 8}
    low, high = bytes(16), b"\xff" * 16
    assert await container.iterate_attributes(NAME, low, high, 5000) == sorted(model.items())
    assert await container.iterate_attributes(NAME, keys[5], keys[20], 5000) == sorted(model.items())[5:20]
    assert await container.iterate_attributes(NAME, low, high, 12) == sorted(model.items())[:12]
    assert await container.get_attributes(NAME, [keys[10], keys[12]]) == {keys[12]: 1}


async def test_conditional_appends(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"abc"], expected_offset=0)
    with pytest.raises(BadOffsetError) as error:
        await container.append(NAME, [b"x"], expected_offset=0)
    assert error.value.actual == 3
    await container.append(NAME, [b"d"], expected_offset=3)
    assert await content(container) == b"abcd"


async def test_life_cycle_errors(world: World, reopen: Reopen) -> None:
    container = await world.open()
    with pytest.raises(NoSuchSegmentError):
        await container.append(NAME, [b"x"])
    await container.create_segment(NAME)
    with pytest.raises(SegmentExistsError):
        await container.create_segment(NAME)
    await container.append(NAME, [b"abcdef"])
    assert await container.seal(NAME) == 6
    with pytest.raises(SegmentSealedError):
        await container.append(NAME, [b"x"])
    with pytest.raises(SegmentSealedError):
        await container.seal(NAME)
    await container.truncate(NAME, 4)
    for offset in (3, 7):
        with pytest.raises(SegmentTruncatedError) as error:
            await container.truncate(NAME, offset)
        assert error.value.start_offset == 4
    container = await reopen()
    assert await content(container) == b"ef"
    with pytest.raises(SegmentTruncatedError):
        await container.read(NAME, 3, 10, wait=True)
    with pytest.raises(BadRequestError):
        await container.read(NAME, 7, 10, wait=True)
    end = await container.read(NAME, 6, 10, wait=True)
    assert (end.length, end.end_of_segment) == (0, True)
    await container.delete(NAME)
    with pytest.raises(NoSuchSegmentError):
        await container.info(NAME)
    await container.create_segment(NAME)
    container = await reopen()
    assert (await container.info(NAME)).length == 0


async def test_bytes_of_a_recreated_segment_are_never_the_old_ones(world: World, reopen: Reopen) -> None:
    container = await world.open()
    for round_number in range(3):
        await container.create_segment(NAME)
        block = bytes([round_number]) * 1000
        await container.append(NAME, [block])
        await container.flush_to_storage()
        container = await reopen()
        assert await content(container) == block
        await container.delete(NAME)
    container = await reopen()
    with pytest.raises(NoSuchSegmentError):
        await container.info(NAME)


@pytest.mark.parametrize("tiered", ["neither", "source", "target", "both"])
async def test_merges_move_the_bytes_wherever_they_are(world: World, reopen: Reopen, tiered: str) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    if tiered in ("target", "both"):
        await container.append(NAME, [b"target-"])
        await container.flush_to_storage()
        await container.create_segment(TRANSACTION)
        await container.append(TRANSACTION, [b"source"])
    else:
        await container.create_segment(TRANSACTION)
        await container.append(TRANSACTION, [b"source"])
        if tiered == "source":
            await container.flush_to_storage()
        await container.append(NAME, [b"target-"])
    if tiered == "both":
        await container.flush_to_storage()
    count = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 3)
    await container.update_attributes(TRANSACTION, [count])
    result = await container.merge(NAME, TRANSACTION)
    assert (result.target_offset, result.target_length) == (7, 13)
    await container.append(NAME, [b"-after"])
    assert (await container.merge(NAME, TRANSACTION)).target_length == 19
    for _ in range(2):
        assert await content(container) == b"target-source-after"
        assert (await container.info(NAME)).core_attributes[EVENT_COUNT] == 3
        with pytest.raises(NoSuchSegmentError):
            await container.info(TRANSACTION)
        await container.flush_to_storage()
        assert await content(container) == b"target-source-after"
        container = await reopen()
    assert (await container.merge(NAME, TRANSACTION)).target_length == 19


async def test_a_merge_while_the_source_is_on_its_way_to_tier_2(world: World, reopen: Reopen) -> None:
    container = await world.open()
    for repeat in range(20):
        source = f"{NAME}#transaction.{repeat:032x}"
        if not repeat:
            await container.create_segment(NAME)
        await container.create_segment(source)
        await container.append(source, [bytes([repeat]) * 50_000])
        flush = asyncio.create_task(container.flush_to_storage())
        for _ in range(repeat):
            await asyncio.sleep(0)
        await container.merge(NAME, source)
        await container.append(NAME, [b"+"])
        await flush
    expected = b"".join(bytes([repeat]) * 50_000 + b"+" for repeat in range(20))
    assert await content(container) == expected
    assert await content(await reopen()) == expected


async def test_merges_that_cannot_be(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.create_segment(OTHER)
    with pytest.raises(NoSuchSegmentError, match="transaction"):
        await container.merge(NAME, TRANSACTION)
    await container.append(OTHER, [b"abc"])
    await container.truncate(OTHER, 1)
    with pytest.raises(SegmentTruncatedError):
        await container.merge(NAME, OTHER)
    await container.create_segment(TRANSACTION)
    with pytest.raises(BadAttributeError):
        await container.merge(NAME, TRANSACTION, [equals(1, 5)])
    await container.seal(NAME)
    with pytest.raises(SegmentSealedError):
        await container.merge(NAME, TRANSACTION)


async def test_creations_that_begin_together_share_a_frame(world: World, reopen: Reopen) -> None:
    container = await world.open()
    frames, names = container.core.committer.frames, [f"scope/stream/{number}.#epoch.0" for number in range(5)]
    begun = [await container.begin_create(name) for name in names]
    for durable in begun:
        await durable
    assert container.core.committer.frames == frames + 1
    with pytest.raises(SegmentExistsError):
        await container.begin_create(names[0])
    container = await reopen()
    assert [(await container.info(name)).length for name in names] == [0] * 5


async def test_sources_of_a_batch_are_merged_in_order_and_made_durable_together(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    sources = [f"{NAME}#transaction.{number:032x}" for number in range(6)]
    count = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 2)
    for number, source in enumerate(sources[:-1]):
        await container.create_segment(source)
        await container.append(source, [bytes([65 + number])], [count])
    await container.merge(NAME, sources[1])
    frames = container.core.committer.frames
    assert await container.merge_batch(NAME, sources) == [2, 2, 3, 4, 5, 5]  # one was merged before, one never was
    assert container.core.committer.frames <= frames + 2  # the answer about each of those waits for what is staged
    assert await container.merge_batch(NAME, sources[:2]) == [5, 5]
    for _ in range(2):
        assert await content(container) == b"BACDE"
        assert (await container.info(NAME)).core_attributes[EVENT_COUNT] == 10
        container = await reopen()


async def test_a_batch_ends_at_a_source_that_cannot_be_merged(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    sources = [f"{NAME}#transaction.{number:032x}" for number in range(3)]
    for source in sources:
        await container.create_segment(source)
        await container.append(source, [b"abc"])
    await container.truncate(sources[1], 1)
    with pytest.raises(SegmentTruncatedError, match=sources[1].replace("#", "\\#")):
        await container.merge_batch(NAME, sources)
    container = await reopen()
    assert await content(container) == b"abc"
    with pytest.raises(BadRequestError):
        await container.merge_batch(NAME, [sources[2], NAME])
    container = await reopen()
    assert await content(container) == b"abcabc"
    with pytest.raises(NoSuchSegmentError, match=OTHER):
        await container.merge_batch(OTHER, [sources[0]])
    await container.seal(NAME)
    with pytest.raises(SegmentSealedError):
        await container.merge_batch(NAME, [sources[1]])


async def test_a_batch_of_merges_ends_with_its_container(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.create_segment(TRANSACTION)
    merging = asyncio.create_task(container.merge_batch(NAME, [TRANSACTION, NAME]))
    await asyncio.sleep(0)
    await container.close(at_once=True)
    with pytest.raises((ContainerStoppedError, OutcomeUnknownError)):
        await merging


async def test_a_large_event_counts_as_one(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.create_segment(TRANSACTION, kind=SegmentKind.TRANSIENT)
    count = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1)
    await container.append(TRANSACTION, [b"part"], [count])
    await container.append(TRANSACTION, [b"part"], [count])
    await container.merge(NAME, TRANSACTION)
    assert (await container.info(NAME)).core_attributes[EVENT_COUNT] == 1


async def test_tail_reads_wait_for_data_seal_and_deletion(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    read = asyncio.create_task(container.read(NAME, 0, 10, wait=True))
    await asyncio.sleep(0)
    await container.append(NAME, [b"abc"])
    result = await read
    assert (b"".join(result.data), result.at_tail, result.end_of_segment) == (b"abc", True, False)
    sealed = asyncio.create_task(container.read(NAME, 3, 10, wait=True))
    await asyncio.sleep(0)
    await container.seal(NAME)
    assert (await sealed).end_of_segment
    await container.create_segment(OTHER)
    gone = asyncio.create_task(container.read(OTHER, 0, 10, wait=True))
    await asyncio.sleep(0)
    await container.delete(OTHER)
    with pytest.raises(NoSuchSegmentError):
        await gone


async def test_a_full_cache_throttles_and_everything_arrives(world: World) -> None:
    """What Tier 2 does not hold yet is in the cache: more than fits there is never acknowledged."""
    world.cache_bytes = 8 << 20
    container = await world.open()
    await container.create_segment(NAME)
    block = bytes(range(256)) * 1024
    peak = {"used": 0, "untiered": 0}

    def look(_: object) -> None:
        peak["used"] = max(peak["used"], world.cache.cache.used_bytes)
        peak["untiered"] = max(peak["untiered"], container.status().untiered_bytes)

    appends = [asyncio.ensure_future(container.append(NAME, [block])) for _ in range(160)]
    for append in appends:
        append.add_done_callback(look)
    await asyncio.gather(*appends)
    assert world.cache.throttle.throttled > 0, "no writer waited"
    assert 0.5 * world.cache_bytes < peak["used"] <= world.cache.cache.max_bytes <= world.cache_bytes
    assert peak["untiered"] <= world.cache_bytes
    properties = await container.info(NAME)
    assert properties.length == 160 * len(block)
    assert await content(container) == block * 160


async def test_recovery_with_a_full_cache_reads_from_the_log(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    block = bytes(range(256)) * 1024
    world.objects.outage = True
    await asyncio.gather(*(container.append(NAME, [block]) for _ in range(30)))
    assert container.status().untiered_bytes == 30 * len(block)
    await container.close()
    world.cache_bytes = 4 << 20
    container = await world.open()
    assert await content(container) == block * 30
    world.objects.outage = False
    assert await content(container) == block * 30
    await container.flush_to_storage()
    assert await content(container) == block * 30


@pytest.mark.usefixtures("frequent_snapshots")
async def test_old_log_frames_are_truncated_and_objects_deleted(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [bytes(100_000)])
    await container.flush_to_storage()
    assert world.log.first_sequence > 0
    assert [item async for item in world.objects.list("")]
    await container.delete(NAME)
    await eventually(lambda: not container.status().pending_deletes)
    assert not [item async for item in world.objects.list("c7")]
    container = await reopen()
    assert container.status().pending_deletes == 0


async def test_a_flipped_bit_in_an_object_stops_only_the_read_and_is_named(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"precious" * 1000])
    await container.flush_to_storage()
    (listed,) = [item async for item in world.objects.list("c7")]
    data = bytearray(await world.objects.get(listed.key))
    data[500] ^= 4
    await world.objects.put(listed.key, [bytes(data)])
    container = await reopen()
    with pytest.raises(CorruptionError, match=listed.key):
        await container.read(NAME, 0, 100, wait=False)


async def test_only_the_damaged_block_is_refused(world: World, reopen: Reopen) -> None:
    """Blocks beside it in the same read of Tier 2 are served; the status names it until it is whole or given up."""
    container = await world.open()
    await container.create_segment(NAME)
    content = bytes(range(251)) * (3 * BLOCK_BYTES // 251 + 1)
    await container.append(NAME, [content])
    await container.flush_to_storage()
    (chunk,) = await container.list_chunks(NAME)
    assert chunk.begins_event
    whole = await world.objects.get(chunk.object_key)
    data = bytearray(whole)
    data[whole.index(content[:1000]) + BLOCK_STRIDE + 500] ^= 4
    await world.objects.put(chunk.object_key, [bytes(data)])
    container = await reopen()
    second, third = BLOCK_BYTES, 2 * BLOCK_BYTES
    at_once = await asyncio.gather(
        *(container.read(NAME, offset, 100, wait=False) for offset in (second - 100, second + 7, third)),
        return_exceptions=True,
    )
    assert isinstance(at_once[1], CorruptionError)
    assert chunk.object_key in str(at_once[1])
    for offset, found in ((second - 100, at_once[0]), (third, at_once[2])):
        assert isinstance(found, ReadResult)
        assert b"".join(found.data) == content[offset : offset + 100]
    before, behind = await container.read_exact(NAME, 0, second), await container.read_exact(NAME, third, 1000)
    assert (before, behind) == (content[:second], content[third : third + 1000])
    status = container.status()
    assert status.state == "running"
    assert status.reason == f"bytes {second} to {third} of {NAME} are damaged: {at_once[1]}"
    assert status.details["damaged_segments"] == 1

    await world.objects.put(chunk.object_key, [whole])
    assert await container.read_exact(NAME, 0, len(content)) == content
    assert (container.status().reason, container.status().details["damaged_segments"]) == ("", 0)

    container = await reopen()
    await world.objects.delete([chunk.object_key])
    with pytest.raises(CorruptionError, match=f"{chunk.object_key}: it is referenced and does not exist"):
        await container.read(NAME, second, 100, wait=False)
    assert container.status().reason.startswith(f"bytes 0 to {len(content)} of {NAME} are damaged: ")
    await world.objects.put(chunk.object_key, [bytes(data)])
    with pytest.raises(CorruptionError, match="CRC32C"):
        await container.read(NAME, second, 100, wait=False)
    await container.read(NAME, third, 100, wait=False)
    assert container.status().reason.startswith(f"bytes {second} to {third} of {NAME} are damaged: ")
    await container.truncate(NAME, third - 1)
    assert container.status().details["damaged_segments"] == 1
    await container.truncate(NAME, third)
    assert container.status().reason == ""


async def test_after_a_stop_nothing_is_served(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    read = asyncio.create_task(container.read(NAME, 0, 10, wait=True))
    await asyncio.sleep(0)
    await container.close()
    with pytest.raises(ContainerStoppedError):
        await read
    with pytest.raises(ContainerStoppedError):
        await container.append(NAME, [b"x"])
    with pytest.raises(ContainerStoppedError):
        await container.info(NAME)


async def test_a_segment_truncated_within_an_append_is_flushed_once(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"abcdef"])
    await container.append(NAME, [b"ghi"])
    await container.truncate(NAME, 2)
    await container.flush_to_storage()
    assert container.status().untiered_bytes == 0
    flushes = container.status().details["flushes"]
    await container.flush_to_storage()
    assert container.status().details["flushes"] == flushes
    assert await content(await reopen()) == b"cdefghi"


async def test_create_append_delete_and_create_at_once(world: World, reopen: Reopen) -> None:
    container = await world.open()
    first = asyncio.create_task(container.create_segment(NAME))
    await asyncio.sleep(0)
    old = asyncio.create_task(container.append(NAME, [b"old"]))
    await asyncio.sleep(0)
    gone = asyncio.create_task(container.delete(NAME))
    await asyncio.sleep(0)
    second = asyncio.create_task(container.create_segment(NAME))
    await asyncio.sleep(0)
    new = asyncio.create_task(container.append(NAME, [b"newer"]))
    await asyncio.gather(first, old, gone, second, new)
    assert await content(container) == b"newer"
    assert await content(await reopen()) == b"newer"


async def test_an_outage_of_tier_2_makes_appends_wait_and_fails_none(world: World, reopen: Reopen) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    updates = [AttributeUpdate(n.to_bytes(16, "big"), AttributeUpdateType.REPLACE, n) for n in range(1, 1001)]
    await container.update_attributes(NAME, updates)
    await eventually(lambda: container.state.by_name[NAME].index.root_length)
    await container.flush_to_storage()
    container = await reopen()
    world.objects.outage = True
    add = AttributeUpdate((5).to_bytes(16, "big"), AttributeUpdateType.ACCUMULATE, 1)
    append = asyncio.create_task(container.append(NAME, [b"x"], [add]))
    await asyncio.sleep(0.1)
    assert not append.done()
    world.objects.outage = False
    assert await append == (0, 1)
    assert await container.get_attributes(NAME, [add.attribute_id]) == {add.attribute_id: 6}
