"""Streams with more segments than a connection takes requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.reader.batch import slices_between
from tailrace.client.stream_manager import StreamManager
from tailrace.common import limits
from tailrace.wire import commands as c
from tailrace.wire.codec import encode

SEGMENTS = 5_000
LOOP_TURNS_WITHOUT_REQUEST = 20
DEADLINE_S = 120.0


class BoundedStore:
    """Makes a tiny store hold its answers to GetStreamSegmentInfo until no request arrives any more.

    The store then knows how many requests a client has in flight. Above the server's bound it closes the connection.
    """

    def __init__(self, store: Any, cut: Exception) -> None:
        self._store = store
        self._cut = cut
        self._held: list[c.GetStreamSegmentInfo] = []
        self._task: asyncio.Task[None] | None = None
        self.in_flight_max = 0
        store.rules.append(self._rule)

    def _rule(self, command: c.Command) -> list[c.Command] | None:
        if not isinstance(command, c.GetStreamSegmentInfo):
            return None
        self._held.append(command)
        self.in_flight_max = max(self.in_flight_max, len(self._held))
        if len(self._held) > limits.REQUESTS_PER_CONNECTION_MAX:
            self._held.clear()
            raise self._cut
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer())
        return []

    async def _answer(self) -> None:
        count, quiet = len(self._held), 0
        while quiet < LOOP_TURNS_WITHOUT_REQUEST:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._held) == count else 0
            count = len(self._held)
        held, self._held = self._held, []
        for command in held:
            length = len(self._store.segments[command.segment].data)
            reply = c.StreamSegmentInfo(command.request_id, command.segment, True, False, False, 1, length, 0)
            self._store.send(encode(reply))


@pytest.fixture
def bounded(store: Any, controller: Any, cut: Exception) -> BoundedStore:
    """A stream of 5,000 segments, segment n with n % 7 + 1 bytes, behind a server with a bound on requests."""
    controller.begin(*((number, number / SEGMENTS, (number + 1) / SEGMENTS) for number in range(SEGMENTS)))
    for number, segment in enumerate(store.segments.values()):
        segment.data += b"x" * (number % 7 + 1)
    return BoundedStore(store, cut)


async def test_the_tail_of_a_stream_of_5000_segments(bounded: BoundedStore, context: ClientContext) -> None:
    async with asyncio.timeout(DEADLINE_S):
        tail = await StreamManager(context).tail("s/t")
    assert tail.positions == {number: number % 7 + 1 for number in range(SEGMENTS)}
    assert 1 < bounded.in_flight_max <= limits.SEGMENT_CALLS_CONCURRENT_MAX


async def test_the_slices_of_a_stream_of_5000_segments(bounded: BoundedStore, context: ClientContext) -> None:
    async with asyncio.timeout(DEADLINE_S):
        slices = await slices_between(context, StreamName("s", "t"))
    assert [piece.end for piece in slices] == [number % 7 + 1 for number in range(SEGMENTS)]
    assert 1 < bounded.in_flight_max <= limits.SEGMENT_CALLS_CONCURRENT_MAX


async def test_the_places_of_5000_segments_are_asked_for_once(
    bounded: BoundedStore, context: ClientContext, controller: Any
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(2):
            await StreamManager(context).tail("s/t")
    assert [method for method, _ in controller.calls].count("getURI") == SEGMENTS
