"""Reads: what is echoed, long polls at the tail, the end of a segment, truncation."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

MISSING = "wire/missing/0.#epoch.0"


@pytest.fixture
def segment(connection: Any) -> str:
    """A segment of ten bytes; its writer has no more to say."""
    name: str = connection.new_segment()
    writer = uuid.uuid4()
    connection.set_up(name, writer)
    connection.append(writer, b"0123456789", 1)
    return name


@pytest.mark.parametrize("offset", [0, 3, 9])
def test_read(connection: Any, segment: str, offset: int) -> None:
    data, _, end = connection.read_reply(segment, offset, connection.send_read(segment, offset))
    assert data == b"0123456789"[offset:]
    assert end is False


def test_reads_are_bounded(connection: Any) -> None:
    """At least 8 bytes, at most 2 MiB, whatever is asked for."""
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    connection.append(writer, b"x" * (5 << 20), 1)
    for asked, at_most in ((0, 8), (-5, 8), (8, 8), (1000, 1000), (1 << 30, 2 << 20)):
        data, _, _ = connection.read_reply(segment, 0, connection.send_read(segment, 0, asked))
        assert 0 < len(data) <= at_most


def test_missing_segment_echoes_the_offset(connection: Any) -> None:
    request_id = connection.send_read(MISSING, 42)
    reply = connection.expect("no_such_segment")
    assert (reply.i64(), reply.text()) == (request_id, MISSING)
    reply.text()
    assert reply.i64() == 42


def test_tail_read_waits_for_data(connection: Any, wire: Any, segment: str) -> None:
    request_id = connection.send_read(segment, 10)
    connection.expect_nothing()
    other, writer = wire.connect(), uuid.uuid4()
    other.set_up(segment, writer)
    other.append(writer, b"news", 1)
    data, _, end = connection.read_reply(segment, 10, request_id)
    assert (data, end) == (b"news", False)


def test_waiting_reads_do_not_block_their_connection(connection: Any, segment: str) -> None:
    waiting = connection.send_read(segment, 10)
    assert connection.read(segment, 0, 10) == b"0123456789"
    writer = uuid.uuid4()
    request_id = connection.next_id()
    connection.set_up(segment, writer)
    connection.send("append_block_end", writer, ("i32", 0), ("buf", b"more"), ("i32", 1), 1, request_id)
    names = set()
    for _ in range(2):
        reply = connection.receive()
        assert reply is not None
        names.add(reply.name)
        if reply.name == "segment_read":
            assert (reply.text(), reply.i64()) == (segment, 10)
            assert (reply.flag(), reply.flag())[1] is False
            assert (reply.buf(), reply.i64()) == (b"more", waiting)
    assert names == {"segment_read", "data_appended"}


def test_many_waiting_readers(wire: Any, segment: str) -> None:
    readers = [wire.connect() for _ in range(20)]
    ids = [reader.send_read(segment, 10) for reader in readers]
    other, writer = wire.connect(), uuid.uuid4()
    other.set_up(segment, writer)
    other.append(writer, b"for all", 1)
    for reader, request_id in zip(readers, ids, strict=True):
        assert reader.read_reply(segment, 10, request_id)[0] == b"for all"


def test_sealing_ends_waiting_reads(connection: Any, wire: Any, segment: str) -> None:
    request_id = connection.send_read(segment, 10)
    connection.expect_nothing()
    wire.connect().seal(segment)
    data, _, end = connection.read_reply(segment, 10, request_id)
    assert (data, end) == (b"", True)


def test_read_of_a_sealed_segment(connection: Any, segment: str) -> None:
    connection.seal(segment)
    found, end, offset = b"", False, 0
    while not end:
        data, _, end = connection.read_reply(segment, offset, connection.send_read(segment, offset))
        found += data
        offset += len(data)
    assert found == b"0123456789"
    data, _, end = connection.read_reply(segment, 10, connection.send_read(segment, 10))
    assert (data, end) == (b"", True)
    request_id = connection.send_read(segment, 11)
    reply = connection.expect("error")
    assert reply.i64() == request_id


def test_read_beyond_the_tail_waits(connection: Any, wire: Any, segment: str) -> None:
    request_id = connection.send_read(segment, 12)
    connection.expect_nothing()
    other, writer = wire.connect(), uuid.uuid4()
    other.set_up(segment, writer)
    other.append(writer, b"abcdef", 1)
    assert connection.read_reply(segment, 12, request_id)[0] == b"cdef"


def test_read_below_the_start_returns_both_offsets(connection: Any, segment: str) -> None:
    connection.call("truncate_segment", segment, 6, "", answer="segment_truncated")
    request_id = connection.send_read(segment, 5)
    reply = connection.expect("is_truncated")
    assert (reply.i64(), reply.text(), reply.i64()) == (request_id, segment, 6)
    reply.text()
    assert reply.i64() == 5
    assert connection.read(segment, 6, 4) == b"6789"


def test_deleting_ends_waiting_reads(connection: Any, wire: Any, segment: str) -> None:
    """With an answer or with the end of the connection: the reader must not wait for ever."""
    connection.send_read(segment, 10)
    connection.expect_nothing()
    wire.connect().call("delete_segment", segment, "", answer="segment_deleted")
    reply = connection.receive()
    assert reply is None or reply.name in ("no_such_segment", "segment_read")
