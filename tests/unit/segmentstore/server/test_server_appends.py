"""Appends over a real socket: forms, numbers, acknowledgements, conditions, failures.

See docs/protocol/wire.md#appends.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.segmentstore.api import AppendRequest
from tailrace.wire import codec
from tailrace.wire import commands as c

MIN = -(2**63)
W = bytes(range(16))
V = bytes(range(100, 116))
SEGMENT = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"


def end(number: int, data: bytes = b"", *, whole: int = 0, events: int = 1, writer: bytes = W) -> c.AppendBlockEnd:
    return c.AppendBlockEnd(writer, whole, data, events, number, 1000 + number)


def ack(number: int, previous: int, length: int, writer: bytes = W) -> c.DataAppended:
    return c.DataAppended(writer, number, previous, 1000 + number, length)


async def test_the_three_forms(client: Any) -> None:
    await client.create(SEGMENT)
    assert await client.setup(W, SEGMENT) == MIN
    assert await client.call(end(1, b"aa")) == ack(1, MIN, 2)
    client.send(c.AppendBlock(W, b"bbb"), end(2, whole=3))
    assert await client.receive() == ack(2, 1, 5)
    client.send(c.AppendBlock(W, b"cc" + codec.encode(c.PartialEvent(b"dd"))), end(4, b"ee", whole=2, events=2))
    assert await client.receive() == ack(4, 2, 11)
    client.send(c.AppendBlock(W, b"ff" + codec.encode(c.Padding(30))), end(5, whole=2))
    assert await client.receive() == ack(5, 4, 13)
    assert await client.read_all(SEGMENT) == b"aabbbccddeeff"


async def test_event_count_and_writer_attribute(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    for number, events in ((3, 3), (10, 7)):
        await client.call(end(number, b"x", events=events))
    count = b"\x80" + bytes(14) + b"\1"
    assert await client.call(c.GetSegmentAttribute(5, SEGMENT, count, "")) == c.SegmentAttribute(5, 10)
    assert await client.call(c.GetSegmentAttribute(6, SEGMENT, W, "")) == c.SegmentAttribute(6, 10)


async def test_bytes_that_trickle_in(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    frames = codec.encode(c.AppendBlock(W, b"abc" + codec.encode(c.PartialEvent(b"de")))) + codec.encode(
        end(1, b"f", whole=3)
    )
    for index in range(len(frames)):
        client.send_raw(frames[index : index + 1])
        await asyncio.sleep(0)
    assert await client.receive() == ack(1, MIN, 6)
    assert await client.read_all(SEGMENT) == b"abcdef"


async def test_many_pipelined_appends_arrive_in_order(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    blocks = [bytes([number % 256]) * (number * 37 % 3000) for number in range(1, 301)]
    for number, block in enumerate(blocks, 1):
        client.send(c.AppendBlock(W, block + codec.encode(c.Padding(number % 50))), end(number, whole=len(block)))
    acked = MIN
    while acked < 300:
        reply = await client.expect(c.DataAppended)
        assert reply.previous_event_number == acked
        assert reply.event_number > acked
        assert reply.request_id == 1000 + reply.event_number
        assert reply.current_segment_write_offset == sum(map(len, blocks[: reply.event_number]))
        acked = reply.event_number
    assert await client.read_all(SEGMENT) == b"".join(blocks)


async def test_a_block_of_several_megabytes(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    data = bytes(range(256)) * 4096 * 6
    client.send(c.AppendBlock(W, data + codec.encode(c.PartialEvent(data))), end(1, data, whole=len(data)))
    assert await client.receive() == ack(1, MIN, 3 * len(data))
    assert await client.read_all(SEGMENT) == data * 3


async def test_keep_alive_and_padding_inside_a_block(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    client.send(c.AppendBlock(W, b"abc"), c.KeepAlive(), c.Padding(5), end(1, whole=3))
    assert await client.receive() == c.KeepAlive()
    assert await client.receive() == ack(1, MIN, 3)


async def test_a_new_connection_learns_the_last_number(setting: Any) -> None:
    first, second = await setting.connect(), await setting.connect()
    await first.create(SEGMENT)
    await first.setup(W, SEGMENT)
    await first.call(end(7, b"x"))
    assert await second.setup(W, SEGMENT) == 7
    assert await second.call(end(8, b"y")) == ack(8, 7, 2)
    first.send(end(9, b"z"))
    assert await first.receive() == c.InvalidEventNumber(W, 1009, "", 9)
    await first.expect_end()
    assert await second.read_all(SEGMENT) == b"xy"


async def test_the_latest_setup_decides_the_segment(client: Any) -> None:
    await client.create(SEGMENT)
    await client.create(OTHER)
    await client.setup(W, SEGMENT)
    await client.call(end(1, b"a"))
    assert await client.setup(W, OTHER) == MIN
    assert await client.call(end(1, b"b")) == ack(1, MIN, 1)
    assert await client.setup(W, SEGMENT) == 1
    assert await client.read_all(OTHER) == b"b"


async def test_the_same_number_again_is_stored_once(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    assert await client.call(end(5, b"a")) == ack(5, MIN, 1)
    assert await client.call(end(5, b"a")) == ack(5, 4, 1)
    assert await client.read_all(SEGMENT) == b"a"


async def test_conditional_appends(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    assert await client.call(c.ConditionalAppend(W, 1, 0, b"ab", 71)) == c.DataAppended(W, 1, MIN, 71, 10)
    assert await client.call(c.ConditionalBlockEnd(W, 2, 0, b"cd", 72)) == c.ConditionalCheckFailed(W, 2, 72)
    assert await client.call(c.ConditionalBlockEnd(W, 2, 10, b"cd", 73)) == c.DataAppended(W, 2, 1, 73, 12)
    assert await client.read_all(SEGMENT) == bytes.fromhex("0000000000000002") + b"abcd"


async def test_every_conditional_append_has_its_own_reply(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    client.send(*(c.ConditionalBlockEnd(W, number, (number - 1) * 2, b"ab", number) for number in range(1, 6)))
    for number in range(1, 6):
        previous = number - 1 if number > 1 else MIN
        assert await client.receive() == c.DataAppended(W, number, previous, number, number * 2)


async def test_large_event(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    await client.call(end(1, b"first"))
    client.send(c.CreateTransientSegment(2, W, SEGMENT, ""))
    transient = (await client.expect(c.SegmentCreated)).segment
    assert transient.startswith(f"{SEGMENT}#transient.{W.hex()}.")
    assert await client.setup(W, transient) == MIN
    client.send(c.ConditionalBlockEnd(W, 0, 0, b"ab", 3), c.ConditionalBlockEnd(W, 1, 2, b"cd", 4))
    assert await client.receive() == c.DataAppended(W, 0, MIN, 3, 2)
    assert await client.receive() == c.DataAppended(W, 1, 0, 4, 4)
    merged = await client.call(c.MergeSegments(5, SEGMENT, transient, ""))
    assert merged == c.SegmentsMerged(5, SEGMENT, transient, 9)
    assert await client.call(c.MergeSegments(6, SEGMENT, transient, "")) == c.SegmentsMerged(6, SEGMENT, transient, 9)
    assert await client.setup(W, SEGMENT) == 1
    count = b"\x80" + bytes(14) + b"\1"
    assert await client.call(c.GetSegmentAttribute(7, SEGMENT, count, "")) == c.SegmentAttribute(7, 2)
    assert await client.read_all(SEGMENT) == b"firstabcd"


async def test_setup_succeeds_on_a_sealed_segment_and_the_append_fails(client: Any) -> None:
    await client.create(SEGMENT)
    assert await client.call(c.SealSegment(1, SEGMENT, "")) == c.SegmentSealed(1, SEGMENT)
    assert await client.setup(W, SEGMENT) == MIN
    assert await client.call(end(4, b"a")) == c.SegmentIsSealed(1004, SEGMENT, "", 4)
    client.send(end(5, b"b"), end(6, b"c"))
    await client.expect_silence()


async def test_appends_to_a_missing_segment(client: Any) -> None:
    assert await client.call(c.SetupAppend(3, W, SEGMENT, "")) == c.NoSuchSegment(3, SEGMENT, "", -1)
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    assert await client.call(c.DeleteSegment(4, SEGMENT, "")) == c.SegmentDeleted(4, SEGMENT)
    assert await client.call(end(1, b"a")) == c.NoSuchSegment(1001, SEGMENT, "", -1)


async def test_setup_of_a_segment_elsewhere(model: Any) -> None:
    client = await model.connect()
    name = "elsewhere/stream/0.#epoch.0"
    assert await client.call(c.SetupAppend(3, W, name, "")) == c.WrongHost(3, name, "", "")


@pytest.mark.parametrize(
    ("before", "commands"),
    [
        pytest.param(False, [end(1, b"a")], id="append before setup"),
        pytest.param(False, [c.AppendBlock(W, b"a")], id="block before setup"),
        pytest.param(False, [c.ConditionalBlockEnd(W, 1, 0, b"a", 1)], id="conditional append before setup"),
        pytest.param(True, [end(4, b"a")], id="going back"),
        pytest.param(True, [end(9, b"a", events=0)], id="no events"),
        pytest.param(True, [c.AppendBlock(W, b"abc"), end(9, whole=4)], id="more than the block"),
        pytest.param(True, [c.AppendBlock(W, b"abc"), c.AppendBlock(W, b"abc")], id="two blocks"),
        pytest.param(True, [c.AppendBlock(W, b"abc"), end(9, whole=3, writer=V)], id="other writer's end"),
        pytest.param(
            True, [c.AppendBlock(W, b"abc"), c.ConditionalBlockEnd(W, 9, 0, b"a", 1)], id="conditional in block"
        ),
    ],
)
async def test_what_breaks_the_protocol_closes_this_connection_only(
    setting: Any, before: bool, commands: list[c.Command]
) -> None:
    bad, good = await setting.connect(), await setting.connect()
    await good.create(SEGMENT)
    await good.setup(V, SEGMENT)
    if before:
        await bad.setup(W, SEGMENT)
        await bad.call(end(5, b"x"))
    bad.send(*commands)
    await bad.expect_end()
    length = 2 if before else 1
    assert await good.call(end(1, b"g", writer=V)) == ack(1, MIN, length, V)


async def test_acknowledgements_are_cumulative_per_writer(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    await client.setup(V, SEGMENT)
    model.model.hold()
    client.send(*(end(number, b"ab", writer=writer) for number in range(1, 101) for writer in (W, V)))
    await client.expect_silence()
    assert model.model.staged == 200
    model.model.release()
    assert await client.receive() == ack(100, MIN, 398, W)
    assert await client.receive() == ack(100, MIN, 400, V)
    await client.expect_silence()


async def test_setup_waits_for_what_the_writer_has_in_flight(model: Any) -> None:
    first, second = await model.connect(), await model.connect()
    await first.create(SEGMENT)
    await first.setup(W, SEGMENT)
    model.model.hold()
    first.send(end(5, b"a"))
    await first.expect_silence()
    second.send(c.SetupAppend(1, W, SEGMENT, ""))
    await second.expect_silence()
    model.model.release()
    assert await second.receive() == c.AppendSetup(1, SEGMENT, W, 5)


async def test_an_append_during_its_setup_breaks_the_protocol(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    model.model.hold()
    client.send(c.SetupAppend(1, W, SEGMENT, ""), end(1, b"a"))
    await client.expect_end()


async def test_a_failure_is_reported_after_all_earlier_appends(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    client.send(end(1, b"a"), end(2, b"b"))
    client.send(c.SealSegment(50, SEGMENT, ""))
    await client.expect_silence()
    client.send(end(3, b"c"), end(4, b"d"))
    await client.expect_silence()
    model.model.release()
    assert await client.receive() == ack(2, MIN, 2)
    replies = [await client.receive(), await client.receive()]
    assert c.SegmentIsSealed(1003, SEGMENT, "", 3) in replies
    assert c.SegmentSealed(50, SEGMENT) in replies
    await client.expect_silence()


async def test_a_failed_condition_is_reported_after_all_earlier_appends(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    client.send(end(1, b"a"), c.ConditionalBlockEnd(W, 2, 77, b"b", 2))
    await client.expect_silence()
    model.model.release()
    assert await client.receive() == ack(1, MIN, 1)
    assert await client.receive() == c.ConditionalCheckFailed(W, 2, 2)
    assert await client.call(c.ConditionalBlockEnd(W, 2, 1, b"b", 3)) == c.DataAppended(W, 2, 1, 3, 2)


async def test_a_repeated_number_in_flight_is_acknowledged_when_committed(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    client.send(end(1, b"a"), end(1, b"a"))
    await client.expect_silence()
    model.model.release()
    assert await client.receive() == ack(1, MIN, 1)
    await client.expect_silence()


async def test_a_stopped_container_sends_writers_elsewhere(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    client.send(end(1, b"a"), end(2, b"b"))
    await client.expect_silence()
    model.model.stop()
    assert await client.receive() == c.WrongHost(1001, SEGMENT, "", "")
    await client.expect_silence()


async def test_in_flight_bytes_are_bounded_for_one_connection(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    block = bytes(limits.MIB)
    count = 40
    for number in range(1, count + 1):
        client.send(end(number, block))
    sent = asyncio.create_task(client.writer.drain())
    in_flight = model.in_flight
    await model.until(lambda: in_flight.outstanding_bytes > limits.CONNECTION_IN_FLIGHT_MAX_BYTES)
    for _ in range(50):
        await model.turn()
        assert in_flight.outstanding_bytes <= limits.CONNECTION_IN_FLIGHT_MAX_BYTES + len(block)
    model.model.release()
    while (await client.expect(c.DataAppended)).event_number < count:
        assert in_flight.outstanding_bytes <= limits.CONNECTION_IN_FLIGHT_MAX_BYTES + len(block)
    await sent
    assert in_flight.outstanding_bytes == 0


async def test_small_appends_in_flight_are_bounded_by_the_memory_that_they_take(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    count, event = 20_000, b"event"
    most = limits.CONNECTION_IN_FLIGHT_MAX_BYTES + limits.APPEND_IN_FLIGHT_BYTES + len(event)
    client.send(*(end(number, event) for number in range(1, count + 1)))
    sent = asyncio.create_task(client.writer.drain())
    in_flight = model.in_flight
    await model.until(lambda: in_flight.outstanding_bytes > limits.CONNECTION_IN_FLIGHT_MAX_BYTES)
    for _ in range(50):
        await model.turn()
        assert in_flight.outstanding_bytes <= most
    model.model.release()
    while (await client.expect(c.DataAppended)).event_number < count:
        assert in_flight.outstanding_bytes <= most
    await sent
    assert in_flight.outstanding_bytes == 0


async def test_bytes_of_a_lost_connection_are_released(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    client.send(end(1, b"abc"), end(2, b"abc"))
    await client.expect_silence()
    assert model.in_flight.outstanding_bytes == 6 + 2 * limits.APPEND_IN_FLIGHT_BYTES
    client.writer.transport.abort()
    await model.until(lambda: model.server.connections == 0)
    model.model.release()
    await model.until(lambda: model.in_flight.outstanding_bytes == 0)
    assert await (await model.connect()).setup(W, SEGMENT) == 2


async def test_an_append_without_room_is_given_up_with_its_connection(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of what waits for room once kept it, with its data, until Tier 2 was back."""
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    room = asyncio.get_running_loop().create_future()
    waiting: list[AppendRequest] = []

    def without_room(request: AppendRequest) -> asyncio.Future[None]:
        waiting.append(request)
        return room

    monkeypatch.setattr(model.model, "submit_append", without_room)
    client.send(end(1, b"abc"))
    await model.until(lambda: bool(waiting))
    assert model.in_flight.outstanding_bytes == 3 + limits.APPEND_IN_FLIGHT_BYTES
    await model.server.close()
    await model.until(lambda: model.server.connections == 0)
    assert room.cancelled()
    assert not waiting[0].data
    assert model.in_flight.outstanding_bytes == 0


async def test_more_writers_than_the_limit_replace_the_oldest(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    for number in range(limits.SETUP_APPENDS_PER_CONNECTION_MAX + 1):
        client.send(c.SetupAppend(number, number.to_bytes(16, "big"), SEGMENT, ""))
    for _ in range(limits.SETUP_APPENDS_PER_CONNECTION_MAX + 1):
        await client.expect(c.AppendSetup)
    newest = limits.SETUP_APPENDS_PER_CONNECTION_MAX.to_bytes(16, "big")
    assert (await client.call(end(1, b"a", writer=newest))) == ack(1, MIN, 1, newest)
    client.send(end(1, b"a", writer=bytes(16)))
    await client.expect_end()


async def test_a_conditional_append_is_not_acknowledged_with_later_ones(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    client.send(end(1, b"a"), c.ConditionalBlockEnd(W, 2, 1, b"b", 72), end(3, b"c"), end(4, b"d"))
    await client.expect_silence()
    model.model.release()
    assert await client.receive() == ack(1, MIN, 1)
    assert await client.receive() == c.DataAppended(W, 2, 1, 72, 2)
    assert await client.receive() == ack(4, 2, 4)
    await client.expect_silence()


async def test_a_writer_with_appends_in_flight_is_not_replaced(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    client.send(end(1, b"a"))
    for number in range(limits.SETUP_APPENDS_PER_CONNECTION_MAX):
        client.send(c.SetupAppend(number, b"other" + number.to_bytes(11, "big"), SEGMENT, ""))
    await client.expect_silence()
    model.model.release()
    assert await client.receive() == ack(1, MIN, 1)
    for _ in range(limits.SETUP_APPENDS_PER_CONNECTION_MAX):
        await client.expect(c.AppendSetup)
    assert await client.call(end(2, b"b")) == ack(2, 1, 2)
