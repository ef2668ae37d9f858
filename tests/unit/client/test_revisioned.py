"""Revisioned streams: writers find a segment whose container moved."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.revisioned import Entry, RevisionedStream
from tailrace.rpc import controller_pb2 as pb

SEGMENT = "s/t/0.#epoch.0"
MOVED_DEADLINE_S = 20.0


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
