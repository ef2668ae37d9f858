"""The event writer: exactly once through lost connections, order per key through scaling, bounds, large events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.hashing import key_position
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    IllegalStateError,
    OverloadedError,
    PermissionDeniedError,
    SegmentSealedError,
)
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
Split = Callable[[bytes | bytearray], list[bytes]]
E1 = 1 << 32


@pytest.fixture
async def writer(controller: Any, context: ClientContext) -> AsyncIterator[EventWriter]:
    controller.begin((0, 0.0, 1.0))
    writer = await EventWriter(context, STREAM).start()
    yield writer
    await writer.abandon()


def stored(store: Any, split: Split) -> list[bytes]:
    """All events of the stream, segment after segment in the order of their numbers."""
    return [event for name in sorted(store.segments) for event in split(store.segments[name].data)]


async def test_events_are_stored_in_order_and_acknowledged(store: Any, writer: EventWriter, split: Split) -> None:
    events = [b"%d" % i for i in range(1000)]
    futures = [writer.write_event(event, "key") for event in events[:500]]
    futures.append(writer.write_events(events[500:], "key"))
    await asyncio.gather(*futures)
    assert stored(store, split) == events
    blocks = [command for command in store.seen if isinstance(command, c.AppendBlockEnd)]
    assert sum(block.num_events for block in blocks) == 1000
    assert blocks[-1].last_event_number == 1000
    assert len(blocks) < 10, "events that are written together travel together"


async def test_keys_decide_the_segment(store: Any, controller: Any, context: ClientContext, split: Split) -> None:
    controller.begin((0, 0.0, 0.25), (1, 0.25, 0.5), (2, 0.5, 1.0))
    async with EventWriter(context, STREAM) as writer:
        for i in range(300):
            writer.write_event(b"%d" % i, str(i))
    for identifier, (low, high) in enumerate([(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)]):
        expected = [b"%d" % i for i in range(300) if low <= key_position(str(i)) < high]
        assert split(store.segments[STREAM.segment(identifier)].data) == expected


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [c.AppendBlockEnd, c.SetupAppend])
async def test_a_lost_connection_neither_loses_nor_repeats_events(
    store: Any, writer: EventWriter, split: Split, kind: type[c.Command], after: bool
) -> None:
    store.cut(kind, times=3, after=after)
    events = [b"%d" % i for i in range(200)]
    for start in range(0, 200, 10):
        writer.write_events(events[start : start + 10], "key")
        await asyncio.sleep(0.001)
    await writer.flush()
    assert stored(store, split) == events


async def test_connections_that_die_at_random_moments(
    store: Any, writer: EventWriter, split: Split, test_seed: int
) -> None:
    random = Random(test_seed)
    written: list[bytes] = []
    for turn in range(60):
        batch = [b"%d.%d" % (turn, i) for i in range(random.randrange(1, 20))]
        writer.write_events(batch, "key")
        written += batch
        await asyncio.sleep(random.choice([0, 0, 0.0005, 0.003]))
        if random.random() < 0.2:
            store.drop_all()
    await writer.flush()
    assert stored(store, split) == written


async def test_order_per_key_survives_splits_and_merges(
    store: Any, controller: Any, context: ClientContext, split: Split
) -> None:
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    keys = [str(i) for i in range(20)]
    async with EventWriter(context, STREAM) as writer:
        for turn in range(90):
            for key in keys:
                writer.write_event(f"{key}:{turn}".encode(), key)
            if turn == 20:
                controller.scale([0], (E1 + 2, 0.0, 0.1), (E1 + 3, 0.1, 0.5))
            if turn == 40:
                controller.scale([E1 + 3, 1], (2 * E1 + 4, 0.1, 1.0))
            if turn == 60:
                controller.scale([E1 + 2, 2 * E1 + 4], (3 * E1 + 5, 0.0, 1.0))
            await asyncio.sleep(0.001)
    order: dict[str, list[int]] = {key: [] for key in keys}
    for identifier in (0, 1, E1 + 2, E1 + 3, 2 * E1 + 4, 3 * E1 + 5):
        data = split(store.segments[STREAM.segment(identifier)].data)
        assert data, "every segment got events"
        for event in data:
            key, turn_text = event.decode().split(":")
            order[key].append(int(turn_text))
    assert all(turns == list(range(90)) for turns in order.values())


async def test_events_for_a_sealed_stream_fail(store: Any, controller: Any, writer: EventWriter) -> None:
    await writer.write_event(b"one")
    store.segments[STREAM.segment(0)].sealed = True
    controller.active = []
    future = writer.write_event(b"two")
    with pytest.raises(SegmentSealedError, match="s/t"):
        await future
    with pytest.raises(SegmentSealedError):
        writer.write_event(b"three")
    with pytest.raises(SegmentSealedError):
        await writer.flush()


async def test_a_sealed_stream_cannot_be_opened(controller: Any, context: ClientContext) -> None:
    with pytest.raises(SegmentSealedError):
        await EventWriter(context, STREAM).start()
    with pytest.raises(IllegalStateError, match="not started"):
        EventWriter(context, STREAM).write_event(b"x")


async def test_a_refused_writer_ends(store: Any, writer: EventWriter) -> None:
    store.answer(c.SetupAppend, lambda i: c.AuthTokenCheckFailed(i, "", 0))
    with pytest.raises(PermissionDeniedError):
        await writer.write_event(b"x")


async def test_a_wrong_host_is_asked_for_again(store: Any, writer: EventWriter, controller: Any, split: Split) -> None:
    store.answer(c.AppendBlockEnd, lambda i: c.WrongHost(i, STREAM.segment(0), ""), times=2)
    store.answer(c.SetupAppend, lambda i: c.WrongHost(i, STREAM.segment(0), ""))
    await writer.write_events([b"a", b"b"], "k")
    assert stored(store, split) == [b"a", b"b"]
    assert [method for method, _ in controller.calls].count("getURI") == 4


async def test_bytes_under_way_are_bounded(
    store: Any, writer: EventWriter, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITER_BUFFERED_MAX_BYTES", 10_000)
    store.rules.append(lambda command: [] if isinstance(command, c.AppendBlockEnd) else None)
    for _ in range(10):
        writer.write_event(bytes(1000))
    with pytest.raises(OverloadedError):
        writer.write_event(b"one more")
    ready = asyncio.create_task(writer.ready())
    await asyncio.sleep(0.01)
    assert not ready.done()
    store.rules.clear()
    store.drop_all()
    await ready
    await writer.flush()
    assert len(stored(store, split)) == 10


async def test_a_large_batch_keeps_the_bound_on_bytes_under_way(
    store: Any, writer: EventWriter, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITER_BUFFERED_MAX_BYTES", limits.MIB)
    batch = [bytes(limits.MIB - 8)] * 9
    store.rules.append(lambda command: [] if isinstance(command, c.AppendBlockEnd) else None)
    writer.write_events(batch, "k")
    with pytest.raises(OverloadedError, match="not durable yet"):
        writer.write_events(batch, "k")
    store.rules.clear()
    store.drop_all()
    await writer.ready()
    await writer.write_events(batch, "k")
    assert stored(store, split) == batch * 2


async def test_a_large_batch_is_written_in_parts_in_order(store: Any, writer: EventWriter, split: Split) -> None:
    events = [bytes([i]) * (limits.MIB - 8) for i in range(12)]
    await writer.write_events(events, "k")
    assert stored(store, split) == events


@pytest.mark.parametrize(
    "kind",
    [None, c.CreateTransientSegment, c.ConditionalBlockEnd, c.MergeSegments],
    ids=lambda kind: kind.__name__ if kind else "undisturbed",
)
async def test_large_events_keep_their_place(
    store: Any, writer: EventWriter, split: Split, kind: type[c.Command] | None
) -> None:
    large = Random(1).randbytes(limits.EVENT_MAX_BYTES + 100_000)
    if kind is not None:
        store.cut(kind)
    writer.write_event(b"before", "k")
    writer.write_event(large, "k")
    writer.write_event(b"after", "k")
    await writer.flush()
    assert split(store.segments[STREAM.segment(0)].data) == [b"before", large, b"after"]


async def test_wrong_arguments_are_refused(writer: EventWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequestError, match="list of events is empty"):
        writer.write_events([])
    monkeypatch.setattr(limits, "WRITER_EVENT_MAX_BYTES", 100)
    with pytest.raises(BadRequestError, match="too large"):
        writer.write_event(bytes(101))


async def test_an_abandoned_writer_fails_what_waits(store: Any, writer: EventWriter) -> None:
    store.rules.append(lambda command: [] if isinstance(command, c.AppendBlockEnd) else None)
    future = writer.write_event(b"x")
    await asyncio.sleep(0.01)
    await writer.abandon()
    with pytest.raises(Exception, match="closed"):
        await future
    with pytest.raises(IllegalStateError, match="closed"):
        writer.write_event(b"y")


# -- noted times


def noted(controller: Any) -> dict[int, int]:
    """The position of the last time that was noted: offset by segment."""
    requests = [request for method, request in controller.calls if method == "noteTimestampFromWriter"]
    return dict(requests[-1].position.cut)


@pytest.mark.parametrize("large", [False, True])
async def test_a_noted_time_lies_behind_all_acknowledged_events(
    store: Any, controller: Any, writer: EventWriter, large: bool
) -> None:
    """Also behind one whose acknowledgement is lost, and one that is written through a transient segment."""
    await writer.write_event(b"first", "k")
    await writer.note_time(1)
    assert noted(controller) == {0: len(store.segments[STREAM.segment(0)].data)}
    if not large:
        store.cut(c.AppendBlockEnd, after=True)
    await writer.write_event(bytes(limits.EVENT_MAX_BYTES + 1) if large else b"second", "k")
    await writer.note_time(2)
    length = len(store.segments[STREAM.segment(0)].data)
    assert length > len(b"first") + 8 + len(b"second")
    assert noted(controller) == {0: length}
