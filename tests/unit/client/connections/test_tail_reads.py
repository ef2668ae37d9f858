"""A read that times out at the tail leaves no request behind at the server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tailrace.client.byte_stream import ByteStreamReader
from tailrace.client.connections.connection import Connection
from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.cluster.endpoints import Endpoint
from tailrace.common.errors import DeadlineError
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")


async def test_polling_a_quiet_byte_stream_does_not_pile_up_requests(
    store: Any, controller: Any, context: ClientContext
) -> None:
    controller.begin((0, 0.0, 1.0))
    reader = await ByteStreamReader(context, STREAM).start()
    for _ in range(50):
        with pytest.raises(DeadlineError):
            await reader.read(100, timeout_s=0.005)
    assert len(store._polls) <= 1, "requests that the server keeps until data come"
    async with store.grown:
        store.segments[STREAM.segment(0)].data += b"data"
        store.grown.notify_all()
    assert await reader.read(100, timeout_s=120) == b"data"


class Sent:
    """A transport that takes everything and answers nothing."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


async def test_polls_that_go_on_for_days_leave_one_callback() -> None:
    connection = Connection(Endpoint("store", 1))
    connection._transport = cast("Any", Sent())
    for _ in range(200):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await connection.request(c.ReadSegment("s/t/0.#epoch.0", 0, 100, ""), None)
    (left,) = connection._pending.values()
    assert len(cast("Any", left)._callbacks) == 1
    assert (connection.left_reads, len(connection._pending)) == (1, 1)
    connection.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (connection.left_reads, connection._pending) == (0, {})
