"""A read that times out at the tail leaves no request behind at the server."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.byte_stream import ByteStreamReader
from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.common.errors import DeadlineError

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
