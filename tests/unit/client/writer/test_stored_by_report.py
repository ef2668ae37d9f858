"""Events that a set-up reports as stored are acknowledged, whatever ends the writer of their segment after the report.

The writer asks for the segment's length before it acknowledges them; that question may fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common import limits
from tailrace.common.errors import TailraceError
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
SEGMENT, SUCCESSOR = STREAM.segment(0), STREAM.segment((1 << 32) + 1)
Split = Callable[[bytes | bytearray], list[bytes]]
DEADLINE_S = 120.0


@pytest.fixture
async def writer(store: Any, controller: Any, context: ClientContext) -> AsyncIterator[EventWriter]:
    """A writer whose first append is stored, but not acknowledged: its connection ends."""
    controller.begin((0, 0.0, 1.0))
    store.cut(c.AppendBlockEnd, after=True)
    writer = await EventWriter(context, STREAM).start()
    yield writer
    await writer.abandon()


def at(store: Any, kind: type[c.Command], act: Callable[[Any], list[c.Command]]) -> None:
    """Answer the requests of a kind on the first segment."""

    def rule(command: c.Command) -> list[c.Command] | None:
        return act(command) if isinstance(command, kind) and getattr(command, "segment", "") == SEGMENT else None

    store.rules.append(rule)


@pytest.mark.parametrize("later", [False, True], ids=["before its length is known", "before the next set-up"])
async def test_they_are_not_sent_to_the_successor_of_a_deleted_segment(
    store: Any, controller: Any, context: ClientContext, writer: EventWriter, split: Split, cut: Exception, later: bool
) -> None:
    asked = False

    def deleted(command: Any) -> list[c.Command]:
        if not controller.following:
            controller.scale([0], ((1 << 32) + 1, 0.0, 1.0))
        return [c.NoSuchSegment(command.request_id, SEGMENT)]

    def length(command: Any) -> list[c.Command]:
        nonlocal asked
        if later and not asked:
            at(store, c.SetupAppend, deleted)
        asked = True
        if later:
            raise cut
        return deleted(command)

    if later:
        context.segments._deadline_s = 0.1
    at(store, c.GetStreamSegmentInfo, length)
    async with asyncio.timeout(DEADLINE_S):
        await writer.write_event(b"one", "k")
        await writer.write_event(b"two", "k")
    assert asked
    assert [split(store.segments[name].data) for name in (SEGMENT, SUCCESSOR)] == [[b"one"], [b"two"]]


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "given up"])
async def test_they_do_not_fail_with_their_writer(
    store: Any,
    context: ClientContext,
    writer: EventWriter,
    split: Split,
    cut: Exception,
    monkeypatch: pytest.MonkeyPatch,
    refused: bool,
) -> None:
    def length(command: Any) -> list[c.Command]:
        if refused:
            return [c.AuthTokenCheckFailed(command.request_id, "", 0)]
        monkeypatch.setattr(limits, "WRITER_GIVE_UP_S", 0.0)
        raise cut

    context.segments._deadline_s = DEADLINE_S if refused else 0.1
    at(store, c.GetStreamSegmentInfo, length)
    async with asyncio.timeout(DEADLINE_S):
        await writer.write_event(b"one", "k")
        with pytest.raises(TailraceError):
            await writer.write_event(b"two", "k")
    assert split(store.segments[SEGMENT].data) == [b"one"]
