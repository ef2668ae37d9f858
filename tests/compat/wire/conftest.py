"""A small client of the wire protocol, written from its description alone: it shares no code with the product.

Blocking sockets, one frame at a time; every wait has a deadline.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

DEADLINE_S = 120.0
NO_VALUE = -(1 << 63)
CODES = {
    "hello": -127, "padding": -1, "partial_event": -2, "setup_append": 1, "append_setup": 2, "append_block": 3,
    "append_block_end": 4, "conditional_append": 5, "data_appended": 7, "conditional_check_failed": 8,
    "read_segment": 9, "segment_read": 10, "get_info": 11, "info": 12, "create_segment": 20, "segment_created": 21,
    "seal_segment": 28, "segment_sealed": 29, "delete_segment": 30, "segment_deleted": 31, "update_policy": 32,
    "policy_updated": 33, "get_attribute": 34, "attribute": 35, "update_attribute": 36, "attribute_updated": 37,
    "truncate_segment": 38, "segment_truncated": 39, "create_transient": 40, "wrong_host": 50, "is_sealed": 51,
    "already_exists": 52, "no_such_segment": 53, "invalid_event_number": 55, "is_truncated": 56,
    "unsupported": 57, "merge_segments": 58, "segments_merged": 59, "error": 61, "get_table_info": 68,
    "table_info": 69, "create_table": 70, "delete_table": 71, "update_table": 74, "table_updated": 75,
    "remove_keys": 76, "keys_removed": 77, "read_table": 78, "table_read": 79, "not_empty": 80,
    "key_does_not_exist": 81, "bad_version": 82, "read_keys": 83, "keys_read": 84, "read_entries": 85,
    "entries_read": 86, "delta_read": 87, "read_delta": 88, "conditional_block_end": 89, "merge_batch": 90,
    "batch_merged": 91, "keep_alive": 100,
}  # fmt: skip
NAMES = {code: name for name, code in CODES.items()}
_segments = itertools.count()


def pack(*values: Any) -> bytes:
    """Ints as i64, bool as one byte, str with its u16 length, UUID as 16 bytes, bytes as they are.

    Other widths: ``("i32", n)``, ``("i8", n)``, ``("buf", bytes)`` with an i32 length.
    """
    out = b""
    for value in values:
        match value:
            case bool():
                out += struct.pack(">B", value)
            case int():
                out += struct.pack(">q", value)
            case str():
                encoded = value.encode()
                out += struct.pack(">H", len(encoded)) + encoded
            case uuid.UUID():
                out += value.bytes
            case bytes():
                out += value
            case ("i32", number):
                out += struct.pack(">i", number)
            case ("i8", number):
                out += struct.pack(">b", number)
            case ("buf", data):
                out += struct.pack(">i", len(data)) + data
            case _:
                raise TypeError(f"{value!r}")
    return out


class Reply:
    """A frame that has come: its name, and its fields one by one."""

    def __init__(self, code: int, payload: bytes) -> None:
        self.name = NAMES.get(code, str(code))
        self.payload = payload
        self._at = 0

    def _take(self, length: int) -> bytes:
        piece = self.payload[self._at : self._at + length]
        assert len(piece) == length, f"{self.name}: field beyond the end of the frame"
        self._at += length
        return piece

    def i8(self) -> int:
        return int(struct.unpack(">b", self._take(1))[0])

    def flag(self) -> bool:
        return self.i8() != 0

    def i32(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def i64(self) -> int:
        return int(struct.unpack(">q", self._take(8))[0])

    def text(self) -> str:
        return self._take(struct.unpack(">H", self._take(2))[0]).decode()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._take(16))

    def buf(self) -> bytes:
        return self._take(self.i32())

    def key(self) -> tuple[bytes, int]:
        """A table key and its version; an empty key has no version."""
        self.i32()
        key = self.buf()
        return key, self.i64() if key else NO_VALUE

    def entries(self) -> list[tuple[bytes, int, bytes]]:
        """(key, version, value) of a list of table entries."""
        found = []
        for _ in range(self.i32()):
            key, version = self.key()
            self.i32()
            found.append((key, version, self.buf()))
        return found

    def end(self) -> None:
        """Nothing is left but a stack trace, say, that the description allows."""
        assert self._at == len(self.payload), f"{self.name}: {len(self.payload) - self._at} bytes left"

    def __repr__(self) -> str:
        return f"Reply({self.name}, {self.payload[:80]!r})"


class Connection:
    """One connection; Hello has been exchanged unless ``hello`` is None."""

    def __init__(self, address: str, hello: tuple[int, int] | None = (15, 5)) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._request_ids = itertools.count(1)
        if hello is not None:
            self.send("hello", ("i32", hello[0]), ("i32", hello[1]))
            answer = self.receive()
            assert answer is not None
            assert answer.name == "hello"
            self.server_versions = (answer.i32(), answer.i32())

    def close(self) -> None:
        self._socket.close()

    def next_id(self) -> int:
        """A request id with something in its upper half, as the Java client's have."""
        return (7 << 32) | next(self._request_ids)

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, name: str, *fields: Any) -> None:
        payload = pack(*fields)
        self.send_raw(struct.pack(">ii", CODES[name], len(payload)) + payload)

    def receive(self, deadline_s: float = DEADLINE_S) -> Reply | None:
        """The next frame; None when the server has closed the connection."""
        header = self._exactly(8, deadline_s)
        if header is None:
            return None
        code, length = struct.unpack(">ii", header)
        payload = self._exactly(length, deadline_s)
        assert payload is not None, "closed within a frame"
        return Reply(code, payload)

    def _exactly(self, length: int, deadline_s: float) -> bytes | None:
        end = time.monotonic() + deadline_s
        while len(self._received) < length:
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            try:
                piece = self._socket.recv(1 << 16)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return None
            self._received += piece
        taken, self._received = self._received[:length], self._received[length:]
        return taken

    def expect(self, name: str) -> Reply:
        """The next frame, which must be of that name."""
        reply = self.receive()
        assert reply is not None, f"closed instead of {name}"
        assert reply.name == name, f"{reply} instead of {name}"
        return reply

    def expect_nothing(self, for_s: float = 0.3) -> None:
        """No frame comes, and the connection stays open."""
        try:
            reply = self.receive(for_s)
        except TimeoutError:
            return
        raise AssertionError(f"unexpected {reply or 'end of the connection'}")

    def expect_closed(self) -> None:
        """The server closes the connection without another frame."""
        reply = self.receive()
        assert reply is None, f"{reply} instead of the end of the connection"

    def expect_closed_after(self, *allowed: str) -> None:
        """The server closes the connection; frames of these names may come before."""
        while (reply := self.receive()) is not None:
            assert reply.name in allowed, f"{reply} instead of the end of the connection"

    def call(self, name: str, *fields: Any, answer: str, id_last: bool = False) -> Reply:
        """A request and its answer; checks the echo of the request id where the answer begins with it."""
        request_id = self.next_id()
        self.send(name, *((*fields, request_id) if id_last else (request_id, *fields)))
        reply = self.expect(answer)
        if not id_last:
            assert reply.i64() == request_id
        return reply

    # ---- what many tests need

    def new_segment(self, name: str | None = None) -> str:
        """Creates a segment; without a name, one of its own."""
        segment = name or f"wire-{os.getpid()}/{time.time_ns()}-{next(_segments)}/0.#epoch.0"
        created = self.call("create_segment", segment, ("i32", 0), ("i8", 0), "", 0, answer="segment_created")
        assert created.text() == segment
        created.end()
        return segment

    def new_table(self, key_length: int = 0) -> str:
        table = f"wire-{os.getpid()}/{time.time_ns()}-{next(_segments)}_kvtable/0.#epoch.0"
        created = self.call("create_table", table, "", False, ("i32", key_length), 0, answer="segment_created")
        assert created.text() == table
        return table

    def set_up(self, segment: str, writer: uuid.UUID) -> int:
        """Sets a writer up; returns its last event number."""
        request_id = self.next_id()
        self.send("setup_append", request_id, writer, segment, "")
        reply = self.expect("append_setup")
        assert (reply.i64(), reply.text(), reply.uuid()) == (request_id, segment, writer)
        last = reply.i64()
        reply.end()
        return last

    def send_append(self, writer: uuid.UUID, data: bytes, number: int, count: int = 1) -> int:
        """One block of whole data; returns the request id."""
        request_id = self.next_id()
        self.send("append_block_end", writer, ("i32", 0), ("buf", data), ("i32", count), number, request_id)
        return request_id

    def append(self, writer: uuid.UUID, data: bytes, number: int, count: int = 1) -> int:
        """Appends and waits for the acknowledgement; returns the segment's length after it."""
        request_id = self.send_append(writer, data, number, count)
        acknowledged, _, length = self.acknowledgement(writer, request_id)
        assert acknowledged == number
        return length

    def acknowledgement(self, writer: uuid.UUID, request_id: int) -> tuple[int, int, int]:
        """(event number, previous event number, length after the append)."""
        reply = self.expect("data_appended")
        assert reply.uuid() == writer
        number, previous = reply.i64(), reply.i64()
        assert reply.i64() == request_id
        length = reply.i64()
        reply.end()
        return number, previous, length

    def send_read(self, segment: str, offset: int, length: int = 1 << 20) -> int:
        request_id = self.next_id()
        self.send("read_segment", segment, offset, ("i32", length), "", request_id)
        return request_id

    def read_reply(self, segment: str, offset: int, request_id: int) -> tuple[bytes, bool, bool]:
        """(data, at the tail, end of the segment); checks what is echoed."""
        reply = self.expect("segment_read")
        assert (reply.text(), reply.i64()) == (segment, offset)
        at_tail, end = reply.flag(), reply.flag()
        data = reply.buf()
        assert reply.i64() == request_id
        reply.end()
        return data, at_tail, end

    def read(self, segment: str, offset: int, length: int) -> bytes:
        """Reads exactly ``length`` bytes, in as many replies as it takes."""
        found = b""
        while len(found) < length:
            request_id = self.send_read(segment, offset + len(found), length - len(found))
            data, _, _ = self.read_reply(segment, offset + len(found), request_id)
            assert data, f"no data at {offset + len(found)}"
            found += data
        assert len(found) == length
        return found

    def info(self, segment: str) -> dict[str, Any]:
        reply = self.call("get_info", segment, "", answer="info")
        assert reply.text() == segment
        exists, sealed, deleted = reply.flag(), reply.flag(), reply.flag()
        modified_ms, length, start = reply.i64(), reply.i64(), reply.i64()
        reply.end()
        assert exists
        assert not deleted
        assert modified_ms > 0
        return {"sealed": sealed, "length": length, "start": start}

    def exists(self, segment: str) -> bool:
        request_id = self.next_id()
        self.send("get_info", request_id, segment, "")
        reply = self.receive()
        assert reply is not None
        assert reply.name in ("info", "no_such_segment")
        assert (reply.i64(), reply.text()) == (request_id, segment)
        return reply.name == "info"

    def seal(self, segment: str) -> None:
        assert self.call("seal_segment", segment, "", answer="segment_sealed").text() == segment

    def attribute(self, segment: str, attribute: uuid.UUID) -> int:
        reply = self.call("get_attribute", segment, attribute, "", answer="attribute")
        return reply.i64()

    def update_table(self, table: str, *entries: tuple[bytes, int, bytes], offset: int = -1) -> list[int]:
        """Writes (key, expected version, value) entries; returns the new versions."""
        reply = self.call("update_table", table, "", pack_entries(*entries), offset, answer="table_updated")
        versions = [reply.i64() for _ in range(reply.i32())]
        reply.end()
        return versions

    def read_table(self, table: str, *keys: bytes) -> list[tuple[bytes, int, bytes]]:
        reply = self.call("read_table", table, "", pack_keys(*((key, NO_VALUE) for key in keys)), answer="table_read")
        assert reply.text() == table
        found = reply.entries()
        reply.end()
        return found


def pack_key(key: bytes, version: int) -> bytes:
    return pack(("i32", 4 + len(key) + 8), ("buf", key), version)


def pack_keys(*keys: tuple[bytes, int]) -> bytes:
    return pack(("i32", len(keys)), *(pack_key(key, version) for key, version in keys))


def pack_entries(*entries: tuple[bytes, int, bytes]) -> bytes:
    packed = [pack_key(key, version) + pack(("i32", 4 + len(value)), ("buf", value)) for key, version, value in entries]
    return pack(("i32", len(entries)), *packed)


class Wire:
    """The functions above for the tests, and connections that are closed at their end."""

    pack = staticmethod(pack)
    pack_key = staticmethod(pack_key)
    pack_keys = staticmethod(pack_keys)
    pack_entries = staticmethod(pack_entries)
    codes = CODES
    no_value = NO_VALUE

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: list[Connection] = []

    def connect(self, hello: tuple[int, int] | None = (15, 5)) -> Connection:
        self._open.append(Connection(self._address, hello))
        return self._open[-1]

    def close(self) -> None:
        for connection in self._open:
            connection.close()


@pytest.fixture
def wire(server: Any) -> Iterator[Wire]:
    """Connections to a segment store of the server under test."""
    wire = Wire(server.store)
    yield wire
    wire.close()


@pytest.fixture
def connection(wire: Wire) -> Connection:
    """A connection after its Hello."""
    return wire.connect()


@pytest.fixture
def bystander(wire: Wire) -> Iterator[Connection]:
    """Another connection with data of its own, which must work as before when the test has ended."""
    connection = wire.connect()
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    assert connection.append(writer, b"before ", 1) == 7
    yield connection
    assert connection.append(writer, b"after", 2) == 12
    assert connection.read(segment, 0, 12) == b"before after"
    assert connection.info(segment) == {"sealed": False, "length": 12, "start": 0}
