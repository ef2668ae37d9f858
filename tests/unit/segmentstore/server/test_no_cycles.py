"""What a request leaves is freed by its reference counts: the collector of cycles runs rarely (ADR 0043)."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

from tailrace.common.limits import MIB
from tailrace.wire import commands as c

SEGMENT, TABLE, W = "scope/stream/0.#epoch.0", "scope/table/0.#epoch.0", bytes(range(16))
ROUNDS = 40
FEW = 50
"""Objects in cycles that are not of requests: futures of timers, of the connection."""


async def work(client: Any, first: int) -> None:
    """Appends, reads, attributes, tables, refused requests: each of them so many times."""
    for number in range(first, first + ROUNDS):
        await client.call(c.AppendBlockEnd(W, 0, bytes(1000), 1, number + 1, 1))
        assert len((await client.call(c.ReadSegment(SEGMENT, number * 1000, 1000, "", 1))).data) == 1000
        await client.call(c.GetStreamSegmentInfo(1, SEGMENT, ""))
        entry = c.TableEntry(b"key %d" % number, bytes(100))
        await client.call(c.UpdateTableEntries(1, TABLE, "", [entry]))
        await client.call(c.ReadTable(1, TABLE, "", [c.TableKey(b"key %d" % number)]))
        await client.call(c.ReadSegment("scope/missing/0.#epoch.0", 0, 1000, "", 1))
        await client.call(c.SetupAppend(1, bytes(16), "scope/missing/0.#epoch.0", ""))


async def test_requests_leave_no_cycles(setting: Any) -> None:
    client = await setting.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    await client.call(c.CreateTableSegment(1, TABLE, "", False, 0, 0))
    await work(client, 0)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await work(client, ROUNDS)
        await client.call(c.AppendBlockEnd(W, 0, bytes(4 * MIB), 1, 2 * ROUNDS + 1, 1))
        gc.collect()
        kinds = Counter(type(found).__name__ for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert kinds.total() < FEW, kinds.most_common(20)
