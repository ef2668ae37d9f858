"""Appends: set-up, acknowledgements, the three forms of a block, conditions, writers that return."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest


def test_set_up_on_a_missing_segment(connection: Any) -> None:
    request_id = connection.next_id()
    connection.send("setup_append", request_id, uuid.uuid4(), "wire/missing/0.#epoch.0", "")
    reply = connection.expect("no_such_segment")
    assert (reply.i64(), reply.text()) == (request_id, "wire/missing/0.#epoch.0")


def test_acknowledgements_tell_number_previous_and_length(connection: Any, wire: Any) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    assert connection.set_up(segment, writer) == wire.no_value
    request_id = connection.send_append(writer, b"first", 1)
    assert connection.acknowledgement(writer, request_id) == (1, wire.no_value, 5)
    request_id = connection.send_append(writer, b"three more", 4, 3)
    assert connection.acknowledgement(writer, request_id) == (4, 1, 15)
    assert connection.read(segment, 0, 15) == b"firstthree more"


def test_pipelined_appends(connection: Any) -> None:
    """Acknowledgements may be cumulative, and come in order: each names the one before it."""
    segment, writer = connection.new_segment(), uuid.uuid4()
    previous = connection.set_up(segment, writer)
    pieces = [f"event {number} ".encode() for number in range(1, 501)]
    for number, piece in enumerate(pieces, 1):
        connection.send_append(writer, piece, number)
    while previous != len(pieces):
        reply = connection.expect("data_appended")
        assert reply.uuid() == writer
        number, reported = reply.i64(), reply.i64()
        assert reported == previous
        assert number > previous
        reply.i64()
        assert reply.i64() == sum(map(len, pieces[:number]))
        previous = number
    expected = b"".join(pieces)
    assert connection.read(segment, 0, len(expected)) == expected


def test_many_writers_on_one_connection(connection: Any, wire: Any) -> None:
    segments = [connection.new_segment() for _ in range(3)]
    writers = {uuid.uuid4(): segment for segment in segments for _ in range(2)}
    for writer, segment in writers.items():
        assert connection.set_up(segment, writer) == wire.no_value
    for number in (1, 2):
        for writer in writers:
            connection.append(writer, b"x" * 10, number)
    assert all(connection.info(segment)["length"] == 40 for segment in segments)


def test_set_up_again_directs_the_writer_to_the_latest_segment(connection: Any, wire: Any) -> None:
    one, two, writer = connection.new_segment(), connection.new_segment(), uuid.uuid4()
    connection.set_up(one, writer)
    connection.append(writer, b"one", 1)
    assert connection.set_up(two, writer) == wire.no_value
    connection.append(writer, b"two!", 1)
    assert connection.set_up(one, writer) == 1
    connection.append(writer, b"more", 2)
    assert (connection.read(one, 0, 7), connection.read(two, 0, 4)) == (b"onemore", b"two!")


def test_returning_writer_learns_its_last_event(connection: Any, wire: Any) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    connection.append(writer, b"data", 17)
    connection.close()
    assert wire.connect().set_up(segment, writer) == 17


def test_an_older_connection_of_a_writer_is_refused(connection: Any, wire: Any) -> None:
    """Another connection went on with this writer: what the older one still sends must not be appended twice."""
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    connection.append(writer, b"one", 1)
    newer = wire.connect()
    assert newer.set_up(segment, writer) == 1
    newer.append(writer, b"two", 2)
    request_id = connection.send_append(writer, b"two", 2)
    reply = connection.expect("invalid_event_number")
    assert (reply.uuid(), reply.i64()) == (writer, request_id)
    connection.expect_closed()
    assert newer.read(segment, 0, 6) == b"onetwo"
    assert newer.info(segment)["length"] == 6


def test_block_and_end(connection: Any) -> None:
    """The block holds all bytes, its end none."""
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    request_id = connection.next_id()
    connection.send("append_block", writer, b"all of it")
    connection.send("append_block_end", writer, ("i32", 9), ("buf", b""), ("i32", 1), 1, request_id)
    assert connection.acknowledgement(writer, request_id)[2] == 9
    assert connection.read(segment, 0, 9) == b"all of it"


@pytest.mark.parametrize("padding", [0, 1, 1000])
def test_block_with_padding(connection: Any, padding: int) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    request_id = connection.next_id()
    trailer = struct.pack(">ii", -1, padding) + b"\0" * padding
    connection.send("append_block", writer, b"whole events", trailer)
    connection.send("append_block_end", writer, ("i32", 12), ("buf", b""), ("i32", 2), 2, request_id)
    assert connection.acknowledgement(writer, request_id)[2] == 12
    assert connection.read(segment, 0, 12) == b"whole events"


def test_block_with_a_partial_event(connection: Any) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    request_id = connection.next_id()
    trailer = struct.pack(">ii", -2, 5) + b"begin"
    connection.send("append_block", writer, b"whole ", trailer)
    connection.send("append_block_end", writer, ("i32", 6), ("buf", b"ning"), ("i32", 2), 2, request_id)
    assert connection.acknowledgement(writer, request_id)[2] == 15
    assert connection.read(segment, 0, 15) == b"whole beginning"


def test_block_that_trickles_in(connection: Any, bystander: Any) -> None:
    """The Java client sends the header of a block before it has all of its bytes."""
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    connection.send_raw(struct.pack(">ii", 3, 16 + 1000) + writer.bytes)
    for _ in range(10):
        connection.send_raw(b"x" * 100)
        assert bystander.info(segment)["length"] == 0
    request_id = connection.next_id()
    connection.send("append_block_end", writer, ("i32", 1000), ("buf", b""), ("i32", 1), 1, request_id)
    assert connection.acknowledgement(writer, request_id)[2] == 1000


def test_largest_blocks(connection: Any) -> None:
    """8 MiB of data and a header in one block, twice."""
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    data = bytes(range(256)) * 32768 + b"8 bytes "
    for number in (1, 2):
        assert connection.append(writer, data, number) == number * len(data)
    assert connection.read(segment, len(data), len(data)) == data


def test_conditional_append(connection: Any) -> None:
    """An event with its header, at the expected offset only."""
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)

    def conditional(number: int, offset: int, data: bytes) -> int:
        request_id: int = connection.next_id()
        event = struct.pack(">ii", 0, len(data)) + data
        connection.send("conditional_append", writer, number, offset, event, request_id)
        return request_id

    request_id = conditional(1, 0, b"one")
    assert connection.acknowledgement(writer, request_id)[::2] == (1, 11)
    request_id = conditional(2, 0, b"two")
    reply = connection.expect("conditional_check_failed")
    assert (reply.uuid(), reply.i64(), reply.i64()) == (writer, 2, request_id)
    request_id = conditional(3, 11, b"three")
    assert connection.acknowledgement(writer, request_id)[::2] == (3, 24)
    assert connection.read(segment, 0, 24) == b"\0\0\0\0\0\0\0\x03one\0\0\0\0\0\0\0\x05three"


def test_conditional_block(connection: Any) -> None:
    """Bytes without a header, at the expected offset only."""
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)

    def conditional(number: int, offset: int, data: bytes) -> int:
        request_id: int = connection.next_id()
        connection.send("conditional_block_end", writer, number, offset, ("buf", data), request_id)
        return request_id

    connection.acknowledgement(writer, conditional(1, 0, b"one"))
    request_id = conditional(2, 2, b"two")
    reply = connection.expect("conditional_check_failed")
    assert (reply.uuid(), reply.i64(), reply.i64()) == (writer, 2, request_id)
    assert connection.acknowledgement(writer, conditional(2, 3, b"two"))[::2] == (2, 6)
    assert connection.read(segment, 0, 6) == b"onetwo"


def test_conditional_append_loses_against_another_writer(connection: Any, wire: Any) -> None:
    segment, mine, theirs = connection.new_segment(), uuid.uuid4(), uuid.uuid4()
    connection.set_up(segment, mine)
    other = wire.connect()
    other.set_up(segment, theirs)
    other.append(theirs, b"first", 1)
    request_id = connection.next_id()
    connection.send("conditional_block_end", mine, 1, 0, ("buf", b"late"), request_id)
    assert connection.expect("conditional_check_failed").uuid() == mine
    assert connection.info(segment)["length"] == 5


def test_append_to_a_deleted_segment(connection: Any) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    connection.append(writer, b"data", 1)
    connection.call("delete_segment", segment, "", answer="segment_deleted")
    request_id = connection.send_append(writer, b"more", 2)
    reply = connection.expect("no_such_segment")
    assert (reply.i64(), reply.text()) == (request_id, segment)


def test_failure_comes_after_earlier_acknowledgements(connection: Any, wire: Any) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    for number in range(1, 51):
        connection.send_append(writer, b"x" * 1000, number)
    other = wire.connect()
    other.seal(segment)
    for number in range(51, 54):
        connection.send_append(writer, b"x" * 1000, number)
    acknowledged = wire.no_value
    while (reply := connection.receive()) is not None and reply.name == "data_appended":
        reply.uuid()
        acknowledged = reply.i64()
    assert reply is not None
    assert reply.name == "is_sealed"
    assert other.info(segment)["length"] == max(acknowledged, 0) * 1000
