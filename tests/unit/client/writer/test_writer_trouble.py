"""Writers in trouble: long pauses, wrong arguments, outcomes in doubt, cancelled calls, clients closed too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, cast

import pytest
import structlog

from harness.localtransport import LocalTransport
from tailrace.client.byte_stream import ByteStreamWriter
from tailrace.client.connections.connection import Connection
from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.client.writer.transactions import TransactionalWriter
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, IllegalStateError, SegmentSealedError, TailraceError
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

from ..conftest import TinyStore

STREAM = StreamName("s", "t")
SEGMENT = STREAM.segment(0)
Split = Callable[[bytes | bytearray], list[bytes]]
E1 = 1 << 32
DEADLINE_S = 120.0


@pytest.fixture
async def writer(controller: Any, context: ClientContext) -> AsyncIterator[EventWriter]:
    controller.begin((0, 0.0, 1.0))
    writer = await EventWriter(context, STREAM).start()
    yield writer
    await writer.abandon()


def stored(store: Any, split: Split) -> list[bytes]:
    """All events of the stream, segment after segment in the order of their numbers."""
    names = [name for name in sorted(store.segments) if "#transient" not in name]
    return [event for name in names for event in split(store.segments[name].data)]


def hold_appends(store: Any) -> None:
    """Appends get no answer from now on."""
    store.rules.append(lambda command: [] if isinstance(command, c.AppendBlockEnd) else None)


def lose_merges(store: Any, cut: Exception, times: int) -> None:
    """The first merge has its effect, but the connection ends; the next ones do not even arrive."""
    merges = 0

    def before(command: c.Command) -> None:
        nonlocal merges
        merges += isinstance(command, c.MergeSegments)
        if isinstance(command, c.MergeSegments) and 1 < merges <= times:
            raise cut

    store.rules.append(before)
    store.cut(c.MergeSegments, after=True)


# -- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost_answer", [False, True])
async def test_a_pause_is_not_counted_as_trouble(
    store: Any, writer: EventWriter, split: Split, monkeypatch: pytest.MonkeyPatch, lost_answer: bool
) -> None:
    """Only time in which something waits counts before a writer gives up."""
    if lost_answer:
        store.cut(c.AppendBlockEnd, after=True)
    await writer.write_event(b"one", "k")
    if not lost_answer:
        store.drop_all()
    # Nothing is written for longer than the writer would wait for a server: its last progress was long ago.
    monkeypatch.setattr(writer._writers[0], "_stuck_since_s", writer._writers[0]._stuck_since_s - 1000.0)
    assert limits.WRITER_GIVE_UP_S < 1000
    store.cut(c.AppendBlockEnd)
    store.cut(c.SetupAppend)
    await writer.write_event(b"two", "k")
    assert stored(store, split) == [b"one", b"two"]


async def test_a_server_that_stays_away_ends_the_writer(
    store: Any, writer: EventWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITER_GIVE_UP_S", 0.2)
    store.cut(c.SetupAppend, times=1000)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(TailraceError):
            await writer.write_event(b"one", "k")


@pytest.mark.parametrize("moved", [True, False])
async def test_a_frozen_server_is_left_when_the_controller_names_another(
    store: Any,
    controller: Any,
    writer: EventWriter,
    split: Split,
    monkeypatch: pytest.MonkeyPatch,
    moved: bool,
) -> None:
    """Its connections stay open and nothing comes, so only the controller can say that the segment has moved."""
    monkeypatch.setattr(limits, "WRITER_ASK_AGAIN_S", 0.1)
    await writer.write_event(b"one", "k")
    hold_appends(store)
    other = TinyStore()
    other.segments = store.segments  # the log outlives its owner
    await other.start()
    try:
        waiting = writer.write_event(b"two", "k")
        asked = len([method for method, _ in controller.calls if method == "getURI"])
        if moved:
            node = pb.NodeUri(endpoint=other.endpoint.host, port=other.endpoint.port)
            controller.answers["getURI"] = lambda _: node
            async with asyncio.timeout(DEADLINE_S):
                await waiting
            assert stored(store, split) == [b"one", b"two"]
            assert store.connections == other.connections == 1
        else:
            await asyncio.sleep(0.5)
            assert len([method for method, _ in controller.calls if method == "getURI"]) >= asked + 2
            assert store.connections == 1, "the segment is where it was, so the connection is kept"
    finally:
        await writer.abandon()
        await other.stop()


async def test_a_frozen_server_is_left_also_when_others_have_filled_the_connection(
    store: Any, controller: Any, writer: EventWriter, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing of this writer is in flight."""
    monkeypatch.setattr(limits, "WRITER_ASK_AGAIN_S", 0.1)
    await writer.write_event(b"one", "k")
    full = writer._writers[0]._connection
    monkeypatch.setattr(Connection, "writable", property(lambda connection: connection is not full))
    other = TinyStore()
    other.segments = store.segments  # the log outlives its owner
    await other.start()
    try:
        waiting = writer.write_event(b"two", "k")
        node = pb.NodeUri(endpoint=other.endpoint.host, port=other.endpoint.port)
        controller.answers["getURI"] = lambda _: node
        async with asyncio.timeout(DEADLINE_S):
            await waiting
        assert stored(store, split) == [b"one", b"two"]
        assert other.connections == 1
    finally:
        await writer.abandon()
        await other.stop()


async def test_an_unexpected_error_ends_the_writer_and_fails_its_events(
    store: Any, controller: Any, writer: EventWriter
) -> None:
    await writer.write_event(b"a", "k")

    def broken(_: object) -> object:
        raise ZeroDivisionError("a defect")

    controller.answers["getURI"] = broken
    store.drop_all()
    hold_appends(store)
    written = writer.write_event(b"b", "k")
    async with asyncio.timeout(DEADLINE_S):
        for waiting in (written, writer.flush()):
            with pytest.raises(IllegalStateError, match="ZeroDivisionError: a defect"):
                await waiting
    with pytest.raises(IllegalStateError, match="ZeroDivisionError: a defect"):
        writer.write_event(b"c", "k")


async def test_an_idle_writer_asks_for_nothing(
    store: Any, controller: Any, writer: EventWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITER_ASK_AGAIN_S", 0.02)
    await writer.write_event(b"one", "k")
    calls = len(controller.calls)
    await asyncio.sleep(0.2)
    assert len(controller.calls) == calls


async def test_the_reason_of_a_long_wait_is_logged_once(
    store: Any, writer: EventWriter, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_WAIT_NOTICE_S", 0.05)
    for _ in range(2):
        store.drop_all()
        store.cut(c.SetupAppend, times=8)
        structlog.configure()  # an application that has its own logs
        with structlog.testing.capture_logs() as logs:
            async with asyncio.timeout(DEADLINE_S):
                await writer.write_event(b"one", "k")
        (notice,) = [each for each in logs if each["event"] == "write_waits"]
        assert "ConnectionLostError" in notice["reason"]
        assert notice["segment"].startswith("s/t/")
    assert stored(store, split) == [b"one", b"one"]


# -- arguments ------------------------------------------------------------------------------------------------------


async def test_events_that_are_no_bytes_are_refused_before_they_harm_others(
    store: Any, writer: EventWriter, split: Split
) -> None:
    wrong: Any = "text"
    with pytest.raises(BadRequestError, match="str"):
        writer.write_event(wrong, "k")
    with pytest.raises(BadRequestError, match="int"):
        writer.write_events([b"a", cast("bytes", 5)], "k")
    await writer.write_event(b"good", "k")
    assert stored(store, split) == [b"good"]


async def test_buffers_are_copied_when_they_are_taken(store: Any, writer: EventWriter, split: Split) -> None:
    buffer: Any = bytearray(b"as it was")
    one = writer.write_event(buffer, "k")
    two = writer.write_events([b"x", cast("bytes", memoryview(buffer))], "k")
    buffer[:] = b"later!!!!"
    await asyncio.gather(one, two)
    assert stored(store, split) == [b"as it was", b"x", b"as it was"]


# -- large events ---------------------------------------------------------------------------------------------------


async def test_a_large_event_whose_merge_stays_in_doubt_for_long_is_not_stored_twice(
    store: Any, context: ClientContext, writer: EventWriter, split: Split, cut: Exception
) -> None:
    """The answer of the merge is lost and the server is away for longer than one request may take."""
    large = Random(1).randbytes(limits.EVENT_MAX_BYTES + 1000)
    context.segments._deadline_s = 0.1
    lose_merges(store, cut, 8)
    async with asyncio.timeout(DEADLINE_S):
        await writer.write_event(large, "k")
        await writer.write_event(b"after", "k")
    assert stored(store, split) == [large, b"after"]


async def test_a_segment_that_goes_while_a_merge_is_in_doubt_takes_the_event_once(
    store: Any, controller: Any, writer: EventWriter, split: Split, cut: Exception
) -> None:
    """The merge happened, its answer was lost, and the segment is sealed before the client asks again."""
    large = Random(1).randbytes(limits.EVENT_MAX_BYTES + 1000)
    merges = 0

    def before(command: c.Command) -> list[c.Command] | None:
        nonlocal merges
        if isinstance(command, c.MergeSegments):
            merges += 1
            if merges == 2:
                controller.scale([0], (E1 + 1, 0.0, 1.0))
                raise cut
        if isinstance(command, c.SetupAppend) and command.segment == SEGMENT and merges:
            return [c.NoSuchSegment(command.request_id, SEGMENT)]
        return None

    store.rules.append(before)
    store.cut(c.MergeSegments, after=True)
    async with asyncio.timeout(DEADLINE_S):
        await writer.write_event(large, "k")
        await writer.write_event(b"after", "k")
    assert stored(store, split) == [large, b"after"]


async def test_a_merge_in_doubt_for_ever_fails_the_event_instead_of_storing_it_again(
    store: Any,
    context: ClientContext,
    writer: EventWriter,
    split: Split,
    cut: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = Random(1).randbytes(limits.EVENT_MAX_BYTES + 1000)
    monkeypatch.setattr(limits, "LARGE_EVENT_DOUBT_S", 0.2)
    context.segments._deadline_s = 0.1
    lose_merges(store, cut, 1000)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(IllegalStateError, match="it is unknown whether a large event was appended"):
            await writer.write_event(large, "k")
    assert stored(store, split) == [large]


# -- cancelled calls ------------------------------------------------------------------------------------------------


async def test_flush_waits_for_events_whose_futures_were_cancelled(
    store: Any, writer: EventWriter, split: Split
) -> None:
    hold_appends(store)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.write_event(b"one", "k"), 0.01)
    flushing = asyncio.create_task(writer.flush())
    await asyncio.sleep(0.01)
    assert not flushing.done(), "the event is in flight although its caller was cancelled"
    store.rules.clear()
    store.drop_all()
    async with asyncio.timeout(DEADLINE_S):
        await flushing
    assert stored(store, split) == [b"one"]


async def test_a_cancelled_close_leaves_nothing_waiting(store: Any, no_leaks: None, writer: EventWriter) -> None:
    hold_appends(store)
    future = writer.write_event(b"one", "k")
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.sleep(0)
    closing.cancel()  # once more, while it tidies up
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(TailraceError, match="closed"):
            await future


async def test_cancelled_flushes_and_writes_neither_lose_nor_repeat(
    store: Any, writer: EventWriter, split: Split, test_seed: int
) -> None:
    random = Random(test_seed)
    written: list[bytes] = []
    for turn in range(80):
        event = b"%d" % turn
        future = writer.write_event(event, "k")
        written.append(event)
        waiting = asyncio.create_task(writer.flush()) if turn % 2 else future
        await asyncio.sleep(random.choice([0, 0, 0.0005]))
        waiting.cancel()
        if random.random() < 0.1:
            store.drop_all()
    async with asyncio.timeout(DEADLINE_S):
        await writer.flush()
    assert stored(store, split) == written


async def test_waiting_for_room_holds_for_every_waiter(
    store: Any, writer: EventWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITER_BUFFERED_MAX_BYTES", 1000)

    async def one_of_many(number: int) -> None:
        for _ in range(5):
            await writer.ready()
            await writer.write_event(bytes(900), str(number))

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(one_of_many(number) for number in range(10)))


# -- the client's end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connecting", [False, True])
async def test_closing_the_client_ends_its_writers(
    store: Any, controller: Any, connecting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin((0, 0.0, 1.0))
    context = ClientContext(LocalTransport(controller.handle))
    writer = await EventWriter(context, STREAM).start()
    kind = c.Hello if connecting else c.AppendBlockEnd
    store.rules.append(lambda command: [] if isinstance(command, kind) else None)
    future = writer.write_event(b"one", "k")
    await asyncio.sleep(0.02)
    await context.close()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(TailraceError, match="closed"):
            await future
        with pytest.raises(TailraceError, match="closed"):
            await writer.flush()
        await writer.abandon()


async def test_retired_connections_end_when_no_caller_uses_them(
    store: Any, context: ClientContext, writer: EventWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that opens writers all the time does not collect connections."""
    monkeypatch.setattr(limits, "SETUP_APPENDS_PER_CONNECTION_MAX", 2)
    for _ in range(10):
        async with EventWriter(context, STREAM) as other:
            await other.write_event(b"x", "k")
    async with asyncio.timeout(DEADLINE_S):
        while store.open_connections > 2:  # noqa: ASYNC110  # no event to wait for
            await asyncio.sleep(0.005)
    assert store.connections >= 5


# -- sealed segments ------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_being_sealed_reports_it(store: Any, controller: Any, writer: EventWriter) -> None:
    """The segment is sealed already, the controller still lists it."""
    await writer.write_event(b"one", "k")
    store.segments[SEGMENT].sealed = True
    active = list(controller.active)
    asked = 0

    def current(_: object) -> pb.SegmentRanges:
        nonlocal asked
        asked += 1
        return pb.SegmentRanges(segmentRanges=active if asked < 4 else [])

    controller.answers["getCurrentSegments"] = current
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(SegmentSealedError, match="s/t"):
            await writer.write_event(b"two", "k")


async def test_successors_may_be_shown_after_the_seal(
    store: Any, controller: Any, writer: EventWriter, split: Split
) -> None:
    await writer.write_event(b"one", "k")
    controller.scale([0], (E1 + 1, 0.0, 1.0))
    following = controller.following.pop(0)
    active, controller.active = controller.active, [controller.segment(0, 0.0, 1.0, create=False)]
    asked = 0

    def successors(_: object) -> pb.SuccessorResponse:
        nonlocal asked
        asked += 1
        if asked == 3:
            controller.active = active
        return pb.SuccessorResponse(segments=following if asked >= 3 else [])

    controller.answers["getSegmentsImmediatelyFollowing"] = successors
    async with asyncio.timeout(DEADLINE_S):
        await writer.write_event(b"two", "k")
    assert split(store.segments[STREAM.segment(E1 + 1)].data) == [b"two"]


# -- leaving by an exception ----------------------------------------------------------------------------------------


async def test_an_exception_does_not_wait_for_a_server_that_is_away(
    store: Any, controller: Any, context: ClientContext
) -> None:
    controller.begin((0, 0.0, 1.0))
    hold_appends(store)

    async def fail_with_bytes() -> None:
        async with ByteStreamWriter(context, STREAM) as writer:
            await writer.write(b"x")
            raise ZeroDivisionError

    async def fail_with_events() -> None:
        async with EventWriter(context, STREAM) as writer:
            writer.write_event(b"x")
            raise ZeroDivisionError

    for fail in (fail_with_bytes, fail_with_events):
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ZeroDivisionError):
                await fail()


async def test_a_failed_writer_that_is_asked_again_and_again_grows_no_traceback(
    store: Any, controller: Any, writer: EventWriter
) -> None:
    store.segments[SEGMENT].sealed = True
    controller.active = []
    with pytest.raises(SegmentSealedError):
        await writer.write_event(b"x")
    for _ in range(50):
        with pytest.raises(SegmentSealedError) as caught:
            writer.write_event(b"x")
        with pytest.raises(SegmentSealedError):
            await writer.ready()
    depth, place = 0, caught.value.__traceback__
    while place is not None:
        depth, place = depth + 1, place.tb_next
    assert depth < 10


async def test_a_cancelled_close_of_transactions_ends_all_pings(
    store: Any, controller: Any, context: ClientContext, no_leaks: None
) -> None:
    controller.begin((0, 0.0, 1.0))
    writer = TransactionalWriter(context, STREAM, lease_ms=60)
    for _ in range(3):
        await writer.begin()
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("ping")]
