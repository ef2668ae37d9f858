"""A list that is refused is refused as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common import limits
from tailrace.common.errors import BadRequestError

STREAM = StreamName("s", "t")
Split = Callable[[bytes | bytearray], list[bytes]]


async def test_nothing_of_a_refused_list_is_written(
    store: Any, controller: Any, context: ClientContext, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin((0, 0.0, 1.0))
    monkeypatch.setattr(limits, "WRITER_EVENT_MAX_BYTES", 9 * limits.MIB)
    writer = await EventWriter(context, STREAM).start()
    good = [b"%d" % n for n in range(3)]
    with pytest.raises(BadRequestError):
        writer.write_events([*good, bytes(10 * limits.MIB)], "k")
    await writer.flush()
    await writer.write_events(good, "k")  # the application leaves out the event that was refused
    await writer.close()
    assert split(store.segments[STREAM.segment(0)].data) == good
