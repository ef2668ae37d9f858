"""Transactions of the published Java client that are open over scales, read by its readers and by ours.

See docs/controller.md#commits-that-roll-over-a-scale.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

import pytest

from tailrace.client import Client, StreamName, group_config

LIMIT_S = {"ci": 900, "full": 3600}
SIZES = {"ci": (4, 5), "full": (20, 50)}
"""Epochs, and how many transactions begin in each."""
HEAPS = {"ci": "512m", "full": "6g"}
"""Of the Java program: each open transaction has writers of its own."""

Orders = dict[str, list[int]]


async def read_by_ours(controller: str, stream: StreamName, total: int, limit_s: float) -> Orders:
    """The numbers of each key's events, in the order in which a reader of ours reads them."""
    found: Orders = defaultdict(list)
    async with Client(controller) as client:
        config = group_config({stream: None}, automatic_checkpoint_ms=500)  # a sealed segment is left at a checkpoint
        assert await client.reader_groups(stream.scope).create("ours", config)
        async with asyncio.timeout(limit_s), client.reader(stream.scope, "ours", "reader") as reader:
            left, empty = total, False
            while left > 0 or not empty:
                events = [item.event for item in await reader.read_events(1000, 500) if item.event]
                for event in events:
                    key, number, _ = event.decode().split(":", 2)
                    found[key].append(int(number))
                left, empty = left - len(events), not events
    assert left == 0, f"{-left} events too many"
    return found


@pytest.mark.timeout(2 * LIMIT_S["full"])
async def test_transactions_over_scales(
    java_class_path: str, server: Any, run_child: Any, test_profile: str, test_seed: int
) -> None:
    scope = f"rolling-{time.time_ns()}"
    epochs, each = SIZES[test_profile]
    options = [f"-Xmx{HEAPS[test_profile]}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", java_class_path]
    words = ["rolling", server.controller, scope, str(epochs), str(each), str(test_seed % 2**31)]
    command = ["java", *options, "io.tailrace.compat.Main", *words]
    output = await asyncio.to_thread(run_child, command, LIMIT_S[test_profile])
    lines = output.splitlines()
    assert lines[-1] == "ok"
    by_java: Orders = {}
    for line in lines:
        if line.startswith("key "):
            key, _, numbers = line.removeprefix("key ").partition(":")
            by_java[key] = [int(number) for number in numbers.split()]
    total = sum(map(len, by_java.values()))
    ours = await read_by_ours(server.controller, StreamName(scope, "stream"), total, LIMIT_S[test_profile])
    assert ours == by_java
    check_orders(by_java, epochs * each)


def check_orders(orders: Orders, transactions: int) -> None:
    """Every key has the same transactions in the same order, each once, and the plain events in theirs."""
    keys = sorted(key for key in orders if key.startswith("key"))
    assert len(keys) == 8
    assert len(orders) == 16, "an event is there of a transaction whose lease ended"
    first = orders[keys[0]]
    assert all(orders[key] == first for key in keys)
    assert len(set(first)) == len(first) == transactions - transactions // 5, "each fifth is aborted"
    plain = [orders[key] for key in sorted(orders) if key.startswith("plain")]
    assert len(plain) == 8
    assert all(numbers == list(range(len(numbers))) for numbers in plain)
