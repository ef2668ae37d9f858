"""Spreads large replies over the turns of the event loop (docs/design.md#memory-budgets)."""

from __future__ import annotations

import asyncio


class LargeReplyTurns:
    """Lets one large reply of all connections begin in each turn of the loop.

    A reply of 2 MiB takes about a millisecond. Many connections that ask for them at once would else keep the small
    requests of others waiting for all of them.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def begin(self) -> None:
        """Wait for a turn, in the order of the calls."""
        async with self._lock:
            await asyncio.sleep(0)
