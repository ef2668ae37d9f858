"""Interleavings that once lost data or stopped a container: callers that go away, flushes beside deletions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from tailrace.common import limits
from tailrace.common.errors import (
    BadAttributeError,
    BadRequestError,
    ContainerStoppedError,
    CorruptionError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    OverloadedError,
    UnavailableError,
)
from tailrace.common.names import transient_segment_name
from tailrace.log.memory import MemoryLog
from tailrace.segmentstore.api import NULL_ATTRIBUTE, AttributeUpdate, AttributeUpdateType, SegmentKind
from tailrace.segmentstore.container.checkpointer import Checkpointer
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.storage.port import Buffer

from ..conftest import Objects, World, eventually, flush

NAME = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"


class Gate(Objects):
    """Objects whose puts wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.reached = asyncio.Event()

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self.reached.set()
        await self.open.wait()
        await super().put(key, data, if_absent=if_absent)


async def whole(container: Container, name: str) -> bytes:
    return await container.read_exact(name, 0, (await container.info(name)).length)


async def test_forced_checkpoints_beside_a_running_one_share_one_of_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await world.open()
    checkpointer = container.background.checkpointer
    await container.create_segment(NAME)
    await container.append(NAME, [b"before"])
    await flush(container)
    truncate, encode = MemoryLog.truncate, ops.Checkpoint.encode
    gate, reached, as_of = asyncio.Event(), asyncio.Event(), dict[int, None]()

    async def held(self: MemoryLog, sequence: int) -> None:
        reached.set()
        await gate.wait()
        await truncate(self, sequence)

    def noted(self: ops.Checkpoint) -> bytes:
        as_of[self.as_of_sequence] = None
        return encode(self)

    monkeypatch.setattr(MemoryLog, "truncate", held)
    monkeypatch.setattr(ops.Checkpoint, "encode", noted)
    running = asyncio.ensure_future(checkpointer.run_if_due(force=True))
    await asyncio.wait_for(reached.wait(), 120)
    await container.append(NAME, [b"behind"])
    wanted = container.state.committed_sequence
    forced = [asyncio.ensure_future(checkpointer.run_if_due(force=True)) for _ in range(3)]
    await asyncio.sleep(0)
    await checkpointer.run_if_due()  # waits for no other
    gate.set()
    await asyncio.gather(running, *forced)
    assert [each for each in as_of if each >= wanted] == [wanted]
    assert len(as_of) == 2


@pytest.mark.usefixtures("frequent_snapshots")
@pytest.mark.parametrize("gone", ["deleted", "truncated"])
async def test_an_object_shared_with_a_segment_that_went_away_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    world.objects = objects = Gate()
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
        await container.append(name, [name.encode()])
    flushing = asyncio.create_task(container.flush_to_storage())
    await objects.reached.wait()
    if gone == "deleted":
        await container.delete(NAME)
    else:
        await container.truncate(NAME, len(NAME))
    objects.open.set()
    await flushing
    await eventually(lambda: not container.state.pending_deletes)
    await container.close()
    container = await world.open()
    assert container.status().untiered_bytes == 0
    assert await whole(container, OTHER) == OTHER.encode()


class Keys(Objects):
    """Objects that remember which were written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await super().put(key, data, if_absent=if_absent)
        self.written.append(key)


async def test_a_flush_whose_caller_goes_away_while_its_index_is_on_the_way_to_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.02)
    world.log_delay_s = 0.5
    world.objects = objects = Keys()
    container = await world.open()
    await container.create_segment(NAME)
    writer = b"w" * 16
    await container.append(NAME, [b"bytes"], [AttributeUpdate(writer, AttributeUpdateType.REPLACE, 1)])
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 1)
    flushing = asyncio.create_task(container.flush_to_storage())
    await eventually(lambda: any(key.startswith("a") for key in objects.written))
    flushing.cancel()
    await asyncio.wait([flushing])
    assert flushing.cancelled()
    await eventually(lambda: container.state.by_name[NAME].index.root_length)
    await container.append(NAME, [b"more"], [AttributeUpdate(writer, AttributeUpdateType.REPLACE, 2)])
    await container.flush_to_storage()
    await container.close()
    container = await world.open()
    assert await whole(container, NAME) == b"bytesmore"
    assert await container.get_attributes(NAME, [writer]) == {writer: 2}


async def test_a_flush_ends_although_writers_go_on(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    stop = False

    async def write() -> None:
        while not stop:
            await container.append(NAME, [b"more"])

    writing = asyncio.create_task(write())
    for _ in range(3):
        length = (await container.info(NAME)).length
        async with asyncio.timeout(120):
            await container.flush_to_storage()
        chunks = await container.list_chunks(NAME)
        assert sum(chunk.length_bytes for chunk in chunks) >= length
    stop = True
    await writing


async def test_flushes_of_callers_that_left_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLUSHES_ASKED_FOR_MAX", 2)
    world.objects = objects = Gate()
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"bytes"])
    for _ in range(2):
        flushing = asyncio.create_task(container.flush_to_storage())
        await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.wait([flushing])
    with pytest.raises(OverloadedError):
        await container.flush_to_storage()
    objects.open.set()
    await eventually(lambda: not container.status().untiered_bytes)
    await eventually(lambda: not container.core.caller_tasks)  # their checkpoints come after the last byte
    await container.flush_to_storage()


async def test_a_flush_that_a_stop_ends_fails_with_the_stop(world: World) -> None:
    world.objects = objects = Gate()
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"bytes"])
    flushing = asyncio.create_task(container.flush_to_storage())
    await objects.reached.wait()
    await container.close()
    with pytest.raises(ContainerStoppedError):
        await flushing
    objects.open.set()


async def test_a_caller_that_leaves_while_there_is_no_room_affects_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES", 1)
    container = await world.open()
    first = asyncio.create_task(container.create_segment(NAME))
    impatient = asyncio.create_task(container.create_segment(OTHER))
    patient = asyncio.create_task(container.create_segment(OTHER + "2"))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([first, impatient, patient])
    assert impatient.cancelled()
    patient.result()
    assert container.segment_names() == [NAME, OTHER + "2"]


async def test_readers_that_go_away_leave_nothing_behind(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    for _ in range(10):
        reading = asyncio.create_task(container.read(NAME, 0, 100, wait=True))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
    assert not container.state.by_name[NAME].waiters


async def test_an_operation_that_does_not_fit_the_state_stops_the_container(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await world.open()
    await container.create_segment(NAME)

    def broken(self: ContainerState, sequence: int, operation: object, place: str = "log") -> None:
        raise CorruptionError(place, "planted")

    monkeypatch.setattr(ContainerState, "apply", broken)
    acknowledged = asyncio.create_task(container.append(NAME, [b"before"]))
    sealed = asyncio.create_task(container.seal(NAME))
    behind = asyncio.create_task(container.create_segment(OTHER))
    await asyncio.wait([acknowledged, sealed, behind], timeout=120)
    assert acknowledged.result() == (0, 6)
    for refused in (sealed, behind):
        assert isinstance(refused.exception(), ContainerStoppedError)
    assert isinstance(await container.wait_stopped(), CorruptionError)
    with pytest.raises(UnavailableError):
        await container.append(NAME, [b"more"])


@pytest.mark.parametrize("again", [False, True])
async def test_a_merge_into_a_segment_that_goes_away_while_its_attributes_are_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 1)
    container = await world.open()
    writer = b"w" * 16
    await container.create_segment(NAME)
    await container.create_segment(OTHER)
    await container.append(OTHER, [b"source"])
    await container.append(NAME, [b"target"], [AttributeUpdate(writer, AttributeUpdateType.REPLACE, 1)])
    await container.flush_to_storage()
    await container.close()
    container = await world.open()  # the attribute is only in the index now
    update = AttributeUpdate(writer, AttributeUpdateType.REPLACE_IF_EQUALS, 2, 1)
    merging = asyncio.create_task(container.merge(NAME, OTHER, [update]))
    await asyncio.sleep(0)
    await container.delete(NAME)
    if again:
        await container.create_segment(NAME)
    await asyncio.wait([merging])
    assert isinstance(merging.exception(), (BadAttributeError, NoSuchSegmentError) if again else NoSuchSegmentError)
    assert await whole(container, OTHER) == b"source"


async def test_tables_take_no_events_and_no_merges(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.create_segment(OTHER, kind=SegmentKind.TABLE)
    for target, source in ((NAME, OTHER), (OTHER, NAME)):
        with pytest.raises(BadRequestError, match="table segment"):
            await container.merge(target, source)
    with pytest.raises(BadRequestError, match="table segment"):
        await container.writer_state(OTHER, b"w" * 16)


@pytest.mark.usefixtures("frequent_snapshots")
@pytest.mark.parametrize("why", ["name taken again", "long ago"])
async def test_a_merged_source_is_not_forgotten_while_its_bytes_are_on_their_way_to_tier_2(
    world: World, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    async def no_room(*_: object) -> bool:
        return False

    full_disk = pytest.MonkeyPatch()
    full_disk.setattr(Checkpointer, "_room", no_room)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    world.objects = objects = Gate()
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
    await container.append(OTHER, [b"source"])
    flushing = asyncio.create_task(container.flush_to_storage())
    await objects.reached.wait()
    await container.merge(NAME, OTHER)
    if why == "name taken again":
        await container.create_segment(OTHER)
    # As a checkpoint does for which the disk then turns out to be too full.
    container.state.forget_merged(0 if why == "name taken again" else 2**60, 2**60)
    objects.open.set()
    await asyncio.wait([flushing])
    await eventually(lambda: not container.state.pending_deletes)
    await container.close()
    full_disk.undo()
    container = await world.open()
    await container.flush_to_storage()  # from here on the log does not hold the bytes any more
    await container.close()
    container = await world.open()
    assert await whole(container, NAME) == b"source"


async def test_merged_sources_are_forgotten_in_the_end(world: World) -> None:
    container = await world.open()
    for number in range(3):
        for name in (NAME, OTHER):
            if name == OTHER or not number:
                await container.create_segment(name)
        await container.append(OTHER, [b"source"])
        await container.merge(NAME, OTHER)
    assert len(container.state.moves) == 3
    await container.flush_to_storage()
    await container.close()
    container = await world.open()
    assert len(container.state.moves) == 3
    container.state.forget_merged(2**60, 2**60)
    assert container.state.moves == {}
    assert container.state.merged == {}


async def test_merged_parts_of_large_events_are_remembered_while_a_writer_may_ask(world: World) -> None:
    """A writer that lost the answer of such a merge sends the event again when the source is unknown."""
    container = await world.open()
    await container.create_segment(NAME)
    transient = transient_segment_name(NAME, uuid.UUID(int=1), uuid.UUID(int=2))
    await container.create_segment(transient, kind=SegmentKind.TRANSIENT)
    await container.append(transient, [b"large"])
    await container.merge(NAME, transient, [])
    for _ in range(3):
        await container.create_segment(OTHER)
        await container.append(OTHER, [b"small"])
        await container.merge(NAME, OTHER, [])
    await container.flush_to_storage()
    container.state.forget_merged(0, 1)
    assert set(container.state.merged) == {transient, OTHER}
    assert (await container.merge(NAME, transient, [])).target_length == 20
    container.state.forget_merged(2**60, 2**60)
    assert container.state.merged == {}


class ReadGate(Objects):
    """Objects whose reads wait at a gate once it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.reached = asyncio.Event()

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.reached.set()
        await self.open.wait()
        return await super().get_range(key, offset, length)


async def test_several_attributes_are_read_as_of_one_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 1)
    world.objects = objects = ReadGate()
    container = await world.open()
    await container.create_segment(NAME)
    known, stored = b"k" * 16, b"s" * 16
    replace = AttributeUpdateType.REPLACE
    await container.append(NAME, [b"x"], [AttributeUpdate(stored, replace, 1), AttributeUpdate(known, replace, 1)])
    await container.flush_to_storage()
    await container.close()
    container = await world.open()
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 1000)
    await container.update_attributes(NAME, [AttributeUpdate(known, replace, 1)])  # in memory again
    objects.open.clear()
    objects.reached.clear()
    reading = asyncio.create_task(container.get_attributes(NAME, [known, stored]))
    await asyncio.wait_for(objects.reached.wait(), 120)
    await container.update_attributes(NAME, [AttributeUpdate(known, replace, 2), AttributeUpdate(stored, replace, 2)])
    objects.open.set()
    assert await reading in ({known: 1, stored: 1}, {known: 2, stored: 2})


@pytest.mark.parametrize("operation", ["delete", "truncate", "merge", "update"])
async def test_what_is_not_durable_yet_refuses_nothing(world: World, operation: str) -> None:
    """What a deletion or truncation refuses is answered when that is durable: until then it may be undone."""
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
    await container.append(NAME, [b"abcdef"])
    log = container.core.log
    assert isinstance(log, MemoryLog)
    log._delay_s = 3600.0

    def repeat(offset: int) -> asyncio.Future[None]:
        work = container.truncate(NAME, offset) if operation == "truncate" else container.delete(NAME)
        return asyncio.ensure_future(work)

    async def beside() -> None:
        if operation == "merge":
            await container.merge(NAME, OTHER, [])
        else:
            await container.update_attributes(NAME, [AttributeUpdate(b"k" * 16, AttributeUpdateType.REPLACE, 1)])

    first = repeat(5)
    await eventually(lambda: not container.core.processor.idle)
    second = asyncio.ensure_future(beside()) if operation in ("merge", "update") else repeat(2)
    done, _ = await asyncio.wait([second], timeout=0.2)
    assert not done
    await container.close(at_once=True)
    for each in (first, second):
        with pytest.raises((OutcomeUnknownError, ContainerStoppedError)):
            await each
    container = await world.open()
    assert (await container.info(NAME)).start_offset == 0
    await container.close()


@pytest.mark.parametrize("operation", ["update", "sum", "merge", "merge of a truncated source"])
async def test_a_value_that_is_not_durable_yet_refuses_no_change(world: World, operation: str) -> None:
    """A failed compare is answered when the value that differs is durable: until then it may never exist."""
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
    await container.append(OTHER, [b"abcdef"])
    log = container.core.log
    assert isinstance(log, MemoryLog)
    log._delay_s = 3600.0
    key = b"k" * 16
    compare = AttributeUpdate(key, AttributeUpdateType.REPLACE_IF_EQUALS, 2, NULL_ATTRIBUTE)

    async def change() -> None:
        if operation == "merge of a truncated source":
            await container.truncate(OTHER, 5)
        else:
            await container.update_attributes(NAME, [AttributeUpdate(key, AttributeUpdateType.REPLACE, 2**63 - 1)])

    async def refused() -> None:
        if operation in ("update", "sum"):
            add = AttributeUpdate(key, AttributeUpdateType.ACCUMULATE, 1)
            await container.update_attributes(NAME, [add if operation == "sum" else compare])
        else:
            await container.merge(NAME, OTHER, [compare] if operation == "merge" else [])

    first = asyncio.ensure_future(change())
    await eventually(lambda: not container.core.processor.idle)
    second = asyncio.ensure_future(refused())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not second.done()
    await container.close(at_once=True)
    for each in (first, second):
        with pytest.raises((OutcomeUnknownError, ContainerStoppedError)):
            await each
    container = await world.open()
    await refused()  # nothing differs at the next owner
    await container.close()
