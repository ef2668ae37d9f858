"""The life of a segment: create, info, attributes, policy, seal, truncate, delete, merge."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

EVENT_COUNT = uuid.UUID(int=(1 << 127) | 1)


def test_create_info_delete(connection: Any) -> None:
    segment = connection.new_segment()
    assert connection.info(segment) == {"sealed": False, "length": 0, "start": 0}
    again = connection.call("create_segment", segment, ("i32", 0), ("i8", 0), "", 0, answer="already_exists")
    assert again.text() == segment
    assert connection.call("delete_segment", segment, "", answer="segment_deleted").text() == segment
    assert not connection.exists(segment)
    assert connection.call("delete_segment", segment, "", answer="no_such_segment").text() == segment


def test_create_without_the_last_field(connection: Any) -> None:
    """The roll-over size came later to the protocol; old clients send none."""
    segment = f"wire-old/{time.time_ns()}/0.#epoch.0"
    connection.call("create_segment", segment, ("i32", 100), ("i8", 2), "", answer="segment_created")
    assert connection.call("update_policy", segment, ("i32", 200), ("i8", 1), "", answer="policy_updated")


@pytest.mark.parametrize("name", ["get_info", "seal_segment", "delete_segment"])
def test_missing_segment(connection: Any, name: str) -> None:
    missing = "wire/missing/0.#epoch.0"
    assert connection.call(name, missing, "", answer="no_such_segment").text() == missing


def test_attributes(connection: Any, wire: Any) -> None:
    segment, attribute = connection.new_segment(), uuid.uuid4()

    def update(value: int, expected: int) -> bool:
        reply = connection.call("update_attribute", segment, attribute, value, expected, "", answer="attribute_updated")
        return bool(reply.flag())

    assert connection.attribute(segment, attribute) == wire.no_value
    assert update(5, wire.no_value) is True
    assert update(6, wire.no_value) is False
    assert update(6, 4) is False
    assert connection.attribute(segment, attribute) == 5
    assert update(-7, 5) is True
    assert connection.attribute(segment, attribute) == -7
    assert update(wire.no_value, -7) is True
    assert connection.attribute(segment, attribute) == wire.no_value


def test_writers_last_event_number_is_an_attribute(connection: Any) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    connection.append(writer, b"data", 41, 3)
    connection.append(writer, b"data", 44, 3)
    assert connection.attribute(segment, writer) == 44
    assert connection.attribute(segment, EVENT_COUNT) == 6


def test_seal(connection: Any) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    connection.append(writer, b"data", 1)
    connection.seal(segment)
    assert connection.info(segment) == {"sealed": True, "length": 4, "start": 0}
    assert connection.call("seal_segment", segment, "", answer="is_sealed").text() == segment
    # Setting a writer up goes on working; the append is what fails.
    assert connection.set_up(segment, writer) == 1
    request_id = connection.send_append(writer, b"more", 2)
    reply = connection.expect("is_sealed")
    assert (reply.i64(), reply.text()) == (request_id, segment)
    update = ("update_attribute", segment, uuid.uuid4(), 1, -(1 << 63), "")
    assert connection.call(*update, answer="is_sealed").text() == segment


def test_truncate(connection: Any) -> None:
    segment, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(segment, writer)
    connection.append(writer, b"0123456789", 1)
    assert connection.call("truncate_segment", segment, 4, "", answer="segment_truncated").text() == segment
    assert connection.info(segment) == {"sealed": False, "length": 10, "start": 4}
    for offset in (3, 11):
        reply = connection.call("truncate_segment", segment, offset, "", answer="is_truncated")
        assert (reply.text(), reply.i64()) == (segment, 4)
    connection.call("truncate_segment", segment, 4, "", answer="segment_truncated")
    assert connection.append(writer, b"ab", 2) == 12
    assert connection.read(segment, 4, 8) == b"456789ab"
    connection.seal(segment)
    connection.call("truncate_segment", segment, 12, "", answer="segment_truncated")
    assert connection.info(segment) == {"sealed": True, "length": 12, "start": 12}
    missing = connection.call("truncate_segment", "wire/missing/0.#epoch.0", 1, "", answer="no_such_segment")
    assert missing.text() == "wire/missing/0.#epoch.0"


def _transaction(connection: Any, target: str, data: bytes, count: int = 1) -> str:
    source: str = connection.new_segment(f"{target}#transaction.{uuid.uuid4().hex}")
    writer = uuid.uuid4()
    connection.set_up(source, writer)
    if data:
        connection.append(writer, data, count, count)
    return source


def _merged(connection: Any, target: str, source: str) -> int:
    reply = connection.call("merge_segments", target, source, "", ("i32", 0), answer="segments_merged")
    assert (reply.text(), reply.text()) == (target, source)
    length: int = reply.i64()
    reply.end()
    return length


def test_merge(connection: Any) -> None:
    target, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(target, writer)
    connection.append(writer, b"before ", 1)
    source = _transaction(connection, target, b"merged ", 3)
    connection.seal(source)
    assert _merged(connection, target, source) == 14
    assert not connection.exists(source)
    connection.append(writer, b"after", 2)
    assert connection.read(target, 0, 19) == b"before merged after"
    # Once more: done already, and nothing is added.
    assert _merged(connection, target, source) == 19
    assert connection.info(target)["length"] == 19


def test_merge_seals_its_source(connection: Any) -> None:
    target = connection.new_segment()
    source = _transaction(connection, target, b"open")
    assert _merged(connection, target, source) == 4
    assert connection.read(target, 0, 4) == b"open"


def test_merge_of_an_empty_source(connection: Any) -> None:
    target = connection.new_segment()
    source = _transaction(connection, target, b"")
    assert _merged(connection, target, source) == 0
    assert not connection.exists(source)


def test_merge_of_a_missing_source_names_the_source(connection: Any) -> None:
    target = connection.new_segment()
    source = f"{target}#transaction.{uuid.uuid4().hex}"
    reply = connection.call("merge_segments", target, source, "", ("i32", 0), answer="no_such_segment")
    assert reply.text() == source


def test_merge_into_a_sealed_target(connection: Any) -> None:
    target = connection.new_segment()
    source = _transaction(connection, target, b"late")
    connection.seal(target)
    connection.call("merge_segments", target, source, "", ("i32", 0), answer="is_sealed")
    assert connection.info(target)["length"] == 0


def test_conditional_merge(connection: Any, wire: Any) -> None:
    """A merge may depend on attributes of its target, and set them."""
    target, attribute = connection.new_segment(), uuid.uuid4()

    def merge(source: str, new: int, old: int, answer: str) -> Any:
        update = wire.pack(attribute, ("i8", 4), new, old)
        return connection.call("merge_segments", target, source, "", ("i32", 1), update, answer=answer)

    first, second = (_transaction(connection, target, data) for data in (b"first", b"second"))
    merge(first, 1, wire.no_value, "segments_merged")
    assert connection.attribute(target, attribute) == 1
    assert merge(second, 2, wire.no_value, "attribute_updated").flag() is False
    assert connection.info(target)["length"] == 5
    assert connection.exists(second)
    merge(second, 2, 1, "segments_merged")
    assert connection.read(target, 0, 11) == b"firstsecond"


def test_merge_batch(connection: Any) -> None:
    """Several sources in one request, in its order; those that are gone count as done."""
    target = connection.new_segment()
    one, two, three = (_transaction(connection, target, data) for data in (b"one ", b"two ", b"three"))
    _merged(connection, target, one)

    def batch(*sources: str) -> list[tuple[str, int]]:
        request = (target, ("i32", len(sources)), *sources, "")
        reply = connection.call("merge_batch", *request, answer="batch_merged")
        assert reply.text() == target
        return [(reply.text(), reply.i64()) for _ in range(reply.i32())]

    done = batch(one, two, three)
    assert [name for name, _ in done] == [one, two, three]
    assert [length for _, length in done][1:] == [8, 13]
    assert connection.read(target, 0, 13) == b"one two three"
    assert [name for name, _ in batch(three)] == [three]
    assert connection.info(target)["length"] == 13


def _transient(connection: Any, parent: str, writer: uuid.UUID) -> str:
    created = connection.call("create_transient", writer, parent, "", answer="segment_created")
    name: str = created.text()
    assert name.startswith(f"{parent}#transient.")
    return name


def _send_block(connection: Any, writer: uuid.UUID, number: int, offset: int, data: bytes) -> int:
    request_id: int = connection.next_id()
    connection.send("conditional_block_end", writer, number, offset, ("buf", data), request_id)
    return request_id


def test_large_event_by_a_transient_segment(connection: Any, wire: Any) -> None:
    parent, writer = connection.new_segment(), uuid.uuid4()
    connection.set_up(parent, writer)
    connection.append(writer, b"small", 1)
    transient = _transient(connection, parent, writer)
    assert connection.set_up(transient, writer) == wire.no_value
    piece = bytes(range(256)) * 4096
    for number in range(3):
        request_id = _send_block(connection, writer, number, number * len(piece), piece)
        assert connection.acknowledgement(writer, request_id)[0] == number
    assert _merged(connection, parent, transient) == 5 + 3 * len(piece)
    assert connection.read(parent, 0, 5 + 3 * len(piece)) == b"small" + piece * 3
    assert connection.set_up(parent, writer) == 1
    assert connection.append(writer, b"!", 2) == 6 + 3 * len(piece)
    assert connection.attribute(parent, EVENT_COUNT) == 3


def test_transient_segments_end_with_their_connection(connection: Any, wire: Any) -> None:
    other = wire.connect()
    parent = connection.new_segment()
    transient = _transient(other, parent, uuid.uuid4())
    assert connection.exists(transient)
    other.close()
    deadline = time.monotonic() + 15
    while connection.exists(transient):
        assert time.monotonic() < deadline, "the transient segment is still there"
        time.sleep(0.05)  # the server says nothing when it has deleted it
    assert connection.exists(parent)
