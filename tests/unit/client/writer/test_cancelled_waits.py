"""A wait that is cancelled while `flush` runs must not end the flush: the event is not durable yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.client.writer.transactions import TransactionalWriter
from tailrace.common import names
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
Split = Callable[[bytes | bytearray], list[bytes]]


async def test_a_flush_outlasts_a_wait_that_is_cancelled_meanwhile(
    store: Any, controller: Any, context: ClientContext, split: Split
) -> None:
    controller.begin((0, 0.0, 1.0))
    writer = await EventWriter(context, STREAM).start()
    store.rules.append(lambda command: [] if isinstance(command, c.AppendBlockEnd) else None)
    waiting = asyncio.ensure_future(asyncio.wait_for(writer.write_event(b"one", "k"), 0.1))
    flushing = asyncio.create_task(writer.flush())
    await asyncio.wait([waiting])
    await asyncio.sleep(0.02)
    early = flushing.done()
    store.rules.clear()
    store.drop_all()
    await flushing
    stored = split(store.segments[STREAM.segment(0)].data)
    await writer.abandon()
    assert not early, "flush returned although the event is not durable"
    assert stored == [b"one"]


async def test_a_commit_has_the_events_whose_waits_were_cancelled_meanwhile(
    store: Any, controller: Any, context: ClientContext, split: Split
) -> None:
    controller.begin((0, 0.0, 1.0))
    async with TransactionalWriter(context, STREAM) as transactions:
        transaction = await transactions.begin()
        store.rules.append(lambda command: [] if isinstance(command, c.AppendBlockEnd) else None)
        waiting = asyncio.ensure_future(asyncio.wait_for(transaction.write_event(b"debit", "k"), 0.1))
        committing = asyncio.create_task(transaction.commit())
        await asyncio.wait([waiting])
        await asyncio.sleep(0.02)
        store.rules.clear()
        store.drop_all()
        await committing
    segment = names.transaction_segment_name(STREAM.segment(0), transaction.transaction_id)
    assert [method for method, _ in controller.calls].count("commitTransaction") == 1
    assert split(store.segments[segment].data) == [b"debit"], "committed without its event"
