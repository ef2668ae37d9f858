"""docs/client.md: a large event whose server was away at the moment of storing fails, it is not stored twice.

The neighbouring test only loses the merges: there the writer's own connection is up again when the doubt ends.
Here the server is away altogether, as documented, so the writer is between two sessions at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common import limits
from tailrace.common.errors import TailraceError
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
Split = Callable[[bytes | bytearray], list[bytes]]


async def test_a_large_event_in_doubt_is_not_stored_again_when_its_server_returns(
    store: Any,
    controller: Any,
    context: ClientContext,
    split: Split,
    cut: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller.begin((0, 0.0, 1.0))
    writer = await EventWriter(context, STREAM).start()
    large = Random(1).randbytes(limits.EVENT_MAX_BYTES + 1000)
    monkeypatch.setattr(limits, "LARGE_EVENT_DOUBT_S", 0.2)
    context.segments._deadline_s = 0.1
    away = False

    def gone(command: c.Command) -> None:
        if away:
            raise cut

    def merged(command: c.Command) -> None:
        nonlocal away
        if isinstance(command, c.MergeSegments) and not away:
            away = True
            raise cut

    store.rules.append(gone)
    store.after.append(merged)  # the merge happens, then the server is away: no answer, no connection
    future = writer.write_event(large, "k")
    try:
        async with asyncio.timeout(120):
            with pytest.raises(TailraceError, match="unknown whether a large event was appended"):
                await future  # while the server is away
            store.rules.clear()  # it is back
            store.after.clear()
            with pytest.raises(TailraceError, match="unknown whether a large event was appended"):
                await writer.flush()
    finally:
        await writer.abandon()
    assert split(store.segments[STREAM.segment(0)].data) == [large], "stored once"
