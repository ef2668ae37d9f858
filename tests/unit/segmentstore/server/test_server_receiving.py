"""Large frames that are started and make no progress: their memory is bounded, and other connections do not wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common.limits import MIB
from tailrace.wire import codec
from tailrace.wire import commands as c

SEGMENT = "scope/stream/0.#epoch.0"
W = bytes(range(16))


async def test_large_frames_that_never_end(tight: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Forty connections begin 15 MiB each and stop; others are served, and large frames come through."""
    good = await tight.connect()
    await good.create(SEGMENT)
    await good.setup(W, SEGMENT)
    bad = [await tight.connect() for _ in range(40)]
    for client in bad:
        client.send_raw(codec.FRAME_HEADER.pack(c.UpdateTableEntries.CODE, 15 * MIB) + bytes(200_000))
    pool = tight.receiving.pool
    await tight.until(lambda: pool.promised_bytes > 0)
    assert pool.promised_bytes <= 16 * MIB
    for number in range(1, 5):
        await good.call(c.AppendBlockEnd(W, 0, b"small", 1, number, 1))
        assert pool.promised_bytes <= 16 * MIB
    data = bytes(range(256)) * (6 * MIB // 256)
    reply = await good.call(c.AppendBlockEnd(W, 0, data, 1, 5, 1))
    assert isinstance(reply, c.DataAppended)
    assert await good.read_all(SEGMENT) == b"small" * 4 + data
    lines = [line for line in capsys.readouterr().out.splitlines() if "connection closed" in line]
    assert lines
    assert all("made no progress" in line for line in lines)


async def test_who_comes_last_does_not_wait_for_all_the_others(tight: Any) -> None:
    """A hundred connections have begun a large frame and do nothing: the next large frame waits for a few of them."""
    good = await tight.connect()
    await good.create(SEGMENT)
    await good.setup(W, SEGMENT)
    looks_s, tight.receiving._look_s = tight.receiving._look_s, 3600.0  # all hundred are there before the first look
    for _ in range(100):
        client = await tight.connect()
        client.send_raw(codec.FRAME_HEADER.pack(c.UpdateTableEntries.CODE, 15 * MIB) + bytes(100_000))
    await tight.until(lambda: tight.receiving.pool.promised_bytes > 0)
    await good.expect_silence()
    assert tight.server.connections == 101
    answer = asyncio.ensure_future(good.call(c.AppendBlockEnd(W, 0, bytes(2 * MIB), 1, 1, 1)))
    await tight.until(lambda: len(tight.receiving._waiting) == 100)  # all but the one that has room
    tight.receiving._look_s = looks_s
    tight.receiving._look.cancel()
    tight.receiving._look_for_slow_ones()
    assert isinstance(await answer, c.DataAppended)
    assert tight.server.connections > 90


async def test_blocks_and_ends_that_wait_for_each_other(tight: Any) -> None:
    """Connections that hold a block and want as much again for its end: some are closed, so that others go on."""
    clients = []
    for number in range(4):
        client, writer = await tight.connect(), bytes([number] * 16)
        await client.create(f"scope/stream/{number}.#epoch.0")
        await client.setup(writer, f"scope/stream/{number}.#epoch.0")
        clients.append((client, writer))
    whole = bytes(3 * MIB)
    for client, writer in clients:
        client.send(c.AppendBlock(writer, whole + codec.encode(c.PartialEvent(b"ab"))))
    await tight.until(lambda: tight.receiving.pool.promised_bytes == 16 * MIB)
    for client, writer in clients:
        client.send(c.AppendBlockEnd(writer, len(whole), whole, 1, 1, 1))
    await tight.until(lambda: tight.server.connections < 4 and tight.receiving.pool.promised_bytes == 0)
    assert tight.server.connections > 0
    assert {len(segment.data) for segment in tight.model.segments.values()} == {0, 2 * len(whole) + 2}


async def test_blocks_whose_peers_send_other_frames_in_place_of_the_end(tight: Any) -> None:
    """Such a frame is no progress of the block, which fills the receive buffers."""
    tight.receiving._look_s = 0.5  # such frames come between two looks
    good = await tight.connect()
    await good.create(SEGMENT)
    await good.setup(W, SEGMENT)
    clients = [await tight.connect() for _ in range(4)]
    for number, client in enumerate(clients):
        writer = bytes([number] * 16)
        await client.create(f"scope/stream/{number + 1}.#epoch.0")
        await client.setup(writer, f"scope/stream/{number + 1}.#epoch.0")
        client.send(c.AppendBlock(writer, bytes(3 * MIB)))
    await tight.until(lambda: tight.receiving.pool.promised_bytes == 16 * MIB)

    async def go_on() -> None:
        while True:
            for client in clients:
                client.send(c.KeepAlive())
            await asyncio.sleep(0.005)

    going_on = asyncio.create_task(go_on())
    assert isinstance(await good.call(c.AppendBlockEnd(W, 0, bytes(2 * MIB), 1, 1, 1)), c.DataAppended)
    going_on.cancel()
    assert tight.server.connections < 5


async def test_who_waits_for_room_and_goes_away(tight: Any) -> None:
    bad = [await tight.connect() for _ in range(5)]
    for client in bad:
        client.send_raw(codec.FRAME_HEADER.pack(c.UpdateTableEntries.CODE, 15 * MIB) + bytes(100_000))
    pool = tight.receiving.pool
    await tight.until(lambda: pool.promised_bytes > 0)
    for client in bad:
        client.close()
    await tight.until(lambda: tight.server.connections == 0)
    assert pool.promised_bytes == 0


async def test_connections_above_the_limit_are_refused_with_one_line(
    few: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [await few.connect() for _ in range(3)]
    await good[0].create(SEGMENT)
    for client in good:  # none is idle
        await client.setup(W, SEGMENT)
    for _ in range(20):
        refused = await few.connect(hello=False)
        await refused.expect_end()
    assert await good[0].call(c.KeepAlive()) == c.KeepAlive()
    lines = [line for line in capsys.readouterr().out.splitlines() if "refused" in line]
    assert len(lines) == 1
    good.pop().close()
    await few.until(lambda: few.server.connections == 2)
    await (await few.connect()).expect_silence()
