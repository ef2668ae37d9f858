"""The end of the server: no connection outlasts it."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from harness.streamserver import read_to_the_end
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.wrong_host_responder import NoContainers


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_it_ends_is_closed(turns: int, peer: socket.socket) -> None:
    """The loop has turned so many times since a client connected. Its process may go on, and serve others."""
    server = SegmentStoreServer(NoContainers(), InFlightBudget(), SystemClock(), SystemEntropy())
    address = await server.start("127.0.0.1", 0)
    with contextlib.suppress(BlockingIOError):
        peer.connect(address)
    for _ in range(turns):
        await asyncio.sleep(0)
    await server.close()
    async with asyncio.timeout(120):
        await read_to_the_end(peer)
