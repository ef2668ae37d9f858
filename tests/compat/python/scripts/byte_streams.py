"""Byte streams: write, read, seek, truncate, two handles, the cap of one write."""

import asyncio
from typing import Any

import harness

MIB = 1 << 20
KEPT: list[Any] = []
"""Handles whose write failed: the client can panic when such a handle is collected."""


def _byte_stream() -> tuple[Any, str]:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "bytes", 1)
    return client, scope


def _read(stream: Any, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        buffer = bytearray(min(length - len(found), MIB))
        count = stream.readinto(buffer)
        assert count > 0, f"no more bytes after {len(found)} of {length}"
        found += buffer[:count]
    return bytes(found)


def check_write_and_read() -> None:
    client, scope = _byte_stream()
    stream = client.create_byte_stream(scope, "bytes")
    assert stream.seekable() is True
    assert stream.current_tail_offset() == 0
    assert stream.write(b"hello ") == 6
    assert stream.write(b"world") == 5
    stream.flush()
    assert stream.current_tail_offset() == 11
    assert stream.current_head_offset() == 0
    assert stream.tell() == 0
    assert _read(stream, 11) == b"hello world"
    assert stream.tell() == 11


def check_many_bytes() -> None:
    client, scope = _byte_stream()
    stream = client.create_byte_stream(scope, "bytes")
    pieces = 64 if harness.FULL else 16
    expected = b""
    for number in range(pieces):
        piece = bytes((number + i) % 256 for i in range(256)) * 1024
        assert stream.write(piece) == len(piece)
        expected += piece
    stream.flush()
    assert stream.current_tail_offset() == len(expected)
    assert _read(client.create_byte_stream(scope, "bytes"), len(expected)) == expected


def check_seek() -> None:
    client, scope = _byte_stream()
    stream = client.create_byte_stream(scope, "bytes")
    stream.write(b"0123456789")
    stream.flush()
    assert stream.seek(4, 0) == 4
    assert _read(stream, 3) == b"456"
    assert stream.seek(-2, 1) == 5
    assert _read(stream, 2) == b"56"
    assert stream.seek(-3, 2) == 7
    assert _read(stream, 3) == b"789"
    assert stream.seek(0, 0) == 0
    assert _read(stream, 10) == b"0123456789"
    harness.error_of(ValueError, lambda: stream.seek(-11, 2))
    assert stream.seek(100, 0) == 100
    assert stream.tell() == 100


def check_truncate() -> None:
    client, scope = _byte_stream()
    stream = client.create_byte_stream(scope, "bytes")
    stream.write(b"0123456789")
    stream.flush()
    stream.truncate(4)
    assert stream.current_head_offset() == 4
    assert stream.current_tail_offset() == 10
    stream.seek(4, 0)
    assert _read(stream, 6) == b"456789"
    stream.seek(0, 0)
    harness.error_of(OSError, lambda: stream.readinto(bytearray(4)))
    harness.error_of(OSError, lambda: stream.truncate(11))
    harness.error_of(OSError, lambda: stream.truncate(2))
    assert stream.current_head_offset() == 4
    stream.truncate(10)
    assert stream.current_head_offset() == 10
    stream.write(b"abc")
    stream.flush()
    stream.seek(10, 0)
    assert _read(stream, 3) == b"abc"


def check_new_handle_begins_at_the_head() -> None:
    """A byte stream truncates its segment without the controller; a new handle still starts at the new head."""
    client, scope = _byte_stream()
    stream = client.create_byte_stream(scope, "bytes")
    stream.write(b"0123456789")
    stream.flush()
    stream.truncate(6)
    again = client.create_byte_stream(scope, "bytes")
    assert again.current_head_offset() == 6
    assert again.current_tail_offset() == 10
    again.seek(6, 0)
    assert _read(again, 4) == b"6789"


def check_readers_begin_after_a_truncation() -> None:
    """Events before the offset to which a byte stream truncated its segment are gone for readers, too.

    The original does not promise this: its readers then ask for the missing bytes for ever.
    """
    client, scope = _byte_stream()
    writer = client.create_writer(scope, "bytes", harness.IN_FLIGHT)
    harness.write_keyed(writer, ["key"], 0, 10, 100)
    stream = client.create_byte_stream(scope, "bytes")
    stream.truncate(4 * (100 + 8))
    reader = client.create_reader_group("group", scope, "bytes").create_reader("reader")
    found = asyncio.run(harness.read_events(reader, 6))
    assert [harness.recognise(data) for data in found] == [("key", sequence) for sequence in range(4, 10)]


def check_cap_of_one_write() -> None:
    client, scope = _byte_stream()
    stream = client.create_byte_stream(scope, "bytes")
    data = bytes(range(256)) * 4096 * 9
    assert stream.write(data) == 8 * MIB
    stream.flush()
    assert stream.write(data[8 * MIB :]) == len(data) - 8 * MIB
    stream.flush()
    assert stream.current_tail_offset() == len(data)
    assert _read(stream, len(data)) == data


def check_second_handle_fails_conditionally() -> None:
    client, scope = _byte_stream()
    first = client.create_byte_stream(scope, "bytes")
    second = client.create_byte_stream(scope, "bytes")
    KEPT.append(second)
    first.write(b"first")
    first.flush()

    def write_late() -> None:
        second.write(b"second")
        second.flush()

    assert "Conditional" in harness.error_of(OSError, write_late)
    assert first.current_tail_offset() == 5
    first.write(b" again")
    first.flush()
    assert _read(first, 11) == b"first again"


if __name__ == "__main__":
    harness.run(globals())
