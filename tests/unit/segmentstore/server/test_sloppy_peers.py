"""Requests of sloppy peers: many missing sources, changes of closed connections, names that no reply can repeat."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.wire import codec
from tailrace.wire import commands as c

SEGMENT = "scope/stream/0.#epoch.0"


async def test_a_merge_of_many_missing_sources_leaves_turns_to_other_work(client: Any) -> None:
    await client.fill(SEGMENT, b"abc")
    sources = [f"{SEGMENT}#transaction.{number:032x}" for number in range(64 * limits.MERGE_SOURCES_PER_TURN)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(others())
    answer = await client.call(c.MergeSegmentsBatch(5, SEGMENT, sources, ""))
    working.cancel()
    assert answer == c.SegmentsBatchMerged(5, SEGMENT, [c.MergedSource(source, 3) for source in sources])
    assert turns > 64


@pytest.mark.parametrize("reads", [0, 100])
async def test_changes_of_closed_connections_are_bounded(
    model: Any, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    """A container does not answer, and clients that give up come again with the same changes. Reads do not count."""
    most, each = 50, 40
    monkeypatch.setattr(limits, "REQUESTS_ORPHANED_MAX", most)
    answers = asyncio.Event()
    create = model.model.create_segment

    async def stuck(*arguments: Any, **keywords: Any) -> Any:
        await answers.wait()
        return await create(*arguments, **keywords)

    await (await model.connect()).create(SEGMENT)
    monkeypatch.setattr(model.model, "create_segment", stuck)
    for turn in range(4):
        client = await model.connect()
        client.send(*(c.ReadSegment(SEGMENT, 0, 1, "", n) for n in range(reads)))
        client.send(*(c.CreateSegment(n, f"a/b/{turn * each + n}.#epoch.0", 0, 0, "") for n in range(each)))
        await model.until(lambda: model.server.unanswered == each + reads)
        client.close()
        await model.until(lambda: model.server.connections == 1)
    await asyncio.sleep(0)
    answers.set()
    client = await model.connect()
    await client.create("a/b/1000.#epoch.0")
    assert len(model.model.segments) - 2 == most
    await model.until(lambda: model.server._context.unanswered.orphans == 0)


@pytest.mark.parametrize("raw", ["\U0001f600" * 16_000, "\0" * 60_000], ids=["supplementary", "zeros"])
async def test_a_name_that_no_reply_can_repeat_ends_the_connection(
    model: Any, raw: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await model.connect()
    name = raw.encode()
    payload = struct.pack(">qH", 77, len(name)) + name + bytes(2)
    client.send_raw(codec.FRAME_HEADER.pack(c.GetStreamSegmentInfo.CODE, len(payload)) + payload)
    await client.expect_end()
    assert "the reply that says so" in capsys.readouterr().out
