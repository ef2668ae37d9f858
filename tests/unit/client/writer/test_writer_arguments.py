"""Arguments that a writer cannot take are named, and harm nothing that is written later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common.errors import BadRequestError

STREAM = StreamName("s", "t")


@pytest.mark.parametrize(("key", "kind"), [(7, "int"), (b"k", "bytes"), (["k"], "list")])
async def test_a_routing_key_of_a_wrong_type(
    store: Any,
    controller: Any,
    context: ClientContext,
    split: Callable[[bytes | bytearray], list[bytes]],
    key: Any,
    kind: str,
) -> None:
    controller.begin((0, 0.0, 1.0))
    async with EventWriter(context, STREAM) as writer:
        for write in (lambda: writer.write_event(b"x", key), lambda: writer.write_events([b"x"], routing_key=key)):
            with pytest.raises(BadRequestError, match=rf"^the routing key is of type {kind}, not str$"):
                write()
        writer.write_event(b"good", "key")
    assert split(store.segments[STREAM.segment(0)].data) == [b"good"]
