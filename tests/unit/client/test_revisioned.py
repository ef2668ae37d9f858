"""Revisioned streams: writers find a segment whose container moved; reads are bounded."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.revisioned import Entry, RevisionedStream
from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.kernel import pack_events
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

SEGMENT = "s/t/0.#epoch.0"
MOVED_DEADLINE_S = 120.0


@pytest.mark.parametrize("written_before", [False, True], ids=["first write", "later write"])
async def test_a_writer_whose_endpoint_refuses_connections_locates_the_segment_again(
    store: Any, controller: Any, context: ClientContext, written_before: bool
) -> None:
    """A pod was killed: a client that knows its address from before must learn where the container went."""
    store.create(SEGMENT)
    stream = RevisionedStream(context, SEGMENT)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = pb.NodeUri(endpoint="127.0.0.1", port=unused.getsockname()[1])
    moved = pb.NodeUri(endpoint=store.endpoint.host, port=store.endpoint.port)
    answers = [dead, moved]
    controller.answers["getURI"] = lambda _: answers.pop(0) if len(answers) > 1 else answers[0]
    if written_before:
        answers.insert(0, moved)
        assert await stream.write_conditionally(0, b"before") == 14
        context.segments.forget(SEGMENT)
        store.drop_all()
    start = 14 if written_before else 0
    async with asyncio.timeout(MOVED_DEADLINE_S):
        assert await stream.write_conditionally(start, b"moved") == start + 13
    assert answers == [moved], "the controller was asked again"
    assert await stream.read_from(start) == [Entry(b"moved", start + 13)]


@pytest.mark.parametrize("size", [1, 1000, 100_000], ids=["small", "several in a request", "larger than a request"])
async def test_a_bounded_read_returns_the_first_records_and_reads_little_beyond_them(
    store: Any, context: ClientContext, size: int
) -> None:
    payloads = [bytes([65 + number]) * size for number in range(20)]
    store.create(SEGMENT, pack_events(payloads))
    stream = RevisionedStream(context, SEGMENT)
    record = size + 8
    expected = [Entry(each, record * (number + 1)) for number, each in enumerate(payloads)]
    assert await stream.read_from(0, 3) == expected[:3]
    wanted = sum(each.suggested_length for each in store.seen if isinstance(each, c.ReadSegment))
    assert wanted <= 2 * 3 * record + limits.REVISIONED_REQUEST_BYTES
    assert await stream.read_from(17 * record, 5) == expected[17:]
    assert await stream.read_from(0, 20) == await stream.read_from(0) == expected
    assert await stream.read_from(20 * record, 5) == []


@pytest.mark.parametrize("max_entries", [None, 2, 5])
async def test_a_record_that_is_cut_off_is_refused_where_it_is_read(
    store: Any, context: ClientContext, max_entries: int | None
) -> None:
    store.create(SEGMENT, pack_events([b"a", b"b", b"c"])[:-1])
    stream = RevisionedStream(context, SEGMENT)
    if max_entries == 2:
        assert await stream.read_from(0, max_entries) == [Entry(b"a", 9), Entry(b"b", 18)]
        return
    with pytest.raises(CorruptionError, match="a record is cut off"):
        await stream.read_from(0, max_entries)
