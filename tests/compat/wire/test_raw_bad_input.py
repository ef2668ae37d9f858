"""Bad input closes its connection; other connections and stored data are untouched."""

from __future__ import annotations

import random
import struct
import uuid
from typing import Any

import pytest

FRAME_LIMIT = 0x00FFFFFF
CONNECTIONS_OF_NOISE = 50

pytestmark = pytest.mark.usefixtures("bystander")


def frame(code: int, payload: bytes) -> bytes:
    return struct.pack(">ii", code, len(payload)) + payload


@pytest.mark.parametrize("code", [6, 13, 72, 99, 101, 12345, -7, -128, 2**31 - 1, -(2**31)])
def test_unknown_frame_type(connection: Any, code: int) -> None:
    connection.send_raw(frame(code, b"payload"))
    connection.expect_closed()


@pytest.mark.parametrize("code", [2, 7, 10, 21, 75])
def test_a_reply_is_no_request(connection: Any, code: int) -> None:
    connection.send_raw(frame(code, b"\0" * 64))
    connection.expect_closed()


@pytest.mark.parametrize("length", [-1, -8, -(2**31), FRAME_LIMIT - 7, FRAME_LIMIT + 1, 2**31 - 1])
def test_length_of_a_frame(connection: Any, length: int) -> None:
    """Negative or beyond the limit: refused by the header, before any of the payload is there."""
    connection.send_raw(struct.pack(">ii", 3, length))
    connection.expect_closed()


@pytest.mark.parametrize(
    "name", ["hello", "setup_append", "read_segment", "get_info", "create_segment", "update_table"]
)
def test_fields_beyond_the_end_of_the_frame(connection: Any, wire: Any, name: str) -> None:
    connection.send_raw(frame(wire.codes[name], b"\x7f\xff\xff"))
    connection.expect_closed()


def test_text_longer_than_its_frame(connection: Any) -> None:
    connection.send("get_info", 1, struct.pack(">H", 60_000) + b"short")
    connection.expect_closed()


def test_text_that_is_not_utf8(connection: Any) -> None:
    connection.send("get_info", 1, struct.pack(">H", 3) + b"\xff\xfe\xfd", "")
    connection.expect_closed_after("no_such_segment", "error")


@pytest.mark.parametrize("count", [-1, 2**31 - 1, 1000])
def test_number_of_table_entries(connection: Any, count: int) -> None:
    table = connection.new_table()
    connection.send("update_table", 1, table, "", ("i32", count), b"\0" * 40, -1)
    connection.expect_closed()


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 100])
def test_length_of_a_table_key(connection: Any, length: int) -> None:
    table = connection.new_table()
    entry = struct.pack(">iii", 1, 4 + length + 8 if length < 2**30 else length, length) + b"key"
    connection.send("update_table", 1, table, "", entry)
    connection.expect_closed()


def test_end_of_the_connection_within_a_frame(wire: Any, bystander: Any) -> None:
    segment, writer = bystander.new_segment(), uuid.uuid4()
    connection = wire.connect()
    connection.set_up(segment, writer)
    for part in (b"\0", struct.pack(">i", 4), struct.pack(">ii", 4, 100), struct.pack(">ii", 4, 100) + b"x" * 50):
        other = wire.connect()
        other.send_raw(part)
        other.close()
    connection.send_raw(struct.pack(">ii", 3, 1000) + writer.bytes + b"half a block")
    connection.close()
    assert bystander.info(segment)["length"] == 0


def test_append_before_set_up(connection: Any) -> None:
    segment = connection.new_segment()
    connection.set_up(segment, uuid.uuid4())
    connection.send_append(uuid.uuid4(), b"data", 1)
    connection.expect_closed()


def test_conditional_append_before_set_up(connection: Any) -> None:
    connection.send("conditional_block_end", uuid.uuid4(), 1, 0, ("buf", b"data"), 1)
    connection.expect_closed()


def _set_up(connection: Any) -> tuple[str, uuid.UUID]:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    return segment, writer


def test_event_numbers_that_go_back(connection: Any, bystander: Any) -> None:
    segment, writer = _set_up(connection)
    connection.append(writer, b"data", 10)
    connection.send_append(writer, b"again", 9)
    connection.expect_closed_after("invalid_event_number")
    assert bystander.info(segment)["length"] == 4
    assert bystander.set_up(segment, writer) == 10


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_number_of_events(connection: Any, count: int) -> None:
    _, writer = _set_up(connection)
    connection.send_append(writer, b"data", 1, count)
    connection.expect_closed()


@pytest.mark.parametrize("whole", [-1, 5, 2**31 - 1])
def test_size_of_whole_events(connection: Any, bystander: Any, whole: int) -> None:
    segment, writer = _set_up(connection)
    connection.send("append_block", writer, b"four")
    connection.send("append_block_end", writer, ("i32", whole), ("buf", b""), ("i32", 1), 1, 1)
    connection.expect_closed()
    assert bystander.info(segment)["length"] == 0


def test_end_of_another_writers_block(connection: Any) -> None:
    segment, one = _set_up(connection)
    two = uuid.uuid4()
    connection.set_up(segment, two)
    connection.send("append_block", one, b"data")
    connection.send("append_block_end", two, ("i32", 4), ("buf", b""), ("i32", 1), 1, 1)
    connection.expect_closed()


def test_block_after_a_block(connection: Any) -> None:
    _, writer = _set_up(connection)
    connection.send("append_block", writer, b"data")
    connection.send("append_block", writer, b"data")
    connection.expect_closed()


def test_block_of_an_unknown_writer(connection: Any) -> None:
    connection.send("append_block", uuid.uuid4(), b"data")
    connection.send("append_block_end", uuid.uuid4(), ("i32", 4), ("buf", b""), ("i32", 1), 1, 1)
    connection.expect_closed()


@pytest.mark.parametrize(
    ("trailer", "rest"),
    [
        (frame(-1, b"\0\0"), b"data after padding"),
        (frame(0, b"event"), b""),
        (frame(100, b""), b""),
        (struct.pack(">ii", -2, 100) + b"short", b""),
        (struct.pack(">ii", -1, -1), b""),
        (frame(-2, b"part") + b"and more", b""),
        (b"\xff\xff", b""),
    ],
)
def test_trailer_of_a_block(connection: Any, bystander: Any, trailer: bytes, rest: bytes) -> None:
    segment, writer = _set_up(connection)
    connection.send("append_block", writer, b"whole", trailer)
    connection.send("append_block_end", writer, ("i32", 5), ("buf", rest), ("i32", 1), 1, 1)
    connection.expect_closed()
    assert bystander.info(segment)["length"] == 0


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 100])
def test_length_of_data(connection: Any, length: int) -> None:
    _, writer = _set_up(connection)
    connection.send("append_block_end", writer, ("i32", 0), ("i32", length), b"data", ("i32", 1), 1, 1)
    connection.expect_closed()


def test_noise(wire: Any, bystander: Any, test_seed: int) -> None:
    """Random frames and random bytes, from many connections."""
    noise = random.Random(test_seed)
    segment, _ = _set_up(bystander)
    codes = [code for code in wire.codes.values() if code != wire.codes["delete_segment"]]
    for _ in range(CONNECTIONS_OF_NOISE):
        connection = wire.connect()
        sent = noise.randbytes(noise.randrange(200))
        if noise.random() < 0.7:
            sent = b"".join(frame(noise.choice(codes), noise.randbytes(noise.randrange(100))) for _ in range(3))
        try:
            connection.send_raw(sent)
        except OSError:
            continue  # closed while it was being sent
        finally:
            connection.close()
    assert bystander.info(segment)["length"] == 0
