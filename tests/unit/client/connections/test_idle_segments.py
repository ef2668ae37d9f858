"""Reads that wait at the ends of more segments of one store than a connection of it takes requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.context import ClientContext
from tailrace.client.types import Endpoint
from tailrace.common import limits
from tailrace.common.errors import OverloadedError

SEGMENTS = 5_000
DEADLINE_S = 120.0
READ_BYTES = 100
TURNS_FOR_A_REQUEST = 50


def names_of(count: int, *, first: int = 0) -> list[str]:
    return [f"s/t/{number}.#epoch.0" for number in range(first, first + count)]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - counts of the store
            await asyncio.sleep(0.002)


async def until_parked(store: Any, count: int) -> None:
    await until(lambda: bool(store.reads.total() == count))


async def until_read(store: Any, segment: str) -> None:
    await until(lambda: any(getattr(command, "segment", "") == segment for command in reversed(store.seen)))


async def cancelled_read(store: Any, context: ClientContext, segment: str, length: int = READ_BYTES) -> None:
    """Begin a read and cancel it when the store has it, or an earlier one of that place and time for another."""
    read = asyncio.create_task(context.segments.read(segment, 0, length))
    await until_read(store, segment)
    for _ in range(TURNS_FOR_A_REQUEST):
        await asyncio.sleep(0)
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read


async def give_data(store: Any, segments: list[str]) -> None:
    async with store.grown:
        for segment in segments:
            store.segments[segment].data += b"data"
        store.grown.notify_all()


async def test_5000_segments_without_events_are_read_without_a_lost_connection(
    store: Any, context: ClientContext
) -> None:
    segments = names_of(SEGMENTS)
    for segment in segments:
        store.create(segment)
    reads = [asyncio.create_task(context.segments.read(segment, 0, READ_BYTES)) for segment in segments]
    await until_parked(store, SEGMENTS)
    assert store.connections == store.open_connections == 2
    await give_data(store, segments)
    async with asyncio.timeout(DEADLINE_S):
        assert {bytes(read.data) for read in await asyncio.gather(*reads)} == {b"data"}
    assert store.connections == store.open_connections == 2, "connections that the store closed"


async def test_another_poll_of_a_segment_takes_its_request_over_on_the_connection_where_it_waits(
    store: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_REQUESTS_IN_FLIGHT_MAX", 2)
    segments = names_of(5)
    for segment in segments:
        store.create(segment)
    for _ in range(3):
        for segment in segments:
            await cancelled_read(store, context, segment)
    assert store.reads.total() == len(segments)
    assert store.connections == 3


async def test_polls_of_one_place_with_many_lengths_wait_in_one_request(store: Any, context: ClientContext) -> None:
    (segment,) = names_of(1)
    store.create(segment)
    for length in range(1, 51):
        await cancelled_read(store, context, segment, length)
    assert store.reads.total() == 1


async def test_cancelled_reads_of_one_place_count_each(
    store: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_REQUESTS_IN_FLIGHT_MAX", 4)
    (segment,) = names_of(1)
    store.create(segment)
    reads = [asyncio.create_task(context.segments.read(segment, 0, READ_BYTES)) for _ in range(10)]
    await until_parked(store, len(reads))
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    other = names_of(1, first=1)
    store.create(other[0])
    waiting = asyncio.create_task(context.segments.read(other[0], 0, READ_BYTES))
    await until_parked(store, len(reads) + 1)
    assert max(store.reads.values()) == 4
    again = [asyncio.create_task(context.segments.read(segment, 0, READ_BYTES)) for _ in range(10)]
    await give_data(store, [segment, *other])
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(waiting, *again)
    assert sum(type(command).__name__ == "ReadSegment" for command in store.seen) == len(reads) + 1


async def test_reads_that_were_cancelled_for_good_end_with_their_connection(
    store: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_LEFT_READS_MAX", 10)
    segments = names_of(100)
    for segment in segments:
        store.create(segment)
        await cancelled_read(store, context, segment)
    await until(lambda: bool(store.open_connections == 1))
    assert store.connections == 10


async def test_readers_that_go_on_hold_few_connections_full_of_cancelled_reads(
    store: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_LEFT_READS_MAX", 10)
    kept = names_of(20, first=1000)
    for segment in kept:
        store.create(segment)
    going_on = []
    for number, segment in enumerate(kept):
        going_on.append(asyncio.create_task(context.segments.read(segment, 0, READ_BYTES)))
        await until_read(store, segment)
        for left in names_of(10, first=10 * number):
            store.create(left)
            await cancelled_read(store, context, left)
    await until(lambda: bool(store.open_connections <= 1 + limits.CLIENT_RETIRED_CONNECTIONS_MAX))
    await give_data(store, kept)
    async with asyncio.timeout(DEADLINE_S):
        assert {bytes(read.data) for read in await asyncio.gather(*going_on)} == {b"data"}


async def test_more_requests_than_all_connections_take_are_refused_with_the_reason(
    store: Any, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_REQUESTS_IN_FLIGHT_MAX", 0)
    monkeypatch.setattr(limits, "CLIENT_CONNECTIONS_PER_LANE_MAX", 2)
    endpoint: Endpoint = store.endpoint
    with pytest.raises(OverloadedError, match=r"0 requests wait at segment store \S+ on 2 connections"):
        await pool.get(endpoint)
