"""Readers in trouble: long outages, containers that stop, segments that vanish, cancelled calls, unknown outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from tailrace.client.byte_stream import ByteStreamReader
from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.group.synchronizer import GroupSynchronizer
from tailrace.client.model import StreamName
from tailrace.client.reader.batch import SegmentReader, SegmentSlice, read_slice, slices_between
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.revisioned import RevisionedStream
from tailrace.common import limits
from tailrace.common.errors import IllegalStateError, NotFoundError, SegmentTruncatedError, UnavailableError
from tailrace.kernel import pack_events
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
SEGMENT = STREAM.segment(0)
GROUP_SEGMENT = "s/_RGg/0.#epoch.0"
DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def _fast_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the distribution policy become hundredths."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)


@pytest.fixture
async def group(controller: Any, context: ClientContext) -> ReaderGroup:
    """A group over one segment that refreshes fast and makes no checkpoints by itself."""
    controller.begin((0, 0.0, 1.0))
    manager = ReaderGroupManager(context, "s")
    assert await manager.create("g", group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1))
    return await manager.open("g")


@pytest.fixture
async def readers(context: ClientContext) -> AsyncIterator[Any]:
    """Makes readers that are closed at the end."""
    made: list[EventReader] = []

    async def make(name: str) -> EventReader:
        made.append(await EventReader(context, "s", "g", name).start())
        return made[-1]

    yield make
    for reader in made:
        await reader.close()


def fill(store: Any, identifier: int, *events: bytes) -> None:
    store.segments[STREAM.segment(identifier)].data += pack_events(events)


async def read_until(reader: EventReader, count: int) -> list[bytes]:
    """Read until `count` events came."""
    events: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(events) < count:
            events += [item.event for item in await reader.read_events(1000, 20) if item.checkpoint is None]
    return events


async def fails(reader: EventReader, kind: type[Exception]) -> None:
    """Read until reading fails in this way."""
    with pytest.raises(kind):
        await read_until(reader, sys.maxsize)


# -- outages --------------------------------------------------------------------------------------------------------


async def test_a_reader_goes_on_after_an_outage_that_outlasted_its_retries(
    store: Any, context: ClientContext, group: ReaderGroup, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 0, b"a", b"b")
    reader = await readers("r")
    store.cut(c.ReadSegment, times=10_000)
    with monkeypatch.context() as shortly:
        shortly.setattr(context.segments, "_deadline_s", 0.1)
        await fails(reader, UnavailableError)
    store.rules.clear()
    events: list[bytes] = []
    for _ in range(2):  # what was begun during the outage may still fail
        with contextlib.suppress(UnavailableError):
            events += await read_until(reader, 2 - len(events))
    assert events == [b"a", b"b"]


async def test_a_container_that_stops_is_no_end_of_the_stream(
    store: Any, controller: Any, context: ClientContext
) -> None:
    """It answers waiting reads with nothing (docs/protocol/wire.md#failure-replies)."""
    controller.begin((0, 0.0, 1.0))
    store.segments[SEGMENT].data += b"0123456789"
    async with ByteStreamReader(context, STREAM) as reader:
        store.answer(c.ReadSegment, lambda i: c.SegmentRead(SEGMENT, 0, True, False, b"", i), times=3)
        assert await reader.read_exactly(10, timeout_s=DEADLINE_S) == b"0123456789"


async def test_a_container_that_stops_cuts_no_record_off(store: Any, context: ClientContext) -> None:
    store.create(SEGMENT, pack_events([b"one", b"two"]))
    stream = RevisionedStream(context, SEGMENT)
    store.answer(c.ReadSegment, lambda i: c.SegmentRead(SEGMENT, 0, True, False, pack_events([b"one"])[:9], i))
    store.answer(c.ReadSegment, lambda i: c.SegmentRead(SEGMENT, 9, True, False, b"", i))
    assert [entry.payload for entry in await stream.read_from(0)] == [b"one", b"two"]


async def test_a_reading_that_ends_with_an_unexpected_error_is_reported_and_begun_again(
    store: Any, controller: Any, context: ClientContext
) -> None:
    def broken(_: object) -> object:
        raise ZeroDivisionError("a defect")

    controller.begin((0, 0.0, 1.0))
    fill(store, 0, b"a")
    controller.answers["getURI"] = broken
    async with asyncio.timeout(DEADLINE_S), SegmentReader(context, SEGMENT, 0) as reader:
        with pytest.raises(IllegalStateError, match="ZeroDivisionError: a defect"):
            await reader.read()
        del controller.answers["getURI"]
        assert await reader.read() == [b"a"]


# -- segments that vanish, cuts -------------------------------------------------------------------------------------


async def test_a_truncated_segment_is_reported(store: Any, controller: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, b"never read")
    controller.scale([0], (1 << 32 | 1, 0.0, 1.0))
    fill(store, 1 << 32 | 1, b"next")
    del store.segments[SEGMENT]
    reader = await readers("r")
    await fails(reader, SegmentTruncatedError)
    checkpoint = asyncio.create_task(group.checkpoint("cp", deadline_s=DEADLINE_S))
    assert await read_until(reader, 1) == [b"next"], "reading goes on after the gap"
    await checkpoint


async def test_a_deleted_stream_is_reported_once_and_leaves_its_group(
    store: Any, controller: Any, context: ClientContext, readers: Any
) -> None:
    other, gone = StreamName("s", "u"), False
    controller.begin((0, 0.0, 1.0))
    for each in (0, 1):
        store.create(other.segment(each), pack_events([b"u"]))

    def stream_of(request: Any) -> Any:
        named = request.streamInfo if hasattr(request, "streamInfo") else request
        if gone and named.stream == other.stream:
            raise NotFoundError(f"stream {other} does not exist")
        return named

    def heads(request: Any) -> Any:
        named = stream_of(request.streamInfo)
        segments = [0, 1] if named.stream == other.stream else [0]
        found = [pb.SegmentId(streamInfo=named, segmentId=each) for each in segments]
        return pb.SegmentsAtTime(
            segments=[pb.SegmentsAtTime.SegmentLocation(segmentId=each, offset=0) for each in found]
        )

    def following(request: Any) -> Any:
        stream_of(request)
        return pb.SuccessorResponse()

    controller.answers |= {"getSegments": heads, "getSegmentsImmediatelyFollowing": following}
    config = group_config({STREAM: None, other: None}, group_refresh_ms=10, automatic_checkpoint_ms=20)
    await ReaderGroupManager(context, "s").create("g", config)
    group = await ReaderGroupManager(context, "s").open("g")
    reader = await readers("r")
    fill(store, 0, b"a")
    assert sorted(await read_until(reader, 3)) == [b"a", b"u", b"u"]
    gone = True
    for each in (0, 1):
        del store.segments[other.segment(each)]
    store.drop_all()
    await fails(reader, SegmentTruncatedError)
    async with asyncio.timeout(DEADLINE_S):
        while (await group.state()).segment_count > 1:
            assert all(item.checkpoint for item in await reader.read_events(10, 20)), "reported once"
    async with store.grown:
        fill(store, 0, b"b")
        store.grown.notify_all()
    assert await read_until(reader, 1) == [b"b"]


async def test_a_slice_of_a_dropped_segment_is_not_empty_but_an_error(store: Any, context: ClientContext) -> None:
    with pytest.raises(SegmentTruncatedError, match=r"0\.#epoch\.0"):
        [events async for events in read_slice(context, SegmentSlice(SEGMENT, 0, 9))]


async def test_slices_have_all_of_a_segment_that_the_start_has_not_reached(
    store: Any, controller: Any, context: ClientContext
) -> None:
    """That is what −1 says in a cut (docs/protocol/naming.md#stream-cuts); of such an end they have nothing."""
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    fill(store, 0, b"a", b"b")
    fill(store, 1, b"c", b"d")
    first, second = SegmentSlice(SEGMENT, 0, 18), STREAM.segment(1)
    assert await slices_between(context, STREAM, {0: -1, 1: 9}) == [first, SegmentSlice(second, 9, 18)]
    assert await slices_between(context, STREAM, None, {0: -1, 1: 9}) == [SegmentSlice(second, 0, 9)]


async def test_an_end_within_an_event_ends_the_reading(
    store: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READER_REQUEST_BYTES", 12)
    store.create(SEGMENT, pack_events([b"a", b"b", b"c"]))
    async with asyncio.timeout(DEADLINE_S), SegmentReader(context, SEGMENT, 0, 12) as reader:
        read: list[bytes] = []
        while events := await reader.read():
            read += events
    assert read == [b"a", b"b"], "what begins before the end belongs to it"


# -- cancelled calls ------------------------------------------------------------------------------------------------


async def test_cancelled_reads_neither_lose_nor_repeat(
    store: Any, controller: Any, context: ClientContext, readers: Any, test_seed: int
) -> None:
    random = Random(test_seed)
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    config = group_config({STREAM: None}, group_refresh_ms=2, automatic_checkpoint_ms=5)
    await ReaderGroupManager(context, "s").create("g", config)
    events = [b"%d" % i for i in range(300)]
    fill(store, 0, *events[:150])
    fill(store, 1, *events[150:])
    reader = await readers("r")
    got: list[bytes] = []

    async def read() -> None:
        while True:
            got.extend(item.event for item in await reader.read_events(7, 20) if item.checkpoint is None)

    turn = 0
    async with asyncio.timeout(DEADLINE_S):
        while len(got) < 300:
            turn += 1  # a busy machine gets on, too
            task = asyncio.create_task(read())
            await asyncio.sleep(random.choice([0, 0.0003, 0.001, 0.004]) * (1 + turn / 100))
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), task
            if random.random() < 0.05:
                store.drop_all()
    assert sorted(got) == sorted(events)


async def test_a_read_that_is_cancelled_while_it_takes_segments_delays_no_later_one(
    store: Any, controller: Any, context: ClientContext, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin((0, 0.0, 1.0))
    await ReaderGroupManager(context, "s").create("g", group_config({STREAM: None}, group_refresh_ms=2))
    fill(store, 0, b"a")
    reader = await readers("r")
    update, under_way = GroupSynchronizer.update, asyncio.Event()

    async def held(*_: Any) -> None:
        under_way.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(GroupSynchronizer, "update", held)
    reading = asyncio.create_task(reader.read_events(1, 20))
    async with asyncio.timeout(DEADLINE_S):
        await under_way.wait()
    reading.cancel()
    await asyncio.wait([reading])
    monkeypatch.setattr(GroupSynchronizer, "update", update)
    got: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while not got:
            got += [item.event for item in await reader.read_events(1, 20) if item.checkpoint is None]
    assert got == [b"a"]


async def test_a_cancelled_exact_read_consumes_nothing(store: Any, controller: Any, context: ClientContext) -> None:
    controller.begin((0, 0.0, 1.0))
    store.segments[SEGMENT].data += b"01234"
    async with ByteStreamReader(context, STREAM) as reader:
        reading = asyncio.create_task(reader.read_exactly(10))
        async with asyncio.timeout(DEADLINE_S):
            while not reader.offset:  # noqa: ASYNC110  # the first part has come
                await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.wait([reading])
        assert reader.offset == 0


async def test_a_close_that_was_cancelled_can_be_repeated(
    store: Any, group: ReaderGroup, context: ClientContext
) -> None:
    fill(store, 0, b"a", b"b", b"c")
    reader = await EventReader(context, "s", "g", "r").start()
    async with asyncio.timeout(DEADLINE_S):
        while not await reader.read_event(20):
            pass
    store.rules.append(lambda command: [] if isinstance(command, c.GetStreamSegmentInfo) else None)
    closing = asyncio.create_task(reader.close())
    await asyncio.sleep(0.02)
    closing.cancel()
    await asyncio.wait([closing])
    store.rules.clear()
    store.drop_all()
    await reader.close()
    assert await group.online_readers() == []
    assert (await group.state()).unassigned == {SEGMENT: 9}, "it left where it stopped"


async def test_a_checkpoint_that_could_not_be_answered_is_answered_by_the_next_read(
    store: Any, context: ClientContext, group: ReaderGroup, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = await readers("r")
    checkpoint = asyncio.create_task(group.checkpoint("cp", deadline_s=DEADLINE_S))
    async with asyncio.timeout(DEADLINE_S):
        while (item := await reader.read_event(10)) is None:
            pass
    assert item.checkpoint == "cp"
    store.cut(c.ConditionalAppend, times=10_000)
    store.cut(c.SetupAppend, times=10_000)
    with monkeypatch.context() as shortly:
        shortly.setattr(limits, "CLIENT_REQUEST_DEADLINE_S", 0.1)
        with pytest.raises(UnavailableError):
            await reader.read_event(10)
    store.rules.clear()
    seen = []
    while not checkpoint.done():
        seen.append(await reader.read_event(10))
    assert seen == [None] * len(seen), "the application has seen the checkpoint already"


async def test_an_answer_covers_segments_that_the_reader_does_not_know_yet(
    group: ReaderGroup, readers: Any, store: Any
) -> None:
    """A cancelled acquisition may have had its effect: the segment is owned before the reader reads it."""
    fill(store, 0, b"a")
    reader = await readers("r")
    await read_until(reader, 1)
    await group._synchronizer.fetch()
    await group._synchronizer.update(lambda _: [r.CreateCheckpoint("cp")])
    member = reader._joined()
    await member._synchronizer.fetch()
    await member.answer("cp", {})
    assert (await group.state()).positions["cp"] == {SEGMENT: 0}


async def test_a_reload_that_fails_leaves_the_state_as_it_was(
    store: Any, context: ClientContext, group: ReaderGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    lagging = await GroupSynchronizer.open(context, "s", "g")
    await lagging.fetch()
    synchronizer = group._synchronizer
    await synchronizer.fetch()
    await synchronizer.update(lambda _: [r.CreateCheckpoint("y_SILENT_")])
    assert await synchronizer.compact()
    await synchronizer.update(lambda _: [r.CreateCheckpoint("x_SILENT_")])
    assert await synchronizer.compact()
    assert store.segments[GROUP_SEGMENT].start > 0
    store.cut(c.GetSegmentAttribute, times=10_000)
    with monkeypatch.context() as shortly:
        shortly.setattr(context.segments, "_deadline_s", 0.05)
        with pytest.raises(UnavailableError):
            await lagging.fetch()
    assert lagging.has_state
    store.rules.clear()
    await lagging.fetch()
    assert lagging.state.checkpoints == ["y_SILENT_", "x_SILENT_"]


# -- unknown outcomes -----------------------------------------------------------------------------------------------


async def test_a_condition_that_fails_because_of_ones_own_lost_answer_holds(store: Any, context: ClientContext) -> None:
    """The first attempt arrives late: after the set-up on the next connection, before the second attempt."""
    segment = store.create(SEGMENT)
    stream = RevisionedStream(context, SEGMENT)
    store.cut(c.ConditionalAppend, after=True)
    unset = -(2**63)
    setups = 0

    def stale(command: c.Command) -> list[c.Command] | None:
        nonlocal setups
        if not isinstance(command, c.SetupAppend):
            return None
        setups += 1
        if setups != 2:
            return None
        return [c.AppendSetup(command.request_id, SEGMENT, command.writer_id, unset)]

    def refused(command: c.Command) -> list[c.Command] | None:
        if isinstance(command, c.ConditionalAppend) and setups == 2:
            return [c.ConditionalCheckFailed(command.writer_id, command.event_number, command.request_id)]
        return None

    store.rules += [stale, refused]
    assert await stream.write_conditionally(0, b"one") == 11
    assert segment.data == pack_events([b"one"])


async def test_a_closed_reader_says_so(group: ReaderGroup, context: ClientContext) -> None:
    reader = await EventReader(context, "s", "g", "r").start()
    await reader.close()
    await reader.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await reader.read_event(10)


async def test_a_start_that_was_cancelled_can_be_taken_back(
    store: Any, group: ReaderGroup, context: ClientContext
) -> None:
    """The reader may belong to the group already: it must not stay there for ever."""
    reader = EventReader(context, "s", "g", "r")
    stored = asyncio.Event()

    def swallow(command: c.Command) -> None:
        if isinstance(command, c.ConditionalAppend):
            stored.set()

    store.after.append(swallow)
    starting = asyncio.create_task(reader.start())
    await stored.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert await group.online_readers() == ["r"]
    await reader.close()
    assert await group.online_readers() == []
