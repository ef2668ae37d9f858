"""Readers of a group: sharing, checkpoints, scaling, leaving, resets, and events exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.membership import GroupMember
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.reader.truncations import StreamTruncatedError
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    BadRequestError,
    CorruptionError,
    DeadlineError,
    IllegalStateError,
    NoSuchReaderGroupError,
    NoSuchStreamError,
    ReinitializationRequiredError,
    SegmentTruncatedError,
    UnavailableError,
)
from tailrace.common.stream_cut import StreamCut
from tailrace.common.stream_policies import StreamDataRetention
from tailrace.kernel import pack_events
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
E1 = 1 << 32
DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def _fast_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the distribution policy become hundredths."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)


@pytest.fixture
async def group(controller: Any, context: ClientContext) -> ReaderGroup:
    """A group over two segments that refreshes fast and makes no checkpoints by itself."""
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    manager = ReaderGroupManager(context, "s")
    config = group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1)
    assert await manager.create("g", config)
    assert not await manager.create("g", config)
    return await manager.open("g")


@pytest.fixture
async def readers(context: ClientContext) -> AsyncIterator[Any]:
    """Makes readers that are closed at the end."""
    made: list[EventReader] = []

    async def make(name: str, group: str = "g") -> EventReader:
        made.append(await EventReader(context, "s", group, name).start())
        return made[-1]

    yield make
    for reader in made:
        await reader.close()


def fill(store: Any, identifier: int, *events: bytes) -> None:
    store.segments[STREAM.segment(identifier)].data += pack_events(events)


async def drain(reader: EventReader, count: int = 0) -> list[bytes]:
    """`count` events, however long they take to come, and what else comes at once."""
    events: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while True:
            batch = await reader.read_events(1000, 20)
            events += [item.event for item in batch if item.checkpoint is None]
            if not batch and len(events) >= count:
                return events


async def fails(reader: EventReader) -> None:
    """Read until reading fails."""
    await drain(reader, sys.maxsize)


async def share(group: ReaderGroup, *readers: EventReader) -> None:
    """Let each reader look once, so that all own the same number of segments.

    A reader that goes on while another one is slow takes all that are free, and without checkpoints it keeps them.
    """
    for reader in readers:
        await reader.read_events(1, 0)
    assert len({len(owned) for owned in (await group.state()).assigned.values()}) == 1


async def test_one_reader_reads_everything(store: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, b"a", b"", b"c" * 100_000)
    fill(store, 1, b"x", b"y")
    reader = await readers("r")
    assert sorted(await drain(reader, 5)) == sorted([b"a", b"", b"c" * 100_000, b"x", b"y"])
    assert await group.online_readers() == ["r"]


async def test_offsets_of_events_and_batches(store: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, b"ab", b"cde")
    reader = await readers("r")
    first, second = await reader.read_events(10, 20_000)
    assert (first.event, first.segment, first.offset, first.end_offset) == (b"ab", STREAM.segment(0), 0, 10)
    assert (second.event, second.offset, second.end_offset) == (b"cde", 10, 21)
    assert await reader.read_event(0) is None
    assert reader.position.positions[STREAM.segment(0)] == 21
    with pytest.raises(BadRequestError, match="max_events"):
        await reader.read_events(0, 1)


async def test_new_events_arrive_while_waiting(store: Any, group: ReaderGroup, readers: Any) -> None:
    reader = await readers("r")
    read = asyncio.create_task(reader.read_event(20_000))
    await asyncio.sleep(0.05)
    async with store.grown:
        fill(store, 1, b"late")
        store.grown.notify_all()
    found = await read
    assert found is not None
    assert found.event == b"late"


async def test_a_reader_that_leaves_hands_its_place_on(store: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, *(b"%d" % i for i in range(100)))
    first = await readers("r1")
    taken = [item.event for item in await first.read_events(30, 20_000)]
    await first.close()
    second = await readers("r2")
    assert taken + await drain(second, 70) == [b"%d" % i for i in range(100)]


async def test_events_that_a_loop_did_not_reach_are_not_read(store: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, *(b"%d" % i for i in range(6)))
    first = await readers("r1")
    got: list[bytes] = []
    async for item in first.events(idle_ms=20_000):
        got.append(item.event)
        assert first.position.positions[STREAM.segment(0)] == item.end_offset
        if len(got) == 2:
            break
    await first.close()
    second = await readers("r2")
    assert got + await drain(second, 4) == [b"%d" % i for i in range(6)]


async def test_a_loop_with_long_work_keeps_the_group_waiting_for_a_short_time(
    store: Any, group: ReaderGroup, readers: Any
) -> None:
    fill(store, 0, *(b"%d" % i for i in range(3000)))
    first = await readers("r1")
    seen = 0
    making: asyncio.Task[Any] | None = None
    async with asyncio.timeout(DEADLINE_S):
        async for _ in first.events(idle_ms=20_000):
            seen += 1
            making = making or asyncio.create_task(group.checkpoint("c", deadline_s=DEADLINE_S))
            if making.done():
                break
            await asyncio.sleep(0.003)
    assert making is not None
    making.result()
    assert seen < 1000, "all of them were fetched at once"


async def test_a_look_that_takes_long_is_not_made_for_each_event(
    store: Any, group: ReaderGroup, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 0, *(b"%d" % i for i in range(500)))
    first = await readers("r1")
    looks = 0
    look = GroupMember.look

    async def slow(member: GroupMember) -> None:
        nonlocal looks
        looks += 1
        await look(member)
        await asyncio.sleep(0.03)  # longer than the group's refresh

    monkeypatch.setattr(GroupMember, "look", slow)
    monkeypatch.setattr(limits, "READER_LOOK_PAUSE_S", DEADLINE_S)
    seen = 0
    async with asyncio.timeout(DEADLINE_S):
        async for _ in first.events(idle_ms=20_000):
            seen += 1
            if seen == 400:
                break
    assert looks < 100


async def test_a_dead_reader_is_declared_offline(store: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, *(b"%d" % i for i in range(10)))
    dead = await readers("r1")
    await dead.read_events(6, 20_000)
    position = dead.position
    await group.reader_offline("r1", position)
    await group.reader_offline("r1", position)
    alive = await readers("r2")
    assert await drain(alive, 4) == [b"6", b"7", b"8", b"9"]
    with pytest.raises(ReinitializationRequiredError):
        await fails(dead)


async def test_a_silent_reader_is_replaced_and_does_not_read_on(
    store: Any, group: ReaderGroup, context: ClientContext
) -> None:
    fill(store, 0, *(b"%d" % i for i in range(10)))
    silent = await EventReader(context, "s", "g", "r1", dead_after_s=0.5).start()
    await silent.read_events(6, 20_000)
    heartbeats = silent._joined()._heart
    assert heartbeats is not None
    await heartbeats.stop()  # as if its process were stopped
    async with EventReader(context, "s", "g", "r2", dead_after_s=0.5) as heir, asyncio.timeout(DEADLINE_S):
        assert await drain(heir, 10) == [b"%d" % i for i in range(10)]
        assert await group.online_readers() == ["r2"]
        with pytest.raises(ReinitializationRequiredError):
            await fails(silent)
        again = await EventReader(context, "s", "g", "r1", dead_after_s=0.5).start()
        with pytest.raises(ReinitializationRequiredError):
            await fails(silent)  # another session of its name does not make it a member
        await silent.close()
        assert sorted(await group.online_readers()) == ["r1", "r2"]
        await again.close()


async def test_two_readers_share_segments(store: Any, group: ReaderGroup, readers: Any) -> None:
    first, second = await readers("r1"), await readers("r2")
    await share(group, first, second)
    fill(store, 0, b"a")
    fill(store, 1, b"b")
    async with store.grown:
        store.grown.notify_all()
    got = await asyncio.gather(drain(first, 1), drain(second, 1))
    assert sorted(got) == [[b"a"], [b"b"]]


async def test_names_of_readers_are_unique(group: ReaderGroup, readers: Any, context: ClientContext) -> None:
    await readers("r")
    with pytest.raises(AlreadyExistsError, match="online"):
        await EventReader(context, "s", "g", "r").start()


async def test_a_checkpoint_is_an_event_and_covers_all_readers(store: Any, group: ReaderGroup, readers: Any) -> None:
    first, second = await readers("r1"), await readers("r2")
    await share(group, first, second)
    fill(store, 0, b"a", b"b")
    async with store.grown:
        store.grown.notify_all()
    await asyncio.gather(
        *(drain(reader, 2) for reader in (first, second) if STREAM.segment(0) in reader.position.positions)
    )
    checkpoint = asyncio.create_task(group.checkpoint("cp", deadline_s=DEADLINE_S))
    seen: list[str | None] = []

    async def answer(reader: EventReader) -> None:
        while not checkpoint.done():
            item = await reader.read_event(20)
            if item is not None:
                seen.append(item.checkpoint)

    await asyncio.gather(answer(first), answer(second))
    assert seen == ["cp", "cp"]
    cut = (await checkpoint).cuts["s/t"]
    assert cut == StreamCut("s", "t", {0: 18, 1: 0})
    with pytest.raises(IllegalStateError, match="exists already"):
        await group.checkpoint("cp", deadline_s=1)


async def test_a_checkpoint_that_a_later_one_clears_at_once_is_seen(
    context: ClientContext, group: ReaderGroup, readers: Any
) -> None:
    """A checkpoint's caller gets its positions although a later automatic checkpoint removes it from the state."""
    reader = await readers("r")
    await drain(reader)
    other = await ReaderGroupManager(context, "s").open("g")
    asked = asyncio.create_task(group.checkpoint("cp", deadline_s=DEADLINE_S))
    while "cp" not in (await other.state()).due:  # noqa: ASYNC110 - a change in the store has no event
        await asyncio.sleep(0)
    answers = [r.CheckpointReader(name, "r", dict((await other.state()).assigned["r"])) for name in ("cp", "later")]
    later: list[r.Update] = [answers[0], r.CreateCheckpoint("later"), answers[1], r.ClearCheckpointsBefore("later")]
    await other._synchronizer.update_unconditionally(later)
    assert (await asked).cuts["s/t"] == StreamCut("s", "t", {0: 0, 1: 0})


async def test_cuts_are_taken_without_events(store: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, b"a")
    reader = await readers("r")
    await drain(reader, 1)
    cuts = asyncio.create_task(group.stream_cuts(deadline_s=DEADLINE_S))
    while not cuts.done():
        assert await reader.read_event(10) is None
    assert await cuts == {"s/t": StreamCut("s", "t", {0: 9, 1: 0})}


async def test_checkpoints_that_no_reader_answers(group: ReaderGroup, readers: Any) -> None:
    reader = await readers("r")
    await drain(reader)
    with pytest.raises(DeadlineError):
        await group.checkpoint("cp", deadline_s=0.01)
    await group.cancel_outstanding_checkpoints()
    assert (await group.state()).due == {}
    assert await drain(reader) == []


async def test_readers_follow_a_scale_after_a_checkpoint(
    store: Any, controller: Any, group: ReaderGroup, readers: Any
) -> None:
    fill(store, 0, b"0a", b"0b")
    fill(store, 1, b"1a")
    controller.scale([0], (E1 + 2, 0.0, 0.2), (E1 + 3, 0.2, 0.5))
    controller.scale([E1 + 3, 1], (2 * E1 + 4, 0.2, 1.0))
    for identifier, text in ((E1 + 2, b"2a"), (E1 + 3, b"3a"), (2 * E1 + 4, b"4a")):
        fill(store, identifier, text)
    first, second = await readers("r1"), await readers("r2")
    got: list[bytes] = []

    async def read(reader: EventReader, stop: asyncio.Event) -> None:
        while not stop.is_set():
            got.extend(item.event for item in await reader.read_events(10, 20) if item.checkpoint is None)

    stop = asyncio.Event()
    tasks = [asyncio.create_task(read(reader, stop)) for reader in (first, second)]
    for turn in range(20):
        await group.checkpoint(f"cp{turn}", deadline_s=DEADLINE_S)
        if len(got) >= 6:
            break
        await asyncio.sleep(0.3)
    stop.set()
    await asyncio.gather(*tasks)
    assert sorted(got) == [b"0a", b"0b", b"1a", b"2a", b"3a", b"4a"]
    assert got.index(b"3a") > got.index(b"0b")
    assert got.index(b"4a") > max(got.index(b"3a"), got.index(b"1a")), "a merged segment waits for all predecessors"


async def test_automatic_checkpoints_and_published_cuts(
    store: Any, controller: Any, context: ClientContext, readers: Any
) -> None:
    controller.begin((0, 0.0, 1.0))
    fill(store, 0, b"a")
    retention = StreamDataRetention.AUTOMATIC_AT_LAST_CHECKPOINT
    config = group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=50, retention=retention)
    await ReaderGroupManager(context, "s").create("g", config)
    reader = await readers("r")
    for _ in range(60):
        await reader.read_events(10, 50)
        published = [call for method, call in controller.calls if method == "updateSubscriberStreamCut"]
        if published and dict(published[-1].streamCut.cut) != {0: 0}:  # the first may come before the event was read
            break
    assert dict(published[-1].streamCut.cut) == {0: 9}
    assert published[-1].subscriber == "s/g"


async def test_a_stream_that_is_deleted_ends_no_read_of_a_group_that_publishes(
    store: Any, controller: Any, context: ClientContext, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin((0, 0.0, 1.0))
    fill(store, 0, b"a")
    refused: list[StreamName] = []

    async def update_subscriber_cut(_: Any, stream: StreamName, *__: Any) -> None:
        refused.append(stream)
        raise NoSuchStreamError(f"stream {stream} does not exist")

    monkeypatch.setattr(type(context.controller), "update_subscriber_cut", update_subscriber_cut)
    retention = StreamDataRetention.AUTOMATIC_AT_LAST_CHECKPOINT
    config = group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=50, retention=retention)
    await ReaderGroupManager(context, "s").create("g", config)
    reader = await readers("r")
    got: list[bytes] = []
    async with asyncio.timeout(120):
        while not (got and refused):
            got += [item.event for item in await reader.read_events(10, 50) if item.checkpoint is None]
        await reader.read_events(10, 50)
    assert (got, set(refused)) == ([b"a"], {STREAM})


async def test_no_read_waits_for_a_controller_that_does_not_answer(
    store: Any, controller: Any, context: ClientContext, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin((0, 0.0, 1.0))
    fill(store, 0, b"a")
    calls: list[dict[int, int]] = []
    answers = asyncio.Event()

    async def update_subscriber_cut(_: Any, __: StreamName, ___: str, ____: Any, _____: int, cut: Any) -> None:
        calls.append(dict(cut))
        await answers.wait()

    monkeypatch.setattr(type(context.controller), "update_subscriber_cut", update_subscriber_cut)
    retention = StreamDataRetention.AUTOMATIC_AT_LAST_CHECKPOINT
    config = group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=50, retention=retention)
    await ReaderGroupManager(context, "s").create("g", config)
    reader = await readers("r")
    group = await ReaderGroupManager(context, "s").open("g")
    async with asyncio.timeout(120):
        while not calls:
            await reader.read_events(10, 50)
        fill(store, 0, b"b")
        got: list[bytes] = []
        while b"b" not in got:
            got += [item.event for item in await reader.read_events(10, 50) if item.checkpoint is None]
        checkpoint = (await group.state()).last_checkpoint
        while (await group.state()).last_checkpoint == checkpoint:  # more of them are complete meanwhile
            await reader.read_events(10, 50)
        assert len(calls) == 1, "one at a time"
        assert not (await group.state()).published
        answers.set()
        while calls[-1] != {0: 18} or not (await group.state()).published:
            await reader.read_events(10, 50)


@pytest.mark.parametrize("automatic", [False, True])
async def test_the_cut_of_a_checkpoint_has_the_end_of_a_segment_that_was_read_to_it(
    automatic: bool, store: Any, controller: Any, context: ClientContext, readers: Any
) -> None:
    """−1 means so in the state of a group, but "not reached yet" in a cut: it covers nothing there.

    See docs/protocol/naming.md#stream-cuts.
    """
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    fill(store, 0, b"a")
    fill(store, 1, b"b")
    controller.scale([0], (E1 + 2, 0.0, 0.5))
    kinds = StreamDataRetention
    config = group_config(
        {STREAM: None},
        group_refresh_ms=10,
        automatic_checkpoint_ms=200 if automatic else -1,
        retention=kinds.AUTOMATIC_AT_LAST_CHECKPOINT if automatic else kinds.NONE,
    )
    manager = ReaderGroupManager(context, "s")

    async def cut_of(name: str) -> dict[int, int]:
        """The cut of the first checkpoint of a new group, or the first one that it publishes."""
        await manager.create(name, config)
        reader = await readers("r", name)
        assert sorted(await drain(reader, 2)) == [b"a", b"b"]
        group = await manager.open(name)
        asked = asyncio.create_task(group.checkpoint("cp", deadline_s=DEADLINE_S)) if not automatic else None
        while True:
            await reader.read_events(10, 20)
            if asked is not None and asked.done():
                return dict(asked.result().cuts["s/t"].positions)
            published = [call for method, call in controller.calls if method == "updateSubscriberStreamCut"]
            cuts = [dict(call.streamCut.cut) for call in published if call.subscriber.rpartition("/")[2] == name]
            for cut in cuts:
                if cut.get(1):
                    return cut

    async with asyncio.timeout(DEADLINE_S):
        for number in itertools.count():
            cut = await cut_of(f"g{number}")
            if cut != {1: 9, E1 + 2: 0}:  # the reader had begun with the successor before: another group
                break
    assert cut == {0: 9, 1: 9}


async def test_a_group_between_cuts_ends(store: Any, controller: Any, context: ClientContext, readers: Any) -> None:
    controller.begin((0, 0.0, 1.0))
    fill(store, 0, *(b"%d" % i for i in range(10)))
    start, end = StreamCut("s", "t", {0: 18}), StreamCut("s", "t", {0: 45})
    config = group_config({STREAM: start}, end={STREAM: end}, group_refresh_ms=10, automatic_checkpoint_ms=20)
    await ReaderGroupManager(context, "s").create("g", config)
    reader = await readers("r")
    assert await drain(reader, 3) == [b"2", b"3", b"4"]
    for _ in range(100):
        await reader.read_events(10, 50)
        if reader.end_of_data:
            break
    assert reader.end_of_data


async def test_truncated_events_are_reported(store: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, b"a", b"b", b"c")
    store.segments[STREAM.segment(0)].start = 18
    reader = await readers("r")
    with pytest.raises(SegmentTruncatedError, match="18 bytes from offset 0 to 18 were truncated"):
        await fails(reader)
    assert await drain(reader, 1) == [b"c"]


async def test_a_truncation_of_several_segments_is_reported_once(
    store: Any, controller: Any, group: ReaderGroup, readers: Any
) -> None:
    """With both cuts and all bytes; the next truncation is reported again."""
    for each in (0, 1):
        fill(store, each, b"a", b"b", b"c")
    reader = await readers("r")
    await drain(reader, 6)
    for number in (1, 2):
        begin, end = 27 * number, 27 * number + 18
        for each in (0, 1):
            fill(store, each, b"d", b"e", b"f")
            store.segments[STREAM.segment(each)].start = end
            store.drop_all()  # what was fetched ahead is lost
        controller.heads = {0: end, 1: end}
        with pytest.raises(StreamTruncatedError, match=r"of stream s/t 36 bytes in all") as raised:
            await fails(reader)
        assert (raised.value.missed_bytes, raised.value.is_complete) == (36, True)
        assert raised.value.position.positions == {0: begin, 1: begin}
        assert raised.value.head.positions == {0: end, 1: end}
        assert sorted(await drain(reader, 2)) == [b"f", b"f"]


async def test_a_report_that_was_interrupted_is_made_by_the_next_call(
    store: Any, controller: Any, group: ReaderGroup, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 0, b"a", b"b", b"c")
    store.segments[STREAM.segment(0)].start = 18
    reader = await readers("r")

    def away(request: Any) -> Any:
        raise UnavailableError("the controller is away")

    controller.answers["getSegmentsBetween"] = away
    with monkeypatch.context() as shortly:
        shortly.setattr(reader._context.controller, "_deadline_s", 0.05)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await fails(reader)
    del controller.answers["getSegmentsBetween"]
    with pytest.raises(StreamTruncatedError, match="18 bytes in all"):
        await fails(reader)
    assert await drain(reader, 1) == [b"c"]


async def test_bytes_that_are_no_events_are_corruption(store: Any, group: ReaderGroup, readers: Any) -> None:
    store.segments[STREAM.segment(0)].data += b"garbage here"
    reader = await readers("r")
    with pytest.raises(CorruptionError, match=STREAM.segment(0)):
        await fails(reader)


async def test_a_segment_that_cannot_be_read_does_not_hold_up_the_others(
    store: Any, controller: Any, context: ClientContext
) -> None:
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    await ReaderGroupManager(context, "s").create("g", group_config({STREAM: None}, automatic_checkpoint_ms=-1))
    store.segments[STREAM.segment(0)].data += b"garbage here"
    fill(store, 1, b"a")
    async with EventReader(context, "s", "g", "r") as reader, asyncio.timeout(DEADLINE_S):
        found: list[bytes] = []
        while not found:
            with contextlib.suppress(CorruptionError):
                found = [each.event for each in await reader.read_events(10, 10)]
    assert found == [b"a"]


async def test_a_read_call_waits_for_other_segments_than_one_that_cannot_be_read(
    store: Any, controller: Any, context: ClientContext
) -> None:
    """An application that reads on after the error would otherwise get nothing else, and let no other task run."""
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    await ReaderGroupManager(context, "s").create("g", group_config({STREAM: None}, automatic_checkpoint_ms=-1))
    store.segments[STREAM.segment(0)].data += b"garbage here"
    async with EventReader(context, "s", "g", "r") as reader:
        with pytest.raises(CorruptionError, match=STREAM.segment(0)):
            await fails(reader)
        reading = asyncio.create_task(reader.read_events(1, int(DEADLINE_S * 1000)))
        await asyncio.sleep(0)
        async with store.grown:
            fill(store, 1, b"a")
            store.grown.notify_all()
        assert [each.event for each in await reading] == [b"a"]
        with pytest.raises(CorruptionError, match=STREAM.segment(0)):
            await reader.read_events(1, 10)


async def test_a_reset_starts_again_and_ends_old_readers(store: Any, group: ReaderGroup, readers: Any) -> None:
    fill(store, 0, b"a")
    old = await readers("r1")
    assert await drain(old, 1) == [b"a"]
    await group.reset()
    with pytest.raises(ReinitializationRequiredError):
        await fails(old)
    fresh = await readers("r1")
    assert await drain(fresh, 1) == [b"a"]
    assert (await group.state()).config.generation == 1
    assert not (await group.state()).updating_config


async def test_a_reset_begun_by_a_dead_client_is_finished_by_a_reader(
    store: Any, controller: Any, group: ReaderGroup, readers: Any
) -> None:
    reader = await readers("r1")
    await group._synchronizer.fetch()
    await group._synchronizer.update(lambda _: [r.UpdatingConfig(True)])
    controller.groups["g"].generation = 1
    with pytest.raises(ReinitializationRequiredError):
        await fails(reader)
    assert (await group.state()).config.generation == 1


async def test_another_configuration_is_refused(group: ReaderGroup, context: ClientContext) -> None:
    with pytest.raises(AlreadyExistsError, match="another configuration"):
        await ReaderGroupManager(context, "s").create("g", group_config({STREAM: None}, group_refresh_ms=11))
    with pytest.raises(NoSuchReaderGroupError):
        await ReaderGroupManager(context, "s").open("missing")


async def test_state_is_compacted_and_read_from_the_mark(
    store: Any, group: ReaderGroup, readers: Any, context: ClientContext
) -> None:
    fill(store, 0, b"a")
    reader = await readers("r")
    await drain(reader, 1)
    synchronizer = group._synchronizer
    await synchronizer.fetch()
    assert await synchronizer.compact()
    before = (await group.state()).coarse_positions()
    segment = store.segments["s/_RGg/0.#epoch.0"]
    assert segment.start == 0, "the first compaction truncates nothing"
    await synchronizer.update(lambda _: [r.CreateCheckpoint("x_SILENT_")])
    assert await synchronizer.compact()
    assert segment.start > 0
    other = await ReaderGroupManager(context, "s").open("g")
    assert (await other.state()).coarse_positions() == before
    assert (await other.state()).checkpoints == ["x_SILENT_"]
    await drain(reader)
    assert reader.position.positions[STREAM.segment(0)] == 9


@pytest.mark.parametrize("kind", [c.ConditionalAppend, c.ReadSegment, c.GetStreamSegmentInfo])
@pytest.mark.parametrize("after", [False, True])
async def test_lost_connections_do_not_disturb_the_group(
    store: Any, group: ReaderGroup, readers: Any, kind: type[c.Command], after: bool
) -> None:
    fill(store, 0, *(b"%d" % i for i in range(50)))
    store.cut(kind, times=3, after=after)
    first = await readers("r1")
    got = [item.event for item in await first.read_events(20, 20_000)]
    await first.close()
    second = await readers("r2")
    assert got + await drain(second, 50 - len(got)) == [b"%d" % i for i in range(50)]
