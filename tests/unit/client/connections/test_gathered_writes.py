"""Small frames of one turn of the event loop leave in one write: each write is a system call, and wakes the server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tailrace.client.connections.connection import Connection
from tailrace.cluster.endpoints import Endpoint
from tailrace.common import limits
from tailrace.wire import commands as c
from tailrace.wire.codec import encode


class Kept:
    """A transport that remembers each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def abort(self) -> None: ...


async def test_small_frames_of_one_turn_leave_in_one_write() -> None:
    connection = Connection(Endpoint("store", 1))
    kept = Kept()
    connection._transport = cast("Any", kept)
    sent = [c.GetStreamSegmentInfo(number, f"s/t/{number}.#epoch.0", "") for number in range(3)]
    for command in sent:
        connection.send(command)
    assert kept.writes == []
    await asyncio.sleep(0)
    assert kept.writes == [b"".join(map(encode, sent))]
    large = bytes(limits.SEND_GATHER_BYTES)
    connection.send(sent[0])
    connection.send_append(1, b"w" * 16, large, 1, 1)
    connection.send(sent[1])
    await asyncio.sleep(0)
    stream = b"".join(kept.writes[1:])
    assert stream.startswith(encode(sent[0]))
    assert stream.endswith(encode(sent[1]))
    assert kept.writes[2] == large, "it is not copied into the bytes before it"
    connection.send(sent[2])
    connection.abort()
    assert kept.writes[-1] == encode(sent[2]), "what was sent before the end leaves"
