"""Hello, keep-alive, and frames with more in them than is known."""

from __future__ import annotations

import struct
from typing import Any

import pytest


def test_hello_announces_versions_16_and_5(wire: Any) -> None:
    assert wire.connect().server_versions == (16, 5)


@pytest.mark.parametrize("versions", [(15, 5), (16, 5), (17, 5), (5, 1), (30, 16)])
def test_overlapping_versions_are_served(wire: Any, versions: tuple[int, int]) -> None:
    connection = wire.connect(versions)
    connection.info(connection.new_segment())


@pytest.mark.parametrize("versions", [(4, 1), (20, 17)])
def test_versions_without_overlap_are_answered_with_ours_and_closed(wire: Any, versions: tuple[int, int]) -> None:
    wire.connect(versions).expect_closed()


def test_requests_may_follow_hello_at_once(wire: Any) -> None:
    connection = wire.connect(None)
    segment = "wire/hello/0.#epoch.0"
    hello = struct.pack(">iiii", -127, 8, 16, 5)
    get_info = wire.pack(77, segment, "")
    connection.send_raw(hello + struct.pack(">ii", 11, len(get_info)) + get_info)
    connection.expect("hello")
    reply = connection.expect("no_such_segment")
    assert (reply.i64(), reply.text()) == (77, segment)


def test_keep_alive_is_echoed(connection: Any) -> None:
    for _ in range(3):
        connection.send("keep_alive")
        connection.expect("keep_alive").end()


def test_nothing_comes_unasked(connection: Any) -> None:
    connection.expect_nothing(1.0)


def test_padding_outside_a_block_is_ignored(connection: Any) -> None:
    connection.send("padding", b"\0" * 1000)
    connection.send("keep_alive")
    connection.expect("keep_alive")


def test_bytes_after_the_known_fields_are_ignored(connection: Any) -> None:
    segment = connection.new_segment()
    reply = connection.call("get_info", segment, "", b"from the future", answer="info")
    assert reply.text() == segment


def test_replies_carry_their_request_ids(connection: Any) -> None:
    segment = connection.new_segment()
    ids = [0, -1, 1 << 62, (5 << 32) | 9]
    for request_id in ids:
        connection.send("get_info", request_id, segment, "")
    assert sorted(connection.expect("info").i64() for _ in ids) == sorted(ids)
