"""A read whose server cannot be connected to ends, however long each attempt takes (docs/client.md#read)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.connections import segments
from tailrace.client.connections.left_reads import ReadPlace
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.types import Endpoint
from tailrace.common.errors import ConnectionLostError, UnavailableError


class Silent:
    """A pool whose server never says anything: each connection fails at the end of its deadline."""

    def __init__(self) -> None:
        self.attempts = 0

    async def get(self, endpoint: Endpoint, lane: str, place: ReadPlace | None = None) -> Any:
        """Fail late."""
        self.attempts += 1
        await asyncio.sleep(0.2)
        raise ConnectionLostError(f"{endpoint} did not answer")


async def locate(_: str) -> Endpoint:
    """Any place."""
    return Endpoint("127.0.0.1", 1)


async def test_a_read_ends_when_no_connection_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_SETTLED_S", 0.1)
    pool = Silent()
    client = SegmentClient(pool, locate, deadline_s=1.0)  # type: ignore[arg-type]  # it has what is used
    async with asyncio.timeout(120):
        with pytest.raises(UnavailableError):
            await client.read("scope/stream/0.#epoch.0", 0, 100)
    assert pool.attempts > 1
